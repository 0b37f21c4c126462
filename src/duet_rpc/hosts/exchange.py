"""Exchanges on an event loop: each body is answered by itself, whatever carries it."""

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from duet_rpc.context import Context, ItemSink, Origin, Peer, Reply, SubscriberSink
from duet_rpc.engine.deadlines import HandlerClocks
from duet_rpc.engine.dispatch import Dispatcher, Job
from duet_rpc.engine.exchange import Exchanges
from duet_rpc.errors import Cancelled, UsageError
from duet_rpc.forks import leave, tell_in_child
from duet_rpc.hosts.loggers import RequestLoggers
from duet_rpc.hosts.on_loop import OnLoop, strand
from duet_rpc.hosts.runner import LoopRunner
from duet_rpc.hosts.workers import Workers
from duet_rpc.wire.dialect import Dialect

if TYPE_CHECKING:
    from logging import LoggerAdapter

_NO_WAY_BACK = (
    "this caller cannot be called back: it sent one body and waits for one answer"
    " (ctx.origin.can_be_called tells)"
)


class ExchangeHost(OnLoop):
    """Runs the handlers of an endpoint's exchanges on the running event loop."""

    takes_subscriptions: bool = False
    """Nothing is sent after the answer."""

    def __init__(self, dispatcher: Dispatcher, *, workers: Workers) -> None:
        super().__init__()
        self.dispatcher = dispatcher
        self.dialect: Dialect = dispatcher.dialect
        self.logger: Callable[[Context], LoggerAdapter[Any]] = RequestLoggers(dispatcher.log).logger
        self.exchanges: Exchanges = Exchanges(dispatcher, self)
        self.finish: Callable[[Job, bytes], None] = self.exchanges.finish
        self.clocks: HandlerClocks = HandlerClocks(self.exchanges)
        self._drained: asyncio.Future[None] | None = None
        self._runner = LoopRunner(self, workers.lane())
        self.start: Callable[[Job], None] = self._runner.start
        self.cancel: Callable[[Job], None] = self._runner.cancel
        tell_in_child(self)

    def forked(self) -> None:
        """Leave what waits to the parent, and the loop if one of our handlers has forked."""
        self.lock: threading.RLock = threading.RLock()
        self.dispatcher.forked(leave)
        self.exchanges.queue.clear()
        on_our_loop = threading.get_ident() == self._thread and self.loop.is_running()
        if on_our_loop and self._runner.has_tasks:
            strand(self.loop)

    async def answer(self, body: bytes, origin: Origin) -> bytes | None:
        """Give the answer to one body; None if there is to be none.

        Cancelled, it cancels the requests in the body, as far as they may be stopped.
        """
        answered: asyncio.Future[bytes | None] = self.loop.create_future()

        def deliver(answer: bytes | None) -> None:
            if not answered.done():
                answered.set_result(answer)

        with self.lock:
            exchange = self.exchanges.take(body, origin, deliver)
        try:
            return await answered
        except asyncio.CancelledError:
            with self.lock:
                exchange.cancel()
                self.exchanges.go_on()
            raise

    def go_on(self) -> None:
        """Start what waits; the lock is held."""
        self.exchanges.go_on()
        if self._drained is not None and self.exchanges.idle and not self._drained.done():
            self._drained.set_result(None)

    async def drained(self, seconds: float) -> bool:
        """Wait until nothing runs and nothing waits; False if that takes longer."""
        if self.exchanges.idle:
            return True
        self._drained = self.loop.create_future()
        await asyncio.wait([self._drained], timeout=seconds)
        return self.exchanges.idle

    def close(self) -> None:
        """Answer what waits `shutting-down` and what runs `cancelled`; stop what may be stopped.

        Unlike the peer of a connection that is closed, the sender of the bodies is still there.
        """
        with self.lock:
            self.stop_timer()
            self.exchanges.refuse_queued()
            for job in self._runner.jobs:
                self.exchanges.abandon(job, Cancelled())

    def pause(self, ctx: Context | None) -> None:
        """See `OnLoop.pause`."""
        if ctx is not None:
            self.exchanges.slots.pause(ctx)
            self.exchanges.go_on()

    def resume(self, ctx: Context | None) -> None:
        """See `OnLoop.resume`."""
        if ctx is not None:
            self.exchanges.slots.resume(ctx)

    # The peer, for handlers.

    @property
    def peer(self) -> Peer:
        """The caller, as handlers see it."""
        return self

    def open_stream(self, ctx: Context) -> ItemSink | None:
        """Have the items of a stream collected: there is one answer, and nothing beside it."""
        return None

    def open_subscription(self, ctx: Context) -> SubscriberSink:
        """Refuse: no such request is let through."""
        raise AssertionError("refused before it began")

    def notify(self, method: str, params: Any) -> None:
        """Refuse to send a notification: there is no way to the caller."""
        raise UsageError(_NO_WAY_BACK)

    def notify_outside(self, method: str, params: Any) -> None:
        """Refuse to send a notification."""
        raise UsageError(_NO_WAY_BACK)

    behind: bool = False
    """There is nothing that a caller could leave unread."""

    def send_ahead(self, ctx: Context, spell: Callable[[], bytes | None]) -> None:
        """Send nothing: there is one answer, and nothing ahead of it."""

    @property
    def gone(self) -> Exception | None:
        """Say nothing: what is refused is refused for another reason."""
        return None

    def call(
        self, ctx: Context | None, method: str, params: Any, timeout: float | None, returns: Any
    ) -> Reply[Any]:
        """Refuse to call the caller."""
        raise UsageError(_NO_WAY_BACK)
