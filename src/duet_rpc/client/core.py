"""Calls as people make them: queries, commands with their key, batches, typed proxies, retries.

Written once, as coroutines over a `Face`. The asyncio client awaits them; the blocking client runs
the same coroutines to their end in one step, because its face never suspends. So neither knows more
than the other, and this module knows neither event loops nor threads.
"""

import copy
import os
from collections.abc import Awaitable, Callable, Generator, Sequence
from math import ceil
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import Struct

from duet_rpc.engine.calls import encode_params
from duet_rpc.engine.dispatch import Log
from duet_rpc.engine.results import Decode, decoder
from duet_rpc.errors import (
    CallTimeout,
    Cancelled,
    ConnectFailed,
    DeadlineExceeded,
    DuetError,
    ErrorClasses,
    InProgress,
    InvalidParams,
    InvalidRequest,
    KeyReused,
    MethodNotFound,
    OutcomeUnknown,
    Overloaded,
    ParseError,
    RpcError,
    ShuttingDown,
    StoreUnavailable,
    TransportError,
    UsageError,
    error_classes,
)
from duet_rpc.options import SECONDS, TIME_LEFT, check, is_seconds, is_time_left
from duet_rpc.policy import Policy
from duet_rpc.retry import Retry
from duet_rpc.service import Service
from duet_rpc.transports.link import Opener
from duet_rpc.wire.params import RetryAge, add_metadata, find_key
from duet_rpc.wire.surrogates import encode_value

T = TypeVar("T")

USUAL = float("-inf")
"""Stands for the client's own timeout."""
RETRY = "a Retry, such as Retry(attempts=3), or None"
NOT_BEGUN = (ConnectFailed, Overloaded, ShuttingDown, StoreUnavailable)
"""What a try ends with of which the server has run nothing."""
REFUSED = (ParseError, InvalidRequest, MethodNotFound, InvalidParams, KeyReused)
"""Answers of a server that has run nothing, and would run nothing if it were asked again."""
UNSETTLED = (*NOT_BEGUN, *REFUSED, InProgress, DeadlineExceeded, OutcomeUnknown, Cancelled)
"""Answers after which the outcome of a command that was sent before is as unknown as before."""
MOST_IN_DOUBT = 1000
"""Commands of unknown outcome that a client remembers; of more, the oldest is forgotten."""


class Expected(Struct, frozen=True):
    """How long to wait for an answer, and what to make of it."""

    decode: Decode | None
    """None if whatever value comes will do."""
    timeout: float | None
    on_progress: Callable[[Any], None] | None = None
    total_timeout: float | None = None
    """The most that it can take, whatever its progress."""
    errors: tuple[ErrorClasses, ...] = ()
    """The classes that error answers are raised in; the first that has one for the code counts."""
    spent: float = 0.0
    """Seconds of both that had passed before; they are what is left of them."""

    @property
    def limit(self) -> float | None:
        """How long it can take if there is no progress."""
        limits = [each for each in (self.timeout, self.total_timeout) if each is not None]
        return min(limits, default=None)

    def after(self, seconds: float) -> "Expected":
        """Say what it waits for when so many seconds have passed."""
        return msgspec.structs.replace(
            self,
            timeout=_left(self.timeout, seconds),
            total_timeout=_left(self.total_timeout, seconds),
            spent=self.spent + seconds,
        )

    def too_late(self, method: str, *, in_all: bool) -> CallTimeout:
        """Make the error of a call whose time is over, or whose time in all is."""
        limit = self.total_timeout if in_all else self.timeout
        assert limit is not None, "a call without a limit does not end by it"
        said = f"{limit + self.spent:g} s"
        if in_all:
            return CallTimeout(f"{method}: no result within {said}, its total timeout")
        return CallTimeout(f"{method}: no answer within {said}")


def _left(limit: float | None, spent: float) -> float | None:
    return None if limit is None else max(0.0, limit - spent)


