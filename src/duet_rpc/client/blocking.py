"""The client for programs without an event loop. Threads may share it.

It runs the very logic of the asyncio client (`ClientCore`) on the calling thread: nothing here
suspends, so each coroutine ends in its first step. What can be called is in `blocking_calls`.
"""

import threading
import time
from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Unpack

from duet_rpc.client.blocking_calls import BlockingCalls
from duet_rpc.client.blocking_host import BlockingHost
from duet_rpc.client.ends import ConnectionEnd
from duet_rpc.client.interrupts import hold
from duet_rpc.client.options import ClientOptions, Expected
from duet_rpc.client.reconnect import copy_loss, may_reconnect
from duet_rpc.client.replies import ThreadReply
from duet_rpc.client.sender import ArrayCall
from duet_rpc.client.shared import SharedConnection
from duet_rpc.client.stats import ClientStats
from duet_rpc.errors import ConnectionLost, RpcError, UsageError
from duet_rpc.forks import FORKED, tell_in_child
from duet_rpc.transports.link import Link, Opener

if TYPE_CHECKING:
    from duet_rpc.client.blocking_streams import BlockingStream
    from duet_rpc.client.blocking_subscriptions import BlockingSubscription
    from duet_rpc.client.stream_call import StreamCall
    from duet_rpc.client.subscription_call import SubscriptionCall


class Client(BlockingCalls):
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
            host = None if shared.closed else self._attach(link)
        if host is not None:
            host.connection.begin()  # without the lock: a hook may use the peer
            return
        link.end()
        raise ConnectionLost("the client was closed while it connected")

    def _attach(self, link: Link) -> BlockingHost:
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
        shared.host = shared.latest = host
        if self._options.service is not None or self._listeners:
            shared.serve_always(ThreadReply(shared, "", self._core.expect(Any, None)))
        return host

    def _read_always(self) -> None:
        shared = self._shared
        with shared.lock:
            if shared.host is not None and not shared.serves_always:
                shared.serve_always(ThreadReply(shared, "", self._core.expect(Any, None)))

    def _start_listeners(self) -> None:
        threading.Thread(target=self._run_listeners, name="duet-rpc listener", daemon=True).start()

    def _run_listeners(self) -> None:
        while (running := self._listeners.run_next()) is not False:
            if running is not None:
                import asyncio  # here: a script without an `async def` has no use for it

                asyncio.run(running)

    def close(self) -> None:
        """End the connection; open calls fail, a child process is ended. Idempotent."""
        self._listeners.clear()
        self._shared.close()

    def closed(self, timeout: float | None = None) -> ConnectionEnd:
        """Wait until the connection is over, and the process of a spawned server; say why.

        It speaks of the connection that there is when it is called, or of the last one if there is
        none: with `reconnect` each has an end of its own. Raises `CallTimeout` if it is not over
        after `timeout` seconds.
        """
        expected = self._core.expect(Any, timeout)
        return self._shared.wait_closed(ThreadReply(self._shared, "", expected))

    @property
    def pid(self) -> int | None:
        """The process of a spawned server while it is connected; None where there is none."""
        host = self._shared.host
        return None if host is None else host.pid

    @property
    def stats(self) -> ClientStats:
        """What happened so far."""
        return self._shared.stats

    # The sender that the logic of calls needs.

    async def ask(self, method: str, params: bytes | None, expected: Expected) -> Any:
        """Send one call and wait for its answer."""
        return self.ask_now(method, params, expected)

    def ask_now(self, method: str, params: bytes | None, expected: Expected) -> Any:
        """Do the same, without a coroutine."""
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

    def open_stream(self, call: "StreamCall") -> "BlockingStream[Any]":
        """Make what takes the items of a streaming call, which is not sent yet."""
        from duet_rpc.client.blocking_streams import BlockingStream  # with the first one

        return BlockingStream(self, call)

    def open_subscription(self, call: "SubscriptionCall") -> "BlockingSubscription[Any]":
        """Make what takes the items of a subscription, which is not sent yet."""
        from duet_rpc.client.blocking_subscriptions import (
            BlockingSubscription,
        )  # with the first one

        return BlockingSubscription(self, call)

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
        was_connected = shared.lost is not None
        if not may_reconnect(
            self._options, was_connected=was_connected, closed=shared.closed, opened_by="with"
        ):
            raise copy_loss(shared.lost)
        left = reply.deadline - time.monotonic()
        if left <= 0:
            raise shared.too_late()
        self._open(None if left == inf else left)
