"""Ways to reach a server: each opens a link, which knows its channel and how it came to be lost."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from duet_rpc.context import Transport
from duet_rpc.errors import ConnectFailed, ConnectionLost
from duet_rpc.transports.channel import Channel


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
    pid: int | None = None
    """The process of a server that was started for this link."""


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
        """Connect; from the first on, also after a loss.

        Each has its share of the time: one that does not answer leaves some for the others.
        """
        until = None if timeout is None else time.monotonic() + timeout
        failures: list[ConnectFailed] = []
        for tried, opener in enumerate(self._openers):
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0 and failures:
                break
            try:
                return opener.open(None if left is None else left / (len(self._openers) - tried))
            except ConnectFailed as error:
                failures.append(error)
        raise ConnectFailed("; ".join(str(failure) for failure in failures)) from failures[-1]
