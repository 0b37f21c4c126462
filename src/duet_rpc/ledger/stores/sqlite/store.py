"""A store in one SQLite file, shared by any number of threads and processes of one machine.

The embedded default. A write takes the file's write lock (BEGIN IMMEDIATE), reads the record, lets
`states` decide and writes what it says: one lock, so no other process can come in between. The
threads of one process queue at a lock of their own first, because SQLite's own waiting is polling.

Every commit is synced to disk before it counts. Connections that met a fault are thrown away, so
that a disk that was full or a file that was locked leaves nothing behind.
"""

import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from duet_rpc.errors import UsageError
from duet_rpc.forks import leave_to_parent, tell_in_child
from duet_rpc.ledger.faults import StoreFault, make_unavailable
from duet_rpc.ledger.states import Answer, Claim, Identity, Operation, decide
from duet_rpc.ledger.stores.base import UNKNOWN_TTL, Capabilities, Decide, NotBegun
from duet_rpc.ledger.stores.sql import SqlStore
from duet_rpc.ledger.stores.sqlite.bulk import IS_POSSIBLE, apply_together
from duet_rpc.ledger.stores.sqlite.file import (
    SQL,
    FileConnection,
    Patience,
    change,
    is_fault,
    make_refusal,
)
from duet_rpc.ledger.stores.sqlite.reading import ReadConnection, ReadPool
from duet_rpc.ledger.stores.sqlite.transaction import HandlerTransactions, SqliteTransaction
from duet_rpc.ledger.upkeep import Clocks


class SqliteStore(SqlStore):
    """Records in a table `duet_commands` of an SQLite file, beside the tables of the application.

    `timeout` is how long an operation waits for locks that other processes hold; after that the
    store counts as unavailable until they let go. `prepare` is called with each
    connection made for handlers, transactional or reading, to set pragmas or a row factory.
    """

    keeps: tuple[str, str] = ("sqlite", "over restarts")
    sql = SQL

    capabilities: Capabilities = Capabilities(
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
        self._prepare = prepare
        self._is_copy = False
        """Our parent was using the file when it forked, and this process cannot know its locks."""
        self._set_up()
        tell_in_child(self)

    def _set_up(self) -> None:
        """Make what belongs to one process: its locks and its connections."""
        self._writing, self._reading = threading.Lock(), threading.Lock()
        self._writer = self._connection()
        self._reader = self._connection()
        self._transactions = HandlerTransactions(
            self._path, self._clock, self._patience, self._prepare, self._writing
        )
        make = partial(ReadConnection, self._path, self._clock, self._patience, self._prepare)
        self._readers = ReadPool(make, self._patience)

    def _connection(self) -> FileConnection[sqlite3.Connection]:
        return FileConnection(self._path, self._clock, self._patience, sqlite3.Connection)

    def forked(self) -> None:
        """Begin without the parent's connections: SQLite's own must not be used by two processes.

        Nor can the file be used at all, if a thread of the parent was just doing so: SQLite counts
        its locks by process, and would count the parent's as ours.
        """
        self._is_copy = self._is_copy or self._writing.locked() or self._reading.locked()
        leave_to_parent(self._writer, self._reader, self._transactions, self._readers)
        self._set_up()

    def _refuse_in_child(self) -> None:
        if self._is_copy:
            raise make_unavailable(StoreFault.LOCKED)

    @property
    def path(self) -> Path:
        """The file that holds it all."""
        return self._path

    def begin(self, claim: Claim, patience: float) -> SqliteTransaction | NotBegun:
        """Open a transaction for a handler; it keeps every other writer of the file waiting."""
        self._refuse_in_child()
        return self._transactions.begin(claim, patience)

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Lend a query a connection that cannot write; it keeps no one waiting."""
        self._refuse_in_child()
        with self._readers.lend() as connection:
            yield connection

    @asynccontextmanager
    async def read_async(self) -> AsyncIterator[sqlite3.Connection]:
        """Do the same for an `async def`, whose statements block its event loop."""
        with self.read() as connection:
            yield connection

    def sweep(
        self, limit: int = 500, *, unknown_ttl: float = UNKNOWN_TTL, clocks: Clocks | None = None
    ) -> int:
        with self._write() as connection:
            row = connection.execute(SQL.upkeep, {"now": self._clock()}).fetchone()
            return self._take_step(connection.execute, row, limit, unknown_ttl, clocks)

    def close(self) -> None:
        """See `Store.close`. Waits for a write that is running, not for a handler's transaction."""
        self._transactions.close()
        self._readers.close()
        with self._reading:
            self._reader.drop()
        if self._writing.acquire(timeout=self._patience.full):
            self._writer.drop()
            self._writing.release()

    def _commit(self, operations: Sequence[Operation]) -> list[Answer | Exception]:
        with self._write() as connection:
            if IS_POSSIBLE and len(operations) > 1:
                answers = apply_together(connection, operations, self._clock())
                if answers is not None:
                    return [*answers]
            return [
                change(connection, each.identity, partial(decide, each), self._clock())
                for each in operations
            ]

    def _change(self, identity: Identity, decide: Decide) -> Answer:
        with self._write() as connection:
            return change(connection, identity, decide, self._clock())

    def _fetch(self, query: str, values: dict[str, Any], *, is_long: bool = False) -> list[Any]:
        with self._reading:
            try:
                self._refuse_in_child()
                connection = self._reader.open()
                return connection.execute(query, {**values, "now": self._clock()}).fetchall()
            except sqlite3.Error as error:
                self._reader.drop()
                raise make_refusal(error, self._patience) from error

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        # A handler's transaction may hold the lock for longer than anyone should wait.
        if not self._writing.acquire(timeout=self._patience.full):
            raise make_unavailable(StoreFault.LOCKED)
        try:
            self._refuse_in_child()
            connection = self._writer.open(self._lock_file)
            yield connection
            connection.execute("COMMIT")
        except BaseException as error:
            self._writer.drop()
            if is_fault(error):
                raise make_refusal(error, self._patience) from error
            raise
        finally:
            self._writing.release()

    def _lock_file(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        if self._patience.seconds < self._patience.full:
            self._patience.recover()
            connection.execute(f"PRAGMA busy_timeout = {int(self._patience.full * 1000)}")
