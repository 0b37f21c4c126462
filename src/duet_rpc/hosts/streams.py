"""Streams on an event loop: items go out as their caller takes them, and the generator waits.

A generator waits for two things: that its caller has granted another item, and that the connection
has taken what was sent before. Its handler has no slot meanwhile, for the caller may have to call
something else before it goes on reading.
"""

import asyncio
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from duet_rpc.context import Context
from duet_rpc.engine.credits import Credit
from duet_rpc.engine.dispatch import encode_result
from duet_rpc.errors import Cancelled
from duet_rpc.wire.streams import StreamRequest, encode_item

if TYPE_CHECKING:
    from duet_rpc.hosts.loop import LoopHost

_TURN = 64
"""Items after which a generator that never waits lets others run."""


def open_sink(host: "LoopHost", ctx: Context) -> "StreamSink | None":
    """Begin a stream as its caller wants it; None if its id names another one. The lock is held."""
    asked = ctx._stream
    assert isinstance(asked, StreamRequest), "only then is there a stream"
    if asked.token is not UNSET:
        return PartialResults(host, ctx, asked, Credit(asked.window))
    credit = host.connection.requests.open_stream(asked.id, asked.window)
    return None if credit is None else StreamSink(host, ctx, asked, credit)


class StreamSink:
    """Where the items of one stream go."""

    def __init__(
        self, host: "LoopHost", ctx: Context, asked: StreamRequest, credit: Credit
    ) -> None:
        self.sent: int = 0
        self._host = host
        self._ctx = ctx
        self._asked = asked
        self._credit = credit
        self._is_open = True

    async def ready(self) -> None:
        """Wait until the caller takes another item and has read those before it."""
        if self._credit.left and not self._host.behind:
            if self.sent % _TURN == _TURN - 1:
                await asyncio.sleep(0)
            return
        host = self._host
        host.act(host.pause, self._ctx)
        try:
            while not self._credit.left or host.behind:
                if self._credit.left:
                    await host.moved(None)
                else:
                    await self._wait_for_grant()
        finally:
            host.act(host.resume, self._ctx)

    async def _wait_for_grant(self) -> None:
        granted: asyncio.Future[None] = self._host.loop.create_future()

        def wake() -> None:
            if not granted.done():
                granted.set_result(None)

        # Another thread may read in place of a loop that a handler blocks.
        self._credit.on_grant = lambda: self._host.act(wake)
        try:
            if self._credit.over:
                raise Cancelled()  # its caller has gone, or takes nothing more
            if not self._credit.left:
                await granted
        finally:
            self._credit.on_grant = None

    def send(self, value: Any) -> None:
        """Send one item; it shares a write with others of this turn of the loop."""
        encoded = encode_result(value)
        host = self._host
        with host.lock:
            self.sent += 1
            self._spend()
            host.send_notification(*self._spell(encoded))

    def _spend(self) -> None:
        self._credit.spend()

    def _spell(self, value: bytes) -> tuple[str, bytes]:
        method = self._host.dialect.item
        assert method is not None, "a dialect without streams has no requests for them"
        return method, encode_item(self._asked.id, self.sent, value)

    def close(self) -> Any:
        """Forget the stream, if that has not been done; return the result of its request."""
        if self._is_open:
            self._is_open = False
            with self._host.lock:
                self._forget()
        return self._result()

    def _forget(self) -> None:
        self._host.connection.requests.close_stream(self._asked.id)

    def _result(self) -> Any:
        return {"items": self.sent}


class PartialResults(StreamSink):
    """The partial results of LSP: no numbers and no grants; only reading slows the sender down."""

    def _spend(self) -> None:
        """Spend nothing: these callers cannot grant more."""

    def _spell(self, value: bytes) -> tuple[str, bytes]:
        token = self._asked.token
        assert token is not UNSET, "only then are results partial"
        return self._host.dialect.progress, b'{"token":%b,"value":[%b]}' % (token, value)

    def _forget(self) -> None:
        """Forget nothing: no message of the caller names them."""

    def _result(self) -> Any:
        return []  # all of it has been sent, as the protocol wants
