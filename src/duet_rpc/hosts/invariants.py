"""A connection of a debug run: it keeps a second account of its slots and compares, at every turn.

Laws of this file:
- running + free = limit. A handler runs, or it is paused because it waits for its peer; then its
  slot is free (up to `max_queued` of them; one beyond keeps it). What goes on after a pause needs
  no room: only then more than `limit` may run.
- What has begun and not ended is running or paused, and nothing else is.
- When the task of a handler is done, the handler has ended.
"""

from typing import Any

from duet_rpc.context import Context
from duet_rpc.engine.connection import Connection
from duet_rpc.engine.dispatch import Job
from duet_rpc.hosts.debug import violated


class CheckedConnection(Connection):
    """See `Connection`; raises an AssertionError as soon as a slot is lost or given back twice."""

    __slots__ = ("_begun",)

    def __init__(self, *args: Any, **options: Any) -> None:
        self._begun: dict[Job, None] = {}
        super().__init__(*args, **options)
        self._host: Any = _CheckedHost(self._host, self)

    def begin(self, job: Job) -> None:
        """A handler is about to be started."""
        self._begun[job] = None
        self.check()
        if self._active > self._limit:
            violated(f"{self._account}: one more than may run was started")

    def begun(self, job: Job) -> None:
        """It was started; if that is a task, watch its end. The host's own callback comes first."""
        if job in self._begun and job.running is not None:
            job.running.add_done_callback(lambda task: self._ended(job))

    def _ended(self, job: Job) -> None:
        if job in self._begun:
            violated(f"{self._account}: the task of {job.method.name} is done, its slot is lost")

    def finish(self, job: Job, member: bytes) -> None:
        """See `Connection.finish`."""
        if job not in self._begun:
            violated(f"{self._account}: {job.method.name} ends and has not begun, or ends twice")
        del self._begun[job]
        super().finish(job, member)
        self.check()

    def receive(self, data: bytes) -> None:
        """See `Connection.receive`."""
        self.check()
        super().receive(data)
        self.check()

    def go_on(self) -> None:
        """See `Connection.go_on`."""
        self.check()
        super().go_on()
        self.check()

    def pause_slot(self, ctx: Context) -> None:
        """See `Connection.pause_slot`."""
        super().pause_slot(ctx)
        self.check()

    def resume_slot(self, ctx: Context) -> None:
        """See `Connection.resume_slot`."""
        super().resume_slot(ctx)
        self.check()

    def check(self) -> None:
        """Compare the accounts."""
        paused = {job.context for job in self._begun if job.context in self._waits}
        without_slot = min(len(paused), self._policy.max_queued)
        if len(paused) != len(self._waits) or self._active != len(self._begun) - without_slot:
            violated(f"{self._account}: a slot is lost, or was given back twice")

    @property
    def _account(self) -> str:
        limit, running, paused = self._limit, self._active, len(self._waits)
        return (
            f"{self.id}: {len(self._begun)} in flight: {running} running + {paused} paused,"
            f" {limit - running} of {limit} slots free"
        )


class _CheckedHost:
    """A host that tells the connection what it starts."""

    def __init__(self, host: Any, connection: CheckedConnection) -> None:
        self._checked = host, connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._checked[0], name)

    def start(self, job: Job) -> None:
        host, connection = self._checked
        connection.begin(job)
        host.start(job)
        connection.begun(job)
