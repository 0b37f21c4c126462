"""Serves a Service: the one place where policy, ledger, log and transport meet."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from duet_rpc.errors import StoreUnavailable, UsageError
from duet_rpc.kinds import Promise
from duet_rpc.ledger.commands import Commands
from duet_rpc.options import check
from duet_rpc.policy import EDITOR, Policy
from duet_rpc.service import Method, Service
from duet_rpc.wire.dialect import JSONRPC, Dialect, DialectName, find_dialect

if TYPE_CHECKING:
    from socket import socket
    from typing import Unpack

    from duet_rpc.hooks import Hooks
    from duet_rpc.ledger import Ledger, Store
    from duet_rpc.server.daemon import DaemonHost, FramingName
    from duet_rpc.server.listener import Options
    from duet_rpc.server.logs import Logs


class Server:
    """A service under a policy, ready to be served.

    `store` keeps what became of each command: a store, its URL (`sqlite:///commands.db`), or a
    `Ledger` with times of its own. An unforeseen exception of a handler is logged with its text,
    which may hold anything that the handler had in hand; `log_exception_text=False` logs the types
    and the places of exceptions only. `dialect` says how cancellation, progress and the log level
    are spelled: "jsonrpc" (as in LSP) or "mcp". `hooks` run around handlers and are told events:
    objects of subclasses of `duet_rpc.hooks.Hooks`, the outermost first.
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
        self.dialect = find_dialect(dialect)
        self.hooks = _check_hooks(service, hooks)
        self.log_exception_text = log_exception_text
        self.policy = policy if policy is not None else EDITOR
        self.commands = _commands(service, self.policy, store)

    def run_stdio(
        self,
        *,
        framing: "FramingName" = "lsp",
        logs: "Logs | None" = None,
        on_start: "Callable[[DaemonHost], None]" = lambda host: None,
    ) -> None:
        """Serve on stdin and stdout until the peer ends it; `on_start` is told what drives it."""
        from duet_rpc.server.daemon import run_daemon
        from duet_rpc.wire.framing import check_framing

        check_framing(framing)  # while stdout is still whose it was
        logs = self._log(logs)
        with closing(logs), closing(self.commands):
            run_daemon(
                self.service,
                self.policy,
                framing=framing,
                logs=logs,
                commands=self.commands,
                dialect=self.dialect,
                hooks=self.hooks,
                on_start=on_start,
            )

    async def serve_unix(
        self,
        path: str,
        *,
        logs: "Logs | None" = None,
        drain: float = 2.0,
        on_start: Callable[[str], None] = lambda address: None,
        **options: "Unpack[Options]",
    ) -> None:
        """Serve on a unix socket (mode 0600) until cancelled, then drain for `drain` seconds.

        `on_start` is told the address as soon as clients can connect.
        """
        from duet_rpc.server.listener import check_options
        from duet_rpc.transports.sockets import listen_unix

        check_options(options)
        await self._serve(listen_unix(path), logs, drain, on_start, options)

    async def serve_tcp(
        self,
        host: str,
        port: int,
        *,
        allow_remote: bool = False,
        logs: "Logs | None" = None,
        drain: float = 2.0,
        on_start: Callable[[str], None] = lambda address: None,
        **options: "Unpack[Options]",
    ) -> None:
        """Serve on a TCP port (0: any free one) until cancelled, then drain for `drain` seconds.

        Whoever connects is served, so only loopback addresses are taken unless `allow_remote` says
        otherwise. `on_start` is told the address, with the port, as soon as clients can connect.
        """
        from duet_rpc.server.listener import check_options
        from duet_rpc.transports.sockets import listen_tcp

        check_options(options)
        listening = listen_tcp(host, port, allow_remote=allow_remote)
        await self._serve(listening, logs, drain, on_start, options)

    def run_unix(
        self,
        path: str,
        *,
        logs: "Logs | None" = None,
        on_start: Callable[[str], None] = lambda address: None,
        **options: "Unpack[Options]",
    ) -> None:
        """Serve on a unix socket (mode 0600) until SIGINT, SIGTERM or SIGHUP ends it."""
        from duet_rpc.server.listener import check_options
        from duet_rpc.transports.sockets import listen_unix

        check_options(options)
        self._run(listen_unix(path), logs, on_start, options)

    def run_tcp(
        self,
        host: str,
        port: int,
        *,
        allow_remote: bool = False,
        logs: "Logs | None" = None,
        on_start: Callable[[str], None] = lambda address: None,
        **options: "Unpack[Options]",
    ) -> None:
        """Serve on a TCP port until SIGINT, SIGTERM or SIGHUP ends it; see `serve_tcp`."""
        from duet_rpc.server.listener import check_options
        from duet_rpc.transports.sockets import listen_tcp

        check_options(options)
        self._run(listen_tcp(host, port, allow_remote=allow_remote), logs, on_start, options)

    def close(self) -> None:
        """Give back what the store holds; idempotent. `run_...` do it by themselves."""
        self.commands.close()

    def _log(self, given: "Logs | None") -> "Logs":
        """Take the log that was given, or make one; it keeps to what this server may log."""
        from duet_rpc.server.logs import Logs

        logs = given if given is not None else Logs()
        if not self.log_exception_text:
            logs.withhold_exception_text()
        return logs

    async def _serve(
        self,
        listening: "socket",
        logs: "Logs | None",
        drain: float,
        on_start: Callable[[str], None],
        options: "Options",
    ) -> None:
        import asyncio

        from duet_rpc.server.listener import Listener

        logs = self._log(logs)
        with closing(logs):
            listener = Listener(
                listening,
                self.service,
                self.policy,
                logs=logs,
                commands=self.commands,
                dialect=self.dialect,
                hooks=self.hooks,
                **options,
            )
            try:
                listener.begin()
                on_start(str(listener.address))
                await asyncio.get_running_loop().create_future()  # until cancelled
            finally:
                await listener.end(drain)

    def _run(
        self,
        listening: "socket",
        logs: "Logs | None",
        on_start: Callable[[str], None],
        options: "Options",
    ) -> None:
        from duet_rpc.server.socket_daemon import run_on_socket

        logs = self._log(logs)
        with closing(logs), closing(self.commands):
            run_on_socket(
                listening,
                self.service,
                self.policy,
                logs=logs,
                commands=self.commands,
                dialect=self.dialect,
                hooks=self.hooks,
                on_start=on_start,
                **options,
            )


