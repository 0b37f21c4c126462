"""What can be called with a blocking client, and how results are typed.

Each call waits on the calling thread; `start` sends one and returns without waiting.

Most of the module are signatures, each of them three times: so type checkers know results.
"""

import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload

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
from duet_rpc.client.replies import ThreadReply
from duet_rpc.engine.calls import encode_params
from duet_rpc.engine.steps import drive

if TYPE_CHECKING:
    from duet_rpc.client.blocking_streams import BlockingStream
    from duet_rpc.client.blocking_subscriptions import BlockingSubscription
    from duet_rpc.client.outcomes import Outcome
    from duet_rpc.client.stream_call import StreamCall
    from duet_rpc.client.subscription_call import SubscriptionCall

T = TypeVar("T")


class BlockingCalls(BaseClient):
    """The calls of a blocking client; its connection is the subclass's part."""

    def ask_now(self, method: str, params: bytes | None, expected: Expected) -> Any:
        """Send one call, once, and wait for its result."""
        raise NotImplementedError

    def request(self, method: str, params: bytes | None, expected: Expected) -> ThreadReply:
        """Send one call, and return what waits for its answer."""
        raise NotImplementedError

    def send(self, method: str, params: bytes | None, patience: float | None) -> ThreadReply:
        """Send a notification; the server has so many seconds to read what was sent before."""
        raise NotImplementedError

    def open_stream(self, call: "StreamCall") -> "BlockingStream[Any]":
        """Make what takes the items of a streaming call, which is not sent yet."""
        raise NotImplementedError

    def open_subscription(self, call: "SubscriptionCall") -> "BlockingSubscription[Any]":
        """Make what takes the items of a subscription, which is not sent yet."""
        raise NotImplementedError

    @overload
    def call(
        self, method: str, params: Any = None, *, returns: type[T], **options: Unpack[CallOptions]
    ) -> T: ...
    @overload
    def call(
        self, method: str, params: Any = None, *, returns: Any = Any, **options: Unpack[CallOptions]
    ) -> Any: ...
    def call(
        self, method: str, params: Any = None, *, returns: Any = Any, **options: Unpack[CallOptions]
    ) -> Any:
        """Call a method, once: after a loss no one knows whether it happened.

        `timeout` is the client's unless it is given. `on_progress` is called with the progress that
        the server sends, each of which starts the timeout again. It is called on this thread,
        before the call returns. `total_timeout` bounds the call whatever its progress, also with
        `timeout=None`. `errors` are classes of its own for its errors.
        """
        if returns is Any and not options:
            expected = self._usual
        else:
            expected = self._core.expect(returns, **options)
        return self.ask_now(method, encode_params(params), expected)

    @overload
    def start(
        self, method: str, params: Any = None, *, returns: type[T], **options: Unpack[CallOptions]
    ) -> "Call[T]": ...
    @overload
    def start(
        self, method: str, params: Any = None, *, returns: Any = Any, **options: Unpack[CallOptions]
    ) -> "Call[Any]": ...
    def start(
        self, method: str, params: Any = None, *, returns: Any = Any, **options: Unpack[CallOptions]
    ) -> "Call[Any]":
        """Send a call as `call` does, and return without waiting for its answer.

        Its time starts now. `client.start(...).result()` is `client.call(...)`.
        """
        expected = self._core.expect(returns, **options)
        return Call(self.request(method, encode_params(params), expected))

    @overload
    def query(
        self, method: str, params: Any = None, *, returns: type[T], **options: Unpack[TryOptions]
    ) -> T: ...
    @overload
    def query(
        self, method: str, params: Any = None, *, returns: Any = Any, **options: Unpack[TryOptions]
    ) -> Any: ...
    def query(
        self, method: str, params: Any = None, *, returns: Any = Any, **options: Unpack[TryOptions]
    ) -> Any:
        """Call a method that changes nothing; it is tried again as `retry` says."""
        return drive(self._core.query(method, params, returns, **options))

    @overload
    def command(
        self, method: str, params: Any = None, *, returns: type[T], **options: Unpack[KeyOptions]
    ) -> T: ...
    @overload
    def command(
        self, method: str, params: Any = None, *, returns: Any = Any, **options: Unpack[KeyOptions]
    ) -> Any: ...
    def command(
        self, method: str, params: Any = None, *, returns: Any = Any, **options: Unpack[KeyOptions]
    ) -> Any:
        """Call a method with effects, under an idempotency key that is kept over all tries.

        `age` says how many seconds ago it was first sent under this `key`, if it was: perhaps by
        another process. A server that cannot know what became of it then does not run it again.
        """
        return drive(self._core.command(method, params, returns, **options))

    @overload
    def stream(
        self, method: str, params: Any = None, *, returns: type[T], **options: Unpack[StreamOptions]
    ) -> "BlockingStream[T]": ...
    @overload
    def stream(
        self,
        method: str,
        params: Any = None,
        *,
        returns: Any = Any,
        **options: Unpack[StreamOptions],
    ) -> "BlockingStream[Any]": ...
    def stream(
        self,
        method: str,
        params: Any = None,
        *,
        returns: Any = Any,
        **options: Unpack[StreamOptions],
    ) -> "BlockingStream[Any]":
        """Call a method that yields: `for item in client.stream(...)`.

        `returns` is the type of an item. The call is sent with the first item that is asked for.
        Left early, it is cancelled at the server: at once where the block ends of
        `with client.stream(...) as items`. `timeout` bounds each wait for the next item;
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
    ) -> "BlockingSubscription[T]": ...
    @overload
    def subscribe(
        self,
        method: str,
        params: Any = None,
        *,
        returns: Any = Any,
        **options: Unpack[SubscribeOptions],
    ) -> "BlockingSubscription[Any]": ...
    def subscribe(
        self,
        method: str,
        params: Any = None,
        *,
        returns: Any = Any,
        **options: Unpack[SubscribeOptions],
    ) -> "BlockingSubscription[Any]":
        """Subscribe to a method: `with client.subscribe(...) as items`, then `for`.

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
    ) -> "Outcome[T]": ...
    @overload
    def outcome(
        self, method: str, key: str, *, returns: Any = Any, **options: Unpack[TimeOptions]
    ) -> "Outcome[Any]": ...
    def outcome(
        self, method: str, key: str, *, returns: Any = Any, **options: Unpack[TimeOptions]
    ) -> "Outcome[Any]":
        """Ask what became of a command; `timeout` is the client's unless it is given.

        `returns` is the type to decode the command's result into.
        """
        return drive(self._core.outcome(method, key, returns, **options))

    def notify(self, method: str, params: Any = None) -> None:
        """Send a notification; waits while the server does not read, up to the usual timeout."""
        self.send(method, encode_params(params), self._timeout).result()

    def batch(self, *, one_by_one: bool = False) -> "BlockingBatch":
        """Gather calls and send them together: `with client.batch() as batch: ...`.

        With `one_by_one` each is a message of its own, for servers that drop arrays unread.
        """
        return BlockingBatch(self._core, self._batches, one_by_one)


class Call(Generic[T]):
    """A call on its way: any thread may wait for its result, and any thread may cancel it."""

    def __init__(self, reply: ThreadReply) -> None:
        self._reply = reply
        self._waiting = threading.Lock()

    @property
    def id(self) -> int:
        """The id of its request."""
        return self._reply.id

    def result(self) -> T:
        """Wait for the result, or raise what the call ended with; the same again when asked again.

        A call that was cancelled raises `duet_rpc.errors.Cancelled`.
        """
        with self._waiting:  # a reply has room for one thread that waits
            found: T = self._reply.result()
        return found

    def cancel(self) -> bool:
        """End the call now, and tell the server; False if it has ended already.

        The server stops its handler if it can. A command that has begun goes on.
        """
        return self._reply.cancel()


class BlockingBatch(BaseBatch):
    """Calls that are sent together when the block is left."""

    def __enter__(self) -> "BlockingBatch":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            drive(self._sender.send(self._items, one_by_one=self._one_by_one))
