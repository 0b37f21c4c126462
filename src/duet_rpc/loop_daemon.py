"""The same daemon life on an event loop: for services with async handlers, or many in flight.

An `async def` that blocks keeps the loop. `Watch` is a thread that sleeps until there is traffic,
reads in place of a loop that does not move, and ends the process in time.
"""

import asyncio
import os
import select
import threading
import time
from collections.abc import Callable
from typing import Any

from duet_rpc.connection import Connection
from duet_rpc.daemon import LINGER, SIGNALS, DaemonHost, Life, listen_to_signals, signal_name
from duet_rpc.dispatch import Dispatcher
from duet_rpc.framing import Framing
from duet_rpc.logs import Logs
from duet_rpc.loop import LoopHost
from duet_rpc.threads import STALL
from duet_rpc.tracebacks import OwnFault
from duet_rpc.transports.channel import Channel
from duet_rpc.workers import Workers

_POLLRDHUP = 0x2000


def serve_on_loop(
    channel: Channel,
    dispatcher: Dispatcher,
    framing: Framing,
    logs: Logs,
    life: Life,
    rule: Callable[[Connection], None],
    on_start: Callable[[DaemonHost], None],
) -> None:
    """Serve one connection until the end; returns when everything is answered."""

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_told_to(logs))
        workers = Workers()
        host = LoopHost(
            channel,
            dispatcher,
            framing,
            workers=workers,
            id="stdio",
            logger=logs.logger,
            on_end=lambda host: life.end(
                "end of input" if host.input_ended else "the peer is gone"
            ),
        )
        rule(host.connection)
        await _live(host, life, logs, on_start)
        workers.close()

    asyncio.run(serve())


async def _live(
    host: LoopHost, life: Life, logs: Logs, on_start: Callable[[DaemonHost], None]
) -> None:
    loop, connection = asyncio.get_running_loop(), host.connection
    ending = asyncio.Event()
    watch = Watch(host, life, logs)

    def on_end() -> None:
        watch.wake()
        loop.call_soon_threadsafe(ending.set)

    life.on_end = on_end
    host.on_traffic = watch.call
    host.on_input_end = lambda: life.end("end of input")
    on_start(host)
    host.begin()
    await ending.wait()
    while not (connection.idle and not host.outbox.size) and not host.closed and life.left > 0:
        # A handler that waits for its peer goes on only if we read on.
        if connection.closing or connection.calls.open:
            host.resume_reading()
        else:
            host.stop_reading()
        host.on_loop(connection.go_on)
        await host.drained(min(life.left, 0.05))
    if not connection.idle:
        life.cut_off()
    if life.lingers:
        connection.closing = True
        host.resume_reading()
        await _linger(host, life)
    host.close()


async def _linger(host: LoopHost, life: Life) -> None:
    """Stay for a moment, refusing what comes, until the peer has closed or the time is over."""
    until = time.monotonic() + LINGER
    while life.lingers and not host.input_ended and time.monotonic() < until:
        await host.moved(until - time.monotonic())


_IN_CALLBACK = "Exception in callback"
"""How asyncio begins a sentence that goes on with the callback's arguments, which may be values."""


def _told_to(logs: Logs) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """Make what tells of an exception that nobody caught, in our log instead of asyncio's."""

    def tell(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        text = context.get("message", "an exception that no one caught")
        if text.startswith(_IN_CALLBACK):
            text = "an exception in a callback of the event loop"
        if error is not None:
            logs.failure(text, error)
        else:
            logs.note("error", text)

    return tell


class Watch:
    """The thread that reads while a handler blocks the loop, and that ends the process in time."""

    TICK = 0.05
    """How long the loop may leave its input before we read in its place."""
    REST = 20
    """Ticks without traffic after which we sleep until something comes."""

    def __init__(self, host: LoopHost, life: Life, logs: Logs) -> None:
        self._host = host
        self._life = life
        self._logs = logs
        self._resting = True
        self._stalled_at = -1
        self._stalled_since = 0.0
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        listen_to_signals(self._wake_write)
        threading.Thread(target=self._watch, name="duet-rpc watch", daemon=True).start()

    def call(self) -> None:
        """There is traffic: keep an eye on the loop. Cheap when we are at it already."""
        if self._resting:
            self._resting = False
            self.wake()

    def wake(self) -> None:
        """Make a wait return; any thread may call this."""
        try:
            os.write(self._wake_write, b"\0")
        except BlockingIOError:
            pass  # it is full of reasons to wake already

    def _watch(self) -> None:
        seen, quiet = -1, 0
        while not self._life.ending:
            self._wait(None if self._resting else self.TICK, for_input=False)
            turns = self._host.turns
            if turns != seen:
                seen, quiet = turns, 0
                continue
            quiet += 1
            if self._has_input():
                self._stand_in(seen)
            elif quiet < self.REST:
                continue
            elif not self._host.connection.idle:
                self._wait(None, for_input=True)
            else:
                self._resting = True
                # The loop looks at `_resting` after it counts its turn; so either it sees that we
                # rest, or we see that it has moved.
                if self._host.turns != seen:
                    self._resting = False
        self._see_to_the_end()

    def _see_to_the_end(self) -> None:
        host, life = self._host, self._life
        while True:
            seen = host.turns
            time.sleep(self.TICK)
            if self._has_input():
                self._stand_in(seen)
            if life.drained:
                host.connection.closing = True
                if host.lock.acquire(timeout=self.TICK):
                    try:
                        if not host.closed:
                            host.connection.refuse_queued()
                    finally:
                        host.lock.release()
            life.check()

    def _wait(self, timeout: float | None, *, for_input: bool) -> None:
        """Wait for signals, the end of the input and, if asked for, for input."""
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        if self._wants_input():
            poll.register(self._host.channel.read_fd, select.POLLIN if for_input else _POLLRDHUP)
        for fd, _ in poll.poll(None if timeout is None else timeout * 1000):
            if fd != self._wake_read:
                self._resting = False  # the loop has a tick to see it too
                time.sleep(self.TICK)
                continue
            self._take_signals()

    def _take_signals(self) -> None:
        try:
            numbers = os.read(self._wake_read, 4096)
        except BlockingIOError:
            return
        for number in numbers:
            if number in SIGNALS:
                self._life.end(signal_name(number))

    def _wants_input(self) -> bool:
        host = self._host
        return not (host.input_ended or host.closed)

    def _has_input(self, seconds: float = 0) -> bool:
        """Whether something comes in time that the loop would read if it could."""
        host = self._host
        connection = host.connection
        if connection.full and not connection.refusing and not connection.congested:
            self._refuse_if_stalled()
        if not (host.reads and self._wants_input() and connection.wants_data):
            return False
        poll = select.poll()
        poll.register(host.channel.read_fd, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def _refuse_if_stalled(self) -> None:
        """Do what the loop's own timer would: a full queue must not stop the reading for good."""
        finished, now = self._host.connection.finished, time.monotonic()
        if finished != self._stalled_at:
            self._stalled_at, self._stalled_since = finished, now
        elif now >= self._stalled_since + STALL:
            self._host.refuse_for_loop()

    def _stand_in(self, seen: int) -> None:
        """Read what is there, as long as the loop does not."""
        try:
            while self._host.turns == seen and self._has_input(self.TICK):
                self._host.read_for_loop()
                self._take_signals()
                if self._life.ending:
                    return  # a peer that never stops sending must not keep us
        except RuntimeError:
            pass  # the loop has ended meanwhile
        except Exception as error:  # ours; the end has to be seen to all the same
            self._logs.failure("reading failed", OwnFault(error))
            time.sleep(self.TICK)
