"""Drives connections on an asyncio event loop: async handlers, many connections, worker threads.

Bytes are read by our own callback straight from the descriptor, so no task or future stands between
a request and its answer unless its handler waits.

An `async def` that blocks keeps the loop, and with it reading and writing. The watchdog
may then do both in its place (`read_for_loop`, `write_for_loop`): `LoopHost.lock` is held by the
thread that touches the connection, and never while an `async def` waits or computes.
"""

import asyncio
import contextlib
import select
import threading
import time
from collections.abc import Callable, Iterator
from math import inf

from duet_rpc.context import Context, ItemSink, SubscriberSink
from duet_rpc.engine.connection import ConnectionOptions
from duet_rpc.engine.deadlines import LONG, ConnectionClocks
from duet_rpc.engine.dispatch import Dispatcher, Job
from duet_rpc.engine.outgoing import JOIN
from duet_rpc.errors import ConnectionLost, UsageError
from duet_rpc.hosts.host import BaseHost, do_nothing
from duet_rpc.hosts.on_loop import OnLoop, strand
from duet_rpc.hosts.replies import PeerReply
from duet_rpc.hosts.runner import LoopRunner
from duet_rpc.hosts.workers import Workers
from duet_rpc.transports.channel import Carrier, Channel
from duet_rpc.wire.framing import Frame, Framing
from duet_rpc.wire.messages import encode_notification

_PATIENCE = 0.05
"""Seconds that another thread waits for a connection that the loop holds."""
_TAKING = 0.005
"""Seconds in which a peer that reads takes some of what another thread sends in our place."""


