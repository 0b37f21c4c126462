"""`Http(host, port)`: where a server is reachable over HTTP, as a value."""

from typing import TYPE_CHECKING, Any

from duet_rpc.errors import UsageError
from duet_rpc.http.options import IDLE, HttpOptions
from duet_rpc.options import check, is_integer
from duet_rpc.server.endpoints import SocketEndpoint

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from duet_rpc.http.principal import Authenticate
    from duet_rpc.server.listener import SocketListener
    from duet_rpc.server.logs import Logs
    from duet_rpc.server.server import Server


MAX_CONNECTIONS = 1000


class HttpEndpoint(SocketEndpoint, frozen=True, kw_only=True):
    """What an endpoint of HTTP has beside its address; see `HttpOptions`."""

    path: str = "/"
    allowed_hosts: "Sequence[str]" = ()
    allowed_origins: "Sequence[str]" = ()
    authenticate: "Authenticate | None" = None
    idle_timeout: float = IDLE
    max_connections: int = MAX_CONNECTIONS
    """More than of other sockets: clients of HTTP keep connections that they do not use."""


class Http(HttpEndpoint, frozen=True):
    """An HTTP server at a port of `host`; 0 is any free one. For the rest see `HttpOptions`.

    Without `authenticate`, whoever connects is served, so only loopback addresses are taken unless
    `allow_remote` says otherwise.
    """

    host: str
    port: int
    allow_remote: bool = False

    def __post_init__(self) -> None:
        SocketEndpoint.__post_init__(self)
        _ = self.options  # which checks them
        check("host", self.host, isinstance(self.host, str), 'a name or an address: "127.0.0.1"')
        sound = is_integer(self.port) and 0 <= self.port <= 65535
        check("port", self.port, sound, "a whole number from 0 (any free port) to 65535")
        is_flag = isinstance(self.allow_remote, bool)
        check("allow_remote", self.allow_remote, is_flag, "True or False")

    @property
    def options(self) -> HttpOptions:
        """What holds for HTTP whichever host serves it."""
        fields = HttpOptions.__struct_fields__
        return HttpOptions(**{name: getattr(self, name) for name in fields})

    def listen(self) -> "socket.socket":
        """Open the socket, unless other machines could reach it unasked."""
        from duet_rpc.transports.sockets import listen_tcp

        is_open = self.allow_remote or self.authenticate is not None
        return listen_tcp(self.host, self.port, allow_remote=is_open)

    def make_listener(
        self,
        listening: "socket.socket",
        server: "Server",
        logs: "Logs",
        on_start: "Callable[[str], object]",
        values: dict[Any, Any],
    ) -> "SocketListener":
        """Make what serves the socket."""
        from duet_rpc.http.listener import HttpListener

        if server.face is not None:
            raise UsageError("a face such as Mcp() has its own rules over HTTP; serve the service")
        return HttpListener(listening, self, server, logs, on_start, values)
