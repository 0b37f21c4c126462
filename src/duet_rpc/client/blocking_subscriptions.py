"""Subscriptions of the blocking client: `with client.subscribe("prices", ...) as prices`.

They are read as streams are; what came meanwhile waits at the server, or in the connection, until a
thread of this client reads.
"""

from typing import TYPE_CHECKING, TypeVar

from duet_rpc.client.blocking_streams import BlockingStream
from duet_rpc.client.subscription_call import SubscriptionCall
from duet_rpc.engine.steps import drive

if TYPE_CHECKING:
    from duet_rpc.client.blocking import Client

T = TypeVar("T")


class BlockingSubscription(BlockingStream[T]):
    """The items of a subscription, for one thread.

    `with` waits until the server has answered, and unsubscribes when the block is left. Without it,
    that happens as soon as nothing refers to the subscription.
    """

    _call: SubscriptionCall

    def __init__(self, client: "Client", call: SubscriptionCall) -> None:
        super().__init__(client, call)

    def __enter__(self) -> "BlockingSubscription[T]":
        self._begin()
        return self

    def __iter__(self) -> "BlockingSubscription[T]":
        return self

    @property
    def seq(self) -> int:
        """The number of the item that was given last; 0 before the first."""
        return self._call.inflow.seq

    @property
    def missed(self) -> int:
        """How many items the server has dropped so far, because they were not taken in time."""
        return self._call.inflow.missed

    def _begin(self) -> None:
        if self._host is None:
            super()._begin()
            inflow = self._call.inflow
            try:
                while not inflow.has_news:
                    self._wait()
            except BaseException:
                self.close()
                raise
            inflow.awaits_answer = False
            if inflow.name is None and inflow.error is not None:
                self._end()

    def _ended(self) -> None:
        """Go on on another connection, or raise the end."""
        try:
            if drive(self._call.resume(self, self._client._options.retry)):
                return
        except Exception:  # for good; to stop waiting is no end
            self.close()
            raise
        self._end()

    # The reader that going on after a loss needs. Nothing here suspends.

    @property
    def reconnects(self) -> bool:
        """Whether a new connection may be made."""
        return self._client._options.reconnects and not self._shared.closed

    async def begin_again(self) -> None:
        """Send the call on a connection that is there or can be made, and wait for its answer."""
        self._host = None
        self._begin()

    async def pause(self, seconds: float) -> None:
        """Wait between two attempts."""
        await self._client.pause(seconds)

    def now(self) -> float:
        """Tell the time."""
        return self._client.now()
