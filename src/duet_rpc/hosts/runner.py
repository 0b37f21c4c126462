"""Where a handler runs: here and now, as a task, or in a worker thread; and its deadline.

A `def` runs in a worker thread unless it is declared inline, so that reading goes on.
`ThreadHost` alone runs each handler where it reads. Imports `asyncio` late, for a cold start.
"""

import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from duet_rpc.engine.connection import Connection
from duet_rpc.engine.deadlines import ConnectionClocks
from duet_rpc.engine.dispatch import Job
from duet_rpc.hosts.workers import Lane, NoThread

if TYPE_CHECKING:
    import asyncio

    from duet_rpc.hosts.on_loop import OnLoop


class WorkerRunner:
    """Runs every handler in a worker thread: the thread of the host reads for all."""

    def __init__(
        self,
        connection: Connection,
        clocks: ConnectionClocks,
        lane: Lane,
        finish: Callable[[Job, bytes], None],
    ) -> None:
        """`finish` is called on the thread of the handler, and takes the host's lock."""
        self._connection = connection
        self._clocks = clocks
        self._lane = lane
        self._finish = finish

    def start(self, job: Job) -> None:
        """Run a handler; the host's lock is held."""
        self._clocks.start(job, time.monotonic())
        try:
            self._lane.run(partial(self._run, job), partial(self._refuse, job))
        except NoThread as error:
            self._clocks.stop(job)
            self._connection.requests.finish(
                job, self._connection.dispatcher.not_started(error, job)
            )

    def _refuse(self, job: Job, error: Exception) -> None:
        self._finish(job, self._connection.dispatcher.not_started(error, job))

    def _run(self, job: Job) -> None:
        try:
            member = self._answer(job)
        except BaseException as error:
            member = self._connection.dispatcher.broken_off(error, job)
        self._finish(job, member)

    def _answer(self, job: Job) -> bytes:
        dispatcher = self._connection.dispatcher
        if not job.method.is_async:
            return dispatcher.run(job)
        try:
            import asyncio

            runner = asyncio.Runner()
            runner.get_loop()
        except Exception as error:  # a process may have no descriptor left
            return dispatcher.not_started(error, job)
        with runner:
            return runner.run(dispatcher.run_async(job))


