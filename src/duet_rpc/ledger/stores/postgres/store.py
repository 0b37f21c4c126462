"""A store in PostgreSQL: shared by many machines, transactional, by the server's clock.

Operations are conditional statements: the common case is one round trip, and a group of them is one
pipelined transaction. What a statement leaves open (a claim that met a record, a fenced finish) is
read back and decided by the machine.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, finalize

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict

from duet_rpc.errors import StoreUnavailable, UsageError
from duet_rpc.forks import renew_in_child
from duet_rpc.ledger.faults import CircuitBreaker, StoreFault, unavailable
from duet_rpc.ledger.states import (
    ALWAYS,
    Answer,
    Busy,
    Claim,
    Claimed,
    Decision,
    Fenced,
    Identity,
    Kept,
    Operation,
    Record,
    State,
    as_seen,
    decide_claim,
    decide_forget,
    decide_resolve,
    must_have_record,
)
from duet_rpc.ledger.stores.base import UNKNOWN_TTL, Capabilities, Counts, NotBegun
from duet_rpc.ledger.stores.postgres.pipeline import PipelineConnection
from duet_rpc.ledger.stores.postgres.pool import (
    AsyncLentConnection,
    LentConnection,
    Pool,
    ServerSilent,
    ThreadLimit,
    dispose,
    is_fault,
    refusal,
)
from duet_rpc.ledger.stores.postgres.statements import (
    CUT_OFF,
    DROP,
    LOAD,
    LOCK_UPKEEP,
    MIGRATIONS,
    NOW,
    PUT,
    SET_UPKEEP,
    SHIFT,
    SWAP,
    SWEEP,
    UPKEEP_NOW,
    drop_values,
    loaded,
    statement,
    swap_values,
)
from duet_rpc.ledger.stores.postgres.transaction import (
    PostgresTransaction,
    begin,
)
from duet_rpc.ledger.stores.sql import COLUMNS, UPKEEP, alive, seen_state, to_row
from duet_rpc.ledger.upkeep import Clocks, Drop, Leave, Shift, Upkeep, after_step, plan_step
from duet_rpc.ledger.waits import drive

_ADVISORY_LOCK = 0x64756574
"""Keeps two processes from migrating at once: "duet" as a number."""
_OWN_CONNECTIONS = 4
_LONG = 10
"""How many timeouts a statement may take that goes over the whole table."""

T = TypeVar("T")
log = logging.getLogger("duet_rpc.ledger")


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


class PostgresStore:
    """Records in a table `duet_commands` of a PostgreSQL database, beside those of the application.

    Up to `max_transactions` handlers are inside a transaction at a time, each with a connection;
    the ledger's own work has a few connections apart, so that handlers cannot starve it. Handlers
    in threads get a `psycopg.Connection`, those on an event loop a `psycopg.AsyncConnection`.

    `timeout` is how long the server may take to answer; after that the store counts as unavailable
    until it answers again. A handler's own statement may take longer, as long as the server
    answers others.
    """

    keeps = ("postgresql", "over restarts")

    capabilities = Capabilities(
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
        self._options = _options(self._url, timeout)
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
            self._connector(PipelineConnection, client_encoding="utf8"),
            ThreadLimit(_OWN_CONNECTIONS),
            settings,
        )
        self._lent = self._pool(self._connector(LentConnection), ThreadLimit(max_transactions))
        self._on_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, Pool] = WeakKeyDictionary()

    def commit(self, operations: Sequence[Operation]) -> list[Answer | Exception]:
        """See `Store.commit`."""
        # In one order everywhere, so that the groups of two processes cannot deadlock.
        order = sorted(range(len(operations)), key=lambda index: operations[index].identity)
        answers: dict[int, Answer | Exception] = {}
        group = [operations[index] for index in order]
        for index, answer in zip(order, self._commit(group), strict=True):
            answers[index] = answer
        return [answers[index] for index in range(len(operations))]

    def look(self, identity: Identity, *, by_retry: bool = False) -> Record | None:
        """See `Store.look`."""
        row = self._query(LOAD, identity)
        return as_seen(*loaded(row[0]), by_retry=by_retry) if row else None

    def since(self, ttl: float) -> tuple[float, float]:
        """See `Store.since`."""
        since, *_, now = self._query(UPKEEP_NOW, ())[0]
        return since, now

    def begin(self, claim: Claim, patience: float) -> PostgresTransaction | NotBegun:
        """See `Store.begin`."""
        self._prepare()
        try:
            return drive(begin(self._lent, claim, patience))
        except errors.UndefinedTable:
            self._make_tables_again()
            return drive(begin(self._lent, claim, patience))

    async def begin_async(self, claim: Claim, patience: float) -> PostgresTransaction | NotBegun:
        """See `Store.begin`."""
        if not self._is_ready:
            await asyncio.to_thread(self._prepare)
        loop = asyncio.get_running_loop()
        pool = self._on_loops.get(loop)
        if pool is None:
            for ended in [each for each in self._on_loops if each.is_closed()]:
                self._on_loops.pop(ended).close()
            limit = LoopLimit(self._max_transactions)
            pool = self._on_loops[loop] = self._pool(self._connector(AsyncLentConnection), limit)
            # Connections do not outlive the loop that they were made on.
            finalize(loop, pool.close)
        try:
            return await begin(pool, claim, patience)
        except errors.UndefinedTable:
            await asyncio.to_thread(self._make_tables_again)
            return await begin(pool, claim, patience)

    def records(self, state: State | None = None, limit: int = 100) -> list[Record]:
        """See `Store.records`."""
        query = (
            f"SELECT {', '.join(COLUMNS)}, {NOW} FROM duet_commands WHERE {alive(NOW)}"
            f" AND (%(state)s::text IS NULL OR {seen_state(NOW)} = %(state)s)"
            " ORDER BY created_at LIMIT %(limit)s"
        )
        values = {"state": state.value if state else None, "limit": limit}
        rows = self._query(query, values, timeouts=_LONG)
        seen = [as_seen(*loaded(row)) for row in rows]
        return [record for record in seen if record is not None]

    def resolve(self, identity: Identity, outcome: bytes, ttl: float) -> bool:
        """See `Store.resolve`."""
        answer = self._on_connection(
            lambda line: _change(
                line, identity, lambda found, now: decide_resolve(found, outcome, now, ttl)
            )
        )
        return answer == Kept()

    def forget(self, identity: Identity) -> bool:
        """See `Store.forget`."""
        answer = self._on_connection(lambda line: _change(line, identity, decide_forget))
        return answer == Kept()

    def sweep(
        self, limit: int = 500, *, unknown_ttl: float = UNKNOWN_TTL, clocks: Clocks | None = None
    ) -> int:
        """See `Store.sweep`."""
        return self._on_connection(
            lambda line: _sweep(line, limit, unknown_ttl, clocks), timeouts=_LONG
        )

    def counts(self) -> Counts:
        """See `Store.counts`."""
        query = (
            f"SELECT {seen_state(NOW)} AS seen, count(*), min(created_at) FROM duet_commands"
            f" WHERE {alive(NOW)} GROUP BY seen"
        )
        rows = self._query(query, (), timeouts=_LONG)
        return Counts(
            **{state: number for state, number, _ in rows},
            **{f"oldest_{state}": since for state, _, since in rows if state != "done"},
        )

    def close(self) -> None:
        """See `Store.close`."""
        self._breaker.close()
        for pool in (self._own, self._lent, *self._on_loops.values()):
            pool.close()

    def _connector(self, kind: Any, **more: Any) -> Callable[[], Any]:
        options = {**self._options, **more}
        return lambda: kind.connect(self._url, autocommit=True, **options)

    def _pool(self, connect: Callable[[], Any], limit: Any, settings: str = "") -> Pool:
        return Pool(connect, limit, self._breaker, self._timeout, settings)

    def _commit(self, operations: Sequence[Operation]) -> list[Answer | Exception]:
        try:
            return self._on_connection(lambda connection: _apply(connection, operations))
        except errors.LockNotAvailable:
            # A transactional run of the same command, by another release of the method.
            if len(operations) == 1:
                return [Busy(0.0) if isinstance(operations[0], Claim) else StoreUnavailable()]
        except StoreUnavailable:
            raise
        except Exception as error:
            if len(operations) == 1:
                return [error]
        # One of them cannot be applied: find out which, and spare the others.
        return [answer for each in operations for answer in self._commit([each])]

    def _query(self, query: str, values: Any, *, timeouts: int = 1) -> list[Any]:
        return self._on_connection(
            lambda line: line.execute(query, values).fetchall(), timeouts=timeouts
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
                raise refusal(error) from error
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
        raise refusal(fault) from fault

    def _probe(self) -> None:
        """See whether the server answers, and has answered what it was asked before."""
        until = time.monotonic() + self._timeout / 2
        try:
            line = PipelineConnection.connect(
                self._url, autocommit=True, **_options(self._url, self._timeout / 2)
            )
        except psycopg.Error as error:
            raise refusal(error) from error
        try:
            line.deadline = until
            line.execute("SELECT 1")
        except psycopg.Error as error:
            raise refusal(error) from error
        finally:
            dispose(line)
        now = time.monotonic()
        for each in list(self._in_doubt):
            # A server that has been answering others for a whole timeout has long read what came.
            each.since = each.since or now
            if not each.line.drain(until) and now - each.since < self._timeout:
                raise unavailable(StoreFault.SILENT)
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
                self._try_twice(_migrate)
                self._is_ready = True


class _InDoubt:
    """A connection whose statements may still take effect in a server that did not answer."""

    def __init__(self, line: PipelineConnection):
        self.line = line
        self.since: float | None = None
        """Since when the server answers others."""


_WITH_A_MEANING = (errors.LockNotAvailable, errors.UndefinedTable)
"""Errors of the server that the callers of a connection know what to do about."""


def _options(url: str, timeout: float) -> dict[str, Any]:
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


def _apply(line: PipelineConnection, operations: Sequence[Operation]) -> list[Answer | Exception]:
    tokens = line.exchange([statement(operation) for operation in operations])
    answers: list[Answer | Exception] = []
    for operation, token in zip(operations, tokens, strict=True):
        if token is None:
            answers.append(_settle(line, operation))
        else:
            answers.append(Claimed(int(token), 1) if isinstance(operation, Claim) else Kept())
    return answers


def _settle(line: PipelineConnection, operation: Operation) -> Answer:
    """Answer an operation whose statement changed nothing: by what stands there instead."""
    if isinstance(operation, Claim):
        since = ALWAYS
        if must_have_record(operation):
            [(since, *_)] = line.execute(UPKEEP_NOW).fetchall()
        decide = partial(decide_claim, operation, since=since)
        return _change(line, operation.identity, decide)
    row = line.execute(LOAD, operation.identity).fetchone()
    return Fenced(None if row is None else loaded(row)[0])


def _change(
    line: PipelineConnection, identity: Identity, decide: Callable[[Record | None, float], Decision]
) -> Answer:
    """Read, decide and write, again and again until nobody comes in between."""
    while True:
        row = line.execute(LOAD, identity).fetchone()
        found, now = loaded(row) if row is not None else (None, _now(line))
        answer, kept = decide(found, now)
        if kept is found:
            return answer
        if found is None:
            assert kept is not None, "nothing became something"
            cursor = line.execute(PUT, to_row(kept))
        elif kept is None:
            cursor = line.execute(DROP, drop_values(found))
        else:
            cursor = line.execute(SWAP, swap_values(found, kept))
        if cursor.rowcount == 1:
            return answer


def _sweep(line: PipelineConnection, limit: int, unknown_ttl: float, clocks: Clocks | None) -> int:
    if clocks is None:
        return _take_step(line, Drop(), _now(line), limit, unknown_ttl)
    with line.transaction():
        row = line.execute(LOCK_UPKEEP).fetchone()
        if row is None:
            return 0
        upkeep, now = Upkeep(*row[:-1]), row[-1]
        step = plan_step(upkeep, clocks, now)
        if isinstance(step, Leave):
            return 0
        changed = _take_step(line, step, now, limit, unknown_ttl)
        kept = after_step(upkeep, clocks, step, now, changed == limit)
        line.execute(SET_UPKEEP, [getattr(kept, name) for name in UPKEEP])
        return changed


def _take_step(
    line: PipelineConnection, step: Shift | Drop, now: float, limit: int, unknown_ttl: float
) -> int:
    values = {"now": now, "limit": limit, "unknown_ttl": unknown_ttl}
    if isinstance(step, Shift):
        values |= {"after": step.after, "until": step.until, "by": step.by}
        return line.execute(SHIFT, values).rowcount
    cut_off = line.execute(CUT_OFF, values).rowcount
    return cut_off + line.execute(SWEEP, values | {"limit": limit - cut_off}).rowcount


def _now(line: PipelineConnection) -> float:
    row = line.execute(f"SELECT {NOW}").fetchone()
    assert row is not None, "a clock always answers"
    now: float = row[0]
    return now


def _is_missing(line: PipelineConnection, table: str) -> bool:
    return line.execute("SELECT to_regclass(%s)", (table,)).fetchall() == [(None,)]


def _migrate(line: PipelineConnection) -> None:
    with line.transaction():
        line.execute("SELECT pg_advisory_xact_lock(%s)", (_ADVISORY_LOCK,))
        version = 0
        if _is_missing(line, "duet_schema"):
            line.execute("CREATE TABLE duet_schema (version integer NOT NULL)")
            line.execute("INSERT INTO duet_schema VALUES (0)")
            version = 1  # unless the other table is missing too
        else:
            [(version,)] = line.execute("SELECT version FROM duet_schema").fetchall()
        if version > len(MIGRATIONS):
            known = UsageError(f"it has schema {version}; this duet-rpc knows {len(MIGRATIONS)}")
            raise unavailable(StoreFault.NEWER, known)
        if _is_missing(line, "duet_commands"):
            version = 0  # dropped, whatever the version says
        for statements in MIGRATIONS[version:]:
            for each in statements:
                line.execute(each)
            line.execute("UPDATE duet_schema SET version = %s", (len(MIGRATIONS),))
