"""Where commands meet the ledger: what a job means to it, and what its outcomes mean on the wire.

The dispatcher knows handlers and errors, the ledger knows keys and records; this module is the only
one that knows both. The ledger is opened when the first command with a key comes, so that a service
that has none pays nothing for it.

Whatever goes wrong before the handler has begun is a refusal that may be sent again, and never
looks as if the handler had failed.
"""

import os
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import cache, partial
from math import inf
from typing import TYPE_CHECKING, Any, NoReturn

from msgspec import Raw

from duet_rpc.engine.dispatch import Failure, Job
from duet_rpc.engine.failures import error_member
from duet_rpc.errors import (
    InputRequired,
    InternalError,
    ResultUnserializable,
    RpcError,
    StoreUnavailable,
)
from duet_rpc.service import Kind, Service

if TYPE_CHECKING:
    from duet_rpc.ledger import Command, Ledger, Ran, Run
    from duet_rpc.ledger.stores.base import ReadableStore


_LOADED = time.monotonic()
START_TAKES = 60.0
"""Seconds that it may have waited then, in a process that is older: no start takes longer."""


@cache
def process_began() -> float:
    """Tell when this process began; no store that it makes is older, and none of its own memory.

    Not when this module was loaded: between that and the making of a store may be less time than
    between the reading of a retry and the store's decision about it.
    """
    try:
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        tick = 1 / os.sysconf("SC_CLK_TCK")
        ago = time.clock_gettime(time.CLOCK_BOOTTIME) - (ticks + 1) * tick
    except (OSError, ValueError, IndexError, AttributeError):
        return _LOADED
    return min(_LOADED, time.monotonic() - ago)


class Commands:
    """Runs the commands of a server through one ledger.

    `keeps` says in two words where the ledger's records are and how long they last.
    """

    def __init__(
        self,
        open_ledger: "Callable[[], Ledger]",
        *,
        checks: bool = False,
        keeps: tuple[str, str] | None = None,
    ) -> None:
        self._open_ledger = open_ledger
        self._checks = checks
        self.keeps = keeps
        self._served_since: float | None = None
        self._caught_up_at = inf
        self._opened: Ledger | None = None
        self._lock = threading.Lock()
        self.on_open: Callable[[], object] = lambda: None
        """Called before the ledger is first used."""

    @property
    def ledger(self) -> "Ledger":
        """The ledger, opened on first use."""
        if self._opened is None:
            with self._lock:
                if self._opened is None:
                    self.on_open()
                    self._opened = self._open_ledger()
        return self._opened

    def begin(self) -> None:
        """Note that serving starts: until `caught_up`, what is read may have waited for us.

        If the store cannot be used, that is logged, and the server starts all the same. Never
        waits.
        """
        self._served_since = time.monotonic()
        if self._checks:
            self.ledger.check()

    def caught_up(self) -> None:
        """Note that nothing is left to be read: what comes now finds a server that is there."""
        self._caught_up_at = time.monotonic()

    def now(self) -> float:
        """Tell the time at which something is read."""
        return time.monotonic()

    def first_sent(self, age: float, read_at: float) -> float:
        """Tell when a command was first sent whose retry, read at that time, says its age.

        The age was true when the retry was sent. One that was sent to a server that had yet to
        start has waited since. Its first try then went to the server before, in a process that had
        ended when this one began: so this is when it was sent at the latest. A store that an
        earlier process made was there by then; what this one made cannot know.
        """
        sent, served_since = read_at - age, self._served_since
        if served_since is None or read_at > self._caught_up_at:
            return sent
        return min(sent, max(process_began(), served_since - START_TAKES))

    def run(self, job: Job, work: Callable[[Any], bytes], failure: Failure) -> bytes:
        """Run a `def` once for its key."""
        once = partial(_call, job, work, failure)
        try:
            member = self.ledger.run(_command(job), once, deadline=_deadline(job))
        except Exception as error:
            _refuse(error, job, failure)
        return member if job.has_begun else _replay(job, member)

    async def run_yielding(self, job: Job, work: Callable[[Any], bytes], failure: Failure) -> bytes:
        """Run a `def` once for its key, and suspend where `run` would wait for another run."""
        once = partial(_call, job, work, failure)
        try:
            member = await self.ledger.run_yielding(_command(job), once, deadline=_deadline(job))
        except Exception as error:
            _refuse(error, job, failure)
        return member if job.has_begun else _replay(job, member)

    async def run_async(
        self, job: Job, work: Callable[[Any], Awaitable[bytes]], failure: Failure
    ) -> bytes:
        """Run an `async def` once for its key."""
        once = partial(_call_async, job, work, failure)
        try:
            member = await self.ledger.run_async(_command(job), once, deadline=_deadline(job))
        except Exception as error:
            _refuse(error, job, failure)
        return member if job.has_begun else _replay(job, member)

    def fingerprint(self, method: str, params: bytes | None, without: Sequence[str]) -> bytes:
        """Hash a method and its params but for these members."""
        return _of_ledger()[0](method, params, without)

    def outcome(self, principal: str, method: str, key: str, age: float = 0.0) -> Any:
        """Tell what became of a command: its state, and its result or error once it has one.

        `age` is how long ago it was sent, if the caller says so; see `Ledger.outcome`.
        """
        from duet_rpc.ledger.states import State

        if age > 0:
            age = self.now() - self.first_sent(age, self.now())
        record = self.ledger.outcome(principal, method, key, age=age)
        if record is None:
            return {"state": "none"}
        if record.state is State.DONE and record.outcome is not None:
            return Raw(b'{"state":"done",%b}' % record.outcome)
        return {"state": record.state.value}

    def close(self) -> None:
        """Give back what the store holds; idempotent."""
        if self._opened is not None:
            self._opened.close()


