"""A WebSocket as a link of messages: both directions, as on any other connection.

`websockets` reads and writes the frames (sans-I/O); the messages go through a `MessageChannel` to a
`LoopHost` like any other. So order, cancellation, subscriptions and backpressure are the engine's.
"""

from collections.abc import Callable, Sequence
from typing import Any

from websockets.exceptions import InvalidState
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from duet_rpc.context import Origin
from duet_rpc.engine.connection import ConnectionOptions
from duet_rpc.engine.dispatch import Dispatcher
from duet_rpc.hosts.loop import LoopHost
from duet_rpc.hosts.workers import Workers
from duet_rpc.http.introduction import PATIENCE
from duet_rpc.transports.messages import MAX_UNREAD, MessageChannel
from duet_rpc.wire.framing.whole import WholeFraming

SUBPROTOCOLS = ("jsonrpc", "jsonrpc.2.0")
"""Taken if a client offers one of them; it need not."""
GOING_AWAY = 1001
UNSUPPORTED, INVALID_TEXT, TOO_BIG = 1003, 1007, 1009
PING_AFTER = 20.0
"""Seconds without a word after which a client is asked whether it is there, and then again until it
is taken for gone."""


def make_host(
    channel: MessageChannel,
    dispatcher: Dispatcher,
    origin: Origin,
    workers: Workers,
    on_end: Callable[[LoopHost], None],
) -> LoopHost:
    """Make what serves a WebSocket."""
    framing = WholeFraming(max_message_bytes=dispatcher.policy.max_message_bytes)
    options = ConnectionOptions(origin=origin, closes_on_lost_boundary=True)
    return LoopHost(channel, dispatcher, framing, options, workers=workers, on_end=on_end)


def is_text(message: bytes) -> bool:
    """Tell whether a message is UTF-8, as that of a WebSocket has to be."""
    if message.isascii():
        return True
    try:
        message.decode()
    except UnicodeDecodeError:
        return False
    return True


class WebSocketLink:
    """The frames of one WebSocket of our listener."""

    def __init__(
        self,
        head: bytes,
        *,
        max_message_bytes: int,
        write: Callable[[bytes], object],
        is_behind: Callable[[], bool],
        now: float,
    ) -> None:
        """Answer the request that asks for it; `is_behind` says whether what we write piles up."""
        self._write = write
        self._is_behind = is_behind
        self._protocol = ServerProtocol(
            max_size=max_message_bytes, select_subprotocol=choose_subprotocol
        )
        self.channel: MessageChannel = MessageChannel(self._transmit)
        self.channel.on_close = self._hang_up
        self._parts: list[bytes] = []
        self._introduce: Callable[[bytes], object] | None = None
        self._opened_at = self._heard_at = now
        self._pinged_at: float | None = None
        self._protocol.receive_data(head)
        [request] = self._protocol.events_received()
        assert isinstance(request, Request), "its head was read before"
        self._protocol.send_response(self._protocol.accept(request))
        self._flush()

    @property
    def is_open(self) -> bool:
        """Whether messages may be sent and received."""
        return self._protocol.state is State.OPEN

    @property
    def is_over(self) -> bool:
        """Whether the connection under it is to be closed once everything is sent."""
        return self._protocol.close_expected()

    @property
    def wants_data(self) -> bool:
        """Whether to read on: our host takes what came."""
        return self.channel.unread < MAX_UNREAD

    def wait_for_introduction(self, introduce: Callable[[bytes], object]) -> None:
        """Give the first message to somebody else: it says who calls."""
        self._introduce = introduce

    def receive(self, data: bytes, now: float) -> None:
        """Take bytes of the client."""
        self._heard_at, self._pinged_at = now, None
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._take(event)
        self._flush()
        if not self.is_open:
            self.channel.end()

    def receive_end(self) -> None:
        """The client has closed its end."""
        self._protocol.receive_eof()
        self.channel.end()

    def resume_sending(self) -> None:
        """What piled up is sent."""
        self.channel.resume_sending()

    def check(self, now: float) -> bool:
        """Look whether the client is there; False if it is gone."""
        if not self.is_open:
            return now - self._heard_at < PING_AFTER
        if self._introduce is not None:
            return now - self._opened_at < PATIENCE
        if self._pinged_at is not None:
            return now - self._pinged_at < PING_AFTER
        if now - self._heard_at >= PING_AFTER:
            self._pinged_at = now
            self._protocol.send_ping(b"")
            self._flush()
        return True

    def close(self, code: int, reason: str = "") -> None:
        """Say that this is the end, and why."""
        if self.is_open:
            self._protocol.send_close(code, reason)
            self._flush()

    def _take(self, frame: Frame) -> None:
        if frame.opcode is Opcode.BINARY:
            self._protocol.fail(UNSUPPORTED, "messages are text")
        elif frame.opcode in (Opcode.TEXT, Opcode.CONT):
            self._parts.append(bytes(frame.data))
            if frame.fin:
                message = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
                self._parts = []
                if is_text(message):
                    self._hand_in(message)
                else:
                    self._protocol.fail(INVALID_TEXT, "a text is UTF-8")

    def _hand_in(self, message: bytes) -> None:
        introduce, self._introduce = self._introduce, None
        if introduce is None:
            self.channel.deliver(message)
        else:
            introduce(message)

    def _transmit(self, message: bytes) -> bool:
        if self._is_behind():
            return False
        try:
            self._protocol.send_text(message)
        except InvalidState:
            raise BrokenPipeError from None
        self._flush()
        return True

    def _hang_up(self) -> None:
        """Our host is done with the link."""
        self.close(GOING_AWAY)

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self._write(data)


def choose_subprotocol(protocol: Any, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    """Choose one that we know; a client that offers only others is served all the same."""
    return next((each for each in offered if each in SUBPROTOCOLS), None)
