"""When the time of a handler, and of a call that it makes, is over. Pure: the time comes in.

Every host asks here, so that a deadline means the same on each of them. A clock is told the time
and says how much is left; how to wait for that long is the business of the host.
"""

from math import inf

from duet_rpc.engine.dispatch import Job

LONG = 3600.0
"""Seconds that one wait lasts at most; the system takes no numbers of any size."""


def set_deadline(job: Job, now: float) -> None:
    """Tell a handler that starts now when its time is over, if it has one and wants to know."""
    seconds = job.method.timeout
    if seconds is not None and job.context is not None:
        job.context.deadline = now + seconds


class CallClock:
    """The time of a call that a handler makes. It starts with the call, not with the waiting."""

    __slots__ = ("_ends", "timeout")

    def __init__(self, timeout: float | None, now: float) -> None:
        self.timeout = timeout
        self._ends = inf if timeout is None else now + timeout

    def left(self, now: float) -> float:
        """Say how many seconds are left; 0 or less if its time is over, infinity if it has none."""
        return self._ends - now
