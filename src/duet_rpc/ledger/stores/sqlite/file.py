"""The SQLite file itself: how it is opened, migrated, read and written, row by row."""

import logging
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from duet_rpc.errors import StoreUnavailable, UsageError
from duet_rpc.ledger.faults import StoreFault, unavailable
from duet_rpc.ledger.states import ALWAYS, Claim, Identity, Operation, Record, must_have_record
from duet_rpc.ledger.stores.sql import (
    COLUMNS,
    IS_CUT_OFF,
    SELECT,
    UPKEEP,
    add_upkeep,
    from_row,
    schema,
    to_row,
)
from duet_rpc.ledger.upkeep import Drop, Shift, Upkeep

log = logging.getLogger("duet_rpc.ledger")

WAL_IS_SAFE_FROM = (3, 51, 3)
"""Before it, several writing processes can corrupt a file in WAL mode (the WAL-reset bug)."""

_MIGRATIONS = (
    (
        schema(blob="blob", integer="integer", real="real", suffix=" WITHOUT ROWID"),
        "CREATE INDEX duet_commands_expire ON duet_commands (expires_at)",
    ),
    add_upkeep(add="ADD COLUMN", real="real", now=":now"),
)
"""The statements that lead to each version of the schema; a released one is never edited."""

_SAME = "principal = ? AND method = ? AND key = ?"
_LOAD = f"{SELECT} WHERE {_SAME}"
_SAVE = f"INSERT OR REPLACE INTO duet_commands VALUES ({', '.join('?' * len(COLUMNS))})"
_DELETE = f"DELETE FROM duet_commands WHERE {_SAME}"
_UPKEEP = f"SELECT {', '.join(UPKEEP)} FROM duet_schema"
_SET_UPKEEP = f"UPDATE duet_schema SET ({', '.join(UPKEEP)}) = (?, ?, ?, ?, ?)"


def _some(where: str) -> str:
    """Write the condition for a bounded number of rows, found by the index on their end."""
    same = "principal, method, key"
    some = f"SELECT {same} FROM duet_commands WHERE {where} ORDER BY expires_at LIMIT :limit"
    return f"({same}) IN ({some})"


_OVER = _some("expires_at <= :now")
_CUT_OFF = f"""
    UPDATE duet_commands SET state = 'unknown', expires_at = :now + :unknown_ttl
    WHERE {_OVER} AND {IS_CUT_OFF}"""
_DROP = f"DELETE FROM duet_commands WHERE {_OVER} AND NOT {IS_CUT_OFF}"
_SHIFT = f"""
    UPDATE duet_commands SET expires_at = expires_at + :by
    WHERE {_some("expires_at > :after AND expires_at <= :until")}"""


class Patience:
    """How long to wait for the locks of other processes.

    A lock that was not let go within the whole time costs the next ones little of it: each tries,
    and one that succeeds has the others wait for the whole time again.
    """

    def __init__(self, seconds: float):
        self.full = self.seconds = seconds

    def lose(self) -> None:
        """Somebody waited in vain."""
        self.seconds = self.full / 50

    def recover(self) -> None:
        """Somebody got the lock."""
        self.seconds = self.full


def open_file(
    path: Path,
    timeout: float,
    clock: Callable[[], float],
    factory: type[sqlite3.Connection] = sqlite3.Connection,
) -> sqlite3.Connection:
    """Connect to a file whose tables are there and current. Transactions are begun by hand."""
    connection = sqlite3.connect(
        path, timeout=timeout, isolation_level=None, check_same_thread=False, factory=factory
    )
    try:
        _choose_journal(connection, timeout)
        _migrate(connection, clock)
    except BaseException:
        sqlite3.Connection.close(connection)
        raise
    return connection


def has_tables(connection: sqlite3.Connection) -> bool:
    """Tell whether our table is still there; others may have dropped it."""
    try:
        connection.execute("SELECT 1 FROM duet_commands LIMIT 0")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_ERROR:
            return False
        raise
    return True


def which(path: Path) -> tuple[int, int] | None:
    """Tell a file from one that has taken its place; None if there is none.

    A connection goes on with the file that it opened. To write there after the file was deleted or
    replaced is to write where no one will ever look.
    """
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def load(connection: sqlite3.Connection, identity: Identity) -> Record | None:
    """Read a record."""
    row = connection.execute(_LOAD, identity).fetchone()
    return None if row is None else from_row(row)


def save(connection: sqlite3.Connection, record: Record) -> None:
    """Write a record, in place of the one before it."""
    connection.execute(_SAVE, to_row(record))


def delete(connection: sqlite3.Connection, identity: Identity) -> None:
    """Remove a record."""
    connection.execute(_DELETE, identity)


def since_for(connection: sqlite3.Connection, operation: Operation) -> float:
    """Tell since when the file remembers, if the operation has to know."""
    if isinstance(operation, Claim) and must_have_record(operation):
        return load_upkeep(connection).since
    return ALWAYS


def load_upkeep(connection: sqlite3.Connection) -> Upkeep:
    """Read what the file keeps about itself."""
    return Upkeep(*connection.execute(_UPKEEP).fetchone())


def save_upkeep(connection: sqlite3.Connection, upkeep: Upkeep) -> None:
    """Write what the file keeps about itself."""
    values = (getattr(upkeep, name) for name in UPKEEP)
    connection.execute(_SET_UPKEEP, tuple(values))


def take_step(
    connection: sqlite3.Connection, step: Shift | Drop, now: float, limit: int, unknown_ttl: float
) -> int:
    """Take one step of a sweep; return how many rows it changed."""
    values = {"now": now, "limit": limit, "unknown_ttl": unknown_ttl}
    if isinstance(step, Shift):
        values |= {"after": step.after, "until": step.until, "by": step.by}
        return connection.execute(_SHIFT, values).rowcount
    cut_off = connection.execute(_CUT_OFF, values).rowcount
    return cut_off + connection.execute(_DROP, values | {"limit": limit - cut_off}).rowcount


def is_busy(error: BaseException) -> bool:
    """Tell whether somebody else holds a lock on the file."""
    return (
        isinstance(error, sqlite3.OperationalError)
        and error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
    )


def is_fault(error: BaseException) -> bool:
    """Tell a fault of the file (full, locked, damaged, gone) from a fault in what was asked."""
    wrong = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.ProgrammingError)
    return isinstance(error, sqlite3.DatabaseError) and not isinstance(error, wrong)


def refusal(error: BaseException) -> StoreUnavailable:
    """Say what a fault of the file means to a caller."""
    if isinstance(error, StoreUnavailable):
        return error
    code = getattr(error, "sqlite_errorcode", None)
    return unavailable(_FAULTS.get(code & 0xFF if code else -1, StoreFault.FAILED), error)


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
    # Whoever came first has done it by the time the lock is ours.
    version = _version(connection)
    if version > len(_MIGRATIONS):
        known = UsageError(f"it has schema {version}; this duet-rpc knows {len(_MIGRATIONS)}")
        raise unavailable(StoreFault.NEWER, known)
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
