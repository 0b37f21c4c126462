"""Transactional commands on PostgreSQL: begin, the handler's work, commit.

The record is inserted inside the handler's own transaction. A duplicate in another process blocks
on that row, without polling, until the owner commits (and finds the outcome) or is gone (and takes
over at once). One logic for both drivers; see `waits.do`.
"""

import time
from typing import Any

import psycopg
from psycopg import errors

from duet_rpc.errors import OutcomeUnknown, StoreUnavailable, UsageError
from duet_rpc.ledger.faults import StoreFault, make_unavailable
from duet_rpc.ledger.states import Busy, Claim, Claimed, Finish, Replay, decide_claim
from duet_rpc.ledger.stores.base import NotBegun, StoreTransaction
from duet_rpc.ledger.stores.postgres.pool import Pool, ServerSilent, dispose, is_fault, make_refusal
from duet_rpc.ledger.stores.postgres.statements import SQL, write_statement, write_swap
from duet_rpc.ledger.stores.sql import load_row
from duet_rpc.ledger.waits import do

_LOOKS, _LOOK_PAUSE = 2, 0.5
"""How many timeouts long a lost commit is looked for, and how often: by default for ten seconds,
enough for a server to restart."""


class PostgresTransaction(StoreTransaction):
    """The open transaction of one handler, with either driver."""

    def __init__(self, pool: Pool, connection: Any, claim: Claim, token: int):
        self._pool = pool
        self._claim = claim
        self.connection = connection
        self.token = token

    async def commit(self, outcome: bytes, ttl: float) -> bytes | None:
        return await self._end("RELEASE SAVEPOINT duet_fence", outcome, ttl)

    async def reject(self, outcome: bytes, ttl: float) -> bytes | None:
        return await self._end("ROLLBACK TO SAVEPOINT duet_fence", outcome, ttl)

    async def rollback(self) -> None:
        connection = self.connection
        connection.deadline = time.monotonic() + self._pool.timeout
        try:
            if connection.closed:
                raise make_unavailable(StoreFault.UNREACHABLE)
            await do(connection.execute("ROLLBACK"))
        except psycopg.Error as error:
            dispose(connection)
            raise make_refusal(error) from error
        except BaseException:
            dispose(connection)
            raise
        finally:
            self._pool.give(connection)

    async def _end(self, fence: str, outcome: bytes, ttl: float) -> bytes | None:
        connection = self.connection
        began = time.monotonic()
        connection.deadline = began + self._pool.timeout
        is_committing = False
        try:
            await do(connection.execute(fence))
            claim = self._claim
            finish = Finish(claim.identity, self.token, claim.owner, outcome, ttl)
            await do(connection.execute(*write_statement(finish)))
            is_committing = True
            await do(connection.execute("COMMIT"))
            return None
        except BaseException as error:
            dispose(connection)
            if isinstance(error, errors.InFailedSqlTransaction):
                raise UsageError(
                    "a statement failed in the handler, which went on; PostgreSQL takes no more"
                    " in such a transaction; nest what may fail in `with connection.transaction():`"
                ) from error
            gone = errors.InvalidSavepointSpecification, errors.NoActiveSqlTransaction
            if isinstance(error, gone):
                raise UsageError(
                    "the handler ended the transaction that the ledger commits; leave COMMIT and"
                    " ROLLBACK to the ledger"
                ) from error
            if not is_fault(error):
                raise
            if not is_committing:
                raise make_refusal(error) from error
        finally:
            self._pool.give(connection)
        return await self._what_happened(began + _LOOKS * self._pool.timeout)

    async def _what_happened(self, until: float) -> bytes:
        """Find out whether a commit whose answer was lost took place."""
        while (now := time.monotonic()) < until:
            pause = min(_LOOK_PAUSE, until - now)
            try:
                found = await begin(self._pool, self._claim, pause)
            except StoreUnavailable:
                await self._pool.limit.pause(pause)
                continue
            if isinstance(found, PostgresTransaction):
                # The row is free, so the old transaction is gone for good.
                await found.rollback()
                raise make_unavailable(StoreFault.UNREACHABLE)
            if isinstance(found, Replay):
                return found.outcome
        raise OutcomeUnknown()


async def begin(pool: Pool, claim: Claim, patience: float) -> PostgresTransaction | NotBegun:
    """Open a transaction in which the command is ours, or say why not."""
    for _ in range(2):
        connection = await pool.take(patience)
        try:
            return await _begin_on(pool, connection, claim, patience)
        except BaseException as error:
            was_stale = connection.closed and not isinstance(error, ServerSilent)
            dispose(connection)
            pool.give(connection)
            if isinstance(error, errors.LockNotAvailable):
                return Busy(0.0)
            if isinstance(error, errors.UndefinedTable) or not is_fault(error):
                raise
            if not was_stale:
                raise make_refusal(error) from error
            # The server was restarted since: a fresh connection tells whether it is there again.
            pool.clear()
    raise make_unavailable(StoreFault.UNREACHABLE)


async def _begin_on(
    pool: Pool, connection: Any, claim: Claim, patience: float
) -> PostgresTransaction | NotBegun:
    milliseconds = max(int(patience * 1000), 1)
    # Others may hold the row for as long as the caller is ready to wait; the breaker sees to it
    # that we do not wait for a server that is gone.
    connection.deadline = time.monotonic() + pool.timeout + patience
    await do(connection.execute(f"BEGIN; SET LOCAL lock_timeout = {milliseconds}"))
    while True:
        cursor = await do(connection.execute(*write_statement(claim)))
        inserted = await do(cursor.fetchone())
        if inserted is not None:
            token = inserted[0]
            break
        cursor = await do(connection.execute(SQL.load, claim.identity._asdict()))
        found, now, since = load_row(await do(cursor.fetchone()))
        answer, kept = decide_claim(claim, found, now, since)
        if found is None and isinstance(answer, Claimed):
            continue  # released or swept this very moment
        if kept is not None and kept is not found:
            cursor = await do(connection.execute(*write_swap(found, kept)))
            if cursor.rowcount == 0:
                continue  # another was faster
        if isinstance(answer, Claimed):
            token = answer.token
            break
        await do(connection.execute("COMMIT"))
        pool.give(connection)
        return answer  # type: ignore[return-value]  # a claim has no owner's answer
    await do(connection.execute("SET LOCAL lock_timeout TO DEFAULT; SAVEPOINT duet_fence"))
    connection.deadline = None  # from here on the handler has it
    return PostgresTransaction(pool, connection, claim, token)
