"""The asyncio client: many calls in flight on one connection, none of which can hang.

A call is a future that the reader settles, so it costs no task and no timer of its own: calls with
the client's usual timeout expire together, by marks that say which ids are older than a moment.
Every call ends once: with its result, an `RpcError`, its timeout, its cancellation, or the loss of
the connection.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from duet_rpc.caller import USUAL, BatchItems, Caller, Expected, Item, with_progress_token
from duet_rpc.calls import encode_params
from duet_rpc.dispatch import Dispatcher, Log, Silence
from duet_rpc.errors import CallTimeout, ConnectFailed, ConnectionLost, RpcError, UsageError
from duet_rpc.framing import framing as make_framing
from duet_rpc.loop import LoopHost
from duet_rpc.policy import SPEC, Policy
from duet_rpc.proxies import make_proxy
from duet_rpc.retry import Retry
from duet_rpc.service import Service
from duet_rpc.stats import ClientStats
from duet_rpc.transports.links import ChildOpener, Link, Opener, SocketOpener
from duet_rpc.workers import Workers

P = TypeVar("P")
_GRAIN = 0.01
"""Seconds between two marks: how much later than promised a timeout can be."""


class _Reply(asyncio.Future[Any]):
    """A call on its way: the reader settles it."""

    __slots__ = ("_client", "_expected", "_ends", "_method", "_timer", "id")

    def __init__(
        self, client: "Client", method: str, expected: Expected, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(loop=loop)
        self._client = client
        self._method = method
        self._expected = expected
        self._timer: asyncio.TimerHandle | None = None
        self._ends: float | None = None
        self.id = 0

    def settle(self, result: Any, error: Exception | None) -> None:
        """Take the answer."""
        if self._timer is not None:
            self._timer.cancel()
        if self.done():
            return
        if error is not None:
            self.set_exception(error)
            return
        try:
            value = self._expected.decode(result)
        except Exception as failure:
            self.set_exception(failure)
        else:
            self.set_result(value)

    def progress(self, value: Any) -> None:
        """Take news of the call: it may take longer, up to its total."""
        self._client._progressed(self, value)

    def cancel(self, msg: Any = None) -> bool:
        """Stop waiting, and tell the server."""
        if not super().cancel(msg):
            return False
        if self._timer is not None:
            self._timer.cancel()
        self._client._cancelled(self)
        return True


class Client:
    """Calls a JSON-RPC server. `async with Client.connect(...)` or `Client.spawn(...)`.

    `timeout` bounds each call (None: no bound); `retry` says how queries and commands are tried
    again; `service` is served to the server, which may call back. After the connection is lost,
    calls fail at once, or connect anew if `reconnect` is on (it is when there is a `retry`).
    """

    def __init__(
        self,
        opener: Opener,
        *,
        timeout: float | None = 30.0,
        retry: Retry | None = None,
        reconnect: bool | None = None,
        framing: Literal["lsp", "ndjson"] = "lsp",
        service: Service | None = None,
        policy: Policy = SPEC,
        allow_concurrent_requests: bool = True,
        log: Log | None = None,
    ) -> None:
        self._opener = opener
        self._reconnect = retry is not None if reconnect is None else reconnect
        self._framing = framing
        self._one_at_a_time = not allow_concurrent_requests
        self._dispatcher = Dispatcher(service or Service(), policy, log=log or Silence())
        self._workers = Workers()
        self._caller = Caller(self, timeout=timeout, retry=retry)
        self._timeout = timeout
        self._host: LoopHost | None = None
        self._link: Link | None = None
        self._opening: asyncio.Future[None] | None = None
        self._lost: Exception | None = None
        self._closed = False
        self._marks: deque[tuple[float, int]] = deque()
        self._marked = 0.0
        self._expiry: asyncio.TimerHandle | None = None
        self._flushing = False
        self._counted = ClientStats()
        self._loop: asyncio.AbstractEventLoop

    @classmethod
    def connect(cls, target: str, **options: Any) -> "Client":
        """Call the server at `unix:PATH` or `tcp://HOST:PORT`. Options are those of `Client`."""
        return cls(SocketOpener(target), **options)

    @classmethod
    def spawn(
        cls,
        *command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        restarts: int = 3,
        **options: Any,
    ) -> "Client":
        """Start a server as a child process and call it over its pipes.

        With `reconnect` it is started again after a crash, at most `restarts` times a minute.
        """
        return cls(ChildOpener(command, cwd=cwd, env=env, restarts=restarts), **options)

    async def __aenter__(self) -> "Client":
        await self.open()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect. `async with` does it; afterwards only needed to connect anew by hand."""
        if self._closed:
            raise UsageError("this client is closed; make a new one")
        if self._host is not None:
            return
        if self._opening is not None:
            await asyncio.shield(self._opening)
            return
        self._loop = asyncio.get_running_loop()
        self._opening = self._loop.create_future()
        try:
            link = await asyncio.to_thread(self._opener.open)
        except BaseException as error:
            opening, self._opening = self._opening, None
            if isinstance(error, ConnectFailed):
                opening.set_exception(error)
                opening.exception()  # whoever else waits sees it; nobody need
            else:
                opening.cancel()
            raise
        if self._closed:
            link.end()
            raise UsageError("this client was closed while it connected")
        self._attach(link)
        opening, self._opening = self._opening, None
        opening.set_result(None)

    def _attach(self, link: Link) -> None:
        self._link = link
        self._lost = None
        self._counted.connects += 1
        policy = self._dispatcher.policy
        self._host = LoopHost(
            link.channel,
            self._dispatcher,
            make_framing(self._framing, max_message_bytes=policy.max_message_bytes),
            workers=self._workers,
            id=f"client-{self._counted.connects}",
            closes_on_lost_boundary=link.is_network,
            answers_faults=False,
            loss=self._loss,
            on_end=self._ended,
        )
        self._host.connection.calls.one_at_a_time = self._one_at_a_time
        self._calls = self._host.connection.calls
        self._marks.clear()
        self._host.begin()

    def _loss(self) -> Exception:
        assert self._link is not None, "what is lost was open"
        self._lost = self._link.loss()
        host = self._host
        if host is not None:
            self._counted.lost += len(host.connection.calls.open)
        return self._lost

    def _ended(self, host: LoopHost) -> None:
        if host is self._host:
            self._host = None
            self._counted.unmatched_answers += host.connection.unmatched_answers
            if self._link is not None and not self._closed:
                link, self._link = self._link, None
                self._loop.run_in_executor(None, link.end)

    async def close(self) -> None:
        """End the connection; open calls fail, a child process is ended. Idempotent."""
        self._closed = True
        host, link = self._host, self._link
        if host is not None:
            await host.drained(0.1)
            self._lost = ConnectionLost("the client was closed")
            host.close(self._lost)
        self._link = None
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if link is not None:
            await asyncio.to_thread(link.end)
        self._workers.close()

    @property
    def stats(self) -> ClientStats:
        """What happened so far."""
        stats = msgspec.structs.replace(self._counted)
        if self._host is not None:
            stats.unmatched_answers += self._host.connection.unmatched_answers
            stats.pending = len(self._host.connection.calls.open)
        return stats

    # Calls.

    def call(
        self,
        method: str,
        params: Any = None,
        *,
        timeout: float | None = USUAL,
        returns: Any = Any,
        on_progress: Callable[[Any], None] | None = None,
        total_timeout: float | None = None,
    ) -> Awaitable[Any]:
        """Call a method, once: after a loss nobody knows whether it happened.

        `on_progress` is told the news that the server sends, each of which starts the timeout
        again, up to `total_timeout`.
        """
        expected = self._caller.expected(returns, timeout, on_progress, total_timeout)
        return self.request(method, encode_params(params), expected)

    def query(
        self,
        method: str,
        params: Any = None,
        *,
        timeout: float | None = USUAL,
        returns: Any = Any,
        retry: Retry | None = None,
    ) -> Awaitable[Any]:
        """Call a method that changes nothing; it is tried again as `retry` says."""
        expected = self._caller.expected(returns, timeout)
        return self._caller.query(method, params, expected, retry)

    def command(
        self,
        method: str,
        params: Any = None,
        *,
        key: str | None = None,
        timeout: float | None = USUAL,
        returns: Any = Any,
        retry: Retry | None = None,
    ) -> Awaitable[Any]:
        """Call a method with effects, under an idempotency key that is kept over all tries."""
        expected = self._caller.expected(returns, timeout)
        return self._caller.command(method, params, key, expected, retry)

    def outcome(self, method: str, key: str, *, timeout: float | None = USUAL) -> Awaitable[Any]:
        """Ask what became of a command."""
        return self._caller.outcome(method, key, self._caller.expected(Any, timeout))

    async def notify(self, method: str, params: Any = None) -> None:
        """Send a notification."""
        await self.send(method, encode_params(params))

    def batch(self) -> "Batch":
        """Gather calls and send them together: `async with client.batch() as batch: ...`."""
        return Batch(self._caller)

    def proxy(self, interface: type[P], name: str = "") -> P:
        """Make an object whose methods call the server's, typed by a `Protocol` class."""
        proxy: P = make_proxy(self, interface, name)
        return proxy

    # The face of `Caller`.

    def request(self, method: str, params: bytes | None, expected: Expected) -> Awaitable[Any]:
        """Send one call on the connection that is there, or on a new one."""
        host = self._host
        if host is None:
            return self._request_anew(method, params, expected)
        if expected.on_progress is not None:
            params = with_progress_token(params, self._calls.last_id + 1)
        loop = self._loop
        reply = _Reply(self, method, expected, loop)
        reply.id = id = self._calls.send(method, params, reply)
        self._counted.calls += 1
        timeout = expected.timeout
        if timeout is not None:
            now = loop.time()
            if timeout == self._timeout and expected.on_progress is None:
                if now - self._marked >= _GRAIN or not self._marks:
                    self._mark(now, id)
            else:
                self._start_timer(reply, now, timeout)
        if id == 1 or len(self._calls.open) == 1:
            host.connection.flush()
        elif not self._flushing:
            self._flushing = True
            loop.call_soon(self._flush)
        return reply

    async def _request_anew(self, method: str, params: bytes | None, expected: Expected) -> Any:
        if self._closed or not self._reconnect:
            raise self._lost or UsageError("this client is not connected; use `async with`")
        async with asyncio.timeout(expected.timeout) as scope:
            try:
                await self.open()
            except TimeoutError:
                pass
        if scope.expired():
            raise CallTimeout(f"{method}: no connection within {expected.timeout:g} s")
        return await self.request(method, params, expected)

    async def request_all(self, items: Sequence[Item]) -> RpcError | None:
        """Send items in one array, and wait until each is settled or the whole is refused."""
        if self._host is None:
            if self._closed or not self._reconnect:
                raise self._lost or UsageError("this client is not connected; use `async with`")
            await self.open()
        assert self._host is not None, "it was opened"
        refusal: list[RpcError] = []
        replies = [
            None if item.expected is None else _Reply(self, item.method, item.expected, self._loop)
            for item in items
        ]

        def refused(error: RpcError) -> None:
            refusal.append(error)
            for reply in replies:
                if reply is not None:
                    reply.settle(None, error)

        sent = [
            (item.method, item.params, reply) for item, reply in zip(items, replies, strict=True)
        ]
        ids = iter(self._calls.send_batch(sent, refused))
        now = self._loop.time()
        for item, reply in zip(items, replies, strict=True):
            if reply is not None:
                assert item.expected is not None, "a reply is expected"
                reply.id = next(ids)
                self._counted.calls += 1
                if item.expected.timeout is not None:
                    self._start_timer(reply, now, item.expected.timeout)
        self._host.connection.flush()
        for item, reply in zip(items, replies, strict=True):
            try:
                item.settle(None if reply is None else await reply, None)
            except asyncio.CancelledError:
                for other in replies:
                    if other is not None:
                        other.cancel()
                raise
            except Exception as error:
                item.settle(None, error)
        return refusal[0] if refusal else None

    async def send(self, method: str, params: bytes | None) -> None:
        """Send a notification on the connection that is there, or on a new one."""
        if self._host is None:
            if self._closed or not self._reconnect:
                raise self._lost or UsageError("this client is not connected; use `async with`")
            await self.open()
        self._calls.notify(method, params)

    async def pause(self, seconds: float) -> None:
        """Wait between two tries."""
        await asyncio.sleep(seconds)

    def now(self) -> float:
        """Tell the loop's time."""
        return self._loop.time()

    def _flush(self) -> None:
        self._flushing = False
        if self._host is not None:
            self._host.connection.flush()

    # Time.

    def _mark(self, now: float, id: int) -> None:
        """Note that ids from this one on were sent now or later."""
        self._marked = now
        self._marks.append((now, id))
        if self._expiry is None:
            assert self._timeout is not None, "marks are for the usual timeout"
            self._expiry = self._loop.call_at(now + self._timeout, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        marks, usual = self._marks, self._timeout
        if usual is None:
            return
        now = self._loop.time()
        while marks and marks[0][0] + usual <= now:
            marks.popleft()
        first_young = marks[0][1] if marks else self._calls.last_id + 1
        old = []
        for id, waiter in self._calls.open.items():
            if id >= first_young:
                break
            if isinstance(waiter, _Reply) and waiter._timer is None:
                if waiter._expected.timeout is not None:
                    old.append(waiter)
        for waiter in old:
            self._time_out(waiter, usual)
        if marks and self._calls.open:
            self._expiry = self._loop.call_at(marks[0][0] + usual, self._expire)
        else:
            marks.clear()

    def _start_timer(self, reply: _Reply, now: float, timeout: float) -> None:
        total = reply._expected.total_timeout
        if reply._ends is None:
            reply._ends = None if total is None else now + total
        when = now + timeout if reply._ends is None else min(now + timeout, reply._ends)
        reply._timer = self._loop.call_at(when, self._time_out, reply, timeout)

    def _time_out(self, reply: _Reply, timeout: float) -> None:
        if reply.done():
            return
        self._counted.timeouts += 1
        error = CallTimeout(f"{reply._method}: no answer within {timeout:g} s")
        reply.settle(None, error)
        self._calls.forget(reply.id, tell_peer=True)

    def _cancelled(self, reply: _Reply) -> None:
        if self._host is not None and self._calls.forget(reply.id, tell_peer=True):
            self._counted.cancelled += 1

    def _progressed(self, reply: _Reply, value: Any) -> None:
        if reply._timer is not None and reply._expected.timeout is not None:
            reply._timer.cancel()
            self._start_timer(reply, self._loop.time(), reply._expected.timeout)
        if reply._expected.on_progress is not None:
            try:
                reply._expected.on_progress(value)
            except Exception as error:
                self._dispatcher.log.failure("on_progress failed", error, method=reply._method)


class Batch(BatchItems):
    """Calls that are sent together when the block is left."""

    async def __aenter__(self) -> "Batch":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            await self._caller.send_batch(self._items)
