"""The state of one peer, without any I/O (sans-I/O): its frames, its requests, our calls to it.

Symmetric: the same class on both ends, for either side may call the other. Bytes go in by
`receive`; what is to be sent goes to the host's `write`, what is to be run to its `start`. A host
is what waits and runs (an event loop, or plain threads); the connection only decides.

Its parts have files of their own: `requests` (what the peer asks), `calls` (what we ask),
`outgoing` (frames that are ready), `handover` (another thread reads while a handler keeps ours).
Here is what joins them: the order in which messages are looked at, and the faults of the stream.

It has more than 400 lines because the loops over what has arrived are written out for speed.
"""

from collections import deque
from collections.abc import Callable
from typing import Literal, Protocol

from duet_rpc.engine.calls import Calls
from duet_rpc.engine.dispatch import Dispatcher, Job
from duet_rpc.engine.handover import Handover
from duet_rpc.engine.intake import Plain
from duet_rpc.engine.outgoing import JOIN, FrameWriter, Outgoing
from duet_rpc.engine.queue import Budget, RequestQueue
from duet_rpc.engine.requests import RequestHost, RequestOptions, Requests
from duet_rpc.engine.slots import Slots
from duet_rpc.errors import ParseError, RpcError
from duet_rpc.wire.framing import Fault, Framing
from duet_rpc.wire.messages import Batch, Invalid, Message, TooLarge, decode


class Host(FrameWriter, RequestHost, Protocol):
    """What moves bytes and runs handlers for a connection."""

    def reclaim(self) -> None:
        """Wait until the thread that took the token has put the connection down."""
        ...

    @property
    def behind(self) -> bool:
        """The peer has not taken what we sent; calls of our own wait."""
        ...


class ConnectionOptions(RequestOptions, frozen=True, kw_only=True):
    """The options of one connection, on every host."""

    keeps_order: bool = True
    closes_on_lost_boundary: bool = False
    one_at_a_time: bool = False
    """Send a call of ours only when no other waits for its answer."""
    budget: Budget | None = None
    """Of queued bytes, shared with other connections."""


