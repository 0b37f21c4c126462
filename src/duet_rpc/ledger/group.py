"""Group commit: operations that arrive while a commit runs are committed together in the next one.

Leader style. A thread that finds no one committing leads: it commits its own operation at once,
with no thread in between, so that a command alone costs its commits and little more. What comes
meanwhile queues, and when the commit is done the first in the queue leads the next group. The
group is as large as the traffic makes it; no one waits for it to fill.
"""

import threading
from collections.abc import Callable, Sequence
from copy import copy

from duet_rpc.errors import RpcError, StoreUnavailable
from duet_rpc.ledger.states import Answer, Operation

Commit = Callable[[Sequence[Operation]], list[Answer | Exception]]

MAX_GROUP = 256
"""Bounds how long one transaction keeps others out; far above what a process has in flight."""


class Ticket:
    """One operation on its way through the group."""

    __slots__ = ("answer", "operation")

    def __init__(self, operation: Operation):
        self.operation: Operation = operation
        self.answer: Answer | Exception | None = None

    def wake(self) -> None:
        """Tell the one who waits that the answer is there."""
        raise NotImplementedError

    def promote(self, group: "Group") -> None:
        """See to it that `group.lead(self)` is called, and soon, on a thread that may block."""
        raise NotImplementedError


class ThreadTicket(Ticket):
    """The ticket of a thread that waits for its own answer, and leads itself."""

    __slots__ = ("_lock",)

    def __init__(self, operation: Operation):
        super().__init__(operation)
        self._lock = threading.Lock()
        self._lock.acquire()

    def wait(self) -> None:
        """Wait for the answer, or for the turn to lead."""
        self._lock.acquire()

    def wake(self) -> None:
        self._lock.release()

    def promote(self, group: "Group") -> None:
        self._lock.release()


class Group:
    """The queue in front of a store's `commit`. Safe to use from any thread."""

    def __init__(self, commit: Commit):
        self._commit = commit
        self._lock = threading.Lock()
        self._queue: list[Ticket] = []
        self._led = False

    def submit(self, operation: Operation) -> Answer:
        """Commit an operation, alone or with others, and return its answer or raise its failure."""
        ticket = ThreadTicket(operation)
        if not self.enter(ticket):
            ticket.wait()
        if ticket.answer is None:
            self.lead(ticket)
        return unwrap(ticket.answer)

    def submit_alone(self, operation: Operation) -> Answer:
        """Commit an operation to a store that does not wait, where a group would spare nothing."""
        (answer,) = self._commit([operation])
        return unwrap(answer)

    def enter(self, ticket: Ticket) -> bool:
        """Queue a ticket. True: there is no leader, so the caller must call `lead`."""
        with self._lock:
            if self._led:
                self._queue.append(ticket)
                return False
            self._led = True
            return True

    def lead(self, ticket: Ticket) -> None:
        """Commit the ticket's operation and all that queue, answer them, appoint a successor."""
        with self._lock:
            followers = self._queue[: MAX_GROUP - 1]
            del self._queue[: MAX_GROUP - 1]
        tickets = [ticket, *followers]
        try:
            answers = self._commit([each.operation for each in tickets])
            assert len(answers) == len(tickets), "a store answers every operation"
        except Exception as error:
            answers = [error] * len(tickets)
        except BaseException:
            # The leading thread was interrupted; the others know no more than that.
            self._settle(tickets, [StoreUnavailable()] * len(tickets))
            raise
        self._settle(tickets, answers)

    def _settle(self, tickets: list[Ticket], answers: list[Answer | Exception]) -> None:
        for ticket, answer in zip(tickets, answers, strict=True):
            ticket.answer = answer
        # The successor starts first: its commit then runs while the others are being woken.
        with self._lock:
            successor = self._queue.pop(0) if self._queue else None
            self._led = successor is not None
        if successor is not None:
            successor.promote(self)
        for ticket in tickets[1:]:
            ticket.wake()


def unwrap(answer: Answer | Exception | None) -> Answer:
    """Give the answer of a settled ticket, or raise the failure that it is."""
    assert answer is not None, "a ticket is woken after it is answered"
    if isinstance(answer, RpcError):
        # A group shares one failure; each of its callers raises an exception of its own.
        raise copy(answer) from answer
    if isinstance(answer, Exception):
        raise answer
    return answer
