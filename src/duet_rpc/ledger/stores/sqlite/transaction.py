"""Transactional commands on SQLite: the connection that a handler works on, and how its work ends.

The connection is an ordinary `sqlite3.Connection`, but the transaction is the ledger's: a handler
that committed by itself would part its effects from their record, and a retry would have them
again. So `commit` and its like are refused, by method and by SQL alike; `with connection:` means a
savepoint inside the transaction instead of its end; and once SQLite has rolled back by itself (`OR
ROLLBACK`, a full disk) nothing more is run, for it would commit by itself.
"""

import sqlite3
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from duet_rpc.errors import OutcomeUnknown, StoreUnavailable, UsageError
from duet_rpc.ledger.faults import StoreFault, make_unavailable
from duet_rpc.ledger.states import Claim, Claimed, Record, State, decide_claim, make_finished
from duet_rpc.ledger.stores.base import NotBegun, StoreTransaction
from duet_rpc.ledger.stores.sqlite.file import (
    FileConnection,
    Patience,
    is_busy,
    is_fault,
    load,
    make_refusal,
    save,
)

_FENCE = "duet_fence"
_OURS = "/* the ledger's */"
"""Stands in our own statements: what is prepared already is not asked for permission again, so no
statement of ours may be one that a handler writes."""
_LEAVE_IT = (
    "the handler ended the transaction that the ledger commits; leave COMMIT and ROLLBACK to the"
    " ledger"
)


class _Cursor(sqlite3.Cursor):
    """Runs a handler's statements as long as they are part of the transaction."""

    connection: "GuardedConnection"

    def execute(self, *args: Any) -> Any:
        return self.connection.guard(super().execute, args)

    def executemany(self, *args: Any) -> Any:
        return self.connection.guard(super().executemany, args)

    def executescript(self, *args: Any) -> Any:
        return self.connection.guard(super().executescript, args)


