"""Ways to reach a server: each opens a link, which knows its channel and how it came to be lost."""

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct

from duet_rpc.context import Transport
from duet_rpc.errors import ConnectFailed, ConnectionLost, UsageError
from duet_rpc.options import check, is_integer
from duet_rpc.transports.channel import Channel

StderrOption = Literal["keep", "show"]
"""What to do with the stderr of a child: keep its last lines, or show all of it as well."""


class Link(Struct):
    """One open way to a server."""

    channel: Channel
    is_network: bool
    """A fault that loses the boundary between frames ends it, instead of being skipped."""
    loss: Callable[[], ConnectionLost]
    """Says, after the end of the input, what happened."""
    end: Callable[[], object]
    """Gives everything back: the descriptors, and a child process. Blocks, idempotent."""
    transport: Transport = "memory"
    address: str | None = None
    """Of the server, if it has one."""


class Opener(Protocol):
    """Opens links to one server, again after a loss."""

    def open(self, timeout: float | None = None) -> Link:
        """Connect; blocks, for at most `timeout` seconds if one is given.

        Raises `ConnectFailed`.
        """
        ...


class SocketOpener:
    """Connects to a server that listens at `unix:PATH` or `tcp://HOST:PORT`."""

    def __init__(self, target: str, *, timeout: float = 10.0) -> None:
        from duet_rpc.transports.address import parse_target

        self._target = parse_target(target)
        self._timeout = timeout

    def open(self, timeout: float | None = None) -> Link:
        """Connect."""
        from duet_rpc.transports.address import UnixTarget

        patience = self._timeout if timeout is None else min(timeout, self._timeout)
        channel = self._target.connect(patience)
        return Link(
            channel,
            is_network=True,
            loss=lambda: ConnectionLost(f"the server at {self._target} closed the connection"),
            end=channel.close,
            transport="unix" if isinstance(self._target, UnixTarget) else "tcp",
            address=str(self._target),
        )


class FirstOpener:
    """Connects to the first of several servers that can be reached, in the order given."""

    def __init__(self, openers: Sequence[Opener]) -> None:
        self._openers = openers

    def open(self, timeout: float | None = None) -> Link:
        """Connect; from the first on, also after a loss."""
        until = None if timeout is None else time.monotonic() + timeout
        failures: list[ConnectFailed] = []
        for opener in self._openers:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0 and failures:
                break
            try:
                return opener.open(left)
            except ConnectFailed as error:
                failures.append(error)
        raise ConnectFailed("; ".join(str(failure) for failure in failures)) from failures[-1]


def _check_environment(env: Any) -> None:
    """Refuse what is no environment; told without its values, for there are secrets among them."""
    accepted = "a dict of texts by name, or None for ours"
    if not isinstance(env, Mapping):
        raise UsageError(f"env is of type {type(env).__name__}; give {accepted}")
    kinds = (str, bytes, os.PathLike)
    for name, value in env.items():
        if not (isinstance(name, kinds) and isinstance(value, kinds)):
            wrong = f"{name!r} of type {type(value).__name__}"
            raise UsageError(f"env is given {wrong}; give {accepted}")


def stderr_reader(option: StderrOption) -> Callable[[str], None] | None:
    """Make what is told each line of a child's stderr; None if nobody is."""
    check("stderr", option, option in ("keep", "show"), '"keep" or "show"')
    return _show if option == "show" else None


def _show(line: str) -> None:
    sys.stderr.write(f"{line}\n")  # in one piece: other threads write there too
    sys.stderr.flush()


class ChildOpener:
    """Starts a server as a child process, again after a crash within limits."""

    MINUTE = 60.0

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        restarts: int = 3,
        on_stderr: Callable[[str], None] | None = None,
    ) -> None:
        from duet_rpc.transports.child import check_command

        check_command(command)
        check("cwd", cwd, cwd is None or isinstance(cwd, (str, os.PathLike)), "a path, or None")
        if env is not None:
            _check_environment(env)
        sound = is_integer(restarts) and restarts >= 0
        check("restarts", restarts, sound, "a whole number, 0 or more")
        self._command = command
        self._cwd = cwd
        self._env = env
        self._restarts = restarts
        self._on_stderr = on_stderr
        self._started: deque[float] = deque()

    def open(self, timeout: float | None = None) -> Link:
        """Start the process, unless it has crashed too often of late."""
        from duet_rpc.transports.child import Child

        now = time.monotonic()
        while self._started and now - self._started[0] > self.MINUTE:
            self._started.popleft()
        if len(self._started) > self._restarts:
            raise ConnectFailed(
                f"{self._command[0]} was started {len(self._started)} times within a minute;"
                " it is not started again for now"
            )
        child = Child(self._command, cwd=self._cwd, env=self._env, on_stderr=self._on_stderr)
        self._started.append(now)
        return Link(
            child.channel,
            is_network=False,
            loss=child.loss,
            end=child.end,
            transport="stdio",
        )
