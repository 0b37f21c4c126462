"""A service behind HTTP, on the running event loop: bodies in, answers out, whoever carries them.

The listener of ours and the ASGI application differ in how they read and write; what is served, and
when its lifespans start and end, is here.
"""

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, Struct

from duet_rpc.context import Origin
from duet_rpc.errors import InvalidRequest, ShuttingDown, UsageError
from duet_rpc.hosts.exchange import ExchangeHost
from duet_rpc.hosts.loop import LoopHost
from duet_rpc.hosts.workers import Workers
from duet_rpc.http.messages import JSON, HttpAnswer
from duet_rpc.http.rules import Accepted, refuse, refuse_unauthenticated
from duet_rpc.http.statuses import spell_answer
from duet_rpc.server.lifespan import Lifespan
from duet_rpc.server.server import Server, assemble_dispatcher
from duet_rpc.server.shutdown import drain_on_loop
from duet_rpc.transports.messages import MessageChannel
from duet_rpc.wire.params import add_metadata

if TYPE_CHECKING:
    from duet_rpc.server.logs import Logs

_numbers = itertools.count(1)


class _Keyed(Struct):
    params: Raw | None = None


_keyed_decoder = msgspec.json.Decoder(_Keyed)
_members_decoder = msgspec.json.Decoder(dict[str, Raw])


def next_connection_id() -> str:
    """Make a name for a connection, or for a request that has none of ours."""
    return f"http-{next(_numbers)}"


class HttpService:
    """What a server serves over HTTP."""

    def __init__(self, server: Server, logs: "Logs", values: dict[Any, Any] | None = None) -> None:
        """`values` are those of lifespans; without them it has lifespans of its own."""
        self.lifespan: Lifespan = Lifespan(server.dependencies)
        self.workers: Workers = Workers()
        self.is_draining: bool = False
        dispatcher = assemble_dispatcher(
            server,
            logs,
            values=self.lifespan.values if values is None else values,
            shares_thread=True,
            levels=logs,
            part=self._part,
        )
        self.websockets: dict[str, LoopHost] = {}
        self.host: ExchangeHost = ExchangeHost(dispatcher, workers=self.workers)
        self._description: bytes | None = None

    def answer_at_once(self, accepted: Accepted, body: bytes) -> bytes | None:
        """Answer a plain query without an exchange of its own; None if it needs one."""
        exchanges = self.host.exchanges
        if exchanges.closing or accepted.key is not None:
            return None
        return exchanges.answer_at_once(body, accepted.origin.connection_id)

    def take(
        self, accepted: Accepted, body: bytes, deliver: Callable[[HttpAnswer], object]
    ) -> Callable[[], object]:
        """Begin to answer a body; return what cancels it. The answer is delivered once."""
        refusal = refuse_unauthenticated() if accepted.expires <= time.time() else None
        if refusal is None and accepted.key is not None:
            body, refusal = _add_key(body, accepted.key)
        if refusal is not None:
            deliver(refusal)
            return _nothing
        host, headers = self.host, accepted.headers

        def spell(answer: bytes | None) -> None:
            deliver(spell_answer(answer, headers))

        with host.lock:
            exchange = host.exchanges.take(body, accepted.origin, spell)

        def cancel() -> None:
            with host.lock:
                exchange.cancel()
                host.go_on()

        return cancel

    async def answer(self, accepted: Accepted, body: bytes) -> HttpAnswer:
        """Answer a body. Cancelled, it cancels what may be stopped."""
        answered: asyncio.Future[HttpAnswer] = self.host.loop.create_future()

        def deliver(answer: HttpAnswer) -> None:
            if not answered.done():
                answered.set_result(answer)

        cancel = self.take(accepted, body, deliver)
        try:
            return await answered
        except asyncio.CancelledError:
            cancel()
            raise

    def pages(self) -> dict[str, Callable[[], HttpAnswer]]:
        """List what is read by GET: whether this lives, whether it is ready, what it serves."""
        return {
            "/livez": lambda: _state(200, "alive"),
            "/readyz": self._show_ready,
            "/openrpc.json": self._describe,
        }

    def _show_ready(self) -> HttpAnswer:
        return _state(503, "draining") if self.is_draining else _state(200, "ready")

    def _describe(self) -> HttpAnswer:
        if self._description is None:
            from duet_rpc.server.description import describe
            from duet_rpc.server.openrpc import write_openrpc

            service = self.host.dispatcher.service
            self._description = msgspec.json.encode(write_openrpc(describe(service)))
        return HttpAnswer(200, self._description, JSON)

    def open_websocket(self, channel: MessageChannel, origin: Origin) -> LoopHost:
        """Serve the messages of a WebSocket; its host has yet to begin."""
        from duet_rpc.http.websocket import make_host  # with the first one

        def left(host: LoopHost) -> None:
            self.websockets.pop(origin.connection_id, None)

        host = make_host(channel, self.host.dispatcher, origin, self.workers, left)
        self.websockets[origin.connection_id] = host
        return host

    def _part(self, connection_id: str) -> None:
        """A caller asks for the end of its connection; without a WebSocket it closes it itself."""
        host = self.websockets.get(connection_id)
        if host is not None:
            host.connection.requests.close_down()
            host.connection.requests.end_subscriptions(ShuttingDown())
            host.input_ended = True

    async def end(self, seconds: float) -> bool:
        """Refuse what has not begun, wait for what runs; return whether all has ended in time."""
        until = time.monotonic() + seconds
        self.host.exchanges.refuse_queued()
        hosts = list(self.websockets.values())
        drained = await asyncio.gather(*(drain_on_loop(host, until) for host in hosts))
        finished = await self.host.drained(max(until - time.monotonic(), 0.0)) and all(drained)
        self.host.close()
        self.workers.close()
        return finished


def _nothing() -> None:
    pass


def _state(status: int, word: str) -> HttpAnswer:
    return HttpAnswer(status, b'{"status":"%b"}' % word.encode(), (*JSON, _NO_STORE))


_NO_STORE = (b"cache-control", b"no-store")


def _add_key(body: bytes, key: str) -> tuple[bytes, HttpAnswer | None]:
    """Give the one command in a body the key that came in a header."""
    try:
        members = _members_decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        if body.lstrip()[:1] == b"[":
            detail = "the items of a batch have keys of their own: Idempotency-Key names no one"
            return body, refuse(400, InvalidRequest(data={"detail": detail}))
        return body, None  # the engine says what is wrong with it
    params = members.get("params")
    try:
        keyed = add_metadata(None if params is None else bytes(params), key=key)
    except UsageError as error:
        return body, refuse(400, InvalidRequest(data={"detail": str(error)}))
    members["params"] = Raw(keyed or b"{}")
    return msgspec.json.encode(members), None
