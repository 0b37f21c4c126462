"""Timeouts of the asyncio client's calls, without a timer for each.

Calls with the client's usual timeout expire together, by marks that say which ids are older than a
moment; the others have a timer of their own.
"""

import asyncio
import itertools
from collections import deque
from time import monotonic

from duet_rpc.client.started import OpenCall
from duet_rpc.client.stats import ClientStats
from duet_rpc.engine.calls import Calls

GRAIN = 0.01
"""Seconds between two marks: how much later than promised a timeout can be, on a loop that runs."""
_NEVER = float("-inf")


class Timeouts:
    """When the calls on one connection are over time."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        calls: Calls,
        usual: float | None,
        stats: ClientStats,
    ) -> None:
        self.unmarked = 0
        """The first call that this turn of the loop has sent; 0 if it has none without a mark."""
        self.marks: deque[tuple[float, int]] = deque()
        self._loop = loop
        # What the time of asyncio's own loops is made of costs a call of Python less.
        is_plain = getattr(type(loop), "time", None) is asyncio.BaseEventLoop.time
        self._time = monotonic if is_plain else loop.time
        self._calls = calls
        self._usual = usual
        self._stats = stats
        self._marked = _NEVER
        self._expiry: asyncio.TimerHandle | None = None

    def stop(self) -> None:
        """Wait for nothing any more: the connection is gone."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def mark(self, id: int) -> None:
        """Note that the time of ids from this one on begins now or later.

        One look at the clock serves all calls of a turn of the loop. It is taken when they are all
        there, so that no timeout comes too early.
        """
        now = self._time()
        if now - self._marked < GRAIN or self._usual is None:
            return
        marks = self.marks
        oldest = self._oldest_usual()
        while len(marks) > 1 and marks[1][1] <= oldest:
            marks.popleft()  # all that it stood for are settled
        self._marked = now
        marks.append((now, id))
        if self._expiry is None:
            self._watch_marks()

    def _oldest_usual(self) -> int:
        """Find the oldest call with the usual timeout, behind a few that wait for ever."""
        for id, waiter in itertools.islice(self._calls.open.items(), 16):
            if isinstance(waiter, OpenCall) and waiter.is_usual:
                return id
        return 0

    def _watch_marks(self) -> None:
        assert self._usual is not None, "marks are for the usual timeout"
        # The last call of a mark was sent a grain after the first; no timeout comes too early.
        when = self.marks[0][0] + self._usual + GRAIN
        self._expiry = self._loop.call_at(when, self._expire, when)

    def _expire(self, when: float) -> None:
        self._expiry = None
        marks, usual = self.marks, self._usual
        assert usual is not None, "marks are for the usual timeout"
        now = max(when, self._loop.time())
        while marks and marks[0][0] + usual + GRAIN <= now:
            marks.popleft()
        first_young = marks[0][1] if marks else self._calls.last_id + 1
        if self.unmarked:
            first_young = min(first_young, self.unmarked)  # they were sent in this very turn
        old: list[OpenCall] = []
        for id, waiter in self._calls.open.items():
            if id >= first_young:
                break
            if isinstance(waiter, OpenCall) and waiter.is_usual:
                old.append(waiter)
        for waiter in old:
            self._end(waiter)
        if not self._calls.open:
            marks.clear()
        if marks:
            self._watch_marks()
        else:
            self._marked = _NEVER

    def start(self, call: OpenCall, timeout: float | None) -> None:
        """End the call after this timeout, or when its time in all is over."""
        now, total = self._time(), call.expected.total_timeout
        if call.ends is None and total is not None:
            call.ends = now + total
        if call.ends is not None and (timeout is None or call.ends < now + timeout):
            call.timer = self._loop.call_at(call.ends, self._end, call, True)
        elif timeout is not None:
            call.timer = self._loop.call_at(now + timeout, self._end, call)

    def restart(self, call: OpenCall) -> None:
        """Give a call that has progressed its time anew, up to its time in all."""
        if call.timer is not None:
            call.timer.cancel()
            timeout = call.expected.timeout
            self.start(call, None if timeout is None else timeout + call.expected.spent)

    def _end(self, call: OpenCall, in_all: bool = False) -> None:
        self._stats.timeouts += 1
        call.settle(None, call.expected.too_late(call.method, in_all=in_all))
        assert call.id is not None, "its time starts when it is sent"
        self._calls.forget(call.id, tell_peer=True)
