"""`duet-rpc commands`: what a store knows about commands, and what an operator can do about it."""

import functools
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from msgspec.json import encode

from duet_rpc.cli.commands.records import (
    HEADER,
    describe_counts,
    describe_record,
    lay_out,
    make_row,
    name_command,
    say_counts,
    say_outcome,
    say_span,
)
from duet_rpc.cli.commands.store import open_named, store_option
from duet_rpc.cli.exit_codes import ERROR_ANSWER
from duet_rpc.cli.output import Failed, Output, cut, is_terminal, output_options, safe, tell
from duet_rpc.cli.params import check_json
from duet_rpc.ledger.states import Identity, Record, State
from duet_rpc.wire.surrogates import encode_value, layout

if TYPE_CHECKING:
    from duet_rpc.ledger.stores.base import Store

KEPT = 86400.0
"""Seconds that an outcome is kept, as a server keeps its own."""
SWEPT_AT_ONCE = 500

_EXIT_CODES = (
    "Exit codes: 0 done, 1 there is no such command or it cannot be done to it, 2 used wrongly,"
    " 3 the store cannot be used, 6 the result cannot be written."
)


def _about_one(run: Callable[..., None]) -> Callable[..., None]:
    """Give a command the words and options that name one record; it is called with the identity."""

    @functools.wraps(run)
    def command(method: str, key: str, principal: str, **own: Any) -> None:
        run(identity=Identity(principal, method, key), **own)

    for option in (
        click.option(
            "--principal", default="local", show_default=True, help="Whose command it is."
        ),
        store_option,
        click.argument("key"),
        click.argument("method"),
    ):
        command = option(command)
    return command


