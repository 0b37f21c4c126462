"""Accepts connections on a socket and serves each of them on the running event loop.

All connections share one dispatcher, one set of worker threads and one budget of queued bytes. A
message that asks for the end (`shutdown`, `exit`) ends the connection it came on and no other. One
read is made for a connection at each turn of the loop, so none that floods keeps the others
waiting. While an `async def` blocks the loop, a watch reads for all of them.
"""

import asyncio
import errno
import itertools
import os
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from duet_rpc.context import Origin
from duet_rpc.engine.connection import Connection, ConnectionOptions
from duet_rpc.engine.queue import Budget
from duet_rpc.errors import Overloaded, ShuttingDown
from duet_rpc.forks import tell_in_child
from duet_rpc.hosts.loop import LoopHost
from duet_rpc.hosts.quiet import call_when_quiet
from duet_rpc.hosts.watch import LoopWatch
from duet_rpc.hosts.workers import Workers
from duet_rpc.server.endpoints import SocketEndpoint
from duet_rpc.server.logs import Logs
from duet_rpc.server.server import Server, assemble_dispatcher
from duet_rpc.server.shutdown import drain_on_loop, end_face, refuse_for_loop, shutdown_methods
from duet_rpc.transports.address import TcpTarget, UnixTarget
from duet_rpc.transports.channel import Channel
from duet_rpc.transports.sockets import file_of, is_loopback, peer_uid, remove_unix
from duet_rpc.wire.messages import NULL, encode_error

_ACCEPTS = 64
"""Connections taken at one turn of the loop; those who are connected want their turn too."""
_PAUSE = 0.5
"""Seconds without accepting when the process has no descriptor left."""
RETRY_AFTER_MS = 1000
_PARTING = 1.0
"""Seconds that a refused peer has to read why, before what it sent makes the close a reset."""
_MAX_PARTING = 64

_numbers = {"unix": itertools.count(1), "tcp": itertools.count(1)}


