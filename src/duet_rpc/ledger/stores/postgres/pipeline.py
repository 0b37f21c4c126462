"""The ledger's own connection to PostgreSQL, and the short way for what every command needs twice.

A claim and a finish are one small statement each, known beforehand. psycopg's cursors find out for
every one of them which types and which plan it wants, and that costs about as much as the server's
own work on it. Here they go straight to libpq: prepared by name, values as they are, any number of
them in one round trip and one commit.
"""

import select
import time
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import errors
from psycopg.pq import ConnStatus, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult

from duet_rpc.ledger.stores.postgres.pool import BoundedConnection
from duet_rpc.ledger.stores.postgres.statements import Statement


class PipelineConnection(BoundedConnection, psycopg.Connection[Any]):
    """A connection for one thread at a time. After an error in `exchange`, throw it away."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._names: dict[str, bytes] = {}
        self._readable = select.poll()
        self._readable.register(self.pgconn.socket, select.POLLIN)
        self._either = select.poll()
        self._either.register(self.pgconn.socket, select.POLLIN | select.POLLOUT)

    def exchange(self, statements: Sequence[Statement]) -> list[bytes | None]:
        """Run statements in one transaction and one round trip.

        Returns the first value of the first row of each, as text, or None where there is no row.
        """
        server = self.pgconn
        server.enter_pipeline_mode()
        # Without a BEGIN, what stands before the sync is one transaction.
        awaited = [self._send(query, values) for query, values in statements]
        server.pipeline_sync()
        found: list[bytes | None] = []
        for steps in awaited:
            for _ in range(steps):
                result = self._next()
            found.append(result.get_value(0, 0) if result.ntuples else None)
        self._next()
        server.exit_pipeline_mode()
        return found

    def _send(self, query: str, values: Sequence[Any]) -> int:
        """Put a statement on its way; return how many results it will have."""
        name = self._names.get(query)
        is_new = name is None
        if name is None:
            name = self._names[query] = b"duet_%d" % len(self._names)
            self.pgconn.send_prepare(name, _number(query))
        # Numbers go as text. Text goes as what it is: in libpq's text format a NUL would end it.
        formats = [not isinstance(value, int | float) for value in values]
        self.pgconn.send_query_prepared(name, [_encode(value) for value in values], formats)
        return 2 if is_new else 1

    def _next(self) -> PGresult:
        """Wait for the next result; raises the error that it is."""
        server = self.pgconn
        result = None
        while result is None:  # which is the end of a statement
            while server.is_busy():
                unsent = server.flush()
                if not (self._either if unsent else self._readable).poll(self._milliseconds()):
                    raise self.lost()
                server.consume_input()
            result = server.get_result()
            if server.status != ConnStatus.OK:
                raise psycopg.OperationalError("the connection to the server was lost")
        if result.status == ExecStatus.FATAL_ERROR:
            raise errors.error_from_result(result)
        return result

    def _milliseconds(self) -> int | None:
        if self.deadline is None:
            return None
        return max(int((self.deadline - time.monotonic()) * 1000), 0)

    def drain(self, deadline: float) -> bool:
        """Wait until nothing that was sent can still take effect; False if that takes too long.

        After `ServerSilent` the server may hold our statements unread, and apply them when it goes
        on. So what comes after has to wait until this line has its answers, or has ended.
        """
        try:
            while not self._has_answers():
                left = max(deadline - time.monotonic(), 0.0)
                if not self._readable.poll(int(left * 1000)):
                    return False
                self.pgconn.consume_input()
        except psycopg.Error:
            return True
        return True

    def _has_answers(self) -> bool:
        server = self.pgconn
        ends = 0  # of statements; a second one in a row says that there is nothing more for now
        while not server.is_busy() and ends < 2:
            result = server.get_result()
            if result is not None and result.status == ExecStatus.PIPELINE_SYNC:
                return True
            ends = ends + 1 if result is None else 0
        return server.transaction_status != TransactionStatus.ACTIVE


def _number(query: str) -> bytes:
    """Write a statement as the server wants it prepared: `$1` for the first value."""
    first, *rest = query.split("%s")
    return "".join([first, *(f"${n}{part}" for n, part in enumerate(rest, 1))]).encode()


def _encode(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
