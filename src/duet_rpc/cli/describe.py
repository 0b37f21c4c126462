"""`duet-rpc describe`: one method, in full."""

from collections.abc import Iterator, Sequence
from typing import Any

import click
import msgspec

from duet_rpc.cli.connect import ReachingCommand, Server, reaching_options
from duet_rpc.cli.discovery import Discovered, Found
from duet_rpc.cli.failures import ERROR_ANSWER, EXIT_CODES, Attempt, similar
from duet_rpc.cli.output import Failed, Output, columns, output_options, safe
from duet_rpc.cli.schemas import default_of, members, names_in, worded
from duet_rpc.cli.talking import talking

PROMISES = {
    "transactional": "a retry under the same key finds the effect and its record, or neither",
    "at-most-once": "never run twice under one key; cut off in the middle, its outcome is unknown",
    "retry-safe": "cut off in the middle, it is run again by the next retry under the same key",
}


@click.command("describe", cls=ReachingCommand, epilog=EXIT_CODES)
@click.argument("words", nargs=-1, metavar="METHOD")
@reaching_options
@output_options
def command(
    words: tuple[str, ...],
    timeout: float | None,
    framing: str,
    verbose: bool,
    format_: str | None,
    no_color: bool,
) -> None:
    """Show what a method takes, returns and raises.

    For a command it also tells what a retry means.

    \b
    duet-rpc describe unix:bank.sock bank.transfer
    duet-rpc describe add -- python sums.py
    """
    from duet_rpc.cli.discovery import discover

    output = Output(format_, no_color)
    server, rest = Server.of(words, timeout=timeout, framing=framing, verbose=verbose)
    if len(rest) != 1:
        raise click.UsageError("describe takes one METHOD")
    with talking(server, output) as client:
        discovered = discover(client)
    method = discovered.find(rest[0])
    if method is None:
        attempt = Attempt(method=rest[0], known_methods=discovered.names)
        raise Failed(f"the server has no method {safe(rest[0])}", ERROR_ANSWER, similar(attempt))
    if not output.pretty:
        output.value(msgspec.json.encode(method.told))
        return
    for line in _page(method, discovered, output):
        output.line(line)


def _page(method: Found, discovered: Discovered, output: Output) -> Iterator[str]:
    about = ", ".join(each for each in (method.kind, method.promise) if each)
    yield output.strong(safe(method.name)) + (f"  {about}" if about else "")
    told = method.told
    description = told.get("description") or method.description
    if isinstance(description, str) and description:
        yield ""
        yield from (f"  {safe(line)}".rstrip() for line in description.strip().splitlines())
    if method.promise in PROMISES:
        yield ""
        yield f"  {PROMISES[method.promise]}"
    if discovered.is_openrpc:
        yield from _openrpc(told, discovered.components, output)
    else:
        listed = [each for each in _list(told.get("params")) if isinstance(each, str)]
        yield from _section("params", [(safe(each),) for each in listed], output)
        if isinstance(told.get("returns"), str):
            yield from _section("returns", [(safe(told["returns"]),)], output)


def _openrpc(told: dict[str, Any], components: dict[str, Any], output: Output) -> Iterator[str]:
    params = [each for each in _list(told.get("params")) if isinstance(each, dict)]
    structure = {"by-name": " (by name)", "by-position": " (by position)"}
    how = structure.get(str(told.get("paramStructure")), "")
    if told.get("x-variadic"):
        how = " (by position, any number)"
    yield from _section(f"params{how}", [_parameter(each) for each in params], output)
    result = told.get("result")
    if isinstance(result, dict):
        yield from _section("returns", [(worded(result.get("schema")),)], output)
    errors = [each for each in _list(told.get("errors")) if isinstance(each, dict)]
    if errors:
        rows = [(str(each.get("code")), safe(str(each.get("message")))) for each in errors]
        yield from _section("errors", rows, output)
    schemas = components.get("schemas")
    named = schemas if isinstance(schemas, dict) else {}
    for name in _reached([params, result], named):
        rows_of_type = members(named[name])
        if rows_of_type:
            yield from _section(safe(name), rows_of_type, output)
        else:
            unnamed = {key: value for key, value in named[name].items() if key != "title"}
            yield from _section(safe(name), [(worded(unnamed),)], output)


def _parameter(parameter: dict[str, Any]) -> tuple[str, ...]:
    schema = parameter.get("schema")
    need = "required" if parameter.get("required") else default_of(schema)
    described = parameter.get("description")
    return (
        safe(str(parameter.get("name"))),
        worded(schema),
        need,
        safe(described) if isinstance(described, str) else "",
    )


def _reached(start: Any, named: dict[str, Any]) -> list[str]:
    """List the named types that something refers to, also through one another."""
    found: list[str] = []
    waiting = names_in(start)
    while waiting:
        name = waiting.pop(0)
        if name not in found and isinstance(named.get(name), dict):
            found.append(name)
            waiting += names_in(named[name])
    return found


def _section(title: str, rows: Sequence[Sequence[str]], output: Output) -> Iterator[str]:
    yield ""
    yield output.strong(title)
    if not rows:
        yield "  none"
        return
    yield from (f"  {line}" for line in columns(rows, output.width - 2))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
