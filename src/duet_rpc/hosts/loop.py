"""Drives connections on an asyncio event loop: async handlers, many connections, worker threads.

Bytes are read by our own callback straight from the descriptor, so no task or future stands between
a request and its answer unless its handler waits. An `async def` is a task; a `def` runs in a
worker thread unless it is declared inline, so that the loop goes on reading.

An `async def` that blocks keeps the loop, and with it reading and writing. Whoever watches over the
loop may then do both in its place (`read_for_loop`, `write_for_loop`): `LoopHost.lock` is held by
whoever touches the connection, and never while an `async def` waits or computes.
"""

import asyncio
import contextlib
import select
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Iterator
from functools import partial
from typing import Any

from duet_rpc.context import Context, Peer, Reply
from duet_rpc.engine.calls import encode_params
from duet_rpc.engine.clocks import LONG, CallClock, set_deadline
from duet_rpc.engine.connection import ConnectionOptions
from duet_rpc.engine.dispatch import Dispatcher, Job
from duet_rpc.engine.results import decoder
from duet_rpc.errors import CallTimeout, ConnectionLost, DeadlineExceeded, UsageError, in_class
from duet_rpc.forks import FORKED, leave, tell_in_child
from duet_rpc.hosts.debug import connection_class
from duet_rpc.hosts.loggers import RequestLoggers
from duet_rpc.hosts.threads import LAST_WORDS, STALL, wait_until_set
from duet_rpc.hosts.workers import Workers, waiting
from duet_rpc.transports.channel import Channel
from duet_rpc.transports.outbox import Outbox
from duet_rpc.wire.framing import Frame, Framing

_PATIENCE = 0.05
"""Seconds that another thread waits for a connection that the loop holds."""
_TAKING = 0.005
"""Seconds in which a peer that reads takes some of what another thread sends in our place."""