class SocketListener:
    """One listening socket: accepts connections, and refuses those that are too many.

    What is served on a connection is the business of its subclasses.
    """

    def __init__(
        self,
        listening: socket.socket,
        endpoint: SocketEndpoint,
        server: Server,
        logs: Logs,
        on_start: Callable[[str], object] = lambda address: None,
    ) -> None:
        """Take over the socket of an endpoint, which listens."""
        self._listening = listening
        self.address: UnixTarget | TcpTarget = _address(listening)
        """Where clients connect to; with the port that the system chose, if it was asked to."""
        self._kind = "unix" if isinstance(self.address, UnixTarget) else "tcp"
        self._file = file_of(self.address.path) if isinstance(self.address, UnixTarget) else None
        self._endpoint = endpoint
        self._principal = endpoint.principal or _principal
        self._logs = logs
        self._on_start = on_start
        self._loop = asyncio.get_running_loop()
        self._commands = server.commands
        self._accepting = False
        self._parting: set[_Parting] = set()
        self._refused = 0
        self._is_copy = False
        tell_in_child(self)

    def forked(self) -> None:
        """Leave the socket and its file to the parent; the connections see to themselves."""
        self._is_copy = True
        self._accepting = False
        self._file = None
        self._listening.close()

    @property
    def shown_address(self) -> str:
        """The address as clients write it."""
        return str(self.address)

    @property
    def count(self) -> int:
        """How many connections there are."""
        raise NotImplementedError

    @property
    def connections(self) -> list[Connection]:
        """Those of them that are connections of messages."""
        raise NotImplementedError

    def refuse_queued(self) -> None:
        """Refuse what has not begun, although a handler may block the loop; any thread."""
        raise NotImplementedError

    async def end(self, until: float) -> bool:
        """Accept no one, finish what was read, refuse what has not begun, close every connection.

        Return whether every handler has ended within the time.
        """
        raise NotImplementedError

    def count_events(self) -> int:
        """Count what clients did so far: each came, sent something, or left."""
        raise NotImplementedError

    def serve(self, connected: socket.socket) -> None:
        """Serve a connection from now on."""
        raise NotImplementedError

    def spell_refusal(self) -> bytes:
        """Say to a client that there are too many."""
        raise NotImplementedError

    def begin(self) -> None:
        """Start to accept."""
        # A log tells no user's paths.
        path = getattr(self.address, "path", "")
        shown = f"unix:{os.path.basename(path)}" if path else self.shown_address
        self._logs.note("info", "listening", address=shown)
        self._commands.begin()
        self._accept()
        call_when_quiet(self._loop, self.count_events, self._commands.caught_up)
        self._on_start(self.shown_address)

    def _accept(self) -> None:
        if not self._accepting and self._listening.fileno() >= 0:
            self._accepting = True
            self._loop.add_reader(self._listening.fileno(), self._acceptable)

    def remove_file(self) -> None:
        """Take the address away, so that no one new comes; idempotent, any thread."""
        if isinstance(self.address, UnixTarget) and not self._is_copy:
            remove_unix(self.address.path, self._file)

    def stop_accepting(self) -> None:
        """Accept no one any more."""
        self._pause()
        self.remove_file()
        self._listening.close()
        for parting in list(self._parting):
            parting.close()

    # Connections come and go.

    def _acceptable(self) -> None:
        for _ in range(_ACCEPTS):
            try:
                connected, _ = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._logs.note("error", "no connection can be taken", why=error.strerror)
                    self._pause()
                    self._loop.call_later(_PAUSE, self._accept)
                    return
                continue  # it was gone before we came to it
            if self.count < self._endpoint.max_connections:
                self.serve(connected)
            else:
                self._refuse(connected)

    def _pause(self) -> None:
        if self._accepting:
            self._accepting = False
            self._loop.remove_reader(self._listening.fileno())

    def open_channel(self, id: str, connected: socket.socket) -> "tuple[Origin, Channel] | None":
        """Say who is there, and open the way there; None if the connection is refused."""
        try:
            origin = self._make_origin(id, connected)
            if self._kind == "tcp":
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return origin, Channel.over(connected)
        except Exception as error:  # out of the hook, or the peer is gone already
            self._logs.note("warn", "refused", connection_id=id, why=type(error).__name__)
            connected.close()
            return None

    def _make_origin(self, id: str, connected: socket.socket) -> Origin:
        principal = self._principal(connected)
        if self._kind == "unix":
            return Origin(connection_id=id, transport="unix", principal=principal)
        address = str(TcpTarget(*connected.getpeername()[:2]))
        return Origin(connection_id=id, transport="tcp", principal=principal, address=address)

    def _refuse(self, connected: socket.socket) -> None:
        """Say that there are too many, and close without making a reset of what we said."""
        self._refused += 1
        if not self._refused & (self._refused - 1):  # the 1st, 2nd, 4th, 8th: a flood fills no log
            self._logs.note(
                "warn",
                "too many connections",
                limit=self._endpoint.max_connections,
                refused=self._refused,
            )
        try:
            connected.setblocking(False)
            connected.send(self.spell_refusal())
            connected.shutdown(socket.SHUT_WR)
        except OSError:
            connected.close()
            return
        if len(self._parting) >= _MAX_PARTING:
            connected.close()
        else:
            self._parting.add(_Parting(connected, self._loop, self._parting.discard))