class GuardedConnection(sqlite3.Connection):
    """A connection whose transaction is the ledger's."""

    lent = False
    """A handler has it: the transaction must not end."""
    _depth = 0
    _refused = False

    def watch(self) -> None:
        """Have statements that would end the transaction refused while it is lent."""
        self.set_authorizer(self._judge)

    def _judge(self, action: int, first: str | None, second: str | None, *where: Any) -> int:
        ends = action == sqlite3.SQLITE_TRANSACTION or (
            action == sqlite3.SQLITE_SAVEPOINT and second == _FENCE
        )
        self._refused = ends and self.lent
        return sqlite3.SQLITE_DENY if self._refused else sqlite3.SQLITE_OK

    def guard(self, run: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Run a statement, unless the transaction that it would be part of is gone."""
        if self.lent and not self.in_transaction:
            raise UsageError(_LEAVE_IT)
        self._refused = False
        try:
            return run(*args)
        except sqlite3.DatabaseError as error:
            if self._refused:
                raise UsageError(_LEAVE_IT) from error
            raise

    def execute(self, *args: Any) -> Any:
        """Run a statement in the transaction."""
        return self.guard(super().execute, args)

    def executemany(self, *args: Any) -> Any:
        """Run a statement in the transaction, once for each set of values."""
        return self.guard(super().executemany, args)

    def cursor(self, factory: Any = _Cursor) -> Any:
        """Make a cursor, whose statements run in the transaction too."""
        return super().cursor(factory)

    def commit(self) -> None:
        """Refuse: the ledger commits when the handler returns."""
        raise UsageError("the ledger commits the transaction of a transactional command itself")

    def rollback(self) -> None:
        """Refuse: raising from the handler undoes its effects."""
        raise UsageError("raise an error to undo the effects of a transactional command")

    def close(self) -> None:
        """Refuse: the connection is lent."""
        raise UsageError("the connection of a transactional command belongs to the store")

    def executescript(self, sql_script: str, /) -> Any:
        """Refuse: sqlite3 commits before a script."""
        raise UsageError("executescript commits first; use execute in a transactional command")

    def __enter__(self) -> "GuardedConnection":
        self._depth += 1
        self.execute(f"SAVEPOINT duet_{self._depth}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Literal[False]:
        if error is not None:
            self.execute(f"ROLLBACK TO duet_{self._depth}")
        self.execute(f"RELEASE duet_{self._depth}")
        self._depth -= 1
        return False


class HandlerTransactions:
    """Lends the one connection for handlers, to the one with the lock that writers queue at."""

    def __init__(
        self,
        path: Path,
        clock: Callable[[], float],
        patience: Patience,
        prepare: Callable[[sqlite3.Connection], object] | None,
        writing: threading.Lock,
    ):
        self.clock = clock
        self._patience = patience
        self._prepare = prepare
        self._writing = writing
        self._file = FileConnection(path, clock, patience, GuardedConnection, self._make_ready)
        self._aside = FileConnection(path, clock, patience, sqlite3.Connection)
        """Has no part in what goes wrong on the other."""
        self._factories: tuple[Any, Any] = (None, str)
        self._closed = False

    def begin(self, claim: Claim, patience: float) -> "SqliteTransaction | NotBegun":
        """See `Store.begin`."""
        give_up = time.monotonic() + patience
        if not self._writing.acquire(timeout=max(patience, 0.0)):
            raise make_unavailable(StoreFault.LOCKED)
        try:
            self._closed = False
            connection = self._file.open(partial(self._lock_file, give_up))
            found = load(connection, claim.identity, self.clock())
            answer, record = decide_claim(claim, *found)
            if isinstance(answer, Claimed):
                assert record is not None, "a claim leaves a record"
                connection.execute(f"SAVEPOINT {_FENCE} {_OURS}")
                connection.lent = True
                connection.row_factory, connection.text_factory = self._factories
                return SqliteTransaction(self, connection, record)
            if record is not None and record is not found[0]:
                save(connection, record)
            connection.execute(f"COMMIT {_OURS}")
        except BaseException as error:
            self.take_back(broken=True)
            if is_fault(error):
                raise make_refusal(error, self._patience) from error
            raise
        self.take_back()
        return answer  # type: ignore[return-value]  # a claim has no owner's answer

    def take_back(self, *, broken: bool = False) -> None:
        """End the loan: the connection is free for the next handler, or thrown away."""
        if broken or self._closed:
            self._file.drop()
        self._writing.release()

    def find_out(self, record: Record, error: BaseException) -> bytes:
        """Tell the outcome that a commit left behind though it failed, or refuse it.

        A disk that fails in a commit may have kept it; what the file says after recovery holds.
        """
        if not is_busy(error):
            try:
                found, _, _ = load(self._aside.open(), record.identity, self.clock())
            except (sqlite3.Error, StoreUnavailable):
                raise OutcomeUnknown() from error
            finally:
                self._aside.drop()
            if found is not None and found.state is State.DONE and found.outcome is not None:
                return found.outcome
        raise make_refusal(error, self._patience) from error

    def close(self) -> None:
        """Close the connection, now or when the handler that has it is done."""
        self._closed = True
        if self._writing.acquire(timeout=0.0):
            self.take_back()

    def _make_ready(self, connection: GuardedConnection) -> None:
        connection.watch()
        if self._prepare is not None:
            self._prepare(connection)
        self._factories = connection.row_factory, connection.text_factory

    def _lock_file(self, give_up: float, connection: GuardedConnection) -> None:
        connection._depth = 0
        connection.row_factory, connection.text_factory = None, str
        # SQLite waits ever longer between its tries; short waits in a loop find the moment when
        # another process commits the very command that is asked for.
        connection.execute("PRAGMA busy_timeout = 20")
        if self._patience.seconds < self._patience.full:
            give_up = min(give_up, time.monotonic() + self._patience.seconds)
        while True:
            try:
                connection.execute(f"BEGIN IMMEDIATE {_OURS}")
                break
            except sqlite3.OperationalError as error:
                if not is_busy(error) or time.monotonic() >= give_up:
                    raise
        self._patience.recover()
        connection.execute(f"PRAGMA busy_timeout = {int(self._patience.full * 1000)}")


class SqliteTransaction(StoreTransaction):
    """The open transaction of one handler."""

    def __init__(
        self, transactions: HandlerTransactions, connection: GuardedConnection, record: Record
    ):
        self._transactions = transactions
        self.connection = connection
        self.token: int = record.token
        self._record = record

    def commit(self, outcome: bytes, ttl: float) -> bytes | None:
        return self._end(f"RELEASE {_FENCE}", outcome, ttl)

    def reject(self, outcome: bytes, ttl: float) -> bytes | None:
        return self._end(f"ROLLBACK TO {_FENCE}", outcome, ttl)

    def rollback(self) -> None:
        broken = True
        self.connection.lent = False
        try:
            if not self.connection.in_transaction:
                # SQLite has rolled back by itself, as it does when the disk is full or fails.
                raise make_unavailable(StoreFault.FAILED)
            self.connection.execute(f"ROLLBACK {_OURS}")
            broken = False
        finally:
            self._transactions.take_back(broken=broken)

    def _end(self, fence: str, outcome: bytes, ttl: float) -> bytes | None:
        connection = self.connection
        connection.lent = False
        try:
            try:
                connection.execute(f"{fence} {_OURS}")
            except sqlite3.OperationalError as error:
                raise UsageError(_LEAVE_IT) from error
            now = self._transactions.clock()
            save(connection, make_finished(self._record, outcome, now, ttl))
            connection.execute(f"COMMIT {_OURS}")
        except BaseException as error:
            self._transactions.take_back(broken=True)
            if is_fault(error):
                return self._transactions.find_out(self._record, error)
            raise
        self._transactions.take_back()
        return None
