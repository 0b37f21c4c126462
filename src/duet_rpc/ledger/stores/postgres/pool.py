"""Connections to PostgreSQL, for threads and for event loops, and what their faults mean.

The same few lines serve `psycopg.Connection` and `psycopg.AsyncConnection`: what one returns the
other returns as an awaitable, and `do` waits for it where there is something to wait for.
psycopg's own pool would keep callers waiting while the server is down; here a connection that
cannot be made is an error at once, and one that has gone stale with a restart of the server is
found out by its first use.

A server that has stopped answering is another matter: a socket says nothing about it. So all
waiting is bounded: our own statements have a deadline, and one of a handler, which may take as
long as it likes, has the store's `CircuitBreaker` ask whether the server is still there.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from duet_rpc.errors import StoreUnavailable, UsageError
from duet_rpc.forks import renew_in_child
from duet_rpc.ledger.faults import CircuitBreaker, StoreFault, make_unavailable
from duet_rpc.ledger.waits import do

T = TypeVar("T")

# A cluster that trades durability for speed would break the promise to answer only what is durable.
_DURABLE = (
    "SELECT set_config('synchronous_commit', 'on', false)"
    " WHERE current_setting('synchronous_commit') = 'off'"
)


def _refuse(*_: object, **__: object) -> NoReturn:
    raise UsageError(
        "the transaction of a transactional command is the ledger's: it commits when the handler"
        " returns and rolls back when it raises; `with connection.transaction():` nests inside"
    )


class ServerSilent(psycopg.OperationalError):
    """The server did not answer in time; what was sent may still take effect."""


class BoundedConnection:
    """A connection that does not wait for a server that has stopped answering."""

    deadline: float | None = None
    """When (monotonic) the server must have answered; None while a handler has the connection."""
    breaker: CircuitBreaker | None = None
    patience: float = 0.0
    """How long a statement may take before the breaker is asked about the server."""

    if not TYPE_CHECKING:  # which sees that of the driver, blocking or not

        def wait(self, generator: Any, *args: Any, **options: Any) -> Any:
            """Wait for the server as psycopg does, but not for ever."""
            return super().wait(self._bound_wait(generator), *args, **options)

    def lost(self) -> ServerSilent:
        """Make the error of a server that did not answer, and have the others warned."""
        if self.breaker is not None:
            self.breaker.lost()
        return ServerSilent("the server did not answer in time")

    def _bound_wait(self, generator: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
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
        if self.breaker is not None and now - began >= self.patience and self.breaker.ask():
            dispose(self)  # an open transaction ends with it, whatever the handler does next
            raise ServerSilent("the server has stopped answering")


class LentConnection(BoundedConnection, psycopg.Connection[Any]):
    """A connection whose transaction is the ledger's."""

    commit: Callable[..., NoReturn] = _refuse
    rollback: Callable[..., NoReturn] = _refuse
    close: Callable[..., NoReturn] = _refuse


class AsyncLentConnection(BoundedConnection, psycopg.AsyncConnection[Any]):
    """The same for an event loop."""

    commit: Callable[..., NoReturn] = _refuse
    rollback: Callable[..., NoReturn] = _refuse
    close: Callable[..., NoReturn] = _refuse


class ReadingConnection(BoundedConnection, psycopg.Connection[Any]):
    """A connection that is lent to queries."""


class AsyncReadingConnection(BoundedConnection, psycopg.AsyncConnection[Any]):
    """The same for an event loop."""


class ThreadLimit:
    """Bounds how many connections threads have at a time."""

    def __init__(self, places: int):
        self._places = threading.BoundedSemaphore(places)
        renew_in_child(self, _places=lambda: threading.BoundedSemaphore(places))

    async def enter(self, patience: float) -> bool:
        """Wait for a place; False if none was free in time."""
        return self._places.acquire(timeout=max(patience, 0.0))

    def leave(self) -> None:
        """Give a place back."""
        self._places.release()

    async def pause(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)  # noqa: ASYNC251  # no event loop is near: `drive` runs this