class Item(Struct):
    """One call of a batch: what to send, and what came of it."""

    method: str
    params: bytes | None
    expected: Expected | None
    """None for a notification."""
    value: Any = None
    failure: Exception | None = None
    settled: bool = False
    spent: float = 0.0
    """Seconds of its time that have passed already."""
    tries: "_Tries | None" = None
    """Of a command: its key, and when it was sent before."""

    @property
    def key(self) -> str | None:
        """The idempotency key of a command."""
        return None if self.tries is None else self.tries.key

    @property
    def waits_for(self) -> Expected:
        """What it waits for, from now on."""
        assert self.expected is not None, "a notification waits for nothing"
        return self.expected.after(self.spent) if self.spent > 0 else self.expected

    def settle(self, value: Any, failure: Exception | None) -> None:
        """Take what came of it."""
        if isinstance(failure, DuetError):
            if self.key is not None:
                failure = copy.copy(failure)  # others may have been refused with it
                failure.idempotency_key = self.key
            failure.__traceback__ = None  # its frames know all the items of the batch
        self.value, self.failure, self.settled = value, failure, True

    def result(self) -> Any:
        """Return the result, or raise the error; only after the batch was sent."""
        if not self.settled:
            raise UsageError("the batch is sent on leaving its block; ask for results after that")
        if isinstance(self.failure, DuetError):
            # A copy: what we keep must not keep whoever it was raised through.
            raise copy.copy(self.failure)
        if self.failure is not None:
            raise self.failure
        return self.value

    def error(self) -> Exception | None:
        """Return the error, or None if there is a result."""
        if not self.settled:
            raise UsageError("the batch is sent on leaving its block; ask for results after that")
        return self.failure