class LoopHost:
    """Reads, writes and runs handlers for one connection on the running event loop.

    One that `lingers` goes on answering after the peer has said its last word, as servers do.
    """

    def __init__(
        self,
        channel: Channel,
        dispatcher: Dispatcher,
        framing: Framing,
        options: ConnectionOptions,
        *,
        workers: Workers,
        lingers: bool = True,
        lock: "threading.RLock | None" = None,
        loss: Callable[[], Exception] = lambda: ConnectionLost("the peer closed the connection"),
        on_end: Callable[["LoopHost"], None] = lambda host: None,
    ) -> None:
        self.channel = channel
        self.connection = connection_class()(dispatcher, framing, self, options)
        self.outbox = Outbox(channel.send, dispatcher.policy.max_output_bytes)
        self.input_ended = False
        self.reads = True
        """Turned off by a server that is ending."""
        self.behind = False
        """The peer has not taken what we sent."""
        self.closed = False
        self.lock = threading.RLock() if lock is None else lock
        """Shared by connections that are read by one watch."""
        self.turns = 0
        """Counts the times that something came or went; a watcher sees by it whether we move."""
        self.on_traffic: Callable[[], None] = _nothing
        self.on_input_end: Callable[[], None] = _nothing
        self._loop = asyncio.get_running_loop()
        self._lane = workers.lane()
        self.dialect = dispatcher.dialect
        """How the peer is told of progress."""
        self.logger = RequestLoggers(dispatcher.log).logger
        """Makes the logger of a request."""
        self.lost_by: Exception | None = None
        """What our open calls were told when they were lost."""
        self.lost_calls = 0
        self._lingers = lingers
        self._loss = loss
        self._on_end = on_end
        self._running: dict[Job, asyncio.TimerHandle | None] = {}
        """The jobs that hold a slot, with the clock of their deadline."""
        self._thread = threading.get_ident()
        self._reading = self._writing = False
        self._frame = -1
        self._frame_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._moved = 0
        self._moved_on: asyncio.Future[None] | None = None
        self._read_elsewhere = self._behind_reader = False
        self.is_copy = False
        """We are in a forked child, and the connection is the parent's."""
        tell_in_child(self)

    def forked(self) -> None:
        """Leave the connection, and the loop if one of our handlers has forked, to the parent.

        Whatever runs on the loop of a server may be part of a handler: a task of its own, a task or
        a callback that it has made. The loop of a client is its program's, unless a handler runs.
        """
        self.is_copy = self.closed = True
        self.on_traffic = _nothing
        self.lock = threading.RLock()
        self.connection.forked(leave)
        self.outbox.lose()
        self.channel.close()
        if threading.get_ident() == self._thread and self._loop.is_running():
            if self._lingers or any(isinstance(job.running, asyncio.Task) for job in self._running):
                _strand(self._loop)

    def begin(self) -> None:
        """Start to read."""
        self._arrange()

    def stop_reading(self) -> None:
        """Read no more; what came goes on."""
        self.reads = False
        self._arrange()

    def resume_reading(self) -> None:
        """Read again."""
        self.reads = True
        self._arrange()

    async def drained(self, seconds: float) -> None:
        """Wait until everything that came is answered and sent, or the time is over."""
        until = self._loop.time() + seconds
        while not (self.connection.idle and not self.outbox.size) and not self.closed:
            left = until - self._loop.time()
            if left <= 0:
                return
            await self.moved(left)

    async def moved(self, seconds: float | None) -> None:
        """Wait until something came, ended or was sent, or the time is over."""
        if self._moved_on is None:
            self._moved_on = self._loop.create_future()
        await asyncio.wait([self._moved_on], timeout=seconds)

    # For the connection.

    def write(self, data: Frame) -> None:
        """Send what the peer takes now and keep the rest."""
        if self.closed:
            return  # the descriptor may be somebody else's by now
        self.outbox.put(data)
        if self.outbox.over:
            self.connection.congest()
        if self.outbox.size:
            self._fall_behind()

    def write_own(self, data: Frame) -> None:
        """Send a call of ours, as far as the peer takes it now."""
        if self.closed:
            return
        self.outbox.put(data, False)
        if self.outbox.lost:
            self._loop.call_soon_threadsafe(self.on_loop, self._arrange)
        elif self.outbox.size:
            self._fall_behind()

    def _fall_behind(self) -> None:
        self.behind = True
        self.on_traffic()
        if not self._writing:
            self.on_loop(self._watch_writing)

    def _watch_writing(self) -> None:
        if self.outbox.size and not self._writing and not self.closed:
            self._writing = True
            self._loop.add_writer(self.channel.write_fd, self._writable)

    def start(self, job: Job) -> None:
        """Run the handler where its kind runs."""
        method = job.method
        if method.inline and not method.is_async:
            self._run_inline(job)
            return
        self._running[job] = None
        try:
            if method.timeout is not None:
                self._running[job] = self._start_clock(job, method.timeout)
            if method.is_async:
                job.running = task = self._loop.create_task(self._run_async(job))
                task.add_done_callback(partial(self._task_ended, job))
            else:
                self._lane.run(partial(self._run_in_thread, job), partial(self._no_thread, job))
        except Exception as error:  # a process may have no thread left
            self._give_back(job, self.connection.dispatcher.not_started(error, job))

    def _run_inline(self, job: Job) -> None:
        """Run a handler here and now. It keeps the loop, so no clock could end it in time."""
        if job.method.timeout is not None:
            set_deadline(job, self._loop.time())
        connection = self.connection
        connection.finish(job, connection.dispatcher.run(job))

    def _start_clock(self, job: Job, seconds: float) -> asyncio.TimerHandle:
        set_deadline(job, self._loop.time())
        return self._loop.call_later(
            seconds, self.on_loop, self.connection.abandon, job, DeadlineExceeded()
        )

    def cancel(self, job: Job) -> None:
        """Cancel a task, or the waiting for another run; a `def` that runs sees its context."""
        if job.running is not None:
            self.on_loop(job.running.cancel)

    def reclaim(self) -> None:
        """Nobody takes a baton on a loop."""
        if self.is_copy:
            leave(None)
        raise AssertionError("the loop is the only one who holds the connection")

    @property
    def peer(self) -> Peer:
        """The other end, for handlers."""
        return self

    async def _run_async(self, job: Job) -> None:
        self._finish(job, await self.connection.dispatcher.run_async(job))

    def _task_ended(self, job: Job, task: asyncio.Task[None]) -> None:
        """Finish a job whose task could not: one cancelled before its first step runs no line."""
        if job in self._running:
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            assert error is not None, "a task that ends by itself has finished its job"
            self._finish(job, self.connection.dispatcher.broken_off(error, job))

    def _run_in_thread(self, job: Job) -> None:
        dispatcher = self.connection.dispatcher
        if dispatcher.may_wait(job):
            self.go_on_in_thread(job, dispatcher.run_yielding(job))
        else:
            self._from_thread(self._finish, job, dispatcher.run(job))

    def _no_thread(self, job: Job, error: Exception) -> None:
        self._from_thread(self._finish, job, self.connection.dispatcher.not_started(error, job))

    def go_on_in_thread(
        self, job: Job, run: Coroutine[Any, Any, bytes], error: BaseException | None = None
    ) -> None:
        """Let a command go on until it ends, or has to wait for another run: not in a thread."""
        try:
            wait = run.send(None) if error is None else run.throw(error)
        except StopIteration as end:
            self._from_thread(self._finish, job, end.value)
        else:
            self._from_thread(_Waiting, self, job, run, wait)

    def _from_thread(self, action: Callable[..., object], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(action, *args)
        except RuntimeError:
            pass  # the loop is gone, and with it the peer

    def _finish(self, job: Job, member: bytes) -> None:
        with self.lock:
            self._give_back(job, member)
            if not self.closed:
                self.connection.go_on()
                self._arrange()

    def _give_back(self, job: Job, member: bytes) -> None:
        """End a job of the table, and with it its hold on a slot; the only place that does."""
        timer = self._running.pop(job)
        if timer is not None:
            timer.cancel()
        self.connection.finish(job, member)

    # The peer, for handlers.

    def notify(self, method: str, params: Any) -> None:
        """Send a notification from a handler, on the loop or in a thread."""
        self._refuse_in_child()
        self.on_loop(self.connection.calls.notify, method, encode_params(params))

    def call(
        self, ctx: Context, method: str, params: Any, timeout: float | None, returns: Any
    ) -> Reply:
        """Call the peer from a handler."""
        self._refuse_in_child()
        return _LoopReply(self, ctx, method, encode_params(params), timeout, returns)

    def _refuse_in_child(self) -> None:
        if self.is_copy:
            raise UsageError(FORKED)

    def on_loop(self, action: Callable[..., object], *args: Any) -> None:
        """Do something to the connection, from any thread."""
        if threading.get_ident() == self._thread:
            with self.lock:
                action(*args)
        else:
            self._loop.call_soon_threadsafe(self.on_loop, action, *args)

    def post(self, action: Callable[[], object]) -> None:
        """Have something done between two messages; any thread may call this."""
        self._loop.call_soon_threadsafe(action)

    @property
    def quiet(self) -> bool:
        """Nothing runs, waits or is on its way in either direction."""
        connection = self.connection
        return (
            connection.idle
            and not connection.framing.partial
            and not connection.calls.open
            and not self.outbox.size
        )

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
            framing = self.connection.framing
            if self._frame != framing.started or self._frame_timer is not None:
                self._watch_frame(framing)
            if not (self._reading and self.connection.rests) or (
                self.input_ended or self.outbox.lost or self._moved_on is not None
            ):
                self._arrange()  # nearly always there is nothing to arrange

    def read_for_loop(self) -> None:
        """Read what is there while a handler blocks the loop; any thread may call this.

        Nothing is started, but cancellations and answers to our own calls get through.
        """
        with self._in_place_of_loop() as may:
            if not may or not self.awaits_input:
                return
            if not self._has_input():
                return  # the loop was faster, and to wait here would keep it from going on
            self._read_elsewhere = True
            self._read()
            if not self._behind_reader:
                self._behind_reader = True
                self._loop.call_soon_threadsafe(self._catch_up)

    def write_for_loop(self) -> None:
        """Send what the peer takes in a moment while a handler blocks the loop; on any thread.

        A frame that has begun is so completed, also if the process ends without the loop.
        """
        if not self.has_room(0):
            return
        with self._in_place_of_loop() as may:
            until = time.monotonic() + _PATIENCE
            while may and self.has_room(_TAKING) and time.monotonic() < until:
                self._flush()

    def has_room(self, seconds: float) -> bool:
        """Whether something is kept of which the peer takes some in time."""
        if self.closed or not self.outbox.size:
            return False
        poll = select.poll()
        poll.register(self.channel.write_fd, select.POLLOUT)
        return bool(poll.poll(seconds * 1000))

    @property
    def awaits_input(self) -> bool:
        """Whether what comes may be read now; the end of it always may."""
        if self.closed or self.input_ended:
            return False
        return self.connection.wants_data or self.channel.has_ended

    def refuse_for_loop(self) -> None:
        """Refuse what comes, because the queue is full and a handler blocks the loop."""
        with self._in_place_of_loop() as may:
            if may:
                self.connection.refuse()

    @contextlib.contextmanager
    def _in_place_of_loop(self) -> Iterator[bool]:
        """Hold the connection on another thread; gives False if the loop does not let go of it.

        A `def` that is declared inline and blocks holds it, and whoever watches over the loop has
        other things to see to.
        """
        if not self.lock.acquire(timeout=_PATIENCE):
            yield False
            return
        try:
            self.connection.lend()
            yield True
        finally:
            self.connection.take_back()
            self.lock.release()

    def _catch_up(self) -> None:
        with self.lock:
            self._behind_reader = False
            self.connection.go_on()
            self._watch_frame(self.connection.framing)
            self._arrange()

    def _read(self) -> bool:
        """Read what is there; False if that is nothing after all."""
        try:
            data = self.channel.receive()
        except BlockingIOError:
            return False
        if data:
            self.connection.receive(data)
        else:
            self.input_ended = True
            self.connection.end_of_input()
            self._lose_calls(self._loss())
            self.on_input_end()
        return True

    def _writable(self) -> None:
        self.turns += 1
        with self.lock:
            self._flush()
            if not self.outbox.size:
                self._writing = self.behind = False
                self._loop.remove_writer(self.channel.write_fd)
                self.connection.dispatcher.drop_spent()
            self.connection.calls.release_held()
            self._arrange()

    def _flush(self) -> None:
        """Send what was kept, as far as the peer reads; go on if that made room."""
        self.outbox.flush()
        if self.connection.congested and not self.outbox.over:
            self.connection.relieve()

    def _arrange(self) -> None:
        """Read on, or not; notice the end."""
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
            self._lose_calls(ConnectionLost("the peer sent something that is no frame"))
        reading = self.reads and not self.input_ended and connection.wants_data
        if reading != self._reading:
            self._reading = reading
            if self.channel.is_file:
                if reading:
                    self._loop.call_soon(self._read_file)
            elif reading:
                self._loop.add_reader(self.channel.read_fd, self._readable)
            else:
                self._loop.remove_reader(self.channel.read_fd)
        if connection.full and not connection.refusing and not connection.congested:
            if self._stall_timer is None:
                self._moved = connection.finished
                self._stall_timer = self._loop.call_later(STALL, self._stalled)
        if self.outbox.lost and not self._lingers:
            self._read_last_words()
        if self.input_ended and not self._lingers:
            self.close()
        elif self.outbox.lost:
            self.close(self._loss())
        elif self.input_ended and connection.idle and not self.outbox.size:
            self.close()

    def _read_last_words(self) -> None:
        """The peer takes nothing more, but it may have answered before."""
        until = self._loop.time() + LAST_WORDS
        while not self.input_ended and self.connection.wants_data and self._has_input():
            self._read()
            if self._loop.time() > until:
                break

    def _has_input(self) -> bool:
        poll = select.poll()
        poll.register(self.channel.read_fd, select.POLLIN)
        return bool(poll.poll(0))

    def _lose_calls(self, error: Exception) -> None:
        if self.lost_by is None:
            self.lost_by = error
        self.lost_calls += self.connection.calls.lose(error)

    def _read_file(self) -> None:
        """A regular file is always ready; epoll refuses it, so we take turns with the loop."""
        self._readable()
        if self._reading and not self.closed:
            self._loop.call_soon(self._read_file)

    def _watch_frame(self, framing: Framing) -> None:
        if not framing.partial or self.input_ended:
            self._frame = framing.started
            if self._frame_timer is not None:
                self._frame_timer.cancel()
                self._frame_timer = None
                self.channel.expect(bulk=False)
            return
        self.channel.expect(bulk=framing.bulk)
        if self._frame != framing.started or self._frame_timer is None:
            self._frame = framing.started
            if self._frame_timer is not None:
                self._frame_timer.cancel()
            self._frame_timer = self._loop.call_later(
                self.connection.dispatcher.policy.read_timeout, self._expired
            )

    def _expired(self) -> None:
        self._frame_timer = None
        with self.lock:
            self.connection.expire_frame()
            self._arrange()

    def _stalled(self) -> None:
        self._stall_timer = None
        with self.lock:
            if self.connection.finished == self._moved:
                self.connection.refuse()
            self._arrange()

    def close(self, error: Exception | None = None) -> None:
        """Stop reading, cancel what runs, end every open call; idempotent."""
        with self.lock:
            if self.closed:
                return
            self.closed = True
            if self._reading and not self.channel.is_file:
                self._loop.remove_reader(self.channel.read_fd)
            if self._writing:
                self._loop.remove_writer(self.channel.write_fd)
            for timer in (self._frame_timer, self._stall_timer):
                if timer is not None:
                    timer.cancel()
            for job in list(self._running):
                job.answered = True  # no one is there to be answered, and that is no failure
                if job.running is not None and job.may_be_stopped:
                    job.running.cancel()
            self._lose_calls(error or ConnectionLost("the connection was closed"))
            self.connection.drop_queued()
            self.outbox.lose()
            self.channel.close()
        self._on_end(self)


def _nothing() -> None:
    pass


def _strand(loop: Any) -> None:
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


class _Waiting:
    """A command that waits for another run of it, without a thread; all on the loop."""

    AGAIN = 0.5
    """Seconds until one that may have had an effect asks again for a thread that was refused."""

    def __init__(
        self, host: LoopHost, job: Job, run: Coroutine[Any, Any, bytes], wait: Any
    ) -> None:
        self._host = host
        self._job = job
        self._run = run
        self._execution = wait.execution
        self._timer = host._loop.call_later(wait.seconds, self._go_on)
        job.running = self
        if job.answered and job.may_be_stopped:
            self.cancel()
        elif self._execution is not None and not self._execution.call_when_settled(self._settled):
            self._go_on()

    def cancel(self) -> None:
        """Stop waiting for another run. A run of our own that has begun is not to be stopped."""
        self._go_on(asyncio.CancelledError())

    def _settled(self) -> None:
        self._host._from_thread(self._go_on)

    def _go_on(self, error: BaseException | None = None) -> None:
        if self._job.running is not self:
            return  # it goes on already
        self._job.running = None
        self._timer.cancel()
        if self._execution is not None:
            self._execution.forget(self._settled)
        self._take_thread(error)

    def _take_thread(self, error: BaseException | None) -> None:
        host = self._host
        try:
            host._lane.run(
                partial(host.go_on_in_thread, self._job, self._run, error), self._refused
            )
        except Exception as why:
            self._refused(why)

    def _refused(self, why: Exception) -> None:
        host = self._host
        if self._job.may_be_stopped:
            self._run.close()
            host._no_thread(self._job, why)
        else:
            host._from_thread(host._loop.call_later, self.AGAIN, self._take_thread, None)


class _LoopReply:
    """A call to the peer from inside a handler."""

    def __init__(
        self,
        host: LoopHost,
        ctx: Context,
        method: str,
        params: bytes | None,
        timeout: float | None,
        returns: Any,
    ) -> None:
        self._host = host
        self._ctx = ctx
        self._method = method
        self._clock = CallClock(timeout, host._loop.time())
        self.decode = decoder(returns)
        self._settled = threading.Event()
        self._future: asyncio.Future[None] | None = None
        self._result: Any = None
        self._error: Exception | None = None
        self._id = 0
        host.on_loop(self._send, method, params)

    def _send(self, method: str, params: bytes | None) -> None:
        if self._host.closed:
            self.settle(None, ConnectionLost("the connection is closed"))
        else:
            calls = self._host.connection.calls
            self._id = calls.send(method, params, self, in_turn=False)
            self._host.connection.flush()

    def progress(self, value: Any) -> None:
        """News of the call; nobody asked for them."""

    def settle(self, result: Any, error: Exception | None) -> None:
        """Take the answer."""
        if error is not None:
            error = in_class(error, (self._host.connection.dispatcher.errors,))
        self._result, self._error = result, error
        self._settled.set()
        if self._future is not None:
            self._host.on_loop(self._wake)

    def _wake(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def __await__(self) -> Generator[Any, None, Any]:
        return self._wait().__await__()

    async def _wait(self) -> Any:
        self._future = asyncio.get_running_loop().create_future()
        if not self._settled.is_set():
            self._host.on_loop(self._pause)
            try:
                await self._answered()
            finally:
                self._host.on_loop(self._resume)
        return self._value()

    async def _answered(self) -> None:
        loop = self._host._loop
        assert self._future is not None, "made before it is awaited"
        while not self._future.done() and (left := self._clock.left(loop.time())) > 0:
            await asyncio.wait([self._future], timeout=min(left, LONG))

    def result(self) -> Any:
        """Wait for the answer in a worker thread."""
        host = self._host
        if threading.get_ident() == host._thread:
            raise UsageError("this would block the event loop; await the call instead")
        host.on_loop(self._pause)
        try:
            with waiting():
                wait_until_set(self._settled, self._clock)
        finally:
            host.on_loop(self._resume)
        return self._value()

    def _pause(self) -> None:
        self._host.connection.pause_slot(self._ctx)
        self._host.connection.go_on()
        self._host._arrange()

    def _resume(self) -> None:
        self._host.connection.resume_slot(self._ctx)
        if not self._settled.is_set():
            self._host.connection.calls.forget(self._id, tell_peer=True)

    def _value(self) -> Any:
        if not self._settled.is_set():
            raise CallTimeout(f"{self._method}: no answer within {self._clock.timeout:g} s")
        if self._error is not None:
            import copy  # here: a cold start should not pay for it

            raise copy.copy(self._error)  # what we keep must not keep our callers' frames
        return self._result if self.decode is None else self.decode(self._result)
