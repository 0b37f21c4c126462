"""`duet-rpc stub`: a Python module that types the calls of a service."""

import os
import shlex
import sys
from typing import Any

import click

from duet_rpc.cli.load import find_file, load_service
from duet_rpc.codegen.interface import InterfaceOptions, write_interface
from duet_rpc.errors import UsageError


@click.command("stub")
@click.argument("target", metavar="FILE[:OBJECT]")
@click.option("--blocking", "is_blocking", is_flag=True, help="For blocking.Client.")
@click.option("--name", default="", help="The name of the class; made of the service's otherwise.")
@click.option(
    "--types",
    type=click.Choice(["import", "copy"]),
    help="Whether classes are imported from the service's module, or copied. They are imported if"
    " it is named as a module, or is a file in this folder.",
)
def command(target: str, is_blocking: bool, name: str, types: str | None) -> None:
    """Print a Python module with a typed client of a service.

    It has a Protocol class with the methods of the service, and a function that makes the proxy of
    a client.

    \b
    duet-rpc stub notes.py > notes_client.py
    duet-rpc stub --blocking --types copy app.services:notes > notes_client.py
    """
    if name and not name.isidentifier():
        raise click.UsageError(f"{name} is no name of a class")
    service = load_service(target)
    options = InterfaceOptions(
        made_by=f"duet-rpc stub {shlex.join(sys.argv[2:])}",
        class_name=name or ("" if service.name else _name_of(target)),
        is_blocking=is_blocking,
        copies=_choose(target, types),
    )
    try:
        service.check_errors()
        click.echo(write_interface(service, options), nl=False)
    except UsageError as error:
        raise click.ClickException(str(error)) from None


def _name_of(target: str) -> str:
    """Name the class of a service without a name after its file."""
    stem = os.path.splitext(os.path.basename(target.partition(":")[0]))[0].rpartition(".")[2]
    words = stem.replace("-", "_").split("_")
    name = "".join(word[:1].upper() + word[1:] for word in words)
    return name if name.isidentifier() else "Remote"


def _choose(target: str, types: str | None) -> Any:
    """Choose which classes are copied: those of the service's module, if it cannot be imported."""
    place = target.partition(":")[0]
    file = find_file(target)
    is_near = file is not None and os.path.dirname(file) == os.getcwd()
    copies = types == "copy" or (types is None and place.endswith(".py") and not is_near)

    def is_copied(cls: Any) -> bool:
        module = sys.modules.get(cls.__module__)
        if "<locals>" in cls.__qualname__ or cls.__module__.startswith("served_"):
            return True
        return copies and file is not None and getattr(module, "__file__", None) == file

    return is_copied