class LoopLimit:
    """Bounds how many connections an event loop has at a time; see `ThreadLimit`."""

    def __init__(self, places: int):
        self._places = asyncio.Semaphore(places)

    async def enter(self, patience: float) -> bool:
        try:
            async with asyncio.timeout(max(patience, 0.001)):
                return await self._places.acquire()
        except TimeoutError:
            return False

    def leave(self) -> None:
        self._places.release()

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Pool:
    """Idle connections, the freshest on top."""

    def __init__(
        self,
        connect: Callable[[], Any],
        limit: ThreadLimit | LoopLimit,
        breaker: CircuitBreaker,
        timeout: float,
        settings: str = "",
    ):
        self._connect = connect
        self._settings = settings
        self._breaker = breaker
        self.timeout = timeout
        self.idle: list[Any] = []
        renew_in_child(self, idle=list)  # parent and child would read each other's answers
        self._closed = False
        self.limit = limit

    async def take(self, patience: float) -> Any:
        """Take a connection, idle or new. Raises `StoreUnavailable`.

        Its `deadline` is one timeout from now.
        """
        self._breaker.admit()
        if not await self.limit.enter(patience):
            raise make_unavailable(StoreFault.EXHAUSTED)
        try:
            self._breaker.admit()
            self._closed = False
            while self.idle:
                connection = self.idle.pop()
                if not connection.closed:
                    connection.deadline = time.monotonic() + self.timeout
                    return connection
            return await self._make()
        except BaseException:
            self.limit.leave()
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
        self.limit.leave()

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
        """Let go of a connection that someone else will see to."""
        self.limit.leave()

    async def _make(self) -> Any:
        try:
            connection = await do(self._connect())
        except psycopg.Error as error:
            if isinstance(error, _CONNECT_TIMEOUT):
                self._breaker.lost()
            raise make_refusal(error) from error
        connection.breaker = self._breaker
        connection.patience = self.timeout / 2
        connection.deadline = time.monotonic() + self.timeout
        try:
            await do(connection.execute(_DURABLE + self._settings))
        except BaseException as error:
            dispose(connection)
            if isinstance(error, psycopg.Error):
                raise make_refusal(error) from error
            raise
        return connection


def connect_options(url: str, timeout: float) -> dict[str, Any]:
    """Say how long a connection may take, and a network swallow what we send."""
    try:
        given = conninfo_to_dict(url)
    except psycopg.Error:
        # Its text quotes the URL, and may hold a password.
        raise UsageError("this is no PostgreSQL URL; write postgresql://user@host/db") from None
    seconds = max(int(timeout), 2)  # the least that libpq takes
    options = {
        "connect_timeout": seconds,
        "tcp_user_timeout": int(timeout * 1000),
        "keepalives_idle": seconds * 6,
        "keepalives_interval": seconds,
        "keepalives_count": 3,
    }
    return {name: value for name, value in options.items() if name not in given}


def dispose(connection: Any) -> None:
    """Drop a connection at once; the server rolls back what was open."""
    connection.pgconn.finish()


def is_fault(error: BaseException) -> bool:
    """Tell a fault of the server, the line or the tables from a fault in the values sent."""
    values = psycopg.DataError | psycopg.IntegrityError
    return isinstance(error, psycopg.Error) and not isinstance(error, values)


def make_refusal(error: BaseException) -> StoreUnavailable:
    """Say what a fault means to a caller."""
    return make_unavailable(_fault_of(error), error)


def _fault_of(error: BaseException) -> StoreFault:
    if isinstance(error, ServerSilent | _CONNECT_TIMEOUT):
        return StoreFault.SILENT
    state = getattr(error, "sqlstate", None)
    if state is None:
        return StoreFault.UNREACHABLE
    return _FAULTS.get(state) or _FAULTS.get(state[:2]) or StoreFault.FAILED


_CONNECT_TIMEOUT: type[psycopg.Error] = errors.ConnectionTimeout
_FAULTS = {
    "08": StoreFault.UNREACHABLE,
    "25006": StoreFault.READ_ONLY,
    "28": StoreFault.FORBIDDEN,
    "3D000": StoreFault.UNREACHABLE,
    "3F": StoreFault.NO_TABLES,
    "42501": StoreFault.FORBIDDEN,
    "42P01": StoreFault.NO_TABLES,
    "42703": StoreFault.NO_TABLES,
    "53": StoreFault.UNREACHABLE,
    "53100": StoreFault.FULL,
    "55P03": StoreFault.LOCKED,
    "57": StoreFault.UNREACHABLE,
    "XX001": StoreFault.DAMAGED,
    "XX002": StoreFault.DAMAGED,
}
"""Faults by the server's code, or by the class of it."""
