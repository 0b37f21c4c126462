"""The asyncio client: many calls in flight on one connection, none of which can hang.

The reader settles the future of a call, so a call costs no task and no timer of its own. Every call
ends once: with its result, an `RpcError`, its timeout, its cancellation, or the loss of the
connection. What can be called, and with which options, is in `async_calls`.
"""

import asyncio
import contextvars
import copy
from asyncio import Future
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from duet_rpc.client.async_calls import AsyncCalls
from duet_rpc.client.ends import ConnectionEnd, end_link
from duet_rpc.client.options import ClientOptions, Expected
from duet_rpc.client.reconnect import copy_loss, may_reconnect
from duet_rpc.client.sender import ArrayCall
from duet_rpc.client.started import AwaitedCall, OpenCall, StartedCall, look_at
from duet_rpc.client.stats import ClientStats
from duet_rpc.client.timeouts import Timeouts
from duet_rpc.engine.outgoing import JOIN
from duet_rpc.errors import CallTimeout, ConnectionLost, RpcError, UsageError
from duet_rpc.forks import FORKED, tell_in_child
from duet_rpc.hosts.loop import LoopHost
from duet_rpc.hosts.workers import Workers
from duet_rpc.transports.link import Link, Opener
from duet_rpc.wire.dialect import Progress
from duet_rpc.wire.params import add_metadata

if TYPE_CHECKING:
    from duet_rpc.client.stream_call import StreamCall
    from duet_rpc.client.streams import Stream
    from duet_rpc.client.subscription_call import SubscriptionCall
    from duet_rpc.client.subscriptions import Subscription

_LAST_WRITES = 0.1
"""Seconds that a server has, when we close, to take what was sent before."""


