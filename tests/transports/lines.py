"""A tiny raw client over a channel, and each kind of transport as a context manager.

The raw client knows frames and nothing else: what a test sends and what came back are bytes.
"""

import asyncio
import contextlib
import json
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

from duet_rpc.context import Origin
from duet_rpc.engine.connection import ConnectionOptions
from duet_rpc.engine.dispatch import Dispatcher
from duet_rpc.hosts.loop import LoopHost
from duet_rpc.hosts.workers import Workers
from duet_rpc.policy import SPEC, Policy
from duet_rpc.server.logs import Logs
from duet_rpc.server.server import Server
from duet_rpc.service import Service
from duet_rpc.transports.address import parse_target
from duet_rpc.transports.channel import Channel
from duet_rpc.transports.child import Child
from duet_rpc.wire.framing import HeaderFraming
from tests.transports import served

PATIENCE = 30.0
"""Seconds that anything may take on a machine that has other things to do."""
PROGRAM = [sys.executable, served.__file__]


def frame(body: bytes) -> bytes:
    """Put an LSP header in front of a body."""
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def request(method: str, params: Any = None, id: Any = 1) -> bytes:
    """Make the frame of a request."""
    message = {"jsonrpc": "2.0", "id": id, "method": method}
    return frame(json.dumps(message if params is None else message | {"params": params}).encode())


def notification(method: str, params: Any = None) -> bytes:
    """Make the frame of a notification."""
    message = {"jsonrpc": "2.0", "method": method}
    return frame(json.dumps(message if params is None else message | {"params": params}).encode())


def eventually(condition: Callable[[], object], what: str) -> None:
    """Wait until something holds; say what did not."""
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, f"not within {PATIENCE:g} s: {what}"
        time.sleep(0.01)


