"""Subscriptions of a peer: their items until they can be sent, and every way in which they end.

The handler of a subscription is a generator, run by an adapter like that of a stream. The request
is answered when the adapter begins. From then on the handler has no slot: it may wait for an event
for days. Its outcome is not an answer but the error of `$/end`.

Laws of this file:
- The answer comes first, then items whose numbers rise, then `$/end`, exactly once.
- Of a subscription never more than `MAX_UNSENT` items or `MAX_UNSENT_BYTES` wait to be sent (one
  item may be larger). Its method says what happens then; nothing is dropped without a trace.
- The generator is closed when the subscription ends, in whatever way.
"""

from collections import deque
from collections.abc import AsyncGenerator, Callable
from types import NoneType, UnionType
from typing import Annotated, Any, Protocol, Union, get_args, get_origin

from msgspec import UNSET

from duet_rpc.context import Context
from duet_rpc.engine.credits import Credit
from duet_rpc.engine.outgoing import JOIN
from duet_rpc.errors import InvalidParams, InvalidRequest, Lagged, RpcError, UsageError
from duet_rpc.kinds import WhenSlow
from duet_rpc.methods.parameters import Parameters
from duet_rpc.methods.signature import CallSource
from duet_rpc.wire.dialect import END, ITEM
from duet_rpc.wire.messages import error_object
from duet_rpc.wire.params import Meta
from duet_rpc.wire.streams import read_window
from duet_rpc.wire.subscriptions import (
    RESUME,
    SubscriptionRequest,
    encode_subscription_end,
    encode_subscription_item,
    read_subscribed,
    read_subscription_more,
)

MAX_UNSENT = 1024
MAX_UNSENT_BYTES = 1024 * 1024
_UNBOUNDED = 2**62
_ERROR = b'"error":'


# Registration, and the adapter.


def serve_as_subscription(parameters: Parameters, method: str) -> None:
    """Have the adapter of a generator run it; what it returns is described by its items."""
    source = parameters.source
    parameters.source = CallSource(
        f"run_subscription({source.call}, ctx)",
        {**source.known, "run_subscription": run_subscription},
    )
    parameters.call = parameters.source.compile("p, ctx, tx")
    parameters.context = parameters.context or "ctx"
    items = get_args(parameters.returns)
    parameters.returns = items[0] if items else Any
    for parameter in parameters.listed:
        if parameter.name == RESUME and not _is_number(parameter.hint):
            raise UsageError(f"{method}: {RESUME} is the number of an item: annotate it as int")
        if parameter.name == RESUME and parameter.required:
            raise UsageError(f"{method}: the first to subscribe has no number: {RESUME}: int = 0")


