"""When a store's records may go, though its wall clock may be set at any time.

A record's time is over at `expires_at`, by the wall clock. A clock that jumps (a suspended machine,
a device that boots in 1970 and then learns the time) would make every record expire at once, and a
retry would run its command again. So a sweeper tells the time that was seen to pass from the time
that only the wall clock claims:

    seen        the sweeper's own monotonic clock ran as far as the wall clock since its last sweep
    unexplained the rest; for a sweeper that has just started, all since the store was last swept

Records whose time ended in unexplained time are given that time back: their `expires_at` moves on
by it, in bounded steps, before anything is dropped. Each record so keeps what it had left when the
store was last swept. If the service was off and the clock was right, records live that much
longer, which does no harm; they do not live on for ever, because time that is seen counts.

The same goes for `since`, before which the store knows nothing: time that a sweeper knows was not
there cannot have been remembered, so `since` moves by it, either way. What a sweeper that has just
started finds may be time in which the service was off: that counts only from the retention on,
where no retry asks any more and a clock that was wrong is more likely.

The last sweep stands in the store itself, so sweepers of many processes share it: while one of them
is at work the others leave it the store. Law of this file: no I/O, no clock, no threads.
"""

from msgspec import Struct
from msgspec.structs import replace

TOLERANCE = 1.0
"""Seconds by which the two clocks may differ between two sweeps: slewing, and a slow answer."""


class Upkeep(Struct, frozen=True):
    """What a store keeps about itself. Times are the store's own."""

    since: float
    """When it began to remember."""
    swept_at: float
    swept_by: str = ""
    gap_end: float = 0.0
    """Where unexplained time ended that is being given back; 0.0 if none is."""
    gap: float = 0.0
    """How long it was."""


class Clocks(Struct):
    """What one sweeper has seen of the store's clock and of its own."""

    name: str
    turn: float
    """For so many seconds after a sweep by another, the store is left to that one."""
    unknown_ttl: float
    ttl: float
    monotonic: float = 0.0
    """The sweeper's own clock now; set before each step."""
    last: tuple[float, float] | None = None
    """The store's clock and the sweeper's own at its last step that was committed."""
    now: float | None = None
    """The store's clock in the step that is under way."""

    def unexplained(self, now: float, swept_at: float) -> float:
        """Tell how much of the time since the last sweep was not seen to pass."""
        if self.last is None:
            return now - swept_at
        wall, monotonic = self.last
        return min((now - wall) - (self.monotonic - monotonic), now - swept_at)

    def leave(self, now: float, swept_at: float) -> None:
        """Remember the time when the store is left to another, and what that one may have missed.

        A jump since its last sweep is its to find; should it be gone by then, it is ours.
        """
        missed = 0.0 if self.last is None else self.unexplained(now, swept_at)
        self.now = now - missed if missed > TOLERANCE else now

    def not_remembered(self, gap: float) -> bool:
        """Tell whether a gap cannot have been time in which the service was merely off."""
        return self.last is not None or gap >= min(self.ttl, self.unknown_ttl)

    def confirm(self) -> None:
        """Remember the step, now that it is committed."""
        if self.now is not None:
            self.last, self.now = (self.now, self.monotonic), None


class Shift(Struct, frozen=True):
    """Move on by `by` seconds the end of records that end in as many seconds before `until`."""

    until: float
    by: float

    @property
    def after(self) -> float:
        """Where those records begin; what ended before has had all its time."""
        return self.until - self.by


class Drop(Struct, frozen=True):
    """Drop the records whose time is over."""


class Leave(Struct, frozen=True):
    """Do nothing: another sweeper is at work."""


Step = Shift | Drop | Leave


def plan_step(upkeep: Upkeep, clocks: Clocks, now: float) -> Step:
    """Decide what the next step of a sweep does."""
    if upkeep.gap_end:
        return Shift(upkeep.gap_end, upkeep.gap)
    is_taken = upkeep.swept_by not in ("", clocks.name)
    if is_taken and 0 <= now - upkeep.swept_at < clocks.turn:
        clocks.leave(now, upkeep.swept_at)
        return Leave()
    gap = clocks.unexplained(now, upkeep.swept_at)
    return Shift(now, gap) if gap > TOLERANCE else Drop()


def after_step(
    upkeep: Upkeep, clocks: Clocks, step: Shift | Drop, now: float, full: bool
) -> Upkeep:
    """Make what the store keeps when a step is done; `full` if there may be more of the same."""
    since = _since_after(upkeep, clocks, step, now)
    if isinstance(step, Drop):
        clocks.now = now
        return Upkeep(since, now, clocks.name)
    if not upkeep.gap_end:
        clocks.now = step.until
    if full:
        return replace(upkeep, since=since, swept_by=clocks.name, gap_end=step.until, gap=step.by)
    return Upkeep(since, step.until, clocks.name)


def _since_after(upkeep: Upkeep, clocks: Clocks, step: Shift | Drop, now: float) -> float:
    """Tell since when the store remembers, by a clock that may have been set since the last sweep.

    Rather too late than too early: what is not known is not run again.
    """
    since = upkeep.since
    if isinstance(step, Shift) and not upkeep.gap_end and clocks.not_remembered(step.by):
        since += step.by
    elif now < upkeep.swept_at:
        since -= upkeep.swept_at - now
    return min(since, now)
