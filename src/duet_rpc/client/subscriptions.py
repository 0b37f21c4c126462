"""Subscriptions of the asyncio client: `async with client.subscribe("prices", ...) as prices`.

They are read as streams are. What differs: the call is answered before the first item, and after a
loss the subscription goes on on the next connection, if the client reconnects and the method can.
"""

from typing import TYPE_CHECKING, TypeVar

from duet_rpc.client.streams import Stream
from duet_rpc.client.subscription_call import SubscriptionCall

if TYPE_CHECKING:
    from duet_rpc.client.client import Client

T = TypeVar("T")


class Subscription(Stream[T]):
    """The items of a subscription, for one task.

    `async with` waits until the server has answered, and unsubscribes when the block is left.
    Without it, that happens as soon as nothing refers to the subscription.
    """

    _call: SubscriptionCall

    def __init__(self, client: "Client", call: SubscriptionCall) -> None:
        super().__init__(client, call)

    async def __aenter__(self) -> "Subscription[T]":
        await self._begin()
        return self

    def __aiter__(self) -> "Subscription[T]":
        return self

    @property
    def seq(self) -> int:
        """The number of the item that was given last; 0 before the first."""
        return self._call.inflow.seq

    @property
    def missed(self) -> int:
        """How many items the server has dropped so far, because they were not taken in time."""
        return self._call.inflow.missed

    async def _begin(self) -> None:
        if self._calls is None:
            await super()._begin()
            inflow = self._call.inflow
            try:
                while not inflow.has_news:
                    await self._wait()
            except BaseException:
                self.close()
                raise
            inflow.awaits_answer = False
            if inflow.name is None and inflow.error is not None:
                self._end()

    async def _ended(self) -> None:
        """Go on on another connection, or raise the end."""
        try:
            if await self._call.resume(self, self._client._options.retry):
                return
        except Exception:  # for good; to stop waiting is no end
            self.close()
            raise
        self._end()

    # The reader that going on after a loss needs.

    @property
    def reconnects(self) -> bool:
        """Whether a new connection may be made."""
        return self._client._options.reconnects and not self._client._closed

    async def begin_again(self) -> None:
        """Send the call on a connection that is there or can be made, and wait for its answer."""
        self._calls = None
        await self._begin()

    async def pause(self, seconds: float) -> None:
        """Wait between two attempts."""
        await self._client.pause(seconds)

    def now(self) -> float:
        """Tell the time."""
        return self._client.now()
