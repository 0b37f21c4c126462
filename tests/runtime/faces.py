"""Both clients behind one small face, so that each case is written once and holds for both.

A test is a plain function. `asyncio` runs its client in the loop of a thread; `blocking` uses the
client as it is. What the faces share is what their users see: the same methods, options and errors.
"""

import asyncio
import concurrent.futures
import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest

from duet_rpc import Client, Service, blocking, testing
from duet_rpc.client.batch import BatchItem
from duet_rpc.client.stats import ClientStats
from duet_rpc.errors import ConnectFailed, ConnectionLost
from duet_rpc.testing.memory import loop_in_thread
from duet_rpc.transports.channel import Channel
from duet_rpc.transports.link import Link, Opener

PATIENCE = 40.0
"""Seconds that anything may take on a machine that has other things to do."""

Pending = concurrent.futures.Future[Any]


class Driver(Protocol):
    """A client as a test uses it."""

    client: Any

    def do(self, action: Callable[[Any], Any]) -> Any:
        """Give the client to a function and wait for what comes of it."""
        ...

    def start(self, action: Callable[[Any], Any]) -> Pending:
        """Do the same without waiting."""
        ...

    def begin(self, method: str, params: Any = None, **options: Any) -> Pending:
        """Call without waiting for the answer."""
        ...

    def batch(self, fill: Callable[[Any], list[BatchItem[Any]]]) -> list[BatchItem[Any]]:
        """Send a batch, and return its items."""
        ...

    def call(self, method: str, params: Any = None, **options: Any) -> Any:
        """Call, and wait for the answer."""
        ...

    @property
    def stats(self) -> ClientStats:
        """What happened so far."""
        ...

    def close(self) -> None:
        """Close the client."""
        ...


class Face(Protocol):
    """One of the two clients, and how to get one."""

    name: str

    def connect(self, service: Service, /, **options: Any) -> Driver:
        """Make a client of a service in memory."""
        ...

    def open(self, opener: Opener, **options: Any) -> Driver:
        """Make a client of whatever an opener reaches."""
        ...

    def spawn(self, *command: str, **options: Any) -> Driver:
        """Make a client of a child process."""
        ...

    def enter(self, client: Any) -> Driver:
        """Open a client that was made before."""
        ...


class AsyncDriver:
    def __init__(self, loop: asyncio.AbstractEventLoop, client: Client) -> None:
        self.loop = loop
        self.client = client

    def start(self, action: Callable[[Any], Any]) -> Pending:
        async def run() -> Any:
            outcome = action(self.client)
            return await outcome if hasattr(outcome, "__await__") else outcome

        return asyncio.run_coroutine_threadsafe(run(), self.loop)

    def do(self, action: Callable[[Any], Any]) -> Any:
        return self.start(action).result(PATIENCE)

    def begin(self, method: str, params: Any = None, **options: Any) -> Pending:
        return self.start(lambda client: client.call(method, params, **options))

    def batch(self, fill: Callable[[Any], list[BatchItem[Any]]]) -> list[BatchItem[Any]]:
        async def send(client: Client) -> list[BatchItem[Any]]:
            async with client.batch() as batch:
                items = fill(batch)
            return items

        found: list[BatchItem[Any]] = self.do(send)
        return found

    def call(self, method: str, params: Any = None, **options: Any) -> Any:
        return self.do(lambda client: client.call(method, params, **options))

    @property
    def stats(self) -> ClientStats:
        found: ClientStats = self.do(lambda client: client.stats)
        return found

    def close(self) -> None:
        self.do(lambda client: client.close())


class AsyncFace:
    name = "asyncio"

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._loop = stack.enter_context(loop_in_thread())
        stack.callback(self._look_for_tasks)

    def _look_for_tasks(self) -> None:
        """Fail if a task of the client's is left; the loop has one of its own."""

        async def look() -> None:
            until = self._loop.time() + PATIENCE
            while len(tasks := asyncio.all_tasks() - {asyncio.current_task()}) > 1:
                assert self._loop.time() < until, f"left behind: {tasks}"
                await asyncio.sleep(0.005)

        asyncio.run_coroutine_threadsafe(look(), self._loop).result(2 * PATIENCE)

    def connect(self, service: Service, /, **options: Any) -> AsyncDriver:
        async def enter() -> tuple[Any, Client]:
            context = testing.connect(service, **options)
            return context, await context.__aenter__()

        context, client = asyncio.run_coroutine_threadsafe(enter(), self._loop).result(PATIENCE)
        driver = AsyncDriver(self._loop, client)
        self._stack.callback(driver.do, lambda client: context.__aexit__(None, None, None))
        return driver

    def open(self, opener: Opener, **options: Any) -> AsyncDriver:
        return self.enter(Client(opener, **options))

    def spawn(self, *command: str, **options: Any) -> AsyncDriver:
        return self.enter(Client.spawn(*command, **options))

    def enter(self, client: Client) -> AsyncDriver:
        driver = AsyncDriver(self._loop, client)
        self._stack.callback(driver.close)
        driver.do(lambda client: client.open())
        return driver


