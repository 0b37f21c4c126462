"""The server that a person means, before it is served: loaded quietly, named for hosts."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from duet_rpc.cli.load import load_service_and_face, split_target

if TYPE_CHECKING:
    from duet_rpc.mcp.face import Mcp
    from duet_rpc.service import Service


def load_quietly(target: str) -> "tuple[Service, Mcp]":
    """Load a service; what its file prints goes to stderr, for stdout is read by others."""
    with _stdout_on_stderr():
        return load_service_and_face(target)


def name_server(service: "Service", target: str, given: str | None) -> str:
    """Choose the name that a server has in a host's configuration."""
    from duet_rpc.mcp.host_rules import SERVER_NAME
    from duet_rpc.startup import pattern

    if given is not None:
        if not pattern(SERVER_NAME).fullmatch(given):
            raise click.UsageError(f"--name {given!r}: take letters, digits, _ and -")
        return given
    place = split_target(target)[0]
    stem = os.path.splitext(os.path.basename(place))[0]
    for name in (service.name, stem):
        fitting = pattern(r"[^a-zA-Z0-9_-]+").sub("-", name).strip("-")
        if fitting:
            return fitting
    return "duet-rpc"


@contextlib.contextmanager
def _stdout_on_stderr() -> Iterator[None]:
    """Point descriptor 1 at stderr: a file may print, or start programs that do."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
