"""What every host has: one connection, what it reads and sends through, its clocks, its end.

A host is a connection with a link, a runner of handlers and clocks. What differs is how it waits:
`ThreadHost` with blocking calls on the calling thread, `LoopHost` on an event loop.
"""

import time
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any

from duet_rpc.context import Context, ItemSink, Peer, Reply, SubscriberSink
from duet_rpc.engine.calls import encode_params
from duet_rpc.engine.connection import Connection, ConnectionOptions
from duet_rpc.engine.deadlines import ConnectionClocks
from duet_rpc.engine.dispatch import Dispatcher, Job
from duet_rpc.errors import ConnectionLost, UsageError
from duet_rpc.forks import FORKED, leave, tell_in_child
from duet_rpc.hosts.debug import connection_class
from duet_rpc.hosts.loggers import RequestLoggers
from duet_rpc.transports.channel import Carrier
from duet_rpc.transports.outbox import Outbox
from duet_rpc.wire.dialect import Dialect
from duet_rpc.wire.framing import Frame, Framing
from duet_rpc.wire.messages import encode_notification

if TYPE_CHECKING:
    from logging import LoggerAdapter

    from duet_rpc.hosts.replies import PeerReply

LAST_WORDS = 0.05
"""Seconds that are spent at the end on what the peer has said before; it may talk for ever."""


def do_nothing() -> None:
    """Serve as a callback where no one wants to know."""


