"""How the ledger's one logic waits and works: here for threads, in `waits_asyncio` for a loop.

The logic is a coroutine. For a blocking caller each `Waits` method blocks and returns, so the
coroutine never suspends and `drive` runs it to its end in one go. A caller with better uses for its
threads takes `YieldingWaits`: they block for the store and for the handler, but where the logic
waits for another run they suspend it, and give the caller a `Wait`.
"""

import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeVar

from duet_rpc.ledger.group import Group
from duet_rpc.ledger.inflight import Execution
from duet_rpc.ledger.states import Answer, Claim, Operation
from duet_rpc.ledger.stores.base import NotBegun, Store, StoreTransaction

T = TypeVar("T")


class Waits:
    """What the logic needs from its surroundings; here each method blocks the calling thread."""

    def __init__(self, group: Group):
        self._group = group

    async def submit(self, operation: Operation) -> Answer:
        """Commit an operation through the group."""
        return self._group.submit(operation)

    async def call(self, function: Callable[..., T], *args: Any) -> T:
        """Call something that blocks."""
        return function(*args)

    async def begin(
        self, store: Store, claim: Claim, patience: float
    ) -> StoreTransaction | NotBegun:
        """Open a transaction for a handler."""
        return store.begin(claim, patience)

    async def end(self, ends: Callable[[], Awaitable[T] | T]) -> T:
        """Call a method that ends a transaction."""
        return await do(ends())

    async def join(self, execution: Execution, patience: float) -> bool:
        """Wait for an execution; False if it is not settled in time."""
        return execution.wait(patience)

    async def pause(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)  # noqa: ASYNC251  # no event loop is near: `drive` runs this

    async def run(self, execution: Execution, logic: Coroutine[Any, Any, bytes]) -> bytes:
        """Run the logic of an execution to its end."""
        return await logic


class Wait:
    """What a coroutine on `YieldingWaits` waits for; it goes on when that is there, not before."""

    __slots__ = ("execution", "seconds")

    def __init__(self, seconds: float, execution: Execution | None = None):
        self.seconds: float = seconds
        """How long at most."""
        self.execution: Execution | None = execution
        """Wait until it is settled; nothing is lost if the caller gives that up."""

    def __await__(self) -> Generator["Wait", None, None]:
        yield self


class YieldingWaits(Waits):
    """Blocks the calling thread to work, and gives it back to wait."""

    async def join(self, execution: Execution, patience: float) -> bool:
        if not execution.is_settled:
            await Wait(patience, execution)
        return execution.is_settled

    async def pause(self, seconds: float) -> None:
        await Wait(seconds)


async def do(value: Awaitable[T] | T) -> T:
    """Wait for what an asynchronous driver returns; hand on what a blocking one does."""
    if isinstance(value, Awaitable):
        return await value
    return value
