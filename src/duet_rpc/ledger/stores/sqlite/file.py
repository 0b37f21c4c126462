"""The SQLite file itself: how it is opened, migrated, read and written, row by row."""

import logging
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from duet_rpc.errors import StoreUnavailable
from duet_rpc.ledger.faults import StoreFault, make_unavailable
from duet_rpc.ledger.states import Answer, Identity, Record
from duet_rpc.ledger.stores.base import Decide, Found
from duet_rpc.ledger.stores.sql import (
    COLUMNS,
    Statements,
    add_upkeep,
    load_row,
    refuse_newer,
    to_row,
    write_schema,
)

log: logging.Logger = logging.getLogger("duet_rpc.ledger")

WAL_IS_SAFE_FROM = (3, 51, 3)
"""Before it, several writing processes can corrupt a file in WAL mode (the WAL-reset bug)."""

_MIGRATIONS = (
    (
        write_schema(blob="blob", integer="integer", real="real", suffix=" WITHOUT ROWID"),
        "CREATE INDEX duet_commands_expire ON duet_commands (expires_at)",
    ),
    add_upkeep(add="ADD COLUMN", real="real", now=":now"),
)
"""The statements that lead to each version of the schema; a released one is never edited."""


def _some(where: str) -> str:
    same = "principal, method, key"
    some = f"SELECT {same} FROM duet_commands WHERE {where} ORDER BY expires_at LIMIT :limit"
    return f"({same}) IN ({some})"


SQL = Statements(now=":now", value=":{}".format, some=_some)
_SAVE = f"INSERT OR REPLACE INTO duet_commands VALUES ({', '.join('?' * len(COLUMNS))})"
_DELETE = f"DELETE FROM duet_commands WHERE {SQL.same}"

C = TypeVar("C", bound=sqlite3.Connection)


class Patience:
    """How long to wait for the locks of other processes.

    A lock that was not let go within the whole time costs the next ones little of it: each tries,
    and one that succeeds has the others wait for the whole time again.
    """

    def __init__(self, seconds: float):
        self.full: float = seconds
        self.seconds: float = seconds

    def lose(self) -> None:
        """Note that someone waited in vain."""
        self.seconds = self.full / 50

    def recover(self) -> None:
        """Note that someone got the lock."""
        self.seconds = self.full


class FileConnection(Generic[C]):
    """A connection to a file whose tables are there and current, made anew when need be.

    Transactions are begun by hand. `prepare` is called with each connection made.
    """

    def __init__(
        self,
        path: Path,
        clock: Callable[[], float],
        patience: Patience,
        kind: type[C],
        prepare: Callable[[C], object] = lambda connection: None,
    ):
        self._path = path
        self._clock = clock
        self._patience = patience
        self._kind = kind
        self._prepare = prepare
        self._file: tuple[int, int] | None = None
        self.connection: C | None = None

    def open(self, begin: Callable[[C], object] = lambda connection: None) -> C:
        """Give a connection on which `begin` has run."""
        for _ in range(2):
            if self.connection is not None and identify_file(self._path) != self._file:
                self.drop()
            if self.connection is None:
                self.connection = self._connect()
                self._file = identify_file(self._path)
            begin(self.connection)
            if has_tables(self.connection):
                return self.connection
            self.drop()  # the next one makes them again
        raise make_unavailable(StoreFault.NO_TABLES)

    def _connect(self) -> C:
        timeout = self._patience.seconds
        connection = sqlite3.connect(
            self._path,
            timeout=timeout,
            isolation_level=None,
            check_same_thread=False,
            factory=self._kind,
        )
        try:
            _choose_journal(connection, timeout)
            _migrate(connection, self._clock)
            self._prepare(connection)
        except BaseException:
            sqlite3.Connection.close(connection)
            raise
        return connection

    def drop(self) -> None:
        """Close the connection; the next use makes another. Idempotent."""
        if self.connection is not None:
            sqlite3.Connection.close(self.connection)
            self.connection = None


def has_tables(connection: sqlite3.Connection) -> bool:
    """Tell whether our tables are still there; others may have dropped them."""
    try:
        connection.execute("SELECT 1 FROM duet_commands, duet_schema LIMIT 0")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_ERROR:
            return False
        raise
    return True


def identify_file(path: Path) -> tuple[int, int] | None:
    """Tell a file from one that has taken its place; None if there is none.

    A connection goes on with the file that it opened. To write there after the file was deleted or
    replaced is to write where no one will ever look.
    """
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def load(connection: sqlite3.Connection, identity: Identity, now: float) -> Found:
    """Read a record, if there is one."""
    row = connection.execute(SQL.load, {**identity._asdict(), "now": now}).fetchone()
    return load_row(row)


