"""What a peer asks of us: requests start, wait, are cancelled or refused; each is answered once.

A connection has one of these for as long as it lasts, an exchange one for its single body. Both
hand in decoded messages by `take`, and plain requests by `begin`; what is to be run goes to the
host's `start`, and comes back by `finish`.

Laws of this file:
- A request runs when there is a slot, else it waits in the queue. Sequential is a limit of one.
- Every request is answered once. `Job.answered` is set where its answer is sent, and nowhere else.

It has more than 400 lines because the second law is seen to hold only where all ends of a request
stand together.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from duet_rpc.context import Context, Origin, Peer
from duet_rpc.engine.batch import BatchAnswers, Place, is_anonymous, refuse_batch
from duet_rpc.engine.dispatch import Dispatcher, Job
from duet_rpc.engine.failures import error_member, make_overloaded
from duet_rpc.engine.handover import Handover
from duet_rpc.engine.intake import Plain
from duet_rpc.engine.queue import Queued, RequestQueue, Waiting, cost
from duet_rpc.engine.slots import Slots
from duet_rpc.errors import (
    Cancelled,
    InternalError,
    InvalidParams,
    InvalidRequest,
    RpcError,
    ShuttingDown,
)
from duet_rpc.tracebacks import OwnFault
from duet_rpc.wire.dialect import END, ITEM, MORE, UNSUBSCRIBE
from duet_rpc.wire.messages import (
    NULL,
    Batch,
    Invalid,
    Notification,
    Request,
    Response,
    Single,
    TooLarge,
    encode_error,
    encode_notification,
)
from duet_rpc.wire.params import AGE

if TYPE_CHECKING:
    from duet_rpc.engine.credits import Credit, Credits
    from duet_rpc.engine.face import FaceSession
    from duet_rpc.engine.subscriptions import Outflow, SubscriptionLine, Subscriptions
    from duet_rpc.wire.lsp_progress import WorkDoneReports


class RequestHost(Protocol):
    """What runs handlers."""

    def start(self, job: Job) -> None:
        """Run a handler; `finish` is called with its outcome, at once or later."""
        ...

    def cancel(self, job: Job) -> None:
        """Stop a handler if it can be stopped; its outcome is no longer awaited."""
        ...

    @property
    def peer(self) -> Peer:
        """The other end, as handlers see it."""
        ...


class AwaitedAnswers(Protocol):
    """The calls of our own that messages of the peer may answer."""

    @property
    def has_open(self) -> bool:
        """Some call waits for its answer."""
        ...

    def settle(self, response: Response) -> None:
        """Settle the call that an answer is for."""
        ...

    def fail(self, id: bytes) -> bool:
        """End a call whose answer cannot be understood; False if none has this id."""
        ...

    def fail_anonymous(self, *, in_array: bool) -> bool:
        """End the call of an answer under no id; False if it is not clear which."""
        ...

    def take_progress(self, params: bytes | None) -> bool:
        """Pass the progress of a call on; False if it is not one of ours."""
        ...

    def take_item(self, params: bytes | None) -> bool:
        """Pass an item on to the reader of its stream; False if no call of ours has its id."""
        ...

    def take_subscribed(self, method: str, params: bytes | None) -> bool:
        """Pass an item or the end of a subscription on; False if it is none of ours."""
        ...


class RequestOptions(Struct, frozen=True, kw_only=True):
    """What is special to the requests of one peer."""

    origin: Origin
    answers_faults: bool = True
    keeps_order: bool = False
    """Whether ordered notifications hold back what comes after them: there is a before and after.
    """
    listen: Callable[[str, bytes | None], bool] = lambda method, params: False
    """Takes a notification by its method and params; False leaves it to the service."""
    shutdown_methods: frozenset[str] = frozenset()
    """Served also while we shut down, and in a full queue: they ask for the end."""
    on_shutdown_queued: Callable[[str], None] = lambda method: None
    """Called with the name of one that has to wait behind others."""


class Stats:
    """What happened on a connection, counted."""

    __slots__ = ("faults", "refused", "requests", "unmatched_answers")

    def __init__(self) -> None:
        self.requests: int = 0
        self.faults: int = 0
        self.refused: int = 0
        self.unmatched_answers: int = 0
        """Answers that no open call was waiting for: late, repeated, or never asked for."""


def _id_of(message: Request | Notification) -> bytes | None:
    return message.id if type(message) is Request else None


class Requests:
    """The requests of one peer.

    It has more than twenty methods because every way in which a request can end is one of them, and
    more than fifteen fields because what each request is looked up in is kept at hand.
    """

    __slots__ = (
        "_credits",
        "_handover",
        "_host",
        "_options",
        "_peer",
        "_reply",
        "_subscriptions",
        "by_id",
        "calls",
        "closing",
        "dispatcher",
        "finished",
        "origin",
        "queue",
        "refusing",
        "session",
        "slots",
        "stats",
        "turn",  # of `OrderedRequests`, set there alone
    )

    def __init__(
        self,
        dispatcher: Dispatcher,
        host: RequestHost,
        options: RequestOptions,
        *,
        slots: Slots,
        queue: RequestQueue,
        handover: Handover,
        calls: AwaitedAnswers,
        reply: Callable[[bytes], object],
    ) -> None:
        """`reply` sends the body of an answer that belongs to no batch."""
        self.dispatcher: Dispatcher = dispatcher
        self.origin: Origin = options.origin
        self.slots: Slots = slots
        self.queue: RequestQueue = queue
        self.by_id: dict[bytes, Queued] = {}
        """What has begun or waits, by its raw id."""
        self.calls: AwaitedAnswers = calls
        self._credits: Credits | None = None
        """How many items the peer takes of each stream that it asked for; None: of none so far."""
        self._subscriptions: Subscriptions | None = None
        """What the peer has subscribed to; None: to nothing so far."""
        self.stats: Stats = Stats()
        self.closing: bool = False
        """We shut down: what has not been started is answered `shutting-down`."""
        self.refusing: bool = False
        """Backpressure: the queue is full and nothing moves; what comes is `overloaded`."""
        self.finished: int = 0
        """How many handlers have ended; the clocks see by it whether anything moves."""
        self._host = host
        self._peer = host.peer
        self._options = options
        self._handover = handover
        self._reply = reply
        face = dispatcher.face
        self.session: FaceSession | None = (
            None if face is None else face.open(host.peer, options.origin, self.retake)
        )
        """What was agreed on with the peer, where another protocol is spoken."""

    @property
    def max_batch(self) -> int:
        """How many messages may come in one array."""
        most = self.dispatcher.policy.max_batch
        return most if self.session is None else min(most, self.session.max_batch)

    @property
    def full(self) -> bool:
        """No room in the queue: the host stops reading for a moment, then says `refuse`."""
        queue = self.queue
        budget = queue.budget
        if budget is None or budget.used < budget.limit or queue.full:
            return queue.full
        # Others hold it all. What can start at once needs no room, and what waits behind our own
        # requests is looked at again when one of them ends.
        return bool(queue.waiting) or self.slots.running >= self.slots.limit

    def close_down(self) -> None:
        """From now on answer what has not been started `shutting-down`."""
        self.closing = True

    def refuse(self) -> None:
        """The queue has been full for too long: from now on answer what comes `overloaded`."""
        self.refusing = self.full

    def accept(self) -> None:
        """There is room again."""
        self.refusing = False

    # Messages in.

    def begin(
        self, message: Plain, body: bytes | bytearray, waiting_size: int = 0, place: Place = None
    ) -> bool:
        """Start a plain request, or let it wait; False if it has to take the slow decode."""
        try:
            job = self.dispatcher.admit(message, body, self._peer, self.origin)
        except Exception:
            return False
        id, by_id = job.id, self.by_id
        if id is not None:
            if id not in by_id:
                by_id[id] = job
            elif self.slots.max_running > 1:
                return False
        self.stats.requests += 1
        if place is not None:
            self._give_place(job, place)
        if waiting_size:
            job.size = waiting_size
            self.queue.append(job)
        else:
            self._run(job)
        return True

    def take_plain(self, body: bytes | bytearray) -> bool:
        """Take a plain request beside what runs or waits; False if it is anything else."""
        intake = self.dispatcher.intake
        if intake is None or self.closing:
            return False
        if self.slots.running < self.slots.limit:  # and so nothing waits
            message = intake.read(body)
            return message is not None and self.begin(message, body)
        message = None if self.refusing else intake.read_waiting(body)
        if message is None or message.served.name in self._options.shutdown_methods:
            return False
        return self.begin(message, body, cost(len(body)))

    def take_batch(
        self,
        batch: Batch | TooLarge,
        size: int,
        deliver: Callable[[bytes | None], object],
        may_start: bool = True,
    ) -> InvalidRequest | None:
        """Take each item alone and deliver the answers together; return why nothing is taken."""
        takes_answers = self.session is None or self.max_batch > 0
        refusal = refuse_batch(batch, self.max_batch, takes_answers=takes_answers)
        if refusal is not None:
            return refusal
        assert isinstance(batch, Batch), "anything else was refused"
        answers = BatchAnswers(self, len(batch.items), deliver)
        share = size // len(batch.items)
        anonymous = []
        for index, item in enumerate(batch.items):
            if self.calls.has_open and is_anonymous(item):
                anonymous.append(index)
            else:
                self.take(item, share, (answers, index), may_start)
        has_ended = bool(anonymous) and self.calls.fail_anonymous(in_array=True)
        for index in anonymous:
            if has_ended:
                self.stats.faults += 1
                answers.settle(index, None)
            else:
                self.take(batch.items[index], share, (answers, index), may_start)
        return None

    def take(self, message: Single, size: int, place: Place, may_start: bool = True) -> None:
        """Do what one decoded message asks for, now or in its turn."""
        if type(message) is Response:
            if message.is_anonymous and self._fail_call(NULL, place):
                self.stats.faults += 1
            else:
                self.calls.settle(message)
            self._no_answer(place)
        elif type(message) is Invalid:
            self.stats.faults += 1
            if message.is_answer and self._fail_call(message.id, place):
                self._no_answer(place)
            else:
                self._take_invalid(message, place)
        else:
            assert isinstance(message, (Request, Notification)), "the union is closed"
            self._take_request(message, size, place, may_start)

    def _take_invalid(self, message: Invalid, place: Place) -> None:
        from duet_rpc.hooks import FrameFault  # rare, and a cold start should not pay for it

        id = None if message.id == NULL else message.id
        reason = message.error.reason or "parse error"
        self.dispatcher.tell(FrameFault(self.origin, reason, "message", id))
        self.answer_fault(message.error, message.id, place)

    def _take_request(
        self, message: Request | Notification, size: int, place: Place, may_start: bool
    ) -> None:
        self.stats.requests += 1
        dialect, slots = self.dispatcher.dialect, self.slots
        # With an id it asks for an answer; a protocol of its own refuses that.
        is_asked = type(message) is Request and self.session is not None
        if message.method == dialect.cancel and not is_asked:
            self._take_cancel(message, place)
            return
        if message.method == dialect.progress and self.calls.take_progress(message.params):
            self._no_answer(place)
            return
        if type(message) is Notification and self._take_unserved(message):
            self._no_answer(place)
            return
        waiting = Waiting(message, size, place)
        needs_none = is_asked and self._needs_no_slot(message)
        refusal = self._register(message, waiting, needs_room=not needs_none)
        if refusal is not None:
            self._refuse_message(message, place, refusal)
        elif needs_none:
            self._serve_without_slot(waiting)
        elif may_start and slots.running < slots.limit and not self.queue.waiting:
            self.start(waiting)
        else:
            if message.params is not None and AGE in message.params:
                waiting.read_at = self.dispatcher.now()
            self.queue.append(waiting)
            if message.method in self._options.shutdown_methods:
                self._options.on_shutdown_queued(message.method)

    def _take_unserved(self, message: Notification) -> bool:
        """Take what belongs to a stream or subscription of either end, or what is listened to.

        A grant or an `unsubscribe` may come after the end; that is no fault of the peer's.
        """
        dialect, method, params = self.dispatcher.dialect, message.method, message.params
        if method == dialect.item and self.calls.take_item(params):
            return True
        if method in (ITEM, END):
            if self.calls.take_subscribed(method, params):
                return True
        may_be_late = method in (dialect.more, MORE, UNSUBSCRIBE)
        if may_be_late and self._steer(method, params):
            return True
        if self._options.listen(method, params):
            return True
        return may_be_late and method not in self.dispatcher.service

    def _steer(self, method: str, params: bytes | None) -> bool:
        """Take a grant, or the end of a subscription by its subscriber; False if it is neither."""
        dialect, subscriptions = self.dispatcher.dialect, self._subscriptions
        if method == dialect.more and self._credits is not None and self._credits.grant(params):
            return True
        if subscriptions is None:
            return False
        if method == UNSUBSCRIBE:
            subscriptions.unsubscribe(params)
            return True
        return subscriptions.grant(params)

    def subscribe(
        self, ctx: Context, line: "SubscriptionLine", flush: Callable[[], object]
    ) -> "Outflow":
        """Answer the request of a subscription, whose handler goes on without a slot.

        Raise the refusal if it cannot begin. `flush` hands what is ready to the peer.
        """
        from duet_rpc.engine.subscriptions import Subscriptions
        from duet_rpc.wire.subscriptions import SubscriptionRequest, encode_subscribed

        asked = ctx._stream
        assert isinstance(asked, SubscriptionRequest), "only then is there a subscription"
        job: Job = asked.job
        if self.closing:
            raise ShuttingDown()
        if job.answered:
            raise Cancelled()  # just now, on another thread
        if self._subscriptions is None:
            limit = self.dispatcher.policy.max_subscriptions
            self._subscriptions = Subscriptions(line, limit, flush)
        subscriptions = self._subscriptions
        flow = subscriptions.open(asked)
        self.slots.detach(ctx)
        self._answer_job(job, b'"result":' + encode_subscribed(flow.id))
        if job.place is not None and job.place[0].on_delivered is not None:
            flow.is_held = True
            job.place[0].on_delivered.append(lambda: subscriptions.release(flow))
        return flow

    @property
    def has_subscriptions(self) -> bool:
        """Whether the peer is subscribed to something."""
        return self._subscriptions is not None and self._subscriptions.is_any_open

    def send_unsent(self) -> None:
        """The peer has taken what was sent: send the items that wait."""
        if self._subscriptions is not None:
            self._subscriptions.pump()

    def end_subscriptions(self, error: RpcError) -> None:
        """Nothing more can be sent soon, or no one could stop it: end every subscription."""
        if self._subscriptions is not None:
            self._subscriptions.end_all(error)

    def open_stream(self, id: bytes, window: int) -> "Credit | None":
        """Begin to send a stream; None if another one under this id has not ended."""
        if self._credits is None:
            from duet_rpc.engine.credits import Credits

            self._credits = Credits()
        return self._credits.open(id, window)

    def end_grants(self) -> None:
        """The input has ended: streams that wait for a grant wait in vain.

        Subscriptions end as well: their subscriber could not stop them any more.
        """
        if self._credits is not None:
            self._credits.end()
        self.end_subscriptions(Cancelled())

    def close_stream(self, id: bytes) -> None:
        """A stream that was opened has ended."""
        assert self._credits is not None, "made when it was opened"
        self._credits.close(id)

    def retake(self, message: Request) -> None:
        """Begin a request anew that the face has left open; on the thread of the connection."""
        self.take(message, 0, None)

    def _fail_call(self, id: bytes, place: Place) -> bool:
        """End the call of an answer that is none; False if no one waits for it."""
        if id == NULL:
            in_batch = place is not None and type(place[0]) is BatchAnswers
            return not in_batch and self.calls.fail_anonymous(in_array=False)
        return self.calls.fail(id)

    def _needs_no_slot(self, message: Request | Notification) -> bool:
        """Whether a face answers a request by itself, so that no handler keeps it waiting."""
        session = self.session
        return session is not None and type(message) is Request and session.needs_no_slot(message)

    def _register(
        self, message: Request | Notification, waiting: Waiting, *, needs_room: bool = True
    ) -> RpcError | None:
        """Note that an id is in flight; say why it may not be."""
        asks_for_end = message.method in self._options.shutdown_methods
        if self.closing and not asks_for_end:
            return ShuttingDown()
        if needs_room and not asks_for_end and self._lacks_room(waiting):
            self.stats.refused += 1
            return make_overloaded()
        if type(message) is Request and message.id != NULL:
            if message.id not in self.by_id:
                self.by_id[message.id] = waiting
            elif self.slots.max_running > 1:
                return InvalidRequest.because(
                    "duplicate-id",
                    detail="a request with this id is still being worked on: use another",
                )
        return None

    def _lacks_room(self, waiting: Waiting) -> bool:
        """Tell whether the queue has no room for a request that may have to wait."""
        return self.full

    # From the start of a request to its end.

    def start(self, waiting: Queued) -> None:
        """Start what has waited its turn, or send the answer that has."""
        if type(waiting) is Job:
            waiting.size = 0
            if self.closing:
                self._release(waiting.id, waiting)
                self._refuse_job(waiting, ShuttingDown())
            else:
                self._run(waiting)
            return
        assert isinstance(waiting, Waiting), "the union is closed"
        if waiting.message is None:
            self._answer(waiting.answer, waiting.place)
            return
        job = self._make_job(waiting, waiting.message)
        if job is not None:
            self._run(job)

    def _serve_without_slot(self, waiting: Waiting) -> None:
        """Answer now what is asked of the protocol itself, however many handlers run."""
        assert waiting.message is not None, "only an answer has none"
        job = self._make_job(waiting, waiting.message)
        if job is None:
            return
        member = self.dispatcher.run(job)
        if job.context is not None:
            job.context.is_over = True
        self._answer_job(job, member)

    def _make_job(self, waiting: Waiting, message: Request | Notification) -> Job | None:
        """Prepare a request that starts; None if it is refused."""
        place = waiting.place
        try:
            if self.closing and message.method not in self._options.shutdown_methods:
                raise ShuttingDown()
            job = self._prepare(message, waiting)
        except Exception as error:
            self._release(_id_of(message), waiting)
            # Under no other name: this frame, and with it the message, would live in a circle.
            if not isinstance(error, RpcError):
                error = self._log_own_fault(error, message)
            self._refuse_message(message, place, error)
            return None
        self._give_place(job, place)
        if job.id is not None and self.by_id.get(job.id) is waiting:
            self.by_id[job.id] = job
        return job

    def _prepare(self, message: Request | Notification, waiting: Waiting) -> Job:
        if self.session is None:
            return self.dispatcher.prepare(message, self._peer, self.origin, waiting.read_at)
        in_batch = waiting.place is not None and type(waiting.place[0]) is BatchAnswers
        return self.session.prepare(message, waiting.read_at, in_batch=in_batch)

    def _run(self, job: Job) -> None:
        slots = self.slots
        slots.running += 1
        if job.method.ordered and self._options.keeps_order:
            slots.hold_back()
        self._host.start(job)

    def _give_place(self, job: Job, place: Place) -> None:
        """Say where the answer of a job goes. Of a notification nothing more is awaited."""
        job.place = place
        if job.id is None:
            self._no_answer(place)

    def pause(self, ctx: Context) -> None:
        """A handler waits for its peer, and gives up its slot. The host then calls `go_on`."""
        self.slots.pause(ctx)

    def resume(self, ctx: Context) -> None:
        """It waits for one answer less."""
        self.slots.resume(ctx)

    def finish(self, job: Job, member: bytes) -> None:
        """Take the outcome of a handler; its slot is free. The host then calls `go_on`."""
        context = job.context
        if context is not None:
            context.is_over = True
            if context._work_done is not None:
                self._end_work(context._work_done)
            if self.slots.paused:
                self.slots.end(context)
        self.slots.running -= 1
        if job.method.ordered and self._options.keeps_order:
            self.slots.let_go()
        self.finished += 1
        if job.id is None:
            if member.startswith(b'"error"'):
                self.dispatcher.log_failed_notification(job)
        elif not job.answered:
            self._answer_job(job, member)
        elif self._subscriptions is not None:
            self._subscriptions.finish(job, member)

    def abandon(self, job: Job, error: RpcError, *, answers: bool = True) -> None:
        """Answer a running request now and stop its handler, as far as it may be stopped.

        One that is not to be answered is over all the same: its id is free.

        A command that has begun goes on: its effect may have happened, and its caller can ask for
        the outcome. A transactional one is rolled back, and one that waits for another run of it
        stops waiting.
        """
        if job.answered:
            return
        if job.context is not None:
            job.context.cancelled = True
            if job.context._work_done is not None:
                self._end_work(job.context._work_done)
        if job.id is None:
            job.answered = True
        elif not answers:
            job.answered = True
            self._release(job.id, job)
            self._no_answer(job.place)
        else:
            self._answer_job(job, error_member(error))
        if job.may_be_stopped:
            self._host.cancel(job)

    def _end_work(self, work: "WorkDoneReports") -> None:
        """End the progress of a request, if it has begun, ahead of its answer."""
        params = work.end()
        if params is not None:
            self._reply(encode_notification(self.dispatcher.dialect.progress, params))

    def refuse_queued(self) -> None:
        """Answer everything that waits: we are shutting down."""
        self.close_down()
        self.queue.let_in_all()
        while self.queue.waiting:
            waiting = self.queue.popleft()
            message = waiting.message if type(waiting) is Waiting else None
            if message is None or message.method not in self._options.shutdown_methods:
                self.start(waiting)  # which starts nothing any more
            else:
                self._serve_shutdown(message, waiting)

    def _serve_shutdown(self, message: Request | Notification, waiting: Queued) -> None:
        """Serve a request for the end although a handler still runs; it needs no slot."""
        try:
            job = self.dispatcher.prepare(message, self._peer, self.origin)
        except RpcError as error:
            self._refuse_message(message, waiting.place, error)
            return
        member = self.dispatcher.run(job)
        if job.id is not None:
            self._release(job.id, waiting)
            self._answer(b'{"jsonrpc":"2.0","id":%b,%b}' % (job.id, member), waiting.place)

    def _take_cancel(self, message: Request | Notification, place: Place) -> None:
        dialect = self.dispatcher.dialect
        id = dialect.read_cancel(message.params)
        if id is None:
            self._tell_refused(message.method, None, InvalidParams("cancellation without an id"))
        else:
            self.cancel(id)
            if self.session is not None:
                self.session.cancelled(id)
        if type(message) is Request:
            self.answer_in_turn(b'{"jsonrpc":"2.0","id":%b,"result":null}' % message.id, place)
        else:
            self._no_answer(place)

    def cancel(self, id: bytes) -> None:
        """End the request with this id, wherever it is; unknown ones are ignored."""
        # Of several requests under one id, only the first is in `by_id`.
        found = self.by_id.get(id) or self.queue.find(id)
        if type(found) is Job and not found.size:
            self.abandon(found, Cancelled(), answers=self.dispatcher.dialect.answers_cancelled)
        elif found is not None:
            self._withdraw(found)
            self._release(id, found)
            self._refuse_cancelled(found.name, id, found.place)
        else:
            method = self._handover.give_up(id, self.dispatcher.policy.max_depth)
            if method is not None:
                self._refuse_cancelled(method, id, None)

    def owns(self, queued: Queued) -> bool:
        """Tell whether something in the queue is of this peer: exchanges share a queue."""
        return queued.place is None or queued.place[0].requests is self

    def _withdraw(self, queued: Queued) -> None:
        """Take a request out of the queue that is not to be started."""
        self.queue.remove(queued)

    def _refuse_cancelled(self, method: str, id: bytes, place: Place) -> None:
        """End a request that was cancelled before it began, with an answer if there is to be one.

        Without one it is logged all the same.
        """
        if self.dispatcher.dialect.answers_cancelled:
            self._refuse(method, id, place, Cancelled(), error_member(Cancelled()))
        else:
            self._tell_refused(method, id, Cancelled())
            self._no_answer(place)

    def _refuse_message(
        self, message: Request | Notification, place: Place, error: RpcError
    ) -> None:
        """Refuse a message that has not become a job."""
        id, session = _id_of(message), self.session
        if session is None or id is None:
            self._refuse(message.method, id, place, error, error_member(error))
        else:
            self._tell_refused(message.method, id, error)
            self._answer(session.refuse(id, message, error), place)

    def _refuse_job(self, job: Job, error: RpcError) -> None:
        """Refuse a plain request that has waited."""
        member = self._shape(job, error_member(error))
        self._refuse(job.method.name, job.id, job.place, error, member)

    def _refuse(
        self, method: str, id: bytes | None, place: Place, error: RpcError, member: bytes
    ) -> None:
        """Report that a request was not started, and answer it unless it wants no answer."""
        self._tell_refused(method, id, error)
        if id is not None:
            self._answer(b'{"jsonrpc":"2.0","id":%b,%b}' % (id, member), place)
        elif (
            isinstance(error, InvalidRequest)
            and self.dispatcher.policy.answers_refused_notifications
        ):
            self._answer(self._encode_fault(NULL, error), place)
        else:
            self._no_answer(place)

    def _tell_refused(self, method: str, id: bytes | None, error: RpcError) -> None:
        from duet_rpc.hooks import RequestRefused

        correlation_id = (
            None if id is None else self.dispatcher.correlation_id(id, self.origin.connection_id)
        )
        self.dispatcher.tell(RequestRefused(self.origin, method, correlation_id, error, id))

    def _log_own_fault(self, error: Exception, message: Request | Notification) -> RpcError:
        """Log a fault of ours; the caller is answered all the same."""
        id, connection_id = _id_of(message), self.origin.connection_id
        reference = self.dispatcher.log.failure(
            "a request could not be prepared",
            OwnFault(error),
            method=message.method,
            id=id,
            correlation_id=self.dispatcher.correlation_id(id, connection_id),
            connection_id=connection_id,
        )
        return InternalError(data={"reference": reference})

    # Answers out.

    def _answer_job(self, job: Job, member: bytes) -> None:
        assert job.id is not None and not job.answered, "answered once, and only requests"
        job.answered = True
        self._release(job.id, job)
        if job.shape is not None:
            member = self._shape(job, member)
            if not member:  # it stays open
                self._no_answer(job.place)
                return
        self._answer(b'{"jsonrpc":"2.0","id":%b,%b}' % (job.id, member), job.place)

    def _shape(self, job: Job, member: bytes) -> bytes:
        """Spell an outcome as the face does. If it cannot, its caller is answered all the same."""
        if job.shape is None:
            return member
        try:
            return job.shape(member)
        except Exception as error:
            reference = self.dispatcher.log.failure(
                "an answer could not be spelled",
                OwnFault(error),
                method=job.method.name,
                id=job.id,
                correlation_id=self.dispatcher.correlation_id(job.id, job.connection_id),
                connection_id=job.connection_id,
            )
            return error_member(InternalError(data={"reference": reference}))

    def _release(self, id: bytes | None, holder: Queued) -> None:
        if id is not None and self.by_id.get(id) is holder:
            del self.by_id[id]

    def answer_fault(self, error: RpcError, id: bytes = NULL, place: Place = None) -> None:
        """Answer what is no message; a client does not."""
        if self._options.answers_faults:
            self.answer_in_turn(self._encode_fault(id, error), place)
        else:
            self._no_answer(place)

    def _encode_fault(self, id: bytes, error: RpcError) -> bytes:
        session = self.session
        return encode_error(id, error) if session is None else session.encode_fault(id, error)

    def answer_in_turn(self, answer: bytes, place: Place) -> None:
        """Send an answer that no handler made, in its turn where answers keep the order."""
        busy = self.slots.running or self.queue.waiting or self._handover.lent
        if self.slots.max_running == 1 and busy and not self.full:
            self.queue.append(Waiting(None, len(answer), place, answer))
        else:
            self._answer(answer, place)

    def _answer(self, answer: bytes, place: Place) -> None:
        if place is None:
            self._reply(answer)
        else:
            place[0].settle(place[1], answer)

    def _no_answer(self, place: Place) -> None:
        if place is not None:
            place[0].settle(place[1], None)
