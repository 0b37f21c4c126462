"""The client for programs without an event loop. Threads may share it.

It runs the very logic of the asyncio client (`Caller`) on the calling thread: nothing here
suspends, so each coroutine ends in its first step.
"""

import copy
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from math import inf
from typing import Any, Literal, TypeVar, overload

from duet_rpc.client.blocking_host import BlockingHost
from duet_rpc.client.core import USUAL, BatchItems, Caller, Expected, Item, check_options
from duet_rpc.client.proxies import make_proxy
from duet_rpc.client.replies import Reply
from duet_rpc.client.shared import Line
from duet_rpc.client.stats import ClientStats
from duet_rpc.engine.calls import encode_params
from duet_rpc.engine.dispatch import Dispatcher, Log
from duet_rpc.errors import ConnectionLost, RpcError, UsageError, error_classes
from duet_rpc.forks import FORKED, tell_in_child
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

__all__ = ["Batch", "Call", "Client"]

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


class _Done:
    """Something to await that has happened already."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


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
        self._serves = service is not None
        self._one_at_a_time = not allow_concurrent_requests
        self._dispatcher = Dispatcher(
            Service() if service is None else service,
            policy,
            log=log,
            errors=error_classes(errors),
            shares_thread=True,
        )
        self._caller = Caller(self, timeout=timeout, retry=retry, errors=self._dispatcher.errors)
        self._timeout = timeout
        self._retry = retry
        self._opening = threading.RLock()
        self._line = Line(self._dispatcher.log)

    @property
    def _host(self) -> BlockingHost | None:
        return self._line.host

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
        stderr: StderrOption = "keep",
        **options: Any,
    ) -> "Client":
        """Start a server as a child process and call it over its pipes; see `duet_rpc.Client`."""
        opener = ChildOpener(
            command, cwd=cwd, env=env, restarts=restarts, on_stderr=stderr_reader(stderr)
        )
        return cls(opener, **options)

    def __enter__(self) -> "Client":
        self.open()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def open(self) -> None:
        """Connect. `with` does it; afterwards only needed to connect anew by hand."""
        self._open(None)

    def _open(self, patience: float | None) -> None:
        line, begun = self._line, time.monotonic()
        interruption: BaseException | None = None
        if line.is_copy:
            raise UsageError(FORKED)
        tell_in_child(line)
        try:
            if not self._opening.acquire(timeout=-1 if patience is None else max(0.0, patience)):
                raise line.too_late()
            if line.closed:
                raise UsageError("this client is closed; make a new one")
            if line.host is not None:
                return
            if patience is not None:
                patience = max(0.001, patience - (time.monotonic() - begun))
            link = self._opener.open(patience)
            with line.lock:
                if not line.closed:
                    self._attach(link)
                    return
            link.end()
            raise ConnectionLost("the client was closed while it connected")
        finally:
            while True:  # Ctrl-C may come here too, and then nobody else could ever connect
                try:
                    if self._opening._is_owned():  # type: ignore[attr-defined]
                        self._opening.release()
                    break
                except BaseException as error:
                    interruption = error
            if interruption is not None:
                raise interruption

    def _attach(self, link: Link) -> None:
        line, policy = self._line, self._dispatcher.policy
        line.counted.connects += 1
        host = BlockingHost(
            line,
            link,
            self._dispatcher,
            make_framing(
                self._framing, max_message_bytes=policy.max_message_bytes, keeps_ends=True
            ),
            id=f"client-{line.counted.connects}",
            one_at_a_time=self._one_at_a_time,
            patience=self._timeout,
        )
        line.host = host
        if self._serves:
            line.serve_always(Reply(line, "", self._caller.expected(Any, None)))

    def close(self) -> None:
        """End the connection; open calls fail, a child process is ended. Idempotent."""
        self._line.close()

    @property
    def stats(self) -> ClientStats:
        """What happened so far."""
        return self._line.stats

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
    ) -> Any:
        """Call a method, once: after a loss nobody knows whether it happened.

        `on_progress` is called with the progress that the server sends, each of which starts the
        timeout again. It is called on this thread, before the call returns. `total_timeout` bounds
        the call whatever its progress, also with `timeout=None`.
        """
        if (
            timeout == USUAL
            and returns is Any
            and on_progress is None
            and total_timeout is None
            and errors is None
        ):
            expected = self._caller.usual
        else:
            expected = self._caller.expected(returns, timeout, on_progress, total_timeout, errors)
        return self._ask(method, encode_params(params), expected)

    def start(
        self,
        method: str,
        params: Any = None,
        *,
        timeout: float | None = USUAL,
        returns: Any = Any,
        on_progress: Callable[[Any], None] | None = None,
        total_timeout: float | None = None,
    ) -> "Call":
        """Send a call as `call` does, and return without waiting for its answer.

        Its time starts now. `client.start(...).result()` is `client.call(...)`.
        """
        expected = self._caller.expected(returns, timeout, on_progress, total_timeout)
        return Call(self.request(method, encode_params(params), expected))

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
    ) -> Any:
        """Call a method that changes nothing; it is tried again as `retry` says."""
        expected = self._caller.expected(returns, timeout, on_progress, total_timeout, errors)
        if retry is None and self._retry is None:
            return self._ask(method, encode_params(params), expected)
        return run(self._caller.query(method, params, expected, retry))

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
    ) -> Any:
        """Call a method with effects, under an idempotency key that is kept over all tries.

        `age` says how many seconds ago it was first sent under this `key`, if it was: perhaps by
        another process. A server that cannot know what became of it then does not run it again.
        """
        expected = self._caller.expected(returns, timeout, on_progress, total_timeout, errors)
        return run(self._caller.command(method, params, key, expected, retry, age))

    def outcome(self, method: str, key: str, *, timeout: float | None = USUAL) -> Any:
        """Ask what became of a command."""
        return run(self._caller.outcome(method, key, self._caller.expected(Any, timeout)))

    def notify(self, method: str, params: Any = None) -> None:
        """Send a notification; waits while the server does not read, up to the usual timeout."""
        self.send(method, encode_params(params), self._timeout).result()

    def batch(self) -> "Batch":
        """Gather calls and send them together: `with client.batch() as batch: ...`."""
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

    def request(self, method: str, params: bytes | None, expected: Expected) -> Reply:
        """Send one call on the connection that is there, or on a new one."""
        reply = Reply(self._line, method, expected)
        while not self._line.request(reply, params):
            self._reopen(reply)
        return reply

    def _ask(self, method: str, params: bytes | None, expected: Expected) -> Any:
        reply = Reply(self._line, method, expected)
        while not self._line.ask(reply, params):
            self._reopen(reply)
        return reply.outcome()

    async def request_all(self, items: Sequence[Item]) -> RpcError | None:
        """Send items in one array, and wait until each is settled or the whole is refused."""
        refusal: list[RpcError] = []
        replies = [
            None if item.expected is None else Reply(self._line, item.method, item.waits_for)
            for item in items
        ]
        first = next((reply for reply in replies if reply is not None), None)
        first = first or Reply(self._line, "batch", self._caller.usual)

        def refused(error: RpcError) -> None:
            refusal.append(error)
            for reply in replies:
                if reply is not None:
                    reply.settle(None, error)

        while not self._line.request_all(items, replies, refused):
            self._reopen(first)
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

    def send(self, method: str, params: bytes | None, patience: float | None) -> Reply:
        """Send a notification; the server has so many seconds to read what was sent before."""
        reply = Reply(self._line, method, self._caller.expected(Any, patience))
        while not self._line.notify(reply, params):
            self._reopen(reply)
        return reply

    def pause(self, seconds: float) -> Awaitable[None]:
        """Wait between two tries."""
        time.sleep(seconds)
        return _Done()

    def now(self) -> float:
        """Tell the time."""
        return time.monotonic()

    def _reopen(self, reply: Reply) -> None:
        """Connect anew, if that may be, for somebody who has so much time left."""
        line = self._line
        if line.lost is None:
            raise UsageError("this client is not connected; use `with`")
        if line.closed or not self._reconnect:
            raise copy.copy(line.lost)
        left = reply.deadline - time.monotonic()
        if left <= 0:
            raise line.too_late()
        self._open(None if left == inf else left)


class Call:
    """A call on its way: any thread may wait for its result, and any thread may cancel it."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._waiting = threading.Lock()

    def result(self) -> Any:
        """Wait for the result, or raise what the call ended with; the same again when asked again.

        A call that was cancelled raises `duet_rpc.errors.Cancelled`.
        """
        with self._waiting:  # a reply has room for one thread that waits
            return self._reply.result()

    def cancel(self) -> bool:
        """End the call now, and tell the server; False if it has ended already.

        The server stops its handler if it can. A command that has begun goes on.
        """
        return self._reply.cancel()


class Batch(BatchItems):
    """Calls that are sent together when the block is left."""

    def __enter__(self) -> "Batch":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            run(self._caller.send_batch(self._items))
