"""`duet-rpc batch`: many calls from a file, their answers in the same order."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from duet_rpc.cli.ages import is_moment, read_age, write_moment
from duet_rpc.cli.connect import ReachingCommand, Target, reaching_options
from duet_rpc.cli.exit_codes import EXIT_CODES, choose_exit_code
from duet_rpc.cli.failures import Attempt, advise, describe_failure, say_error
from duet_rpc.cli.output import Output, count_cells, safe, safe_json, tell_failure, write_compact
from duet_rpc.errors import DuetError, TransportError, UsageError
from duet_rpc.wire import surrogates

if TYPE_CHECKING:
    from duet_rpc.blocking import Client
    from duet_rpc.cli.params import Sources
    from duet_rpc.client.batch import BatchItem

SIZE = 100
"""Calls in one array. Servers have limits; the client sends smaller ones if they say so."""


class FileCall(Struct, forbid_unknown_fields=True):
    """One call as it stands in the file."""

    method: str
    params: Raw | UnsetType = UNSET
    key: str | UnsetType = UNSET
    since: str | UnsetType = UNSET
    notify: bool = False
    id: Raw | UnsetType = UNSET
    jsonrpc: str = "2.0"


@click.command("batch", cls=ReachingCommand, epilog=EXIT_CODES)
@click.argument("words", nargs=-1, metavar="FILE")
@click.option(
    "--one-by-one",
    is_flag=True,
    help="Send each call when the one before it is answered, in no array: for servers that take"
    " none, and for files that hold a session. The server is not asked which are commands.",
)
@reaching_options
def command(target: Target, words: list[str], output: Output, one_by_one: bool) -> None:
    """Call everything in a file and print the answers.

    FILE (- for stdin) is a JSON array, or has one JSON object a line:
    {"method": ..., "params": ...}. "key" is the idempotency key of a command (commands without one
    are given one), "since" tells when it was first sent if it is a retry ("5m", or a time),
    "notify": true makes a notification, and an "id" is repeated in the answer.

    The calls are sent in arrays of up to a hundred, or one by one to a server that takes no
    batches; --timeout counts for each array. The answers come in the order of the file, each on a
    line of its own with the method, and its result or error. The exit code is that of the worst.

    \b
    duet-rpc batch unix:bank.sock calls.jsonl
    duet-rpc batch - -- python sums.py < calls.json
    duet-rpc batch --one-by-one session.jsonl -- gopls
    """
    from duet_rpc.cli.params import Sources

    if len(words) != 1:
        raise click.UsageError("batch takes one FILE, or - for stdin")
    calls = read_calls(words[0], Sources())
    for number, call in enumerate(calls, 1):
        _settle_key(call, number)
    batch = _Batch(calls, output, one_by_one)
    try:
        target.talk(batch.run)
    except DuetError as error:
        batch.code = choose_exit_code(error)
        advised = advise(error, Attempt(method="", sent=False)) if not batch.sent else []
        lines = [*target.explain_framing(error), *advised]
        tell_failure(say_error(error), lines, no_color=output.no_color)
    batch.sum_up()
    sys.exit(batch.code)


def read_calls(name: str, sources: "Sources") -> list[FileCall]:
    """Read calls: a JSON array, or a JSON object on each line."""
    text = sources.read(name)
    if not text.strip():
        raise click.UsageError("there are no calls in the file")
    if text.lstrip()[:1] == b"[":
        return _decode(text, list[FileCall], "the file")  # type: ignore[no-any-return]
    try:
        return [surrogates.decode(text, FileCall)]  # one object may take several lines
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    return [
        _decode(line, FileCall, f"line {number}")
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip()
    ]


def _decode(text: bytes, kind: Any, where: str) -> Any:
    try:
        return surrogates.decode(text, kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise click.UsageError(f"{where}: {error}") from None


class _Batch:
    """The calls, and what came of them so far."""

    def __init__(self, calls: list[FileCall], output: Output, one_by_one: bool) -> None:
        self._calls = calls
        self._one_by_one = one_by_one
        self._output = output
        self._width = max(count_cells(safe(call.method)) for call in calls) if calls else 0
        self._failed = 0
        self._answered = 0
        self._attempts: list[Attempt] = []
        """How each of those is sent again."""
        self.sent = 0
        """How many may have reached the server."""
        self.code = 0

    def run(self, client: "Client") -> None:
        """Send them all and print the answers as they come."""
        commands = set() if self._one_by_one else self._ask_commands(client)
        size = 1 if self._one_by_one else SIZE
        for at in range(0, len(self._calls), size):
            part = self._calls[at : at + size]
            for call in part:
                if call.method in commands and call.key is UNSET and not call.notify:
                    call.key = _new_key()
            with client.batch(one_by_one=self._one_by_one) as batch:
                items = [_add(batch, call) for call in part]
                self._attempts += map(_make_attempt, part)
                self.sent += len(part)
            for number, (call, item) in enumerate(zip(part, items, strict=True), at + 1):
                self._print(number, call, item)

    def _ask_commands(self, client: "Client") -> set[str]:
        """Ask which methods are commands; servers of others do not know."""
        from duet_rpc.cli.discovery import describe_methods

        discovered = describe_methods(client)
        methods = discovered.methods if discovered is not None else []
        return {method.name for method in methods if method.kind == "command"}

    def _print(self, number: int, call: FileCall, item: "BatchItem[Any]") -> None:
        self._answered += 1
        error = item.error()
        key = None if call.key is UNSET else call.key
        if isinstance(error, DuetError):
            self._failed += 1
            self.code = max(self.code, choose_exit_code(error))
        elif error is not None:
            raise error
        if self._output.pretty:
            method = safe(call.method)
            padding = " " * (self._width - count_cells(method))
            said = self._say(call, item, error, key)
            digits = len(str(len(self._calls)))
            self._output.line(f"{number:>{digits}}  {method}{padding}  {said}")
            return
        answer: dict[str, Any] = {} if call.id is UNSET else {"id": call.id}
        answer["method"] = call.method
        if isinstance(error, DuetError):
            answer |= describe_failure(error, self._attempts[number - 1])
        elif not call.notify:
            answer["result"] = Raw(surrogates.layout(item.result(), -1))
        self._output.value(surrogates.encode_value(answer))

    def _say(
        self, call: FileCall, item: "BatchItem[Any]", error: Exception | None, key: str | None
    ) -> str:
        output = self._output
        if isinstance(error, DuetError):
            said = [output.alarming(say_error(error))]
            data = getattr(error, "data", None)
            said += [write_compact(data)] if data is not None else []
            said += [f"key {key}"] if isinstance(error, TransportError) and key else []
            return " ".join(said)
        if call.notify:
            return output.faint("sent")
        return output.colour_json(safe_json(surrogates.layout(item.result(), -1)))

    def sum_up(self) -> None:
        """Say on stderr what did not succeed."""
        lost = self._attempts[self._answered : self.sent]
        again = [
            f"{safe(each.method)} can be sent again with"
            f' "key": {write_compact(each.key)}, "since": "{each.first_sent}"'
            for each in lost
            if each.key is not None
        ]
        self._sum_up(self._failed, "failed")
        self._sum_up(len(lost), "not answered: whether they happened is not known", again)
        self._sum_up(len(self._calls) - self.sent, "not made")

    def _sum_up(self, count: int, what: str, advised: Sequence[str] = ()) -> None:
        if count:
            text = f"{count} of {len(self._calls)} calls {what}"
            tell_failure(text, advised, no_color=self._output.no_color)


def _settle_key(call: FileCall, number: int) -> None:
    """Find the key of a call, beside its params or in them; refuse two, and an age without one."""
    from duet_rpc.wire.params import find_key

    params = b"null" if call.params is UNSET else bytes(call.params)
    try:
        key = None if call.notify else find_key(params, None if call.key is UNSET else call.key)
    except UsageError as error:
        raise click.UsageError(f"call {number}: {error}") from None
    if call.since is not UNSET:
        if key is None:
            raise click.UsageError(f'call {number}: "since" is about a try before: give its "key"')
        try:
            read_age(call.since)
        except click.UsageError as error:
            raise click.UsageError(f"call {number}: {error.message}") from None
    if key is not None:
        call.key = key


def _new_key() -> str:
    from duet_rpc.client.attempts import new_key

    return new_key()


def _make_attempt(call: FileCall) -> Attempt:
    """Say how a call that is sent now can be sent again."""
    since = None if call.since is UNSET else call.since
    age = None if since is None else read_age(since)
    return Attempt(
        method=call.method,
        key=None if call.key is UNSET else call.key,
        age=age,
        tells_age=since is not None and is_moment(since),
        first_sent=write_moment(age),
    )


def _add(batch: Any, call: FileCall) -> Any:
    params = None if call.params is UNSET or call.params == Raw(b"null") else call.params
    if call.notify:
        return batch.notify(call.method, params)
    if call.key is not UNSET:
        age = None if call.since is UNSET else read_age(call.since)
        return batch.command(call.method, params, key=call.key, age=age, returns=Raw)
    return batch.call(call.method, params, returns=Raw)
