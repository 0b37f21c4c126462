"""`duet-rpc mcp config HOST FILE[:OBJECT]`: prints what makes a host start a server."""

import os
import sys
import sysconfig
from typing import TYPE_CHECKING

import click

from duet_rpc.cli.mcp.hosts import HOSTS, Entry

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.command(
    "config",
    short_help="Print what makes a host start a server.",
    epilog="Exit codes: 0 printed, 1 the file cannot be loaded, 2 used wrongly.",
)
@click.argument("host", type=click.Choice(list(HOSTS)))
@click.argument("target", metavar="FILE[:OBJECT]")
@click.option("--name", metavar="NAME", help="The server's name in the host.  [the service's]")
@click.option(
    "--env",
    metavar="NAME=VALUE",
    multiple=True,
    help="A variable of the server's environment; hosts pass on almost none by themselves.",
)
@click.option(
    "--store",
    metavar="URL",
    help="Where commands are remembered: sqlite:///commands.db, postgresql://..., redis://...",
)
def command(
    host: str, target: str, name: str | None, env: tuple[str, ...], store: str | None
) -> None:
    """Print what makes a host start your functions as its tools.

    What to paste goes to stdout, where it belongs to stderr. All paths are absolute: hosts start
    servers in a directory of their own.

    \b
    duet-rpc mcp config claude-code notes.py
    duet-rpc mcp config codex bank.py --store sqlite:///bank.db
    duet-rpc mcp config vscode notes.py:service --env NOTES=/srv/notes
    """
    from duet_rpc.cli.mcp.target import load_quietly, name_server

    service, _ = load_quietly(target)
    variables = _find_path(target) | _read_variables(env)
    words = [*_find_command(), "mcp", _make_absolute(target)]
    if store is not None:
        url = _make_store_absolute(store)
        if url.startswith("sqlite:"):
            words += ["--store", url]
        else:  # it may hold a password, and arguments are seen by every user of the machine
            variables["DUET_RPC_STORE"] = url
    entry = Entry(name=name_server(service, target, name), command=words, env=variables)
    _check_characters([*words, *variables, *variables.values()])
    chosen = HOSTS[host]
    for line in (f"{chosen.title}:", *chosen.place):
        click.echo(line, err=True)
    # As bytes: what is pasted is UTF-8, whatever the terminal's locale says.
    click.echo(f"{chosen.write(entry)}\n".encode(), nl=False)


def _find_command() -> list[str]:
    """Find what starts us: the installed script, or else the interpreter.

    The script first: with `-m`, Python would import from the host's working directory.
    """
    script = os.path.join(sysconfig.get_path("scripts"), "duet-rpc")
    if os.access(script, os.X_OK):
        return [script]
    return [os.path.abspath(sys.executable), "-P", "-m", "duet_rpc"]


def _make_absolute(target: str) -> str:
    from duet_rpc.cli.load import is_file, split_target

    place, name = split_target(target)
    place = os.path.abspath(place) if is_file(place) else place
    return f"{place}:{name}" if name else place


def _find_path(target: str) -> dict[str, str]:
    """Say where a module is imported from, if it is one of the directory where we are."""
    from duet_rpc.cli.load import find_file, is_file, split_target

    if is_file(split_target(target)[0]):
        return {}
    here = os.getcwd()
    file = find_file(target)
    is_ours = file is not None and os.path.abspath(file).startswith(os.path.join(here, ""))
    is_installed = file is not None and "site-packages" in file
    return {"PYTHONPATH": here} if is_ours and not is_installed else {}


def _read_variables(given: "Sequence[str]") -> dict[str, str]:
    variables: dict[str, str] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise click.UsageError(f"--env {each}: write NAME=VALUE")
        variables[name] = value
    return variables


def _make_store_absolute(url: str) -> str:
    from urllib.parse import quote, urlsplit

    from duet_rpc.errors import UsageError
    from duet_rpc.ledger.stores.base import file_of

    if not url.startswith("sqlite:"):
        if not urlsplit(url).scheme:
            raise click.UsageError(f"--store {url}: for a file, write sqlite:///{url}")
        return url
    try:
        path = os.path.abspath(file_of(url))
    except UsageError as error:
        raise click.UsageError(f"--store {error}") from None
    return f"sqlite:///{quote(path)}"


def _check_characters(words: "Sequence[str]") -> None:
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise click.UsageError(
                f"{word!r} is not UTF-8, which the configuration of every host is; rename it"
            ) from None
