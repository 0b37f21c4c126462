"""A store in one SQLite file, shared by any number of threads and processes of one machine.

The embedded default. A write takes the file's write lock (BEGIN IMMEDIATE), reads the record, lets
the machine decide and writes what it says: one lock, so no other process can come in between. The
threads of one process queue at a lock of their own first, because SQLite's own waiting is polling.

Every commit is synced to disk before it counts. Connections that met a fault are thrown away, so
that a disk that was full or a file that was locked leaves nothing behind.
"""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from duet_rpc.errors import StoreUnavailable, UsageError
from duet_rpc.forks import leave_to_parent, tell_in_child
from duet_rpc.ledger.faults import StoreFault, unavailable
from duet_rpc.ledger.states import (
    Answer,
    Claim,
    Decision,
    Identity,
    Kept,
    Operation,
    Record,
    State,
    as_seen,
    decide,
    decide_forget,
    decide_resolve,
)
from duet_rpc.ledger.stores.base import UNKNOWN_TTL, Capabilities, Counts, NotBegun
from duet_rpc.ledger.stores.sql import SELECT, alive, from_row, seen_state
from duet_rpc.ledger.stores.sqlite.bulk import IS_POSSIBLE, apply_together
from duet_rpc.ledger.stores.sqlite.file import (
    Patience,
    delete,
    has_tables,
    is_busy,
    is_fault,
    load,
    load_upkeep,
    open_file,
    refusal,
    save,
    save_upkeep,
    since_for,
    take_step,
    which,
)
from duet_rpc.ledger.stores.sqlite.transaction import HandlerTransactions, SqliteTransaction
from duet_rpc.ledger.upkeep import Clocks, Drop, Leave, after_step, plan_step


