"""How the ledger's one logic waits and works: here for threads, in `aio` for an event loop.

The logic is a coroutine. For a blocking caller each of its steps blocks and returns, so the
coroutine never suspends and `drive` runs it to its end in one go. A caller with better uses for its
threads takes `YieldingSteps`: they block for the store and for the handler, but where the logic
waits for another run they suspend it, and give the caller a `Wait`.
"""

import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Protocol, TypeVar

from duet_rpc.ledger.group import Group
from duet_rpc.ledger.inflight import Flight
from duet_rpc.ledger.running import Ran, Run
from duet_rpc.ledger.states import Answer, Claim, Operation
from duet_rpc.ledger.stores.base import AsyncTransaction, NotBegun, Store, Transaction

T = TypeVar("T")
Work = Callable[[Run], Any]
Ends = Callable[[], Any]


class Steps(Protocol):
    """What the logic needs from its surroundings."""

    async def submit(self, operation: Operation) -> Answer:
        """Commit an operation through the group."""

    async def call(self, function: Callable[..., T], *args: Any) -> T:
        """Call something that blocks."""

    async def begin(
        self, store: Store, claim: Claim, patience: float
    ) -> Transaction | AsyncTransaction | NotBegun:
        """Open a transaction for a handler."""

    async def end(self, ends: Callable[[], T | Awaitable[T]]) -> T:
        """Call a method that ends a transaction."""

    async def join(self, flight: Flight, patience: float) -> bool:
        """Wait for a flight; False if it has not landed in time."""

    async def pause(self, seconds: float) -> None:
        """Wait."""

    async def work(self, work: Work, run: Run) -> Ran:
        """Call the handler."""

    async def fly(self, flight: Flight, logic: Coroutine[Any, Any, bytes]) -> bytes:
        """Run the logic of a flight to its end."""


class BlockingSteps:
    """Steps that block the calling thread."""

    def __init__(self, group: Group):
        self._group = group

    async def submit(self, operation: Operation) -> Answer:
        """See `Steps.submit`."""
        return self._group.submit(operation)

    async def call(self, function: Callable[..., T], *args: Any) -> T:
        """See `Steps.call`."""
        return function(*args)

    async def begin(
        self, store: Store, claim: Claim, patience: float
    ) -> Transaction | AsyncTransaction | NotBegun:
        """See `Steps.begin`."""
        return store.begin(claim, patience)

    async def end(self, ends: Callable[[], T | Awaitable[T]]) -> T:
        """See `Steps.end`."""
        return ends()  # type: ignore[return-value]  # a transaction begun here is a blocking one

    async def join(self, flight: Flight, patience: float) -> bool:
        """See `Steps.join`."""
        return flight.wait(patience)

    async def pause(self, seconds: float) -> None:
        """See `Steps.pause`."""
        time.sleep(seconds)  # noqa: ASYNC251  # no event loop is near: `drive` runs this

    async def work(self, work: Work, run: Run) -> Ran:
        """See `Steps.work`."""
        ran: Ran = work(run)
        return ran

    async def fly(self, flight: Flight, logic: Coroutine[Any, Any, bytes]) -> bytes:
        """See `Steps.fly`."""
        return await logic


class Wait:
    """What a coroutine on `YieldingSteps` waits for; it goes on when that is there, not before."""

    __slots__ = ("flight", "seconds")

    def __init__(self, seconds: float, flight: Flight | None = None):
        self.seconds = seconds
        """How long at most."""
        self.flight = flight
        """Wait until it has landed; nothing is lost if the caller gives that up."""

    def __await__(self) -> Generator["Wait", None, None]:
        yield self


class YieldingSteps(BlockingSteps):
    """Steps that block the calling thread to work, and give it back to wait."""

    async def join(self, flight: Flight, patience: float) -> bool:
        """See `Steps.join`."""
        if not flight.has_landed:
            await Wait(patience, flight)
        return flight.has_landed

    async def pause(self, seconds: float) -> None:
        """See `Steps.pause`."""
        await Wait(seconds)


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine whose steps block, in the calling thread."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    raise AssertionError("a blocking step suspended")