class Connection:
    """One peer: what it asked of us, what we asked of it.

    It has more than twenty methods because half of them are what hosts ask and tell.
    """

    __slots__ = (
        "_arrived",
        "_closes_on_lost_boundary",
        "_host",
        "_last_was_broken",
        "_open_calls",
        "broken",
        "calls",
        "congested",
        "dispatcher",
        "framing",
        "handover",
        "outgoing",
        "requests",
    )
    calls_class: type[Calls] = Calls
    requests_class: type[Requests] = Requests

    def __init__(
        self,
        dispatcher: Dispatcher,
        framing: Framing,
        host: Host,
        options: ConnectionOptions,
    ) -> None:
        policy = dispatcher.policy
        self.dispatcher: Dispatcher = dispatcher
        self.framing: Framing = framing
        self.congested: bool = False
        """Backpressure: the peer does not read; nothing is started meanwhile. See `congest`."""
        self.broken: bool = False
        """The boundary between frames is lost on a socket: answer, then close."""
        self.handover: Handover = Handover()
        joins = framing.joins and policy.max_in_flight > 1
        self.outgoing: Outgoing = Outgoing(
            host, join=JOIN if joins else 1, one_by_one=not framing.joins
        )
        self.calls: Calls = self.calls_class(self, host, options.one_at_a_time, dispatcher.dialect)
        """What we asked of the peer."""
        requests_class = self.requests_class
        if policy.ordered_commands:
            from duet_rpc.engine.ordered_commands import put_in_order  # few ask for it

            requests_class = put_in_order(requests_class)
        self.requests: Requests = requests_class(
            dispatcher,
            host,
            options,
            slots=Slots(policy.max_in_flight, policy.max_queued),
            queue=RequestQueue(policy.max_queued, policy.max_queued_bytes, options.budget),
            handover=self.handover,
            calls=self.calls,
            reply=self._reply,
        )
        """What the peer asked of us."""
        self._host = host
        self._open_calls = self.calls.open
        self._closes_on_lost_boundary = options.closes_on_lost_boundary
        self._arrived: deque[bytes | bytearray | Fault] = deque()
        self._last_was_broken = False

    # What the host asks.

    @property
    def idle(self) -> bool:
        """Nothing runs, nothing waits: everything that came has been dealt with."""
        requests, outgoing = self.requests, self.outgoing
        return not (
            requests.slots.running
            or requests.slots.paused
            or requests.queue.waiting
            or self._arrived
            or outgoing.answers
            or outgoing.own
        )

    @property
    def is_unhindered(self) -> bool:
        """Nothing runs, nothing waits, nothing is in the way of what comes next."""
        requests = self.requests
        return not (
            self._arrived
            or requests.slots.running
            or requests.queue.waiting
            or self.congested
            or self.broken
        )

    @property
    def wants_data(self) -> bool:
        """Whether the host should read on."""
        return not (self.congested or self.broken or (self._arrived and not self.requests.refusing))

    @property
    def moves(self) -> tuple[int, int]:
        """What changes with every message that is dealt with; a watchdog compares it."""
        return self.requests.stats.requests, len(self._arrived)

    # What the host tells.

    def begin(self) -> None:
        """The host can read and send from now on."""

    def congest(self) -> None:
        """Too much waits for a peer that does not read: start nothing until `relieve`."""
        self.congested = True

    def relieve(self) -> None:
        """The peer has read: go on."""
        self.congested = False
        self.go_on()

    def refuse(self) -> None:
        """The queue has been full for too long: read on, and answer what comes `overloaded`."""
        self.requests.refuse()
        if self.requests.refusing:
            self.go_on()

    def abandon(self, job: Job, error: RpcError) -> None:
        """Answer a running request now, from a clock, and stop its handler if it may be stopped."""
        self.requests.abandon(job, error)
        self.outgoing.flush()

    def refuse_queued(self) -> None:
        """Answer everything that has not been started: we are shutting down."""
        self.requests.close_down()
        while self._arrived:
            self._take(self._arrived.popleft(), may_start=False)
        self.requests.refuse_queued()
        self.outgoing.flush()

    def forked(self, leave: Callable[[BaseException | None], object]) -> None:
        """This is a copy in a child: run nothing more, and leave as soon as a handler ends."""
        self.dispatcher.forked(leave)
        # So a handler that runs inline finds that the token is gone, and asks the host.
        self.handover.token.clear()
        self._drop_queued()

    def close(self) -> None:
        """The peer is gone, or we are: nothing more is read, begun or sent. May be repeated."""
        self._drop_queued()
        if self.requests.session is not None:
            self.requests.session.close()

    def _drop_queued(self) -> None:
        """Start nothing of what waits; its room is free for others.

        That includes the part of a message. A connection is part of cycles, so it stays until the
        collector comes by; megabytes that hung on it would stay as well.
        """
        self.requests.queue.clear()
        self._arrived.clear()
        self.framing.expire()

    # Bytes in.

    def receive(self, data: bytes) -> None:
        """Take bytes as they come, and do what they ask for as far as there is room."""
        self._arrived.extend(self.framing.feed(data))
        if self.handover.lent:
            self._work_while_lent()
        else:
            self._work()

    def end_of_input(self) -> None:
        """No more bytes will come; a frame that was cut is a fault."""
        fault = self.framing.end()
        if fault is not None:
            self._arrived.append(fault)
        self.go_on()
        self.requests.end_grants()

    def go_on(self) -> None:
        """Do what can be done now: everything, or what may be done while a handler runs inline."""
        if self.handover.lent:
            self._work_while_lent()
        else:
            self._work()

    def _work(self) -> None:
        """Go on with what has arrived and what waits, as far as there is room."""
        arrived, requests, open_calls = self._arrived, self.requests, self._open_calls
        slots, queue = requests.slots, requests.queue
        waiting, held = queue.waiting, queue.held
        while not self.congested:
            # An answer to a call of ours needs no slot, and no turn.
            if open_calls and arrived:
                self.calls.take_answers(arrived)
            if waiting and slots.running < slots.limit:
                requests.start(queue.popleft())
            elif arrived:
                if not (
                    slots.running or requests.by_id or waiting or open_calls or requests.closing
                ):
                    body = self._answer_at_once()
                    if body is None:
                        continue
                elif (
                    (slots.running >= slots.limit or held)
                    and requests.full
                    and not requests.refusing
                ):
                    break
                else:
                    body = arrived.popleft()
                    if type(body) is not Fault and requests.take_plain(body):  # type: ignore[arg-type]
                        self._last_was_broken = False
                        continue
                self._take(body)
            else:
                break
        if requests.refusing and not requests.full:
            requests.accept()
        if self.outgoing.answers:
            self.outgoing.flush()

    def _answer_at_once(self) -> bytes | bytearray | Fault | None:
        """Answer simple requests on the fast path, up to one that is not; begin that.

        Return the first that is odd. Nothing may be in flight in either direction.
        """
        dispatcher, arrived, outgoing = self.dispatcher, self._arrived, self.outgoing
        answer_at_once, requests = dispatcher.answer_at_once, self.requests
        if answer_at_once is None:
            return arrived.popleft()
        token, id, write = self.handover.token, requests.origin.connection_id, self._host.write
        joins, out = outgoing.joins, outgoing.answers
        encode, prefixes = self.framing.frame, self.framing.prefixes
        small = len(prefixes)
        if outgoing.own:
            outgoing.flush()
        count = 0
        try:
            while arrived and not (self.congested or requests.closing):
                body = arrived.popleft()
                if type(body) is Fault:
                    return body
                token.append(body)  # type: ignore[arg-type]
                answer = answer_at_once(body, id)  # type: ignore[arg-type]
                try:
                    token.pop()
                except IndexError:
                    self._reclaim(body, answer)
                    return None  # the watchdog may have found work for us
                if answer is None:
                    return body
                count += 1
                size = len(answer)
                if size:
                    frame = prefixes[size] + answer if size < small else encode(answer)  # type: ignore[arg-type, operator]
                    if joins:
                        out.append(frame)
                        if len(out) >= JOIN:
                            outgoing.flush()
                    else:
                        write(frame)
                elif not isinstance(answer, bytes):  # it is to be run
                    count -= 1
                    if requests.begin(answer, body):  # type: ignore[arg-type]
                        self._last_was_broken = False
                        return None
                    return body
            return None
        finally:
            if count:
                requests.stats.requests += count
                self._last_was_broken = False
            if dispatcher.spent is not None and not self._host.behind:
                dispatcher.drop_spent()

    def _reclaim(self, body: bytes | bytearray | Fault, answer: bytes | Plain | None) -> None:
        """Go on after a watchdog has read in our place while a handler ran inline."""
        self._host.reclaim()
        if self.handover.end_inline():
            return  # its caller has cancelled it, and has been answered
        if isinstance(answer, bytes):
            self.requests.stats.requests += 1
            self._last_was_broken = False
            if answer:
                self._reply(answer)
        else:
            # It came before the queue that the watchdog has filled meanwhile.
            queue = self.requests.queue
            later = queue.set_aside()
            self._take(body)
            for waiting in later:
                queue.append(waiting)

    def _work_while_lent(self) -> None:
        """Look at what has arrived while a handler runs inline elsewhere.

        Nothing is started, but cancellations and answers to our own calls get through. Only the
        thread that holds the token may call this.
        """
        requests = self.requests
        while self._arrived and not self.congested and (requests.refusing or not requests.full):
            self._take(self._arrived.popleft(), may_start=False)
        self.outgoing.flush()

    def run_lent(self, job: Job) -> bytes:
        """Run a handler on this thread; a watchdog may receive meanwhile."""
        self.handover.token.append(None)
        member = self.dispatcher.run(job)
        try:
            self.handover.token.pop()
        except IndexError:
            self._host.reclaim()
        return member

    def _take(self, body: bytes | bytearray | Fault, may_start: bool = True) -> None:
        if isinstance(body, Fault):
            self._take_fault(body)
            return
        policy, limit = self.dispatcher.policy, self.dispatcher.policy.max_batch
        if self._open_calls:
            limit = max(limit, self.calls.most_answers)
        message: Message | None = decode(body, policy.max_depth, limit)
        self._last_was_broken = type(message) is Invalid and isinstance(message.error, ParseError)
        if self._open_calls and (self._last_was_broken or type(message) is TooLarge):
            if self.calls.fail_unread(body, too_many=type(message) is TooLarge):
                self._tell_fault("unreadable", "answer")
                return
        size = len(body)
        if isinstance(message, (Batch, TooLarge)):
            refusal = self.requests.take_batch(message, size, self._reply, may_start)
            message = None if refusal is None else Invalid(refusal)
        if message is not None:
            self.requests.take(message, size, None, may_start)

    def _reply(self, body: bytes | None) -> None:
        """Have the body of an answer sent."""
        if body is not None:
            self.outgoing.send(self.framing.frame(body))

    # Faults of the stream.

    def _take_fault(self, fault: Fault) -> None:
        if fault.dropped:
            self.calls.fail_dropped(fault)
            return
        if fault.stray and self._last_was_broken:
            # The tail of the body that was answered already; the boundary is lost all the same.
            self.lose_boundary()
            return
        self._tell_fault(fault.error.reason or "cut", "frame")
        self.requests.answer_fault(fault.error)
        if fault.boundary_lost:
            self.lose_boundary()

    def _tell_fault(self, reason: str, what: Literal["frame", "answer", "late frame"]) -> None:
        from duet_rpc.hooks import FrameFault  # rare, and a cold start should not pay for it

        self.requests.stats.faults += what != "late frame"
        self.dispatcher.tell(FrameFault(self.requests.origin, reason, what))

    def expire_frame(self) -> None:
        """A frame has not been complete in time: drop what came of it; on a network, end here.

        A call of ours that it names ends with this reason: its answer is gone.
        """
        begun = self.framing.begun
        if self.framing.expire():
            self._tell_fault("late", "late frame")
            self.calls.fail_late(begun, self.dispatcher.policy.read_timeout)
            self.lose_boundary()

    def lose_boundary(self) -> None:
        """Where the next frame begins is unknown: on a network, what follows is not looked at."""
        if self._closes_on_lost_boundary:
            self.broken = True
            self._arrived.clear()
