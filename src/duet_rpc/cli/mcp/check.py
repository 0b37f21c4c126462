"""`duet-rpc mcp check FILE[:OBJECT]`: tells before a host does what it would refuse."""

import os
import tempfile
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from duet_rpc.cli.output import Output, safe
from duet_rpc.policy import PRESETS, preset

if TYPE_CHECKING:
    from duet_rpc.mcp.face import Mcp
    from duet_rpc.mcp.host_rules import Finding
    from duet_rpc.mcp.tools import Tool
    from duet_rpc.service import Service

WIDTH = 80
_START = "start"
"""The rule of ours that a server can be made."""


@click.command(
    "check",
    short_help="Tell which tools break which host's rules.",
    epilog="Exit codes: 0 fine, 1 something would break (with --strict also a warning),"
    " 2 used wrongly.",
)
@click.argument("target", metavar="FILE[:OBJECT]")
@click.option("--name", metavar="NAME", help="The server's name in the host.  [the service's]")
@click.option(
    "--store",
    metavar="URL",
    envvar="DUET_RPC_STORE",
    show_envvar=True,
    help="The store that it will be served with; it is not opened.",
)
@click.option(
    "--policy",
    type=click.Choice(list(PRESETS), case_sensitive=False),
    default="agent",
    show_default=True,
    help="The policy that it will be served under.",
)
@click.option("--json", "as_json", is_flag=True, help="One line of JSON, for programs.")
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings as well.")
def command(
    target: str,
    name: str | None,
    store: str | None,
    policy: str,
    *,
    as_json: bool,
    strict: bool,
) -> None:
    """Tell before a host does which tools break which host's rules.

    Looks at names, schemas, descriptions, hints, timeouts, the number of tools and the store. An
    error is something that a host or the model behind it refuses; a warning is for you to weigh.

    \b
    duet-rpc mcp check notes.py
    duet-rpc mcp check bank.py --store sqlite:///bank.db --strict
    duet-rpc mcp check bank.py --json
    """
    from duet_rpc.cli.mcp.target import load_quietly, name_server
    from duet_rpc.errors import UsageError
    from duet_rpc.mcp.host_rules import NOT_CHECKED, Finding, Offered, find_problems

    service, face = load_quietly(target)
    server = name_server(service, target, name)
    tools: dict[str, Tool] = {}
    try:
        tools = _make_tools(service, face, policy, store)
    except UsageError as error:
        problem = str(error).replace("store= of Server", "--store")
        found = [
            Finding(
                rule=_START,
                severity="error",
                tool=None,
                hosts="all",
                problem=problem,
                advice="the server does not start",
            )
        ]
    else:
        has_store = store is not None and not store.startswith("memory:")
        found = find_problems(Offered(server=server, tools=tools, has_store=has_store))
    errors = sum(each.severity == "error" for each in found)
    warnings = len(found) - errors
    if as_json:
        document: dict[str, Any] = {
            "server": server,
            "tools": list(tools),
            "errors": errors,
            "warnings": warnings,
            "findings": found,
            "not_checked": NOT_CHECKED,
        }
        Output("json", no_color=True).value(msgspec.json.encode(document))
    else:
        _show(Output("pretty", no_color=False), server, len(tools), found)
    if errors or (strict and warnings):
        raise SystemExit(1)


def _make_tools(
    service: "Service", face: "Mcp", policy: str, store: str | None
) -> "dict[str, Tool]":
    """Make the tools as a server would; raise `UsageError` where it would not start."""
    from contextlib import closing

    from duet_rpc.mcp.face import BoundMcp
    from duet_rpc.server.logs import Logs
    from duet_rpc.server.server import Server, assemble_dispatcher

    with tempfile.TemporaryDirectory() as folder:
        if store is not None and store.startswith("sqlite:"):
            # What it gives to methods is looked at, but no file of the person's is made.
            store = f"sqlite:///{os.path.join(folder, 'check.db')}"
        server = Server(service, policy=preset(policy), store=store, face=face)
        with closing(server.commands), closing(Logs(level="error")) as logs:
            bound = assemble_dispatcher(server, logs).face
            assert isinstance(bound, BoundMcp)
            return dict(bound.tools)


def _show(output: Output, server: str, count: int, found: "Sequence[Finding]") -> None:
    from duet_rpc.mcp.host_rules import NOT_CHECKED

    errors = sum(each.severity == "error" for each in found)
    amounts = (count, "tool"), (errors, "error"), (len(found) - errors, "warning")
    said = ", ".join(f"{number} {what}{'' if number == 1 else 's'}" for number, what in amounts)
    output.line(output.strong(f"{server}: {said}"))
    column = max((len(each.rule) for each in found), default=0)
    subject: object = ...
    for each in sorted(found, key=lambda one: one.tool or ""):
        if each.tool != subject:
            subject = each.tool
            output.line()
            output.line(each.tool or "the server")
        severity = f"{each.severity:7}"
        if each.severity == "error":
            severity = output.alarming(severity)
        head = f"  {severity}  {each.rule:{column}}  "
        room = WIDTH - (2 + 7 + 2 + column + 2)
        problem = safe(each.problem)
        sentences = (
            f"{problem[:1].upper()}{problem[1:]}.",
            f"Hosts: {each.hosts}.",
            f"Fix: {each.advice}.",
        )
        lines = [line for text in sentences for line in textwrap.wrap(text, room)]
        for line in lines:
            output.line(f"{head}{line}")
            head = " " * (WIDTH - room)
    output.line()
    output.line(output.faint("\n".join(textwrap.wrap(NOT_CHECKED, WIDTH))))
