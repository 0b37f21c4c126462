"""A WebSocket of an ASGI server as a link of messages; the server reads and writes the frames."""

import asyncio
import contextlib
import time
from collections import deque
from typing import TYPE_CHECKING

from duet_rpc.context import Origin
from duet_rpc.http.introduction import PATIENCE, introduce
from duet_rpc.http.messages import HttpAnswer
from duet_rpc.http.rules import Upgrade
from duet_rpc.http.service import HttpService
from duet_rpc.http.websocket import GOING_AWAY, SUBPROTOCOLS, UNSUPPORTED, is_text
from duet_rpc.transports.messages import MAX_UNREAD, MessageChannel

if TYPE_CHECKING:
    from duet_rpc.http.asgi import Receive, Scope, Send

_DENIAL = "websocket.http.response"
POLICY_VIOLATION = 1008


async def refuse_websocket(
    answer: HttpAnswer, scope: "Scope", receive: "Receive", send: "Send"
) -> None:
    """Refuse with a status where the server can send one, else with a code."""
    await receive()
    if _DENIAL not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": POLICY_VIOLATION})
        return
    headers = [*answer.headers, (b"content-length", b"%d" % len(answer.body))]
    start = {"type": f"{_DENIAL}.start", "status": answer.status, "headers": headers}
    await send(start)
    await send({"type": f"{_DENIAL}.body", "body": answer.body})


async def serve_websocket(
    service: HttpService, upgrade: Upgrade, scope: "Scope", receive: "Receive", send: "Send"
) -> None:
    """Serve the messages of one WebSocket until either end closes it."""
    origin: Origin | None = upgrade.origin
    await receive()
    offered = scope.get("subprotocols", ())
    chosen = next((each for each in offered if each in SUBPROTOCOLS), None)
    await send({"type": "websocket.accept", "subprotocol": chosen})
    if upgrade.authenticate is not None:
        origin = await _introduce(upgrade, receive, send)
    if origin is None:
        await send({"type": "websocket.close", "code": POLICY_VIOLATION})
        return
    socket = _AsgiSocket(service.host.dispatcher.policy.max_output_bytes, send)
    sending = asyncio.ensure_future(socket.send_all())
    host = service.open_websocket(socket.channel, origin)
    host.begin()
    try:
        await socket.receive_all(receive)
    finally:
        socket.channel.end()
        await host.drained(0.0)
        host.close()
        sending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sending


async def _introduce(upgrade: Upgrade, receive: "Receive", send: "Send") -> Origin | None:
    """Take the first message of a page: who calls."""
    assert upgrade.authenticate is not None, "else it need not say"
    try:
        message = await asyncio.wait_for(receive(), PATIENCE)
    except TimeoutError:
        return None
    text = (message.get("text") or "").encode("utf-8", "replace")
    answer, origin = introduce(text, upgrade.origin, upgrade.authenticate, time.time())
    if message["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": answer.decode()})
    return origin


class _AsgiSocket:
    """What is between the messages of a link and the coroutines of an ASGI server."""

    def __init__(self, max_unsent: int, send: "Send") -> None:
        self.channel = MessageChannel(self._transmit)
        self.channel.on_close = self._wake_both
        self.channel.on_read = self._wake_reader
        self._send = send
        self._max_unsent = max_unsent
        self._unsent: deque[bytes] = deque()
        self._size = 0
        self._to_send = asyncio.Event()
        self._has_room = asyncio.Event()
        self._is_over = False

    async def send_all(self) -> None:
        """Send what our host has to say, until it closes the link."""
        while True:
            while self._unsent:
                message = self._unsent.popleft()
                await self._send({"type": "websocket.send", "text": message.decode()})
                self._size -= len(message)
                self.channel.resume_sending()
            if self.channel.closed:
                if not self._is_over:
                    self._is_over = True
                    await self._send({"type": "websocket.close", "code": GOING_AWAY})
                return
            self._to_send.clear()
            await self._to_send.wait()

    async def receive_all(self, receive: "Receive") -> None:
        """Hand in what the client says, until it leaves or our host closes the link."""
        while not self.channel.closed:
            while self.channel.unread >= MAX_UNREAD and not self.channel.closed:
                self._has_room.clear()
                await self._has_room.wait()
            message = await receive()
            text = message.get("text")
            if message["type"] == "websocket.disconnect":
                self._is_over = True
                return
            if text is None or not is_text(text.encode("utf-8", "surrogatepass")):
                self._is_over = True
                await self._send({"type": "websocket.close", "code": UNSUPPORTED})
                return
            self.channel.deliver(text.encode())

    def _transmit(self, message: bytes) -> bool:
        if self._is_over:
            raise BrokenPipeError
        if self._size >= self._max_unsent:
            return False
        self._unsent.append(message)
        self._size += len(message)
        self._to_send.set()
        return True

    def _wake_reader(self) -> None:
        self._has_room.set()

    def _wake_both(self) -> None:
        self._has_room.set()
        self._to_send.set()
