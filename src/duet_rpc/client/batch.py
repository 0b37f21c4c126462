"""Batches: what is in one, how it is sent, and what came of each of its calls.

A server may take no array, or none that long: it says so, and from then on they are sent in smaller
ones, or one by one. Each call of a batch has its own result or error either way.
"""

import copy
from collections.abc import Sequence
from typing import Any, Generic, TypeVar, Unpack, overload

from msgspec import Struct

from duet_rpc.client.attempts import Attempts, Doubts
from duet_rpc.client.core import ClientCore
from duet_rpc.client.options import Expected, ItemOptions, TimeOptions
from duet_rpc.client.sender import Answer, Sender
from duet_rpc.engine.calls import encode_params
from duet_rpc.errors import (
    CallTimeout,
    DuetError,
    InvalidRequest,
    ParseError,
    RpcError,
    TransportError,
    UsageError,
)
from duet_rpc.options import check

T = TypeVar("T")
_NOT_SENT = "the batch is sent on leaving its block; ask for results after that"


class BatchItem(Struct, Generic[T]):
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
    attempts: Attempts | None = None
    """Of a command: its key, and when it was sent before."""

    @property
    def key(self) -> str | None:
        """The idempotency key of a command."""
        return None if self.attempts is None else self.attempts.key

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

    def result(self) -> T:
        """Return the result, or raise the error; only after the batch was sent."""
        error = self.error()
        if error is not None:
            # A copy: what we keep must not keep the frames it was raised through.
            raise copy.copy(error) if isinstance(error, DuetError) else error
        found: T = self.value
        return found

    def error(self) -> Exception | None:
        """Return the error, or None if there is a result."""
        if not self.settled:
            raise UsageError(_NOT_SENT)
        return self.failure


Items = Sequence[BatchItem[Any]]


class BaseBatch:
    """The calls of one batch; each has its own result or error once the batch was sent."""

    def __init__(self, core: ClientCore, sender: "BatchSender", one_by_one: bool) -> None:
        check("one_by_one", one_by_one, isinstance(one_by_one, bool), "True or False")
        self._core = core
        self._sender = sender
        self._one_by_one = one_by_one
        self._items: list[BatchItem[Any]] = []

    @overload
    def call(
        self, method: str, params: Any = None, *, returns: type[T], **options: Unpack[TimeOptions]
    ) -> BatchItem[T]: ...
    @overload
    def call(
        self, method: str, params: Any = None, *, returns: Any = Any, **options: Unpack[TimeOptions]
    ) -> BatchItem[Any]: ...
    def call(
        self, method: str, params: Any = None, *, returns: Any = Any, **options: Unpack[TimeOptions]
    ) -> BatchItem[Any]:
        """Add a call."""
        expected = self._core.expect(returns, **options)
        return self._add(method, encode_params(params), expected)

    query = call

    @overload
    def command(
        self, method: str, params: Any = None, *, returns: type[T], **options: Unpack[ItemOptions]
    ) -> BatchItem[T]: ...
    @overload
    def command(
        self, method: str, params: Any = None, *, returns: Any = Any, **options: Unpack[ItemOptions]
    ) -> BatchItem[Any]: ...
    def command(
        self, method: str, params: Any = None, *, returns: Any = Any, **options: Unpack[ItemOptions]
    ) -> BatchItem[Any]:
        """Add a command with its key; `age` says how long ago it was first sent, if it was."""
        return self._add_command(method, params, returns, **options)

    def _add_command(
        self,
        method: str,
        params: Any,
        returns: Any,
        key: str | None = None,
        age: float | None = None,
        **options: Unpack[TimeOptions],
    ) -> BatchItem[Any]:
        expected = self._core.expect(returns, **options)
        attempts = self._core.begin(params, key, age)
        encoded = attempts.begin(0.0)  # for what it refuses; it is made anew when the batch is sent
        return self._add(method, encoded, expected, attempts)

    def notify(self, method: str, params: Any = None) -> BatchItem[None]:
        """Add a notification."""
        return self._add(method, encode_params(params), None)

    def _add(
        self,
        method: str,
        params: bytes | None,
        expected: Expected | None,
        attempts: Attempts | None = None,
    ) -> BatchItem[Any]:
        item: BatchItem[Any] = BatchItem(method, params, expected, attempts=attempts)
        self._items.append(item)
        return item