class LoopRunner:
    """Runs handlers on an event loop, for a connection or for exchanges."""

    def __init__(self, host: "OnLoop", lane: Lane) -> None:
        self.host = host
        self._dispatcher = host.dispatcher
        self._lane = lane
        self._running: dict[Job, None] = {}
        """The jobs that hold a slot."""

    @property
    def jobs(self) -> list[Job]:
        """What has begun and not ended."""
        return list(self._running)

    @property
    def has_tasks(self) -> bool:
        """An `async def` has begun and not ended."""
        import asyncio

        return any(isinstance(job.running, asyncio.Task) for job in self._running)

    def start(self, job: Job) -> None:
        """Run the handler where its kind runs."""
        method = job.method
        if method.inline:  # which has no timeout, and is no async def
            self.host.finish(job, self._dispatcher.run(job))
            return
        self._running[job] = None
        try:
            if method.timeout is not None:
                self.host.clocks.start(job, self.host.now())
                self.host.set_timer()
            if method.is_async:
                job.running = task = self.host.loop.create_task(self._run_async(job))
                task.add_done_callback(partial(self._task_ended, job))
            else:
                self._lane.run(partial(self._run_in_thread, job), partial(self.refuse, job))
        except Exception as error:  # a process may have no thread left
            self._give_back(job, self._dispatcher.not_started(error, job))

    def cancel(self, job: Job) -> None:
        """Cancel a task, or the waiting for another run; a `def` that runs sees its context."""
        if job.running is not None:
            self.host.act(job.running.cancel)

    def close(self) -> None:
        """Cancel what may be stopped; no one is there to be answered."""
        for job in self.jobs:
            job.answered = True  # and that is no failure
            if job.running is not None and job.may_be_stopped:
                job.running.cancel()

    async def _run_async(self, job: Job) -> None:
        self._finish(job, await self._dispatcher.run_async(job))

    def _task_ended(self, job: Job, task: "asyncio.Task[None]") -> None:
        """Finish a job whose task could not: one cancelled before its first step runs no line."""
        if job not in self._running:
            return
        try:
            error = task.exception()
        except BaseException as cancelled:
            error = cancelled
        assert error is not None, "a task that ends by itself has finished its job"
        self._finish(job, self._dispatcher.broken_off(error, job))

    def _run_in_thread(self, job: Job) -> None:
        dispatcher = self._dispatcher
        if job.is_recorded:  # it may have to wait for another run of the same command
            self.go_on_in_thread(job, dispatcher.run_yielding(job))
        else:
            self.host.post(self._finish, job, dispatcher.run(job))

    def refuse(self, job: Job, error: Exception) -> None:
        """Finish a job for which there is no thread; any thread may call this."""
        self.host.post(self._finish, job, self._dispatcher.not_started(error, job))

    def take_thread(
        self,
        job: Job,
        run: Coroutine[Any, Any, bytes],
        error: BaseException | None,
        refused: Callable[[Exception], object],
    ) -> None:
        """Let a command that has waited go on in a thread."""
        try:
            self._lane.run(partial(self.go_on_in_thread, job, run, error), refused)
        except Exception as why:
            refused(why)

    def go_on_in_thread(
        self, job: Job, run: Coroutine[Any, Any, bytes], error: BaseException | None = None
    ) -> None:
        """Let a command go on until it ends, or has to wait for another run: not in a thread."""
        try:
            wait = run.send(None) if error is None else run.throw(error)
        except StopIteration as end:
            self.host.post(self._finish, job, end.value)
        else:
            self.host.post(_Waiting, self, job, run, wait)

    def _finish(self, job: Job, member: bytes) -> None:
        with self.host.lock:
            self._give_back(job, member)
            self.host.go_on()

    def _give_back(self, job: Job, member: bytes) -> None:
        """End a job of the table, and with it its hold on a slot; the only place that does."""
        del self._running[job]
        self.host.clocks.stop(job)
        self.host.finish(job, member)


class _Waiting:
    """A command that waits for another run of it, without a thread; all on the loop."""

    AGAIN = 0.5
    """Seconds until one that may have had an effect asks again for a thread that was refused."""

    def __init__(
        self, runner: LoopRunner, job: Job, run: Coroutine[Any, Any, bytes], wait: Any
    ) -> None:
        self._runner = runner
        self._job = job
        self._run = run
        self._execution = wait.execution
        self._timer = runner.host.loop.call_later(wait.seconds, self._go_on)
        job.running = self
        if job.answered and job.may_be_stopped:
            self.cancel()
        elif self._execution is not None and not self._execution.call_when_settled(self._settled):
            self._go_on()

    def cancel(self) -> None:
        """Stop waiting for another run. A run of our own that has begun is not to be stopped."""
        import asyncio

        self._go_on(asyncio.CancelledError())

    def _settled(self) -> None:
        self._runner.host.post(self._go_on)

    def _go_on(self, error: BaseException | None = None) -> None:
        if self._job.running is not self:
            return  # it goes on already
        self._job.running = None
        self._timer.cancel()
        if self._execution is not None:
            self._execution.forget(self._settled)
        self._take_thread(error)

    def _take_thread(self, error: BaseException | None = None) -> None:
        self._runner.take_thread(self._job, self._run, error, self._refused)

    def _refused(self, why: Exception) -> None:
        if self._job.may_be_stopped:
            self._run.close()
            self._runner.refuse(self._job, why)
        else:
            host = self._runner.host
            host.post(host.loop.call_later, self.AGAIN, self._take_thread)
