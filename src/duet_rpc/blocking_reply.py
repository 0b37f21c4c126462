"""A call of a blocking client on its way: whose it is, when its time is over, what came of it."""

import threading
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from duet_rpc.caller import Expected

if TYPE_CHECKING:
    from duet_rpc.blocking_host import BlockingHost
    from duet_rpc.blocking_line import Line

LONG = 3600.0
"""Seconds that one wait lasts at most; the system takes no numbers of any size."""


class Gate:
    """What one thread waits at. Unlike an `Event`, Ctrl-C while it waits leaves nothing locked."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def shut(self) -> None:
        """Have the next wait wait. The line's lock is held."""
        self._lock.acquire(blocking=False)

    def open(self) -> None:
        """Let the one who waits pass, or who comes next. The line's lock is held."""
        if self._lock.locked():
            self._lock.release()

    def wait(self, seconds: float) -> bool:
        """Wait; False if the time is over."""
        return self._lock.acquire(timeout=seconds)


class Reply:
    """A call on its way. Whoever waits for it blocks, also by `await`."""

    __slots__ = (
        "_error",
        "_line",
        "_raw",
        "deadline",
        "done",
        "ends",
        "expected",
        "gate",
        "host",
        "id",
        "method",
    )

    def __init__(self, line: "Line", method: str, expected: Expected) -> None:
        self._line = line
        self.done = False
        self._raw: Any = None
        self._error: Exception | None = None
        self.gate: Gate | None = None
        self.method = method
        self.expected = expected
        self.host: BlockingHost | None = None
        """What it was sent on."""
        self.id = 0
        self.deadline: float | None = None
        self.ends: float | None = None
        if expected.timeout is not None:
            now = time.monotonic()
            self.deadline = now + expected.timeout
            if expected.total_timeout is not None:
                self.ends = now + expected.total_timeout

    def settle(self, result: Any, error: Exception | None) -> None:
        """Take the answer; the lock is held."""
        if not self.done:
            self._raw, self._error, self.done = result, error, True
            if self.gate is not None:
                self.gate.open()

    def progress(self, value: Any) -> None:
        """Take news of the call; the lock is held, so whoever wants them is told later."""
        if self.expected.on_progress is None:
            return  # it asked for none; a number of the server's own is like its id
        if self.deadline is not None and self.expected.timeout is not None:
            self.deadline = time.monotonic() + self.expected.timeout
            if self.ends is not None:
                self.deadline = min(self.deadline, self.ends)
        self._line.news.append((self, value))

    @property
    def left(self) -> float | None:
        """Seconds until its time is over; None if it has no end."""
        return None if self.deadline is None else self.deadline - time.monotonic()

    def cancel(self) -> bool:
        """Stop waiting, and tell the server; False if the answer is there."""
        return self._line.forget(self)

    def __await__(self) -> Generator[Any, None, Any]:
        return self.result()
        yield

    def result(self) -> Any:
        """Wait for the answer."""
        self._line.wait(self)
        if self._error is not None:
            raise self._error
        return self.expected.decode(self._raw)
