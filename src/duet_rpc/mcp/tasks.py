"""Tasks: commands that go on after the request that began them is answered.

The command of a task is run by an `ExchangeHost` of its own, which belongs to no connection, and so
by every rule that holds for other calls. It is begun when the task is created. Whoever asks for a
task that no process works on begins it once more: so it goes on after a crash, and the claim of the
ledger decides if two processes do that. What runs at most once and had begun is not run again.

Everything here happens on the event loop.
"""

import asyncio
import time
from itertools import count

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from duet_rpc.context import Origin, Peer
from duet_rpc.engine.dispatch import Dispatcher
from duet_rpc.engine.failures import error_member, make_overloaded
from duet_rpc.errors import (
    Cancelled,
    InProgress,
    Overloaded,
    RpcError,
    ShuttingDown,
    StoreUnavailable,
)
from duet_rpc.hosts.exchange import ExchangeHost
from duet_rpc.hosts.workers import Workers
from duet_rpc.kinds import Promise
from duet_rpc.ledger import Record, State
from duet_rpc.ledger.commands import Commands
from duet_rpc.mcp.task_records import Task, TaskRecords, find_ending
from duet_rpc.mcp.task_session import write_request
from duet_rpc.wire.surrogates import decode_value

POLL = 0.5
"""Seconds between two looks at a task that another process works on."""
STOPPING = 2.0
"""Seconds that a cancellation waits for what may be stopped to have stopped."""
_CANCELLED = error_member(Cancelled())
_PASSING = {
    *(Overloaded.code, ShuttingDown.code, StoreUnavailable.code, InProgress.code),
    Cancelled.code,  # by the end of the server; what a client cancels is not answered
}
"""Errors after which the next to ask for the task begins it anew."""


class TaskState(Struct, frozen=True):
    """What is known of a task."""

    task: Task
    ending: bytes | None
    """What its command is answered with, as the member of an answer; None while it works."""
    changed_at: float
    goes_on: bool = False
    """It was cancelled, and could not be stopped any more."""


class _TaskAnswer(Struct):
    error: Raw | UnsetType = UNSET


class _Code(Struct):
    code: int


_answer_decoder = msgspec.json.Decoder(_TaskAnswer)
_code_decoder = msgspec.json.Decoder(_Code)


class TaskRun:
    """A task that this process works on."""

    def __init__(self, answering: "asyncio.Task[bytes | None]") -> None:
        self.answering: asyncio.Task[bytes | None] = answering
        """Runs the command."""
        self.following: asyncio.Task[None] | None = None
        """Waits for its end, and sees to it that there is an outcome."""
        self.is_cancelled: bool = False