class BaseHost:
    """Reads and writes for one connection; see `ThreadHost` and `LoopHost` for the waiting.

    It has more than twenty methods because handlers see it as their peer and the connection as its
    host, and more than fifteen fields because the hot path finds the parts of the engine in them.
    """

    has_loop: bool = False
    takes_subscriptions: bool = False
    """Whether generators go on after their request is answered: there is a loop for them."""

    def __init__(
        self, channel: Carrier, dispatcher: Dispatcher, framing: Framing, options: ConnectionOptions
    ) -> None:
        self.channel: Carrier = channel
        self.connection: Connection = connection_class(dispatcher)(
            dispatcher, framing, self, options
        )
        self.outbox: Outbox = Outbox(
            channel.send, dispatcher.policy.max_output_bytes, self.connection.congest
        )
        self.clocks: ConnectionClocks = ConnectionClocks(self.connection)
        self.dispatcher = dispatcher
        self.finish = self.connection.requests.finish
        self.now: Callable[[], float] = time.monotonic
        self.dialect: Dialect = dispatcher.dialect
        """How progress is sent to the peer."""
        self.logger: Callable[[Context], LoggerAdapter[Any]] = RequestLoggers(dispatcher.log).logger
        """Makes the logger of a request."""
        self.turns = 0
        """Counts the times that something came or went; a watchdog sees by it whether we move."""
        self.reads: bool = True
        """Turned off by a server that is ending."""
        self.input_ended: bool = False
        self.on_input_end = do_nothing
        self.closed = False
        self.lost_by: Exception | None = None
        """What our open calls failed with when they were lost."""
        self.lost_calls: int = 0
        self.is_copy: bool = False
        """We are in a forked child, and the connection is the parent's."""
        tell_in_child(self)

    def forked(self) -> None:
        """Leave the connection to the parent."""
        self.is_copy = True
        self.connection.forked(leave)
        self.outbox.lose()
        self.channel.close()

    def set_reading(self, reads: bool) -> None:
        """Read on, or read no more; what came goes on."""
        self.reads = reads

    # What a host adds.

    finish: Callable[[Job, bytes], None]
    """Takes the outcome of a handler."""
    write: Callable[[Frame], None]
    """Sends what the peer takes now and keeps the rest; too much kept stops our reading."""
    start: Callable[[Job], None]
    """Runs a handler."""
    cancel: Callable[[Job], None]
    """Stops a handler if it can be stopped."""

    def write_own(self, data: Frame) -> None:
        """Send a call of ours, as far as the peer takes it now."""
        self.outbox.put(data, False)

    def reclaim(self) -> None:
        """Wait until the connection has been put down by another thread."""
        if self.is_copy:
            leave(None)
        raise AssertionError("no one else holds the connection")

    def act(self, action: Callable[..., object], *args: Any) -> None:
        """Do something to the connection, from any thread, now or soon."""
        raise NotImplementedError

    async def wait_async(self, reply: "PeerReply") -> None:
        """Wait in an `async def` for the answer to a call of a handler."""
        raise UsageError("a def cannot await; use ctx.call(...).result()")

    def go_on(self) -> None:
        """Go on with what has become possible."""
        if not self.closed:
            self.connection.go_on()

    def loss(self) -> Exception:
        """Say what the end of the input means for calls that wait for their answer."""
        return ConnectionLost("the peer closed the connection")

    # The peer, for handlers.

    @property
    def peer(self) -> Peer:
        """The other end."""
        return self

    def notify(self, method: str, params: Any) -> None:
        """Send a notification from a handler."""
        self._refuse_in_child()
        self.act(self.connection.calls.notify, method, encode_params(params))

    def notify_outside(self, method: str, params: Any) -> None:
        """Send a notification from anywhere."""
        self.notify(method, params)

    @property
    def gone(self) -> Exception | None:
        """Why nothing can be sent to the peer any more; None while it is there."""
        if not self.closed and not self.outbox.lost:
            return None
        import copy  # here: a cold start should not pay for it

        return copy.copy(self.lost_by or ConnectionLost("the connection is closed"))

    def send_ahead(self, ctx: Context, spell: Callable[[], bytes | None]) -> None:
        """Send progress of a request ahead of its answer."""
        self._refuse_in_child()
        self.act(self._send_ahead, ctx, spell)

    def _send_ahead(self, ctx: Context, spell: Callable[[], bytes | None]) -> None:
        params = None if ctx.cancelled or ctx.is_over else spell()
        if params is not None:
            # Not with our calls, which wait for a peer that does not read, when answers do not.
            body = encode_notification(self.dialect.progress, params)
            outgoing = self.connection.outgoing
            outgoing.send_own(self.connection.framing.frame(body))
            outgoing.flush()

    def call(
        self, ctx: Context | None, method: str, params: Any, timeout: float | None, returns: Any
    ) -> Reply[Any]:
        """Call the peer from a handler."""
        self._refuse_in_child()
        from duet_rpc.hosts.replies import PeerReply

        return PeerReply(self, ctx, method, encode_params(params), timeout, returns)

    def wait(self, reply: "PeerReply") -> None:
        """Wait in a `def` while another thread reads; the handler gives up its slot meanwhile."""
        from duet_rpc.hosts.workers import waiting  # where a handler reads itself, none is needed

        self.act(self.pause, reply.ctx)
        try:
            with waiting():
                reply.wait_here()
        finally:
            self.act(self._end_wait, reply)

    def pause(self, ctx: Context | None) -> None:
        """A handler, if it is one, waits for its peer: its slot is free meanwhile."""
        if ctx is not None:
            self.connection.requests.pause(ctx)
            self.go_on()

    def resume(self, ctx: Context | None) -> None:
        """It waits no more."""
        if ctx is not None:
            self.connection.requests.resume(ctx)

    def _end_wait(self, reply: "PeerReply") -> None:
        self.resume(reply.ctx)
        reply.give_up()

    def open_stream(self, ctx: Context) -> ItemSink | None:
        """Have the items of a stream collected: there is no loop on which to wait for the peer."""
        return None

    def open_subscription(self, ctx: Context) -> SubscriberSink:
        """Refuse: no such request is let through."""
        raise AssertionError("refused before it began")

    def _refuse_in_child(self) -> None:
        if self.is_copy:
            raise UsageError(FORKED)

    # Reading and writing.

    @property
    def behind(self) -> bool:
        """The peer has not taken what we sent."""
        return self.outbox.size > 0

    @property
    def quiet(self) -> bool:
        """Nothing runs, waits or is on its way in either direction."""
        connection = self.connection
        return (
            connection.idle
            and not connection.handover.lent
            and not connection.framing.partial
            and not connection.calls.open
            and not self.outbox.size
        )

    @property
    def awaits_input(self) -> bool:
        """Whether what comes may be read now; the end of it always may."""
        if self.closed or self.input_ended:
            return False
        return self.connection.wants_data or self.channel.has_ended

    def _read(self) -> bool:
        """Read what is there; False if that is nothing after all."""
        try:
            data = self.channel.receive()
        except BlockingIOError:
            return False
        if data:
            connection, clocks = self.connection, self.clocks
            connection.receive(data)
            framing = connection.framing
            if clocks.frame != framing.started or clocks.due != inf:
                clocks.look_at_frame(self.now())
                self.channel.expect(bulk=framing.bulk)
        else:
            self.input_ended = True
            self.clocks.drop_frame()
            self.connection.end_of_input()
            self._lose_calls(self.loss())
            self.on_input_end()
        return True

    def read_last_words(self) -> None:
        """Read what the peer has said before it took nothing more; it may have answered."""
        until = time.monotonic() + LAST_WORDS
        while not self.input_ended and self.connection.wants_data and self.channel.has_input():
            self._read()
            if time.monotonic() > until:
                break

    def _lose_calls(self, error: Exception) -> None:
        if self.lost_by is None:
            self.lost_by = error
        self.lost_calls += self.connection.calls.lose(error)

    def flush(self) -> None:
        """Send what was kept, as far as the peer reads; go on if that made room."""
        self.outbox.flush()
        if not self.outbox.size:
            self.connection.dispatcher.drop_spent()
        if self.connection.congested and not self.outbox.over:
            self.connection.relieve()
        self.connection.calls.release_held()
