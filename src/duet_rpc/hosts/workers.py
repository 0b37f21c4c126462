"""Threads for handlers that block; each is started when it is needed, and ends when it is not.

All connections of a server share them, fairly. Each has a lane:

- At most `MAX` threads compute. What comes then waits in its connection's lane, and lanes have
  their turn one after the other.
- A connection none of whose handlers computes has a thread at once, also beyond `MAX`: the slow
  handlers of one peer do not delay another's. So one for each connection may be added.
- A thread that waits for its peer is not counted. The peer may need others to be able to answer.
- No more than `MAX_THREADS` are there in all. Beyond that, and where the system has no thread left,
  what has not begun is refused.

`threading` is all that is needed here, so nothing has to be imported when a request is there.
"""

import contextlib
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeAlias

Refused: TypeAlias = Callable[[Exception], object]
"""Called with the reason why something that waited in a lane will not be run; on any thread."""


class NoThread(Exception):
    """There is no thread for a handler, now."""


class Workers:
    """The threads of one server, or of one client that serves."""

    MAX = 256
    MAX_THREADS = 2048
    IDLE = 10.0
    """Seconds after which a thread that has nothing to do ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._turns: deque[Lane] = deque()
        """The lanes in which something waits, the next one first."""
        self._computing = 0
        self._threads = 0
        self._closed = False

    def lane(self) -> "Lane":
        """Make the lane of a connection."""
        return Lane(self)

    def close(self) -> None:
        """Take no more work; what waits is dropped, what runs is not waited for. Idempotent."""
        with self._lock:
            self._closed = True
            for lane in self._turns:
                lane._waiting.clear()
            self._turns.clear()
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.wake.release()

    # All of the following need the lock.

    def _next(self, freed: "Lane") -> "tuple[Lane, _Work] | None":
        """Take out what may run now that a handler of this lane does not compute any more."""
        if freed._waiting and not freed._computing:
            return freed, freed._waiting.popleft()
        while self._turns and self._computing < self.MAX:
            lane = self._turns.popleft()
            lane._has_turn = False
            if lane._waiting:
                work = lane._waiting.popleft()
                self._line_up(lane)
                return lane, work
        return None

    def _line_up(self, lane: "Lane") -> None:
        if lane._waiting and not lane._has_turn:
            lane._has_turn = True
            self._turns.append(lane)

    def _employ(self, lane: "Lane", work: "_Work") -> None:
        """Give work to a thread that is idle, or to a new one."""
        if self._idle:
            worker = self._idle.pop()
            worker.lane, worker.work = lane, work
            worker.wake.release()
        else:
            if self._threads >= self.MAX_THREADS:
                raise NoThread(f"{self.MAX_THREADS} threads are there already")
            try:
                _Worker(self, lane, work).start()
            except (RuntimeError, MemoryError) as error:
                raise NoThread(str(error)) from error
            self._threads += 1
        self._count(lane, 1)

    def _count(self, lane: "Lane", change: int) -> None:
        lane._computing += change
        self._computing += change


class Lane:
    """The work of one connection."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._waiting: deque[_Work] = deque()
        self._computing = 0
        self._has_turn = False

    def run(self, work: Callable[[], object], refused: Refused) -> None:
        """Run something on a thread, now or in its turn; raise `NoThread` if there is none.

        If there is none later, when its turn has come, `refused` is called instead.
        """
        workers = self._workers
        with workers._lock:
            if workers._closed:
                raise NoThread("no more work is taken")
            if self._computing and workers._computing >= workers.MAX:
                self._waiting.append((work, refused))
                workers._line_up(self)
            else:
                workers._employ(self, (work, refused))


_Work: TypeAlias = tuple[Callable[[], object], Refused]
_here = threading.local()


class _Worker(threading.Thread):
    """One thread: works, then waits for more. Its time counts while it computes."""

    def __init__(self, workers: Workers, lane: Lane, work: _Work) -> None:
        super().__init__(name="duet-rpc handler", daemon=True)
        self.lane: Lane | None = lane
        self.work: _Work | None = work
        self.wake = threading.Lock()
        self.wake.acquire()
        self._workers = workers

    def run(self) -> None:
        """Work until there is nothing more to do."""
        _here.worker = self
        while self._has_work():
            assert self.work is not None, "the thread that wakes us has given us some"
            work, self.work = self.work[0], None
            try:
                work()
            except BaseException:  # of ours; a handler's failure is its answer
                threading.excepthook(threading.ExceptHookArgs([*sys.exc_info(), self]))
            del work  # what a handler worked on does not stay until the next
            self._look_for_more()

    def _look_for_more(self) -> None:
        workers, lane = self._workers, self.lane
        assert lane is not None, "it has worked for one"
        with workers._lock:
            workers._count(lane, -1)
            found = workers._next(lane)
            if found is not None:
                self.lane, self.work = found
                workers._count(self.lane, 1)
            else:
                self.lane = None
                if not workers._closed:
                    workers._idle.append(self)

    def _has_work(self) -> bool:
        """Wait for work; False if there will be none."""
        workers = self._workers
        while self.work is None:
            if not workers._closed and self.wake.acquire(timeout=workers.IDLE):
                continue
            with workers._lock:
                if self in workers._idle:
                    workers._idle.remove(self)
                if self.work is None:
                    workers._threads -= 1
                    return False
            self.wake.acquire()  # the work came at the same moment
        return True

    def step_out(self) -> None:
        """Let others compute: this one waits."""
        workers, lane = self._workers, self.lane
        assert lane is not None, "it works for one"
        refused: list[tuple[Refused, NoThread]] = []
        with workers._lock:
            workers._count(lane, -1)
            while (found := workers._next(lane)) is not None:
                try:
                    workers._employ(*found)
                except NoThread as error:
                    if found[0]._computing:  # and comes to it
                        found[0]._waiting.appendleft(found[1])
                        workers._line_up(found[0])
                        break
                    refused.append((found[1][1], error))
        for refuse, why in refused:
            refuse(why)

    def step_in(self) -> None:
        """Go on, at once: who has begun does not wait in a lane."""
        lane = self.lane
        assert lane is not None, "it works for one"
        with self._workers._lock:
            self._workers._count(lane, 1)


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Wait for a peer, on whatever thread; a worker's is not counted meanwhile."""
    worker: _Worker | None = getattr(_here, "worker", None)
    if worker is None:
        yield
        return
    worker.step_out()
    try:
        yield
    finally:
        worker.step_in()
