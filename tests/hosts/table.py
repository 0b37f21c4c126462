"""One table of hosts, so that a case is written once and holds for all of them.

    @over(EVERY)
    def test_it_adds(host: Host, tmp_path: Path) -> None:
        with host.serve(tmp_path) as line:
            assert line.call("add", [1, 2])["result"] == 3

A host is a real process that serves `served.py`, and the test is its peer: it writes bytes and
reads bytes (`Line`), whether the host is a server or a client that serves the server it called.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from duet_rpc.transports.address import parse_target
from duet_rpc.transports.channel import Channel
from tests.transports.lines import PATIENCE, Raw, eventually

_ROOT = Path(__file__).parents[2]


class Line(Raw):
    """A connection to a host that runs, its process and its log."""

    def __init__(self, channel: Channel, process: subprocess.Popen[bytes], log: Path) -> None:
        super().__init__(channel)
        self.process = process
        self._log = log

    @property
    def log(self) -> str:
        """What the host has logged so far."""
        return self._log.read_text("utf-8")

    def wait_for_log(self, text: str, times: int = 1) -> str:
        """Wait until lines with this text are in the log; return the last of them."""
        eventually(lambda: len(self._lines(text)) >= times, f"{text!r} in the log")
        return self._lines(text)[-1]

    def _lines(self, text: str) -> list[str]:
        whole = self.log.rpartition("\n")[0]
        return [line for line in whole.splitlines() if text in line]

    @contextlib.contextmanager
    def another(self) -> "Iterator[Line]":
        """Make one more connection; only to the hosts that listen."""
        address = next(line for line in self.log.splitlines() if line.startswith(("unix:", "tcp:")))
        channel = parse_target(address).connect(PATIENCE)
        try:
            yield Line(channel, self.process, self._log)
        finally:
            channel.close()


class Host(NamedTuple):
    """One way to run handlers for a peer."""

    name: str
    carrier: str
    """What its bytes go over: pipes, a socket, or something that keeps messages whole."""
    program: str
    """What `served.py` calls it."""
    kind: str
    """`listener`, `daemon`, `client` or `memory`."""
    policy: dict[str, Any]
    """What it cannot do without."""

    @property
    def has_socket(self) -> bool:
        """The boundary between frames, once lost, is lost for good."""
        return self.carrier == "socket"

    @property
    def has_async(self) -> bool:
        """It serves all handlers, not only those of `plain`."""
        return self.program != "stdio one at a time"

    @contextlib.contextmanager
    def serve(self, tmp_path: Path, **policy: Any) -> Iterator[Line]:
        """Start it under SPEC, with these rules changed or this `dialect`, and connect to it."""
        log = tmp_path / "host.log"
        rules = json.dumps(self.policy | policy)
        with contextlib.ExitStack() as stack:
            errors = stack.enter_context(log.open("wb"))

            def start(*arguments: object, given: Sequence[int] = (), **pipes: Any) -> Any:
                command = [sys.executable, "-m", "tests.hosts.served", self.program, rules]
                process = subprocess.Popen(
                    [*command, *map(str, arguments)],
                    cwd=_ROOT,
                    stderr=errors,
                    pass_fds=given,
                    **pipes,
                )
                stack.callback(_end, process)
                return process

            process, channel = _CONNECT[self.kind, self.carrier](start, tmp_path, log)
            stack.callback(channel.close)
            yield Line(channel, process, log)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait(PATIENCE)


Start = Callable[..., subprocess.Popen[bytes]]
Connected = tuple[subprocess.Popen[bytes], Channel]


def _by_stdio(start: Start, tmp_path: Path, log: Path) -> Connected:
    process = start(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    channel = Channel(os.dup(process.stdout.fileno()), os.dup(process.stdin.fileno()))
    process.stdin.close()
    process.stdout.close()
    return process, channel


def _by_address(start: Start, tmp_path: Path, log: Path) -> Connected:
    process = start(tmp_path / "s", stdout=subprocess.DEVNULL)

    def address() -> str | None:
        lines = log.read_text("utf-8").splitlines()
        return next((line for line in lines if line.startswith(("unix:", "tcp:"))), None)

    eventually(lambda: address() is not None or process.poll() is not None, "the host listens")
    return process, parse_target(str(address())).connect(PATIENCE)


def _by_given_socket(*kind: str) -> Callable[[Start, Path, Path], Connected]:
    def connect(start: Start, tmp_path: Path, log: Path) -> Connected:
        ours, theirs = socket.socketpair()
        with theirs:
            process = start(*kind, theirs.fileno(), given=[theirs.fileno()])
        return process, Channel.over(ours)

    return connect


def _by_given_pipes(start: Start, tmp_path: Path, log: Path) -> Connected:
    (read, their_write), (their_read, write) = os.pipe(), os.pipe()
    process = start("pipes", their_read, their_write, given=[their_read, their_write])
    os.close(their_read)
    os.close(their_write)
    return process, Channel(read, write)


_CONNECT = {
    ("daemon", "pipes"): _by_stdio,
    ("listener", "socket"): _by_address,
    ("memory", "socket"): _by_given_socket(),
    ("memory", "messages"): _by_given_socket(),
    ("client", "socket"): _by_given_socket("socket"),
    ("client", "pipes"): _by_given_pipes,
}

ONE_AT_A_TIME = Host(
    "stdio, one at a time", "pipes", "stdio one at a time", "daemon", {"max_in_flight": 1}
)
ON_A_LOOP = Host("stdio, on a loop", "pipes", "stdio on a loop", "daemon", {})
UNIX = Host("unix socket", "socket", "unix", "listener", {})
TCP = Host("tcp socket", "socket", "tcp", "listener", {})
MEMORY = Host("in memory", "socket", "memory", "memory", {})
MESSAGE_LINK = Host("message link", "messages", "message link", "memory", {})
EXCHANGE = Host("exchanges", "messages", "exchange", "memory", {})
ASYNCIO = Host("asyncio client, socket", "socket", "asyncio client", "client", {})
ASYNCIO_PIPES = Host("asyncio client, pipes", "pipes", "asyncio client", "client", {})
BLOCKING = Host("blocking client, socket", "socket", "blocking client", "client", {})
BLOCKING_PIPES = Host("blocking client, pipes", "pipes", "blocking client", "client", {})

EVERY = (
    ONE_AT_A_TIME,
    ON_A_LOOP,
    UNIX,
    TCP,
    MEMORY,
    MESSAGE_LINK,
    ASYNCIO,
    ASYNCIO_PIPES,
    BLOCKING,
    BLOCKING_PIPES,
)


ANSWERING = (*EVERY, EXCHANGE)
"""With exchanges, on which a handler cannot call back, and nothing is cancelled by a message."""


def steps(line: Line) -> list[str]:
    """List what a dependency and its handler have said so far."""
    words = ("open", "use", "done", "saw", "close")
    return [each for each in line.log.splitlines() if each.startswith(words)]


def over(hosts: Sequence[Host], *, without: Sequence[Host] = ()) -> pytest.MarkDecorator:
    """Run a case once for each of these hosts."""
    chosen = [host for host in hosts if host not in without]
    return pytest.mark.parametrize("host", chosen, ids=[host.name for host in chosen])


def methods(host: Host, name: str) -> list[str]:
    """Name a handler and, where the host serves it, its `async def` twin."""
    return [name, f"{name}_async"] if host.has_async else [name]
