"""Drives one connection with blocking calls, on whichever thread has time: no event loop, no hops.

The thread that waits is the one that reads. A sequential daemon waits on its main thread and runs
its handlers there; a blocking client waits on the thread of its caller. All state belongs to
whoever holds the connection's baton, so there is no lock on the way of a request.

`StandIn` is for servers: a second thread that sleeps until a handler has kept the reading thread
for longer than a moment, and then reads in its place. So cancellations, answers to a handler's own
calls, and the end of the input are seen although the main thread is in `time.sleep(60)`.
"""

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from duet_rpc.context import Context, Peer, Reply
from duet_rpc.engine.calls import encode_params
from duet_rpc.engine.clocks import LONG, CallClock, set_deadline
from duet_rpc.engine.connection import ConnectionOptions
from duet_rpc.engine.dispatch import Dispatcher, Job
from duet_rpc.engine.results import decoder
from duet_rpc.errors import CallTimeout, ConnectionLost, TransportError, UsageError, in_class
from duet_rpc.forks import FORKED, leave, tell_in_child
from duet_rpc.hosts.debug import connection_class
from duet_rpc.hosts.loggers import RequestLoggers
from duet_rpc.tracebacks import OwnFault
from duet_rpc.transports.channel import Channel
from duet_rpc.transports.outbox import Outbox
from duet_rpc.wire.framing import Frame, Framing

STALL = 0.2
"""Seconds that a full queue may stand still before what comes is refused."""
LAST_WORDS = 0.05
"""Seconds that are spent at the end on what the peer has said before; it may talk for ever."""
MAX_NESTED = 100
"""Handlers that may wait for the peer inside one another. Each keeps its frames on the stack of the
one reading thread, so there has to be an end."""


_LOOK = 0.25
"""Seconds after which we look for the end of the input again while the peer does not read."""


