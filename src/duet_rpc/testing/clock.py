"""Time that a test controls: an event loop that jumps over waits, and a clock to set by hand."""

import asyncio
import random
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE = 30.0
"""Real seconds to wait for a thread when nothing else can happen."""
_THREAD_PATIENCE = 2.0
"""Real seconds that a thread has before time jumps although it still works."""


class ManualClock:
    """A clock that stands still until it is moved. Calling it tells the time."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now: float = now

    def __call__(self) -> float:
        """Tell the time."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        if seconds < 0:
            raise ValueError("time does not go back")
        self.now += seconds


class _Jump(selectors.DefaultSelector):
    """Looks at descriptors without waiting; where it would wait, the clock moves instead."""

    def __init__(self, seed: int | None) -> None:
        super().__init__()
        self.clock = ManualClock(0.0)
        self.threads = 0
        self._random = None if seed is None else random.Random(seed)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready; if nothing is, it is `timeout` seconds later now."""
        ready = super().select(0)
        if self._random is not None:
            self._random.shuffle(ready)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if timeout is None:
            ready = super().select(PATIENCE)
            if not ready:
                raise RuntimeError("every task waits, and nothing will ever wake one")
            return ready
        if self.threads:
            ready = super().select(_THREAD_PATIENCE)
            if ready:
                return ready
        self.clock.advance(timeout)
        return []


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop on a clock of its own, which jumps to the next timer when nothing is ready.

    Everything has to happen in this loop: both ends of a connection, over sockets of this process.
    What would run in an executor runs at once. A handler without `async` has a thread, which is
    given a moment before time jumps; declare it `inline` where the order of events matters.

    With a `seed`, descriptors that are ready at the same moment have their turn in an order of its
    choice: the same for the same seed, another for another.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._jump = _Jump(seed)
        super().__init__(self._jump)

    def time(self) -> float:
        """Tell the time of this loop, which begins at zero."""
        return self._jump.clock.now

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Run a function here and now."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def thread_began(self) -> None:
        """Take note of a thread that will call back; only on the loop."""
        self._jump.threads += 1

    def thread_ended(self) -> None:
        """Take note that it has."""
        self._jump.threads -= 1


def run(coroutine: Coroutine[Any, Any, T], *, seed: int | None = None) -> T:
    """Run a coroutine like `asyncio.run`, on a `JumpingLoop`."""
    with asyncio.Runner(loop_factory=lambda: JumpingLoop(seed)) as runner:
        return runner.run(coroutine)
