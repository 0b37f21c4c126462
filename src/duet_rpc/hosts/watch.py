"""Watchdogs: threads that read and write in place of a reader that a handler keeps.

A `def` of a sequential daemon keeps the thread that reads (`StandIn`). An `async def` that computes
or blocks keeps its loop, and with it every connection there (`LoopWatch`). A watchdog sleeps until
there is traffic, and then looks at every tick whether the reader moves. If it does not, the
watchdog does its work: cancellations, and answers to calls of our own, get through, and an answer
that has begun is sent to its end. Nothing is started.

One watch serves all connections of a loop. They share one lock (`LoopHost.lock`), because they
share what they count: the budget of queued bytes.
"""

import os
import select
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from duet_rpc.engine.log import Log
from duet_rpc.tracebacks import OwnFault

if TYPE_CHECKING:
    from duet_rpc.hosts.loop import LoopHost
    from duet_rpc.hosts.threads import ThreadHost

KEPT, KEPT_UNREAD = 0.3, 0.6
"""Seconds that one inline handler may keep the loop after the end of the input: when all was read,
and when something was not."""
_NOTHING: Mapping[int, int] = {}


class Watchdog:
    """The thread that sees whether a reader moves."""

    TICK = 0.05
    """How long a handler may keep the reader before we read in its place."""
    REST = 20
    """Ticks without traffic after which we sleep until there is some."""

    def __init__(self, name: str) -> None:
        self.resting: bool = True
        """The reader has to call us when there is traffic."""
        self._over = False
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._watch, name=name, daemon=True)

    def begin(self) -> None:
        """Start to watch."""
        self._thread.start()

    def close(self) -> None:
        """Watch no more; waits until the thread has ended."""
        self._over = True
        self.wake()
        if self._thread.ident is not None:
            self._thread.join()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def call(self) -> None:
        """There is traffic: keep an eye on the reader. Cheap when we are at it already."""
        if self.resting:
            self.resting = False
            self.wake()

    def wake(self) -> None:
        """Make a wait return; any thread may call this."""
        try:
            os.write(self._wake_write, b"\0")
        except BlockingIOError:
            pass  # it is full of reasons to wake already

    # What there is to watch over.

    @property
    def moves(self) -> tuple[int, ...]:
        """What changes whenever the reader reads, or does anything that it has read of."""
        raise NotImplementedError

    def stand_in(self, seen: tuple[int, ...]) -> bool:
        """Read in place of a reader that does not move; False if there is nothing to do."""
        raise NotImplementedError

    @property
    def is_needed(self) -> bool:
        """Something runs or waits, so that a reader may be kept without being called."""
        return False

    def awaited(self, for_work: bool) -> Mapping[int, int]:
        """Say which events of which descriptors end a wait: all those we could do something for."""
        return _NOTHING

    def _watch(self) -> None:
        try:
            self._watch_moves()
        except OSError:
            pass  # a handler has closed the pipe: the reader cannot go on either, and logs that

    def _watch_moves(self) -> None:
        seen: tuple[int, ...] = ()
        still = 0
        while not self._over:
            self._wait(None if self.resting else self.TICK, self.awaited(for_work=False))
            moves = self.moves
            if moves != seen:
                seen, still = moves, 0
            elif not self.stand_in(seen):
                still += 1
                if still >= self.REST:
                    self._rest(seen)

    def _rest(self, seen: tuple[int, ...]) -> None:
        """Sleep until there is traffic; where something still runs, what we may do is, too."""
        self.resting = True
        # The reader looks at `resting` after it counts its turn; so either it sees that we rest, or
        # we see that it has moved.
        if self.moves != seen:
            self.resting = False
        elif self.is_needed:
            self._wait(None, self.awaited(for_work=True))
            self.resting = False

    def _wait(self, timeout: float | None, awaited: Mapping[int, int]) -> None:
        """Wait to be woken, or for one of these events."""
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        for fd, events in awaited.items():
            poll.register(fd, events)
        for fd, _ in poll.poll(None if timeout is None else timeout * 1000):
            if fd == self._wake_read:
                os.read(fd, 4096)
            else:
                self.resting = False  # the reader has a tick to see it too
                time.sleep(self.TICK)
                break