class _InOrder(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands as they come in an operator's day."""
        return list(self.commands)


@click.group("commands", cls=_InOrder, epilog=_EXIT_CODES)
def command() -> None:
    """See what became of commands; settle the unknown.

    A command whose server died in the middle of it is unknown: no one can tell from here whether
    its effect happened, so it is not run again by itself. An operator who has found out says so
    with `resolve`; then every retry is answered with that.

    \b
    duet-rpc commands list --store sqlite:///bank.db --state unknown
    duet-rpc commands show bank.transfer order-17 --store sqlite:///bank.db
    duet-rpc commands resolve bank.transfer order-17 --result 70 --store sqlite:///bank.db
    """


@command.command("list", epilog=_EXIT_CODES)
@store_option
@click.option("--state", type=click.Choice(["unknown", "running", "done"]), help="Only these.")
@click.option("--method", help="Only commands of this method.")
@click.option("--principal", help="Only commands of this principal.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True)
@output_options
def list_(
    store: str,
    state: str | None,
    method: str | None,
    principal: str | None,
    limit: int,
    output: Output,
) -> None:
    """List commands and count them by state.

    Unknown ones come first, then running ones, then done ones; of each the oldest first.
    """
    states = [State(state)] if state else [State.UNKNOWN, State.RUNNING, State.DONE]
    found: list[Record] = []
    with open_named(store) as records:
        counts = records.counts()
        # The stores filter by state alone; who asks for less looks through all of them.
        some = method is not None or principal is not None
        most = counts.unknown + counts.running + counts.done + limit if some else limit + 1
        for each in states:
            found += [
                record
                for record in records.records(each, most)
                if method in (None, record.identity.method)
                and principal in (None, record.identity.principal)
            ]
            if len(found) > limit:
                break
    shown = found[:limit]
    if not output.pretty:
        report = {"counts": describe_counts(counts), "commands": list(map(describe_record, shown))}
        output.value(encode(report))
        return
    now = time.time()
    if shown:
        output.table(HEADER, [make_row(record, now) for record in shown])
        if len(found) > limit:
            output.line(output.faint(f"... and more; --limit {limit * 10} shows them"))
        output.line()
    output.line(f"In the store: {say_counts(counts, now, output)}.")


@command.command("show", epilog=_EXIT_CODES)
@_about_one
@output_options
def show(identity: Identity, store: str, output: Output) -> None:
    """Show all that is known about one command."""
    with open_named(store) as records:
        record = _look(records, identity)
    if not output.pretty:
        output.value(encode(describe_record(record)))
        return
    for line in lay_out(record, time.time(), output):
        output.line(line)


@command.command("resolve", epilog=_EXIT_CODES)
@click.option("--result", metavar="JSON", help="It happened, and this is its result.")
@click.option(
    "--error",
    nargs=2,
    type=(int, str),
    metavar="CODE MESSAGE",
    help="It ended with this error, or is to count as if it had.",
)
@click.option("--data", metavar="JSON", help="What stands in the error's data.")
@_about_one
@output_options
def resolve(
    identity: Identity,
    result: str | None,
    error: tuple[int, str] | None,
    data: str | None,
    store: str,
    output: Output,
) -> None:
    """Say what became of a command whose outcome is unknown.

    From then on it is done: every retry under its key is answered with what is said here.

    \b
    duet-rpc commands resolve bank.transfer order-17 --result 70 --store sqlite:///bank.db
    duet-rpc commands resolve mail.send m-4 --error 502 "Not sent" --store sqlite:///bank.db
    """
    outcome = _make_outcome(result, error, data)
    with open_named(store) as records:
        record = _look(records, identity)
        if record.state is not State.UNKNOWN or not records.resolve(identity, outcome, KEPT):
            record = _look(records, identity)
            raise Failed(
                f"{name_command(identity)} is not unknown: {_say_why_not(record)}",
                ERROR_ANSWER,
                ["Nothing was changed."],
            )
        record = _look(records, identity)
    if output.pretty:
        output.line(
            f"{name_command(identity)} is done; every retry is answered: {say_outcome(record)}"
        )
    else:
        output.value(encode(describe_record(record)))


@command.command("forget", epilog=_EXIT_CODES)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@_about_one
@output_options
def forget(
    identity: Identity,
    yes: bool,
    store: str,
    output: Output,
) -> None:
    """Drop the record of a command, so that its key is as good as new.

    A retry that comes afterwards runs the command again. A command that runs now is not forgotten.
    """
    with open_named(store) as records:
        record = _look(records, identity)
        if not yes:
            _confirm(record)
        if not records.forget(identity):
            record = _look(records, identity)
            raise Failed(
                f"{name_command(identity)} cannot be forgotten: {_say_why_not(record)}",
                ERROR_ANSWER,
                ["Nothing was changed."],
            )
    if output.pretty:
        output.line(f"{name_command(identity)} is forgotten; its key is as good as new")
    else:
        output.value(encode({"forgotten": dict(identity._asdict())}))


@command.command("sweep", epilog=_EXIT_CODES)
@store_option
@output_options
def sweep(store: str, output: Output) -> None:
    """Drop the records whose time is over.

    Servers do it in the background, and Redis and Valkey by themselves. By hand, the clock is
    taken to be right.
    """
    dropped = 0
    with open_named(store) as records:
        while True:
            count = records.sweep(SWEPT_AT_ONCE)
            dropped += count
            if count < SWEPT_AT_ONCE:
                break
    if output.pretty:
        output.line(f"dropped {dropped} {'record' if dropped == 1 else 'records'}")
    else:
        output.value(b'{"dropped":%d}' % dropped)


def _look(records: "Store", identity: Identity) -> Record:
    """Read a record, or say whose it may be instead."""

    record = records.look(identity)
    if record is not None:
        return record
    counts = records.counts()
    everything = records.records(None, counts.unknown + counts.running + counts.done + 1)
    others = [r.identity.principal for r in everything if r.identity[1:] == identity[1:]]
    raise Failed(
        f"there is no command {name_command(identity)}"
        + (" of local" if identity.principal == "local" else ""),
        ERROR_ANSWER,
        [f"There is one of another principal: --principal {safe(each)}" for each in others]
        or ["Records are dropped 24 hours after their end; `duet-rpc commands list` shows all."],
    )


def _say_why_not(record: Record) -> str:
    if record.state is State.DONE:
        return f"it is done, and its outcome is {say_outcome(record)}"
    left = record.lease_until - time.time()
    if left > 0:
        return f"it runs; its server has {say_span(left)} more to say that it lives"
    return "it is safe to run again, and the next retry does so"


def _make_outcome(result: str | None, error: tuple[int, str] | None, data: str | None) -> bytes:
    """Write the outcome as a server writes its own."""
    if (result is None) == (error is None):
        raise click.UsageError("say either --result JSON or --error CODE MESSAGE")
    if result is not None:
        if data is not None:
            raise click.UsageError("--data belongs to --error")
        value = check_json(result.encode("utf-8", "surrogateescape"), "--result")
        return b'"result":' + layout(value, -1)
    assert error is not None, "one of them is given"
    code, message = error
    member: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        member["data"] = check_json(data.encode("utf-8", "surrogateescape"), "--data")
    return b'"error":' + encode_value(member)


def _confirm(record: Record) -> None:
    if not is_terminal(sys.stdin):
        raise click.UsageError("there is no one to ask; say --yes to forget it")
    age = say_span(time.time() - record.created_at)
    became = f": {cut(say_outcome(record), 60)}" if say_outcome(record) else ""
    tell(f"{name_command(record.identity)}: begun {age} ago, {record.state.value}{became}")
    try:
        wanted = click.confirm("Forget it? A retry would run it again.", err=True)
    except click.Abort:
        tell("")
        wanted = False
    if not wanted:
        raise Failed("nothing was changed", ERROR_ANSWER)
