"""`duet-rpc list`: the methods of a server."""

from typing import NoReturn

import click
import msgspec

from duet_rpc.cli.connect import ReachingCommand, Server, reaching_options
from duet_rpc.cli.discovery import Found
from duet_rpc.cli.failures import EXIT_CODES
from duet_rpc.cli.output import Output, output_options, safe
from duet_rpc.cli.talking import talking


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
@output_options
def command(
    words: tuple[str, ...],
    all_: bool,
    timeout: float | None,
    framing: str,
    verbose: bool,
    format_: str | None,
    no_color: bool,
) -> None:
    """List the methods of a server.

    \b
    duet-rpc list unix:bank.sock
    duet-rpc list tcp://127.0.0.1:8765 --format json
    duet-rpc list -- python sums.py
    """
    from duet_rpc.cli.discovery import discover

    output = Output(format_, no_color)
    server, rest = Server.of(words, timeout=timeout, framing=framing, verbose=verbose)
    if rest:
        raise click.UsageError(f"one server at a time; what is {rest[0]!r}?")
    with talking(server, output) as client:
        methods = discover(client).methods
    methods.sort(key=lambda method: method.name)
    if not output.pretty:
        output.value(msgspec.json.encode([_described(method) for method in methods]))
        return
    usual = _usual()
    own = [m for m in methods if all_ or (m.name, m.description) not in usual]
    rest = [m.name for m in methods if m not in own]
    if own:
        output.table(
            ("method", "kind", "description"),
            [(safe(m.name), m.kind or "", safe(_summary(m.description))) for m in own],
        )
    else:
        output.line("The server has no methods of its own.")
    if rest:
        usual_names = f"and what every daemon has (--all): {', '.join(rest)}"
        output.line(output.faint(click.wrap_text(usual_names, output.width)))


def _described(method: Found) -> dict[str, str | None]:
    described: dict[str, str | None] = {"name": method.name, "description": method.description}
    if method.kind is not None:
        described["kind"] = method.kind
    if method.promise is not None:
        described["promise"] = method.promise
    return described


def _summary(description: str) -> str:
    return description.strip().partition("\n\n")[0]


def _usual() -> set[tuple[str, str]]:
    """Name the daemon's own methods, as it describes them itself."""
    from duet_rpc.ledger.commands import Commands
    from duet_rpc.server.builtin import builtin_methods, parting_methods
    from duet_rpc.service import Service

    daemon = builtin_methods(Service(), _NoLevels(), lambda reason: None, Commands(_no_ledger))
    on_socket = parting_methods(lambda connection_id: None)
    return {(method.name, method.description) for method in (*daemon, *on_socket)}


class _NoLevels:
    def set_level(self, level: str) -> None:
        """Nobody calls it."""


def _no_ledger() -> NoReturn:
    raise AssertionError("these methods are listed, not called")