class Listener(SocketListener):
    """Serves a connection of messages on each socket that came."""

    def __init__(
        self,
        listening: socket.socket,
        endpoint: SocketEndpoint,
        server: Server,
        logs: Logs,
        on_start: Callable[[str], object] = lambda address: None,
        values: dict[Any, Any] | None = None,
    ) -> None:
        """Take over the socket of an endpoint, which listens; `values` are those of lifespans."""
        super().__init__(listening, endpoint, server, logs, on_start)
        self.hosts: dict[str, LoopHost] = {}
        self._workers = Workers()
        self._budget = Budget(endpoint.max_queued_bytes)
        self._make_framing = partial(endpoint.make_framing, server.policy, server.face)
        self._dispatcher = assemble_dispatcher(
            server, logs, values=values, shares_thread=True, levels=logs, part=self._retire
        )
        self._shutdown_methods = shutdown_methods(server)
        self._lock = threading.RLock()
        has_async = any(method.is_async for method in server.service)
        self._watch = LoopWatch(lambda: list(self.hosts.values()), logs) if has_async else None
        """Reads while an `async def` blocks the loop; nothing else can."""
        self._past_events = 0

    @property
    def connections(self) -> list[Connection]:
        """Those that are open."""
        return [host.connection for host in self.hosts.values()]

    @property
    def count(self) -> int:
        """How many connections there are."""
        return len(self.hosts)

    def count_events(self) -> int:
        """Count what clients did so far: each came, sent something, or left."""
        return self._past_events + sum(1 + host.turns for host in self.hosts.values())

    def begin(self) -> None:
        """Start to accept."""
        if self._watch is not None:
            self._watch.begin()
        super().begin()

    def refuse_queued(self) -> None:
        """Refuse what has not begun, although a handler may block the loop; any thread."""
        refuse_for_loop(list(self.hosts.values()))

    async def end(self, until: float) -> bool:
        """Accept no one, finish what was read, refuse what has not begun, close every connection.

        Return whether every handler has ended within the time.
        """
        if self._is_copy:
            return True
        self.stop_accepting()
        hosts = list(self.hosts.values())
        finished = await asyncio.gather(*(drain_on_loop(host, until) for host in hosts))
        finished.append(await end_face(self._dispatcher, until))
        self._workers.close()
        if self._watch is not None:
            self._watch.close()
        return all(finished)

    def spell_refusal(self) -> bytes:
        """Say to a client that there are too many."""
        refusal = Overloaded(data={"retry_after_ms": RETRY_AFTER_MS})
        return self._make_framing().encode(encode_error(NULL, refusal))

    def _retire(self, id: str) -> None:
        """Read no more from a connection; it closes when everything is answered."""
        host = self.hosts[id]
        host.connection.requests.close_down()
        host.connection.requests.end_subscriptions(ShuttingDown())
        host.input_ended = True

    def serve(self, connected: socket.socket) -> None:
        """Serve a connection from now on."""
        id = f"{self._kind}-{next(_numbers[self._kind])}"
        opened = self.open_channel(id, connected)
        if opened is None:
            return
        origin, channel = opened
        host = LoopHost(
            channel,
            self._dispatcher,
            self._make_framing(),
            ConnectionOptions(
                origin=origin,
                closes_on_lost_boundary=True,
                budget=self._budget,
                shutdown_methods=self._shutdown_methods,
            ),
            workers=self._workers,
            lock=self._lock,
            on_end=self._left,
        )
        if self._watch is not None:
            host.on_traffic = self._watch.call
        self.hosts[id] = host
        self._logs.note("info", "connected", connection_id=id, principal=origin.principal)
        host.begin()

    def _left(self, host: LoopHost) -> None:
        id = host.connection.requests.origin.connection_id
        del self.hosts[id]
        self._past_events += 2 + host.turns
        stats = host.connection.requests.stats
        self._logs.note("info", "disconnected", connection_id=id, requests=stats.requests)


class _Parting:
    """A refused peer on its way out: what it still sends is read and dropped."""

    def __init__(
        self,
        connected: socket.socket,
        loop: asyncio.AbstractEventLoop,
        on_close: "Callable[[_Parting], None]",
    ) -> None:
        self._connected = connected
        self._loop = loop
        self._on_close = on_close
        self._timer = loop.call_later(_PARTING, self.close)
        loop.add_reader(connected.fileno(), self._readable)

    def _readable(self) -> None:
        try:
            if self._connected.recv(64 * 1024):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self.close()

    def close(self) -> None:
        self._timer.cancel()
        self._loop.remove_reader(self._connected.fileno())
        self._connected.close()
        self._on_close(self)


def _address(listening: socket.socket) -> UnixTarget | TcpTarget:
    name = listening.getsockname()
    if isinstance(name, str):
        return UnixTarget(os.path.abspath(name))  # somebody may change the directory meanwhile
    return TcpTarget(name[0], name[1])


def _principal(connected: socket.socket) -> str:
    """Say who is there: the user on a unix socket, no one in particular on this machine's TCP."""
    if connected.family == socket.AF_UNIX:
        return f"uid:{peer_uid(connected)}"
    address = str(connected.getpeername()[0])
    return "local" if is_loopback(address) else f"tcp:{address}"
