"""A service whose handlers can be cancelled at any moment, and every way to be its peer.

python -m tests.runtime.slots stdio | unix PATH      (policy from POLICY; handlers from HANDLERS)
"""

import asyncio
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from duet_rpc import Client, Context, Service, blocking
from duet_rpc.errors import CallTimeout, ConnectionLost
from duet_rpc.policy import Policy, preset
from duet_rpc.server.server import Server
from duet_rpc.testing.memory import MemoryServer, loop_in_thread
from duet_rpc.transports.address import parse_target
from tests.runtime.faces import PATIENCE, Peer, Scripted, framed

FACES = ["sequential", "stdio", "unix", "memory", "asyncio client", "blocking client"]
"""Where handlers run. Those of a sequential daemon are no coroutines."""


def make_service(*, is_async: bool) -> Service:
    """Make the handlers."""
    service = Service()
    meetings: dict[int, threading.Barrier] = {}
    lock = threading.Lock()
    here: list[int] = []
    most = [0]

    @service.query
    def meet(number: int) -> int:
        """Answer when so many are here at once."""
        with lock:
            meeting = meetings.setdefault(number, threading.Barrier(number))
        meeting.wait(PATIENCE)
        return number

    if is_async:

        @service.query
        async def nap(seconds: float) -> float:
            await asyncio.sleep(seconds)
            return seconds

        @service.query
        async def ask(ctx: Context, within: float | None = None) -> Any:
            try:
                return await ctx.call("peer.ask", timeout=within)
            except (CallTimeout, ConnectionLost):
                return None

        @service.query
        async def ask_at_once(ctx: Context, count: int) -> Any:
            return await asyncio.gather(*(ctx.call("peer.ask") for _ in range(count)))

        @service.query
        async def crowd() -> int:
            """Say how many of these were ever here at once."""
            here.append(len(here) + 1)
            most.append(max(*most, *here))
            await asyncio.sleep(0.01)
            here.pop()
            return most[-1]

        @service.query
        async def swallow() -> str:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.02)
            return "done"

    else:

        @service.query(name="nap")
        def nap_in_thread(seconds: float) -> float:
            time.sleep(seconds)
            return seconds

        @service.query(name="ask")
        def ask_in_thread(ctx: Context, within: float | None = None) -> Any:
            try:
                return ctx.call("peer.ask", timeout=within).result()
            except (CallTimeout, ConnectionLost):
                return None

        @service.query(name="swallow")
        def swallow_in_thread() -> str:
            return "done"

    return service


class Caller:
    """The other end of a connection: writes bytes as they are, reads what is answered."""

    def __init__(self, write: Callable[[bytes], object], read: Callable[[], Any]) -> None:
        self._write = write
        self._read = read
        self._id = 0
        self.answers: dict[int, Any] = {}
        self.asked: list[Any] = []
        """The ids of calls that were made to us and are not answered."""

    def ids(self, count: int) -> list[int]:
        """Take so many new ids."""
        self._id += count
        return list(range(self._id - count + 1, self._id + 1))

    def send(self, *messages: Any) -> None:
        """Send all of them in one write."""
        self._write(b"".join(framed(json.dumps(message).encode()) for message in messages))

    def collect(self, ids: list[int]) -> list[Any]:
        """Wait for the answers under these ids, each of which comes once."""
        while not set(ids) <= set(self.answers):
            self.take()
        return [self.answers[id] for id in ids]

    def take(self) -> None:
        """Read one message."""
        message = self._read()
        assert message is not None, f"the connection was closed; answered: {self.answers}"
        for item in message if isinstance(message, list) else [message]:
            if "method" not in item:
                assert item["id"] not in self.answers, f"answered twice: {item}"
                self.answers[item["id"]] = item
            elif item["method"] == "peer.ask":
                self.asked.append(item["id"])

    def wait_until_asked(self, count: int) -> None:
        """Wait until handlers have made so many calls to us."""
        while len(self.asked) < count:
            self.take()


def request(id: int, method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


def cancel(id: int) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": id}}


def caller_of(read_fd: int, write_fd: int) -> Caller:
    """Talk over a connected socket or a pair of pipes."""
    peer = _Pipes(read_fd, write_fd)
    return Caller(peer.write, peer.read)


class _Pipes(Peer):
    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._fds = read_fd, write_fd
        self._read = b""

    def write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._fds[1], data) :]

    def receive(self) -> bytes:
        poll = select.poll()
        poll.register(self._fds[0], select.POLLIN)
        assert poll.poll(PATIENCE * 1000), (
            f"nothing within {PATIENCE:g} s; half read: {self._read!r}"
        )
        return os.read(self._fds[0], 65536)


