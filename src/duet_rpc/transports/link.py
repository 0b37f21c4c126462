"""Ways to reach a server: each opens a link, which knows its channel and how it came to be lost."""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from duet_rpc.context import Transport
from duet_rpc.errors import ConnectionLost
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
