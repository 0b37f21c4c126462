"""The reading end of a stream: what came of it and was not taken yet, and what that permits.

It is the waiter of the call, so the answer ends it like any other call. Pure: who waits for items,
and how, is up to the clients.

Laws of this file:
- Items are taken in the order of their numbers, without a gap; anything else ends the stream.
- Never more than the window is kept, whatever the server sends.
- A server that cannot stream answers the list, whose items are then taken one by one.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from msgspec import Raw

from duet_rpc.engine.results import Decode
from duet_rpc.errors import InvalidAnswer
from duet_rpc.wire.streams import read_end


class Inflow:
    """The items of one stream, between the connection and whoever takes them."""

    decode: Decode | None = bytes
    """The answer is wanted raw; see `Waiter`."""

    def __init__(self, window: int) -> None:
        self.id: int = 0
        """The id of the call; 0 until it is sent."""
        self.items: deque[Raw] = deque()
        """What came, undecoded."""
        self.ended: bool = False
        self.error: Exception | None = None
        """What it ended with, if not with its last item."""
        self.on_change: Callable[[], object] | None = None
        """Called when an item came or the stream has ended, while somebody waits for that."""
        self._window = window
        self._came = 0
        self._taken = 0
        """Items that were taken since the last grant."""

    # For the connection.

    def take_item(self, seq: int, value: Raw) -> None:
        """Take an item that came."""
        if self.ended:
            return
        if seq != self._came + 1:
            self.end(InvalidAnswer(f"item {self._came + 1} of the stream is missing: {seq} came"))
        elif len(self.items) >= self._window:
            self.end(InvalidAnswer(f"the server sent more than the {self._window} items granted"))
        else:
            self._came = seq
            self.items.append(value)
            self._changed()

    def settle(self, result: Any, error: Exception | None) -> None:
        """Take the answer, which is the end."""
        if error is None:
            error = self._take_result(result)
        self.end(error)

    def _take_result(self, result: Any) -> Exception | None:
        end = read_end(result)
        if end is None:
            return InvalidAnswer("the answer is neither the end of a stream nor a list")
        if isinstance(end, int):
            if end != self._came:
                return InvalidAnswer(f"{self._came} of the {end} items of the stream came")
        elif self._came:
            return InvalidAnswer("items came, and then a list of them")
        else:
            self.items.extend(end)
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
        return self.items.popleft()

    @property
    def may_grant(self) -> bool:
        """Whether so much was taken that the server may be granted more."""
        return not self.ended and self._taken * 2 >= self._window

    def grant(self) -> int:
        """Say how many further items the server may be granted now; 0 until it is worth it."""
        if not self.may_grant:
            return 0
        granted, self._taken = self._taken, 0
        return granted

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()