@contextlib.contextmanager
def served(face: str, policy: Policy, tmp_path: Path) -> Iterator[Caller]:
    """Serve the handlers in one of the ways, and be their peer."""
    if face in ("sequential", "stdio"):
        with stdio_server(policy, tmp_path, is_async=face == "stdio") as caller:
            yield caller
    elif face == "unix":
        with unix_server(policy, tmp_path) as (_, connect), connect() as caller:
            yield caller
    elif face == "memory":
        with _memory(policy) as caller:
            yield caller
    else:
        with _client(face, policy) as caller:
            yield caller


@contextlib.contextmanager
def stdio_server(policy: Policy, tmp_path: Path, *, is_async: bool) -> Iterator[Caller]:
    """Serve on the pipes of a process, which ends with its input."""
    with _process("stdio", policy=policy, is_async=is_async, log=tmp_path / "log") as process:
        assert process.stdin is not None and process.stdout is not None
        yield caller_of(process.stdout.fileno(), process.stdin.fileno())
        process.stdin.close()
        _see_the_end(process, tmp_path / "log")


@contextlib.contextmanager
def unix_server(
    policy: Policy, tmp_path: Path
) -> Iterator[tuple["subprocess.Popen[bytes]", Callable[[], Any]]]:
    """Serve a unix socket in a process; give it, and what connects to it."""
    path = tmp_path / "s"

    @contextlib.contextmanager
    def connect() -> Iterator[Caller]:
        channel = parse_target(f"unix:{path}").connect(PATIENCE)
        try:
            yield caller_of(channel.read_fd, channel.write_fd)
        finally:
            channel.close()

    log = tmp_path / "log"
    with _process("unix", str(path), policy=policy, is_async=True, log=log) as process:
        eventually(lambda: "listening" in log.read_text(), "the server listens")
        yield process, connect
        process.send_signal(signal.SIGTERM)
        _see_the_end(process, log)


@contextlib.contextmanager
def _process(
    *arguments: str, policy: Policy, is_async: bool, log: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=os.environ
            | {"POLICY": policy.name, "HANDLERS": "async" if is_async else "threads"},
        )
    with process:
        try:
            yield process
        finally:
            process.kill()


def _see_the_end(process: "subprocess.Popen[bytes]", log: Path) -> None:
    """A server with a lost slot is never idle: it drains for its whole time, and says so."""
    assert process.wait(PATIENCE) == 0
    assert "still running" not in log.read_text()
    assert "Traceback" not in log.read_text()


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Wait until something holds; say what did not."""
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, f"not within {PATIENCE:g} s: {what}"
        time.sleep(0.01)


@contextlib.contextmanager
def _memory(policy: Policy) -> Iterator[Caller]:
    with loop_in_thread() as loop:

        async def make() -> MemoryServer:
            return MemoryServer(make_service(is_async=True), policy, None, "lsp", None, None)

        async def close() -> None:
            server.close()

        server = asyncio.run_coroutine_threadsafe(make(), loop).result(PATIENCE)
        link = server.open()
        try:
            yield caller_of(link.channel.read_fd, link.channel.write_fd)
        finally:
            link.end()
            asyncio.run_coroutine_threadsafe(close(), loop).result(PATIENCE)


@contextlib.contextmanager
def _client(face: str, policy: Policy) -> Iterator[Caller]:
    """Be the server of a client that serves the handlers."""
    found: list[Caller] = []
    ready, over = threading.Event(), threading.Event()

    def script(peer: Peer) -> None:
        found.append(Caller(peer.write, peer.read))
        ready.set()
        over.wait(10 * PATIENCE)

    server = Scripted(script)
    service = make_service(is_async=True)
    with contextlib.ExitStack() as stack:
        if face == "blocking client":
            stack.enter_context(blocking.Client(server, service=service, policy=policy))
        else:
            loop = stack.enter_context(loop_in_thread())
            running = asyncio.run_coroutine_threadsafe(_entered(server, service, policy), loop)
            client_on_loop = running.result(PATIENCE)
            stack.callback(_close, client_on_loop, loop)
        assert ready.wait(PATIENCE)
        try:
            yield found[0]
        finally:
            over.set()
    server.join()


def _close(client: Client, loop: asyncio.AbstractEventLoop) -> None:
    asyncio.run_coroutine_threadsafe(client.close(), loop).result(PATIENCE)


async def _entered(server: Scripted, service: Service, policy: Policy) -> Client:
    client = Client(server, service=service, policy=policy)
    await client.open()
    return client


def main() -> None:
    service = make_service(is_async=os.environ["HANDLERS"] == "async")
    server = Server(service, policy=preset(os.environ["POLICY"]))
    if sys.argv[1] == "stdio":
        server.run_stdio()
    else:
        server.run_unix(sys.argv[2])


if __name__ == "__main__":
    main()
