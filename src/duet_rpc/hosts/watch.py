"""Reads and writes for connections on an event loop while a handler blocks the loop.

An `async def` that computes or blocks keeps its loop, and with it every connection there.
`LoopWatch` is a thread that sleeps until there is traffic, and reads and writes in place of a loop
that does not move: cancellations, and answers to calls of our own, get through, and an answer that
has begun is sent to its end. Nothing is started.

One watch serves all connections of a loop. They share one lock (`LoopHost.lock`), because they
share what they count: the budget of queued bytes.
"""

import os
import select
import threading
import time
from collections.abc import Callable, Sequence

from duet_rpc.engine.log import Log
from duet_rpc.hosts.loop import LoopHost
from duet_rpc.tracebacks import OwnFault


class LoopWatch:
    """The thread that reads and writes while a handler blocks the loop."""

    TICK = 0.05
    """How long the loop may leave its input and output before we see to them in its place."""
    REST = 20
    """Ticks without traffic after which we sleep until something comes."""

    def __init__(
        self, hosts: Callable[[], Sequence[LoopHost]], log: Log, *, idle_events: int = 0
    ) -> None:
        """Watch over these hosts, as they come and go; `begin` starts the thread.

        `idle_events` of their inputs wake us also while nothing runs.
        """
        self._hosts = hosts
        self._idle_events = idle_events
        self._log = log
        self._over = False
        self._resting = True
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._watch, name="duet-rpc watch", daemon=True)

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
        """There is traffic: keep an eye on the loop. Cheap when we are at it already."""
        if self._resting:
            self._resting = False
            self.wake()

    def wake(self) -> None:
        """Make a wait return; any thread may call this."""
        try:
            os.write(self._wake_write, b"\0")
        except BlockingIOError:
            pass  # it is full of reasons to wake already

    def _watch(self) -> None:
        seen, quiet = -1, 0
        while not self._over:
            self._wait(None if self._resting else self.TICK, for_input=False)
            turns = self.turns
            if turns != seen:
                seen, quiet = turns, 0
                continue
            quiet += 1
            if self.has_traffic():
                self.stand_in(seen)
            elif quiet >= self.REST:
                self._rest(seen)

    def _rest(self, seen: int) -> None:
        """Sleep until there is traffic; where something still runs, what we may do is, too."""
        self._resting = True
        # The loop looks at `_resting` after it counts its turn; so either it sees that we rest, or
        # we see that it has moved.
        if self.turns == seen and not all(
            host.connection.idle and not host.outbox.size for host in self._hosts()
        ):
            self._wait(None, for_input=True)
            self._resting = False
        elif self.turns != seen:
            self._resting = False

    @property
    def turns(self) -> int:
        """What changes whenever the loop reads, or sends what was kept."""
        return sum(host.turns for host in self._hosts())

    def _wait(self, timeout: float | None, *, for_input: bool) -> None:
        """Wait to be woken and, if asked for, for input and for room to write."""
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        wanted = select.POLLIN if for_input else self._idle_events
        for fd, events in self._awaited(wanted, for_input).items():
            poll.register(fd, events)
        for fd, _ in poll.poll(None if timeout is None else timeout * 1000):
            if fd == self._wake_read:
                os.read(fd, 4096)
            else:
                self._resting = False  # the loop has a tick to see it too
                time.sleep(self.TICK)
                break

    def _awaited(self, events: int, for_room: bool) -> dict[int, int]:
        """Say what to wait for on the descriptors; the two of a socket are one."""
        wanted: dict[int, int] = {}
        for host in self._hosts() if events or for_room else ():
            channel = host.channel
            if events and not (host.input_ended or host.closed):
                wanted[channel.read_fd] = events
            if for_room and host.outbox.size and not host.closed:
                wanted[channel.write_fd] = wanted.get(channel.write_fd, 0) | select.POLLOUT
        return wanted

    def has_traffic(self, seconds: float = 0) -> bool:
        """Whether in time something comes or can go that the loop would see to if it could."""
        poll = select.poll()
        wanted: dict[int, int] = self._awaited(0, for_room=True)
        for host in self._hosts():
            if self._wants_input(host):
                fd = host.channel.read_fd
                wanted[fd] = wanted.get(fd, 0) | select.POLLIN
        for fd, events in wanted.items():
            poll.register(fd, events)
        return bool(wanted) and bool(poll.poll(seconds * 1000))

    def _wants_input(self, host: LoopHost) -> bool:
        if host.connection.full:  # which must not stop the reading for good
            host.check_for_loop()
        return host.reads and host.awaits_input

    def stand_in(self, seen: int) -> None:
        """Read what is there and send what was kept, as long as the loop does not."""
        try:
            while self.turns == seen and self.has_traffic(self.TICK):
                for host in self._hosts():
                    host.read_for_loop()
                    host.write_for_loop()
                if self._over:
                    return
        except RuntimeError:
            pass  # the loop has ended meanwhile
        except Exception as error:  # ours; the next turn has to come all the same
            self._log.failure("reading or writing failed", OwnFault(error))
            time.sleep(self.TICK)
