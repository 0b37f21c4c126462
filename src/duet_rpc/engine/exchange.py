"""One body in, its answer out, without a connection: for transports such as HTTP and NATS.

The exchanges of one endpoint share slots and queue, so that the limits of the policy hold for all
of them together. Each has its own ids and its own origin. There is no order between exchanges, and
nothing that outlives one: the caller cannot be called back.
"""

from collections.abc import Callable
from typing import TypeAlias

from duet_rpc.context import Origin
from duet_rpc.engine.batch import SingleAnswer
from duet_rpc.engine.dispatch import Dispatcher, Job
from duet_rpc.engine.handover import Handover
from duet_rpc.engine.queue import RequestQueue, cost
from duet_rpc.engine.requests import RequestHost, RequestOptions, Requests
from duet_rpc.engine.slots import Slots
from duet_rpc.errors import Cancelled, RpcError
from duet_rpc.wire.framing.frames import oversize
from duet_rpc.wire.messages import Batch, Invalid, Response, TooLarge, decode

Deliver: TypeAlias = Callable[[bytes | None], object]
"""Takes the body of the answer, once; None if nothing is to be answered."""


class Exchanges:
    """The exchanges of one endpoint, and what they share."""

    requests_class: type[Requests] = Requests

    def __init__(self, dispatcher: Dispatcher, host: RequestHost) -> None:
        policy = dispatcher.policy
        self.dispatcher: Dispatcher = dispatcher
        self.slots: Slots = Slots(policy.max_in_flight, policy.max_queued)
        self.queue: RequestQueue = RequestQueue(policy.max_queued, policy.max_queued_bytes)
        self.handover: Handover = Handover()
        self.closing: bool = False
        """We shut down: what has not been started is answered `shutting-down`."""
        self._host = host
        self._max_message_bytes = policy.max_message_bytes
        if policy.ordered_commands:
            from duet_rpc.engine.ordered_commands import put_in_order  # few ask for it

            self.requests_class = put_in_order(self.requests_class)

    def take(self, body: bytes | bytearray, origin: Origin, deliver: Deliver) -> "Exchange":
        """Begin an exchange; its answer is delivered at once or later."""
        exchange = Exchange(self, self._host, origin, deliver)
        exchange.take(body)
        return exchange

    def answer_at_once(self, body: bytes | bytearray, connection_id: str) -> bytes | None:
        """Answer a plain query that runs here and now; None if it needs an exchange, or a slot."""
        answer_at_once = self.dispatcher.answer_at_once
        if answer_at_once is None or self.closing or len(body) > self._max_message_bytes:
            return None
        answer = answer_at_once(body, connection_id)
        self.dispatcher.drop_spent()
        return answer if isinstance(answer, bytes) and answer else None

    @property
    def idle(self) -> bool:
        """Nothing runs, nothing waits."""
        return not (self.slots.running or self.slots.paused or self.queue.waiting)

    def go_on(self) -> None:
        """Start what waits, as far as there are slots."""
        waiting, slots = self.queue.waiting, self.slots
        while waiting and slots.running < slots.limit:
            queued = self.queue.popleft()
            queued.place[0].requests.start(queued)  # type: ignore[index]

    def finish(self, job: Job, member: bytes) -> None:
        """Take the outcome of a handler; its slot is free. The host then calls `go_on`."""
        job.place[0].requests.finish(job, member)

    def abandon(self, job: Job, error: RpcError) -> None:
        """Answer a running request now and stop its handler, as far as it may be stopped."""
        job.place[0].requests.abandon(job, error)

    def refuse_queued(self) -> None:
        """Answer everything that waits, and what still comes: we are shutting down."""
        self.closing = True
        self.queue.let_in_all()
        while self.queue.waiting:
            queued = self.queue.popleft()
            requests: Requests = queued.place[0].requests  # type: ignore[index]
            requests.close_down()
            requests.start(queued)  # which starts nothing any more


class Exchange:
    """One body and its answer."""

    __slots__ = ("_deliver", "_exchanges", "requests")

    def __init__(
        self, exchanges: Exchanges, host: RequestHost, origin: Origin, deliver: Deliver
    ) -> None:
        self._exchanges = exchanges
        self._deliver = deliver
        self.requests: Requests = exchanges.requests_class(
            exchanges.dispatcher,
            host,
            RequestOptions(origin=origin),
            slots=exchanges.slots,
            queue=exchanges.queue,
            handover=exchanges.handover,
            calls=_NoCalls(exchanges.dispatcher, origin),
            reply=deliver,
        )
        if exchanges.closing:
            self.requests.close_down()

    def take(self, body: bytes | bytearray) -> None:
        """Do what the body asks for, now or when there is a slot. Called once."""
        dispatcher, requests = self._exchanges.dispatcher, self.requests
        policy, place = dispatcher.policy, (SingleAnswer(requests, self._deliver), 0)
        if len(body) > policy.max_message_bytes:
            requests.take(Invalid(oversize(policy.max_message_bytes).error), 0, place)
            return
        if self._take_plain(body, place):
            return
        message = decode(body, policy.max_depth, policy.max_batch)
        if isinstance(message, (Batch, TooLarge)):
            refusal = requests.take_batch(message, len(body), self._deliver)
            if refusal is None:
                return
            message = Invalid(refusal)
        requests.take(message, len(body), place)

    def _take_plain(self, body: bytes | bytearray, place: tuple[SingleAnswer, int]) -> bool:
        requests, dispatcher = self.requests, self._exchanges.dispatcher
        answer_at_once = dispatcher.answer_at_once
        if answer_at_once is None or requests.closing:
            return False
        answer = answer_at_once(body, requests.origin.connection_id)
        dispatcher.drop_spent()
        if isinstance(answer, bytes):
            requests.stats.requests += 1
            self._deliver(answer or None)
            return True
        if answer is None or requests.full:
            return False
        slots = requests.slots
        waits = requests.queue.waiting or slots.running >= slots.limit
        return requests.begin(answer, body, cost(len(body)) if waits else 0, place)

    def cancel(self) -> None:
        """The caller has gone: nothing of this is answered; what has not begun does not begin."""
        requests, queue = self.requests, self._exchanges.queue
        ours = [each for each in (*queue.held, *queue.waiting) if requests.owns(each)]
        for each in ours:
            queue.remove(each)
        for job in list(requests.by_id.values()):
            if type(job) is Job and not job.size:
                requests.abandon(job, Cancelled(), answers=False)


class _NoCalls:
    """The calls of our own on an exchange: there are none, so every answer is unexpected."""

    has_open = False

    def __init__(self, dispatcher: Dispatcher, origin: Origin) -> None:
        self._dispatcher = dispatcher
        self._origin = origin

    def settle(self, response: Response) -> None:
        """Report an answer that no call waits for."""
        from duet_rpc.hooks import AnswerDropped  # rare

        self._dispatcher.tell(AnswerDropped(self._origin, response.id, None))

    def fail(self, id: bytes) -> bool:
        """Say that no call has this id."""
        return False

    def fail_anonymous(self, *, in_array: bool) -> bool:
        """Say that no call waits."""
        return False

    def take_progress(self, params: bytes | None) -> bool:
        """Say that no call is being worked on."""
        return False

    def take_item(self, params: bytes | None) -> bool:
        """Say that no call is being worked on."""
        return False

    def take_subscribed(self, method: str, params: bytes | None) -> bool:
        """Say that nothing is subscribed to."""
        return False
