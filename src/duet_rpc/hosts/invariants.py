"""A connection of a debug run: it keeps a second account of its slots and compares, at every turn.

Laws of this file:
- running + free = limit. A handler runs, or it is paused because it waits for its peer; then its
  slot is free (up to `max_queued` of them; one beyond keeps it). What goes on after a pause needs
  no room: only then more than `limit` may run.
- What has begun and not ended is running or paused, and nothing else is.
- When the task of a handler is done, the handler has ended.
- Where commands are ordered, one is begun only when every other has ended or waits for its peer, or
  has done so; and what is held has someone to wait for.
"""

from typing import Any

from duet_rpc.context import Context
from duet_rpc.engine.connection import Connection
from duet_rpc.engine.dispatch import Job
from duet_rpc.engine.ordered_commands import OrderedRequests
from duet_rpc.engine.requests import RequestHost, RequestOptions, Requests
from duet_rpc.engine.slots import Slots
from duet_rpc.hosts.debug import violated
from duet_rpc.service import Kind


class CheckedRequests(Requests):
    """See `Requests`; raises an AssertionError as soon as a slot is lost or given back twice."""

    __slots__ = ("_begun", "gave_up")

    def __init__(
        self, dispatcher: Any, host: RequestHost, options: RequestOptions, **parts: Any
    ) -> None:
        self._begun: dict[Job, None] = {}
        self.gave_up: set[Context] = set()
        """Handlers that have given up their slot at some time, and with it the turn."""
        slots: Slots = parts.pop("slots")
        parts["slots"] = _CheckedSlots(slots.max_running, dispatcher.policy.max_queued, self)
        super().__init__(dispatcher, _CheckedHost(host, self), options, **parts)

    def count_begun(self, job: Job) -> None:
        """A handler is about to be started."""
        if self.dispatcher.policy.ordered_commands and job.method.kind is Kind.COMMAND:
            beside = [each for each in self._begun if each.method.kind is Kind.COMMAND]
            if any(each.context not in self.gave_up for each in beside):
                violated(f"{self._account}: {job.method.name} begins beside another command")
        self._begun[job] = None
        self.check()
        if self.slots.running > self.slots.max_running:
            violated(f"{self._account}: one more than may run was started")

    def watch_task(self, job: Job) -> None:
        """It was started; if that is a task, watch its end. The host's own callback comes first."""
        if job in self._begun and job.running is not None:
            job.running.add_done_callback(lambda task: self._ended(job))

    def _ended(self, job: Job) -> None:
        if job in self._begun:
            violated(f"{self._account}: the task of {job.method.name} is done, its slot is lost")

    def finish(self, job: Job, member: bytes) -> None:
        """See `Requests.finish`."""
        if job not in self._begun:
            violated(f"{self._account}: {job.method.name} ends and has not begun, or ends twice")
        del self._begun[job]
        if job.context is not None:
            self.gave_up.discard(job.context)
        super().finish(job, member)
        self.check()

    def check(self) -> None:
        """Compare the accounts."""
        slots = self.slots
        paused = {job.context for job in self._begun if job.context in slots.paused}
        expected = len(self._begun) - slots.without_slot
        if len(paused) != len(slots.paused) or slots.running != expected:
            violated(f"{self._account}: a slot is lost, or was given back twice")
        if self.queue.held:
            assert isinstance(self, OrderedRequests), "nothing else holds requests"
            holder = self.turn.holder
            if holder not in self._begun and holder not in self.queue.waiting:
                violated(f"{self._account}: commands wait for one that is not there")

    @property
    def _account(self) -> str:
        limit, running = self.slots.max_running, self.slots.running
        return (
            f"{self.origin.connection_id}: {len(self._begun)} in flight: {running} running"
            f" + {len(self.slots.paused)} paused, {limit - running} of {limit} slots free"
        )


class CheckedConnection(Connection):
    """See `Connection`; compares the accounts of its slots at every turn."""

    __slots__ = ()
    requests_class: type[Requests] = CheckedRequests
    requests: CheckedRequests

    def receive(self, data: bytes) -> None:
        """See `Connection.receive`."""
        self.requests.check()
        super().receive(data)
        self.requests.check()

    def go_on(self) -> None:
        """See `Connection.go_on`."""
        self.requests.check()
        super().go_on()
        self.requests.check()


class _CheckedSlots(Slots):
    """Slots that compare the accounts after every pause."""

    __slots__ = ("_requests",)

    def __init__(self, limit: int, max_paused: int, requests: CheckedRequests) -> None:
        super().__init__(limit, max_paused)
        self._requests = requests

    def pause(self, ctx: Context) -> None:
        """See `Slots.pause`."""
        super().pause(ctx)
        self._requests.gave_up.add(ctx)
        self._requests.check()

    def resume(self, ctx: Context) -> None:
        """See `Slots.resume`."""
        super().resume(ctx)
        self._requests.check()


class _CheckedHost:
    """A host that tells its requests what it starts."""

    def __init__(self, host: Any, requests: CheckedRequests) -> None:
        self._checked = host, requests

    def __getattr__(self, name: str) -> Any:
        return getattr(self._checked[0], name)

    def start(self, job: Job) -> None:
        host, requests = self._checked
        requests.count_begun(job)
        host.start(job)
        requests.watch_task(job)
