"""`duet-rpc describe`: one method, in full."""

from collections.abc import Iterator, Sequence
from typing import Any

import click
import msgspec

from duet_rpc.cli.connect import ReachingCommand, Target, reaching_options
from duet_rpc.cli.discovery import discover
from duet_rpc.cli.exit_codes import ERROR_ANSWER, EXIT_CODES
from duet_rpc.cli.failures import Attempt, suggest_methods
from duet_rpc.cli.output import Failed, Output, lay_out_columns, safe
from duet_rpc.cli.schemas import list_members, list_names, say_default, say_type
from duet_rpc.server.description import (
    MethodDescription,
    ParamDescription,
    ServiceDescription,
    write_param,
)

PROMISES = {
    "transactional": "a retry under the same key finds the effect and its record, or neither",
    "at-most-once": "never run twice under one key; cut off in the middle, its outcome is unknown",
    "retry-safe": "cut off in the middle, it is run again by the next retry under the same key",
}

WHEN_SLOW = {
    "lagged": "a subscriber that does not keep up is ended with the error lagged",
    "drop-oldest": "a subscriber that does not keep up misses the oldest items; seq shows the gap",
    "wait": "it waits for a subscriber that does not keep up",
}

_DEDUPE = (
    "without a key, the same arguments within {:g} s are taken for a repetition: nothing is done"
    " again, and the answer is the first one"
)

_STRUCTURES = {"by-name": "(by name)", "by-position": "(by position)"}


@click.command("describe", cls=ReachingCommand, epilog=EXIT_CODES)
@click.argument("words", nargs=-1, metavar="METHOD")
@reaching_options
def command(target: Target, words: list[str], output: Output) -> None:
    """Show what a method takes, returns and raises.

    For a command it also tells what a retry means.

    \b
    duet-rpc describe unix:bank.sock bank.transfer
    duet-rpc describe add -- python sums.py
    """
    if len(words) != 1:
        raise click.UsageError("describe takes one METHOD")
    [name] = words
    service = target.ask(discover, output)
    method = service.find(name)
    if method is None:
        attempt = Attempt(method=name, known_methods=service.names)
        raise Failed(
            f"the server has no method {safe(name)}", ERROR_ANSWER, suggest_methods(attempt)
        )
    if not output.pretty:
        output.value(msgspec.json.encode(method.source))
        return
    for line in _lay_out(method, service, output):
        output.line(line)


def _lay_out(
    method: MethodDescription, service: ServiceDescription, output: Output
) -> Iterator[str]:
    about = ", ".join(each for each in (method.kind, method.promise) if each)
    yield output.strong(safe(method.name)) + (f"  {about}" if about else "")
    if description := method.description or method.summary:
        yield ""
        yield from (f"  {safe(line)}".rstrip() for line in description.strip().splitlines())
    if method.promise in PROMISES:
        yield ""
        yield f"  {PROMISES[method.promise]}"
    if method.dedupe_window is not None:
        yield ""
        yield f"  {_DEDUPE.format(method.dedupe_window)}"
    if method.when_slow in WHEN_SLOW:
        yield ""
        yield f"  {WHEN_SLOW[method.when_slow]}"
    if method.scopes:
        yield ""
        yield f"  Its caller needs {', '.join(safe(each) for each in method.scopes)}."
    how = _STRUCTURES.get(method.structure)
    if method.is_variadic or method.is_whole:
        how = "(by position, any number)" if method.is_variadic else "(as one value)"
    params = [_make_row(param) for param in method.params]
    yield from _lay_out_section(f"params {how}" if how else "params", params, output)
    returns = "items" if method.kind == "subscription" else "returns"
    if method.result is not None:
        yield from _lay_out_section(returns, [(say_type(method.result),)], output)
    elif method.returns is not None:
        yield from _lay_out_section(returns, [(safe(method.returns),)], output)
    if method.errors:
        rows = [(str(each.code), safe(each.message)) for each in method.errors]
        yield from _lay_out_section("errors", rows, output)
    for name, schema in _find_types(method, service).items():
        unnamed = {key: value for key, value in schema.items() if key != "title"}
        members = list_members(schema) or [(say_type(unnamed),)]
        yield from _lay_out_section(safe(name), members, output)


def _make_row(param: ParamDescription) -> tuple[str, ...]:
    if param.schema is None:
        return (safe(write_param(param)),)
    need = "required" if param.required else say_default(param.default)
    return (safe(param.name), say_type(param.schema), need, safe(param.description))


def _find_types(method: MethodDescription, service: ServiceDescription) -> dict[str, Any]:
    """Find the types with names that a method refers to, also through one another."""
    found: dict[str, Any] = {}
    waiting = list_names([*(param.schema for param in method.params), method.result])
    while waiting:
        name = waiting.pop(0)
        schema = service.schemas.get(name)
        if name not in found and isinstance(schema, dict):
            found[name] = schema
            waiting += list_names(schema)
    return found


def _lay_out_section(title: str, rows: Sequence[Sequence[str]], output: Output) -> Iterator[str]:
    yield ""
    yield output.strong(title)
    if not rows:
        yield "  none"
        return
    yield from (f"  {line}" for line in lay_out_columns(rows, output.width - 2))
