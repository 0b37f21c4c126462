"""Commands one at a time, in the order in which they came; queries go on beside them.

A command needs the turn of its peer to start, and a slot like any other request. It asks for the
turn when it would be started. If another command has it, it is held: it waits in the queue's second
line, where it takes no slot and holds up no query. When the turn is passed on to it, it goes to
the front of the queue and waits for nothing but a slot.

Laws of this file:
- Requests leave the queue in the order in which they came, so commands are held in that order.
- What is held waits for a holder of the turn, which runs or is about to: it is never the last.
- A command that waits for its peer gives up the turn with its slot, for the peer may have to call a
  command before it can answer. When it goes on, another one may be at work beside it.

It is loaded under a policy with `ordered_commands`; under any other nothing is asked for it.
"""

from typing import Any

from duet_rpc.context import Context
from duet_rpc.engine.batch import Place
from duet_rpc.engine.dispatch import Dispatcher, Job
from duet_rpc.engine.intake import SMALL_WAITING, Plain
from duet_rpc.engine.queue import Queued, Waiting, cost
from duet_rpc.engine.requests import RequestHost, RequestOptions, Requests
from duet_rpc.service import Kind
from duet_rpc.wire.params import AGE


class CommandTurn:
    """Which command of a peer may run."""

    __slots__ = ("has_begun", "holder", "paused")

    def __init__(self) -> None:
        self.holder: Queued | None = None
        self.has_begun: bool = False
        """Whether the holder runs; before, it waits for a slot."""
        self.paused: dict[Context, Job] = {}
        """Commands that have begun, and have given up the turn to wait for the peer."""

    def give(self, holder: Queued | None, *, has_begun: bool = False) -> None:
        """Say whose turn it is."""
        self.holder, self.has_begun = holder, has_begun


class OrderedRequests(Requests):
    """See `Requests`; at most one command runs at a time."""

    __slots__ = ()
    turn: CommandTurn

    def __init__(
        self, dispatcher: Dispatcher, host: RequestHost, options: RequestOptions, **parts: Any
    ) -> None:
        self.turn = CommandTurn()
        super().__init__(dispatcher, host, options, **parts)

    @property
    def full(self) -> bool:
        """See `Requests.full`. What is held takes room of others while slots are free."""
        if super().full:
            return True
        queue = self.queue
        budget = queue.budget
        return bool(queue.held) and budget is not None and budget.used >= budget.limit

    def begin(
        self, message: Plain, body: bytes | bytearray, waiting_size: int = 0, place: Place = None
    ) -> bool:
        """See `Requests.begin`. A large command that has to wait does so as it came."""
        if (
            not waiting_size
            and self.turn.holder is not None
            and message.served.kind is Kind.COMMAND
        ):
            if len(body) > SMALL_WAITING or self.full:
                return False
            waiting_size = cost(len(body))
        return super().begin(message, body, waiting_size, place)

    def start(self, waiting: Queued) -> None:
        """See `Requests.start`. A command that does not have the turn is held."""
        turn = self.turn
        if self._is_command(waiting) and not self.closing:
            if turn.holder is None:
                turn.give(waiting)
            elif turn.holder is not waiting:
                self._hold(waiting)
                return
        super().start(waiting)
        if turn.holder is waiting and not turn.has_begun:
            self._pass_on()  # it was refused

    def pause(self, ctx: Context) -> None:
        """See `Requests.pause`; the turn is given up too."""
        super().pause(ctx)
        turn = self.turn
        if turn.has_begun and isinstance(turn.holder, Job) and turn.holder.context is ctx:
            turn.paused[ctx] = turn.holder
            self._pass_on()

    def resume(self, ctx: Context) -> None:
        """See `Requests.resume`; the turn is taken again if no one has it."""
        super().resume(ctx)
        turn = self.turn
        if ctx not in self.slots.paused:
            job = turn.paused.pop(ctx, None)
            if job is not None and turn.holder is None:
                turn.give(job, has_begun=True)

    def finish(self, job: Job, member: bytes) -> None:
        """See `Requests.finish`. The turn is passed on."""
        super().finish(job, member)
        turn = self.turn
        if turn.paused and job.context is not None:
            turn.paused.pop(job.context, None)
        if turn.holder is job:
            self._pass_on()

    def _run(self, job: Job) -> None:
        if job.method.kind is Kind.COMMAND:
            self.turn.give(job, has_begun=True)
        super()._run(job)

    def _lacks_room(self, waiting: Waiting) -> bool:
        """What can begin at once needs none, though commands that are held have taken all of it."""
        if not self.full:
            return False
        may_begin = self.turn.holder is None or not self._is_command(waiting)
        slots = self.slots
        has_slot = slots.running < slots.limit and not self.queue.waiting
        return not (may_begin and has_slot) or bool(self._handover.lent)

    def _withdraw(self, queued: Queued) -> None:
        super()._withdraw(queued)
        if self.turn.holder is queued:
            self._pass_on()

    def _hold(self, waiting: Queued) -> None:
        message = waiting.message if type(waiting) is Waiting else None
        if message is not None and message.params is not None and AGE in message.params:
            assert type(waiting) is Waiting, "only then there is a message"
            if waiting.read_at is None:
                waiting.read_at = self.dispatcher.now()
        self.queue.hold(waiting)

    def _pass_on(self) -> None:
        """Give the turn to the command that has waited longest; the host then calls `go_on`."""
        queue = self.queue
        following = next((each for each in queue.held if self.owns(each)), None)
        self.turn.give(following)
        if following is not None:
            queue.let_in(following)

    def _is_command(self, queued: Queued) -> bool:
        if type(queued) is Job:
            return queued.method.kind is Kind.COMMAND
        assert type(queued) is Waiting, "the union is closed"
        message = queued.message
        if message is None:
            return False
        if self.session is not None:
            return self.session.is_command(message)
        method = self.dispatcher.service.get(message.method)
        return method is not None and method.kind is Kind.COMMAND


_ordered: dict[type[Requests], type[Requests]] = {Requests: OrderedRequests}


def put_in_order(kind: type[Requests]) -> type[Requests]:
    """Give the class of requests whose commands run in order; a debug run has its own."""
    if kind not in _ordered:
        name = f"Ordered{kind.__name__}"
        _ordered[kind] = type(name, (kind, OrderedRequests), {"__slots__": ()})
    return _ordered[kind]
