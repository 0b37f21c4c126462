"""Connections to PostgreSQL, for threads and for event loops, and what their faults mean.

The same few lines serve `psycopg.Connection` and `psycopg.AsyncConnection`: what one returns the
other returns as an awaitable, and `do` waits for it where there is something to wait for.
psycopg's own pool would keep callers waiting while the server is down; here a connection that
cannot be made is an error at once, and one that has gone stale with a restart of the server is
found out by its first use.
"""

import contextlib
import inspect
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, Protocol, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from ..errors import StoreUnavailable, UsageError
from .forks import forget_in_children

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


class Guest(psycopg.Connection[Any]):
    """A connection whose transaction belongs to somebody else."""

    commit = rollback = close = _refuse


class AsyncGuest(psycopg.AsyncConnection[Any]):
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

    def __init__(self, connect: Callable[[], Any], gate: Gate, settings: str = ""):
        self._connect = connect
        self._settings = settings
        self.idle: list[Any] = []
        forget_in_children(self)
        self._closed = False
        self.gate = gate

    async def take(self, patience: float) -> Any:
        """Take a connection, idle or new. Raises `StoreUnavailable`."""
        if not await self.gate.enter(patience):
            raise StoreUnavailable()
        try:
            self._closed = False
            while self.idle:
                connection = self.idle.pop()
                if not connection.closed:
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

    async def _make(self) -> Any:
        try:
            connection = await do(self._connect())
        except psycopg.OperationalError as error:
            raise StoreUnavailable() from error
        try:
            await do(connection.execute(_DURABLE + self._settings))
        except BaseException as error:
            dispose(connection)
            if is_fault(error):
                raise StoreUnavailable() from error
            raise
        return connection


def dispose(connection: Any) -> None:
    """Drop a connection at once; the server rolls back what was open."""
    connection.pgconn.finish()


def is_fault(error: BaseException) -> bool:
    """Tell a fault of the server or the line from a fault in what was asked."""
    return isinstance(
        error, psycopg.OperationalError | psycopg.InterfaceError | psycopg.InternalError
    )
