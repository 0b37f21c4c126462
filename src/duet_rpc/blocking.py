"""The client for programs without an event loop. Threads may share it.

It runs the very logic of the asyncio client (`Caller`) on the calling thread: nothing here
suspends, so each coroutine ends in its first step. The thread that waits for an answer reads for
all; when its own answer has come it passes the reading on to another that waits. So a script pays
for neither a loop nor a thread, and a call costs two system calls and a poll.
"""

import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from duet_rpc.caller import USUAL, BatchItems, Caller, Expected, Item, with_progress_token
from duet_rpc.calls import encode_params
from duet_rpc.context import Reply
from duet_rpc.dispatch import Dispatcher, Job, Log, Silence
from duet_rpc.errors import CallTimeout, ConnectionLost, RpcError, UsageError
from duet_rpc.framing import framing as make_framing
from duet_rpc.policy import SPEC, Policy
from duet_rpc.proxies import make_proxy
from duet_rpc.retry import Retry
from duet_rpc.service import Service
from duet_rpc.stats import ClientStats
from duet_rpc.threads import ThreadHost
from duet_rpc.transports.links import ChildOpener, Link, Opener, SocketOpener
from duet_rpc.workers import Workers

__all__ = ["Batch", "Client"]

P = TypeVar("P")
T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends to its end."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("the blocking face never suspends")


class _Reply:
    """A call on its way. Whoever waits for it blocks, also by `await`."""

    __slots__ = (
        "_client",
        "_done",
        "_error",
        "_event",
        "_raw",
        "deadline",
        "ends",
        "expected",
        "id",
        "method",
    )

    def __init__(self, client: "Client", method: str, expected: Expected) -> None:
        self._client = client
        self._done = False
        self._raw: Any = None
        self._error: Exception | None = None
        self._event: threading.Event | None = None
        self.method = method
        self.expected = expected
        self.id = 0
        self.deadline: float | None = None
        self.ends: float | None = None
        if expected.timeout is not None:
            now = time.monotonic()
            self.deadline = now + expected.timeout
            if expected.total_timeout is not None:
                self.ends = now + expected.total_timeout

    def settle(self, result: Any, error: Exception | None) -> None:
        """Take the answer; the lock is held."""
        if not self._done:
            self._raw, self._error, self._done = result, error, True
            if self._event is not None:
                self._event.set()

    def progress(self, value: Any) -> None:
        """Take news of the call; the lock is held, so whoever wants them is told later."""
        if self.deadline is not None and self.expected.timeout is not None:
            self.deadline = time.monotonic() + self.expected.timeout
            if self.ends is not None:
                self.deadline = min(self.deadline, self.ends)
        if self.expected.on_progress is not None:
            self._client._news.append((self, value))

    def __await__(self) -> Generator[Any, None, Any]:
        return self.result()
        yield

    def result(self) -> Any:
        """Wait for the answer."""
        self._client._wait(self)
        if self._error is not None:
            raise self._error
        return self.expected.decode(self._raw)


class _Done:
    """Something to await that has happened already."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


class _Host(ThreadHost):
    """The connection of a blocking client. The client's lock is held wherever it is used."""

    def __init__(
        self, client: "Client", link: Link, dispatcher: Dispatcher, **options: Any
    ) -> None:
        super().__init__(
            link.channel,
            dispatcher,
            closes_on_lost_boundary=link.is_network,
            answers_faults=False,
            **options,
        )
        self._client = client
        self._link = link
        self._polling = False
        self._retired = False
        self._quiet = threading.Event()

    def wait(self, timeout: float | None) -> list[tuple[int, int]]:
        """Wait without the lock, which whoever calls this holds before and after."""
        self._polling = True
        self._client._lock.release()
        try:
            return super().wait(timeout)
        finally:
            self._client._lock.acquire()
            self._polling = False
            if self._retired:
                self._quiet.set()

    def retire(self) -> None:
        """No more waiting on these descriptors: they are about to be closed."""
        self._retired = True
        if self._polling:
            self.wake()
        else:
            self._quiet.set()

    def end(self) -> None:
        """Give everything back, once the last one who waits has noticed. Blocks."""
        self._quiet.wait()
        self.release()
        self._link.end()

    def loss(self) -> Exception:
        """Ask the link what happened."""
        return self._client._note_loss(self._link.loss())

    def start(self, job: Job) -> None:
        """Run a handler of our own service on a thread of its own: this one reads for all."""
        self._client._workers.run(lambda: self._run(job))

    def _run(self, job: Job) -> None:
        dispatcher = self.connection.dispatcher
        if job.method.is_async:
            import asyncio

            member = asyncio.run(dispatcher.run_async(job))
        else:
            member = dispatcher.run(job)
        with self._client._lock:
            self.connection.finish(job, member)
            self.connection.go_on()
        self.wake()

    # The peer, for handlers: their threads are not the one that reads.

    def notify(self, method: str, params: Any) -> None:
        """Send a notification from a handler."""
        self._client.notify(method, params)

    def call(self, method: str, params: Any, timeout: float | None, returns: Any) -> Reply:
        """Call the server from a handler."""
        expected = self._client._caller.expected(returns, timeout)
        return _PeerReply(self, self._client.request(method, encode_params(params), expected))


