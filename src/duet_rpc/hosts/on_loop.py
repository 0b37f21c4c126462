"""What hosts on an event loop share: the loop, a lock, a timer, and ways to act from any thread."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any

from duet_rpc.context import Context
from duet_rpc.engine.deadlines import HandlerClocks
from duet_rpc.engine.dispatch import Dispatcher, Job
from duet_rpc.errors import UsageError
from duet_rpc.forks import FORKED, leave


class OnLoop:
    """Part of a host on the running event loop."""

    has_loop: bool = True
    clocks: HandlerClocks
    dispatcher: Dispatcher
    finish: Callable[[Job, bytes], None]
    """Takes the outcome of a handler."""

    def __init__(self, lock: "threading.RLock | None" = None) -> None:
        self.lock: threading.RLock = threading.RLock() if lock is None else lock
        """Shared by connections that are read by one watch."""
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.now: Callable[[], float] = self.loop.time
        self._thread = threading.get_ident()
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = inf

    def go_on(self) -> None:
        """Go on with what has become possible; the lock is held."""
        raise NotImplementedError

    def act(self, action: Callable[..., object], *args: Any) -> None:
        """Do something to the connection, from any thread."""
        if threading.get_ident() == self._thread:
            with self.lock:
                action(*args)
        else:
            self.loop.call_soon_threadsafe(self.act, action, *args)

    def pause(self, ctx: Context | None) -> None:
        """A handler waits for something that others do: its slot is free meanwhile."""
        raise NotImplementedError

    def resume(self, ctx: Context | None) -> None:
        """It waits no more."""
        raise NotImplementedError

    async def wait_without_slot(self, ctx: Context, waiting: Awaitable[object]) -> None:
        """Wait in a handler for something that others do, who may need a slot for it."""
        self.act(self.pause, ctx)
        try:
            await waiting
        finally:
            self.act(self.resume, ctx)

    def post(self, action: Callable[..., object], *args: Any) -> None:
        """Have something done between two messages; any thread may call this."""
        try:
            self.loop.call_soon_threadsafe(action, *args)
        except RuntimeError:
            pass  # the loop is gone, and with it the peer

    def set_timer(self) -> None:
        """Wake when something is due; a timer that rings too early is set again."""
        due = self.clocks.due
        if due < self._wakes_at:
            self.stop_timer()
            self._wakes_at = due
            self._timer = self.loop.call_at(due, self._ring)

    def stop_timer(self) -> None:
        """Do not wake any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _ring(self) -> None:
        now = max(self.loop.time(), self._wakes_at)
        self._timer, self._wakes_at = None, inf
        with self.lock:
            self.clocks.check(now)
            self.after_check()

    def after_check(self) -> None:
        """Go on after the clocks were looked at; the lock is held."""
        self.set_timer()


def strand(loop: Any) -> None:
    """Have a child end where its handler awaits: the loop, its epoll and its tasks are shared.

    To go on would run the other handlers twice, and close what the parent waits with.
    """

    def stop(*ignored: object) -> None:
        leave(UsageError("a child that a handler has forked cannot await; " + FORKED))

    ready, selector = getattr(loop, "_ready", None), getattr(loop, "_selector", None)
    if ready is None or selector is None:  # a loop of somebody else's making
        loop.call_soon(stop)
        return
    for index in range(len(ready)):
        ready[index] = asyncio.Handle(stop, (), loop)
    selector.select = stop