class ReadConnections:
    """Lends connections to the store of a ledger, which only read, to queries."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    def open(self) -> Any:
        """Lend one to a `def`, as a context manager."""
        return self._store.read()

    def open_async(self) -> Any:
        """Lend one to an `async def`, as an asynchronous context manager."""
        return self._store.read_async()

    @property
    def _store(self) -> "ReadableStore":
        from duet_rpc.ledger.stores.base import ReadableStore

        store = self._commands.ledger.store
        assert isinstance(store, ReadableStore), "its capabilities have said so"
        return store


def _call(job: Job, work: Callable[[Any], bytes], failure: Failure, run: "Run") -> "Ran":
    """Call a `def`, as the ledger does it."""
    transaction = run.transaction
    try:
        ran = _make_success(work(transaction))
    except BaseException as error:
        ran = _make_failure(failure(error, job))
    if transaction is not None and job.context is not None and job.context.cancelled:
        # No one waits any more, and nothing has happened yet that could not be undone.
        from asyncio import CancelledError

        raise CancelledError
    return ran


async def _call_async(
    job: Job, work: Callable[[Any], Awaitable[bytes]], failure: Failure, run: "Run"
) -> "Ran":
    """Call an `async def`, as the ledger does it."""
    try:
        return _make_success(await work(run.transaction))
    except BaseException as error:
        from asyncio import CancelledError, current_task

        task = current_task()
        if isinstance(error, CancelledError) and task is not None and task.cancelling():
            raise  # the ledger decides what that means for the command
        # One that no one sent us comes out of something that the handler waited for.
        return _make_failure(failure(error, job))


def store_words(service: Service, commands: Commands | None) -> dict[str, str]:
    """Say for the log where commands are remembered and how long; nothing if there are none."""
    if commands is None or commands.keeps is None:
        return {}
    if not any(method.kind is Kind.COMMAND for method in service):
        return {}
    store, keeps = commands.keeps
    return {"store": store, "remembers": keeps}


@cache
def _of_ledger() -> "tuple[Callable[..., bytes], type[Command], type[Ran]]":
    """Import, once, what every command needs: a command should not pay for it each time."""
    from duet_rpc.ledger.execution import Ran
    from duet_rpc.ledger.fingerprint import fingerprint
    from duet_rpc.ledger.states import Command

    return fingerprint, Command, Ran


def _command(job: Job) -> "Command":
    fingerprint, make, _ = _of_ledger()
    context, promise = job.context, job.method.promise
    assert context is not None and promise is not None, "prepared as a command"
    # Without a key of the caller's it cannot have been tried before.
    first_sent = None if job.key is None else context.first_sent
    return make(
        principal=context.principal,
        method=job.method.name,
        key=job.key if job.key is not None else _key_of_its_own(),
        fingerprint=job.fingerprint or fingerprint(job.method.name, job.params),
        promise=promise,
        correlation_id=_storable(context.correlation_id),
        age=0.0 if first_sent is None else time.monotonic() - first_sent,
        window=None if job.fingerprint is None else job.method.dedupe_window,
    )


def _replay(job: Job, member: bytes) -> bytes:
    """Note that the outcome is that of an earlier call, or of one beside this."""
    assert job.context is not None, "prepared as a command"
    job.context._is_replayed = True
    return member


def _refuse(error: Exception, job: Job, failure: Failure) -> NoReturn:
    """Raise the refusal of a command that could not begin; what kept it from that is logged."""
    if isinstance(error, RpcError) or job.has_begun:
        raise error
    logged = failure(error, job, "a command could not be started")
    detail = "the command could not be recorded; its handler has not run"
    reference = logged.data.get("reference") if isinstance(logged.data, dict) else None
    raise StoreUnavailable(data={"detail": detail, "reference": reference}) from None


def _key_of_its_own() -> str:
    """Name a transactional command that came without a key: it needs a transaction all the same."""
    return f"without-key-{os.urandom(16).hex()}"


def _storable(text: str) -> str:
    """Replace what no database takes, such as NUL or half a character; callers choose their ids."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


def _deadline(job: Job) -> float | None:
    return None if job.context is None else job.context.deadline


def _make_success(member: bytes) -> "Ran":
    _, _, ran = _of_ledger()
    return ran(member)


def _make_failure(error: Any) -> "Ran":
    from duet_rpc.ledger.execution import Ending, Ran

    ending = Ending.DECLARED
    if isinstance(error, InputRequired):
        ending = Ending.ASKED
    elif isinstance(error, ResultUnserializable):
        ending = Ending.UNSERIALIZABLE
    elif type(error) is InternalError:
        ending = Ending.FAILED
    return Ran(error_member(error), ending)
