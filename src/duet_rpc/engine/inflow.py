"""The reading end of a stream: what came of it and was not taken yet, and what that permits.

It is the waiter of the call, so the answer ends it like any other call. Pure: who waits for items,
and how, is up to the clients.

Laws of this file:
- Items are taken in the order of their numbers, without a gap; anything else ends the stream.
- Never more than the window is kept, whatever the server sends; of partial results, which no
  window slows down, never more than 32 MiB.
- A server that cannot stream answers the list, whose items are then taken one by one.
- The numbers of a subscription rise. Those that are left out are counted: the server dropped them.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from duet_rpc.engine.results import Decode
from duet_rpc.errors import InvalidAnswer
from duet_rpc.wire.streams import read_end, read_list
from duet_rpc.wire.subscriptions import read_subscribed

if TYPE_CHECKING:
    from duet_rpc.engine.calls import Calls

_MAX_KEPT = 32 * 1024 * 1024
"""Bytes of partial results that may wait to be taken."""


class Inflow:
    """The items of one stream, between the connection and their reader."""

    decode: Decode | None = bytes
    """The answer is wanted raw; see `Waiter`."""

    def __init__(self, window: int, *, takes_parts: bool = False) -> None:
        self.takes_parts: bool = takes_parts
        """Whether progress of the call may be partial results."""
        self.id: int = 0
        """The id of the call; 0 until it is sent."""
        self.items: deque[tuple[int, Raw]] = deque()
        """What came, undecoded, with its number."""
        self.seq: int = 0
        """The number of the item that was taken last."""
        self.ended: bool = False
        self.error: Exception | None = None
        """What it ended with, if not with its last item."""
        self.on_change: Callable[[], object] | None = None
        """Called when an item came or the stream has ended, while somebody waits for that."""
        self._window = window
        self._came = 0
        self._taken = 0
        """Items that were taken since the last grant."""
        self._in_parts = False
        self._kept_bytes = 0
        """Of partial results that were not taken yet."""

    # For the connection.

    def take_item(self, seq: int, value: Raw) -> None:
        """Take an item that came."""
        if self.ended:
            return
        wrong = self._check_number(seq)
        if wrong is not None:
            self.end(InvalidAnswer(wrong))
        elif len(self.items) >= self._window:
            self.end(InvalidAnswer(f"the server sent more than the {self._window} items granted"))
        else:
            self._came = seq
            self.items.append((seq, value))
            self._changed()

    def _check_number(self, seq: int) -> str | None:
        """Say why this cannot be the number of the next item; None if it can."""
        if seq == self._came + 1:
            return None
        return f"item {self._came + 1} of the stream is missing: {seq} came"

    def take_part(self, value: Raw | None) -> None:
        """Take a partial result: several items, or one that is no list."""
        if self.ended or value is None:
            return
        items = read_list(value)
        part = [value] if items is None else items
        self._in_parts = True
        self._kept_bytes += sum(map(_size, part))
        if self._kept_bytes > _MAX_KEPT:
            self.end(InvalidAnswer("the server sent more than 32 MiB that were not taken yet"))
            return
        self.items.extend(enumerate(part, self.seq + len(self.items) + 1))
        self._changed()

    def settle(self, result: Any, error: Exception | None) -> None:
        """Take the answer, which is the end."""
        if error is None:
            error = self._take_result(result)
        self.end(error)

    def _take_result(self, result: Any) -> Exception | None:
        end = read_end(result)
        if end is None and self.takes_parts and bytes(result) == b"null":
            end = []
        if end is None:
            return InvalidAnswer(
                "the answer is neither the end of a stream nor a list;"
                " take a subscription by `subscribe`, and one value by `query`"
            )
        if isinstance(end, int):
            if end != self._came:
                return InvalidAnswer(f"{self._came} of the {end} items of the stream came")
        elif self._came or self._in_parts:
            if end or not self._in_parts:
                return InvalidAnswer("items came, and then a list of them")
        else:
            self.items.extend(enumerate(end, 1))
        return None

    def progress(self, value: Any) -> None:
        """Drop progress of the call; no one asked for it."""

    # For the client.

    def end(self, error: Exception | None) -> None:
        """End the stream, after what came of it."""
        if not self.ended:
            self.ended, self.error = True, error
            self._changed()

    def take(self) -> Raw:
        """Take out the first item."""
        self._taken += 1
        self.seq, raw = self.items.popleft()
        if self._in_parts:
            self._kept_bytes -= _size(raw)
        return raw

    @property
    def has_news(self) -> bool:
        """Whether there is something for its reader to look at."""
        return bool(self.items) or self.ended

    @property
    def may_grant(self) -> bool:
        """Whether so much was taken that the server may be granted more."""
        return not (self.ended or self._in_parts) and self._taken * 2 >= self._window

    def grant(self) -> int:
        """Say how many further items the server may be granted now; 0 until it is worth it."""
        if not self.may_grant:
            return 0
        granted, self._taken = self._taken, 0
        return granted

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()


class SubscriptionInflow(Inflow):
    """The items of one subscription, from the call that asks for it to its end."""

    def __init__(self, window: int, after: int = 0, missed: int = 0) -> None:
        """The items follow the one of the number `after`; so many were missed before."""
        super().__init__(window)
        self.seq = self._came = after
        self.missed: int = missed
        """How many items the server has dropped, by the numbers that are left out."""
        self.name: bytes | None = None
        """What the server calls it; None until it is answered."""
        self.awaits_answer: bool = True
        """Its reader has not seen the answer yet."""
        self.is_left: bool = False
        """Its reader wants no more."""
        self.calls: Calls | None = None
        """Of the connection on which it was asked for."""

    def _check_number(self, seq: int) -> str | None:
        if seq <= self._came:
            return f"item {seq} of the subscription came after item {self._came}"
        self.missed += seq - self._came - 1
        return None

    def settle(self, result: Any, error: Exception | None) -> None:
        """Take the answer, which is the beginning."""
        if error is not None:
            self.end(error)
            return
        assert self.calls is not None, "it was sent"
        name = read_subscribed(result)
        if name is None or name in self.calls.subscribed:
            self.end(
                InvalidAnswer(
                    "the answer is not that of a new subscription;"
                    " take a stream by `stream`, and one value by `query`"
                )
            )
            return
        self.name = name
        self.calls.subscribed[name] = self
        if self.is_left:  # before it was answered
            self.calls.unsubscribe(name)
        self._changed()

    def leave(self) -> bool:
        """Take no more, and tell the server; False if that was over already."""
        self.items.clear()
        self.end(None)
        calls, name = self.calls, self.name
        if self.is_left or calls is None:
            return False
        self.is_left = True
        if name is None:
            return calls.give_up(self.id)
        if calls.subscribed.get(name) is not self:
            return False
        calls.unsubscribe(name)
        return True

    @property
    def has_news(self) -> bool:
        """Whether it is answered, if its reader has not learned that, or something came."""
        return super().has_news or (self.awaits_answer and self.name is not None)

    @property
    def is_open(self) -> bool:
        """The server has still to be notified if no one wants it any more."""
        calls, name = self.calls, self.name
        if self.is_left or calls is None:
            return False
        return self.id in calls.open if name is None else calls.subscribed.get(name) is self


def _size(raw: Raw) -> int:
    return memoryview(raw).nbytes
