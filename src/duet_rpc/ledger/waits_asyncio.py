"""The ledger's waits on an event loop: what blocks goes to threads, the handler stays on the loop.

An execution is a task of its own: the caller's cancellation or deadline ends the caller's waiting,
not a command that has begun. Only a transactional command is cancelled with its caller, for it
leaves nothing behind. Before the handler has begun, an abandoned execution gives its claim back.

A store in memory, which no one waits for, is asked on the loop itself.

Groups are led by a thread of their own, for a pool's future would cost more than the way there.
The rest has two pools of threads, because those that begin transactions may wait for one that
needs a thread to end.
"""

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from duet_rpc.ledger.group import Group, Ticket, unwrap
from duet_rpc.ledger.inflight import Execution
from duet_rpc.ledger.states import Answer, Claim, Operation, Promise
from duet_rpc.ledger.stores.base import AsyncBeginner, NotBegun, Store, StoreTransaction
from duet_rpc.ledger.waits import Waits

T = TypeVar("T")


class LoopTicket(Ticket):
    """The ticket of a coroutine; the leader's thread leads for it."""

    __slots__ = ("_settled", "future")

    def __init__(
        self, operation: Operation, settled: "SettledTickets", future: "asyncio.Future[None]"
    ):
        super().__init__(operation)
        self._settled = settled
        self.future: asyncio.Future[None] = future

    def wake(self) -> None:
        self._settled.put(self)

    def promote(self, group: Group) -> None:
        self._settled.leader.lead(self)

    def settle(self) -> None:
        """Let the coroutine go on; called on the loop."""
        if not self.future.done():
            self.future.set_result(None)


class Leader:
    """The thread that leads a group for coroutines. It starts with the first of them."""

    def __init__(self, group: Group):
        self._group = group
        self._lock = threading.Lock()
        self._hired: SimpleQueue[LoopTicket | None] = SimpleQueue()
        self._has_thread = False

    def lead(self, ticket: LoopTicket) -> None:
        """Have the group led with a ticket; returns at once."""
        with self._lock:
            # Also when the ledger has been closed under commands that still run: outcomes count.
            if not self._has_thread:
                threading.Thread(target=self._run, name="duet-commit", daemon=True).start()
                self._has_thread = True
            self._hired.put(ticket)

    def close(self) -> None:
        """Let the thread go when it has nothing left to do. Idempotent."""
        with self._lock:
            if self._has_thread:
                self._hired.put(None)
                self._has_thread = False

    def _run(self) -> None:
        while (ticket := self._hired.get()) is not None:
            self._group.lead(ticket)
            ticket.wake()


class SettledTickets:
    """The settled tickets of one event loop: a group wakes the loop once, not once for each."""

    def __init__(self, leader: Leader):
        self.leader = leader
        self._lock = threading.Lock()
        self._tickets: list[LoopTicket] = []

    def put(self, ticket: LoopTicket) -> None:
        """Have a ticket settled on the loop."""
        with self._lock:
            self._tickets.append(ticket)
            if len(self._tickets) > 1:
                return
        # A loop that has been closed has no one left who waits.
        with contextlib.suppress(RuntimeError):
            ticket.future.get_loop().call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        with self._lock:
            tickets, self._tickets = self._tickets, []
        for ticket in tickets:
            ticket.settle()


class AsyncioWaits(Waits):
    """Gives the loop back to wait. One object serves all event loops that use the ledger."""

    def __init__(self, group: Group, *, store_waits: bool):
        super().__init__(group)
        self._store_waits = store_waits
        self._leader = Leader(group)
        self._beginners = ThreadPoolExecutor(16, thread_name_prefix="duet-begin")
        self._finishers = ThreadPoolExecutor(4, thread_name_prefix="duet-finish")
        self._settled: WeakKeyDictionary[asyncio.AbstractEventLoop, SettledTickets] = (
            WeakKeyDictionary()
        )
        self._tasks: set[asyncio.Task[bytes]] = set()

    async def submit(self, operation: Operation) -> Answer:
        if not self._store_waits:
            return self._group.submit_alone(operation)
        loop = asyncio.get_running_loop()
        settled = self._settled.get(loop)
        if settled is None:
            settled = self._settled[loop] = SettledTickets(self._leader)
        ticket = LoopTicket(operation, settled, loop.create_future())
        if self._group.enter(ticket):
            self._leader.lead(ticket)
        await ticket.future
        return unwrap(ticket.answer)

    async def call(self, function: Callable[..., T], *args: Any) -> T:
        if not self._store_waits:
            return function(*args)
        return await asyncio.get_running_loop().run_in_executor(self._beginners, function, *args)

    async def begin(
        self, store: Store, claim: Claim, patience: float
    ) -> StoreTransaction | NotBegun:
        if isinstance(store, AsyncBeginner):
            return await store.begin_async(claim, patience)
        begun = self._beginners.submit(store.begin, claim, patience)
        try:
            return await asyncio.shield(asyncio.wrap_future(begun))
        except asyncio.CancelledError:
            begun.add_done_callback(_undo)
            raise

    async def end(self, ends: Callable[[], Awaitable[T] | T]) -> T:
        if inspect.iscoroutinefunction(getattr(ends, "func", ends)):
            ended: T = await ends()  # type: ignore[misc]
            return ended
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._finishers, ends)  # type: ignore[arg-type]

    async def join(self, execution: Execution, patience: float) -> bool:
        loop = asyncio.get_running_loop()
        settled = asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(settled.set)

        if not execution.call_when_settled(wake):
            return True
        try:
            async with asyncio.timeout(patience):
                await settled.wait()
            return True
        except TimeoutError:
            return execution.is_settled
        finally:
            execution.forget(wake)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def run(self, execution: Execution, logic: Coroutine[Any, Any, bytes]) -> bytes:
        loop = asyncio.get_running_loop()
        task = loop.create_task(logic)
        # Of its own, so that a caller who cancels the waiting does not cancel the task: what
        # `asyncio.shield` does with more steps.
        settled: asyncio.Future[bytes] = loop.create_future()
        self._tasks.add(task)
        task.add_done_callback(partial(self._settle, execution, settled))
        try:
            return await settled
        except asyncio.CancelledError:
            execution.is_abandoned = True
            can_undo = execution.has_begun and not execution.is_ending
            if can_undo and execution.command.promise is Promise.TRANSACTIONAL:
                task.cancel()
                await asyncio.wait([task])
            raise

    def _settle(
        self, execution: Execution, settled: "asyncio.Future[bytes]", task: "asyncio.Task[bytes]"
    ) -> None:
        self._tasks.discard(task)
        # A task that is cancelled before its first step never ran a line, not even a `finally`.
        if not execution.is_settled:
            execution.settle(None)
        # The exception is seen here, in case the caller is gone.
        error = None if task.cancelled() else task.exception()
        if settled.done():
            return
        if task.cancelled():
            settled.cancel()
        elif error is not None:
            settled.set_exception(error)
        else:
            settled.set_result(task.result())

    def close(self) -> None:
        """Let the threads go. Idempotent."""
        self._leader.close()
        self._beginners.shutdown(wait=False)
        self._finishers.shutdown(wait=False)


def _undo(begun: "Future[StoreTransaction | NotBegun]") -> None:
    """Roll back a transaction that was opened for a caller that is gone."""
    if not begun.cancelled() and begun.exception() is None:
        transaction = begun.result()
        if not isinstance(transaction, NotBegun):
            transaction.rollback()
