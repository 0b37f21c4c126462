"""The client for programs without an event loop. Threads may share it.

It runs the very logic of the asyncio client (`ClientCore`) on the calling thread: nothing here
suspends, so each coroutine ends in its first step.
"""

import copy
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload

from duet_rpc.client.base import BaseClient
from duet_rpc.client.batch import BaseBatch
from duet_rpc.client.blocking_host import BlockingHost
from duet_rpc.client.interrupts import hold
from duet_rpc.client.options import (
    CallOptions,
    ClientOptions,
    Expected,
    KeyOptions,
    StreamOptions,
    TimeOptions,
    TryOptions,
)
from duet_rpc.client.replies import ThreadReply
from duet_rpc.client.sender import ArrayCall
from duet_rpc.client.shared import SharedConnection
from duet_rpc.client.stats import ClientStats
from duet_rpc.engine.calls import encode_params
from duet_rpc.errors import ConnectionLost, RpcError, UsageError
from duet_rpc.forks import FORKED, tell_in_child
from duet_rpc.transports.link import Link, Opener

if TYPE_CHECKING:
    from duet_rpc.client.blocking_streams import BlockingStream

T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends to its end."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("the blocking client never suspends")


class Client(BaseClient):
    """Calls a JSON-RPC server and waits. `with Client.connect(...)` or `Client.spawn(...)`.

    The options are those of `duet_rpc.Client`.
    """

    def __init__(self, opener: Opener, **options: Unpack[ClientOptions]) -> None:
        super().__init__(opener, **options)
        self._opening = threading.RLock()
        self._shared = SharedConnection(self._dispatcher.log)

    @property
    def _host(self) -> BlockingHost | None:
        return self._shared.host

    def __enter__(self) -> "Client":
        self.open()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def open(self) -> None:
        """Connect. `with` does it; afterwards only needed to connect anew by hand."""
        self._open(None)

    def _open(self, patience: float | None) -> None:
        shared = self._shared
        until = inf if patience is None else time.monotonic() + patience
        if shared.is_copy:
            raise UsageError(FORKED)
        tell_in_child(shared)
        if not hold(self._opening, patience, lambda: self._connect(until)):
            raise shared.too_late()

    def _connect(self, until: float) -> None:
        shared = self._shared
        if shared.closed:
            raise UsageError("this client is closed; make a new one")
        if shared.host is not None:
            return
        left = None if until == inf else max(0.001, until - time.monotonic())
        link = self._opener.open(left)
        with shared.lock:
            if not shared.closed:
                self._attach(link)
                return
        link.end()
        raise ConnectionLost("the client was closed while it connected")

    def _attach(self, link: Link) -> None:
        shared = self._shared
        shared.counted.connects += 1
        host = BlockingHost(
            shared,
            link,
            self._dispatcher,
            self._make_framing(),
            self._describe(link, shared.counted.connects),
            patience=self._timeout,
        )
        shared.host = host
        if self._options.service is not None:
            shared.serve_always(ThreadReply(shared, "", self._core.expect(Any, None)))

    def close(self) -> None:
        """End the connection; open calls fail, a child process is ended. Idempotent."""
        self._shared.close()

    @property
    def stats(self) -> ClientStats:
        """What happened so far."""
        return self._shared.stats

    # Calls.

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
        """Call a method, once: after a loss nobody knows whether it happened.

        `timeout` is the client's unless it is given. `on_progress` is called with the progress that
        the server sends, each of which starts the timeout again. It is called on this thread,
        before the call returns. `total_timeout` bounds the call whatever its progress, also with
        `timeout=None`. `errors` are classes of its own for its errors.
        """
        if returns is Any and not options:
            expected = self._usual
        else:
            expected = self._core.expect(returns, **options)
        return self._ask(method, encode_params(params), expected)

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
        return run(self._core.query(method, params, returns, **options))

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
        return run(self._core.command(method, params, returns, **options))

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
        from duet_rpc.client.blocking_streams import BlockingStream  # with the first one

        call = self._core.stream(self._dispatcher.dialect, method, params, returns, **options)
        return BlockingStream(self, call)

    def outcome(self, method: str, key: str, **options: Unpack[TimeOptions]) -> Any:
        """Ask what became of a command; `timeout` is the client's unless it is given."""
        return run(self._core.outcome(method, key, **options))

    def notify(self, method: str, params: Any = None) -> None:
        """Send a notification; waits while the server does not read, up to the usual timeout."""
        self.send(method, encode_params(params), self._timeout).result()

    def batch(self) -> "BlockingBatch":
        """Gather calls and send them together: `with client.batch() as batch: ...`."""
        return BlockingBatch(self._core, self._batches)

    # The sender that the logic of calls needs.

    async def ask(self, method: str, params: bytes | None, expected: Expected) -> Any:
        """Send one call and wait for its answer."""
        return self._ask(method, params, expected)

    def _ask(self, method: str, params: bytes | None, expected: Expected) -> Any:
        reply = ThreadReply(self._shared, method, expected)
        while not self._shared.ask(reply, params):
            self._reopen(reply)
        return reply.outcome()

    def request(self, method: str, params: bytes | None, expected: Expected) -> ThreadReply:
        """Send one call on the connection that is there, or on a new one."""
        reply = ThreadReply(self._shared, method, expected)
        while not self._shared.request(reply, params):
            self._reopen(reply)
        return reply

    def make_reply(self, method: str, expected: Expected) -> ThreadReply:
        """Make what will wait for the answer to one call of an array."""
        return ThreadReply(self._shared, method, expected)

    async def send_array(
        self, calls: Sequence[ArrayCall], refuse: Callable[[RpcError], None]
    ) -> None:
        """Send calls in one array."""
        first = next((reply for _, _, reply in calls if reply is not None), None)
        if first is None:
            first = self.make_reply("batch", self._usual)
        while not self._shared.send_array(calls, refuse):
            self._reopen(first)

    def send(self, method: str, params: bytes | None, patience: float | None) -> ThreadReply:
        """Send a notification; the server has so many seconds to read what was sent before."""
        reply = ThreadReply(self._shared, method, self._core.expect(Any, patience))
        while not self._shared.notify(reply, params):
            self._reopen(reply)
        return reply

    async def pause(self, seconds: float) -> None:
        """Wait between two attempts."""
        time.sleep(seconds)  # noqa: ASYNC251  (nothing here suspends)

    def now(self) -> float:
        """Tell the time."""
        return time.monotonic()

    def _reopen(self, reply: ThreadReply) -> None:
        """Connect anew, if that may be, for somebody who has so much time left."""
        shared = self._shared
        if shared.lost is None:
            raise UsageError("this client is not connected; use `with`")
        if shared.closed or not self._options.reconnects:
            raise copy.copy(shared.lost)
        left = reply.deadline - time.monotonic()
        if left <= 0:
            raise shared.too_late()
        self._open(None if left == inf else left)


class Call(Generic[T]):
    """A call on its way: any thread may wait for its result, and any thread may cancel it."""

    def __init__(self, reply: ThreadReply) -> None:
        self._reply = reply
        self._waiting = threading.Lock()

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
            run(self._sender.send(self._items))
