"""The same daemon life on an event loop: for services with async handlers, or many in flight.

An `async def` that blocks keeps the loop. `Watch` reads and writes in its place meanwhile, takes
the signals and ends the process in time.
"""

import asyncio
import select
import time
from collections.abc import Callable
from typing import Any

from duet_rpc.engine.connection import ConnectionOptions
from duet_rpc.engine.dispatch import Dispatcher
from duet_rpc.hosts.loop import LoopHost
from duet_rpc.hosts.watch import LoopWatch
from duet_rpc.hosts.workers import Workers
from duet_rpc.server.daemon import LINGER, SIGNALS, DaemonHost, Life, listen_to_signals, signal_name
from duet_rpc.server.logs import Logs
from duet_rpc.transports.channel import Channel
from duet_rpc.wire.framing import Framing

_POLLRDHUP = 0x2000


def serve_on_loop(
    channel: Channel,
    dispatcher: Dispatcher,
    framing: Framing,
    options: ConnectionOptions,
    logs: Logs,
    life: Life,
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
            options,
            workers=workers,
            on_end=lambda host: life.end(
                "end of input" if host.input_ended else "the peer is gone"
            ),
        )
        life.on_stop = host.connection.close_down
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
        host.act(connection.go_on)
        await host.drained(min(life.left, 0.05))
    if not connection.idle:
        life.cut_off()
    if life.lingers:
        connection.close_down()
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


class Watch(LoopWatch):
    """The watch of a daemon: it takes the signals too, and ends the process in time."""

    def __init__(self, host: LoopHost, life: Life, logs: Logs) -> None:
        super().__init__(lambda: (host,), logs)
        self._host = host
        self._life = life
        listen_to_signals(self._wake_write)
        self.begin()

    @property
    def over(self) -> bool:
        """Whether something has asked for the end."""
        return self._life.ending

    def interrupts(self) -> bool:
        """Whether to stop reading: a peer that never stops sending must not keep us."""
        self.take_wakes()
        return self._life.ending

    def take_wakes(self) -> bytes:
        """Take the signals that have come."""
        numbers = super().take_wakes()
        for number in numbers:
            if number in SIGNALS:
                self._life.end(signal_name(number))
        return numbers

    def awaited_events(self, for_input: bool) -> int:
        """Wait for the end of the input at least: it is a reason to end."""
        return select.POLLIN if for_input else _POLLRDHUP

    def at_end(self) -> None:
        """See to the end of the process."""
        host, life = self._host, self._life
        while True:
            seen = host.turns
            time.sleep(self.TICK)
            if self.has_traffic():
                self.stand_in(seen)
            if life.drained:
                host.connection.close_down()
                if host.lock.acquire(timeout=self.TICK):
                    try:
                        if not host.closed:
                            host.connection.refuse_queued()
                    finally:
                        host.lock.release()
            life.check()
