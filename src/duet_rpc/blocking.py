"""The client for programs without an event loop. Threads may share it.

It runs the very logic of the asyncio client (`Caller`) on the calling thread: nothing here
suspends, so each coroutine ends in its first step. The thread that waits for an answer reads for
all; when its own answer has come it passes the reading on to another that waits. So a script pays
for neither a loop nor a thread, and a call costs two system calls and a poll.

Ctrl-C may come between any two steps. So the lock is only ever taken by `with` on the lock itself,
which nothing can come in between, and never by a method of ours that takes it and returns.
"""

import copy
import select
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from typing import Any, Literal, TypeVar, overload

import msgspec

from duet_rpc.caller import USUAL, BatchItems, Caller, Expected, Item, with_progress_token
from duet_rpc.calls import encode_params
from duet_rpc.context import Reply
from duet_rpc.dispatch import Dispatcher, Job, Log, Silence
from duet_rpc.errors import (
    CallTimeout,
    ConnectionLost,
    DeadlineExceeded,
    RpcError,
    UsageError,
)
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

_LONG = 3600.0
"""Seconds that one wait lasts at most; the system takes no numbers of any size."""
_LAST_READS = 256


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends to its end."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("the blocking face never suspends")


class _Gate:
    """What one thread waits at. Unlike an `Event`, Ctrl-C while it waits leaves nothing locked."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def shut(self) -> None:
        """Have the next wait wait. The client's lock is held."""
        self._lock.acquire(blocking=False)

    def open(self) -> None:
        """Let the one who waits pass, or who comes next. The client's lock is held."""
        if self._lock.locked():
            self._lock.release()

    def wait(self, seconds: float) -> bool:
        """Wait; False if the time is over."""
        return self._lock.acquire(timeout=seconds)


