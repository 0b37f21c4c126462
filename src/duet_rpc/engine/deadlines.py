"""Deadlines and timeouts: of frames, of a full queue, of handlers and of their calls. Pure.

Every host asks here, so that a deadline means the same on each of them. A clock is given the time
and returns the next moment; how to wait until then is the business of the host.
"""

from math import inf
from typing import Protocol

from duet_rpc.engine.connection import Connection
from duet_rpc.engine.dispatch import Job
from duet_rpc.errors import DeadlineExceeded, RpcError

LONG = 3600.0
"""Seconds that one wait lasts at most; the system takes no numbers of any size."""
STALL = 0.2
"""Seconds that a full queue may stand still before what comes is refused."""


def set_deadline(job: Job, now: float) -> None:
    """Tell a handler that starts now when its time is over, if it has one and wants to know."""
    seconds = job.method.timeout
    if seconds is not None and job.context is not None:
        job.context.deadline = now + seconds


class CallClock:
    """The time of a call that a handler makes. It starts with the call, not with the waiting."""

    __slots__ = ("_ends", "timeout")

    def __init__(self, timeout: float | None, now: float) -> None:
        self.timeout: float | None = timeout
        self._ends = inf if timeout is None else now + timeout

    def left(self, now: float) -> float:
        """Say how many seconds are left; 0 or less if its time is over, infinity if it has none."""
        return self._ends - now


class Abandoning(Protocol):
    """What answers for a handler whose time is over."""

    def abandon(self, job: Job, error: RpcError) -> None:
        """Answer a running request now and stop its handler, as far as it may be stopped."""
        ...


class HandlerClocks:
    """The deadlines of handlers, of one connection or of the exchanges of an endpoint."""

    __slots__ = ("_deadlines", "_first_deadline", "_owner", "due")

    def __init__(self, owner: Abandoning) -> None:
        self.due: float = inf
        """When to `check`; nothing is due before, and perhaps nothing then."""
        self._owner = owner
        self._deadlines: dict[Job, float] = {}
        self._first_deadline = inf

    def start(self, job: Job, now: float) -> None:
        """Give a handler that starts now its time, if it has one."""
        seconds = job.method.timeout
        if seconds is not None:
            set_deadline(job, now)
            self._deadlines[job] = ends = now + seconds
            self._first_deadline = min(ends, self._first_deadline)
            self._set_due()

    def stop(self, job: Job) -> None:
        """Forget the time of a handler that has ended."""
        if self._deadlines:
            self._deadlines.pop(job, None)

    def check(self, now: float) -> None:
        """Answer for the handlers whose time is over."""
        if now >= self._first_deadline:
            for job in [job for job, ends in self._deadlines.items() if now >= ends]:
                del self._deadlines[job]
                self._owner.abandon(job, DeadlineExceeded())
            self._first_deadline = min(self._deadlines.values(), default=inf)
        self._set_due()

    def _set_due(self) -> None:
        self.due = self._first_deadline


class ConnectionClocks(HandlerClocks):
    """The clocks of one connection: late frame, stalled queue, handlers over their time."""

    due: float

    __slots__ = ("_connection", "_finished", "_frame_ends", "_stall_ends", "frame")

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.frame: int = -1
        """The frame that was looked at last, as `Framing.started` counts them."""
        self._connection = connection
        self._frame_ends = self._stall_ends = inf
        self._finished = 0

    def look_at_frame(self, now: float) -> None:
        """Give each frame that has begun its time; the same one gets it only once."""
        framing = self._connection.framing
        if not framing.partial:
            self._frame_ends = inf
        elif self.frame != framing.started:
            self._frame_ends = now + self._connection.dispatcher.policy.read_timeout
        self.frame = framing.started
        self._set_due()

    def drop_frame(self) -> None:
        """No frame will be late any more: the input has ended."""
        self._frame_ends = inf
        self._set_due()

    def look_at_queue(self, now: float) -> None:
        """Give a full queue its time to move."""
        requests = self._connection.requests
        if not requests.full or requests.refusing or self._connection.congested:
            self._stall_ends = inf
        elif self._stall_ends == inf:
            self._stall_ends, self._finished = now + STALL, requests.finished
        self._set_due()

    def check(self, now: float) -> None:
        """Do what is due: drop a late frame, refuse what a full queue has no room for, answer."""
        if now < self.due:
            return
        if now >= self._frame_ends:
            self._frame_ends = inf
            self._connection.expire_frame()
        self.check_queue(now)
        super().check(now)

    def check_queue(self, now: float) -> None:
        """Refuse what comes if the queue has been full for too long and nothing has moved."""
        if now >= self._stall_ends:
            self._stall_ends = inf
            if self._connection.requests.finished == self._finished:
                self._connection.refuse()

    def _set_due(self) -> None:
        self.due = min(self._frame_ends, self._stall_ends, self._first_deadline)
