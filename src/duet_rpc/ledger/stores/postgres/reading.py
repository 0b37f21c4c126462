"""Connections to the database for queries: they read what is committed, and cannot write.

One logic for both drivers; see `waits.do`.
"""

from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from duet_rpc.ledger.faults import StoreFault, make_unavailable
from duet_rpc.ledger.stores.postgres.pool import Pool, ServerSilent, dispose, make_refusal
from duet_rpc.ledger.waits import do

_READ_ONLY = "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"
"""Said each time, for the last query may have said otherwise; it also shows that the server is
still there."""


async def lend(pool: Pool) -> Any:
    """Take a connection that cannot write. Raises `StoreUnavailable`."""
    for _ in range(2):
        connection = await pool.take(pool.timeout)
        try:
            await do(connection.execute(_READ_ONLY))
        except BaseException as error:
            was_stale = connection.closed and not isinstance(error, ServerSilent)
            dispose(connection)
            pool.give(connection)
            if not isinstance(error, psycopg.Error):
                raise
            if not was_stale:
                raise make_refusal(error) from error
            # The server was restarted since: a fresh connection tells whether it is there again.
            pool.clear()
            continue
        connection.deadline = None  # from here on the handler has it
        return connection
    raise make_unavailable(StoreFault.UNREACHABLE)


def take_back(pool: Pool, connection: Any) -> None:
    """End the loan; a connection that was left in a transaction, or changed, is thrown away."""
    is_idle = (
        not connection.closed
        and connection.info.transaction_status is TransactionStatus.IDLE
        and connection.autocommit
    )
    if not is_idle:
        dispose(connection)
    connection.row_factory = psycopg.rows.tuple_row
    pool.give(connection)