class LoopHost(OnLoop, BaseHost):
    """Reads, writes and runs handlers for one connection on the running event loop.

    One that `lingers` goes on answering after the peer has said its last word, as servers do.

    It has more than twenty methods because the watchdog may read and write in place of the loop,
    and more than fifteen fields because whatever the loop is to do soon is remembered in one.
    """

    behind: bool = False
    takes_subscriptions: bool = True
    pause, resume = BaseHost.pause, BaseHost.resume
    channel: Carrier
    clocks: ConnectionClocks

    def __init__(
        self,
        channel: Carrier,
        dispatcher: Dispatcher,
        framing: Framing,
        options: ConnectionOptions,
        *,
        workers: Workers,
        lingers: bool = True,
        lock: "threading.RLock | None" = None,
        loss: Callable[[], Exception] | None = None,
        on_end: Callable[["LoopHost"], None] = lambda host: None,
    ) -> None:
        BaseHost.__init__(self, channel, dispatcher, framing, options)
        OnLoop.__init__(self, lock)
        self.on_traffic: Callable[[], None] = do_nothing
        self._runner = LoopRunner(self, workers.lane())
        self.start: Callable[[Job], None] = self._runner.start
        self.cancel: Callable[[Job], None] = self._runner.cancel
        self._lingers = lingers
        self._loss = loss
        self._on_end = on_end
        self._reading = self._writing = False
        self._moved_on: asyncio.Future[None] | None = None
        self._read_elsewhere = self._behind_reader = self._flushes_soon = False

    def forked(self) -> None:
        """Leave the connection, and the loop if one of our handlers has forked, to the parent.

        Whatever runs on the loop of a server may be part of a handler: a task of its own, a task or
        a callback that it has made. The loop of a client is its program's, unless a handler runs.
        """
        self.closed: bool = True
        self.on_traffic = do_nothing
        self.lock: threading.RLock = threading.RLock()
        super().forked()
        if threading.get_ident() == self._thread and self.loop.is_running():
            if self._lingers or self._runner.has_tasks:
                strand(self.loop)

    def begin(self) -> None:
        """Start to read."""
        self.connection.begin()
        self._arrange()

    def set_reading(self, reads: bool) -> None:
        """Read on, or read no more; what came goes on."""
        self.reads = reads
        self._arrange()

    async def drained(self, seconds: float) -> None:
        """Wait until everything that came is answered and sent, or the time is over."""
        until = self.loop.time() + seconds
        while not (self.connection.idle and not self.outbox.size) and not self.closed:
            left = until - self.loop.time()
            if left <= 0:
                return
            await self.moved(left)

    async def moved(self, seconds: float | None) -> None:
        """Wait until something came, ended or was sent, or the time is over."""
        if self._moved_on is None:
            self._moved_on = self.loop.create_future()
        await asyncio.wait([self._moved_on], timeout=seconds)

    # For the connection.

    def write(self, data: Frame) -> None:
        """Send what the peer takes now and keep the rest."""
        if self.closed:
            return  # the descriptor may be somebody else's by now
        self.outbox.put(data)
        if self.outbox.size:
            self._fall_behind()

    def write_own(self, data: Frame) -> None:
        """Send a call of ours, as far as the peer takes it now."""
        if self.closed:
            return
        self.outbox.put(data, False)
        if self.outbox.lost:
            self.loop.call_soon_threadsafe(self.act, self._arrange)
        elif self.outbox.size:
            self._fall_behind()

    def _fall_behind(self) -> None:
        self.behind = True
        self.on_traffic()
        if not self._writing:
            self.act(self._watch_writing)

    def _watch_writing(self) -> None:
        if self.outbox.size and not self._writing and not self.closed:
            self._writing = True
            self.channel.watch_writing(self.loop, self._writable)

    def loss(self) -> Exception:
        """Say what the end of the input means for calls that wait for their answer."""
        return super().loss() if self._loss is None else self._loss()

    # For handlers and their threads.

    def go_on(self) -> None:
        """Go on with what has become possible; the lock is held."""
        if not self.closed:
            self.connection.go_on()
            self._arrange()

    def wait(self, reply: PeerReply) -> None:
        """Wait for the answer in a worker thread."""
        if threading.get_ident() == self._thread:
            raise UsageError("this would block the event loop; await the call instead")
        super().wait(reply)

    async def wait_async(self, reply: PeerReply) -> None:
        """Wait for the answer in a task; the handler gives up its slot meanwhile."""
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not answered.done():
                answered.set_result(None)

        reply.on_settled = lambda: self.act(wake)
        if reply.settled:
            return
        self.act(self.pause, reply.ctx)
        try:
            while not answered.done() and (left := reply.clock.left(self.now())) > 0:
                await asyncio.wait([answered], timeout=min(left, LONG))
        finally:
            self.act(self._end_wait, reply)

    def open_stream(self, ctx: Context) -> ItemSink | None:
        """Begin to send the items of a stream to a caller that takes them one by one."""
        from duet_rpc.hosts.streams import open_sink  # with the first stream that there is

        with self.lock:
            return open_sink(self, ctx)

    def open_subscription(self, ctx: Context) -> SubscriberSink:
        """Answer the request of a subscription, and begin to send its items."""
        from duet_rpc.hosts.subscriptions import subscribe  # with the first one that there is

        with self.lock:
            return subscribe(self, ctx)

    def send_notification(self, method: str, params: bytes) -> None:
        """Send a notification with others of this turn of the loop; the lock is held."""
        connection = self.connection
        body = encode_notification(method, params)
        connection.outgoing.send_own(connection.framing.frame(body))
        self.flush_soon()

    def flush_soon(self) -> None:
        """Send what is ready in this turn of the loop, together; the lock is held."""
        outgoing = self.connection.outgoing
        if len(outgoing.own) >= JOIN:
            outgoing.flush()
        elif not self._flushes_soon:
            self._flushes_soon = True
            if threading.get_ident() == self._thread:
                self.loop.call_soon(self._flush_own)
            else:
                self.loop.call_soon_threadsafe(self._flush_own)

    def _flush_own(self) -> None:
        with self.lock:
            self._flushes_soon = False
            if not self.closed:
                self.connection.outgoing.flush()
                self._arrange()

    # Reading and writing.

    def _readable(self) -> None:
        self.turns += 1
        self.on_traffic()
        with self.lock:
            if self._read_elsewhere:
                self._read_elsewhere = False  # what made us ready may be gone; look again
                return
            if not self._read():
                return
            if not (self._reading and self.connection.is_unhindered) or (
                self.input_ended
                or self.outbox.lost
                or self._moved_on is not None
                or self.clocks.due < self._wakes_at
            ):
                self._arrange()  # nearly always there is nothing to arrange

    def _read_file(self) -> None:
        """A regular file is always ready; epoll refuses it, so we take turns with the loop."""
        self._readable()
        if self._reading and not self.closed:
            self.loop.call_soon(self._read_file)

    def _writable(self) -> None:
        self.turns += 1
        with self.lock:
            self.flush()
            if not self.outbox.size:
                self._writing = self.behind = False
                self.channel.watch_writing(self.loop, None)
                self.connection.calls.release_held()
                self.connection.requests.send_unsent()
            self._arrange()

    def _arrange(self) -> None:
        """Read on, or not; wake when something is due; notice the end."""
        if self._moved_on is not None:
            if not self._moved_on.done():
                self._moved_on.set_result(None)
            self._moved_on = None
        if self.closed:
            return
        connection = self.connection
        if connection.broken and not self.input_ended:
            # What came before is still answered; nothing that follows can be understood.
            self.input_ended = True
            connection.requests.end_grants()
            self._lose_calls(ConnectionLost("the peer sent something that is no frame"))
        reading = self.reads and not self.input_ended and connection.wants_data
        if reading != self._reading:
            self._watch_reading(reading)
        if connection.requests.full or self.clocks.due != inf:
            self.clocks.look_at_queue(self.loop.time())
            self.set_timer()
        if self.outbox.lost and not self._lingers:
            self.read_last_words()
        if self.input_ended and not self._lingers:
            self.close()
        elif self.outbox.lost:
            self.close(self.loss())
        elif self.input_ended and connection.idle and not self.outbox.size:
            self.close()

    def _watch_reading(self, reading: bool) -> None:
        self._reading = reading
        if self.channel.is_file:
            if reading:
                self.loop.call_soon(self._read_file)
        else:
            self.channel.watch_reading(self.loop, self._readable if reading else None)

    def after_check(self) -> None:
        """Go on after the clocks were looked at; the lock is held."""
        self._arrange()

    def close(self, error: Exception | None = None) -> None:
        """Stop reading, cancel what runs, end every open call; idempotent."""
        with self.lock:
            if self.closed:
                return
            self.closed = True
            if self._reading and not self.channel.is_file:
                self.channel.watch_reading(self.loop, None)
            if self._writing:
                self.channel.watch_writing(self.loop, None)
            self.stop_timer()
            self._runner.close()
            self._lose_calls(error or ConnectionLost("the connection was closed"))
            self.connection.close()
            self.outbox.lose()
            self.channel.close()
        self._on_end(self)

    # In place of a loop that a handler blocks; any thread may call these. Nothing is started, but
    # cancellations and answers to our own calls get through.

    def read_for_loop(self) -> bool:
        """Read what is there while a handler blocks the loop; False if it keeps us from that."""
        with self._in_place_of_loop() as may:
            if not may or not self.awaits_input:
                return may
            if not self.channel.has_input():
                return True  # the loop was faster, and to wait here would keep it from going on
            self._read_elsewhere = True
            self._read()
            if not self._behind_reader:
                self._behind_reader = True
                self.loop.call_soon_threadsafe(self._catch_up)
            return True

    def _catch_up(self) -> None:
        with self.lock:
            self._behind_reader = False
            self.go_on()

    def write_for_loop(self) -> None:
        """Send what the peer takes in a moment while a handler blocks the loop.

        A frame that has begun is so completed, also if the process ends without the loop.
        """
        if not self.has_room(0):
            return
        with self._in_place_of_loop() as may:
            until = time.monotonic() + _PATIENCE
            while may and self.has_room(_TAKING) and time.monotonic() < until:
                self.flush()

    @property
    def descriptors(self) -> Channel:
        """What a watchdog waits for."""
        assert isinstance(self.channel, Channel), "only descriptors are watched"
        return self.channel

    def has_room(self, seconds: float) -> bool:
        """Whether something is kept of which the peer takes some in time."""
        if self.closed or not self.outbox.size:
            return False
        poll = select.poll()
        poll.register(self.descriptors.write_fd, select.POLLOUT)
        return bool(poll.poll(seconds * 1000))

    def check_for_loop(self) -> None:
        """Refuse what comes if the queue has been full for too long."""
        with self._in_place_of_loop() as may:
            if may:
                self.clocks.look_at_queue(self.loop.time())
                self.clocks.check_queue(self.loop.time())

    @contextlib.contextmanager
    def _in_place_of_loop(self) -> Iterator[bool]:
        """Hold the connection on another thread; gives False if the loop does not let go of it.

        A `def` that is declared inline and blocks holds it, and the watchdog has other
        connections to see to.
        """
        if not self.lock.acquire(timeout=_PATIENCE):
            yield False
            return
        try:
            self.connection.handover.lend()
            yield True
        finally:
            self.connection.handover.take_back()
            self.lock.release()
