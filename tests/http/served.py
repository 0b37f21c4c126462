"""One service over HTTP by each host: our listener, and the ASGI application under uvicorn.

Clients here are sockets: what is tested is bytes.
"""

import asyncio
import json
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import uvicorn
from msgspec import Struct

from duet_rpc import Context, RpcError, Server, Service, testing
from duet_rpc.http import AsgiApp, Http
from duet_rpc.policy import AGENT, Policy, replace

PATIENCE = 20.0
POLICY = replace(AGENT, read_timeout=2.0, max_message_bytes=100_000)


class Empty(RpcError):
    code, message = 7001, "Nothing there"


def make_service() -> Service:
    """Make a service with a method of each kind that matters here."""
    service = Service("shop")
    effects: list[str] = []

    @service.query(inline=True)
    def add(a: int, b: int) -> int:
        return a + b

    @service.query
    def echo(value: Any) -> Any:
        return value

    @service.query
    def fork() -> int:
        return _fork()

    @service.query(inline=True)
    def fork_inline() -> int:
        return _fork()

    @service.query
    async def fork_async() -> int:
        return _fork()

    @service.query
    async def fork_and_await() -> int:
        pid = _fork()
        await asyncio.sleep(0.01)
        return pid

    @service.query
    def nap(seconds: float) -> str:
        time.sleep(seconds)
        return "rested"

    @service.query(errors=[Empty])
    def fail() -> None:
        raise Empty(data={"shelf": 3})

    @service.query
    def who(ctx: Context) -> list[Any]:
        origin = ctx.origin
        return [origin.principal, sorted(origin.scopes), origin.transport, origin.can_be_called]

    @service.query
    def headers(ctx: Context) -> dict[str, str]:
        return dict(ctx.origin.headers)

    @service.query
    async def ask_back(ctx: Context) -> str:
        return f"hello {await ctx.call('your.name', returns=str)}"

    @service.query
    async def wait() -> None:
        await asyncio.Event().wait()

    @service.subscription
    async def ticks() -> AsyncIterator[int]:
        for number in range(1000):
            yield number
            await asyncio.sleep(0.001)

    @service.query(inline=True, scopes=["bank:read"])
    def balance() -> int:
        return 100

    @service.command(scopes=["bank:write"])
    def pay(cents: int) -> int:
        return cents

    @service.command
    def buy(thing: str) -> int:
        effects.append(thing)
        return len(effects)

    return service


def _fork() -> int:
    """Have a child that goes on as if it were the server; wait until it has ended."""
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
    return pid


class Answered(Struct):
    """An answer as it came."""

    status: int
    headers: dict[str, str]
    body: bytes
    has_ended: bool
    """The connection was closed behind it."""

    @property
    def value(self) -> Any:
        return json.loads(self.body)


class Raw:
    """A connection to an HTTP server."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None and parts.port is not None
        self.host = f"{parts.hostname}:{parts.port}"
        self._socket = socket.create_connection((parts.hostname, parts.port), PATIENCE)
        self._unread = b""

    def __enter__(self) -> "Raw":
        return self

    def __exit__(self, *ignored: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def end_input(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def read(self, *, has_body: bool = True) -> Answered:
        """Read one answer."""
        while b"\r\n\r\n" not in self._unread:
            self._more()
        head, _, self._unread = self._unread.partition(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").split("\r\n")
        headers = {}
        for line in lines:
            name, _, value = line.partition(": ")
            headers[name.lower()] = value
        length = int(headers.get("content-length", 0)) if has_body else 0
        while len(self._unread) < length:
            self._more()
        body, self._unread = self._unread[:length], self._unread[length:]
        ends = headers.get("connection") == "close"
        return Answered(int(status.split()[1]), headers, body, ends)

    def wait_for_end(self) -> bytes:
        """Read until the connection is closed."""
        self._socket.settimeout(PATIENCE)
        while True:
            try:
                data = self._socket.recv(65536)
            except ConnectionResetError:
                data = b""
            if not data:
                return self._unread
            self._unread += data

    def _more(self) -> None:
        data = self._socket.recv(65536)
        assert data, f"the connection ended; unread: {self._unread!r}"
        self._unread += data


def request(
    body: bytes | Any = b"",
    *,
    method: str = "POST",
    path: str = "/",
    host: str = "localhost",
    version: str = "1.1",
    length: str | None = "",
    kind: str | None = "application/json",
    headers: Mapping[str, str] = {},
) -> bytes:
    """Make the bytes of a request; what is None is left out."""
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/{version}"]
    if host:
        lines.append(f"Host: {host}")
    if kind is not None:
        lines.append(f"Content-Type: {kind}")
    if length is not None:
        lines.append(f"Content-Length: {length or len(body)}")
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def call(method: str, params: Any = None, id: Any = 1) -> dict[str, Any]:
    """Make a request of JSON-RPC."""
    message = {"jsonrpc": "2.0", "method": method, "params": params}
    return message if id is None else {**message, "id": id}


@contextmanager
def listener(policy: Policy = POLICY, **options: Any) -> Iterator[str]:
    """Serve by our listener."""
    server = Server(make_service(), policy=policy)
    with testing.serve_in_thread(server, Http("127.0.0.1", 0, **options)) as url:
        yield url


@contextmanager
def asgi(policy: Policy = POLICY, **options: Any) -> Iterator[str]:
    """Serve the ASGI application under uvicorn."""
    app = AsgiApp(Server(make_service(), policy=policy), **options)
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="on")
    runner = uvicorn.Server(config)
    thread = threading.Thread(target=runner.run)
    thread.start()
    try:
        until = time.monotonic() + PATIENCE
        while not runner.started and time.monotonic() < until:
            time.sleep(0.01)
        port = runner.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/"
    finally:
        runner.should_exit = True
        thread.join(PATIENCE)


HttpHosts: TypeAlias = dict[str, Callable[..., AbstractContextManager[str]]]
HOSTS: HttpHosts = {"listener": listener, "asgi": asgi}
