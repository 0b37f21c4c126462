"""Connections to PostgreSQL, for threads and for event loops, and what their faults mean.

The same few lines serve `psycopg.Connection` and `psycopg.AsyncConnection`: what one returns the
other returns as an awaitable, and `do` waits for it where there is something to wait for.
psycopg's own pool would keep callers waiting while the server is down; here a connection that
cannot be made is an error at once, and one that has gone stale with a restart of the server is
found out by its first use.

A server that has stopped answering is another matter: a socket says nothing about it. So all
waiting is `Watched`: our own statements have a deadline, and one of a handler, which may take as
long as it likes, has the store's `Watch` ask whether the server is still there.
"""

import contextlib
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

import psycopg
from psycopg import errors
from psycopg.pq import TransactionStatus

from duet_rpc.errors import StoreUnavailable, UsageError
from duet_rpc.forks import renew_in_child
from duet_rpc.ledger.faults import Fault, Watch, unavailable
from duet_rpc.ledger.stores.forks import forget_in_children

T = TypeVar("T")

# A cluster that trades durability for speed would break the promise to answer only what is durable.
_DURABLE = (
    "SELECT set_config('synchronous_commit', 'on', false)"
    " WHERE current_setting('synchronous_commit') = 'off'"
)


async def do(value: Awaitable[T] | T) -> T:
    """Wait for what an asynchronous connection returns; hand on what a blocking one does."""
    if inspect.isawaitable(value):
        return await value
    return value


def _refuse(*_: object, **__: object) -> NoReturn:
    raise UsageError(
        "the transaction of a transactional command is the ledger's: it commits when the handler"
        " returns and rolls back when it raises; `with connection.transaction():` nests inside"
    )


class ServerSilent(psycopg.OperationalError):
    """The server did not answer in time; what was sent may still take effect."""


class Watched:
    """A connection that does not wait for a server that has stopped answering."""

    deadline: float | None = None
    """When (monotonic) the server must have answered; None while a handler has the connection."""
    watch: Watch | None = None
    patience = 0.0
    """How long a statement may take before the watch is asked about the server."""

    if not TYPE_CHECKING:  # which sees that of the driver, blocking or not

        def wait(self, generator: Any, *args: Any, **options: Any) -> Any:
            """Wait for the server as psycopg does, but not for ever."""
            return super().wait(self._bounded(generator), *args, **options)

    def lost(self) -> ServerSilent:
        """Make the error of a server that did not answer, and have the others warned."""
        if self.watch is not None:
            self.watch.lost()
        return ServerSilent("the server did not answer in time")

    def _bounded(self, generator: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        began = time.monotonic()
        try:
            wanted = next(generator)
            while True:
                ready = yield wanted
                if not ready:  # psycopg looks up several times a second
                    self._look_at_clock(began)
                wanted = generator.send(ready)
        except StopIteration as end:
            value: T = end.value
            return value

    def _look_at_clock(self, began: float) -> None:
        now = time.monotonic()
        if self.deadline is not None and now >= self.deadline:
            raise self.lost()
        if self.watch is not None and now - began >= self.patience and self.watch.ask():
            dispose(self)  # an open transaction ends with it, whatever the handler does next
            raise ServerSilent("the server has stopped answering")


class Guest(Watched, psycopg.Connection[Any]):
    """A connection whose transaction belongs to somebody else."""

    commit = rollback = close = _refuse


class AsyncGuest(Watched, psycopg.AsyncConnection[Any]):
    """The same for an event loop."""

    commit = rollback = close = _refuse


AnyConnection = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]


class Gate(Protocol):
    """Bounds how many connections are out at a time, and waits."""

    async def enter(self, patience: float) -> bool:
        """Wait for a place; False if none was free in time."""

    def leave(self) -> None:
        """Give a place back."""

    async def pause(self, seconds: float) -> None:
        """Wait."""


class ThreadGate:
    """The gate of callers that block."""

    def __init__(self, places: int):
        self._places = threading.BoundedSemaphore(places)
        renew_in_child(self, _places=lambda: threading.BoundedSemaphore(places))

    async def enter(self, patience: float) -> bool:
        """See `Gate.enter`."""
        return self._places.acquire(timeout=max(patience, 0.0))

    def leave(self) -> None:
        """See `Gate.leave`."""
        self._places.release()

    async def pause(self, seconds: float) -> None:
        """See `Gate.pause`."""
        time.sleep(seconds)  # noqa: ASYNC251  # no event loop is near: `drive` runs this


