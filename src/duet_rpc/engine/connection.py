"""The state of one peer, without any I/O: its frames, its requests, our own calls to it.

Symmetric: the same class on both ends, for either side may call the other. Bytes go in by
`receive`; what is to be sent goes to the host's `write`, what is to be run to its `start`. A host
is what waits and runs (an event loop, or plain threads); the connection only decides.

Laws of this file:
- A request runs when the policy has room, else it waits in the queue. Sequential is a limit of one.
- Every request is answered once. `Job.answered` is set where its answer is sent, and nowhere else.
- While a handler runs inline the connection is lent: the baton lies in the list, and whoever takes
  it may receive. So reading goes on although the thread that reads is in a handler.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from msgspec import Struct

from duet_rpc.context import Context, Origin, Peer
from duet_rpc.engine.calls import JOIN, Calls
from duet_rpc.engine.dispatch import Dispatcher, Job, error_member, overloaded
from duet_rpc.engine.intake import Plain
from duet_rpc.engine.queue import BatchAnswers, Budget, Place, Queued, RequestQueue, Waiting, cost
from duet_rpc.errors import (
    Cancelled,
    InternalError,
    InvalidRequest,
    MethodNotFound,
    ParseError,
    RpcError,
    ShuttingDown,
)
from duet_rpc.tracebacks import OwnFault
from duet_rpc.wire.dialect import Dialect
from duet_rpc.wire.framing import Fault, Frame, Framing, whole
from duet_rpc.wire.messages import (
    NULL,
    Batch,
    Invalid,
    Message,
    Notification,
    Request,
    Response,
    Single,
    TooLarge,
    decode,
    encode_batch,
    encode_error,
)
from duet_rpc.wire.params import AGE


class Host(Protocol):
    """What moves bytes and runs handlers for a connection."""

    def write(self, data: Frame) -> None:
        """Send, or keep until the peer reads; calls `congest` when too much is kept."""
        ...

    def write_own(self, data: Frame) -> None:
        """Do the same for what answers nobody, which counts for nothing there."""
        ...

    def start(self, job: Job) -> None:
        """Run a handler; `finish` is called with its outcome, at once or later."""
        ...

    def cancel(self, job: Job) -> None:
        """Stop a handler if it can be stopped; its outcome is no longer awaited."""
        ...

    def reclaim(self) -> None:
        """Wait until whoever took the baton has put the connection down."""
        ...

    @property
    def peer(self) -> Peer:
        """The other end, as handlers see it."""
        ...

    @property
    def behind(self) -> bool:
        """The peer has not taken what we sent; calls of our own wait."""
        ...


class ConnectionOptions(Struct, frozen=True, kw_only=True):
    """What one connection is told when it is made, on whatever host."""

    origin: Origin
    closes_on_lost_boundary: bool = False
    answers_faults: bool = True
    one_at_a_time: bool = False
    """Send a call of ours only when no other waits for its answer."""
    budget: Budget | None = None
    """Of queued bytes, shared with other connections."""
    last_words: frozenset[str] = frozenset()
    """Methods that are served also on the way out, and in a full queue: they ask for the end."""
    on_last_words: Callable[[str], None] = lambda method: None
    """Told when one of them has to wait behind others."""
    listen: Callable[[str, bytes | None], bool] = lambda method, params: False
    """Takes a notification by its method and params; False leaves it to the service."""


class Stats:
    """What happened on a connection, counted."""

    __slots__ = ("faults", "refused", "requests")

    def __init__(self) -> None:
        self.requests: int = 0
        self.faults: int = 0
        self.refused: int = 0


def _is_answer(item: Single) -> bool:
    return type(item) is Response or (type(item) is Invalid and item.is_answer)


def _is_anonymous(item: Single) -> bool:
    """Tell an answer under no id; in an array it stands for what the others leave open."""
    if type(item) is Response:
        return item.is_anonymous
    return type(item) is Invalid and item.is_answer and item.id == NULL


def _id_of(message: Request | Notification) -> bytes | None:
    return message.id if type(message) is Request else None


def _take_all(frames: list[Frame]) -> Frame:
    try:
        data = b"".join(frames)  # type: ignore[arg-type]
    except TypeError:  # a large one is among them
        data = b"".join(map(whole, frames))
    frames.clear()
    return data


class Connection:
    """One peer: what it asked of us, what we asked of it."""

    # Python 3.11 keeps up to thirty attributes at hand; those of slots always are.
    __slots__ = (
        "_active",
        "_answers_faults",
        "_arrived",
        "_by_id",
        "_closes_on_lost_boundary",
        "_given_up",
        "_host",
        "_in_line",
        "_join",
        "_last_was_broken",
        "_last_words",
        "_limit",
        "_listen",
        "_on_last_words",
        "_open_calls",
        "_out",
        "_own",
        "_peer",
        "_policy",
        "_queue",
        "_waiting",
        "_waits",
        "baton",
        "broken",
        "calls",
        "closing",
        "congested",
        "dialect",
        "dispatcher",
        "finished",
        "framing",
        "id",
        "lent",
        "max_depth",
        "origin",
        "refusing",
        "send_own",
        "stats",
        "unmatched_answers",
    )

    def __init__(
        self,
        dispatcher: Dispatcher,
        framing: Framing,
        host: Host,
        options: ConnectionOptions,
    ) -> None:
        policy = dispatcher.policy
        self.dispatcher: Dispatcher = dispatcher
        self.dialect: Dialect = dispatcher.dialect
        """How cancellation and progress are spelled here, in both directions."""
        self.framing: Framing = framing
        self.origin: Origin = options.origin
        """Who the peer is, and what it came through."""
        self.id: str = options.origin.connection_id
        self.stats: Stats = Stats()
        self.unmatched_answers: int = 0
        """Answers that no open call was waiting for: late, repeated, or never asked for."""
        self.max_depth: int = policy.max_depth
        self.congested: bool = False
        """Backpressure: the peer does not read; nothing is started meanwhile. See `congest`."""
        self.broken: bool = False
        """The boundary between frames is lost on a socket: answer, then close."""
        self.refusing: bool = False
        """The queue is full and nothing moves: what comes is answered `overloaded`."""
        self.closing: bool = False
        """On the way out: what has not been started is answered `shutting-down`."""
        self.finished: int = 0
        """How many handlers have ended; the host sees by it whether anything moves."""
        self.baton: list[bytes | bytearray | None] = []
        """Lies here while a handler runs inline: what is being answered, if in a straight line."""
        self.lent: bool = False
        """A handler runs inline on another thread than the one that reads. See `lend`."""
        self._host = host
        self._peer = host.peer
        self._policy = policy
        self._limit = policy.max_in_flight
        self._join = 1 if policy.max_in_flight == 1 else JOIN
        self._closes_on_lost_boundary = options.closes_on_lost_boundary
        self._answers_faults = options.answers_faults
        self._last_words = options.last_words
        self._on_last_words = options.on_last_words
        self._listen = options.listen
        self._arrived: deque[bytes | bytearray | Fault] = deque()
        self._queue = RequestQueue(policy.max_queued, policy.max_queued_bytes, options.budget)
        self._waiting = self._queue.waiting
        self._active = 0
        self._waits: dict[Context, int] = {}
        """The handlers that are paused: how many answers of the peer each of them waits for."""
        self._by_id: dict[bytes, Queued] = {}
        self._out: list[Frame] = []
        self._own: list[Frame] = []
        self.send_own: Callable[[Frame], None] = self._own.append
        """Have something sent that answers nobody, with the next flush; `_out` was there before."""
        self.calls: Calls = Calls(self, host, options.one_at_a_time, self.dialect)
        """What we asked of the peer."""
        self._open_calls = self.calls.open
        self._in_line: bytes | bytearray | None = None
        """What is being answered in a straight line while the connection is lent."""
        self._given_up = False
        """It was cancelled, and answered, while its handler still runs."""
        self._last_was_broken = False

    # What the host asks.

    @property
    def idle(self) -> bool:
        """Nothing runs, nothing waits: everything that came has been dealt with."""
        return not (
            self._active or self._waits or self._waiting or self._arrived or self._out or self._own
        )

    @property
    def rests(self) -> bool:
        """Nothing runs, nothing waits, nothing is in the way of what comes next."""
        return not (self._arrived or self._active or self._waiting or self.congested or self.broken)

    @property
    def full(self) -> bool:
        """No room in the queue: the host stops reading for a moment, then says `refuse`."""
        queue = self._queue
        budget = queue.budget
        if budget is None or budget.used < budget.limit or queue.full:
            return queue.full
        # Others hold it all. What can start at once needs no room, and what waits behind our own
        # requests is looked at again when one of them ends.
        return bool(self._waiting) or self._active >= self._limit

    @property
    def wants_data(self) -> bool:
        """Whether the host should read on."""
        return not (self.congested or self.broken or (self._arrived and not self.refusing))

    # What the host tells.

    def congest(self) -> None:
        """Too much waits for a peer that does not read: start nothing until `relieve`."""
        self.congested = True

    def relieve(self) -> None:
        """The peer has read: go on."""
        self.congested = False
        self.go_on()

    def lend(self) -> None:
        """The thread that reads is kept by a handler: until `take_back`, start nothing."""
        self.lent = True

    def take_back(self) -> None:
        """The thread that reads has the connection again."""
        self.lent = False

    def close_down(self) -> None:
        """From now on answer what has not been started `shutting-down`."""
        self.closing = True

    # Bytes in.

    def receive(self, data: bytes) -> None:
        """Take bytes as they come, and do what they ask for as far as there is room."""
        self._arrived.extend(self.framing.feed(data))
        if self.lent:
            self._work_while_lent()
        else:
            self._work()

    def end_of_input(self) -> None:
        """No more bytes will come; a frame that was cut is a fault."""
        fault = self.framing.end()
        if fault is not None:
            self._arrived.append(fault)
        self.go_on()

    def go_on(self) -> None:
        """Do what can be done now: everything, or what may be done while a handler runs inline."""
        if self.lent:
            self._work_while_lent()
        else:
            self._work()

    def _work(self) -> None:
        """Go on with what has arrived and what waits, as far as there is room."""
        arrived, waiting = self._arrived, self._waiting
        while not self.congested:
            # An answer to a call of ours needs no room, and nobody's turn.
            if self._open_calls and arrived:
                self.calls.take_answers(arrived)
            if waiting and self._active < self._limit:
                self._start(self._queue.popleft())
            elif arrived:
                if not (self._active or self._by_id or waiting or self._open_calls or self.closing):
                    body = self._answer_at_once()
                    if body is None:
                        continue
                elif self._active >= self._limit and self.full and not self.refusing:
                    break
                else:
                    body = arrived.popleft()
                    if self._take_plain(body):
                        continue
                self._take(body)
            else:
                break
        if self.refusing and not self.full:
            self.refusing = False
        if self._out:
            self.flush()

    def _answer_at_once(self) -> bytes | bytearray | Fault | None:
        """Answer simple requests in a straight line, up to one that is not; begin that.

        Return the first that is odd. Nothing may be in flight in either direction.
        """
        answer_at_once, arrived, baton = self.dispatcher.answer_at_once, self._arrived, self.baton
        if answer_at_once is None:
            return arrived.popleft()
        id, write, joins, out = self.id, self._host.write, self._join > 1, self._out
        encode, prefixes = self.framing.frame, self.framing.prefixes
        small = len(prefixes)
        if self._own:
            self.flush()
        count = 0
        try:
            while arrived and not (self.congested or self.closing):
                body = arrived.popleft()
                if type(body) is Fault:
                    return body
                baton.append(body)  # type: ignore[arg-type]
                answer = answer_at_once(body, id)  # type: ignore[arg-type]
                try:
                    baton.pop()
                except IndexError:
                    self._reclaim(body, answer)
                    return None  # the stand-in may have found work for us
                if answer is None:
                    return body
                count += 1
                size = len(answer)
                if size:
                    frame = prefixes[size] + answer if size < small else encode(answer)  # type: ignore[arg-type, operator]
                    if joins:
                        out.append(frame)
                        if len(out) >= JOIN:
                            self.flush()
                    else:
                        write(frame)
                elif not isinstance(answer, bytes):  # it is to be run
                    count -= 1
                    return None if self._begin_plain(answer, body) else body  # type: ignore[arg-type]
            return None
        finally:
            if count:
                self.stats.requests += count
                self._last_was_broken = False
            if self.dispatcher.spent is not None and not self._host.behind:
                self.dispatcher.drop_spent()

    def _reclaim(self, body: bytes | bytearray | Fault, answer: bytes | Plain | None) -> None:
        """Go on after somebody has read in our place while a handler ran in the straight line."""
        self._host.reclaim()
        self._in_line = None
        if self._given_up:
            self._given_up = False  # its caller has cancelled it, and has been answered
        elif not isinstance(answer, bytes):
            self._take_first(body)
        else:
            self.stats.requests += 1
            self._last_was_broken = False
            if answer:
                self.send(self.framing.frame(answer))

    def _take_first(self, body: bytes | bytearray | Fault) -> None:
        """Take what came before the queue that somebody else has filled meanwhile."""
        later = self._queue.set_aside()
        self._take(body)
        for waiting in later:
            self._queue.append(waiting)

    @property
    def moves(self) -> tuple[int, int]:
        """What changes with every message that is dealt with."""
        return self.stats.requests, len(self._arrived)

    def take_over(self) -> bool:
        """Take the baton while a handler runs inline on another thread; False if none does.

        Whoever has it may receive, until the host of the other thread wants it back.
        """
        try:
            self._in_line = self.baton.pop()
        except IndexError:
            return False
        self.lend()
        return True

    def _work_while_lent(self) -> None:
        """Look at what has arrived while a handler runs inline elsewhere.

        Nothing is started, but cancellations and answers to our own calls get through. Only whoever
        holds the baton may call this.
        """
        while self._arrived and not self.congested and (self.refusing or not self.full):
            self._take(self._arrived.popleft(), may_start=False)
        self.flush()

    def flush(self) -> None:
        """Hand what is ready to be sent to the host."""
        out, own = self._out, self._own
        if out:
            self._host.write(out.pop() if len(out) == 1 else _take_all(out))
        if own:
            self._host.write_own(own.pop() if len(own) == 1 else _take_all(own))

    def send(self, frame: Frame) -> None:
        """Have an answer sent, together with those that are ready with it."""
        if self._own:
            self.flush()
        self._out.append(frame)
        if len(self._out) >= self._join:
            self.flush()

    # Messages.

    def _take_plain(self, body: bytes | bytearray | Fault) -> bool:
        """Take a plain request beside what runs or waits; False if it is anything else."""
        intake = self.dispatcher.intake
        if intake is None or isinstance(body, Fault) or self.closing:
            return False
        if self._active < self._limit:  # and so nothing waits
            message = intake.read(body)
            return message is not None and self._begin_plain(message, body)
        message = None if self.refusing else intake.read_waiting(body)
        if message is None or message.served.name in self._last_words:
            return False
        return self._begin_plain(message, body, cost(len(body)))

    def _begin_plain(self, message: Plain, body: bytes | bytearray, waiting_size: int = 0) -> bool:
        """Start a plain request, or let it wait; False if it has to go the long way."""
        try:
            job = self.dispatcher.admit(message, body, self._peer, self.origin)
        except Exception:
            return False
        id, by_id = job.id, self._by_id
        if id is not None:
            if id not in by_id:
                by_id[id] = job
            elif self._limit > 1:
                return False
        self.stats.requests += 1
        self._last_was_broken = False
        if waiting_size:
            job.size = waiting_size
            self._queue.append(job)
        else:
            self._active += 1
            self._host.start(job)
        return True

    def _take(self, body: bytes | bytearray | Fault, may_start: bool = True) -> None:
        if isinstance(body, Fault):
            self._take_fault(body)
            return
        limit = self._policy.max_batch
        if self._open_calls:
            limit = max(limit, self.calls.most_answers)
        message = decode(body, self.max_depth, limit)
        self._last_was_broken = type(message) is Invalid and isinstance(message.error, ParseError)
        if self._open_calls and self._is_unread_answer(message, body):
            return
        if type(message) is Batch or type(message) is TooLarge:
            self._take_batch(message, len(body), may_start)
        else:
            assert not isinstance(message, (Batch, TooLarge)), "the union is closed"
            self._take_single(message, len(body), None, may_start)

    def _is_unread_answer(self, message: Message, body: bytes | bytearray) -> bool:
        """End the calls that a message was to answer, if it cannot be read and that can be told."""
        too_many = type(message) is TooLarge
        if not (too_many or self._last_was_broken):
            return False
        if not self.calls.fail_unread(body, too_many=too_many):
            return False
        self.stats.faults += 1
        self.note("warn", "an answer cannot be read", None, None)
        return True

    def _take_fault(self, fault: Fault) -> None:
        if fault.dropped:
            self.calls.fail_dropped(fault)
            return
        if fault.stray and self._last_was_broken:
            # The tail of the body that was answered already; the boundary is lost all the same.
            self.lose_boundary()
            return
        self.stats.faults += 1
        self._note_fault("bad frame", None, fault.error.reason or "cut")
        if self._answers_faults:
            self._answer(encode_error(NULL, fault.error), None)
        if fault.boundary_lost:
            self.lose_boundary()

    def _note_fault(self, text: str, id: bytes | None, reason: str) -> None:
        self.note("warn", text, None, id, reason=reason)

    def expire_frame(self) -> None:
        """A frame has not been complete in time: drop what came of it; on a network, end here.

        A call of ours that it names ends with this reason: its answer is gone.
        """
        begun = self.framing.begun
        if self.framing.expire():
            self.dispatcher.log.note("warn", "a frame took too long", connection_id=self.id)
            self.calls.fail_late(begun, self._policy.read_timeout)
            self.lose_boundary()

    def lose_boundary(self) -> None:
        """Nobody knows where the next frame begins: on a network, what follows is not looked at."""
        if self._closes_on_lost_boundary:
            self.broken = True
            self._arrived.clear()

    def _take_batch(self, batch: Batch | TooLarge, size: int, may_start: bool) -> None:
        limit = self._policy.max_batch
        refusal = None
        if isinstance(batch, Batch) and batch.items and all(map(_is_answer, batch.items)):
            pass  # the limit is for what is asked of us
        elif limit == 0:
            refusal = InvalidRequest.because(
                "batch-not-supported",
                "Batch requests not supported",
                detail="send the requests one by one",
            )
        elif isinstance(batch, TooLarge) or len(batch.items) > limit:
            refusal = InvalidRequest.because(
                "batch-too-large", detail="send fewer requests at once", limit=limit
            )
        elif not batch.items:
            refusal = InvalidRequest.because("invalid-envelope", detail="the batch is empty")
        if refusal is not None:
            self._take_single(Invalid(refusal), size, None, may_start)
            return
        assert isinstance(batch, Batch), "anything else was refused"
        answers = BatchAnswers(len(batch.items))
        share = size // len(batch.items)
        anonymous = []
        for index, item in enumerate(batch.items):
            if self._open_calls and _is_anonymous(item):
                anonymous.append(index)
            else:
                self._take_single(item, share, (answers, index), may_start)
        has_ended = bool(anonymous) and self.calls.fail_anonymous(in_array=True)
        for index in anonymous:
            if has_ended:
                self.stats.faults += 1
                self._no_answer((answers, index))
            else:
                self._take_single(batch.items[index], share, (answers, index), may_start)

    def _take_single(self, message: Single, size: int, place: Place, may_start: bool) -> None:
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
                return
            id = None if message.id == NULL else message.id
            self._note_fault("bad message", id, message.error.reason or "parse error")
            if self._answers_faults:
                self._answer(encode_error(message.id, message.error), place)
            else:
                self._no_answer(place)
        else:
            assert isinstance(message, (Request, Notification)), "the union is closed"
            self.stats.requests += 1
            if message.method == self.dialect.cancel:
                self._take_cancel(message, place)
                return
            if message.method == self.dialect.progress and self.calls.take_progress(message.params):
                self._no_answer(place)
                return
            if type(message) is Notification and self._listen(message.method, message.params):
                self._no_answer(place)
                return
            waiting = Waiting(message, size, place)
            refusal = self._register(message, waiting)
            if refusal is not None:
                self._refuse(message.method, _id_of(message), place, refusal)
            elif may_start and self._active < self._limit and not self._waiting:
                self._start(waiting)
            else:
                if message.params is not None and AGE in message.params:
                    waiting.read_at = self.dispatcher.now()
                self._queue.append(waiting)
                if message.method in self._last_words:
                    self._on_last_words(message.method)

    def _fail_call(self, id: bytes, place: Place) -> bool:
        """End the call of an answer that is none; False if no one waits for it."""
        if id == NULL:
            return place is None and self.calls.fail_anonymous(in_array=False)
        return self.calls.fail(id)

    def _register(self, message: Request | Notification, waiting: Waiting) -> RpcError | None:
        """Note that an id is in flight; say why it may not be."""
        last_words = message.method in self._last_words
        if self.closing and not last_words:
            return ShuttingDown()
        if self.full and not last_words:
            self.stats.refused += 1
            return overloaded()
        if type(message) is Request and message.id != NULL:
            if message.id not in self._by_id:
                self._by_id[message.id] = waiting
            elif self._limit > 1:
                return InvalidRequest.because(
                    "duplicate-id",
                    detail="a request with this id is still being worked on: use another",
                )
        return None

    # Requests of the peer.

    def _start(self, waiting: Queued) -> None:
        if type(waiting) is Job:
            waiting.size = 0
            if self.closing:
                self._release(waiting.id, waiting)
                self._refuse(waiting.method.name, waiting.id, waiting.place, ShuttingDown())
            else:
                self._active += 1
                self._host.start(waiting)
            return
        assert isinstance(waiting, Waiting), "the union is closed"
        message, place = waiting.message, waiting.place
        if message is None:
            self._send_answer(waiting.answer, place)
            return
        try:
            if self.closing and message.method not in self._last_words:
                raise ShuttingDown()
            job = self.dispatcher.prepare(message, self._peer, self.origin, waiting.read_at)
        except Exception as error:
            id = _id_of(message)
            self._release(id, waiting)
            # Under no other name: this frame, and with it the message, would live in a circle.
            if not isinstance(error, RpcError):
                error = self._own_fault(error, message)
            self._refuse(message.method, id, place, error)
            return
        job.place = place
        if job.id is None:
            self._no_answer(place)
        elif self._by_id.get(job.id) is waiting:
            self._by_id[job.id] = job
        self._active += 1
        self._host.start(job)

    def finish(self, job: Job, member: bytes) -> None:
        """Take the outcome of a handler; its slot is free. The host then calls `go_on`."""
        context = job.context
        if context is not None:
            context.is_over = True
            if self._waits and context in self._waits:  # a task or thread of its own waits
                self._take_slot_again(context)
        self._active -= 1
        self.finished += 1
        if job.id is None:
            if member.startswith(b'"error"'):
                self.note(
                    "error",
                    "notification failed",
                    job.method.name,
                    None,
                    correlation_id=self.dispatcher.correlate(job),
                )
        elif not job.answered:
            self._answer_job(job, member)

    def run_lent(self, job: Job) -> bytes:
        """Run a handler on this thread; somebody else may receive meanwhile."""
        self.baton.append(None)
        member = self.dispatcher.run(job)
        try:
            self.baton.pop()
        except IndexError:
            self._host.reclaim()
        return member

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
        if job.id is None:
            job.answered = True
        elif not answers:
            job.answered = True
            self._release(job.id, job)
            self._no_answer(job.place)
        else:
            self._answer_job(job, error_member(error))
            self.flush()
        if job.may_be_stopped:
            self._host.cancel(job)

    def pause_slot(self, ctx: Context) -> None:
        """A handler waits for its peer and gives up its slot, so that the peer can call back.

        It has one slot, for however many answers it waits. Not every handler gives its slot up:
        with a peer that never answers, any number of them could wait.
        """
        if ctx.is_over:
            return
        waits = self._waits.get(ctx, 0)
        self._waits[ctx] = waits + 1
        if not waits and len(self._waits) <= self._policy.max_queued:
            self._active -= 1

    def resume_slot(self, ctx: Context) -> None:
        """One of the answers is there, or not waited for any more; after the last one it runs."""
        waits = self._waits.get(ctx, 0)
        if waits > 1:
            self._waits[ctx] = waits - 1
        elif waits:
            self._take_slot_again(ctx)

    def _take_slot_again(self, ctx: Context) -> None:
        if len(self._waits) <= self._policy.max_queued:
            self._active += 1
        del self._waits[ctx]

    def refuse_queued(self) -> None:
        """Answer everything that has not been started: we are shutting down."""
        self.close_down()
        while self._arrived:
            self._take(self._arrived.popleft(), may_start=False)
        while self._waiting:
            waiting = self._queue.popleft()
            message = waiting.message if type(waiting) is Waiting else None
            if message is None or message.method not in self._last_words:
                self._start(waiting)  # which starts nothing any more
            else:
                self._speak_last(message, waiting)
        self.flush()

    def _speak_last(self, message: Request | Notification, waiting: Queued) -> None:
        """Serve a request for the end although a handler still runs; it needs no place."""
        try:
            job = self.dispatcher.prepare(message, self._peer, self.origin)
        except RpcError as error:
            self._refuse(message.method, _id_of(message), waiting.place, error)
            return
        member = self.dispatcher.run(job)
        if job.id is not None:
            self._release(job.id, waiting)
            self._send_answer(b'{"jsonrpc":"2.0","id":%b,%b}' % (job.id, member), waiting.place)

    def forked(self, leave: Callable[[BaseException | None], object]) -> None:
        """This is a copy in a child: run nothing more, and leave as soon as a handler ends."""
        self.dispatcher.forked(leave)
        self.baton.clear()  # so a handler that runs inline finds that it is gone, and asks the host
        self.drop_queued()

    def close(self) -> None:
        """The peer is gone, or we are: nothing more is read, begun or sent. May be repeated."""
        self.drop_queued()

    def drop_queued(self) -> None:
        """The peer is gone: what waits is not started, and its room is free for others.

        That includes the part of a message. A connection is part of cycles, so it stays until the
        collector comes by; megabytes that hung on it would stay as well.
        """
        self._queue.clear()
        self._arrived.clear()
        self.framing.expire()

    def refuse(self) -> None:
        """The queue has been full for too long: read on, and answer what comes `overloaded`."""
        if self.full:
            self.refusing = True
            self.go_on()

    def _take_cancel(self, message: Request | Notification, place: Place) -> None:
        id = self.dialect.read_cancel(message.params)
        if id is None:
            self.note("error", "cancellation without an id", message.method, None)
        else:
            # Of several requests under one id, only the first is in `_by_id`.
            found = self._by_id.get(id) or self._queue.find(id)
            if type(found) is Job and not found.size:
                self.abandon(found, Cancelled(), answers=self.dialect.answers_cancelled)
            elif found is not None:
                self._queue.remove(found)
                self._release(id, found)
                self._refuse_cancelled(found.name, id, found.place)
            elif self.lent and not self._given_up:
                self._give_up_in_line(id)
        if type(message) is Request:
            self._answer(b'{"jsonrpc":"2.0","id":%b,"result":null}' % message.id, place)
        else:
            self._no_answer(place)

    def _give_up_in_line(self, id: bytes) -> None:
        """Answer the request that is just being answered in a straight line, if it has this id."""
        if self._in_line is None:
            return
        running = decode(self._in_line, self.max_depth, 0)
        if type(running) is Request and running.id == id:
            self._given_up = True
            self._refuse_cancelled(running.method, id, None)

    def _refuse_cancelled(self, method: str, id: bytes, place: Place) -> None:
        """End a request that was cancelled before it began, with an answer if there is to be one.

        Without one it is logged all the same.
        """
        if self.dialect.answers_cancelled:
            self._refuse(method, id, place, Cancelled())
            return
        self.note("warn", Cancelled.message, method, id)
        self._no_answer(place)

    def _refuse(self, method: str, id: bytes | None, place: Place, error: RpcError) -> None:
        """Tell that a request was not started: by an answer, or by a log line if it wants none."""
        told = self.dispatcher.facts(method, error)
        if id is not None:
            self.note("warn", error.message, method, id, **told)
            self._send_answer(encode_error(id, error), place)
            return
        severity = "warn" if isinstance(error, MethodNotFound) else "error"
        self.note(severity, error.message, method, None, **told)
        if isinstance(error, InvalidRequest) and self._policy.answers_refused_notifications:
            self._send_answer(encode_error(NULL, error), place)
        else:
            self._no_answer(place)

    def _own_fault(self, error: Exception, message: Request | Notification) -> RpcError:
        """Tell the log of a fault of ours; whoever has asked gets an answer all the same."""
        id = _id_of(message)
        reference = self.dispatcher.log.failure(
            "a request could not be prepared",
            OwnFault(error),
            method=message.method,
            id=id,
            correlation_id=self.dispatcher.correlation_id(id, self.id),
            connection_id=self.id,
        )
        return InternalError(data={"reference": reference})

    # Answers out.

    def _answer_job(self, job: Job, member: bytes) -> None:
        assert job.id is not None and not job.answered, "answered once, and only requests"
        job.answered = True
        self._release(job.id, job)
        self._send_answer(b'{"jsonrpc":"2.0","id":%b,%b}' % (job.id, member), job.place)

    def _release(self, id: bytes | None, holder: Queued) -> None:
        if id is not None and self._by_id.get(id) is holder:
            del self._by_id[id]

    def _answer(self, answer: bytes, place: Place) -> None:
        """Send an answer that no handler made, in its turn where answers keep the order."""
        if self._limit == 1 and (self._active or self._waiting or self.lent) and not self.full:
            self._queue.append(Waiting(None, len(answer), place, answer))
        else:
            self._send_answer(answer, place)

    def _send_answer(self, answer: bytes, place: Place) -> None:
        if place is None:
            self.send(self.framing.frame(answer))
        else:
            self._settle_item(place, answer)

    def _no_answer(self, place: Place) -> None:
        if place is not None:
            self._settle_item(place, None)

    def _settle_item(self, place: tuple[BatchAnswers, int], answer: bytes | None) -> None:
        batch, index = place
        answers = batch.settle(index, answer)
        if answers:
            self.send(self.framing.frame(encode_batch(answers)))

    def note(
        self, severity: Any, text: str, method: str | None, id: bytes | None, **fields: Any
    ) -> None:
        """Tell the log what happened on this connection."""
        if "correlation_id" not in fields:
            fields["correlation_id"] = self.dispatcher.correlation_id(id, self.id)
        self.dispatcher.log.note(
            severity, text, method=method, id=id, connection_id=self.id, **fields
        )
