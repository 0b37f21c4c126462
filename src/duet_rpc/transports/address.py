"""The address of a server as text and as a value: `unix:PATH`, `tcp://HOST:PORT`."""

from typing import TYPE_CHECKING, NamedTuple

from duet_rpc.errors import UsageError
from duet_rpc.redaction import without_password

if TYPE_CHECKING:
    from duet_rpc.transports.channel import Channel

_ACCEPTED = "unix:PATH, unix:///PATH or tcp://HOST:PORT (an IPv6 address in brackets)"


class UnixTarget(NamedTuple):
    """The socket of a server on this machine."""

    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"

    def connect(self, timeout: float | None) -> "Channel":
        """Connect; blocks. Raises `ConnectFailed`."""
        from duet_rpc.transports.sockets import connect_unix

        return connect_unix(self.path, timeout)


class TcpTarget(NamedTuple):
    """The host and port of a server."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port}"

    def connect(self, timeout: float | None) -> "Channel":
        """Connect; blocks. Raises `ConnectFailed`."""
        from duet_rpc.transports.sockets import connect_tcp

        return connect_tcp(self.host, self.port, timeout)


def parse_target(text: str) -> UnixTarget | TcpTarget:
    """Read the address of a server: `unix:PATH`, `unix:///PATH`, `tcp://HOST:PORT`."""
    scheme, colon, rest = text.partition(":") if isinstance(text, str) else ("", "", "")
    if scheme == "unix" and rest:
        path = rest.removeprefix("//") if rest.startswith("///") else rest
        if not path.startswith("//"):
            return UnixTarget(path)
    if scheme == "tcp" and rest.startswith("//"):
        host, colon, port = rest[2:].removesuffix("/").rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        if bracketed:
            host = host[1:-1]
        sound = colon and host and (":" in host) == bracketed and "/" not in host
        if sound and port.isascii() and port.isdigit() and int(port) <= 65535:
            return TcpTarget(host, int(port))
    shown = without_password(text) if isinstance(text, str) else text
    raise UsageError(f"{shown!r} is no address of a server; use {_ACCEPTED}")
