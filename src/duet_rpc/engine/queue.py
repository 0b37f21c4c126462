"""What waits its turn on a connection: requests, and answers in their place.

The queue has limits of its own, and may share a budget with the queues of other connections of the
same process. It only counts; what a full queue means is the connection's business.
"""

from collections import deque
from typing import TypeAlias

from duet_rpc.engine.batch import Place
from duet_rpc.engine.dispatch import Job
from duet_rpc.wire.messages import NULL, Notification, Request


def cost(size: int) -> int:
    """Say what a body of so many bytes costs in the queue.

    It holds more than its own bytes: the allocator's share, and the read and the frame that the
    next one is being made of.
    """
    return size + size // 4


class Waiting:
    """A request that is decoded when it starts, or an answer that has its place in the order."""

    __slots__ = ("answer", "message", "place", "read_at", "size")

    def __init__(
        self, message: Request | Notification | None, size: int, place: Place, answer: bytes = b""
    ) -> None:
        self.message: Request | Notification | None = message
        self.size: int = cost(size)
        self.place: Place = place
        self.answer: bytes = answer
        self.read_at: float | None = None
        """When it was read, if that will be asked for: of retries, which tell their age."""

    @property
    def id(self) -> bytes | None:
        """The raw id of a request."""
        return self.message.id if type(self.message) is Request else None

    @property
    def name(self) -> str:
        """The name of the method that is asked for."""
        return "" if self.message is None else self.message.method


Queued: TypeAlias = Waiting | Job
"""What is in the queue; a plain request is a job already."""


class Budget:
    """Bytes of queued requests that the connections of one process may hold together."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit: int = limit
        self.used: int = 0


class RequestQueue:
    """Requests that wait for room, oldest first."""

    def __init__(self, max_requests: int, max_bytes: int, budget: Budget | None = None) -> None:
        self.budget = budget
        """Shared with other connections of a server that has several."""
        self._max_waiting = max_requests
        """How many may wait for a slot; fewer while others are held."""
        self._max_bytes = max_bytes
        self.waiting: deque[Queued] = deque()
        """To be looked at; changed only by the methods below."""
        self.held: deque[Queued] = deque()
        """Commands that wait for the command before them, and not yet for a slot."""
        self._bytes = 0

    @property
    def full(self) -> bool:
        """This connection has as much waiting as it may."""
        return len(self.waiting) >= self._max_waiting or self._bytes >= self._max_bytes

    def append(self, waiting: Queued) -> None:
        """Let something wait behind all others."""
        self.waiting.append(waiting)
        self._count(waiting.size)

    def hold(self, waiting: Queued) -> None:
        """Keep something that was taken out apart, until it is let in."""
        self.held.append(waiting)
        self._max_waiting -= 1
        self._count(waiting.size)

    def let_in(self, waiting: Queued) -> None:
        """Let something that was held wait ahead of all others."""
        self.held.remove(waiting)
        self._max_waiting += 1
        self.waiting.appendleft(waiting)

    def let_in_all(self) -> None:
        """Hold nothing any more."""
        while self.held:
            self.let_in(self.held[-1])

    def set_aside(self) -> list[Queued]:
        """Take out everything, to be appended again."""
        self.let_in_all()
        waiting = list(self.waiting)
        self.clear()
        return waiting

    def popleft(self) -> Queued:
        """Take out what has waited longest."""
        waiting = self.waiting.popleft()
        self._count(-waiting.size)
        return waiting

    def remove(self, waiting: Queued) -> None:
        """Take out something that need not wait any longer."""
        if waiting in self.held:
            self.let_in(waiting)
        self.waiting.remove(waiting)
        self._count(-waiting.size)

    def clear(self) -> None:
        """Take out everything."""
        self.let_in_all()
        self.waiting.clear()
        self._count(-self._bytes)

    def find(self, id: bytes) -> Queued | None:
        """Find the first request with this id; null is no one's."""
        for waiting in (*self.held, *self.waiting):
            if waiting.id == id != NULL:
                return waiting
        return None

    def _count(self, size: int) -> None:
        self._bytes += size
        if self.budget is not None:
            self.budget.used += size