class Pool:
    """Idle connections, the freshest on top."""

    def __init__(
        self,
        connect: Callable[[], Any],
        gate: Gate,
        watch: Watch,
        timeout: float,
        settings: str = "",
    ):
        self._connect = connect
        self._settings = settings
        self._watch = watch
        self.timeout = timeout
        self.idle: list[Any] = []
        forget_in_children(self)
        self._closed = False
        self.gate = gate

    async def take(self, patience: float) -> Any:
        """Take a connection, idle or new. Raises `StoreUnavailable`.

        Its `deadline` is one timeout from now.
        """
        self._watch.admit()
        if not await self.gate.enter(patience):
            raise unavailable(Fault.EXHAUSTED)
        try:
            self._watch.admit()
            self._closed = False
            while self.idle:
                connection = self.idle.pop()
                if not connection.closed:
                    connection.deadline = time.monotonic() + self.timeout
                    return connection
            return await self._make()
        except BaseException:
            self.gate.leave()
            raise

    def give(self, connection: Any) -> None:
        """Give a connection back; one that is not idle has met a fault and is thrown away."""
        idle = not connection.closed and (
            connection.info.transaction_status is TransactionStatus.IDLE
        )
        if idle and not self._closed:
            self.idle.append(connection)
        else:
            dispose(connection)
        self.gate.leave()

    def clear(self) -> None:
        """Throw the idle connections away: after one went stale, so have the others."""
        while self.idle:
            with contextlib.suppress(IndexError):
                dispose(self.idle.pop())

    def close(self) -> None:
        """Close what is idle, and what is out when it comes back."""
        self._closed = True
        self.clear()

    def part(self) -> None:
        """Let go of a connection that somebody else will see to."""
        self.gate.leave()

    async def _make(self) -> Any:
        try:
            connection = await do(self._connect())
        except psycopg.Error as error:
            if isinstance(error, _CONNECT_TIMEOUT):
                self._watch.lost()
            raise refusal(error) from error
        connection.watch = self._watch
        connection.patience = self.timeout / 2
        connection.deadline = time.monotonic() + self.timeout
        try:
            await do(connection.execute(_DURABLE + self._settings))
        except BaseException as error:
            dispose(connection)
            if isinstance(error, psycopg.Error):
                raise refusal(error) from error
            raise
        return connection


def dispose(connection: Any) -> None:
    """Drop a connection at once; the server rolls back what was open."""
    connection.pgconn.finish()


def is_fault(error: BaseException) -> bool:
    """Tell a fault of the server, the line or the tables from a fault in the values sent."""
    values = psycopg.DataError | psycopg.IntegrityError
    return isinstance(error, psycopg.Error) and not isinstance(error, values)


def refusal(error: BaseException) -> StoreUnavailable:
    """Say what a fault means to a caller."""
    return unavailable(_fault_of(error), error)


def _fault_of(error: BaseException) -> Fault:
    if isinstance(error, ServerSilent | _CONNECT_TIMEOUT):
        return Fault.SILENT
    state = getattr(error, "sqlstate", None)
    if state is None:
        return Fault.UNREACHABLE
    return _FAULTS.get(state) or _FAULTS.get(state[:2]) or Fault.FAILED


_CONNECT_TIMEOUT: type[psycopg.Error] = errors.ConnectionTimeout
_FAULTS = {
    "08": Fault.UNREACHABLE,
    "25006": Fault.READ_ONLY,
    "28": Fault.FORBIDDEN,
    "3D000": Fault.UNREACHABLE,
    "3F": Fault.NO_TABLES,
    "42501": Fault.FORBIDDEN,
    "42P01": Fault.NO_TABLES,
    "42703": Fault.NO_TABLES,
    "53": Fault.UNREACHABLE,
    "53100": Fault.FULL,
    "55P03": Fault.LOCKED,
    "57": Fault.UNREACHABLE,
    "XX001": Fault.DAMAGED,
    "XX002": Fault.DAMAGED,
}
"""Faults by the server's code, or by the class of it."""