class ThreadHost:
    """Reads, writes and runs handlers for one connection on the calling thread."""

    def __init__(
        self,
        channel: Channel,
        dispatcher: Dispatcher,
        framing: Framing,
        options: ConnectionOptions,
    ) -> None:
        self.channel = channel
        self.connection = connection_class()(dispatcher, framing, self, options)
        self.turns = 0
        """Counts the times that something came; a stand-in sees by it whether we move."""
        self.input_ended = False
        self.lost_calls = 0
        self.reads = True
        """Turned off by a server that is ending."""
        self.nested = 0
        """Handlers that wait for the peer, one inside the other."""
        self._policy = dispatcher.policy
        self._log = dispatcher.log
        self.dialect = dispatcher.dialect
        """How the peer is told of progress."""
        self.logger = RequestLoggers(dispatcher.log).logger
        """Makes the logger of a request."""
        self.outbox = Outbox(
            channel.send, dispatcher.policy.max_output_bytes, self.connection.congest
        )
        self.write: Callable[[Frame], None] = self.outbox.put
        """Sends what the peer takes now and keeps the rest; too much kept stops our reading."""
        self._mail: deque[Callable[[], object]] = deque()
        self._owner = threading.get_ident()
        self._wake_read, self.wake_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._wake_read, select.POLLIN)
        self.poll: Callable[[float | None], list[tuple[int, int]]] = self._poll.poll
        """Waits for what `prepare` said; this part alone needs no baton."""
        self._reading = self._writing = False
        self._frame = -1
        self._frame_deadline: float | None = None
        self._stalled_since: float | None = None
        self._moved = 0
        self.on_signal: Callable[[int], None] = lambda number: None
        self.is_copy = False
        """We are in a forked child, and the connection is the parent's."""
        tell_in_child(self)
        self._stand_in: StandIn | None = None

    def forked(self) -> None:
        """Leave the connection to the parent."""
        self.is_copy = True
        self.connection.forked(leave)
        self.outbox.lose()
        self.channel.close()

    def loss(self) -> Exception:
        """Say what the end of the input means for calls that wait for their answer."""
        return ConnectionLost("the peer closed the connection")

    # For the connection.

    def write_own(self, data: Frame) -> None:
        """Send a call of ours, as far as the peer takes it now."""
        self.outbox.put(data, False)

    def start(self, job: Job) -> None:
        """Run the handler here and now."""
        if job.method.is_async:
            error = UsageError("an async handler needs an event loop; serve it on one")
            member = self.connection.dispatcher.not_started(error, job)
        else:
            set_deadline(job, time.monotonic())
            member = self.connection.run_lent(job)
        self.connection.finish(job, member)

    def cancel(self, job: Job) -> None:
        """Nothing can stop a `def`; its context tells it."""

    def reclaim(self) -> None:
        """Ask the stand-in for the connection, and wait until it has put it down."""
        if self.is_copy:
            leave(None)
        assert self._stand_in is not None, "only a stand-in takes the baton"
        self._stand_in.step_down()

    @property
    def peer(self) -> Peer:
        """The other end, for handlers."""
        return self

    @property
    def behind(self) -> bool:
        """The peer has not taken what we sent."""
        return self.outbox.size > 0

    # The peer, for handlers that run on our thread.

    def notify(self, method: str, params: Any) -> None:
        """Send a notification from inside a handler."""
        self._refuse_in_child()
        encoded = encode_params(params)
        self.lend_back(lambda: self.connection.calls.notify(method, encoded))

    def call(
        self, ctx: Context, method: str, params: Any, timeout: float | None, returns: Any
    ) -> Reply:
        """Call the peer from inside a handler."""
        self._refuse_in_child()
        if self.nested >= MAX_NESTED:
            # No refusal of the handler's own request: that has begun, and may have had an effect.
            raise TransportError("the call was not sent: too many calls wait for one another")
        return _BlockingReply(self, ctx, method, encode_params(params), timeout, returns)

    def _refuse_in_child(self) -> None:
        if self.is_copy:
            raise UsageError(FORKED)

    def lend_back(self, action: Callable[[], object]) -> None:
        """Do something to the connection from inside a handler, or from a thread of a handler's."""
        if threading.get_ident() != self._owner:
            self.post(action)
            return
        baton = self.connection.baton
        try:
            baton.pop()
        except IndexError:
            self.reclaim()
        try:
            action()
        finally:
            baton.append(None)

    def post(self, action: Callable[[], object]) -> None:
        """Have something done by whoever reads, between two messages; any thread may call this."""
        self._mail.append(action)
        self.wake()

    @property
    def quiet(self) -> bool:
        """Nothing runs, waits or is on its way in either direction."""
        connection = self.connection
        return (
            connection.idle
            and not connection.lent
            and not connection.framing.partial
            and not connection.calls.open
            and not self.outbox.size
        )

    # Waiting.

    def wake(self) -> None:
        """Make a wait return; any thread may call this."""
        try:
            os.write(self.wake_fd, b"\0")
        except BlockingIOError:
            pass  # it is full of reasons to wake already

    def turn(self, timeout: float | None = None) -> None:
        """Wait until something comes or can be sent, and deal with it. Needs the baton."""
        self.deal(self.poll(self.prepare(timeout)))

    def prepare(self, timeout: float | None) -> float | None:
        """Say what to wait for; return how many milliseconds at most, our own clocks included."""
        connection = self.connection
        rests = connection.rests
        reading = self.reads and not self.input_ended and (rests or self._may_read())
        writing = self.outbox.size > 0
        if reading != self._reading or writing != self._writing:
            self._register(reading, writing)
        if rests and self._frame_deadline is None:
            self._stalled_since = None
        else:
            timeout = self._next_timeout(timeout)
        if timeout is None:
            return None
        return timeout * 1000 if timeout > 0 else 0

    def _may_read(self) -> bool:
        """Whether what comes may be read now; the end of it always may."""
        return self.connection.wants_data or self.channel.has_ended

    def deal(self, ready: list[tuple[int, int]]) -> None:
        """Read and write what has become possible."""
        for fd, events in ready:
            if fd == self.channel.read_fd and events != select.POLLOUT:
                self._readable()
                if events & select.POLLOUT:
                    self.flush()
            elif fd == self._wake_read:
                self._woken()
            else:
                self.flush()
        if self._frame_deadline is not None or self._stalled_since is not None:
            self._check_clocks(time.monotonic())

    def flush(self) -> None:
        """Send what was kept, as far as the peer reads; go on if that made room."""
        self.outbox.flush()
        if not self.outbox.size:
            self.connection.dispatcher.drop_spent()
        if self.connection.congested and not self.outbox.over:
            self.connection.relieve()
        self.connection.calls.release_held()

    def _readable(self) -> None:
        self.turns += 1
        if self._stand_in is not None and self._stand_in._resting:
            self._stand_in.call()
        try:
            data = self.channel.receive()
        except BlockingIOError:
            return
        if data:
            self.connection.receive(data)
        else:
            self._end_input()
        framing = self.connection.framing
        if self._frame != framing.started or self._frame_deadline is not None:
            self._watch_frame(framing)

    def _watch_frame(self, framing: Framing) -> None:
        """Give each frame that has begun its time; the same one gets it only once."""
        if not framing.partial:
            self._frame_deadline = None
        elif self._frame != framing.started:
            self._frame_deadline = time.monotonic() + self._policy.read_timeout
        self._frame = framing.started
        self.channel.expect(bulk=framing.bulk)

    def _end_input(self) -> None:
        self.input_ended = True
        self._frame_deadline = None
        self.connection.end_of_input()
        self.lost_calls += self.connection.calls.lose(self.loss())

    def _register(self, reading: bool, writing: bool) -> None:
        read_fd, write_fd = self.channel.read_fd, self.channel.write_fd
        poll = self._poll
        for fd in (read_fd, write_fd):
            try:
                poll.unregister(fd)
            except KeyError:
                pass
        if reading:
            poll.register(read_fd, select.POLLIN)
        if writing:
            both = reading and read_fd == write_fd
            poll.register(write_fd, select.POLLOUT | (select.POLLIN if both else 0))
        self._reading, self._writing = reading, writing

    def _next_timeout(self, timeout: float | None) -> float | None:
        connection = self.connection
        if connection.full and not connection.refusing and not connection.congested:
            if self._stalled_since is None:
                self._stalled_since, self._moved = time.monotonic(), connection.finished
        else:
            self._stalled_since = None
        if connection.congested and not self._reading and not self.input_ended:
            timeout = _LOOK if timeout is None else min(timeout, _LOOK)
        if self._frame_deadline is None and self._stalled_since is None:
            return timeout
        now = time.monotonic()
        waits = [timeout] if timeout is not None else []
        if self._frame_deadline is not None:
            waits.append(self._frame_deadline - now)
        if self._stalled_since is not None:
            waits.append(self._stalled_since + STALL - now)
        return min(waits)

    def _check_clocks(self, now: float) -> None:
        if self._frame_deadline is not None and now >= self._frame_deadline:
            self._frame_deadline = None
            self.connection.expire_frame()
        if self._stalled_since is not None and now >= self._stalled_since + STALL:
            self._stalled_since = None
            if self.connection.finished == self._moved:
                self.connection.refuse()

    def _woken(self) -> None:
        for number in os.read(self._wake_read, 4096):
            if number:
                self.on_signal(number)
        while self._mail:
            self._mail.popleft()()

    def release(self) -> None:
        """Give back the waking pipe; nobody may wait any more. The channel is its opener's."""
        for fd in (self._wake_read, self.wake_fd):
            os.close(fd)