class _PeerReply:
    """A call from inside a handler, which gives up its place while it waits."""

    def __init__(self, host: _Host, reply: _Reply) -> None:
        self._host = host
        self._reply = reply

    def __await__(self) -> Generator[Any, None, Any]:
        return self.result()
        yield

    def result(self) -> Any:
        """Wait for the answer."""
        connection, lock = self._host.connection, self._host._client._lock
        with lock:
            connection.pause_slot()
            connection.go_on()
        try:
            return self._reply.result()
        finally:
            with lock:
                connection.resume_slot()


class Client:
    """Calls a JSON-RPC server and waits. `with Client.connect(...)` or `Client.spawn(...)`.

    The options are those of `duet_rpc.Client`.
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
        self._serves = service is not None
        self._one_at_a_time = not allow_concurrent_requests
        self._dispatcher = Dispatcher(service or Service(), policy, log=log or Silence())
        self._caller = Caller(self, timeout=timeout, retry=retry)
        self._host: _Host | None = None
        self._lost: Exception | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._leading = False
        self._waiting: dict[_Reply, None] = {}
        self._news: list[tuple[_Reply, Any]] = []
        self._counted = ClientStats()
        self._workers = Workers()

    @classmethod
    def connect(cls, target: str, **options: Any) -> "Client":
        """Call the server at `unix:PATH` or `tcp://HOST:PORT`."""
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
        """Start a server as a child process and call it over its pipes."""
        return cls(ChildOpener(command, cwd=cwd, env=env, restarts=restarts), **options)

    def __enter__(self) -> "Client":
        self.open()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def open(self) -> None:
        """Connect. `with` does it; afterwards only needed to connect anew by hand."""
        with self._opening:
            if self._closed:
                raise UsageError("this client is closed; make a new one")
            if self._host is not None:
                return
            link = self._opener.open()
            with self._lock:
                self._attach(link)
        if self._serves:
            threading.Thread(target=self._read_always, name="duet-rpc reader", daemon=True).start()

    def _attach(self, link: Link) -> None:
        self._lost = None
        self._counted.connects += 1
        policy = self._dispatcher.policy
        self._host = _Host(
            self,
            link,
            self._dispatcher,
            framing=make_framing(self._framing, max_message_bytes=policy.max_message_bytes),
            id=f"client-{self._counted.connects}",
        )
        self._host.connection.calls.one_at_a_time = self._one_at_a_time

    def close(self) -> None:
        """End the connection; open calls fail, a child process is ended. Idempotent."""
        with self._lock:
            self._closed = True
            host, self._host = self._host, None
            self._lost = self._lost or ConnectionLost("the client was closed")
            if host is not None:
                self._detach(host, self._lost)
        self._workers.close()
        if host is not None:
            host.end()

    def _detach(self, host: _Host, error: Exception) -> None:
        """Let go of a connection; every open call ends. The lock is held."""
        self._counted.unmatched_answers += host.connection.unmatched_answers
        host.connection.calls.lose(error)
        host.retire()

    def _note_loss(self, error: Exception) -> Exception:
        self._lost = error
        if self._host is not None:
            self._counted.lost += len(self._host.connection.calls.open)
        return error

    @property
    def stats(self) -> ClientStats:
        """What happened so far."""
        with self._lock:
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
    ) -> Any:
        """Call a method, once: after a loss nobody knows whether it happened."""
        expected = self._caller.expected(returns, timeout, on_progress, total_timeout)
        return self.request(method, encode_params(params), expected).result()

    def query(
        self,
        method: str,
        params: Any = None,
        *,
        timeout: float | None = USUAL,
        returns: Any = Any,
        retry: Retry | None = None,
    ) -> Any:
        """Call a method that changes nothing; it is tried again as `retry` says."""
        expected = self._caller.expected(returns, timeout)
        return run(self._caller.query(method, params, expected, retry))

    def command(
        self,
        method: str,
        params: Any = None,
        *,
        key: str | None = None,
        timeout: float | None = USUAL,
        returns: Any = Any,
        retry: Retry | None = None,
    ) -> Any:
        """Call a method with effects, under an idempotency key that is kept over all tries."""
        expected = self._caller.expected(returns, timeout)
        return run(self._caller.command(method, params, key, expected, retry))

    def outcome(self, method: str, key: str, *, timeout: float | None = USUAL) -> Any:
        """Ask what became of a command."""
        return run(self._caller.outcome(method, key, self._caller.expected(Any, timeout)))

    def notify(self, method: str, params: Any = None) -> None:
        """Send a notification."""
        self._send(method, encode_params(params))

    def batch(self) -> "Batch":
        """Gather calls and send them together: `with client.batch() as batch: ...`."""
        return Batch(self._caller)

    def proxy(self, interface: type[P], name: str = "") -> P:
        """Make an object whose methods call the server's, typed by a `Protocol` class."""
        proxy: P = make_proxy(self, interface, name)
        return proxy

    # The face of `Caller`.

    def request(self, method: str, params: bytes | None, expected: Expected) -> _Reply:
        """Send one call on the connection that is there, or on a new one."""
        reply = _Reply(self, method, expected)
        with self._connected() as host:
            calls = host.connection.calls
            if expected.on_progress is not None:
                params = with_progress_token(params, calls.last_id + 1)
            reply.id = calls.send(method, params, reply)
            self._counted.calls += 1
            self._sent(host)
        return reply

    async def request_all(self, items: Sequence[Item]) -> RpcError | None:
        """Send items in one array, and wait until each is settled or the whole is refused."""
        refusal: list[RpcError] = []
        replies = [
            None if item.expected is None else _Reply(self, item.method, item.expected)
            for item in items
        ]

        def refused(error: RpcError) -> None:
            refusal.append(error)
            for reply in replies:
                if reply is not None:
                    reply.settle(None, error)

        with self._connected() as host:
            sent = [
                (item.method, item.params, reply)
                for item, reply in zip(items, replies, strict=True)
            ]
            ids = iter(host.connection.calls.send_batch(sent, refused))
            for reply in replies:
                if reply is not None:
                    reply.id = next(ids)
                    self._counted.calls += 1
            self._sent(host)
        for item, reply in zip(items, replies, strict=True):
            try:
                item.settle(None if reply is None else reply.result(), None)
            except Exception as error:
                item.settle(None, error)
        return refusal[0] if refusal else None

    def send(self, method: str, params: bytes | None) -> Awaitable[None]:
        """Send a notification."""
        self._send(method, params)
        return _Done()

    def pause(self, seconds: float) -> Awaitable[None]:
        """Wait between two tries."""
        time.sleep(seconds)
        return _Done()

    def now(self) -> float:
        """Tell the time."""
        return time.monotonic()

    def _send(self, method: str, params: bytes | None) -> None:
        with self._connected() as host:
            host.connection.calls.notify(method, params)
            self._sent(host)

    def _connected(self) -> "_Connected":
        return _Connected(self)

    def _sent(self, host: _Host) -> None:
        """See to what was just put on its way. The lock is held."""
        host.connection.flush()
        if host.outbox.lost:
            self._end(host)
        elif host.outbox.size and self._leading:
            host.wake()  # whoever reads has to watch for room to write as well

    # Waiting.

    def _wait(self, reply: _Reply) -> None:
        try:
            while not reply._done:
                if self._take_lead(reply):
                    try:
                        self._read_for_all(reply)
                    finally:
                        self._pass_lead()
                elif not self._wait_for_leader(reply):
                    self._time_out(reply)
        except BaseException:  # Ctrl-C: nobody waits for this answer any more
            self._forget(reply)
            raise
        finally:
            self._tell_news()

    def _take_lead(self, reply: _Reply) -> bool:
        with self._lock:
            if reply._done:
                return False
            if not self._leading:
                self._leading = True
                return True
            if reply._event is None:
                reply._event = threading.Event()
            reply._event.clear()
            self._waiting[reply] = None
            return False

    def _wait_for_leader(self, reply: _Reply) -> bool:
        """Wait until the answer is there or we are to read; False if the time is over."""
        if reply._done:
            return True
        assert reply._event is not None, "made where the lead was refused"
        while True:
            deadline = reply.deadline
            left = None if deadline is None else deadline - time.monotonic()
            if reply._event.wait(None if left is None else max(left, 0)):
                break
            if reply.deadline == deadline:  # no progress has moved it meanwhile
                return False
        with self._lock:
            self._waiting.pop(reply, None)
        return True

    def _pass_lead(self) -> None:
        with self._lock:
            self._leading = False
            for reply in self._waiting:
                assert reply._event is not None, "whoever waits has an event"
                reply._event.set()
                del self._waiting[reply]
                break

    def _read_for_all(self, reply: _Reply | None) -> None:
        """Read until our own answer is there, its time is over, or the connection is gone."""
        while True:
            with self._lock:
                host = self._host
                if host is None or (reply is not None and reply._done):
                    return
                left = None
                if reply is not None and reply.deadline is not None:
                    left = reply.deadline - time.monotonic()
                    if left <= 0:
                        break
                ready = host.wait(host.prepare(left))
                if host is not self._host:
                    continue
                host.deal(ready)
                if host.input_ended or host.outbox.lost or host.connection.broken:
                    self._end(host)
            self._tell_news()
        assert reply is not None, "only a call has a deadline"
        self._time_out(reply)

    def _read_always(self) -> None:
        """Serve the server's requests although no call waits."""
        while True:
            with self._lock:
                if self._host is None:
                    return
                leads = not self._leading
                self._leading = True
            if leads:
                try:
                    self._read_for_all(None)
                finally:
                    self._pass_lead()
                return
            time.sleep(0.01)

    def _end(self, host: _Host) -> None:
        """The connection is gone. The lock is held."""
        self._host = None
        self._detach(host, self._lost or host.loss())
        threading.Thread(target=host.end, name="duet-rpc end", daemon=True).start()

    def _time_out(self, reply: _Reply) -> None:
        seconds = reply.expected.timeout
        with self._lock:
            self._waiting.pop(reply, None)
            if reply._done:
                return
            self._counted.timeouts += 1
            reply.settle(None, CallTimeout(f"{reply.method}: no answer within {seconds:g} s"))
            self._drop(reply)

    def _forget(self, reply: _Reply) -> None:
        with self._lock:
            self._waiting.pop(reply, None)
            if not reply._done:
                self._counted.cancelled += 1
                reply.settle(None, ConnectionLost("nobody waits for this call any more"))
                self._drop(reply)

    def _drop(self, reply: _Reply) -> None:
        if self._host is not None:
            self._host.connection.calls.forget(reply.id, tell_peer=True)
            if self._host.outbox.lost:
                self._end(self._host)

    def _tell_news(self) -> None:
        while self._news:
            reply, value = self._news.pop(0)
            assert reply.expected.on_progress is not None, "only then is there news"
            try:
                reply.expected.on_progress(value)
            except Exception as error:
                self._dispatcher.log.failure("on_progress failed", error, method=reply.method)


class _Connected:
    """The connection, opened anew if it may be, with the lock held."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __enter__(self) -> _Host:
        client = self._client
        while True:
            client._lock.acquire()
            host = client._host
            if host is not None:
                return host
            client._lock.release()
            if client._closed or not client._reconnect:
                raise client._lost or UsageError("this client is not connected; use `with`")
            client.open()

    def __exit__(self, *exception: object) -> None:
        self._client._lock.release()


class Batch(BatchItems):
    """Calls that are sent together when the block is left."""

    def __enter__(self) -> "Batch":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            run(self._caller.send_batch(self._items))