def save(connection: sqlite3.Connection, record: Record) -> None:
    """Write a record, in place of the one before it."""
    connection.execute(_SAVE, to_row(record))


def change(
    connection: sqlite3.Connection, identity: Identity, decide: Decide, now: float
) -> Answer:
    """Read, decide and write, in a transaction that has the file's write lock."""
    found = load(connection, identity, now)
    answer, record = decide(*found)
    if record is None and found[0] is not None:
        connection.execute(_DELETE, identity._asdict())
    elif record is not None and record is not found[0]:
        save(connection, record)
    return answer


def is_busy(error: BaseException) -> bool:
    """Tell whether someone else holds a lock on the file."""
    return (
        isinstance(error, sqlite3.OperationalError)
        and error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
    )


def is_fault(error: BaseException) -> bool:
    """Tell a fault of the file (full, locked, damaged, gone) from a fault in what was asked."""
    wrong = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.ProgrammingError)
    return isinstance(error, sqlite3.DatabaseError) and not isinstance(error, wrong)


def make_refusal(error: BaseException, patience: Patience) -> StoreUnavailable:
    """Say what a fault of the file means to a caller; others have less patience with a lock."""
    if isinstance(error, StoreUnavailable):
        return error
    if is_busy(error):
        patience.lose()
    code = getattr(error, "sqlite_errorcode", None)
    return make_unavailable(_FAULTS.get(code & 0xFF if code else -1, StoreFault.FAILED), error)


_FAULTS = {
    sqlite3.SQLITE_BUSY: StoreFault.LOCKED,
    sqlite3.SQLITE_LOCKED: StoreFault.LOCKED,
    sqlite3.SQLITE_CANTOPEN: StoreFault.UNREACHABLE,
    sqlite3.SQLITE_ERROR: StoreFault.NO_TABLES,
    sqlite3.SQLITE_CORRUPT: StoreFault.DAMAGED,
    sqlite3.SQLITE_FULL: StoreFault.FULL,
    sqlite3.SQLITE_NOTADB: StoreFault.DAMAGED,
    sqlite3.SQLITE_PERM: StoreFault.FORBIDDEN,
    sqlite3.SQLITE_READONLY: StoreFault.READ_ONLY,
}


def _choose_journal(connection: sqlite3.Connection, timeout: float) -> None:
    mode = "WAL" if sqlite3.sqlite_version_info >= WAL_IS_SAFE_FROM else "TRUNCATE"
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")
    give_up = time.monotonic() + timeout
    while True:
        try:
            connection.execute(f"PRAGMA journal_mode = {mode}").fetchone()
            return
        except sqlite3.OperationalError as error:
            # Changing the mode needs the file alone and does not wait for it by itself.
            if not is_busy(error) or time.monotonic() > give_up:
                raise
            time.sleep(0.01)


def _migrate(connection: sqlite3.Connection, clock: Callable[[], float]) -> None:
    if _version(connection) == len(_MIGRATIONS):
        return
    connection.execute("BEGIN IMMEDIATE")
    # The process that came first has done it by the time the lock is ours.
    version = _version(connection)
    refuse_newer(version, len(_MIGRATIONS))
    if version == 0:
        connection.execute("DROP TABLE IF EXISTS duet_schema")
        connection.execute("CREATE TABLE duet_schema (version integer NOT NULL)")
        connection.execute("INSERT INTO duet_schema VALUES (0)")
        version = int(has_tables(connection))  # it may be that one of the two was dropped
    for statements in _MIGRATIONS[version:]:
        for statement in statements:
            connection.execute(statement, {"now": clock()} if ":now" in statement else ())
    connection.execute("UPDATE duet_schema SET version = ?", (len(_MIGRATIONS),))
    connection.execute("COMMIT")


def _version(connection: sqlite3.Connection) -> int:
    query = "SELECT name FROM sqlite_master WHERE name IN ('duet_schema', 'duet_commands')"
    found = {name for (name,) in connection.execute(query).fetchall()}
    if "duet_schema" not in found:
        return 0
    version: int = connection.execute("SELECT version FROM duet_schema").fetchone()[0]
    if "duet_commands" not in found and version <= len(_MIGRATIONS):
        log.warning("the store's tables were missing and are made again, without records")
        return 0
    return version