class BlockingDriver:
    def __init__(self, client: blocking.Client) -> None:
        self.client = client

    def do(self, action: Callable[[Any], Any]) -> Any:
        return action(self.client)

    def start(self, action: Callable[[Any], Any]) -> Pending:
        pending: Pending = concurrent.futures.Future()

        def run() -> None:
            try:
                pending.set_result(action(self.client))
            except BaseException as error:
                pending.set_exception(error)

        threading.Thread(target=run, name="test caller", daemon=True).start()
        return pending

    def begin(self, method: str, params: Any = None, **options: Any) -> Pending:
        return self.start(lambda client: client.call(method, params, **options))

    def batch(self, fill: Callable[[Any], list[BatchItem[Any]]]) -> list[BatchItem[Any]]:
        with self.client.batch() as batch:
            items = fill(batch)
        return items

    def call(self, method: str, params: Any = None, **options: Any) -> Any:
        return self.client.call(method, params, **options)

    @property
    def stats(self) -> ClientStats:
        return self.client.stats

    def close(self) -> None:
        self.client.close()


class BlockingFace:
    name = "blocking"

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack

    def connect(self, service: Service, /, **options: Any) -> BlockingDriver:
        connected = testing.connect_blocking(service, **options)
        return BlockingDriver(self._stack.enter_context(connected))

    def open(self, opener: Opener, **options: Any) -> BlockingDriver:
        return self.enter(blocking.Client(opener, **options))

    def spawn(self, *command: str, **options: Any) -> BlockingDriver:
        return self.enter(blocking.Client.spawn(*command, **options))

    def enter(self, client: blocking.Client) -> BlockingDriver:
        return BlockingDriver(self._stack.enter_context(client))


@contextlib.contextmanager
def face_named(name: str) -> Iterator[Face]:
    with contextlib.ExitStack() as stack:
        yield AsyncFace(stack) if name == "asyncio" else BlockingFace(stack)


class Scripted:
    """A server that a test plays by hand: what it reads, what it writes, when it goes away.

    It is an opener; each connection runs the next script, on a thread, with a `Peer`.
    """

    def __init__(self, *scripts: "Callable[[Peer], object]", is_network: bool = False) -> None:
        self._is_network = is_network
        self._scripts = list(scripts)
        self._threads: list[threading.Thread] = []
        self.failures: list[BaseException] = []

    def open(self, timeout: float | None = None) -> Link:
        if not self._scripts:
            raise ConnectFailed("there is no script for another connection")
        ours, theirs = socket.socketpair()
        thread = threading.Thread(
            target=self._play, args=[self._scripts.pop(0), theirs], name="test script", daemon=True
        )
        self._threads.append(thread)
        thread.start()
        channel = Channel.over(ours)
        return Link(
            channel,
            is_network=self._is_network,
            loss=lambda: ConnectionLost("the script is over"),
            end=channel.close,
        )

    def _play(self, script: "Callable[[Peer], object]", connected: socket.socket) -> None:
        with connected:
            connected.settimeout(PATIENCE)
            try:
                script(Peer(connected))
            except BaseException as error:
                self.failures.append(error)

    def join(self) -> None:
        """Wait until all scripts have ended; fail with the first that failed."""
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "the script does not end"
        if self.failures:
            raise self.failures[0]


class Peer:
    """The server's end of a connection, in the hands of a script."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self._read = b""

    def request(self) -> dict[str, Any]:
        """Read the next message; fails at the end of the stream."""
        message = self.read()
        assert message is not None, "the client has closed"
        assert isinstance(message, dict)
        return message

    def read(self) -> Any:
        """Read the next message, also an array; None at the end of the stream."""
        while True:
            header, found, rest = self._read.partition(b"\r\n\r\n")
            if found:
                size = int(header.removeprefix(b"Content-Length: "))
                if len(rest) >= size:
                    self._read = rest[size:]
                    return json.loads(rest[:size])
            data = self.receive()
            if not data:
                return None
            self._read += data

    def receive(self) -> bytes:
        """Read some bytes; none at the end of the stream."""
        return self.socket.recv(65536)

    def read_all(self) -> list[Any]:
        """Read until the client closes."""
        found: list[Any] = []
        while True:
            try:
                message = self.read()
            except ConnectionError:
                return found
            if message is None:
                return found
            found.append(message)

    def write(self, data: bytes) -> None:
        """Write bytes as they are."""
        self.socket.sendall(data)

    def say(self, body: bytes) -> None:
        """Write a body in a frame."""
        self.write(framed(body))

    def answer(self, request: dict[str, Any], result: bytes = b"null") -> None:
        """Answer a request as one should."""
        self.say(b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (request["id"], result))


def framed(body: bytes) -> bytes:
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def failure(pending: Pending) -> BaseException:
    """Wait for a call that is to fail, and return its error."""
    error = pending.exception(PATIENCE)
    assert error is not None, f"it has a result: {pending.result()!r}"
    return error


@contextlib.contextmanager
def raises_all(*kinds: type[BaseException]) -> Iterator[pytest.ExceptionInfo[BaseException]]:
    """Expect an error that is of all these kinds."""
    with pytest.raises(kinds[0]) as caught:
        yield caught
    assert all(isinstance(caught.value, kind) for kind in kinds)
