"""`duet-rpc list`: the methods of a server."""

from typing import NoReturn

import click
import msgspec

from duet_rpc.cli.connect import ReachingCommand, Target, reaching_options
from duet_rpc.cli.discovery import discover
from duet_rpc.cli.exit_codes import EXIT_CODES
from duet_rpc.cli.output import Output, safe
from duet_rpc.server.description import MethodDescription


@click.command("list", cls=ReachingCommand, epilog=EXIT_CODES)
@click.argument("words", nargs=-1, metavar="")
@click.option(
    "--all",
    "-a",
    "all_",
    is_flag=True,
    help="Also those that every daemon of ours has; in JSON they always are.",
)
@reaching_options
def command(target: Target, words: list[str], output: Output, *, all_: bool) -> None:
    """List the methods of a server.

    \b
    duet-rpc list unix:bank.sock
    duet-rpc list tcp://127.0.0.1:8765 --format json
    duet-rpc list -- python sums.py
    """
    if words:
        raise click.UsageError(f"one server at a time; what is {words[0]!r}?")
    methods = sorted(target.ask(discover, output).methods, key=lambda method: method.name)
    if not output.pretty:
        output.value(msgspec.json.encode([_describe(method) for method in methods]))
        return
    usual = _describe_usual()
    own = [m for m in methods if all_ or (m.name, m.description) not in usual]
    rest = [m.name for m in methods if m not in own]
    if own:
        output.table(
            ("method", "kind", "description"),
            [(safe(m.name), m.kind or "", safe(_summarize(m))) for m in own],
        )
    else:
        output.line("The server has no methods of its own.")
    if rest:
        usual_names = f"and what every daemon has (--all): {', '.join(rest)}"
        output.line(output.faint(click.wrap_text(usual_names, output.width)))


def _describe(method: MethodDescription) -> dict[str, str]:
    described = {"name": method.name, "description": method.summary or method.description}
    if method.kind is not None:
        described["kind"] = method.kind
    if method.promise is not None:
        described["promise"] = method.promise
    return described


def _summarize(method: MethodDescription) -> str:
    return (method.summary or method.description).strip().partition("\n\n")[0]


def _describe_usual() -> set[tuple[str, str]]:
    """Name the daemon's own methods, as it describes them itself."""
    from duet_rpc.ledger.commands import Commands
    from duet_rpc.server.server import add_own_methods
    from duet_rpc.service import Service

    commands = Commands(_no_ledger)
    on_stdio = add_own_methods(Service(), commands)
    on_socket = add_own_methods(Service(), commands, part=lambda connection_id: None)
    return {(method.name, method.description) for method in (*on_stdio, *on_socket)}


def _no_ledger() -> NoReturn:
    raise AssertionError("these methods are listed, not called")