class SqliteStore:
    """Records in a table `duet_commands` of an SQLite file, beside the tables of the application.

    `timeout` is how long an operation waits for locks that other processes hold; after that the
    store counts as unavailable until they let go. `prepare` is called with each
    connection made for transactional handlers, to set pragmas or a row factory.
    """

    keeps = ("sqlite", "over restarts")

    capabilities = Capabilities(
        transactional=True,
        durable=True,
        note="for one machine; not on a network disk",
        connection="sqlite3.Connection",
        async_connection="sqlite3.Connection",
    )

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Callable[[], float] = time.time,
        timeout: float = 5.0,
        prepare: Callable[[sqlite3.Connection], object] | None = None,
    ):
        if str(path) in ("", ":memory:"):
            raise UsageError("an SQLite store needs a file; use MemoryStore to keep nothing")
        if timeout <= 0:
            raise UsageError(f"timeout is {timeout!r}; give the seconds to wait for others' locks")
        # The working directory may change later; the file must not change with it.
        self._path = Path(path).absolute()
        self._clock = clock
        self._patience = Patience(timeout)
        self._writing = threading.Lock()
        self._reading = threading.Lock()
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._written = self._read_from = which(self._path)
        self._prepare = prepare
        self._is_copy = False
        """Our parent was using the file when it forked, and this process cannot know its locks."""
        self._transactions = HandlerTransactions(
            self._path, clock, self._patience, prepare, self._writing
        )
        tell_in_child(self)

    def forked(self) -> None:
        """Begin without the parent's connections: SQLite's own must not be used by two processes.

        Nor can the file be used at all, if a thread of the parent was just doing so: SQLite counts
        its locks by process, and would count the parent's as ours.
        """
        self._is_copy = self._is_copy or self._writing.locked() or self._reading.locked()
        leave_to_parent(self._writer, self._reader, self._transactions)
        self._writer = self._reader = None
        self._writing, self._reading = threading.Lock(), threading.Lock()
        self._transactions = HandlerTransactions(
            self._path, self._clock, self._patience, self._prepare, self._writing
        )

    def _refuse_in_child(self) -> None:
        if self._is_copy:
            raise unavailable(StoreFault.LOCKED)

    @property
    def path(self) -> Path:
        """The file that holds it all."""
        return self._path

    def commit(self, operations: Sequence[Operation]) -> list[Answer | Exception]:
        """See `Store.commit`."""
        try:
            with self._write() as connection:
                if IS_POSSIBLE and len(operations) > 1:
                    answers = apply_together(connection, operations, self._clock())
                    if answers is not None:
                        return [*answers]
                return [self._apply(connection, operation) for operation in operations]
        except StoreUnavailable:
            raise
        except Exception as error:
            if len(operations) == 1:
                return [error]
            # One of them cannot be applied: find out which, and spare the others.
            return [answer for each in operations for answer in self.commit([each])]

    def look(self, identity: Identity, *, by_retry: bool = False) -> Record | None:
        """See `Store.look`."""
        with self._read() as connection:
            record = load(connection, identity)
        return None if record is None else as_seen(record, self._clock(), by_retry=by_retry)

    def since(self, ttl: float) -> tuple[float, float]:
        """See `Store.since`."""
        with self._read() as connection:
            return load_upkeep(connection).since, self._clock()

    def begin(self, claim: Claim, patience: float) -> SqliteTransaction | NotBegun:
        """Open a transaction for a handler; it keeps every other writer of the file waiting."""
        self._refuse_in_child()
        return self._transactions.begin(claim, patience)

    def records(self, state: State | None = None, limit: int = 100) -> list[Record]:
        """See `Store.records`."""
        now = self._clock()
        query = (
            f"{SELECT} WHERE {alive(':now')}"
            f" AND (:state IS NULL OR {seen_state(':now')} = :state)"
            " ORDER BY created_at LIMIT :limit"
        )
        values = {"now": now, "state": state.value if state else None, "limit": limit}
        with self._read() as connection:
            rows = connection.execute(query, values).fetchall()
        seen = [as_seen(from_row(row), now) for row in rows]
        return [record for record in seen if record is not None]

    def resolve(self, identity: Identity, outcome: bytes, ttl: float) -> bool:
        """See `Store.resolve`."""
        with self._write() as connection:
            found = load(connection, identity)
            decision = decide_resolve(found, outcome, self._clock(), ttl)
            return _keep(connection, identity, found, decision) == Kept()

    def forget(self, identity: Identity) -> bool:
        """See `Store.forget`."""
        with self._write() as connection:
            found = load(connection, identity)
            decision = decide_forget(found, self._clock())
            return _keep(connection, identity, found, decision) == Kept()

    def sweep(
        self, limit: int = 500, *, unknown_ttl: float = UNKNOWN_TTL, clocks: Clocks | None = None
    ) -> int:
        """See `Store.sweep`."""
        now = self._clock()
        with self._write() as connection:
            if clocks is None:
                return take_step(connection, Drop(), now, limit, unknown_ttl)
            upkeep = load_upkeep(connection)
            step = plan_step(upkeep, clocks, now)
            if isinstance(step, Leave):
                return 0
            changed = take_step(connection, step, now, limit, unknown_ttl)
            save_upkeep(connection, after_step(upkeep, clocks, step, now, changed == limit))
            return changed

    def counts(self) -> Counts:
        """See `Store.counts`."""
        query = (
            f"SELECT {seen_state(':now')} AS seen, count(*), min(created_at) FROM duet_commands"
            f" WHERE {alive(':now')} GROUP BY seen"
        )
        with self._read() as connection:
            rows = connection.execute(query, {"now": self._clock()}).fetchall()
        return Counts(
            **{state: number for state, number, _ in rows},
            **{f"oldest_{state}": since for state, _, since in rows if state != "done"},
        )

    def close(self) -> None:
        """See `Store.close`. Waits for a write that is running, not for a handler's transaction."""
        self._transactions.close()
        with self._reading:
            self._drop_reader()
        if self._writing.acquire(timeout=self._patience.full):
            try:
                self._drop_writer()
            finally:
                self._writing.release()

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        # A handler's transaction may hold the lock for longer than anybody should wait.
        if not self._writing.acquire(timeout=self._patience.full):
            raise unavailable(StoreFault.LOCKED)
        try:
            yield self._open_writer()
            assert self._writer is not None, "it is open"
            self._writer.execute("COMMIT")
        except BaseException as error:
            self._drop_writer()
            if is_fault(error):
                if is_busy(error):
                    self._patience.lose()
                raise refusal(error) from error
            raise
        finally:
            self._writing.release()

    def _open_writer(self) -> sqlite3.Connection:
        """Give the connection that writes, with the file's write lock taken."""
        self._refuse_in_child()
        for _ in range(2):
            if self._writer is not None and which(self._path) != self._written:
                self._drop_writer()
            if self._writer is None:
                self._writer = open_file(self._path, self._patience.seconds, self._clock)
                self._written = which(self._path)
            self._writer.execute("BEGIN IMMEDIATE")
            if self._patience.seconds < self._patience.full:
                self._patience.recover()
                self._writer.execute(f"PRAGMA busy_timeout = {int(self._patience.full * 1000)}")
            if has_tables(self._writer):
                return self._writer
            self._drop_writer()  # the next one makes them again
        raise unavailable(StoreFault.NO_TABLES)

    def _open_reader(self) -> sqlite3.Connection:
        self._refuse_in_child()
        for _ in range(2):
            if self._reader is not None and which(self._path) != self._read_from:
                self._drop_reader()
            if self._reader is None:
                self._reader = open_file(self._path, self._patience.seconds, self._clock)
                self._read_from = which(self._path)
            if has_tables(self._reader):
                return self._reader
            self._drop_reader()
        raise unavailable(StoreFault.NO_TABLES)

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        with self._reading:
            try:
                yield self._open_reader()
            except sqlite3.Error as error:
                self._drop_reader()
                if is_busy(error):
                    self._patience.lose()
                raise refusal(error) from error

    def _drop_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _drop_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _apply(self, connection: sqlite3.Connection, operation: Operation) -> Answer:
        found = load(connection, operation.identity)
        since = since_for(connection, operation)
        decision = decide(operation, found, self._clock(), since)
        return _keep(connection, operation.identity, found, decision)


def _keep(
    connection: sqlite3.Connection, identity: Identity, found: Record | None, decision: Decision
) -> Answer:
    if decision.record is None:
        if found is not None:
            delete(connection, identity)
    elif decision.record is not found:
        save(connection, decision.record)
    return decision.answer
