"""A client and a server in one process, joined by a pair of sockets."""

import asyncio
import contextlib
import logging
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Unpack

from duet_rpc.client.client import Client
from duet_rpc.client.options import CommonOptions
from duet_rpc.context import Origin
from duet_rpc.engine.connection import ConnectionOptions
from duet_rpc.engine.log import Log
from duet_rpc.errors import ConnectFailed, ConnectionLost
from duet_rpc.hosts.loggers import LEVELS
from duet_rpc.hosts.loop import LoopHost
from duet_rpc.hosts.workers import Lane, Refused, Workers
from duet_rpc.policy import SPEC, Policy
from duet_rpc.server.lifespan import Lifespan
from duet_rpc.server.logs import write_fields
from duet_rpc.server.server import Server, assemble_dispatcher
from duet_rpc.service import Service
from duet_rpc.testing.clock import JumpingLoop
from duet_rpc.testing.wire import Wire
from duet_rpc.transports.channel import Channel
from duet_rpc.transports.link import Link
from duet_rpc.wire.dialect import JSONRPC, Dialect, find_dialect
from duet_rpc.wire.framing import framing as make_framing

if TYPE_CHECKING:
    from duet_rpc import blocking
    from duet_rpc.engine.face import MakeFace
    from duet_rpc.hooks import Hooks
    from duet_rpc.ledger import Ledger, Store


@contextlib.asynccontextmanager
async def connect(
    service: Service,
    /,
    *,
    policy: Policy = SPEC,
    store: "Store | Ledger | str | None" = None,
    wire: Wire | None = None,
    server_log: Log | None = None,
    client_policy: Policy = SPEC,
    hooks: "Sequence[Hooks]" = (),
    override: Mapping[Any, Any] | None = None,
    client_hooks: "Sequence[Hooks]" = (),
    face: "MakeFace | None" = None,
    **client_options: Unpack[CommonOptions],
) -> AsyncIterator[Client]:
    """Serve a service in the running loop and give a `Client` that is connected to it.

    The lifespans of the service run for as long as the block lasts; `override` gives values in
    place of what they and its dependencies provide, by type.
    `policy`, `store`, `hooks` and `server_log` are the server's, `client_policy` and `client_hooks`
    are the client's; all other options are those of `Client`: `service` is what it serves to the
    server, and its `errors` are those of the service unless others are given. With `reconnect` the
    client finds the same service again after a loss. What the two say to each other passes through
    the `wire`, if there is one.
    With a `face`, such as `duet_rpc.mcp.Mcp()`, the client speaks its protocol:
    `client.call("tools/list")`.
    Without a `server_log` the server tells the logger `duet_rpc` of Python's `logging`, which
    pytest shows with a test that fails.
    """
    framing = client_options.get("framing", "lsp")
    dialect = find_dialect(client_options.setdefault("dialect", _usual_dialect(face)))
    client_options.setdefault("errors", service)
    server = MemoryServer(
        service, policy, store, framing, wire, server_log, dialect, hooks, override, face
    )
    client = Client(server, policy=client_policy, hooks=client_hooks, **client_options)
    if isinstance(server.workers, _CountedWorkers):
        client._workers = _CountedWorkers(server.workers.loop)
    async with server, client:
        yield client


def _usual_dialect(face: "MakeFace | None") -> Dialect:
    return JSONRPC if face is None else face.dialect


@contextlib.contextmanager
def connect_blocking(
    service: Service,
    /,
    *,
    policy: Policy = SPEC,
    store: "Store | Ledger | str | None" = None,
    wire: Wire | None = None,
    server_log: Log | None = None,
    client_policy: Policy = SPEC,
    hooks: "Sequence[Hooks]" = (),
    override: Mapping[Any, Any] | None = None,
    client_hooks: "Sequence[Hooks]" = (),
    face: "MakeFace | None" = None,
    **client_options: Unpack[CommonOptions],
) -> "Iterator[blocking.Client]":
    """Do the same for a `blocking.Client`; the server runs in the loop of a thread of its own."""
    from duet_rpc.blocking import Client as BlockingClient

    framing = client_options.get("framing", "lsp")
    dialect = find_dialect(client_options.setdefault("dialect", _usual_dialect(face)))
    client_options.setdefault("errors", service)
    with loop_in_thread() as loop:
        ready: Future[MemoryServer] = Future()
        over = asyncio.Event()

        async def serve() -> None:  # in one task, in which its lifespans start and end
            try:
                server = MemoryServer(
                    service,
                    policy,
                    store,
                    framing,
                    wire,
                    server_log,
                    dialect,
                    hooks,
                    override,
                    face,
                )
                async with server:
                    ready.set_result(server)
                    await over.wait()
            except BaseException as error:
                if ready.done():
                    raise
                ready.set_exception(error)

        serving = asyncio.run_coroutine_threadsafe(serve(), loop)
        server = ready.result()
        try:
            with BlockingClient(
                server, policy=client_policy, hooks=client_hooks, **client_options
            ) as client:
                yield client
        finally:
            loop.call_soon_threadsafe(over.set)
            serving.result()