class _Reply:
    """A call on its way. Whoever waits for it blocks, also by `await`."""

    __slots__ = (
        "_client",
        "_done",
        "_error",
        "_gate",
        "_raw",
        "deadline",
        "ends",
        "expected",
        "host",
        "id",
        "method",
    )

    def __init__(self, client: "Client", method: str, expected: Expected) -> None:
        self._client = client
        self._done = False
        self._raw: Any = None
        self._error: Exception | None = None
        self._gate: _Gate | None = None
        self.method = method
        self.expected = expected
        self.host: _Host | None = None
        """What it was sent on."""
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
            if self._gate is not None:
                self._gate.open()

    def progress(self, value: Any) -> None:
        """Take news of the call; the lock is held, so whoever wants them is told later."""
        if self.expected.on_progress is None:
            return  # it asked for none; a number of the server's own is like its id
        if self.deadline is not None and self.expected.timeout is not None:
            self.deadline = time.monotonic() + self.expected.timeout
            if self.ends is not None:
                self.deadline = min(self.deadline, self.ends)
        self._client._news.append((self, value))

    @property
    def left(self) -> float | None:
        """Seconds until its time is over; None if it has no end."""
        return None if self.deadline is None else self.deadline - time.monotonic()

    def cancel(self) -> bool:
        """Stop waiting, and tell the server; False if the answer is there."""
        return self._client._forget(self)

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
        self.retired = False
        self.lost_by: Exception | None = None
        self._client = client
        self._link = link
        self.polling = False
        """Somebody waits on our descriptors, or is about to."""

    @property
    def unsent(self) -> bool:
        """Something of ours waits for the server to read."""
        return self.outbox.size > 0 or self.connection.calls.holds

    def wait(self, timeout: float | None) -> list[tuple[int, int]]:
        """Wait, without the lock; `polling` was set with it."""
        return super().wait(_LONG if timeout is None else min(timeout, _LONG))

    def stir(self) -> None:
        """Have whoever waits look again at what there is to wait for."""
        if self.polling:
            self.wake()

    def read_last_words(self) -> None:
        """The server takes nothing more, but it may have answered before."""
        poll = select.poll()
        poll.register(self.channel.read_fd, select.POLLIN)
        for _ in range(_LAST_READS):
            if self.input_ended or not self.connection.wants_data or not poll.poll(0):
                break
            self._readable()

    def retire(self) -> None:
        """No more waiting on these descriptors: they are about to be closed."""
        self.retired = True
        self.outbox.lose()
        self.stir()

    def end(self) -> None:
        """Give everything back, once the last one who waits has noticed. Blocks."""
        while self.polling:  # not for long: it has been woken
            time.sleep(0.001)
        with self._client._lock:  # a handler that ends now must find it retired, or not at all
            self.release()
        self._link.end()

    def loss(self) -> Exception:
        """Say what happened: to the framing, or to the link."""
        if self.lost_by is None:
            if self.connection.broken:
                self.lost_by = ConnectionLost("the server sent something that is no frame")
            else:
                self.lost_by = self._link.loss()
            self._client._counted.lost += len(self.connection.calls.open)
        return self.lost_by

    def start(self, job: Job) -> None:
        """Run a handler of our own service on a thread of its own: this one reads for all."""
        self._client._workers.run(lambda: self._run(job))

    def _run(self, job: Job) -> None:
        dispatcher, seconds = self.connection.dispatcher, job.method.timeout
        timer = None
        if seconds is not None:
            timer = threading.Timer(seconds, self._overrun, [job])
            timer.daemon = True
            timer.start()
        if job.method.is_async:
            import asyncio

            member = asyncio.run(dispatcher.run_async(job))
        else:
            member = dispatcher.run(job)
        if timer is not None:
            timer.cancel()
        with self._client._lock:
            self.connection.finish(job, member)
            self._go_on()

    def _overrun(self, job: Job) -> None:
        with self._client._lock:
            if not self.retired:
                self.connection.abandon(job, DeadlineExceeded())
                self._go_on()

    def _go_on(self) -> None:
        if not self.retired:
            self.connection.go_on()
            self.stir()

    # The peer, for handlers: their threads are not the one that reads.

    def notify(self, method: str, params: Any) -> None:
        """Send a notification from a handler."""
        client = self._client
        client._send(method, encode_params(params), client._timeout, self).result()

    def call(self, method: str, params: Any, timeout: float | None, returns: Any) -> Reply:
        """Call the server from a handler."""
        client = self._client
        expected = client._caller.expected(returns, timeout)
        reply = client._request(method, encode_params(params), expected, self)
        return _PeerReply(self, reply)


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
        host, lock = self._host, self._host._client._lock
        with lock:
            host.connection.pause_slot()
            host._go_on()
        try:
            return self._reply.result()
        finally:
            with lock:
                host.connection.resume_slot()


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
        self._dispatcher = Dispatcher(
            service or Service(), policy, log=log or Silence(), shares_thread=True
        )
        self._caller = Caller(self, timeout=timeout, retry=retry)
        self._timeout = timeout
        self._host: _Host | None = None
        self._lost: Exception | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._opening = threading.RLock()
        self._leader: _Reply | None = None
        self._waiting: dict[_Reply, None] = {}
        self._unsent: list[_Reply] = []
        self._always: _Reply | None = None
        self._news: deque[tuple[_Reply, Any]] = deque()
        self._endings: set[threading.Thread] = set()
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
        self._open(None)

    def _open(self, patience: float | None) -> None:
        begun = time.monotonic()
        try:
            if not self._opening.acquire(timeout=-1 if patience is None else max(0.0, patience)):
                raise self._no_connection()
            if self._closed:
                raise UsageError("this client is closed; make a new one")
            if self._host is not None:
                return
            if patience is not None:
                patience = max(0.001, patience - (time.monotonic() - begun))
            link = self._opener.open(patience)
            with self._lock:
                if not self._closed:
                    self._attach(link)
                    return
            link.end()
            raise ConnectionLost("the client was closed while it connected")
        finally:
            if self._opening._is_owned():  # type: ignore[attr-defined]  # Ctrl-C may come first
                self._opening.release()

    def _no_connection(self) -> CallTimeout:
        with self._lock:
            self._counted.timeouts += 1
        return CallTimeout("no connection could be made in time")

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
        if self._serves:
            # The server's requests are served although no call waits: as if one always did.
            self._always = always = _Reply(self, "", self._caller.expected(Any, None))
            threading.Thread(
                target=self._wait, args=[always], name="duet-rpc reader", daemon=True
            ).start()

    def close(self) -> None:
        """End the connection; open calls fail, a child process is ended. Idempotent."""
        with self._lock:
            self._closed = True
            host = self._host
            if host is not None:
                host.lost_by = ConnectionLost("the client was closed")
                self._counted.lost += len(host.connection.calls.open)
                self._detach(host)
            endings = list(self._endings)
        self._workers.close()
        if host is not None:
            host.end()
        for ending in endings:
            ending.join()

    def _end(self, host: _Host) -> None:
        """The connection is gone. The lock is held."""
        if host is not self._host:
            return
        if host.outbox.lost:
            host.read_last_words()
        self._detach(host)
        ending = threading.Thread(
            target=self._see_to_end, args=[host], name="duet-rpc end", daemon=True
        )
        self._endings.add(ending)
        ending.start()

    def _see_to_end(self, host: _Host) -> None:
        host.end()
        with self._lock:
            self._endings.discard(threading.current_thread())

    def _detach(self, host: _Host) -> None:
        """Let go of a connection; every open call ends. The lock is held."""
        self._host = None
        self._lost = error = host.loss()
        self._count(self._counted, host)
        host.connection.calls.lose(error)
        host.connection.drop_queued()
        unsent, self._unsent = self._unsent, []
        for reply in unsent:
            reply.settle(None, copy.copy(error))
        if self._always is not None:
            self._always.settle(b"null", None)
        for waiting in self._waiting:
            if waiting._gate is not None:
                waiting._gate.open()
        host.retire()

    @property
    def stats(self) -> ClientStats:
        """What happened so far."""
        with self._lock:
            stats = msgspec.structs.replace(self._counted)
            if self._host is not None:
                self._count(stats, self._host)
                stats.pending = len(self._host.connection.calls.open)
            return stats

    @staticmethod
    def _count(stats: ClientStats, host: _Host) -> None:
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
    ) -> Any:
        """Call a method, once: after a loss nobody knows whether it happened.

        `on_progress` is told the news that the server sends, each of which starts the timeout
        again, up to `total_timeout`. Whichever thread reads at the moment tells it.
        """
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
        on_progress: Callable[[Any], None] | None = None,
        total_timeout: float | None = None,
    ) -> Any:
        """Call a method that changes nothing; it is tried again as `retry` says."""
        expected = self._caller.expected(returns, timeout, on_progress, total_timeout)
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
        on_progress: Callable[[Any], None] | None = None,
        total_timeout: float | None = None,
    ) -> Any:
        """Call a method with effects, under an idempotency key that is kept over all tries."""
        expected = self._caller.expected(returns, timeout, on_progress, total_timeout)
        return run(self._caller.command(method, params, key, expected, retry))

    def outcome(self, method: str, key: str, *, timeout: float | None = USUAL) -> Any:
        """Ask what became of a command."""
        return run(self._caller.outcome(method, key, self._caller.expected(Any, timeout)))

    def notify(self, method: str, params: Any = None) -> None:
        """Send a notification; waits while the server does not read, up to the usual timeout."""
        self._send(method, encode_params(params), self._timeout, None).result()

    def batch(self) -> "Batch":
        """Gather calls and send them together: `with client.batch() as batch: ...`."""
        return Batch(self._caller)

    @overload
    def proxy(self, interface: Service, name: str = "") -> Any: ...
    @overload
    def proxy(self, interface: Callable[..., P], name: str = "") -> P: ...
    def proxy(self, interface: Any, name: str = "") -> Any:
        """Make an object whose methods call the server's.

        They are those of a `Protocol` class, which the server has under `name.`, or of a `Service`.
        """
        return make_proxy(self, interface, name)

    # The face of `Caller`.

    def request(self, method: str, params: bytes | None, expected: Expected) -> _Reply:
        """Send one call on the connection that is there, or on a new one."""
        return self._request(method, params, expected, None)

    def _request(
        self, method: str, params: bytes | None, expected: Expected, only: _Host | None
    ) -> _Reply:
        reply = _Reply(self, method, expected)

        def send(host: _Host) -> None:
            calls = host.connection.calls
            asked = params
            if expected.on_progress is not None:
                asked = with_progress_token(params, calls.last_id + 1)
            reply.host = host
            reply.id = calls.send(method, asked, reply, in_turn=only is None)
            self._counted.calls += 1

        self._send_by(send, reply, only)
        return reply

    async def request_all(self, items: Sequence[Item]) -> RpcError | None:
        """Send items in one array, and wait until each is settled or the whole is refused."""
        refusal: list[RpcError] = []
        replies = [
            None if item.expected is None else _Reply(self, item.method, item.waits_for)
            for item in items
        ]
        first = next((reply for reply in replies if reply is not None), None)

        def refused(error: RpcError) -> None:
            refusal.append(error)
            for reply in replies:
                if reply is not None:
                    reply.settle(None, error)

        def send(host: _Host) -> None:
            sent = [
                (item.method, item.params, reply)
                for item, reply in zip(items, replies, strict=True)
            ]
            ids = iter(host.connection.calls.send_batch(sent, refused))
            for reply in replies:
                if reply is not None:
                    reply.host = host
                    reply.id = next(ids)
                    self._counted.calls += 1

        self._send_by(send, first or _Reply(self, "batch", self._caller.usual), None)
        try:
            for item, reply in zip(items, replies, strict=True):
                try:
                    item.settle(None if reply is None else reply.result(), None)
                except Exception as error:
                    item.settle(None, error)
        finally:
            for reply in replies:
                if reply is not None:
                    reply.cancel()
        return refusal[0] if refusal else None

    def send(self, method: str, params: bytes | None, patience: float | None) -> _Reply:
        """Send a notification; the server has so many seconds to read what was sent before."""
        return self._send(method, params, patience, None)

    def pause(self, seconds: float) -> Awaitable[None]:
        """Wait between two tries."""
        time.sleep(seconds)
        return _Done()

    def now(self) -> float:
        """Tell the time."""
        return time.monotonic()

    def _send(
        self, method: str, params: bytes | None, patience: float | None, only: _Host | None
    ) -> _Reply:
        reply = _Reply(self, method, self._caller.expected(Any, patience))

        def send(host: _Host) -> None:
            reply.host = host
            self._unsent.append(reply)
            host.connection.calls.notify(method, params)

        self._send_by(send, reply, only)
        return reply

    def _send_by(self, send: Callable[[_Host], None], reply: _Reply, only: _Host | None) -> None:
        """Send on the connection, or on no other than `only`; opened anew if it may be."""
        while True:
            with self._lock:
                host = self._host
                if host is not None and (only is None or host is only):
                    try:
                        send(host)
                        self._sent(host)
                    except Exception:
                        raise
                    except BaseException:
                        self._interrupted("the sending of a call was interrupted")
                        raise
                    return
            if only is not None:
                raise copy.copy(only.loss())
            if self._lost is None:
                raise UsageError("this client is not connected; use `with`")
            if self._closed or not self._reconnect:
                raise copy.copy(self._lost)
            left = reply.left
            if left is not None and left <= 0:
                raise self._no_connection()
            self._open(left)

    def _sent(self, host: _Host) -> None:
        """See to what was just put on its way. The lock is held."""
        host.connection.flush()
        if host.outbox.lost:
            self._end(host)
        elif host.unsent:
            host.stir()  # whoever reads has to watch for room to write as well
        elif self._unsent:
            self._settle_sent()

    def _settle_sent(self) -> None:
        sent, self._unsent = self._unsent, []
        for reply in sent:
            reply.settle(b"null", None)

    # Waiting.

    def _wait(self, reply: _Reply) -> None:
        try:
            while not reply._done:
                if self._take_lead(reply):
                    self._read_for_all(reply)
                    if self._news:
                        self._leave(reply)
                        self._tell_news()
                else:
                    self._follow(reply)
        except BaseException:  # Ctrl-C: nobody waits for this answer any more
            self._forget(reply)
            raise
        finally:
            self._leave_surely(reply)
        self._tell_news()

    def _leave_surely(self, reply: _Reply) -> None:
        """Leave although Ctrl-C comes just then: nobody else would read any more."""
        interruption: BaseException | None = None
        while True:
            try:
                self._leave(reply)
                break
            except BaseException as error:
                interruption = error
        if interruption is not None:
            raise interruption

    def _take_lead(self, reply: _Reply) -> bool:
        with self._lock:
            if self._is_over(reply):
                return False
            if self._leader is None:
                self._leader = reply
                return True
            if reply._gate is None:
                reply._gate = _Gate()
            reply._gate.shut()
            self._waiting[reply] = None
            return False

    def _is_over(self, reply: _Reply) -> bool:
        """Whether there is nothing to wait for any more. The lock is held."""
        if reply.host is not None and reply.host is not self._host:
            # Nearly always it has been told. But Ctrl-C may have come just when it was to be.
            reply.settle(None, copy.copy(reply.host.loss()))
        return reply._done

    def _follow(self, reply: _Reply) -> None:
        """Wait until the answer is there, we are to read, or the time is over."""
        while not reply._done:
            assert reply._gate is not None, "made where the lead was refused"
            left = reply.left
            if reply._gate.wait(_LONG if left is None else min(max(left, 0.0), _LONG)):
                return
            if left is not None and left <= 0:
                with self._lock:
                    self._time_out(reply)
                return

    def _leave(self, reply: _Reply) -> None:
        """Wait and lead no more. If nobody leads now, one of those who wait is to."""
        with self._lock:
            self._waiting.pop(reply, None)
            if self._leader is reply:
                self._leader = None
            # Also if we did not lead: we may have been asked to when our time was over.
            if self._leader is None and self._waiting:
                successor = next(iter(self._waiting))
                del self._waiting[successor]
                assert successor._gate is not None, "whoever waits has a gate"
                successor._gate.open()

    def _read_for_all(self, reply: _Reply) -> None:
        """Read until our own answer is there, its time is over, or there is news to tell."""
        host: _Host | None = None
        ready: list[tuple[int, int]] = []
        while True:
            try:
                with self._lock:
                    try:
                        if host is not None and host is self._host:
                            self._deal(host, ready)
                        if self._is_over(reply) or self._news:
                            return
                        host = self._host
                        assert host is not None, "a lost connection settles all its calls"
                        left = reply.left
                        if left is not None and left <= 0:
                            self._time_out(reply)
                            return
                        timeout = host.prepare(left)
                        host.polling = True
                    except BaseException:
                        self._interrupted("the reading of an answer was interrupted")
                        raise
                ready = host.wait(timeout)
            finally:
                if host is not None:
                    host.polling = False

    def _deal(self, host: _Host, ready: list[tuple[int, int]]) -> None:
        host.deal(ready)
        if host.input_ended or host.outbox.lost or host.connection.broken:
            self._end(host)
        elif self._unsent and not host.unsent:
            self._settle_sent()

    def _time_out(self, reply: _Reply) -> None:
        """End a call whose time is over. The lock is held."""
        if reply._done:
            return
        self._counted.timeouts += 1
        seconds = reply.expected.timeout
        reply.settle(None, CallTimeout(f"{reply.method}: no answer within {seconds:g} s"))
        self._drop(reply)

    def _forget(self, reply: _Reply) -> bool:
        with self._lock:
            if reply._done:
                return False
            self._counted.cancelled += 1
            reply.settle(None, ConnectionLost("nobody waits for this call any more"))
            try:
                self._drop(reply)
            except BaseException:
                self._interrupted("the cancelling of a call was interrupted")
                raise
            return True

    def _interrupted(self, text: str) -> None:
        """Give the connection up after a Ctrl-C between two bytes. The lock is held.

        Nobody knows what was read or sent, or which of our own notes about it were made.
        """
        if self._host is not None:
            self._host.lost_by = ConnectionLost(text)
            self._end(self._host)

    def _drop(self, reply: _Reply) -> None:
        if reply in self._unsent:
            self._unsent.remove(reply)
        if self._host is not None:
            self._host.connection.calls.forget(reply.id, tell_peer=True)
            self._sent(self._host)

    def _tell_news(self) -> None:
        while self._news:
            try:
                reply, value = self._news.popleft()
            except IndexError:
                return  # another thread was faster
            assert reply.expected.on_progress is not None, "only then is there news"
            try:
                reply.expected.on_progress(value)
            except Exception as error:
                self._dispatcher.log.failure("on_progress failed", error, method=reply.method)


class Batch(BatchItems):
    """Calls that are sent together when the block is left."""

    def __enter__(self) -> "Batch":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            run(self._caller.send_batch(self._items))
