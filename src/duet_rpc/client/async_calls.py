"""What can be called with an asyncio client, and how results are typed.

One rule holds for `call`, `query`, `command` and `outcome`: each is a coroutine, and sends nothing
before it is awaited or made a task. `start` is the one verb that sends at once, and returns a
future. `stream` returns an iterator, which sends when its first item is asked for.

Most of the module are signatures, each of them three times: so type checkers know results. Where
one says `Coroutine`, it yields and is sent None: with Any there, mypy says Any of what
`asyncio.gather` of two different calls returns.
"""

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from duet_rpc.client.base import BaseClient
from duet_rpc.client.batch import BaseBatch
from duet_rpc.client.options import (
    CallOptions,
    Expected,
    KeyOptions,
    StreamOptions,
    SubscribeOptions,
    TimeOptions,
    TryOptions,
)
from duet_rpc.client.started import StartedCall
from duet_rpc.engine.calls import encode_params

if TYPE_CHECKING:
    from duet_rpc.client.outcomes import Outcome
    from duet_rpc.client.stream_call import StreamCall
    from duet_rpc.client.streams import Stream
    from duet_rpc.client.subscription_call import SubscriptionCall
    from duet_rpc.client.subscriptions import Subscription

T = TypeVar("T")


class AsyncCalls(BaseClient):
    """The calls of an asyncio client; its connection is the subclass's part."""

    def request(self, method: str, params: bytes | None, expected: Expected) -> StartedCall[Any]:
        """Send one call on the connection that is there, or on a new one."""
        raise NotImplementedError

    def open_stream(self, call: "StreamCall") -> "Stream[Any]":
        """Make what takes the items of a streaming call, which is not sent yet."""
        raise NotImplementedError

    def open_subscription(self, call: "SubscriptionCall") -> "Subscription[Any]":
        """Make what takes the items of a subscription, which is not sent yet."""
        raise NotImplementedError

    @overload
    async def call(
        self, method: str, params: Any = None, *, returns: type[T], **options: Unpack[CallOptions]
    ) -> T: ...
    @overload
    async def call(
        self, method: str, params: Any = None, *, returns: Any = Any, **options: Unpack[CallOptions]
    ) -> Any: ...
    async def call(
        self, method: str, params: Any = None, *, returns: Any = Any, **options: Unpack[CallOptions]
    ) -> Any:
        """Call a method, once: after a loss no one knows whether it happened.

        `timeout` is the client's unless it is given. `on_progress` is called with the progress that
        the server sends, each of which starts the timeout again. `total_timeout` bounds the call
        whatever its progress, also with `timeout=None`. `errors` are classes of its own for its
        errors.
        """
        if returns is Any and not options:
            expected = self._usual
        else:
            expected = self._core.expect(returns, **options)
        return await self.ask(method, encode_params(params), expected)

    @overload
    def start(
        self, method: str, params: Any = None, *, returns: type[T], **options: Unpack[CallOptions]
    ) -> StartedCall[T]: ...
    @overload
    def start(
        self, method: str, params: Any = None, *, returns: Any = Any, **options: Unpack[CallOptions]
    ) -> StartedCall[Any]: ...
    def start(
        self, method: str, params: Any = None, *, returns: Any = Any, **options: Unpack[CallOptions]
    ) -> StartedCall[Any]:
        """Send a call as `call` does, now, and return without waiting for its answer.

        Its time starts now. `await client.start(...)` is `await client.call(...)`. Many calls at
        once are cheapest so: none of them needs a task.
        """
        if returns is Any and not options:
            expected = self._usual
        else:
            expected = self._core.expect(returns, **options)
        return self.request(method, encode_params(params), expected)

    @overload
    def query(
        self, method: str, params: Any = None, *, returns: type[T], **options: Unpack[TryOptions]
    ) -> Coroutine[None, None, T]: ...
    @overload
    def query(
        self, method: str, params: Any = None, *, returns: Any = Any, **options: Unpack[TryOptions]
    ) -> Coroutine[None, None, Any]: ...
    def query(
        self, method: str, params: Any = None, *, returns: Any = Any, **options: Unpack[TryOptions]
    ) -> Coroutine[None, None, Any]:
        """Call a method that changes nothing; it is tried again as `retry` says."""
        return self._core.query(method, params, returns, **options)

    @overload
    def command(
        self, method: str, params: Any = None, *, returns: type[T], **options: Unpack[KeyOptions]
    ) -> Coroutine[None, None, T]: ...
    @overload
    def command(
        self, method: str, params: Any = None, *, returns: Any = Any, **options: Unpack[KeyOptions]
    ) -> Coroutine[None, None, Any]: ...
    def command(
        self, method: str, params: Any = None, *, returns: Any = Any, **options: Unpack[KeyOptions]
    ) -> Coroutine[None, None, Any]:
        """Call a method with effects, under an idempotency key that is kept over all tries.

        `age` says how many seconds ago it was first sent under this `key`, if it was: perhaps by
        another process. A server that cannot know what became of it then does not run it again.
        """
        return self._core.command(method, params, returns, **options)

    @overload
    def stream(
        self, method: str, params: Any = None, *, returns: type[T], **options: Unpack[StreamOptions]
    ) -> "Stream[T]": ...
    @overload
    def stream(
        self,
        method: str,
        params: Any = None,
        *,
        returns: Any = Any,
        **options: Unpack[StreamOptions],
    ) -> "Stream[Any]": ...
    def stream(
        self,
        method: str,
        params: Any = None,
        *,
        returns: Any = Any,
        **options: Unpack[StreamOptions],
    ) -> "Stream[Any]":
        """Call a method that yields: `async for item in client.stream(...)`.

        `returns` is the type of an item. The call is sent with the first item that is asked for.
        Left early, it is cancelled at the server: at once where the block ends of
        `async with client.stream(...) as items`. `timeout` bounds each wait for the next item;
        `window` is how many items the server may be ahead. A stream is never sent again.
        """
        call = self._core.stream(self._dispatcher.dialect, method, params, returns, **options)
        return self.open_stream(call)

    @overload
    def subscribe(
        self,
        method: str,
        params: Any = None,
        *,
        returns: type[T],
        **options: Unpack[SubscribeOptions],
    ) -> "Subscription[T]": ...
    @overload
    def subscribe(
        self,
        method: str,
        params: Any = None,
        *,
        returns: Any = Any,
        **options: Unpack[SubscribeOptions],
    ) -> "Subscription[Any]": ...
    def subscribe(
        self,
        method: str,
        params: Any = None,
        *,
        returns: Any = Any,
        **options: Unpack[SubscribeOptions],
    ) -> "Subscription[Any]":
        """Subscribe to a method: `async with client.subscribe(...) as items`, then `async for`.

        `returns` is the type of an item; `items.seq` is the number of the last one, and
        `items.missed` how many were dropped on the way. Leaving the block notifies the server.
        `timeout` bounds each wait for the next item: None unless it is given. A client that
        reconnects subscribes again after a loss, with `resume_after`. If the method does not take
        that, the loss is raised, because items may be missing.
        """
        call = self._core.subscribe(self._dispatcher.dialect, method, params, returns, **options)
        return self.open_subscription(call)

    @overload
    def outcome(
        self, method: str, key: str, *, returns: type[T], **options: Unpack[TimeOptions]
    ) -> "Coroutine[None, None, Outcome[T]]": ...
    @overload
    def outcome(
        self, method: str, key: str, *, returns: Any = Any, **options: Unpack[TimeOptions]
    ) -> "Coroutine[None, None, Outcome[Any]]": ...
    def outcome(
        self, method: str, key: str, *, returns: Any = Any, **options: Unpack[TimeOptions]
    ) -> "Coroutine[None, None, Outcome[Any]]":
        """Ask what became of a command; `timeout` is the client's unless it is given.

        `returns` is the type to decode the command's result into.
        """
        return self._core.outcome(method, key, returns, **options)

    async def notify(self, method: str, params: Any = None) -> None:
        """Send a notification; waits while the server does not read, up to the usual timeout."""
        await self.send(method, encode_params(params), self._timeout)

    def batch(self, *, one_by_one: bool = False) -> "AsyncBatch":
        """Gather calls and send them together: `async with client.batch() as batch: ...`.

        With `one_by_one` each is a message of its own, for servers that drop arrays unread.
        """
        return AsyncBatch(self._core, self._batches, one_by_one)


class AsyncBatch(BaseBatch):
    """Calls that are sent together when the block is left."""

    async def __aenter__(self) -> "AsyncBatch":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            await self._sender.send(self._items, one_by_one=self._one_by_one)
