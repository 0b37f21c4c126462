"""The asyncio client: many calls in flight on one connection, none of which can hang.

A call is a future that the reader settles, so it costs no task and no timer of its own: calls with
the client's usual timeout expire together, by marks that say which ids are older than a moment.
Every call ends once: with its result, an `RpcError`, its timeout, its cancellation, or the loss of
the connection.
"""

import asyncio
import contextvars
import copy
import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeVar, overload

import msgspec
from msgspec import Struct

from duet_rpc.client.core import (
    USUAL,
    BatchItems,
    Caller,
    Expected,
    Item,
    check_options,
)
from duet_rpc.client.proxies import make_proxy
from duet_rpc.client.stats import ClientStats
from duet_rpc.engine.calls import JOIN, encode_params
from duet_rpc.engine.connection import ConnectionOptions
from duet_rpc.engine.dispatch import Dispatcher, Log
from duet_rpc.engine.results import Decode
from duet_rpc.errors import (
    CallTimeout,
    ConnectionLost,
    InvalidAnswer,
    RpcError,
    UsageError,
    error_classes,
    in_class,
)
from duet_rpc.forks import FORKED, tell_in_child
from duet_rpc.hosts.loop import LoopHost
from duet_rpc.hosts.workers import Workers
from duet_rpc.policy import SPEC, Policy
from duet_rpc.retry import Retry
from duet_rpc.service import Service
from duet_rpc.transports.link import (
    ChildOpener,
    Link,
    Opener,
    SocketOpener,
    StderrOption,
    stderr_reader,
)
from duet_rpc.wire.framing import framing as make_framing
from duet_rpc.wire.params import add_metadata

P = TypeVar("P")
_GRAIN = 0.01
"""Seconds between two marks: how much later than promised a timeout can be, on a loop that runs."""
_NEVER = float("-inf")
_LAST_WRITES = 0.1
"""Seconds that a server has, when we close, to take what was sent before."""


class _Reply(Struct, eq=False):
    """A call on its way, and the future of whoever waits for it.

    The future is a plain one, which tasks await faster than one of a class of ours. So it tells us
    by a callback that somebody has cancelled it; the callback is gone before the reader settles it.
    """

    future: asyncio.Future[Any]
    client: "Client"
    method: str
    expected: Expected
    decode: Decode | None
    id: int = 0
    timer: asyncio.TimerHandle | None = None
    ends: float | None = None

    @property
    def is_usual(self) -> bool:
        """It has the client's usual timeout, and so no timer of its own."""
        return self.timer is None and self.expected.timeout is not None

    def settle(self, result: Any, error: Exception | None) -> None:
        """Take the answer."""
        future = self.future
        if self.timer is not None:
            self.timer.cancel()
        if not future.remove_done_callback(self):
            self.client._came_late(self, error)
        elif error is not None:
            future.set_exception(in_class(error, self.expected.errors))
            if isinstance(error, ConnectionLost):
                future.exception()  # a thousand lost calls that nobody awaits are no thousand news
        elif self.decode is None:
            future.set_result(result)
        else:
            try:
                value = self.decode(result)
            except InvalidAnswer as failure:
                future.set_exception(failure.with_traceback(None))  # which knows the future
            except Exception as failure:  # of the type itself, where a traceback is of use
                future.set_exception(failure)
            else:
                future.set_result(value)

    def progress(self, value: Any) -> None:
        """Take news of the call: it may take longer, up to its total."""
        self.client._progressed(self, value)

    def __call__(self, future: object) -> None:
        """Nobody waits any more: tell the server."""
        if self.timer is not None:
            self.timer.cancel()
        self.client._cancelled(self)