class Client(AsyncCalls):
    """Calls a JSON-RPC server. `async with Client.connect(...)` or `Client.spawn(...)`.

    `timeout` bounds each call (None: no bound); `retry` says how queries and commands are tried
    again; `service` is served to the server, which may call back. After the connection is lost,
    calls fail at once, or connect anew if `reconnect` is on (it is when there is a `retry`).
    `errors` are the classes that the server's errors are raised in, by their codes: `RpcError`
    subclasses, a base class of theirs, or the `Service` that raises them. The other options are
    `framing`, `policy`, `allow_concurrent_requests` and `log`.
    """

    def __init__(self, opener: Opener, **options: Unpack[ClientOptions]) -> None:
        super().__init__(opener, **options)
        self._workers = Workers()
        self._host: LoopHost | None = None
        self._link: Link | None = None
        """Of the connection that there is, or of the last one."""
        self._opening: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._endings: set[Future[ConnectionEnd]] = set()
        self._end: Future[ConnectionEnd] | None = None
        self._lost: Exception | None = None
        self._closed = False
        self._flushing = False
        self._counted = ClientStats()
        self._is_copy = False
        """We are in a forked child, and the connection is the parent's."""
        self._context = contextvars.Context()
        self._loop: asyncio.AbstractEventLoop
        self._timeouts: Timeouts

    async def __aenter__(self) -> "Client":
        await self.open()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def forked(self) -> None:
        """Leave the connection to the parent."""
        self._is_copy = self._closed = True
        self._host = self._opening = None

    async def open(self) -> None:
        """Connect. `async with` does it; afterwards only needed to connect anew by hand."""
        if self._is_copy:
            raise UsageError(FORKED)
        tell_in_child(self)
        if self._closed:
            raise UsageError("this client is closed; make a new one")
        if self._host is not None:
            return
        if self._opening is None:
            self._loop = asyncio.get_running_loop()
            self._opening = self._loop.create_task(self._open())
            self._opening.add_done_callback(look_at)
        # It goes on for the others who wait when one of them gives up.
        await asyncio.shield(self._opening)

    async def _open(self) -> None:
        try:
            link = await self._loop.run_in_executor(None, self._open_link)
            if self._closed:
                await self._loop.run_in_executor(None, link.end)
                raise ConnectionLost("the client was closed while it connected")
            self._attach(link)
        except asyncio.CancelledError:
            self._closed = True  # the loop is ending; the thread sees it
            raise
        finally:
            self._opening = None

    def _open_link(self) -> Link:
        link = self._opener.open()
        if self._closed:
            link.end()
            raise ConnectionLost("the client was closed while it connected")
        return link

    def _attach(self, link: Link) -> None:
        self._loop = asyncio.get_running_loop()
        self._lost = None
        self._counted.connects += 1
        self._end = end = self._loop.create_future()
        self._host = host = LoopHost(
            link.channel,
            self._dispatcher,
            self._make_framing(),
            self._describe(link, self._counted.connects),
            workers=self._workers,
            lingers=False,
            loss=link.loss,
            on_end=lambda host: self._ended(host, link, end),
        )
        self._link = link
        self._calls = calls = host.connection.calls
        self._timeouts = Timeouts(self._loop, calls, self._timeout, self._counted)
        host.begin()

    def _ended(self, host: LoopHost, link: Link, end: Future[ConnectionEnd]) -> None:
        """The connection is gone: calls fail at once from now on, or connect anew."""
        by_client = host is not self._host  # then `close` has let go of it
        if not by_client:
            self._host = None
        self._timeouts.stop()
        self._lost = host.lost_by
        self._counted.add(host.connection)
        self._counted.lost += host.lost_calls
        id = host.connection.requests.origin.connection_id
        finish = partial(end_link, link, id, host.lost_by, by_client=by_client)
        if link.is_network:
            end.set_result(finish())
        else:  # a child process may take its time
            ending = self._loop.run_in_executor(None, finish)
            self._endings.add(ending)
            ending.add_done_callback(partial(self._take_end, end))

    def _take_end(self, end: Future[ConnectionEnd], ending: Future[ConnectionEnd]) -> None:
        self._endings.discard(ending)
        if not ending.cancelled():
            end.set_result(ending.result())

    async def closed(self) -> ConnectionEnd:
        """Wait until the connection is over, and the process of a spawned server; say why.

        It speaks of the connection that there is when it is called, or of the last one if there is
        none: with `reconnect` each has an end of its own.
        """
        if self._is_copy:
            raise UsageError(FORKED)
        if self._end is None:
            raise UsageError("this client has not been connected; use `async with`")
        return await asyncio.shield(self._end)  # others may wait for it too

    async def close(self) -> None:
        """End the connection; open calls fail, a child process is ended. Idempotent."""
        if self._is_copy:
            return
        self._closed = True
        self._listeners.clear()
        if self._opening is not None:
            await asyncio.wait([self._opening])
        host, self._host = self._host, None
        if host is not None:
            try:
                await asyncio.sleep(0)  # calls that were just cancelled have still to tell us
                host.connection.outgoing.flush()
                await host.drained(_LAST_WRITES)
            finally:
                host.close(ConnectionLost("the client was closed"))
        self._workers.close()
        if self._listening is not None and self._listening is not asyncio.current_task():
            self._listening.cancel()
            await asyncio.wait([self._listening])
        if self._endings:
            await asyncio.wait(self._endings)

    def _start_listeners(self) -> None:
        self._listening = self._loop.create_task(self._run_listeners())

    async def _run_listeners(self) -> None:
        try:
            while (running := self._listeners.run_next()) is not False:
                if running is None:
                    await asyncio.sleep(0)  # others have their turn in between
                else:
                    await running
        except BaseException:  # somebody has cancelled all tasks, and the client goes on
            self._listeners.stop()
            raise

    @property
    def pid(self) -> int | None:
        """The process of a spawned server while it is connected; None where there is none."""
        return None if self._host is None or self._link is None else self._link.pid

    @property
    def stats(self) -> ClientStats:
        """What happened so far."""
        stats = msgspec.structs.replace(self._counted)
        if self._host is not None:
            stats.add(self._host.connection)
            stats.pending = len(self._host.connection.calls.open)
        return stats

    # The sender that the logic of calls needs.

    def ask(self, method: str, params: bytes | None, expected: Expected) -> Future[Any]:
        """Send one call; what it returns is to be awaited at once."""
        host = self._host
        if host is None:
            return self.request(method, params, expected)
        call = AwaitedCall()
        call.client = self
        call.method = method
        call.expected = expected
        call.decode = expected.decode
        call.timer = call.ends = None
        future: Future[Any] = Future(loop=self._loop)
        call.future = future
        future.add_done_callback(call, context=self._context)
        calls = self._calls
        if expected is self._usual and not calls.open:  # the only one: most are, and `_put` costs
            call.id = id = calls.send(method, params, call)
            host.connection.outgoing.flush()
            self._timeouts.mark(id)
        else:
            self._put(host, call, params)
        return future

    def request(self, method: str, params: bytes | None, expected: Expected) -> StartedCall[Any]:
        """Send one call on the connection that is there, or on a new one."""
        call: StartedCall[Any] = StartedCall(loop=asyncio.get_running_loop())
        call.client = self
        call.method = method
        call.expected = expected
        call.decode = expected.decode
        call.id = call.timer = call.ends = None
        if self._host is None:
            self._connect_for(call, params)
        else:
            self._put(self._host, call, params)
        return call

    def open_stream(self, call: "StreamCall") -> "Stream[Any]":
        """Make what takes the items of a streaming call, which is not sent yet."""
        from duet_rpc.client.streams import Stream  # with the first one

        return Stream(self, call)

    def open_subscription(self, call: "SubscriptionCall") -> "Subscription[Any]":
        """Make what takes the items of a subscription, which is not sent yet."""
        from duet_rpc.client.subscriptions import Subscription  # with the first one

        return Subscription(self, call)

    def make_reply(self, method: str, expected: Expected) -> StartedCall[Any]:
        """Make a call that is still to be sent, by itself or in an array."""
        call: StartedCall[Any] = StartedCall(loop=asyncio.get_running_loop())
        call.client = self
        call.method = method
        call.expected = expected
        call.decode = expected.decode
        call.id = call.timer = call.ends = None
        return call

    def _flush(self) -> None:
        self._flushing = False
        if self._host is not None:
            self._host.connection.outgoing.flush()
            id, self._timeouts.unmarked = self._timeouts.unmarked, 0
            self._timeouts.mark(id)

    def _put(self, host: LoopHost, call: OpenCall, params: bytes | None) -> None:
        calls, expected = self._calls, call.expected
        if expected is self._usual:
            call.id = id = calls.send(call.method, params, call)
        else:
            if expected.on_progress is not None:
                token = calls.last_id + 1
                params = add_metadata(
                    params, progress_token=token, tokens=host.dialect.work_done(token)
                )
            call.id = id = calls.send(call.method, params, call)
            if expected.timeout != self._timeout or expected.on_progress is not None:
                self._timeouts.start(call, expected.timeout)
        if self._flushing:
            if id % JOIN == 0:
                host.connection.outgoing.flush()
        elif len(calls.open) == 1:
            host.connection.outgoing.flush()
            self._timeouts.mark(id)
        else:
            self._flushing = True
            self._timeouts.unmarked = id
            self._loop.call_soon(self._flush)

    def _connect_for(self, call: StartedCall[Any], params: bytes | None) -> None:
        """Send a call as soon as there is a connection, if there can be one."""
        if not self._may_reconnect:
            call.settle(None, copy_loss(self._lost))
            return
        task = self._loop.create_task(self._connect_and_put(call, params))
        call.add_done_callback(lambda _: task.cancel(), context=self._context)

    async def _connect_and_put(self, call: StartedCall[Any], params: bytes | None) -> None:
        limit, begun = call.expected.limit, self._loop.time()
        try:
            async with asyncio.timeout(limit):
                while self._host is None:
                    await self.open()
        except TimeoutError:
            self._counted.timeouts += 1
            call.settle(None, CallTimeout(f"{call.method}: no connection within {limit:g} s"))
        except Exception as error:
            call.settle(None, copy.copy(error))  # several may have waited for this connection
        else:
            call.expected = call.expected.after(self._loop.time() - begun)
            self._put(self._host, call, params)

    @property
    def _may_reconnect(self) -> bool:
        if self._is_copy:
            raise UsageError(FORKED)
        was_connected = self._lost is not None or self._counted.connects > 0
        return may_reconnect(
            self._options,
            was_connected=was_connected,
            closed=self._closed,
            opened_by="async with",
        )

    async def _ensure_connected(self) -> LoopHost:
        if self._host is None:
            if not self._may_reconnect:
                raise copy_loss(self._lost)
            await self.open()
        if self._host is None:
            raise copy_loss(self._lost, "the connection was lost again")
        return self._host

    async def send_array(
        self, calls: Sequence[ArrayCall], refuse: Callable[[RpcError], None]
    ) -> None:
        """Send calls in one array."""
        host = await self._ensure_connected()
        ids = iter(self._calls.send_batch(calls, refuse))
        for _, _, reply in calls:
            if reply is not None:
                reply.id = next(ids)
                self._timeouts.start(reply, reply.expected.timeout)
        host.connection.outgoing.flush()

    def send(self, method: str, params: bytes | None, patience: float | None) -> Future[None]:
        """Send a notification; the server has so many seconds to read what was sent before."""
        host = self._host
        if host is None:
            sending = self._connect_and_send(method, params, patience)
            return asyncio.get_running_loop().create_task(sending)
        host.connection.calls.notify(method, params)
        if host.connection.calls.holds:
            return self._loop.create_task(self._wait_until_sent(host, method, patience))
        sent = self._loop.create_future()
        sent.set_result(None)
        return sent

    async def _connect_and_send(
        self, method: str, params: bytes | None, patience: float | None
    ) -> None:
        await self._ensure_connected()
        await self.send(method, params, patience)

    async def _wait_until_sent(self, host: LoopHost, method: str, patience: float | None) -> None:
        until = None if patience is None else self._loop.time() + patience
        while host.connection.calls.holds:
            left = None if until is None else until - self._loop.time()
            if left is not None and left <= 0:
                raise CallTimeout(f"{method}: not sent within {patience:g} s")
            await host.moved(left)
        if host.closed and host.lost_by is not None:
            raise copy.copy(host.lost_by)

    async def pause(self, seconds: float) -> None:
        """Wait between two attempts."""
        await asyncio.sleep(seconds)

    def now(self) -> float:
        """Tell the loop's time."""
        return asyncio.get_running_loop().time()

    # What calls tell of themselves.

    def cancel_call(self, id: int) -> None:
        """Tell the server that a call was cancelled."""
        if self._calls.forget(id, tell_peer=True):
            self._counted.cancelled += 1

    def take_late(self, call: OpenCall, error: Exception | None) -> None:
        """Count a call that was cancelled, and that ended before its cancellation could be sent."""
        self._counted.cancelled += 1
        if self._host is not None and not isinstance(error, ConnectionLost):
            self._calls.drop_late()

    def take_progress(self, call: OpenCall, value: Progress) -> None:
        """Report the progress of a call, whose time starts again."""
        on_progress = call.expected.on_progress
        if on_progress is None:
            return  # it asked for none; a number of the server's own is like its id
        self._timeouts.restart(call)
        try:
            on_progress(value)
        except Exception as error:
            self._dispatcher.log.failure("on_progress failed", error, method=call.method)