def _is_number(hint: Any) -> bool:
    if get_origin(hint) is Annotated:
        return _is_number(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return {each for each in get_args(hint) if each is not NoneType} == {int}
    return hint is int


def read_subscription(job: Any, meta: Meta) -> SubscriptionRequest:
    """Read how the caller of a request wants its subscription; raise `InvalidParams`."""
    window = None if meta.stream is UNSET else read_window(meta.stream)
    listed = job.method.parameters.listed
    argument = next((each.argument for each in listed if each.name == RESUME), None)
    after = None if argument is None else getattr(job.values, argument)
    if after is not None and after is not UNSET and after < 0:
        expected = "the number of an item, or 0"
        raise InvalidParams(data={"param": RESUME, "expected": expected, "received": "integer"})
    return SubscriptionRequest(job, window, after or 0)


async def run_subscription(items: AsyncGenerator[Any, None], ctx: Context) -> None:
    """Answer the request, then run its generator to the end, or to that of the subscription."""
    sink = None
    try:
        sink = ctx._peer.open_subscription(ctx)
        async for item in items:
            if ctx.cancelled:
                break  # the subscription is over
            sink.send(item)
            await sink.ready()
    finally:
        try:
            await items.aclose()
        finally:
            if sink is not None:
                await sink.drain()


# The table of a connection.


class SubscriptionLine(Protocol):
    """The host, as far as subscriptions need it. The connection's lock is held."""

    @property
    def behind(self) -> bool:
        """The peer has not taken what we sent."""
        ...

    def send_notification(self, method: str, params: bytes) -> None:
        """Have a notification sent, at the latest in this turn of the loop."""
        ...

    def cancel(self, job: Any) -> None:
        """Stop a handler."""
        ...


class Outflow:
    """The items of one subscription, between its generator and the connection."""

    __slots__ = (
        "_line",
        "credit",
        "id",
        "is_held",
        "is_over",
        "job",
        "on_change",
        "seq",
        "size",
        "unsent",
        "when_slow",
    )

    def __init__(self, id: bytes, asked: SubscriptionRequest, line: SubscriptionLine) -> None:
        self.id: bytes = id
        self.job: Any = asked.job
        self.when_slow: WhenSlow = asked.job.method.when_slow
        self.credit: Credit = Credit(_UNBOUNDED if asked.window is None else asked.window)
        self.seq: int = asked.after
        """The number of the last item."""
        self.unsent: deque[tuple[int, bytes]] = deque()
        self.size: int = 0
        """Bytes of what is unsent."""
        self.is_held: bool = False
        """Its answer waits for the others of a batch, and so do its items."""
        self.is_over: bool = False
        """`$/end` has been sent, or cannot be."""
        self.on_change: Callable[[], object] | None = None
        """Called when something was sent or it is over, while its handler waits for that."""
        self._line = line

    @property
    def is_full(self) -> bool:
        """No further item may wait."""
        return len(self.unsent) >= MAX_UNSENT or self.size >= MAX_UNSENT_BYTES

    @property
    def may_send(self) -> bool:
        """The subscriber takes another item now."""
        return self.credit.left > 0 and not self.is_held and not self._line.behind

    def put(self, value: bytes) -> None:
        """Take the next item; raise `Lagged` if there is no room and its method wants that."""
        self.seq += 1
        if not self.unsent and self.may_send:
            self._send(self.seq, value)
            return
        if self.when_slow == "drop-oldest":
            while self.unsent and self._has_no_room(value):
                self._pop()
        elif self.when_slow == "lagged" and self.unsent and self._has_no_room(value):
            self.clear()
            raise Lagged(data={"detail": "the subscriber did not take its items in time"})
        self.unsent.append((self.seq, value))
        self.size += len(value)

    def _has_no_room(self, value: bytes) -> bool:
        return len(self.unsent) >= MAX_UNSENT or self.size + len(value) > MAX_UNSENT_BYTES

    def _pop(self) -> tuple[int, bytes]:
        seq, value = self.unsent.popleft()
        self.size -= len(value)
        return seq, value

    def clear(self) -> None:
        """Send nothing more of it."""
        self.unsent.clear()
        self.size = 0

    def send_next(self) -> bool:
        """Send one item that waits; False if there is none, or the subscriber takes none."""
        if not self.unsent or not self.may_send:
            return False
        self._send(*self._pop())
        self.tell()
        return True

    def _send(self, seq: int, value: bytes) -> None:
        self.credit.spend()
        params = encode_subscription_item(self.id, seq, value)
        self._line.send_notification(ITEM, params)

    def tell(self) -> None:
        """Wake the handler if it waits."""
        if self.on_change is not None:
            self.on_change()


class Subscriptions:
    """The subscriptions of one peer."""

    __slots__ = ("_by_job", "_flush", "_last", "_limit", "_line", "_open")

    def __init__(self, line: SubscriptionLine, limit: int, flush: Callable[[], object]) -> None:
        """`flush` hands what is ready to the peer, which shows whether it reads."""
        self._line = line
        self._flush = flush
        self._limit = limit
        self._last = 0
        self._open: dict[bytes, Outflow] = {}
        """By id, until the handler has ended."""
        self._by_job: dict[Any, Outflow] = {}

    def open(self, asked: SubscriptionRequest) -> Outflow:
        """Begin a subscription; raise the refusal if there are too many."""
        if len(self._open) >= self._limit:
            raise InvalidRequest.because(
                "too-many-subscriptions",
                limit=self._limit,
                detail="unsubscribe from some, or use another connection",
            )
        self._last += 1
        flow = Outflow(b"%d" % self._last, asked, self._line)
        self._open[flow.id] = self._by_job[flow.job] = flow
        return flow

    @property
    def is_any_open(self) -> bool:
        """Whether a handler has not ended."""
        return bool(self._open)

    def release(self, flow: Outflow) -> None:
        """Its answer has been sent at last: its items may follow."""
        flow.is_held = False
        self.pump()

    def pump(self) -> None:
        """Send what waits, of each in turn, for as long as the peer reads."""
        waiting = [flow for flow in self._open.values() if flow.unsent]
        sent = 0
        while waiting and not self._line.behind:
            still = []
            for flow in waiting:
                if flow.send_next():
                    still.append(flow)
                    sent += 1
                    if sent % JOIN == 0:
                        self._flush()
            waiting = still
        if sent % JOIN:
            self._flush()

    def grant(self, params: bytes | None) -> bool:
        """Take a grant of the peer; False if it names no subscription that is open."""
        granted = read_subscription_more(params)
        flow = None if granted is None else self._open.get(granted[0])
        if granted is None or flow is None:
            return False
        flow.credit.grant(granted[1])
        if flow.unsent:
            self.pump()
        return True

    def unsubscribe(self, params: bytes | None) -> None:
        """End a subscription because its subscriber wants no more; unknown ones are ignored."""
        id = read_subscribed(params)
        flow = None if id is None else self._open.get(id)
        if flow is not None:
            self._end(flow, None)

    def end_all(self, error: RpcError) -> None:
        """End every subscription from outside."""
        for flow in list(self._open.values()):
            self._end(flow, error)

    def _end(self, flow: Outflow, error: RpcError | None) -> None:
        """Tell the peer at once; the generator is closed as soon as it can be."""
        if flow.is_over:
            return
        self._send_end(flow, b"" if error is None else _ERROR + error_object(error))
        self._flush()
        flow.job.context.cancelled = True
        flow.tell()
        self._line.cancel(flow.job)

    def finish(self, job: Any, member: bytes) -> None:
        """Take the outcome of a handler that has ended, if it is one of a subscription."""
        flow = self._by_job.pop(job, None)
        if flow is None:
            return
        del self._open[flow.id]
        if not flow.is_over:
            self._send_end(flow, member if member.startswith(_ERROR) else b"")
            self._flush()

    def _send_end(self, flow: Outflow, error_member: bytes) -> None:
        flow.is_over = True
        flow.clear()
        params = encode_subscription_end(flow.id, error_member)
        self._line.send_notification(END, params)