class Client:
    """Calls a JSON-RPC server. `async with Client.connect(...)` or `Client.spawn(...)`.

    `timeout` bounds each call (None: no bound); `retry` says how queries and commands are tried
    again; `service` is served to the server, which may call back. After the connection is lost,
    calls fail at once, or connect anew if `reconnect` is on (it is when there is a `retry`).
    `errors` are the classes that the server's errors are raised in, by their codes: `RpcError`
    subclasses, a base class of theirs, or the `Service` that raises them.
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
        errors: Any = None,
    ) -> None:
        check_options(
            opener,
            timeout=timeout,
            retry=retry,
            reconnect=reconnect,
            framing=framing,
            service=service,
            policy=policy,
            allow_concurrent_requests=allow_concurrent_requests,
            log=log,
        )
        self._opener = opener
        self._reconnect = retry is not None if reconnect is None else reconnect
        self._framing = framing
        self._one_at_a_time = not allow_concurrent_requests
        self._dispatcher = Dispatcher(
            Service() if service is None else service,
            policy,
            log=log,
            errors=error_classes(errors),
            shares_thread=True,
        )
        self._workers = Workers()
        self._caller = Caller(self, timeout=timeout, retry=retry, errors=self._dispatcher.errors)
        self._usual = self._caller.usual
        self._timeout = timeout
        self._host: LoopHost | None = None
        self._opening: asyncio.Task[None] | None = None
        self._endings: set[asyncio.Future[object]] = set()
        self._lost: Exception | None = None
        self._closed = False
        self._marks: deque[tuple[float, int]] = deque()
        self._marked = _NEVER
        self._expiry: asyncio.TimerHandle | None = None
        self._flushing = False
        self._unmarked = 0
        """The first call that this turn of the loop has sent."""
        self._counted = ClientStats()
        self._is_copy = False
        """We are in a forked child, and the connection is the parent's."""
        self._context = contextvars.Context()
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
        stderr: StderrOption = "keep",
        **options: Any,
    ) -> "Client":
        """Start a server as a child process and call it over its pipes.

        `env` is its whole environment, ours if none is given. With `reconnect` it is started again
        after a crash, at most `restarts` times a minute. Of what it says on stderr the last lines
        are kept, for the error that tells of its end; with `stderr="show"` all of it is also copied
        to ours as it comes.
        """
        opener = ChildOpener(
            command, cwd=cwd, env=env, restarts=restarts, on_stderr=stderr_reader(stderr)
        )
        return cls(opener, **options)

    async def __aenter__(self) -> "Client":
        await self.open()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def forked(self) -> None:
        """Leave the connection to the parent."""
        self._is_copy = self._closed = True
        self._host = self._opening = self._expiry = None

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
            self._opening.add_done_callback(_look_at)
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
        self._time = self._loop.time
        self._lost = None
        self._counted.connects += 1
        policy = self._dispatcher.policy
        self._host = LoopHost(
            link.channel,
            self._dispatcher,
            make_framing(
                self._framing, max_message_bytes=policy.max_message_bytes, keeps_ends=True
            ),
            ConnectionOptions(
                id=f"client-{self._counted.connects}",
                closes_on_lost_boundary=link.is_network,
                answers_faults=False,
                one_at_a_time=self._one_at_a_time,
            ),
            workers=self._workers,
            lingers=False,
            loss=link.loss,
            on_end=lambda host: self._ended(host, link),
        )
        self._calls = self._host.connection.calls
        self._marks.clear()
        self._marked = _NEVER
        self._host.begin()

    def _ended(self, host: LoopHost, link: Link) -> None:
        """The connection is gone: calls fail at once from now on, or connect anew."""
        if host is self._host:
            self._host = None
        self._lost = host.lost_by
        self._count(self._counted, host)
        self._counted.lost += host.lost_calls
        if link.is_network:
            link.end()
        else:  # a child process may take its time
            ending = self._loop.run_in_executor(None, link.end)
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)

    async def close(self) -> None:
        """End the connection; open calls fail, a child process is ended. Idempotent."""
        if self._is_copy:
            return
        self._closed = True
        if self._opening is not None:
            await asyncio.wait([self._opening])
        host, self._host = self._host, None
        if host is not None:
            try:
                await asyncio.sleep(0)  # calls that were just cancelled have still to tell us
                host.connection.flush()
                await host.drained(_LAST_WRITES)
            finally:
                host.close(ConnectionLost("the client was closed"))
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        self._workers.close()
        if self._endings:
            await asyncio.wait(self._endings)

    @property
    def stats(self) -> ClientStats:
        """What happened so far."""
        stats = msgspec.structs.replace(self._counted)
        if self._host is not None:
            self._count(stats, self._host)
            stats.pending = len(self._host.connection.calls.open)
        return stats

    @staticmethod
    def _count(stats: ClientStats, host: LoopHost) -> None:
        stats.calls += host.connection.calls.last_id
        stats.unmatched_answers += host.connection.unmatched_answers
        stats.faults += host.connection.stats.faults

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
        errors: Any = None,
    ) -> asyncio.Future[Any]:
        """Call a method, once: after a loss nobody knows whether it happened.

        It is on its way when this returns; await the answer, or cancel it. `on_progress` is told
        the news that the server sends, each of which starts the timeout again. `total_timeout`
        bounds the call whatever its progress, also with `timeout=None`.
        """
        if (
            timeout == USUAL
            and returns is Any
            and on_progress is None
            and total_timeout is None
            and errors is None
        ):
            expected = self._usual
        else:
            expected = self._caller.expected(returns, timeout, on_progress, total_timeout, errors)
        return self.request(method, encode_params(params), expected)

    def query(
        self,
        method: str,
        params: Any = None,
        *,
        timeout: float | None = USUAL,
        returns: Any = Any,
        retry: Retry | None = None,
        on_progress: Callable[[Any], None] | None = None,
        total_timeout: float | None = None,
        errors: Any = None,
    ) -> Awaitable[Any]:
        """Call a method that changes nothing; it is tried again as `retry` says."""
        expected = self._caller.expected(returns, timeout, on_progress, total_timeout, errors)
        return self._caller.query(method, params, expected, retry)

    def command(
        self,
        method: str,
        params: Any = None,
        *,
        key: str | None = None,
        age: float | None = None,
        timeout: float | None = USUAL,
        returns: Any = Any,
        retry: Retry | None = None,
        on_progress: Callable[[Any], None] | None = None,
        total_timeout: float | None = None,
        errors: Any = None,
    ) -> Awaitable[Any]:
        """Call a method with effects, under an idempotency key that is kept over all tries.

        `age` says how many seconds ago it was first sent under this `key`, if it was: perhaps by
        another process. A server that cannot know what became of it then does not run it again.
        """
        expected = self._caller.expected(returns, timeout, on_progress, total_timeout, errors)
        return self._caller.command(method, params, key, expected, retry, age)

    def outcome(self, method: str, key: str, *, timeout: float | None = USUAL) -> Awaitable[Any]:
        """Ask what became of a command."""
        return self._caller.outcome(method, key, self._caller.expected(Any, timeout))

    async def notify(self, method: str, params: Any = None) -> None:
        """Send a notification; waits while the server does not read, up to the usual timeout."""
        encoded = encode_params(params)
        if self._host is None:
            await self._connected()
        await self.send(method, encoded, self._timeout)

    def batch(self) -> "Batch":
        """Gather calls and send them together: `async with client.batch() as batch: ...`."""
        return Batch(self._caller)

    @overload
    def proxy(self, interface: Service, name: str = "", *, errors: Any = None) -> Any: ...
    @overload
    def proxy(self, interface: Callable[..., P], name: str = "", *, errors: Any = None) -> P: ...
    def proxy(self, interface: Any, name: str = "", *, errors: Any = None) -> Any:
        """Make an object whose methods call the server's.

        They are those of a `Protocol` class, which the server has under `name.`, or of a `Service`.
        They raise the errors of that service, or the classes given as `errors`.
        """
        return make_proxy(self, interface, name, errors)

    # The face of `Caller`.

    def request(self, method: str, params: bytes | None, expected: Expected) -> asyncio.Future[Any]:
        """Send one call on the connection that is there, or on a new one."""
        host = self._host
        if host is None:
            return self._request_anew(method, params, expected)
        calls = self._calls
        is_usual = expected is self._usual
        if not is_usual and expected.on_progress is not None:
            params = add_metadata(params, progress_token=calls.last_id + 1)
        future: asyncio.Future[Any] = asyncio.Future(loop=self._loop)
        reply = _Reply(future, self, method, expected, expected.decode)
        future.add_done_callback(reply, context=self._context)
        reply.id = id = calls.send(method, params, reply)
        if not is_usual and (expected.timeout != self._timeout or expected.on_progress is not None):
            self._start_timer(reply, expected.timeout)
        if self._flushing:
            if id % JOIN == 0:
                host.connection.flush()
        elif len(calls.open) == 1:
            host.connection.flush()
            self._mark(id)
        else:
            self._flushing = True
            self._unmarked = id
            self._loop.call_soon(self._flush)
        return future

    def _reply(self, method: str, expected: Expected) -> _Reply:
        future: asyncio.Future[Any] = asyncio.Future(loop=self._loop)
        reply = _Reply(future, self, method, expected, expected.decode)
        future.add_done_callback(reply, context=self._context)
        return reply

    def _request_anew(
        self, method: str, params: bytes | None, expected: Expected
    ) -> asyncio.Future[Any]:
        error = self._unreachable
        if error is None:
            return self._loop.create_task(self._connect_and_request(method, params, expected))
        failed = self._loop.create_future()
        failed.set_exception(error)
        return failed

    @property
    def _unreachable(self) -> Exception | None:
        """Why there is no connection and will be none; None if one can be made."""
        if self._is_copy:
            raise UsageError(FORKED)
        if self._lost is None and not self._counted.connects:
            raise UsageError("this client is not connected; use `async with`")
        if self._closed or not self._reconnect:
            return copy.copy(self._lost or ConnectionLost("the client was closed"))
        return None

    def _check_reachable(self) -> None:
        """Raise why there is no connection and will be none."""
        if self._unreachable is not None:
            raise self._unreachable  # another copy, which has no name in this frame

    async def _connect_and_request(
        self, method: str, params: bytes | None, expected: Expected
    ) -> Any:
        limit, begun = expected.limit, self._loop.time()
        try:
            async with asyncio.timeout(limit):
                await self.open()
        except TimeoutError:
            self._counted.timeouts += 1
            raise CallTimeout(f"{method}: no connection within {limit:g} s") from None
        return await self.request(method, params, expected.after(self._loop.time() - begun))

    async def _connected(self) -> LoopHost:
        if self._host is None:
            self._check_reachable()
            await self.open()
        if self._host is None:
            raise copy.copy(self._lost or ConnectionLost("the connection was lost again"))
        return self._host

    async def request_all(self, items: Sequence[Item]) -> RpcError | None:
        """Send items in one array, and wait until each is settled or the whole is refused."""
        host = await self._connected()
        refusal: list[RpcError] = []
        replies = [
            None if item.expected is None else self._reply(item.method, item.waits_for)
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
        for reply in replies:
            if reply is not None:
                reply.id = next(ids)
                self._start_timer(reply, reply.expected.timeout)
        host.connection.flush()
        try:
            for item, reply in zip(items, replies, strict=True):
                try:
                    item.settle(None if reply is None else await reply.future, None)
                except Exception as error:
                    item.settle(None, error)
        finally:
            for reply in replies:
                if reply is not None and not reply.future.cancel():
                    _look_at(reply.future)
        return refusal[0] if refusal else None

    def send(
        self, method: str, params: bytes | None, patience: float | None
    ) -> asyncio.Future[None]:
        """Send a notification; the server has so many seconds to read what was sent before."""
        host = self._host
        if host is not None:
            host.connection.calls.notify(method, params)
            if not host.connection.calls.holds:
                sent = self._loop.create_future()
                sent.set_result(None)
                return sent
            return self._loop.create_task(self._wait_until_sent(host, method, patience))
        return self._loop.create_task(self._connect_and_send(method, params, patience))

    async def _connect_and_send(
        self, method: str, params: bytes | None, patience: float | None
    ) -> None:
        await self._connected()
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
        """Wait between two tries."""
        await asyncio.sleep(seconds)

    def now(self) -> float:
        """Tell the loop's time."""
        return self._loop.time()

    def _flush(self) -> None:
        self._flushing = False
        if self._host is not None:
            self._host.connection.flush()
            self._mark(self._unmarked)

    # Time.

    def _mark(self, id: int) -> None:
        """Note that the time of ids from this one on begins now or later.

        One look at the clock serves all calls of a turn of the loop. It is taken when they are all
        there, so that no timeout comes too early.
        """
        now = self._time()
        if now - self._marked < _GRAIN or self._timeout is None:
            return
        marks = self._marks
        oldest = self._oldest_usual()
        while len(marks) > 1 and marks[1][1] <= oldest:
            marks.popleft()  # all that it stood for are settled
        self._marked = now
        marks.append((now, id))
        if self._expiry is None:
            self._watch_marks()

    def _oldest_usual(self) -> int:
        """Find the oldest call with the usual timeout, behind a few that wait for ever."""
        for id, waiter in itertools.islice(self._calls.open.items(), 16):
            if isinstance(waiter, _Reply) and waiter.is_usual:
                return id
        return 0

    def _watch_marks(self) -> None:
        assert self._timeout is not None, "marks are for the usual timeout"
        # The last call of a mark was sent a grain after the first; no timeout comes too early.
        when = self._marks[0][0] + self._timeout + _GRAIN
        self._expiry = self._loop.call_at(when, self._expire, when)

    def _expire(self, when: float) -> None:
        self._expiry = None
        marks, usual = self._marks, self._timeout
        assert usual is not None, "marks are for the usual timeout"
        now = max(when, self._loop.time())
        while marks and marks[0][0] + usual + _GRAIN <= now:
            marks.popleft()
        first_young = marks[0][1] if marks else self._calls.last_id + 1
        if self._flushing:
            first_young = min(first_young, self._unmarked)  # they were sent in this very turn
        old = []
        for id, waiter in self._calls.open.items():
            if id >= first_young:
                break
            if isinstance(waiter, _Reply) and waiter.is_usual:
                old.append(waiter)
        for waiter in old:
            self._time_out(waiter)
        if not self._calls.open:
            marks.clear()
        if marks:
            self._watch_marks()
        else:
            self._marked = _NEVER

    def _start_timer(self, reply: _Reply, timeout: float | None) -> None:
        """End the call after this timeout, or when its time in all is over."""
        now, total = self._time(), reply.expected.total_timeout
        if reply.ends is None and total is not None:
            reply.ends = now + total
        if reply.ends is not None and (timeout is None or reply.ends < now + timeout):
            reply.timer = self._loop.call_at(reply.ends, self._time_out, reply, True)
        elif timeout is not None:
            reply.timer = self._loop.call_at(now + timeout, self._time_out, reply)

    def _time_out(self, reply: _Reply, in_all: bool = False) -> None:
        if reply.future.done():
            return
        self._counted.timeouts += 1
        reply.settle(None, reply.expected.too_late(reply.method, in_all=in_all))
        self._calls.forget(reply.id, tell_peer=True)

    def _cancelled(self, reply: _Reply) -> None:
        if self._calls.forget(reply.id, tell_peer=True):
            self._counted.cancelled += 1

    def _came_late(self, reply: _Reply, error: Exception | None) -> None:
        """The call was cancelled, and its end came before the cancellation could be sent."""
        self._counted.cancelled += 1
        if self._host is not None and not isinstance(error, ConnectionLost):
            self._calls.drop_late(reply.id)

    def _progressed(self, reply: _Reply, value: Any) -> None:
        expected = reply.expected
        if expected.on_progress is None:
            return  # it asked for none; a number of the server's own is like its id
        if reply.timer is not None:
            reply.timer.cancel()
            timeout = expected.timeout
            self._start_timer(reply, None if timeout is None else timeout + expected.spent)
        try:
            expected.on_progress(value)
        except Exception as error:
            self._dispatcher.log.failure("on_progress failed", error, method=reply.method)


def _look_at(future: asyncio.Future[Any]) -> None:
    """Let asyncio know that an exception has been seen, or need not be."""
    if future.done() and not future.cancelled():
        future.exception()


class Batch(BatchItems):
    """Calls that are sent together when the block is left."""

    async def __aenter__(self) -> "Batch":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            await self._caller.send_batch(self._items)