class Answer(Protocol):
    """The answer to a call, still to come."""

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait for it."""
        ...

    def cancel(self) -> object:
        """Stop waiting for it, and tell the server; does nothing once it is there."""
        ...


class Face(Protocol):
    """One connection that can be waited on: by an event loop, or by the calling thread."""

    def request(self, method: str, params: bytes | None, expected: Expected) -> Answer:
        """Send one call, once; settle with its result, an `RpcError` or a `TransportError`."""
        ...

    def request_all(self, items: Sequence[Item]) -> Awaitable[RpcError | None]:
        """Send items in one array and settle each; return the error if the array was refused."""
        ...

    def send(self, method: str, params: bytes | None, patience: float | None) -> Answer:
        """Send a notification; settle when it is on its way, which takes a server that reads."""
        ...

    def pause(self, seconds: float) -> Awaitable[None]:
        """Wait between two tries."""
        ...

    def now(self) -> float:
        """Tell the time by a clock that never goes back."""
        ...


def check_options(
    opener: Opener,
    *,
    timeout: float | None,
    retry: Retry | None,
    reconnect: bool | None,
    framing: str,
    service: Service | None,
    policy: Policy,
    allow_concurrent_requests: bool,
    log: Log | None,
) -> None:
    """Refuse options of a client that cannot work, once and before anything is sent."""
    can_log = all(callable(getattr(log, verb, None)) for verb in ("note", "failure"))
    checks = (
        (
            "opener",
            opener,
            callable(getattr(opener, "open", None)),
            "an address to Client.connect(), or a command to Client.spawn()",
        ),
        (
            "timeout",
            timeout,
            is_seconds(timeout),
            SECONDS,
        ),
        (
            "retry",
            retry,
            retry is None or isinstance(retry, Retry),
            RETRY,
        ),
        (
            "reconnect",
            reconnect,
            reconnect is None or isinstance(reconnect, bool),
            "True, False, or None to reconnect where there is a retry",
        ),
        ("framing", framing, framing in ("lsp", "ndjson"), '"lsp" or "ndjson"'),
        (
            "service",
            service,
            service is None or isinstance(service, Service),
            "a Service that holds your functions, or None",
        ),
        (
            "policy",
            policy,
            isinstance(policy, Policy),
            "one of duet_rpc.policy, such as SPEC",
        ),
        (
            "allow_concurrent_requests",
            allow_concurrent_requests,
            isinstance(allow_concurrent_requests, bool),
            "True or False",
        ),
        (
            "log",
            log,
            log is None or can_log,
            "an object with the methods note and failure, or None",
        ),
    )
    for name, value, is_sound, accepted in checks:
        check(name, value, is_sound, accepted)


class _Tries:
    """The tries of one call so far; a command's tell their age from the second one on.

    A query's do not: it has no effect that a second try could repeat. The clock starts with the
    first try that may have had an effect. One that was certainly not sent, or that was refused
    before it began, had none, and what follows it is a first try again.
    """

    def __init__(
        self, params: bytes | None, key: str | None = None, since: float | None = None
    ) -> None:
        self._params = params
        self.key = key
        self._sent = 0
        self.since: float | None = None
        """When the first one was sent that may have had an effect; None if there was none."""
        self._began: float | None = None
        self.sent_before(since)

    def sent_before(self, since: float | None) -> None:
        """Take when another call has sent the same command; None if none is known of."""
        if since is None:
            return
        self._sent = max(self._sent, 1)
        self.since = since if self.since is None else min(self.since, since)

    def next(self, now: float) -> bytes | None:
        """Make the params of the next one, which is sent now."""
        self._began = now
        if self.key is None:
            return self._params
        retry = None
        if self.since is not None:
            retry = RetryAge(self._sent + 1, in_ms(now - self.since))
        return add_metadata(self._params, key=self.key, retry=retry)

    def ended(self, failure: BaseException) -> None:
        """Take how the last one failed, if there is one that has not ended yet."""
        began, self._began = self._began, None
        if began is None:
            return
        if not isinstance(failure, ConnectFailed):
            self._sent += 1
        if not isinstance(failure, (*NOT_BEGUN, *REFUSED, UsageError)) and self.since is None:
            self.since = began


def in_ms(seconds: float) -> int:
    """Say an age in milliseconds, rather more than less: too young may run a command twice."""
    return ceil(max(0.0, seconds) * 1000)


class Caller:
    """The logic of both clients: what is sent, how often, and what its answers mean."""

    def __init__(
        self,
        face: Face,
        *,
        timeout: float | None,
        retry: Retry | None,
        errors: ErrorClasses | None = None,
    ) -> None:
        self._face = face
        self._errors = () if errors is None else (errors,)
        self._timeout = timeout
        self._retry = retry
        self._batch_limit: int | None = None
        self._in_doubt: dict[tuple[str, str | None], float] = {}
        """When each command was first sent whose outcome is not known, the oldest first."""
        self.usual = self.expected(Any, USUAL)
        """What a call waits for that asks for nothing in particular."""

    def expected(
        self,
        returns: Any,
        timeout: float | None,
        on_progress: Callable[[Any], None] | None = None,
        total_timeout: float | None = None,
        errors: Any = None,
    ) -> Expected:
        """Say what a call waits for; `USUAL` is the client's own timeout."""
        if timeout == USUAL:
            timeout = self._timeout
        elif timeout is not None:
            check("timeout", timeout, is_time_left(timeout), TIME_LEFT)
        if on_progress is not None:
            check("on_progress", on_progress, callable(on_progress), "a function, or None")
        if total_timeout is not None:
            check("total_timeout", total_timeout, is_seconds(total_timeout), SECONDS)
            if on_progress is None:
                on_progress = _ignore
        classes = self._errors if errors is None else (error_classes(errors), *self._errors)
        return Expected(decoder(returns), timeout, on_progress, total_timeout, classes)

    async def query(self, method: str, params: Any, expected: Expected, retry: Retry | None) -> Any:
        """Call a method that changes nothing; it is sent again when that can help."""
        tries = _Tries(encode_params(params))
        return await self._try(method, tries, expected, self._or_usual(retry))

    async def command(
        self,
        method: str,
        params: Any,
        key: str | None,
        expected: Expected,
        retry: Retry | None,
        age: float | None = None,
    ) -> Any:
        """Call a method with effects; its key is made once, so that a retry is the same command."""
        tries = self.tries(params, key, age)
        tries.sent_before(self._in_doubt.get((method, tries.key)))
        try:
            found = await self._try(method, tries, expected, self._or_usual(retry))
        except BaseException as error:
            self._remember(method, tries, error)
            if isinstance(error, DuetError):
                error.idempotency_key = tries.key
            raise
        self._remember(method, tries, None)
        return found

    def tries(self, params: Any, key: str | None, age: float | None) -> "_Tries":
        """Begin a command that another process first sent so many seconds ago; None if none did."""
        encoded, key = settle_key(params, key, age)
        return _Tries(encoded, key, None if age is None else self._face.now() - age)

    def _remember(self, method: str, tries: "_Tries", failure: BaseException | None) -> None:
        """Keep when a command was sent whose outcome is not known: it may be sent again by hand."""
        known = (method, tries.key)
        if failure is None or (
            isinstance(failure, RpcError) and not isinstance(failure, UNSETTLED)
        ):
            self._in_doubt.pop(known, None)
            return
        tries.ended(failure)
        if tries.since is None:
            return
        self._in_doubt[known] = min(tries.since, self._in_doubt.get(known, tries.since))
        if len(self._in_doubt) > MOST_IN_DOUBT:
            self._in_doubt.pop(next(iter(self._in_doubt)), None)

    async def outcome(self, method: str, key: str, expected: Expected) -> Any:
        """Ask the server what became of a command; of one in doubt it is told how old it is."""
        params: dict[str, Any] = {"method": method, "idempotency_key": key}
        since = self._in_doubt.get((method, key))
        if since is not None:
            params["age_ms"] = in_ms(self._face.now() - since)
        tries = _Tries(encode_value(params))
        return await self._try("rpc.outcome", tries, expected, self._retry)

    def _or_usual(self, retry: Retry | None) -> Retry | None:
        if retry is None:
            return self._retry
        check("retry", retry, isinstance(retry, Retry), RETRY)
        return retry

    async def _try(
        self, method: str, tries: "_Tries", expected: Expected, retry: Retry | None
    ) -> Any:
        delays = iter(()) if retry is None else retry.delays()
        total = 0.0 if retry is None else retry.total
        begun = self._face.now()
        doubt: RpcError | TransportError | None = None
        failure: RpcError | TransportError | None = None
        try:
            while True:
                delay = next(delays, None)
                try:
                    return await self._face.request(method, tries.next(self._face.now()), expected)
                except RpcError as error:
                    # A query does no harm, and a command that has begun is found by its key.
                    tries.ended(error)
                    if not error.retryable and not isinstance(error, DeadlineExceeded):
                        raise
                    failure = error
                    if delay is not None:
                        delay = max(delay, retry_after(error))
                except TransportError as error:
                    tries.ended(error)
                    failure = error
                if not isinstance(failure, NOT_BEGUN):
                    doubt = failure
                if delay is None or self._face.now() + delay - begun > total:
                    break
                await self._face.pause(delay)
            if doubt is None or doubt is failure:
                raise failure
            # The last try did nothing, but one before it may have.
            raise doubt from failure
        finally:
            del doubt, failure  # they know this frame

    async def send_batch(self, items: Sequence[Item]) -> None:
        """Send the items of a batch, in smaller ones if the server takes no larger; settle each."""
        begun = self._face.now()
        at = 0
        while at < len(items):
            limit = self._batch_limit
            part = items[at:] if limit is None or limit == 1 else items[at : at + limit]
            waiting = self._made_ready(self._still_waiting(part, begun))
            try:
                refusal = await self._send_part(waiting, singly=limit == 1)
            except BaseException as error:
                self._remember_all(waiting, error)
                raise
            if refusal is not None:
                self._batch_limit = accepted_batch(refusal, len(waiting))
                if self._batch_limit is not None:
                    continue
                _settle_all(waiting, refusal)
            self._remember_all(waiting, None)
            at += len(part)

    async def _send_part(self, items: Sequence[Item], *, singly: bool) -> RpcError | None:
        """Send items and settle each, unless the server refuses the array: return why."""
        if singly:
            await self._send_singly(items)
        elif items:
            try:
                return await self._face.request_all(items)
            except TransportError as error:
                _settle_all(items, error)
        return None

    def _made_ready(self, items: Sequence[Item]) -> list[Item]:
        """Have each command tell its age of now; those that have no room for it end here."""
        now = self._face.now()
        ready = []
        for item in items:
            item.settled = False  # also if an array that it was in was refused
            if item.tries is not None:
                item.tries.sent_before(self._in_doubt.get((item.method, item.key)))
                try:
                    item.params = item.tries.next(now)
                except UsageError as error:
                    item.settle(None, error)
                    continue
            ready.append(item)
        return ready

    def _remember_all(self, items: Sequence[Item], interruption: BaseException | None) -> None:
        """Keep which commands are in doubt: by what each came to, or else by the interruption."""
        for item in items:
            if item.tries is not None:
                failure = item.failure if item.settled else interruption
                self._remember(item.method, item.tries, failure)

    def _still_waiting(self, items: Sequence[Item], begun: float) -> list[Item]:
        """Give each item what is left of its time; those that have none left end here."""
        spent = self._face.now() - begun
        waiting = []
        for item in items:
            timeout = None if item.expected is None else item.expected.timeout
            if timeout is not None and spent > 0:
                if spent >= timeout:
                    item.settle(None, CallTimeout(f"{item.method}: not sent within {timeout:g} s"))
                    continue
                item.spent = spent
            waiting.append(item)
        return waiting

    async def _send_singly(self, items: Sequence[Item]) -> None:
        waits = [item.waits_for.timeout for item in items if item.expected is not None]
        patience = self._timeout if not waits else _longest(waits)
        sent: list[tuple[Item, Answer]] = []
        try:
            for item in items:
                try:
                    if item.expected is None:
                        answer = self._face.send(item.method, item.params, patience)
                    else:
                        answer = self._face.request(item.method, item.params, item.waits_for)
                    sent.append((item, answer))
                except TransportError as error:
                    item.settle(None, error)
            for item, answer in sent:
                try:
                    item.settle(await answer, None)
                except (RpcError, TransportError) as error:
                    item.settle(None, error)
        finally:
            for _, answer in sent:
                answer.cancel()