class StandIn(Watchdog):
    """Reads while the thread that reads is kept in a handler."""

    def __init__(self, host: "ThreadHost", *, until: Callable[[], bool]) -> None:
        """Watch over a host; without rest from when `until` says so."""
        super().__init__("duet-rpc stand-in")
        self._host = host
        self._never_rests = until
        self._wanted_back = False
        self._put_down = threading.Semaphore(0)
        host.stand_in = self
        self.begin()

    @property
    def moves(self) -> tuple[int, ...]:
        """What changes with every read, and with every message that is dealt with."""
        return self._host.turns, *self._host.connection.moves

    def stand_in(self, seen: tuple[int, ...]) -> bool:
        """Take the connection while a handler runs, and read until it is wanted back."""
        host, connection = self._host, self._host.connection
        if not connection.handover.take_over():
            return self._never_rests()
        connection.go_on()
        while not self._wanted_back:
            try:
                host.turn(self.TICK)
            except Exception as error:  # ours, and the reading thread waits for us to step down
                connection.dispatcher.log.failure(
                    "reading failed",
                    OwnFault(error),
                    connection_id=connection.requests.origin.connection_id,
                )
                time.sleep(self.TICK)
        connection.handover.take_back()
        self._wanted_back = False
        self._put_down.release()
        return True

    def step_down(self) -> None:
        """Give the connection back to the reading thread, which calls this."""
        self._wanted_back = True
        self._host.wake()
        self._put_down.acquire()


class LoopWatch(Watchdog):
    """Reads and writes while a handler blocks the loop."""

    def __init__(
        self, hosts: "Callable[[], Sequence[LoopHost]]", log: Log, *, idle_events: int = 0
    ) -> None:
        """Watch over these hosts, as they come and go; `begin` starts the thread.

        `idle_events` of their inputs wake us also while nothing runs.
        """
        super().__init__("duet-rpc watch")
        self._hosts = hosts
        self._idle_events = idle_events
        self._log = log
        self._kept_at: tuple[int, int] | None = None
        self._kept_since = 0.0

    @property
    def moves(self) -> tuple[int, ...]:
        """What changes whenever the loop reads, or sends what was kept."""
        return (sum(host.turns for host in self._hosts()),)

    @property
    def is_needed(self) -> bool:
        """A handler runs, or something is to be sent."""
        return not all(host.connection.idle and not host.outbox.size for host in self._hosts())

    def awaited(self, for_work: bool) -> Mapping[int, int]:
        """Say what to wait for; the two descriptors of a socket are one."""
        events = select.POLLIN if for_work else self._idle_events
        wanted: dict[int, int] = {}
        for host in self._hosts() if events else ():
            if not (host.input_ended or host.closed):
                wanted[host.descriptors.read_fd] = events
        return self._with_room(wanted) if for_work else wanted

    def _with_room(self, wanted: dict[int, int]) -> dict[int, int]:
        for host in self._hosts():
            if host.outbox.size and not host.closed:
                fd = host.descriptors.write_fd
                wanted[fd] = wanted.get(fd, 0) | select.POLLOUT
        return wanted

    def stand_in(self, seen: tuple[int, ...]) -> bool:
        """Read what is there and send what was kept, as long as the loop does not."""
        if not self._has_traffic(0):
            return False
        try:
            while self.moves == seen and not self._over and self._has_traffic(self.TICK):
                for host in self._hosts():
                    if not host.read_for_loop():
                        self._look_for_end(host)
                    host.write_for_loop()
        except RuntimeError:
            pass  # the loop has ended meanwhile
        except Exception as error:  # ours; the next turn has to come all the same
            self._log.failure("reading or writing failed", OwnFault(error))
            time.sleep(self.TICK)
        return True

    def _look_for_end(self, host: "LoopHost") -> None:
        """Report the end of an input that no one can read, for an inline `def` keeps the host.

        Not at once, and later if something is left to read: it would not be answered any more.
        """
        channel, moves, now = host.descriptors, host.connection.moves, time.monotonic()
        if moves != self._kept_at or not channel.is_hung_up:
            self._kept_at, self._kept_since = moves, now
        elif now - self._kept_since >= (KEPT if channel.has_ended else KEPT_UNREAD):
            host.on_input_end()

    def _has_traffic(self, seconds: float) -> bool:
        """Whether in time something comes or can go that the loop would see to if it could."""
        wanted: dict[int, int] = {}
        for host in self._hosts():
            if host.connection.requests.full:  # which must not stop the reading for good
                host.check_for_loop()
            if host.reads and host.awaits_input:
                wanted[host.descriptors.read_fd] = select.POLLIN
        poll = select.poll()
        for fd, events in self._with_room(wanted).items():
            poll.register(fd, events)
        return bool(wanted) and bool(poll.poll(seconds * 1000))
