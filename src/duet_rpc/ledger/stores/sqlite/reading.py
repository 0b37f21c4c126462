"""Connections to the file for queries: they read what is committed, and cannot write.

Each is outside of a transaction, so a query that takes its time keeps no writer waiting between two
statements.
"""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from duet_rpc.ledger.stores.sqlite.file import FileConnection, Patience, is_fault, make_refusal

_KEPT = 8
"""Connections that are kept open for the next ones."""


class ReadConnection(FileConnection[sqlite3.Connection]):
    """A connection that is lent to one query at a time."""

    def __init__(
        self,
        path: Path,
        clock: Callable[[], float],
        patience: Patience,
        prepare: Callable[[sqlite3.Connection], object] | None,
    ):
        super().__init__(path, clock, patience, sqlite3.Connection, self._make_ready)
        self._set_up = prepare
        self._factories: tuple[Any, Any] = (None, str)

    def lend(self) -> sqlite3.Connection:
        """Give the connection as `prepare` has left it, whatever the last query did to it."""
        connection = self.open(_read_only)
        connection.row_factory, connection.text_factory = self._factories
        return connection

    def take_back(self) -> bool:
        """Undo what is open; return whether it can be lent again."""
        assert self.connection is not None, "it was lent"
        try:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
        except sqlite3.Error:  # closed by the query, for one
            self.drop()
            return False
        return True

    def _make_ready(self, connection: sqlite3.Connection) -> None:
        if self._set_up is not None:
            self._set_up(connection)
        self._factories = connection.row_factory, connection.text_factory


def _read_only(connection: sqlite3.Connection) -> None:
    connection.row_factory, connection.text_factory = None, str
    connection.execute("PRAGMA query_only = ON")


class ReadPool:
    """The read connections of one store, as many as queries run at a time."""

    def __init__(self, make: Callable[[], ReadConnection], patience: Patience):
        self._make = make
        self._patience = patience
        self._lock = threading.Lock()
        self._idle: list[ReadConnection] = []
        self._is_closed = False

    @contextmanager
    def lend(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection for as long as the block lasts."""
        with self._lock:
            self._is_closed = False
            reader = self._idle.pop() if self._idle else self._make()
        try:
            connection = reader.lend()
        except BaseException as error:
            reader.drop()
            if is_fault(error):
                raise make_refusal(error, self._patience) from error
            raise
        try:
            yield connection
        finally:
            self._give(reader)

    def _give(self, reader: ReadConnection) -> None:
        if not reader.take_back():
            return
        with self._lock:
            if not self._is_closed and len(self._idle) < _KEPT:
                self._idle.append(reader)
                return
        reader.drop()

    def close(self) -> None:
        """Close what is idle, and what is lent when it comes back."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for reader in idle:
            reader.drop()