class Raw:
    """Frames out, bodies in."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._buffer = b""

    def write(self, data: bytes) -> None:
        """Send all of it; the peer must read in the end."""
        view = memoryview(data)
        while view:
            try:
                sent = self.channel.send(view)
            except BlockingIOError:
                sent = 0
            view = view[sent:]
            if view and not sent:
                assert self._ready(self.channel.write_fd, select.POLLOUT), "the peer reads nothing"

    def body(self) -> bytes | None:
        """Receive the next body; None at the end of the stream."""
        while True:
            header, separator, rest = self._buffer.partition(b"\r\n\r\n")
            if separator:
                assert header.startswith(b"Content-Length: "), f"no frame: {header[:80]!r}"
                length = int(header.removeprefix(b"Content-Length: "))
                if len(rest) >= length:
                    self._buffer = rest[length:]
                    return rest[:length]
            assert self._ready(self.channel.read_fd, select.POLLIN), "no answer"
            data = self.channel.receive()
            if not data:
                assert not self._buffer, f"a torn frame: {self._buffer[:80]!r}"
                return None
            self._buffer += data

    def answer(self) -> Any:
        """Receive the next message, decoded; None at the end of the stream."""
        body = self.body()
        return None if body is None else json.loads(body)

    def call(self, method: str, params: Any = None, id: Any = 1) -> Any:
        """Send a request and return its answer, which must be the next message."""
        self.write(request(method, params, id))
        return self.answer()

    def close_writing(self) -> None:
        """Tell the peer that nothing more comes; reading goes on."""
        read_fd, write_fd = self.channel.read_fd, self.channel.write_fd
        if read_fd == write_fd:
            with socket.socket(fileno=os.dup(write_fd)) as same:
                same.shutdown(socket.SHUT_WR)
        else:
            self.channel._closes()  # a pipe has a second descriptor, with flags of its own
            self.channel._closes = lambda: None
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, write_fd)  # the channel closes it
            os.close(null)

    def is_quiet(self) -> bool:
        """Tell whether nothing has come, not even the end."""
        return not self._buffer and not self._ready(self.channel.read_fd, select.POLLIN, 0)

    def _ready(self, fd: int, events: int, seconds: float = PATIENCE) -> bool:
        poll = select.poll()
        poll.register(fd, events)
        return bool(poll.poll(seconds * 1000))


class LoopThread:
    """An event loop on a thread of its own, until the block is left."""

    def __enter__(self) -> "LoopThread":
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="test loop")
        self._thread.start()
        return self

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run something on the loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE)

    def __exit__(self, *exception: object) -> None:
        self.run(self._cancel_all())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def _cancel_all(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


@contextlib.contextmanager
def serving(
    kind: str,
    tmp_path: Path,
    *,
    policy: Policy = SPEC,
    service: Service = served.service,
    drain: float = 2.0,
    **options: Any,
) -> "Iterator[Serving]":
    """Serve on a socket in this process, on a loop of its own."""
    served.gate.clear()
    served.waiting.clear()
    started = threading.Event()
    log = tmp_path / "log"
    server = Server(service, policy=policy)
    found: list[str] = []

    def on_start(address: str) -> None:
        found.append(address)
        started.set()

    options |= {"logs": Logs(path=str(log), level="debug"), "drain": drain, "on_start": on_start}
    with LoopThread() as thread:
        if kind == "unix":
            work = server.serve_unix(str(tmp_path / "s"), **options)
        else:
            work = server.serve_tcp("127.0.0.1", 0, **options)
        future = asyncio.run_coroutine_threadsafe(work, thread.loop)
        try:
            eventually(lambda: started.is_set() or future.done(), "the server starts")
            assert found, future.exception()
            yield Serving(found[0], log, future.cancel)
        finally:
            served.gate.set()
            future.cancel()
            server.close()


class Serving:
    """A server that runs, and how to reach it."""

    def __init__(self, address: str, log: Path, end: Callable[[], object]) -> None:
        self.address = address
        self.end = end
        self._log = log

    @contextlib.contextmanager
    def connect(self) -> Iterator[Raw]:
        """Make one more connection."""
        channel = parse_target(self.address).connect(PATIENCE)
        try:
            yield Raw(channel)
        finally:
            channel.close()

    def log(self) -> str:
        """Read what was logged so far."""
        return self._log.read_text("utf-8")


@contextlib.contextmanager
def over_child(tmp_path: Path) -> Iterator[Raw]:
    """The server as a child process of ours."""
    child = Child([*PROGRAM, "stdio"])
    try:
        yield Raw(child.channel)
    finally:
        child.end()


@contextlib.contextmanager
def over_unix(tmp_path: Path) -> Iterator[Raw]:
    """A unix socket."""
    with serving("unix", tmp_path) as server, server.connect() as line:
        yield line


@contextlib.contextmanager
def over_tcp(tmp_path: Path) -> Iterator[Raw]:
    """A TCP socket."""
    with serving("tcp", tmp_path) as server, server.connect() as line:
        yield line


@contextlib.contextmanager
def over_socketpair(tmp_path: Path) -> Iterator[Raw]:
    """A plain pair of sockets, served without a server."""
    ours, theirs = socket.socketpair()
    workers = Workers()

    async def attend() -> LoopHost:
        host = LoopHost(
            Channel.over(theirs),
            Dispatcher(served.service, SPEC),
            HeaderFraming(),
            ConnectionOptions(origin=Origin(connection_id="pair", transport="memory")),
            workers=workers,
        )
        host.begin()
        return host

    async def leave(host: LoopHost) -> None:
        host.close()

    channel = Channel.over(ours)
    with LoopThread() as thread:
        host = thread.run(attend())
        try:
            yield Raw(channel)
        finally:
            thread.run(leave(host))
            workers.close()
            channel.close()


TRANSPORTS = {
    "child": over_child,
    "unix": over_unix,
    "tcp": over_tcp,
    "socketpair": over_socketpair,
}


def descriptors() -> set[str]:
    """List the descriptors of this process."""
    return set(os.listdir("/proc/self/fd"))