def _check_hooks(service: Service, hooks: "Sequence[Hooks]") -> "Sequence[Hooks]":
    if not hooks:
        return ()
    from duet_rpc.hooks import check_hooks

    return check_hooks(hooks, has_async=any(method.is_async for method in service))


def _commands(service: Service, policy: Policy, store: "Store | Ledger | str | None") -> Commands:
    """Open the ledger on a store now, or on memory when the first key comes."""
    if store is None:
        if policy.key_required:
            raise UsageError(
                f"policy {policy.name} requires idempotency keys, which need a durable store:"
                " give one with store= of Server (for example sqlite:///commands.db)"
            )
        for method in service:
            if method.promise is Promise.TRANSACTIONAL:
                raise UsageError(
                    f"{method.name} is transactional, which needs the store that its effects are"
                    " in: give it with store= of Server (for example sqlite:///commands.db)"
                )
        return Commands(
            partial(_ledger_in_memory, time.monotonic()), keeps=("memory", "until exit")
        )
    from duet_rpc.ledger import Ledger, open_store

    if isinstance(store, (str, os.PathLike)):
        store = open_store(os.fsdecode(store))
    is_store = callable(getattr(store, "sweep", None)) and not isinstance(store, type)
    accepted = 'a store, such as SqliteStore("commands.db"), its URL or a Ledger'
    check("store", store, is_store or isinstance(store, Ledger), accepted)
    ledger = store if isinstance(store, Ledger) else Ledger(store)
    if policy.key_required and not ledger.store.capabilities.durable:
        raise UsageError(
            f"policy {policy.name} needs a durable store; {type(ledger.store).__name__} forgets"
            " everything when the process ends"
        )
    for method in service:
        if method.promise is not None:
            ledger.require(method.promise)
            _check_connection(method, ledger.store)
    _try_file(ledger)
    keeps = getattr(ledger.store, "keeps", None)
    return Commands(lambda: ledger, checks=True, keeps=keeps)


def _check_connection(method: Method, store: "Store") -> None:
    """Refuse a transaction that is asked for by the connection of another store."""
    parameters = method.parameters
    able = store.capabilities
    kind, given = "def", able.connection
    if method.is_async:
        kind, given = "async def", able.async_connection
    if not parameters.connection or not given or parameters.connection == given:
        return
    raise UsageError(
        f"{method.name}: {parameters.transaction} is annotated {parameters.connection}, but"
        f" {type(store).__name__} gives a transactional {kind} the {given} of its own database;"
        f" write {parameters.transaction}: {given}, or duet_rpc.Transaction for either"
    )


def _try_file(ledger: "Ledger") -> None:
    """See at the start that a file can be used; a server that is down may come up later."""
    path = getattr(ledger.store, "path", None)
    if path is None:
        return
    try:
        ledger.store.counts()
    except StoreUnavailable as error:
        ledger.close()
        why = error.__cause__ or error
        raise UsageError(f"{path} cannot be used as a store: {why}") from None


def _ledger_in_memory(made: float) -> "Ledger":
    """Open a ledger that would know of every command since the server was made.

    It is opened with the first key: had one come before, it would have been opened then.
    """
    from duet_rpc.ledger import Ledger, MemoryStore
    from duet_rpc.ledger.stores.memory import steady_time

    return Ledger(MemoryStore(since=steady_time() - (time.monotonic() - made)))
