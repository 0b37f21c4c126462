"""Serves a Service: the one place where policy, ledger, log and transport meet."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from duet_rpc.collector import pause_collector
from duet_rpc.errors import UsageError
from duet_rpc.ledger.commands import Commands, ReadConnections
from duet_rpc.options import check
from duet_rpc.policy import EDITOR, Policy
from duet_rpc.server.lifespan import Lifespan, LifespanFailed
from duet_rpc.server.stores import open_commands
from duet_rpc.service import Service
from duet_rpc.wire.dialect import JSONRPC, Dialect, DialectName, find_dialect

if TYPE_CHECKING:
    from typing import Unpack

    from duet_rpc.around.dependencies import Dependencies
    from duet_rpc.engine.dispatch import Dispatcher
    from duet_rpc.engine.face import MakeFace
    from duet_rpc.engine.log import Log
    from duet_rpc.hooks import Hooks
    from duet_rpc.ledger import Ledger, Store
    from duet_rpc.server.builtin import Levels
    from duet_rpc.server.endpoints import FramingName, SocketEndpoint, SocketOptions, Stdio
    from duet_rpc.server.logs import Logs


_NO_ENDPOINT = "{0!r} is no endpoint; give Stdio(), Unix(path) or Tcp(host, port)"
_NO_SOCKET = "{0!r} is no socket; give Unix(path) or Tcp(host, port), and Stdio() to run()"


class Server:
    """A service under a policy, ready to be served.

    `store` keeps what became of each command: a store, its URL (`sqlite:///commands.db`), or a
    `Ledger` with times of its own. An unforeseen exception of a handler is logged with its text,
    which may hold anything that the handler had in hand; `log_exception_text=False` logs the types
    and the places of exceptions only. `dialect` says how cancellation, progress and the log level
    are spelled: "jsonrpc", "lsp" or "mcp". `hooks` run around handlers and listen to events:
    objects of subclasses of `duet_rpc.hooks.Hooks`, the outermost first. `override` gives values in
    place of those that lifespans and dependencies of the service provide, by their types; what is
    overridden is not opened.
    """

    def __init__(
        self,
        service: Service,
        *,
        policy: Policy | None = None,
        store: "Store | Ledger | str | None" = None,
        log_exception_text: bool = True,
        dialect: Dialect | DialectName = JSONRPC,
        hooks: "Sequence[Hooks]" = (),
        override: Mapping[Any, Any] | None = None,
        face: "MakeFace | None" = None,
    ) -> None:
        if not isinstance(service, Service):
            raise UsageError(f"a server serves a Service, not {service!r}")
        if policy is not None and not isinstance(policy, Policy):
            raise UsageError(
                f"policy is {policy!r}; give one of duet_rpc.policy, such as PRODUCTION"
            )
        is_flag = isinstance(log_exception_text, bool)
        check("log_exception_text", log_exception_text, is_flag, "True or False")
        self.service = service
        self.face: MakeFace | None = face
        self.dialect: Dialect = find_dialect(dialect if face is None else face.dialect)
        self.hooks: Sequence[Hooks] = _check_hooks(service, hooks)
        self.log_exception_text = log_exception_text
        self.policy: Policy = policy if policy is not None else EDITOR
        self.commands: Commands = open_commands(service, self.policy, store)
        self.dependencies: Dependencies | None = _dependencies(service, override, self.commands)

    def run(
        self,
        endpoint: "Stdio | SocketEndpoint",
        *,
        logs: "Logs | None" = None,
        on_start: Callable[[Any], object] = lambda started: None,
    ) -> str | None:
        """Serve on stdin and stdout until the client ends it, or on a socket until a signal does.

        SIGINT, SIGTERM and SIGHUP end either. `on_start` is called with the address as soon as
        clients can connect to a socket; on stdio, with what drives the connection. Returns why it
        ended: "exit", "end of input", "SIGTERM" and so on.
        """
        with pause_collector():
            from duet_rpc.server.daemon import run_on_socket, run_on_stdio
            from duet_rpc.server.endpoints import SocketEndpoint, Stdio

        if isinstance(endpoint, Stdio):
            run = partial(run_on_stdio, self, endpoint)
        elif isinstance(endpoint, SocketEndpoint):
            run = partial(run_on_socket, self, endpoint, endpoint.listen())
        else:
            raise UsageError(_NO_ENDPOINT.format(endpoint))
        logs = self._log(logs)
        with closing(logs), closing(self.commands):
            try:
                return run(logs, on_start)
            except LifespanFailed as failed:
                logs.failure(str(failed), failed.__cause__ or failed)
                logs.flush(0.5)
                sys.exit(1)

    async def serve(
        self,
        endpoint: "SocketEndpoint",
        *,
        logs: "Logs | None" = None,
        drain: float = 2.0,
        on_start: Callable[[str], object] = lambda address: None,
    ) -> None:
        """Serve on a socket in the running loop until cancelled, then drain for `drain` seconds.

        `on_start` is called with the address as soon as clients can connect.
        """
        import asyncio

        from duet_rpc.server.endpoints import SocketEndpoint

        if not isinstance(endpoint, SocketEndpoint):
            raise UsageError(_NO_SOCKET.format(endpoint))
        listening = endpoint.listen()
        logs = self._log(logs)
        with closing(logs):
            lifespan = Lifespan(self.dependencies)
            listener = endpoint.make_listener(listening, self, logs, on_start, lifespan.values)
            try:
                await lifespan.start()
                listener.begin()
                await asyncio.get_running_loop().create_future()  # until cancelled
            finally:
                connections = listener.connections
                await listener.end(time.monotonic() + drain)
                await lifespan.end(connections)

    # The same by name.

    def run_stdio(
        self,
        *,
        framing: "FramingName" = "lsp",
        logs: "Logs | None" = None,
        on_start: Callable[[Any], object] = lambda host: None,
    ) -> str | None:
        """Serve on stdin and stdout until the client ends it: `run(Stdio(...))`."""
        from duet_rpc.server.endpoints import Stdio

        return self.run(Stdio(framing=framing), logs=logs, on_start=on_start)

    def run_unix(
        self,
        path: str,
        *,
        logs: "Logs | None" = None,
        on_start: Callable[[str], object] = lambda address: None,
        **options: "Unpack[SocketOptions]",
    ) -> None:
        """Serve on a unix socket (mode 0600) until a signal ends it: `run(Unix(path, ...))`."""
        from duet_rpc.server.endpoints import Unix

        self.run(Unix(path, **options), logs=logs, on_start=on_start)

    def run_tcp(
        self,
        host: str,
        port: int,
        *,
        allow_remote: bool = False,
        logs: "Logs | None" = None,
        on_start: Callable[[str], object] = lambda address: None,
        **options: "Unpack[SocketOptions]",
    ) -> None:
        """Serve on a TCP port until a signal ends it: `run(Tcp(host, port, ...))`."""
        from duet_rpc.server.endpoints import Tcp

        endpoint = Tcp(host, port, allow_remote=allow_remote, **options)
        self.run(endpoint, logs=logs, on_start=on_start)

    async def serve_unix(
        self,
        path: str,
        *,
        logs: "Logs | None" = None,
        drain: float = 2.0,
        on_start: Callable[[str], object] = lambda address: None,
        **options: "Unpack[SocketOptions]",
    ) -> None:
        """Serve on a unix socket until cancelled: `serve(Unix(path, ...))`."""
        from duet_rpc.server.endpoints import Unix

        await self.serve(Unix(path, **options), logs=logs, drain=drain, on_start=on_start)

    async def serve_tcp(
        self,
        host: str,
        port: int,
        *,
        allow_remote: bool = False,
        logs: "Logs | None" = None,
        drain: float = 2.0,
        on_start: Callable[[str], object] = lambda address: None,
        **options: "Unpack[SocketOptions]",
    ) -> None:
        """Serve on a TCP port until cancelled: `serve(Tcp(host, port, ...))`."""
        from duet_rpc.server.endpoints import Tcp

        endpoint = Tcp(host, port, allow_remote=allow_remote, **options)
        await self.serve(endpoint, logs=logs, drain=drain, on_start=on_start)

    def close(self) -> None:
        """Give back what the store holds; idempotent. `run` does it by itself."""
        self.commands.close()

    def _log(self, given: "Logs | None") -> "Logs":
        """Take the log that was given, or make one; it keeps to what this server may log."""
        from duet_rpc.server.logs import Logs

        logs = given if given is not None else Logs()
        if not self.log_exception_text:
            logs.withhold_exception_text()
        self.commands.on_open = logs.adopt
        return logs


def add_own_methods(
    service: Service,
    commands: Commands,
    *,
    dialect: Dialect = JSONRPC,
    levels: "Levels | None" = None,
    end: Callable[[str], None] = lambda reason: None,
    part: Callable[[str], None] | None = None,
) -> Service:
    """Add what every server has, unless the service defines its own: how it is described and ended.

    `levels` are those of the log. `end` is called with why the server is to end; with `part` a
    client ends its own connection only, and `part` is called with which.
    """
    from duet_rpc.server.builtin import builtin_methods, parting_methods

    if part is not None:
        service = service.with_fallback(parting_methods(part))
    levels = _FixedLevel() if levels is None else levels
    own = builtin_methods(service, levels, end, commands, dialect)
    return service.with_fallback(own)


class _FixedLevel:
    def set_level(self, level: str) -> None:
        """The level is not for clients to set."""


def assemble_dispatcher(
    server: Server,
    log: "Log",
    *,
    values: dict[Any, Any] | None = None,
    shares_thread: bool = False,
    levels: "Levels | None" = None,
    end: Callable[[str], None] = lambda reason: None,
    part: Callable[[str], None] | None = None,
) -> "Dispatcher":
    """Make what dispatches the requests of a server: to its service, and to its own methods.

    `values` are those that its lifespans give, by type, once they have started.
    """
    from duet_rpc.engine.dispatch import make_dispatcher

    service, commands, dialect = server.service, server.commands, server.dialect
    dependencies, face = server.dependencies, server.face
    served = (
        add_own_methods(service, commands, dialect=dialect, levels=levels, end=end, part=part)
        if face is None
        else face.extend(service)
    )
    return make_dispatcher(
        served,
        server.policy,
        ledger=commands,
        log=log,
        shares_thread=shares_thread,
        dialect=dialect,
        face=face,
        hooks=server.hooks,
        bind=None
        if dependencies is None
        else partial(dependencies.bind, values={} if values is None else values),
    )


def _dependencies(
    service: Service, override: Mapping[Any, Any] | None, commands: Commands
) -> "Dependencies | None":
    if not service.needs_binding and not override:
        return None
    from duet_rpc.around.dependencies import Dependencies

    return Dependencies(service, override=override, reader=ReadConnections(commands))


def _check_hooks(service: Service, hooks: "Sequence[Hooks]") -> "Sequence[Hooks]":
    if service.middleware:
        from duet_rpc.around.middleware import make_hooks

        make_hooks(service)
    if not hooks:
        return ()
    from duet_rpc.hooks import check_hooks

    return check_hooks(hooks, has_async=any(method.is_async for method in service))
