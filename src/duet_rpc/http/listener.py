"""Serves HTTP on a socket of our own: accepts, reads and writes; `HttpStream` says what it means.

One sweep every half second looks at the deadlines of all connections. A timer for each request
would cost more than most requests.
"""

import asyncio
import socket
import time
from collections.abc import Callable
from email.utils import formatdate
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from duet_rpc.context import Origin
from duet_rpc.engine.connection import Connection
from duet_rpc.errors import Overloaded
from duet_rpc.forks import tell_in_child
from duet_rpc.hosts.loop import LoopHost
from duet_rpc.http.messages import spell_head
from duet_rpc.http.rules import HttpRules, Upgrade, refuse
from duet_rpc.http.service import HttpService
from duet_rpc.http.stream import HttpSettings, HttpStream
from duet_rpc.server.listener import RETRY_AFTER_MS, SocketListener
from duet_rpc.server.logs import Logs
from duet_rpc.server.server import Server
from duet_rpc.transports.channel import Channel
from duet_rpc.transports.messages import MessageChannel
from duet_rpc.transports.outbox import Outbox

if TYPE_CHECKING:
    from duet_rpc.http.endpoint import Http
    from duet_rpc.http.websocket import WebSocketLink

POLICY_VIOLATION = 1008
"""The code of a WebSocket whose client may not go on."""
SWEEP = 0.5
"""Seconds between two looks at the deadlines."""
_numbers = count(1)


