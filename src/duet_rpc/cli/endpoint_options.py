"""The options that say where a service is reachable, and the endpoint that they amount to."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from duet_rpc.cli.serve_options import option

if TYPE_CHECKING:
    from duet_rpc.server.endpoints import FramingName, SocketEndpoint

_OPTIONS = (
    option(
        "--unix",
        metavar="PATH",
        envvar="DUET_RPC_UNIX",
        help="Listen on a unix socket, made for you alone (mode 0600), instead of stdin and"
        " stdout.",
    ),
    option(
        "--tcp",
        metavar="HOST:PORT",
        envvar="DUET_RPC_TCP",
        help="Listen on a TCP port (0: any free one, shown in the log). Only loopback addresses"
        " are taken, for every client that connects is served.",
    ),
    option(
        "--http",
        metavar="HOST:PORT",
        envvar="DUET_RPC_HTTP",
        help="Answer HTTP requests at a port, also /livez and /readyz. The usual policy is then"
        " development. Only loopback addresses are taken without --token-file.",
    ),
    option(
        "--path",
        metavar="PATH",
        envvar="DUET_RPC_PATH",
        help="Where JSON-RPC is served over HTTP.  [/]",
    ),
    option(
        "--token-file",
        type=click.Path(dir_okay=False),
        envvar="DUET_RPC_TOKEN_FILE",
        help="Ask HTTP clients for a bearer token. A line is NAME SHA256 [SCOPE ...].",
    ),
    option(
        "--allow-host",
        "allowed_hosts",
        metavar="NAME",
        multiple=True,
        envvar="DUET_RPC_ALLOW_HOST",
        help="A name that HTTP clients may call the server by, such as that of a proxy. May be"
        " given several times.",
    ),
    option(
        "--allow-origin",
        "allowed_origins",
        metavar="ORIGIN",
        multiple=True,
        envvar="DUET_RPC_ALLOW_ORIGIN",
        help="A site whose pages may call over HTTP: https://app.example.com. May be given several"
        " times.",
    ),
    option(
        "--allow-remote",
        is_flag=True,
        envvar="DUET_RPC_ALLOW_REMOTE",
        help="Take any address for --tcp and --http. Everybody who can reach it may call"
        " everything.",
    ),
    option(
        "--max-connections",
        type=click.IntRange(min=1),
        metavar="COUNT",
        envvar="DUET_RPC_MAX_CONNECTIONS",
        help="Serve so many connections of a socket at once; others are refused.  [100; 1000 for"
        " --http]",
    ),
)


class EndpointOptions(NamedTuple):
    """What was given, or stands in the environment."""

    unix: str | None
    tcp: str | None
    http: str | None
    path: str | None
    token_file: str | None
    allowed_hosts: tuple[str, ...]
    allowed_origins: tuple[str, ...]
    allow_remote: bool
    max_connections: int | None

    @property
    def has_socket(self) -> bool:
        """Whether it is to be reached through a socket, and not on stdin and stdout."""
        return not (self.unix is None and self.tcp is None and self.http is None)

    def check(self) -> None:
        """Refuse options that contradict each other, before anything is loaded."""
        if sum(each is not None for each in (self.unix, self.tcp, self.http)) > 1:
            raise click.UsageError("choose one of --unix, --tcp and --http")
        if self.max_connections is not None and not self.has_socket:
            raise click.UsageError("--max-connections is for sockets; give --unix, --tcp or --http")
        beside = {
            "--path": self.path,
            "--token-file": self.token_file,
            "--allow-host": self.allowed_hosts,
            "--allow-origin": self.allowed_origins,
        }
        for name, value in beside.items():
            if value and self.http is None:
                raise click.UsageError(f"{name} is for --http")

    def make_endpoint(self, framing: "FramingName") -> "SocketEndpoint | None":
        """Make the endpoint; None is stdin and stdout. Raises `UsageError`."""
        from duet_rpc.cli.load import read_host_and_port
        from duet_rpc.server.endpoints import MAX_CONNECTIONS, Tcp, Unix

        most = self.max_connections or MAX_CONNECTIONS
        if self.unix is not None:
            return Unix(self.unix, framing=framing, max_connections=most)
        if self.tcp is not None:
            host, port = read_host_and_port(self.tcp)
            return Tcp(
                host, port, allow_remote=self.allow_remote, framing=framing, max_connections=most
            )
        if self.http is None:
            return None
        from duet_rpc.http import BearerTokens, Http
        from duet_rpc.http.endpoint import MAX_CONNECTIONS as HTTP_CONNECTIONS

        host, port = read_host_and_port(self.http)
        return Http(
            host,
            port,
            allow_remote=self.allow_remote,
            path=self.path or "/",
            allowed_hosts=self.allowed_hosts,
            allowed_origins=self.allowed_origins,
            authenticate=BearerTokens.read(self.token_file) if self.token_file else None,
            max_connections=self.max_connections or HTTP_CONNECTIONS,
        )


def endpoint_options(run: Callable[..., None]) -> Callable[..., None]:
    """Give a command these options; it is called with `where`, the `EndpointOptions`."""

    @functools.wraps(run)
    def command(*args: Any, **given: Any) -> None:
        where = EndpointOptions(*(given.pop(name) for name in EndpointOptions._fields))
        run(*args, where=where, **given)

    for each in reversed(_OPTIONS):
        command = each(command)
    return command