def _longest(waits: Sequence[float | None]) -> float | None:
    seconds = [wait for wait in waits if wait is not None]
    return max(seconds) if len(seconds) == len(waits) else None


def _settle_all(items: Sequence[Item], error: Exception) -> None:
    for item in items:
        item.settle(None, copy.copy(error))


def _ignore(value: Any) -> None:
    pass


class BatchItems:
    """The calls of one batch; each has its own result or error once the batch was sent."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._items: list[Item] = []

    def call(
        self, method: str, params: Any = None, *, timeout: float | None = USUAL, returns: Any = Any
    ) -> Item:
        """Add a call."""
        return self._add(method, encode_params(params), self._caller.expected(returns, timeout))

    query = call

    def command(
        self,
        method: str,
        params: Any = None,
        *,
        key: str | None = None,
        age: float | None = None,
        timeout: float | None = USUAL,
        returns: Any = Any,
    ) -> Item:
        """Add a command with its key; `age` says how long ago it was first sent, if it was."""
        tries = self._caller.tries(params, key, age)
        encoded = tries.next(0.0)  # for what it refuses; it is made anew when the batch is sent
        item = self._add(method, encoded, self._caller.expected(returns, timeout))
        item.tries = tries
        return item

    def notify(self, method: str, params: Any = None) -> Item:
        """Add a notification."""
        return self._add(method, encode_params(params), None)

    def _add(self, method: str, params: bytes | None, expected: Expected | None) -> Item:
        item = Item(method, params, expected)
        self._items.append(item)
        return item


def accepted_batch(refusal: RpcError, sent: int) -> int | None:
    """Read from a refusal how many items the server takes; None if it was about something else."""
    if refusal.reason == "batch-not-supported":
        return 1
    if refusal.reason == "batch-too-large":
        limit = refusal.data.get("limit")
        if isinstance(limit, int) and 1 <= limit < sent:
            return limit
    return None


def retry_after(error: RpcError) -> float:
    """Read how long a refusal asks us to wait, in seconds."""
    hint = error.data.get("retry_after_ms") if isinstance(error.data, dict) else None
    return hint / 1000 if isinstance(hint, (int, float)) and 0 <= hint <= 60_000 else 0.0


def new_key() -> str:
    """Make an idempotency key that nobody else makes."""
    return os.urandom(16).hex()


def settle_key(params: Any, key: str | None, age: float | None) -> tuple[bytes | None, str]:
    """Encode the params of a command, and say its key: as given, or as in them, or a new one.

    Two that differ are a `UsageError`.
    """
    if key is not None:
        check("key", key, isinstance(key, str), "text of 1 to 255 printable characters")
    encoded = encode_params(params)
    key = find_key(encoded, key)
    if age is not None:
        check("age", age, is_time_left(age), "seconds since the first try, 0 or more")
        if key is None:
            raise UsageError("age= tells of a try before this one, so it needs the key of that")
    return encoded, new_key() if key is None else key
