"""Drives one connection with blocking calls, on whichever thread has time: no event loop, no hops.

The thread that waits is the one that reads. A sequential daemon waits on its main thread and runs
its handlers there; a blocking client waits on the thread of its caller. All state belongs to the
thread that holds the hand-over token (`engine/handover.py`), so a request takes no lock.

A server has a watchdog (`watch.StandIn`): it reads while a handler keeps our thread. So
cancellations, answers to a handler's own calls, and the end of the input are seen although the main
thread is in `time.sleep(60)`.
"""

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any

from duet_rpc.context import Context, Reply
from duet_rpc.engine.calls import encode_params
from duet_rpc.engine.connection import ConnectionOptions
from duet_rpc.engine.deadlines import LONG, set_deadline
from duet_rpc.engine.dispatch import Dispatcher, Job
from duet_rpc.errors import TransportError, UsageError
from duet_rpc.forks import leave
from duet_rpc.hosts.host import BaseHost
from duet_rpc.transports.channel import Channel
from duet_rpc.wire.framing import Framing

if TYPE_CHECKING:
    from duet_rpc.hosts.replies import PeerReply
    from duet_rpc.hosts.watch import StandIn

MAX_NESTED = 100
"""Handlers that may wait for the peer inside one another. Each keeps its frames on the stack of the
one reading thread, so there has to be an end."""

_LOOK = 0.25
"""Seconds after which we look for the end of the input again while the peer does not read."""


class ThreadHost(BaseHost):
    """Reads, writes and runs handlers for one connection on the calling thread."""

    channel: Channel

    def __init__(
        self, channel: Channel, dispatcher: Dispatcher, framing: Framing, options: ConnectionOptions
    ) -> None:
        super().__init__(channel, dispatcher, framing, options)
        self.write: Callable[..., None] = self.outbox.put
        self.start: Callable[[Job], None] = self._run_here
        self.cancel: Callable[[Job], None] = lambda job: (
            None
        )  # nothing can stop a `def`; its context tells it
        self._nested = 0
        """Handlers that wait for the peer, one inside the other."""
        self._mail: deque[Callable[[], object]] = deque()
        self._owner = threading.get_ident()
        self.wake_fd: int
        self._wake_read, self.wake_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._wake_read, select.POLLIN)
        self.poll: Callable[[float | None], list[tuple[int, int]]] = self._poll.poll
        """Waits for what `prepare` said; this part alone needs no token."""
        self._reading = self._writing = False
        self.stand_in: StandIn | None = None
        """The watchdog that reads while a handler keeps our thread."""

    # For the connection.

    def _run_here(self, job: Job) -> None:
        """Run the handler here and now."""
        if job.method.is_async:
            error = UsageError("an async handler needs an event loop; serve it on one")
            member = self.connection.dispatcher.not_started(error, job)
        else:
            set_deadline(job, time.monotonic())
            member = self.connection.run_lent(job)
        self.connection.requests.finish(job, member)

    def reclaim(self) -> None:
        """Ask the stand-in for the connection, and wait until it has put it down."""
        if self.is_copy:
            leave(None)
        assert self.stand_in is not None, "only a stand-in takes the token"
        self.stand_in.step_down()

    # For handlers, which run on our thread.

    def call(
        self, ctx: Context | None, method: str, params: Any, timeout: float | None, returns: Any
    ) -> Reply[Any]:
        """Call the peer from inside a handler."""
        if self._nested >= MAX_NESTED:
            # No refusal of the handler's own request: that has begun, and may have had an effect.
            raise TransportError("the call was not sent: too many calls wait for one another")
        return super().call(ctx, method, params, timeout, returns)

    def notify_outside(self, method: str, params: Any) -> None:
        """Send a notification between two messages: perhaps no handler runs, and we read."""
        self._refuse_in_child()
        encoded = encode_params(params)
        self.post(lambda: self.connection.calls.notify(method, encoded))

    def act(self, action: Callable[..., object], *args: Any) -> None:
        """Do something to the connection from inside a handler, or from a thread of a handler's."""
        if threading.get_ident() != self._owner:
            self.post(lambda: action(*args))
            return
        token = self.connection.handover.token
        try:
            token.pop()
        except IndexError:
            self.reclaim()
        try:
            action(*args)
        finally:
            token.append(None)

    def post(self, action: Callable[[], object]) -> None:
        """Have the thread that reads do something between two messages; for any thread."""
        self._mail.append(action)
        self.wake()

    def wait(self, reply: "PeerReply") -> None:
        """Read until the answer is there; requests that the peer makes meanwhile are served."""
        if threading.get_ident() != self._owner:
            reply.wait_here()
        else:
            self.act(self._read_until, reply)
        if not reply.settled:
            self.act(reply.give_up)

    def _read_until(self, reply: "PeerReply") -> None:
        self._nested += 1
        try:
            self.pause(reply.ctx)
            self.connection.go_on()
            self.turn(0)  # what is there already counts, also after the time is over
            while not reply.settled and (left := reply.clock.left(time.monotonic())) > 0:
                self.turn(min(left, LONG))
        finally:
            self._nested -= 1
            self.resume(reply.ctx)

    # Waiting.

    def wake(self) -> None:
        """Make a wait return; any thread may call this."""
        try:
            os.write(self.wake_fd, b"\0")
        except BlockingIOError:
            pass  # it is full of reasons to wake already

    def turn(self, timeout: float | None = None) -> None:
        """Wait until something comes or can be sent, and deal with it. Needs the token."""
        self.deal(self.poll(self.prepare(timeout)))

    def prepare(self, timeout: float | None) -> float | None:
        """Say what to wait for; return how many milliseconds at most, our own clocks included."""
        rests = self.connection.is_unhindered
        reading = self.reads and not self.input_ended and (rests or self.awaits_input)
        writing = self.outbox.size > 0
        if reading != self._reading or writing != self._writing:
            self._register(reading, writing)
        if not rests or self.clocks.due != inf:
            timeout = self._limit_wait(timeout)
        if timeout is None:
            return None
        return timeout * 1000 if timeout > 0 else 0

    def _limit_wait(self, timeout: float | None) -> float | None:
        """Wait no longer than until something is due."""
        now = time.monotonic()
        self.clocks.look_at_queue(now)
        waits = [self.clocks.due - now]
        if timeout is not None:
            waits.append(timeout)
        if self.connection.congested and not self._reading and not self.input_ended:
            waits.append(_LOOK)
        wait = min(waits)
        return None if wait == inf else wait

    def deal(self, ready: list[tuple[int, int]]) -> None:
        """Read and write what has become possible."""
        for fd, events in ready:
            if fd == self.channel.read_fd and events != select.POLLOUT:
                self.turns += 1
                if self.stand_in is not None and self.stand_in.resting:
                    self.stand_in.call()
                self._read()
                if events & select.POLLOUT:
                    self.flush()
            elif fd == self._wake_read:
                self._woken()
            else:
                self.flush()
        if self.clocks.due != inf:
            self.clocks.check(time.monotonic())

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

    def _woken(self) -> None:
        os.read(self._wake_read, 4096)
        while self._mail:
            self._mail.popleft()()

    def close(self) -> None:
        """Serve nothing more; for code that has kept the peer it is gone."""
        self.closed: bool = True
        self.connection.close()

    def release(self) -> None:
        """Give back the waking pipe; no one may wait any more. The channel is its opener's."""
        self.closed = True
        for fd in (self._wake_read, self.wake_fd):
            os.close(fd)