@contextlib.contextmanager
def loop_in_thread() -> Iterator[asyncio.AbstractEventLoop]:
    """Run an event loop in a thread for as long as the block lasts."""
    ready = threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []
    stops: list[asyncio.Event] = []

    async def live() -> None:
        loops.append(asyncio.get_running_loop())
        stops.append(asyncio.Event())
        ready.set()
        await stops[0].wait()

    thread = threading.Thread(target=lambda: asyncio.run(live()), name="duet-rpc test server")
    thread.start()
    ready.wait()
    try:
        yield loops[0]
    finally:
        loops[0].call_soon_threadsafe(stops[0].set)
        thread.join()


class MemoryServer:
    """Serves a service to each client that opens a link to it, in the loop in which it was made.

    `async with` starts and ends the lifespans of the service.
    """

    def __init__(
        self,
        service: Service,
        policy: Policy,
        store: "Store | Ledger | str | None",
        framing: Any,
        wire: Wire | None,
        log: Log | None,
        dialect: Dialect = JSONRPC,
        hooks: "Sequence[Hooks]" = (),
        override: Mapping[Any, Any] | None = None,
        face: "MakeFace | None" = None,
    ) -> None:
        server = Server(
            service,
            policy=policy,
            store=store,
            dialect=dialect,
            hooks=hooks,
            override=override,
            face=face,
        )
        self._commands = server.commands
        self._lifespan = Lifespan(server.dependencies)
        self._dispatcher = assemble_dispatcher(
            server,
            log if log is not None else _StandardLog(),
            values=self._lifespan.values,
            shares_thread=True,
        )
        self._framing = framing
        self._wire = wire
        self._loop = loop = asyncio.get_running_loop()
        jumps = isinstance(loop, JumpingLoop)
        self.workers: _CountedWorkers | Workers = _CountedWorkers(loop) if jumps else Workers()
        self.hosts: list[LoopHost] = []
        self.refuses = False
        """Set it to have new connections fail."""

    async def __aenter__(self) -> "MemoryServer":
        try:
            await self._lifespan.start()
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        for host in self.hosts:
            host.close()
        try:
            if self._dispatcher.face is not None:
                await self._dispatcher.face.end(0.0)
            await self._lifespan.end(host.connection for host in self.hosts)
        finally:
            self.close()

    def open(self, timeout: float | None = None) -> Link:
        """Connect; any thread."""
        if self.refuses:
            raise ConnectFailed("the server in memory refuses connections")
        ours, theirs = socket.socketpair()
        self._loop.call_soon_threadsafe(self._serve, theirs)
        channel = Channel.over(ours)
        return Link(
            channel,
            is_network=True,
            loss=lambda: ConnectionLost("the server in memory closed the connection"),
            end=channel.close,
        )

    def _serve(self, connected: socket.socket) -> None:
        if self._wire is not None:
            connected = self._wire.join(connected, self._framing)
        policy = self._dispatcher.policy
        host = LoopHost(
            Channel.over(connected),
            self._dispatcher,
            make_framing(
                self._framing, max_message_bytes=policy.max_message_bytes, keeps_ends=True
            ),
            ConnectionOptions(
                origin=Origin(connection_id=f"memory-{len(self.hosts) + 1}", transport="memory"),
                closes_on_lost_boundary=True,
            ),
            workers=self.workers,
        )
        self.hosts.append(host)
        host.begin()

    def close(self) -> None:
        """Close every connection; on the loop."""
        for host in self.hosts:
            host.close()
        if self._wire is not None:
            self._wire.close()
        self.workers.close()
        self._commands.close()


class _CountedWorkers(Workers):
    """Tells the loop about its threads, so that time does not jump past them."""

    def __init__(self, loop: Any) -> None:
        super().__init__()
        self.loop: JumpingLoop = loop

    def lane(self) -> Lane:
        """Make the lane of a connection."""
        return _CountedLane(self, self.loop)


class _CountedLane(Lane):
    def __init__(self, workers: Workers, loop: JumpingLoop) -> None:
        super().__init__(workers)
        self._loop = loop

    def run(self, work: Callable[[], object], refused: Refused) -> None:
        """Run something on a thread."""

        def counted() -> None:
            try:
                work()
            finally:
                self._end()

        def counted_refused(error: Exception) -> None:
            refused(error)
            self._end()

        super().run(counted, counted_refused)
        self._loop.thread_began()  # it cannot have ended yet: the loop hears of that after us

    def _end(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._loop.thread_ended)
        except RuntimeError:
            pass  # the loop is gone


class _StandardLog:
    """A server's log that tells Python's `logging`."""

    _logger = logging.getLogger("duet_rpc")

    def note(self, severity: str, text: str, **fields: Any) -> None:
        """Write one line."""
        if self._logger.isEnabledFor(LEVELS[severity]):
            self._logger.log(LEVELS[severity], "%s%s", text, write_fields(fields))

    def failure(self, text: str, error: BaseException, **fields: Any) -> str:
        """Write an unforeseen exception with its traceback; return the reference for the peer."""
        fields["reference"] = reference = os.urandom(6).hex()
        self._logger.error("%s%s", text, write_fields(fields), exc_info=error)
        return reference
