"""Endpoints: where a server is reachable, as frozen values that say it all.

`Stdio()`, `Unix(path)` and `Tcp(host, port)` are handed to `Server.run` and `Server.serve`. What
cannot work is refused with a `UsageError` when the value is made, before anything is opened.
"""

import os
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypedDict

from msgspec import Struct

from duet_rpc.options import check, is_integer
from duet_rpc.wire.framing import Framing, check_framing
from duet_rpc.wire.framing import framing as make_framing

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from duet_rpc.engine.face import MakeFace
    from duet_rpc.policy import Policy
    from duet_rpc.server.listener import SocketListener
    from duet_rpc.server.logs import Logs
    from duet_rpc.server.server import Server

    class SocketOptions(TypedDict, total=False):
        """The options of `Unix` and `Tcp`, for those who hand them on."""

        framing: "FramingName"
        max_connections: int
        max_queued_bytes: int
        principal: "Callable[[socket.socket], str] | None"


FramingName = Literal["lsp", "ndjson", "auto"]

MAX_CONNECTIONS = 100
MAX_QUEUED_BYTES = 32 * 1024 * 1024


class Endpoint(Struct, frozen=True, kw_only=True):
    """A place where a server is reachable."""

    is_network: ClassVar[bool] = False
    """Whether others than the starter of this process may be at the other end."""

    framing: FramingName = "lsp"
    """How messages are told apart: "lsp" (headers), "ndjson" (lines), or "auto". Agents have no
    headers: in place of "lsp" they are served lines."""

    def __post_init__(self) -> None:
        check_framing(self.framing)

    def make_framing(self, policy: "Policy", face: "MakeFace | None" = None) -> Framing:
        """Make the framing of one connection."""
        return make_framing(
            self.framing if face is None or self.framing != "lsp" else face.framing,
            max_message_bytes=policy.max_message_bytes,
            max_header_bytes=policy.max_header_bytes,
            keeps_ends=True,
            only_json=self.is_network,
        )


class Stdio(Endpoint, frozen=True):
    """Stdin and stdout: one client, which has started this process."""


class SocketEndpoint(Endpoint, frozen=True, kw_only=True):
    """A socket to which any number of clients connect."""

    is_network: ClassVar[bool] = True

    max_connections: int = MAX_CONNECTIONS
    """Further ones are answered `overloaded` and closed."""
    max_queued_bytes: int = MAX_QUEUED_BYTES
    """Bodies of waiting requests, of all connections together."""
    principal: "Callable[[socket.socket], str] | None" = None
    """Who calls, if not `uid:N` on a unix socket and `local` on loopback TCP. What it raises
    refuses the connection."""

    def __post_init__(self) -> None:
        Endpoint.__post_init__(self)
        for name in ("max_connections", "max_queued_bytes"):
            count = getattr(self, name)
            check(name, count, is_integer(count) and count >= 1, "a whole number, 1 or more")
        sound = self.principal is None or callable(self.principal)
        accepted = "a function of the socket that says who is there, or None"
        check("principal", self.principal, sound, accepted)

    def listen(self) -> "socket.socket":
        """Open the socket; an endpoint that cannot says why by a `UsageError`."""
        raise NotImplementedError

    def make_listener(
        self,
        listening: "socket.socket",
        server: "Server",
        logs: "Logs",
        on_start: "Callable[[str], object]",
        values: "dict[Any, Any]",
    ) -> "SocketListener":
        """Make what serves the socket; `values` are those of lifespans."""
        from duet_rpc.server.listener import Listener

        return Listener(listening, self, server, logs, on_start, values)


class Unix(SocketEndpoint, frozen=True):
    """A unix socket at `path`, made for the user of this process alone (mode 0600)."""

    path: "str | os.PathLike[str]"

    def __post_init__(self) -> None:
        SocketEndpoint.__post_init__(self)
        check("path", self.path, isinstance(self.path, (str, os.PathLike)), "the path of a socket")

    def listen(self) -> "socket.socket":
        """Open the socket; one that a server has left behind is replaced."""
        from duet_rpc.transports.sockets import listen_unix

        return listen_unix(os.fspath(self.path))


class Tcp(SocketEndpoint, frozen=True):
    """A TCP port of `host`; 0 is any free one.

    Every client is served, so only loopback addresses are taken unless `allow_remote` says
    otherwise.
    """

    host: str
    port: int
    allow_remote: bool = False

    def __post_init__(self) -> None:
        SocketEndpoint.__post_init__(self)
        check("host", self.host, isinstance(self.host, str), 'a name or an address: "127.0.0.1"')
        sound = is_integer(self.port) and 0 <= self.port <= 65535
        check("port", self.port, sound, "a whole number from 0 (any free port) to 65535")
        is_flag = isinstance(self.allow_remote, bool)
        check("allow_remote", self.allow_remote, is_flag, "True or False")

    def listen(self) -> "socket.socket":
        """Open the socket, unless other machines could reach it unasked."""
        from duet_rpc.transports.sockets import listen_tcp

        return listen_tcp(self.host, self.port, allow_remote=self.allow_remote)
