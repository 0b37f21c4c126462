"""The same daemon life on an event loop: for services with async handlers, or many in flight.

A sentinel thread watches the signals and the far end of stdin. If the loop does not react because a
handler blocks it, the process ends in time all the same.
"""

import asyncio
import os
import select
import threading
import time

from duet_rpc.daemon import LINGER, SIGNALS, Life, listen_to_signals, signal_name
from duet_rpc.dispatch import Dispatcher
from duet_rpc.framing import Framing
from duet_rpc.logs import Logs
from duet_rpc.loop import LoopHost, Workers
from duet_rpc.transports.channel import Channel

_TICK = 0.05
_POLLRDHUP = 0x2000


def serve_on_loop(
    channel: Channel, dispatcher: Dispatcher, framing: Framing, logs: Logs, life: Life
) -> None:
    """Serve one connection until the end; returns when everything is answered."""
    asyncio.run(_serve(channel, dispatcher, framing, logs, life))


async def _serve(
    channel: Channel, dispatcher: Dispatcher, framing: Framing, logs: Logs, life: Life
) -> None:
    loop = asyncio.get_running_loop()
    ending = asyncio.Event()
    life.on_end = lambda: loop.call_soon_threadsafe(ending.set)
    workers = Workers()
    host = LoopHost(
        channel,
        dispatcher,
        framing,
        workers=workers,
        id="stdio",
        logger=logs.logger,
        on_end=lambda host: life.end("end of input" if host.input_ended else "the peer is gone"),
    )
    _Sentinel(loop, host, life)
    host.begin()
    await ending.wait()
    host.stop_reading()
    await host.drained(life.left - _TICK)
    if life.lingers:
        host.connection.closing = True
        host.resume_reading()
        until = time.monotonic() + LINGER
        while life.lingers and not host.input_ended and time.monotonic() < until:
            await asyncio.sleep(0.01)
    if not host.connection.idle:
        host.connection.refuse_queued()
    host.close()
    workers.close()


class _Sentinel:
    """Ends the process in time although the loop is blocked."""

    def __init__(self, loop: asyncio.AbstractEventLoop, host: LoopHost, life: Life) -> None:
        self._loop = loop
        self._host = host
        self._life = life
        self._wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        listen_to_signals(wake_write)
        self._alive = threading.Event()
        threading.Thread(target=self._watch, name="duet-rpc sentinel", daemon=True).start()

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        if not self._host.channel.is_file:
            # No POLLIN: only the peer's going away wakes us, not its requests.
            poll.register(self._host.channel.read_fd, _POLLRDHUP)
        while not self._life.ending:
            for fd, _ in poll.poll():
                if fd == self._wake_read:
                    for number in os.read(self._wake_read, 4096):
                        if number in SIGNALS:
                            self._life.end(signal_name(number))
                else:
                    poll.unregister(fd)
                    self._peer_went()
        while True:
            time.sleep(_TICK)
            self._life.check()

    def _peer_went(self) -> None:
        """Leave it to the loop, unless a handler blocks it: then the clock starts."""
        self._alive.clear()
        self._loop.call_soon_threadsafe(self._alive.set)
        if not self._alive.wait(0.2):
            self._life.end("end of input")