class BatchSender:
    """Sends the batches of one client, and remembers how large an array its server takes."""

    def __init__(self, sender: Sender, doubts: Doubts, timeout: float | None) -> None:
        self._sender = sender
        self._doubts = doubts
        self._timeout = timeout
        self._limit: int | None = None

    async def send(self, items: Items, *, one_by_one: bool = False) -> None:
        """Send the items of a batch, in smaller ones if the server takes no larger; settle each."""
        begun = self._sender.now()
        at = 0
        while at < len(items):
            limit = 1 if one_by_one else self._limit
            part = items[at:] if limit is None or limit == 1 else items[at : at + limit]
            waiting = self._make_ready(self._drop_late(part, begun))
            try:
                refusal = await self._send_part(waiting, singly=limit == 1)
            except BaseException as error:
                self._note_all(waiting, error)
                raise
            if refusal is not None:
                self._limit = accepted_batch(refusal, len(waiting))
                if self._limit is not None:
                    continue
                _settle_all(waiting, refusal)
            elif limit != 1 and _is_unanswered(waiting):
                self._limit = 1  # the server may drop arrays unread: later ones are not sent so
            self._note_all(waiting, None)
            at += len(part)

    def _drop_late(self, items: Items, begun: float) -> list[BatchItem[Any]]:
        """Give each item what is left of its time; those that have none left end here."""
        spent = self._sender.now() - begun
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

    def _make_ready(self, items: Items) -> list[BatchItem[Any]]:
        """Have each command tell its age of now; those that have no room for it end here."""
        now = self._sender.now()
        ready = []
        for item in items:
            item.settled = False  # also if an array that it was in was refused
            if item.attempts is not None:
                item.attempts.include(self._doubts.since(item.method, item.key))
                try:
                    item.params = item.attempts.begin(now)
                except UsageError as error:
                    item.settle(None, error)
                    continue
            ready.append(item)
        return ready

    def _note_all(self, items: Items, interruption: BaseException | None) -> None:
        """Keep which commands are in doubt: by what each came to, or else by the interruption."""
        for item in items:
            if item.attempts is not None:
                failure = item.failure if item.settled else interruption
                self._doubts.note(item.method, item.attempts, failure)

    async def _send_part(self, items: Items, *, singly: bool) -> RpcError | None:
        """Send items and settle each, unless the server refuses the array: return why."""
        if singly:
            await self._send_singly(items)
        elif items:
            try:
                return await self._send_array(items)
            except TransportError as error:
                _settle_all(items, error)
        return None

    async def _send_array(self, items: Items) -> RpcError | None:
        refusal: list[RpcError] = []
        replies = [
            None if item.expected is None else self._sender.make_reply(item.method, item.waits_for)
            for item in items
        ]

        def refuse(error: RpcError) -> None:
            refusal.append(error)
            for reply in replies:
                if reply is not None:
                    reply.settle(None, error)

        sent = list(zip(items, replies, strict=True))
        calls = [(item.method, item.params, reply) for item, reply in sent]
        await self._sender.send_array(calls, refuse)
        try:
            await _settle_each(sent)
        finally:
            _cancel_each(sent)
        return refusal[0] if refusal else None

    async def _send_singly(self, items: Items) -> None:
        waits = [item.waits_for.timeout for item in items if item.expected is not None]
        patience = self._timeout if not waits else _longest(waits)
        sent: list[tuple[BatchItem[Any], Answer]] = []
        try:
            for item in items:
                try:
                    if item.expected is None:
                        answer = self._sender.send(item.method, item.params, patience)
                    else:
                        answer = self._sender.request(item.method, item.params, item.waits_for)
                    sent.append((item, answer))
                except TransportError as error:
                    item.settle(None, error)
            await _settle_each(sent)
        finally:
            _cancel_each(sent)


async def _settle_each(sent: Sequence[tuple[BatchItem[Any], Answer | None]]) -> None:
    for item, answer in sent:
        try:
            item.settle(None if answer is None else await answer, None)
        except Exception as error:
            item.settle(None, error)


def _cancel_each(sent: Sequence[tuple[BatchItem[Any], Answer | None]]) -> None:
    for _, answer in sent:
        if answer is not None:
            answer.cancel()


def _settle_all(items: Items, error: Exception) -> None:
    for item in items:
        item.settle(None, copy.copy(error))


def _is_unanswered(items: Items) -> bool:
    """Whether calls were sent, and the time of each passed without an answer."""
    calls = [item for item in items if item.expected is not None]
    return bool(calls) and all(isinstance(item.failure, CallTimeout) for item in calls)


def _longest(waits: Sequence[float | None]) -> float | None:
    seconds = [wait for wait in waits if wait is not None]
    return max(seconds) if len(seconds) == len(waits) else None


def accepted_batch(refusal: RpcError, sent: int) -> int | None:
    """Read from a refusal how many items the server takes; None if it was about something else."""
    if refusal.reason == "batch-not-supported":
        return 1
    if refusal.reason is None and isinstance(refusal, (InvalidRequest, ParseError)):
        return 1  # how other servers say that an array is no message to them; nothing has run
    if refusal.reason == "batch-too-large":
        limit = refusal.data.get("limit")
        if isinstance(limit, int) and 1 <= limit < sent:
            return limit
    return None
