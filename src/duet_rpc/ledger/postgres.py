"""A store in PostgreSQL: shared by many machines, transactional, by the server's clock.

Operations are conditional statements: the common case is one round trip, and a group of them is one
pipelined transaction. What a statement leaves open (a claim that met a record, a fenced finish) is
read back and decided by the machine.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, finalize

from psycopg import errors

from ..errors import StoreUnavailable, UsageError
from .machine import (
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
)
from .postgres_line import Line
from .postgres_pool import AsyncGuest, Guest, Pool, ThreadGate, dispose, is_fault
from .postgres_rows import (
    DROP,
    LOAD,
    MIGRATIONS,
    NOW,
    PUT,
    SWAP,
    SWEEP,
    drop_values,
    loaded,
    statement,
    swap_values,
)
from .postgres_transaction import BlockingPostgresTransaction, PostgresTransaction, begin
from .rows import COLUMNS, seen_state, to_row
from .steps import drive
from .store import Capabilities, Counts, NotBegun

_ADVISORY_LOCK = 0x64756574
"""Keeps two processes from migrating at once: "duet" as a number."""
_OWN_CONNECTIONS = 4

T = TypeVar("T")


class LoopGate:
    """The gate of callers on one event loop; see `postgres_pool.Gate`."""

    def __init__(self, places: int):
        self._places = asyncio.Semaphore(places)

    async def enter(self, patience: float) -> bool:
        """See `Gate.enter`."""
        try:
            async with asyncio.timeout(max(patience, 0.001)):
                return await self._places.acquire()
        except TimeoutError:
            return False

    def leave(self) -> None:
        """See `Gate.leave`."""
        self._places.release()

    async def pause(self, seconds: float) -> None:
        """See `Gate.pause`."""
        await asyncio.sleep(seconds)


class PostgresStore:
    """Records in a table `duet_commands` of a PostgreSQL database, beside those of the application.

    Up to `max_transactions` handlers are inside a transaction at a time, each with a connection;
    the ledger's own work has a few connections apart, so that handlers cannot starve it. Handlers
    in threads get a `psycopg.Connection`, those on an event loop a `psycopg.AsyncConnection`.
    """

    capabilities = Capabilities(
        transactional=True,
        durable=True,
        note="as durable as the server's synchronous_commit and its standbys make it",
    )

    def __init__(self, url: str, *, max_transactions: int = 16, patience: float = 5.0):
        self._url = url.replace("postgres://", "postgresql://", 1)
        self._max_transactions = max_transactions
        self._patience = patience
        self._lock = threading.Lock()
        self._is_ready = False
        settings = f"; SET lock_timeout = {int(patience * 1000)}"
        self._own = Pool(
            self._connector(Line, client_encoding="utf8"), ThreadGate(_OWN_CONNECTIONS), settings
        )
        self._lent = Pool(self._connector(Guest), ThreadGate(max_transactions))
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

    def look(self, identity: Identity) -> Record | None:
        """See `Store.look`."""
        row = self._query(LOAD, identity)
        return as_seen(*loaded(row[0])) if row else None

    def begin(self, claim: Claim, patience: float) -> BlockingPostgresTransaction | NotBegun:
        """See `Store.begin`."""
        self._prepare()
        begun = drive(begin(self._lent, claim, patience))
        if isinstance(begun, PostgresTransaction):
            return BlockingPostgresTransaction(begun)
        return begun

    async def begin_async(self, claim: Claim, patience: float) -> PostgresTransaction | NotBegun:
        """See `Store.begin`."""
        if not self._is_ready:
            await asyncio.to_thread(self._prepare)
        loop = asyncio.get_running_loop()
        pool = self._on_loops.get(loop)
        if pool is None:
            for ended in [each for each in self._on_loops if each.is_closed()]:
                self._on_loops.pop(ended).close()
            gate = LoopGate(self._max_transactions)
            pool = self._on_loops[loop] = Pool(self._connector(AsyncGuest), gate)
            # Connections do not outlive the loop that they were made on.
            finalize(loop, pool.close)
        return await begin(pool, claim, patience)

    def records(self, state: State | None = None, limit: int = 100) -> list[Record]:
        """See `Store.records`."""
        query = (
            f"SELECT {', '.join(COLUMNS)}, {NOW} FROM duet_commands WHERE expires_at > {NOW}"
            f" AND (%(state)s::text IS NULL OR {seen_state(NOW)} = %(state)s)"
            " ORDER BY created_at LIMIT %(limit)s"
        )
        rows = self._query(query, {"state": state.value if state else None, "limit": limit})
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

    def sweep(self, limit: int = 500) -> int:
        """See `Store.sweep`."""
        return self._on_connection(lambda line: line.execute(SWEEP, (limit,)).rowcount)

    def counts(self) -> Counts:
        """See `Store.counts`."""
        query = (
            f"SELECT {seen_state(NOW)} AS seen, count(*), min(created_at) FROM duet_commands"
            f" WHERE expires_at > {NOW} GROUP BY seen"
        )
        rows = self._query(query, ())
        return Counts(
            **{state: number for state, number, _ in rows},
            **{f"oldest_{state}": since for state, _, since in rows if state != "done"},
        )

    def close(self) -> None:
        """See `Store.close`."""
        for pool in (self._own, self._lent, *self._on_loops.values()):
            pool.close()

    def _connector(self, kind: Any, **more: Any) -> Callable[[], Any]:
        return lambda: kind.connect(self._url, autocommit=True, connect_timeout=5, **more)

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

    def _query(self, query: str, values: Any) -> list[Any]:
        return self._on_connection(lambda line: line.execute(query, values).fetchall())

    def _on_connection(self, use: Callable[[Line], T]) -> T:
        self._prepare()
        return self._try_twice(use)

    def _try_twice(self, use: Callable[[Line], T]) -> T:
        """Use a connection; once more if it fails, for it may have gone stale with a restart.

        Whatever is done on it bears that: an owner who claims or finishes again is known.
        """
        fault: BaseException | None = None
        for _ in range(2):
            connection = drive(self._own.take(self._patience))
            try:
                return use(connection)
            except BaseException as error:
                dispose(connection)
                if isinstance(error, errors.LockNotAvailable) or not is_fault(error):
                    raise
                self._own.clear()
                fault = error
            finally:
                self._own.give(connection)
        raise StoreUnavailable() from fault

    def _prepare(self) -> None:
        if self._is_ready:
            return
        with self._lock:
            if not self._is_ready:
                self._try_twice(_migrate)
                self._is_ready = True


def _apply(line: Line, operations: Sequence[Operation]) -> list[Answer | Exception]:
    tokens = line.exchange([statement(operation) for operation in operations])
    answers: list[Answer | Exception] = []
    for operation, token in zip(operations, tokens, strict=True):
        if token is None:
            answers.append(_settle(line, operation))
        else:
            answers.append(Claimed(int(token), 1) if isinstance(operation, Claim) else Kept())
    return answers


def _settle(line: Line, operation: Operation) -> Answer:
    """Answer an operation whose statement changed nothing: by what stands there instead."""
    if isinstance(operation, Claim):
        return _change(line, operation.identity, partial(decide_claim, operation))
    row = line.execute(LOAD, operation.identity).fetchone()
    return Fenced(None if row is None else loaded(row)[0])


def _change(
    line: Line, identity: Identity, decide: Callable[[Record | None, float], Decision]
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


def _now(line: Line) -> float:
    row = line.execute(f"SELECT {NOW}").fetchone()
    assert row is not None, "a clock always answers"
    now: float = row[0]
    return now


def _migrate(line: Line) -> None:
    with line.transaction():
        line.execute("SELECT pg_advisory_xact_lock(%s)", (_ADVISORY_LOCK,))
        version = 0
        if line.execute("SELECT to_regclass('duet_schema')").fetchall() == [(None,)]:
            line.execute("CREATE TABLE duet_schema (version integer NOT NULL)")
            line.execute("INSERT INTO duet_schema VALUES (0)")
        else:
            [(version,)] = line.execute("SELECT version FROM duet_schema").fetchall()
        if version > len(MIGRATIONS):
            raise UsageError(
                f"the store has schema {version}; this duet-rpc knows {len(MIGRATIONS)}"
            )
        for statements in MIGRATIONS[version:]:
            for each in statements:
                line.execute(each)
            line.execute("UPDATE duet_schema SET version = %s", (len(MIGRATIONS),))