class HttpListener(SocketListener):
    """Serves the requests of HTTP clients on each socket that came."""

    def __init__(
        self,
        listening: socket.socket,
        endpoint: "Http",
        server: Server,
        logs: Logs,
        on_start: Callable[[str], object] = lambda address: None,
        values: dict[Any, Any] | None = None,
    ) -> None:
        """Take over the socket of an endpoint; `values` are those of lifespans."""
        super().__init__(listening, endpoint, server, logs, on_start)
        self._service = HttpService(server, logs, values)
        self._date = b""
        host, port = listening.getsockname()[:2]
        named = f"[{host}]" if ":" in host else host
        self._shown = f"http://{named}:{port}{endpoint.path}"
        self._options = HttpSettings(
            rules=HttpRules(
                endpoint.options,
                max_body=server.policy.max_message_bytes,
                bound_to=(named, endpoint.host),
                pages=self._service.pages(),
            ),
            service=self._service,
            max_head=server.policy.max_header_bytes,
            read_timeout=server.policy.read_timeout,
            idle_timeout=endpoint.idle_timeout,
            read_date=lambda: self._date,
            read_time=time.time,
        )
        self._max_output = server.policy.max_output_bytes
        self._open: set[HttpHost] = set()
        self._past_events = 0
        self._sweeping: asyncio.TimerHandle | None = None

    @property
    def shown_address(self) -> str:
        """The address as clients write it."""
        return self._shown

    @property
    def connections(self) -> list[Connection]:
        """The WebSockets; other requests are answered each by itself."""
        return [host.connection for host in self._service.websockets.values()]

    @property
    def count(self) -> int:
        """How many connections there are."""
        return len(self._open)

    def count_events(self) -> int:
        """Count what clients did so far: each came, sent something, or left."""
        return self._past_events + sum(1 + host.turns for host in self._open)

    def begin(self) -> None:
        """Start to accept."""
        self._sweep()
        super().begin()

    def serve(self, connected: socket.socket) -> None:
        """Serve a connection from now on."""
        id = f"http-{next(_numbers)}"
        opened = self.open_channel(id, connected)
        if opened is not None:
            origin, channel = opened
            host = HttpHost(
                channel,
                self._options,
                id,
                origin.address,
                max_output=self._max_output,
                open_websocket=self._service.open_websocket,
                on_end=self._left,
            )
            self._open.add(host)
            host.begin()

    def spell_refusal(self) -> bytes:
        """Say to a client that there are too many."""
        wait = (b"retry-after", b"%d" % (RETRY_AFTER_MS // 1000))
        answer = refuse(503, Overloaded(data={"retry_after_ms": RETRY_AFTER_MS}), wait)
        return spell_head(answer, self._date, keeps_alive=False) + answer.body

    def refuse_queued(self) -> None:
        """Refuse what has not begun; any thread."""
        self._loop.call_soon_threadsafe(self._service.host.exchanges.refuse_queued)

    async def end(self, until: float) -> bool:
        """Take no more requests, answer what was taken, close every connection."""
        if self._is_copy:
            return True
        self._service.is_draining = True
        self.stop_accepting()
        for host in list(self._open):
            host.drain()
        finished = await self._service.end(max(until - time.monotonic(), 0.0))
        for host in list(self._open):
            host.finish()
        if self._sweeping is not None:
            self._sweeping.cancel()
        return finished

    def _left(self, host: "HttpHost") -> None:
        self._open.discard(host)
        self._past_events += 2 + host.turns

    def _sweep(self) -> None:
        self._date = b"date: %b\r\n" % formatdate(usegmt=True).encode()
        now = self._loop.time()
        for host in list(self._open):
            host.check(now)
        self._sweeping = self._loop.call_later(SWEEP, self._sweep)


class HttpHost:
    """Reads and writes one connection of an HTTP client on the running event loop."""

    def __init__(
        self,
        channel: Channel,
        options: HttpSettings,
        id: str,
        address: str | None,
        *,
        max_output: int,
        open_websocket: Callable[[MessageChannel, Origin], LoopHost],
        on_end: Callable[["HttpHost"], None],
    ) -> None:
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._options = options
        self._on_end = on_end
        self._open_websocket = open_websocket
        self._websocket: WebSocketLink | None = None
        self._outbox = Outbox(channel.send, max_output)
        self._stream = HttpStream(
            options,
            connection_id=id,
            address=address,
            write=self._write,
            now=self._loop.time(),
            on_answered=self._answered,
        )
        self._reading = self._writing = self._closed = False
        self._unsent = 0
        self._stuck_since = 0.0
        self.turns: int = 0
        tell_in_child(self)

    def forked(self) -> None:
        """Leave the connection to the parent."""
        self._closed = True
        self._outbox.lose()
        self._channel.close()

    def begin(self) -> None:
        """Start to read."""
        self._arrange()

    def drain(self) -> None:
        """Take no more requests; what was taken is answered."""
        if self._websocket is None:
            self._stream.drain()
            self._arrange()

    def finish(self) -> None:
        """Close; what the client has not taken by now it does not get."""
        if not self._closed:
            self._outbox.flush()
            self._close()

    def check(self, now: float) -> None:
        """Look at the deadlines: a request is not complete, or a client does not read."""
        if self._closed:
            return
        size = self._outbox.size
        if size and size == self._unsent:
            if now - self._stuck_since >= self._options.read_timeout:
                self._close()
                return
        else:
            self._unsent, self._stuck_since = size, now
        is_there = self._websocket or self._stream
        if not is_there.check(now):
            self._close()
        else:
            self._arrange()

    def _readable(self) -> None:
        self.turns += 1
        data = self._channel.receive()
        stream, websocket = self._stream, self._websocket
        if websocket is not None:
            self._receive_frames(websocket, data)
            return
        if not data:
            self._close()
            return
        stream.receive(data, self._loop.time())
        if stream.upgrade is not None:
            self._become_websocket(*stream.upgrade)
        elif stream.closing or not stream.wants_data or self._outbox.size or self._outbox.lost:
            self._arrange()

    def _become_websocket(self, head: bytes, upgrade: Upgrade, rest: bytes) -> None:
        """From now on there are frames, and messages in them, both ways."""
        from duet_rpc.http.websocket import WebSocketLink  # with the first one

        link = self._websocket = WebSocketLink(
            head,
            max_message_bytes=self._options.rules.max_body,
            write=self._write,
            is_behind=lambda: self._outbox.over,
            now=self._loop.time(),
        )
        if link.is_open:
            link.channel.on_read = self._arrange
            if upgrade.authenticate is None:
                self._open_websocket(link.channel, upgrade.origin).begin()
            else:
                link.wait_for_introduction(partial(self._introduce, link, upgrade))
            if rest:
                link.receive(rest, self._loop.time())
        self._arrange()

    def _introduce(self, link: "WebSocketLink", upgrade: Upgrade, message: bytes) -> None:
        """Take the first message of a page: who calls."""
        from duet_rpc.http.introduction import introduce

        assert upgrade.authenticate is not None, "else it need not say"
        now = self._options.read_time()
        answer, origin = introduce(message, upgrade.origin, upgrade.authenticate, now)
        link.channel.send(answer)
        if origin is None:
            link.close(POLICY_VIOLATION, "unauthenticated")
        else:
            self._open_websocket(link.channel, origin).begin()

    def _receive_frames(self, websocket: "WebSocketLink", data: bytes) -> None:
        if data:
            websocket.receive(data, self._loop.time())
        else:
            websocket.receive_end()
            self._close()
        self._arrange()

    def _writable(self) -> None:
        was_over = self._outbox.over
        self._outbox.flush()
        if not self._outbox.size:
            self._writing = False
            self._channel.watch_writing(self._loop, None)
        if was_over and not self._outbox.over and self._websocket is not None:
            self._websocket.resume_sending()
        self._arrange()

    def _write(self, data: bytes) -> None:
        if not self._closed:
            self._outbox.put(data)
            if self._websocket is not None and self._outbox.size:
                self._arrange()

    def _answered(self) -> None:
        self._stream.go_on(self._loop.time())
        self._arrange()

    def _arrange(self) -> None:
        """Read on, or not; send what waits; close when it is time."""
        if self._closed:
            return
        outbox, stream, websocket = self._outbox, self._stream, self._websocket
        if websocket is not None:
            is_over, reading = websocket.is_over, websocket.wants_data
        else:
            is_over, reading = stream.closing and not stream.is_busy, stream.wants_data
        if outbox.lost or (is_over and not outbox.size):
            self._close()
            return
        reading = reading and not outbox.over
        if reading != self._reading:
            self._reading = reading
            self._channel.watch_reading(self._loop, self._readable if reading else None)
        if outbox.size and not self._writing:
            self._writing = True
            self._channel.watch_writing(self._loop, self._writable)

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._reading:
            self._channel.watch_reading(self._loop, None)
        if self._writing:
            self._channel.watch_writing(self._loop, None)
        self._stream.lose()
        if self._websocket is not None:
            self._websocket.receive_end()
        self._outbox.lose()
        self._channel.close()
        self._on_end(self)