class StandIn:
    """The thread that reads while the reading thread is kept in a handler."""

    TICK = 0.05
    """How long a handler may keep the reader before we read in its place."""
    REST = 20
    """Ticks without traffic after which we sleep until there is some."""

    def __init__(
        self, host: ThreadHost, *, until: Callable[[], bool], deadline: Callable[[], None]
    ):
        self._host = host
        self._over = until
        self._check_deadline = deadline
        self._resting = True
        self._called = threading.Event()
        self._wanted_back = False
        self._put_down = threading.Semaphore(0)
        host._stand_in = self
        threading.Thread(target=self._watch, name="duet-rpc stand-in", daemon=True).start()

    def call(self) -> None:
        """There is traffic: keep an eye on the reader."""
        self._resting = False
        self._called.set()

    def step_down(self) -> None:
        """Give the connection back to the reading thread, which calls this."""
        self._wanted_back = True
        self._host.wake()
        self._put_down.acquire()

    def _watch(self) -> None:
        connection = self._host.connection
        seen, quiet = (-1, -1, -1), 0
        while True:
            self._called.wait()
            time.sleep(self.TICK)
            self._check_deadline()
            now = self._moves
            if now != seen:
                seen, quiet = now, 0
                continue
            if connection.take_over():
                self._read()
            else:
                quiet += 1
                if quiet >= self.REST and not self._over():
                    self._rest(now)

    @property
    def _moves(self) -> tuple[int, int, int]:
        return self._host.turns, *self._host.connection.moves

    def _rest(self, seen: tuple[int, int, int]) -> None:
        self._called.clear()
        self._resting = True
        # The reader looks at `_resting` after it counts its turn; so either it sees that we rest,
        # or we see that it has moved.
        if self._moves != seen:
            self.call()

    def _read(self) -> None:
        host, connection = self._host, self._host.connection
        connection.go_on()
        while not self._wanted_back:
            try:
                host.turn(self.TICK)
            except Exception as error:  # ours, and the reading thread waits for us to step down
                host._log.failure("reading failed", OwnFault(error), connection_id=connection.id)
                time.sleep(self.TICK)
            self._check_deadline()
        connection.take_back()
        self._wanted_back = False
        self._put_down.release()