class Tasks:
    """The tasks of one server."""

    def __init__(self, dispatcher: Dispatcher, commands: Commands) -> None:
        self._dispatcher = dispatcher
        self.records: TaskRecords = TaskRecords(commands)
        self._runs: dict[tuple[str, str], TaskRun] = {}
        """By principal and id."""
        self._numbers = count(1)
        self._workers = Workers()
        self._host: ExchangeHost | None = None

    def is_own(self, peer: Peer) -> bool:
        """Tell whether a peer is the one that runs commands for us."""
        return self._host is peer

    # What clients ask for.

    async def create(self, task: Task, origin: Origin, age: float) -> TaskState:
        """Create a task, or find the one that is there, and begin its command.

        When this returns the store holds it. `age` is that of the call, if it is a retry.
        """
        if self._get_host().exchanges.queue.full:
            raise make_overloaded()
        return await self.look(await self.records.create(task, age), origin)

    async def look(self, task: Task, origin: Origin) -> TaskState:
        """Tell how a task stands; begin its command if no process works on it."""
        record = await self.records.look(task)
        run = self._find_run(task)
        if run is None and _is_left(task, record):
            run = self._begin(task, origin)
        return _tell(task, record, goes_on=run is not None and run.is_cancelled)

    async def peek(self, task: Task) -> TaskState:
        """Tell how a task stands, and leave it so."""
        run = self._find_run(task)
        goes_on = run is not None and run.is_cancelled
        return _tell(task, await self.records.look(task), goes_on=goes_on)

    async def wait(self, task: Task) -> None:
        """Wait until a task may have ended."""
        run = self._find_run(task)
        if run is None or run.following is None:
            await asyncio.sleep(POLL)
        else:
            await asyncio.wait([run.following], timeout=POLL)

    async def cancel(self, task: Task) -> TaskState | None:
        """Cancel what has not begun or can be undone; tell what goes on. None if it had ended.

        What is cancelled has an outcome that says so, and runs in no process any more.
        """
        record, run = await self.records.look(task), self._find_run(task)
        if find_ending(task, record) is not None:
            return None
        if run is not None:
            await self._stop(task, run, record)
        elif _is_left(task, record):
            await self.records.settle(task, _CANCELLED, tries=1)
        return _tell(task, await self.records.look(task), goes_on=True)

    async def end(self, until: float) -> bool:
        """Begin no more commands, and let those that run end; return whether they do in time."""
        host = self._host
        if host is None:
            return True
        with host.lock:
            host.exchanges.refuse_queued()
        open_ones = [run.following for run in self._runs.values() if run.following is not None]
        if open_ones:
            await asyncio.wait(open_ones, timeout=max(until - time.monotonic(), 0.0))
        finished = host.exchanges.idle
        host.close()
        for each in open_ones:
            each.cancel()
        if open_ones:
            await asyncio.wait(open_ones)
        self._workers.close()
        return finished

    # Running.

    def _get_host(self) -> ExchangeHost:
        if self._host is None:
            self._host = ExchangeHost(self._dispatcher, workers=self._workers)
        return self._host

    def _find_run(self, task: Task) -> TaskRun | None:
        return self._runs.get((task.principal, task.id))

    def _begin(self, task: Task, origin: Origin) -> TaskRun:
        host = self._get_host()
        own = replace(origin, connection_id=f"task-{next(self._numbers)}", can_be_called=False)
        run = TaskRun(host.loop.create_task(host.answer(write_request(task), own)))
        self._runs[task.principal, task.id] = run
        run.following = host.loop.create_task(self._follow(task, run))
        return run

    async def _follow(self, task: Task, run: TaskRun) -> None:
        """See to it that a command that has ended has an outcome, also where none is stored.

        That is so if it was cancelled or refused, and if it failed in a way that only another call
        could mend: a task is one call.
        """
        try:
            await asyncio.wait([run.answering])
            failure = _CANCELLED if run.is_cancelled else _read_failure(run.answering.result())
            if failure is not None:
                await self.records.settle(task, failure)
            elif not self._get_host().exchanges.closing:
                record = await self.records.look(task)
                if _is_left(task, record):
                    await asyncio.sleep(POLL)  # it could not be begun; not at once again
        except RpcError:
            await asyncio.sleep(POLL)  # the store cannot be used
        finally:
            del self._runs[task.principal, task.id]

    async def _stop(self, task: Task, run: TaskRun, record: Record | None) -> None:
        """Stop a command that this process works on, as far as it may be stopped."""
        if not run.is_cancelled:
            run.is_cancelled = True
            run.answering.cancel()
        assert run.following is not None, "it began with the run"
        if record is None or task.method.promise is Promise.TRANSACTIONAL:
            await asyncio.wait([run.following], timeout=STOPPING)
        else:
            await asyncio.sleep(0)  # so that the handler is told before the client is


def _is_left(task: Task, record: Record | None) -> bool:
    """Tell whether a command has to be begun, unless some process works on it."""
    if record is None:
        return True
    if find_ending(task, record) is not None:
        return False
    is_over = record.state is State.RUNNING and record.lease_until <= time.time()
    return is_over and record.promise is Promise.RETRY_SAFE


def _tell(task: Task, record: Record | None, *, goes_on: bool) -> TaskState:
    ending = find_ending(task, record)
    changed_at = task.created_at
    if record is not None:
        changed_at = max(changed_at, record.finished_at or record.created_at)
    return TaskState(task, ending, changed_at, goes_on and ending is None)


def _read_failure(answer: bytes | None) -> bytes | None:
    """Read the error of an answer, as a member; None if there is none, or none that lasts."""
    assert answer is not None, "it was asked under an id"
    error = decode_value(_answer_decoder, answer).error
    if error is UNSET or decode_value(_code_decoder, error).code in _PASSING:
        return None
    return b'"error":' + bytes(error)
