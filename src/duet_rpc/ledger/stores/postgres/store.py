"""A store in PostgreSQL: shared by many machines, transactional, by the server's clock.

Operations are conditional statements: the common case is one round trip, and a group of them is one
pipelined transaction. What a statement leaves open (a claim that met a record, a fenced finish) is
read back and decided by `states`.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, finalize

import psycopg
from psycopg import errors

from duet_rpc.engine.steps import drive
from duet_rpc.errors import StoreUnavailable, UsageError
from duet_rpc.forks import renew_in_child
from duet_rpc.ledger.faults import CircuitBreaker, StoreFault, make_unavailable
from duet_rpc.ledger.states import (
    Answer,
    Busy,
    Claim,
    Claimed,
    Fenced,
    Identity,
    Kept,
    Operation,
    decide,
)
from duet_rpc.ledger.stores.base import (
    UNKNOWN_TTL,
    Capabilities,
    Decide,
    NotBegun,
    compare_and_swap,
)
from duet_rpc.ledger.stores.postgres.pipeline import PipelineConnection
from duet_rpc.ledger.stores.postgres.pool import (
    AsyncLentConnection,
    AsyncReadingConnection,
    LentConnection,
    LoopLimit,
    Pool,
    ReadingConnection,
    ServerSilent,
    ThreadLimit,
    connect_options,
    dispose,
    is_fault,
    make_refusal,
)
from duet_rpc.ledger.stores.postgres.reading import lend, take_back
from duet_rpc.ledger.stores.postgres.statements import (
    LOCK_UPKEEP,
    SQL,
    migrate,
    write_statement,
    write_swap,
)
from duet_rpc.ledger.stores.postgres.transaction import PostgresTransaction, begin
from duet_rpc.ledger.stores.sql import SqlStore, load_row
from duet_rpc.ledger.upkeep import Clocks

_OWN_CONNECTIONS = 4
_LONG = 10
"""How many timeouts a statement may take that goes over the whole table."""

T = TypeVar("T")
log: logging.Logger = logging.getLogger("duet_rpc.ledger")


class PostgresStore(SqlStore):
    """Records in a table `duet_commands` of a PostgreSQL database, beside those of the application.

    Up to `max_transactions` handlers are inside a transaction at a time, each with a connection,
    and as many queries have one that reads. The ledger's own work has a few connections apart, so
    that handlers cannot starve it. Handlers in threads get a `psycopg.Connection`, those on an
    event loop a `psycopg.AsyncConnection`.

    `timeout` is how long the server may take to answer; after that the store counts as unavailable
    until it answers again. A handler's own statement may take longer, as long as the server
    answers others.
    """

    keeps: tuple[str, str] = ("postgresql", "over restarts")
    sql = SQL

    capabilities: Capabilities = Capabilities(
        transactional=True,
        durable=True,
        note="as durable as the server's synchronous_commit and its standbys make it",
        connection="psycopg.Connection",
        async_connection="psycopg.AsyncConnection",
    )

    def __init__(self, url: str, *, max_transactions: int = 16, timeout: float = 5.0):
        if timeout <= 0:
            raise UsageError(f"timeout is {timeout!r}; give the seconds that a server may take")
        self._url = url.replace("postgres://", "postgresql://", 1)
        self._options = connect_options(self._url, timeout)
        self._max_transactions = max_transactions
        self._timeout = timeout
        self._lock = threading.Lock()
        self._is_ready = False
        self._breaker = CircuitBreaker(self._probe, fresh=timeout / 2)
        self._in_doubt: list[_InDoubt] = []
        renew_in_child(self, _lock=threading.Lock, _in_doubt=list)
        # Below the timeout: a lock that others hold is no silence.
        settings = f"; SET lock_timeout = {max(int(timeout * 800), 1)}"
        self._own = self._pool(
            partial(PipelineConnection.connect, client_encoding="utf8"),
            ThreadLimit(_OWN_CONNECTIONS),
            settings,
        )
        self._lent = self._pool(LentConnection.connect, ThreadLimit(max_transactions))
        self._reading = self._pool(ReadingConnection.connect, ThreadLimit(max_transactions))
        self._on_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[type, Pool]]
        self._on_loops = WeakKeyDictionary()

    def begin(self, claim: Claim, patience: float) -> PostgresTransaction | NotBegun:
        self._prepare()
        try:
            return drive(begin(self._lent, claim, patience))
        except errors.UndefinedTable:
            self._make_tables_again()
            return drive(begin(self._lent, claim, patience))

    async def begin_async(self, claim: Claim, patience: float) -> PostgresTransaction | NotBegun:
        if not self._is_ready:
            await asyncio.to_thread(self._prepare)
        pool = self._pool_on_loop(AsyncLentConnection)
        try:
            return await begin(pool, claim, patience)
        except errors.UndefinedTable:
            await asyncio.to_thread(self._make_tables_again)
            return await begin(pool, claim, patience)

    @contextlib.contextmanager
    def read(self) -> Iterator[psycopg.Connection[Any]]:
        """Lend a query a connection that cannot write; see `ReadableStore`."""
        connection = drive(lend(self._reading))
        try:
            yield connection
        finally:
            take_back(self._reading, connection)

    @contextlib.asynccontextmanager
    async def read_async(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """Do the same for an `async def`."""
        pool = self._pool_on_loop(AsyncReadingConnection)
        connection = await lend(pool)
        try:
            yield connection
        finally:
            take_back(pool, connection)

    def sweep(
        self, limit: int = 500, *, unknown_ttl: float = UNKNOWN_TTL, clocks: Clocks | None = None
    ) -> int:
        def step(connection: PipelineConnection) -> int:
            with connection.transaction():
                row = connection.execute(SQL.upkeep if clocks is None else LOCK_UPKEEP).fetchone()
                if row is None:
                    return 0
                return self._take_step(connection.execute, row, limit, unknown_ttl, clocks)

        return self._on_connection(step, timeouts=_LONG)

    def close(self) -> None:
        self._breaker.close()
        on_loops = [pool for pools in self._on_loops.values() for pool in pools.values()]
        for pool in (self._own, self._lent, self._reading, *on_loops):
            pool.close()

    def _pool_on_loop(self, kind: type[psycopg.AsyncConnection[Any]]) -> Pool:
        """Find the pool of the running loop, or make it."""
        loop = asyncio.get_running_loop()
        pools = self._on_loops.setdefault(loop, {})
        if kind not in pools:
            for ended in [each for each in self._on_loops if each.is_closed()]:
                for pool in self._on_loops.pop(ended).values():
                    pool.close()
            pools[kind] = self._pool(kind.connect, LoopLimit(self._max_transactions))
            # Connections do not outlive the loop that they were made on.
            finalize(loop, pools[kind].close)
        return pools[kind]

    def _pool(self, connect: Callable[..., Any], limit: Any, settings: str = "") -> Pool:
        connect = partial(connect, self._url, autocommit=True, **self._options)
        return Pool(connect, limit, self._breaker, self._timeout, settings)

    def _commit(self, operations: Sequence[Operation]) -> list[Answer | Exception]:
        try:
            return self._on_connection(partial(_apply, operations))
        except errors.LockNotAvailable:
            # A transactional run of the same command, by another release of the method.
            if len(operations) > 1:
                raise
            return [Busy(0.0) if isinstance(operations[0], Claim) else StoreUnavailable()]

    def _change(self, identity: Identity, decide: Decide) -> Answer:
        return self._on_connection(partial(_change, identity, decide))

    def _fetch(self, query: str, values: dict[str, Any], *, is_long: bool = False) -> list[Any]:
        return self._on_connection(
            lambda connection: connection.execute(query, values).fetchall(),
            timeouts=_LONG if is_long else 1,
        )

    def _on_connection(self, use: Callable[[PipelineConnection], T], *, timeouts: int = 1) -> T:
        self._prepare()
        try:
            return self._try_twice(use, timeouts)
        except errors.UndefinedTable:
            self._make_tables_again()
            return self._try_twice(use, timeouts)

    def _try_twice(self, use: Callable[[PipelineConnection], T], timeouts: int = 1) -> T:
        """Use a connection; once more if it fails, for it may have gone stale with a restart.

        Whatever is done on it bears that: an owner who claims or finishes again is known.
        """
        fault: BaseException | None = None
        for _ in range(2):
            connection = drive(self._own.take(self._timeout))
            connection.deadline = time.monotonic() + timeouts * self._timeout
            try:
                answer = use(connection)
            except ServerSilent as error:
                self._in_doubt.append(_InDoubt(connection))
                self._own.part()
                raise make_refusal(error) from error
            except BaseException as error:
                dispose(connection)
                self._own.give(connection)
                if isinstance(error, _WITH_A_MEANING) or not is_fault(error):
                    raise
                self._own.clear()
                fault = error
            else:
                self._own.give(connection)
                return answer
        assert fault is not None, "it failed twice"
        raise make_refusal(fault) from fault

    def _probe(self) -> None:
        """See whether the server answers, and has answered what it was asked before."""
        until = time.monotonic() + self._timeout / 2
        try:
            line = PipelineConnection.connect(
                self._url, autocommit=True, **connect_options(self._url, self._timeout / 2)
            )
        except psycopg.Error as error:
            raise make_refusal(error) from error
        try:
            line.deadline = until
            line.execute("SELECT 1")
        except psycopg.Error as error:
            raise make_refusal(error) from error
        finally:
            dispose(line)
        now = time.monotonic()
        for each in list(self._in_doubt):
            # A server that has been answering others for a whole timeout has long read what came.
            each.since = each.since or now
            if not each.line.drain(until) and now - each.since < self._timeout:
                raise make_unavailable(StoreFault.SILENT)
            dispose(each.line)
            self._in_doubt.remove(each)

    def _make_tables_again(self) -> None:
        self._is_ready = False
        self._prepare()
        log.warning("the store's tables were missing and have been made again, without records")

    def _prepare(self) -> None:
        if self._is_ready:
            return
        with self._lock:
            if not self._is_ready:
                self._try_twice(migrate)
                self._is_ready = True


class _InDoubt:
    """A connection whose statements may still take effect in a server that did not answer."""

    def __init__(self, line: PipelineConnection):
        self.line = line
        self.since: float | None = None
        """Since when the server answers others."""


_WITH_A_MEANING = (errors.LockNotAvailable, errors.UndefinedTable)
"""Errors of the server that the callers of a connection know what to do about."""


def _apply(
    operations: Sequence[Operation], connection: PipelineConnection
) -> list[Answer | Exception]:
    # In one order everywhere, so that the groups of two processes cannot deadlock.
    order = sorted(range(len(operations)), key=lambda index: operations[index].identity)
    tokens = connection.exchange([write_statement(operations[index]) for index in order])
    answers: list[Answer | Exception] = [Kept()] * len(operations)
    for index, token in zip(order, tokens, strict=True):
        operation = operations[index]
        if token is None:
            answers[index] = _settle(connection, operation)
        elif isinstance(operation, Claim):
            answers[index] = Claimed(int(token), 1)
    return answers


def _settle(connection: PipelineConnection, operation: Operation) -> Answer:
    """Answer an operation whose statement changed nothing: by what stands there instead."""
    identity = operation.identity
    if isinstance(operation, Claim):
        return _change(identity, partial(decide, operation), connection)
    [row] = connection.execute(SQL.load, identity._asdict()).fetchall()
    return Fenced(load_row(row)[0])


def _change(identity: Identity, decide: Decide, connection: PipelineConnection) -> Answer:
    values = identity._asdict()
    return compare_and_swap(
        lambda: load_row(connection.execute(SQL.load, values).fetchall()[0]),
        lambda found, kept, now: connection.execute(*write_swap(found, kept)).rowcount == 1,
        decide,
    )