def wait_until_set(event: threading.Event, clock: CallClock) -> None:
    """Wait until something has happened, or the time is over."""
    while not event.is_set() and (left := clock.left(time.monotonic())) > 0:
        event.wait(min(left, LONG))


class _BlockingReply:
    """A call to the peer from inside a handler, whose thread reads until the answer is there."""

    def __init__(
        self,
        host: ThreadHost,
        ctx: Context,
        method: str,
        params: bytes | None,
        timeout: float | None,
        returns: Any,
    ) -> None:
        self._host = host
        self._ctx = ctx
        self._method = method
        self._clock = CallClock(timeout, time.monotonic())
        self.decode = decoder(returns)
        self._settled = threading.Event()
        self._result: Any = None
        self._error: Exception | None = None
        self._id = 0
        host.lend_back(lambda: self._send(method, params))

    def _send(self, method: str, params: bytes | None) -> None:
        self._id = self._host.connection.calls.send(method, params, self)
        self._host.connection.flush()

    def progress(self, value: Any) -> None:
        """News of the call; nobody asked for them."""

    def settle(self, result: Any, error: Exception | None) -> None:
        """Take the answer."""
        if error is not None:
            error = in_class(error, (self._host.connection.dispatcher.errors,))
        self._result, self._error = result, error
        self._settled.set()

    def __await__(self) -> Any:
        raise UsageError("a def cannot await; use ctx.call(...).result()")

    def result(self) -> Any:
        """Wait for the answer; requests that the peer makes meanwhile are served."""
        host = self._host
        if threading.get_ident() != host._owner:
            wait_until_set(self._settled, self._clock)
        else:
            host.lend_back(self._pump)
        if not self._settled.is_set():
            host.lend_back(lambda: host.connection.calls.forget(self._id, tell_peer=True))
            raise CallTimeout(f"{self._method}: no answer within {self._clock.timeout:g} s")
        if self._error is not None:
            import copy  # here: a cold start should not pay for it

            raise copy.copy(self._error)  # what we keep must not keep our callers' frames
        return self._result if self.decode is None else self.decode(self._result)

    def _pump(self) -> None:
        host, connection = self._host, self._host.connection
        connection.pause_slot(self._ctx)
        host.nested += 1
        try:
            connection.go_on()
            host.turn(0)  # what is there already counts, also after the time is over
            while not self._settled.is_set():
                left = self._clock.left(time.monotonic())
                if left <= 0:
                    return
                host.turn(min(left, LONG))
        finally:
            host.nested -= 1
            connection.resume_slot(self._ctx)
