"""Many operations in few statements, for a group that SQLite commits.

Under load nearly all operations are of two kinds: a claim that finds no record, and the finish of
a running command. Row by row they cost more than the disk does, most of all because each statement
lets go of the interpreter's lock and has to win it back from the very threads that wait for this
commit. So both kinds go many rows to a statement, and the count of changed rows tells whether
every one of them was as expected. If one was not, nothing of it stays, and `states` decides
them one by one.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from duet_rpc.ledger.retry_age import must_have_record
from duet_rpc.ledger.states import (
    Answer,
    Claim,
    Claimed,
    Finish,
    Kept,
    Operation,
    decide_claim,
)
from duet_rpc.ledger.stores.sql import COLUMNS, to_row

T = TypeVar("T")

IS_POSSIBLE = sqlite3.sqlite_version_info >= (3, 33)
"""UPDATE … FROM came with that version."""

_SIZES = (64, 16, 4, 1)
"""Rows to a statement: a few sizes, so that all statements stay prepared."""


def _rows(columns: int, rows: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return ", ".join([row] * rows)


_INSERT = {
    size: f"INSERT INTO duet_commands VALUES {_rows(len(COLUMNS), size)} ON CONFLICT DO NOTHING"
    for size in _SIZES
}
_FINISH = {
    size: f"""
    UPDATE duet_commands
    SET state = 'done', outcome = new.column6, finished_at = new.column7, expires_at = new.column8
    FROM (VALUES {_rows(8, size)}) AS new
    WHERE principal = new.column1 AND method = new.column2 AND key = new.column3
    AND token = new.column4 AND owner = new.column5 AND state <> 'done'"""
    for size in _SIZES
}


def apply_together(
    connection: sqlite3.Connection, operations: Sequence[Operation], now: float
) -> list[Answer] | None:
    """Apply claims and finishes; None, and nothing changed, if one of them needs a closer look."""
    claims = [each for each in operations if isinstance(each, Claim)]
    finishes = [each for each in operations if isinstance(each, Finish)]
    if len(claims) + len(finishes) < len(operations) or any(map(must_have_record, claims)):
        return None
    records = [decide_claim(claim, None, now).record for claim in claims]
    rows = [to_row(record) for record in records if record is not None]
    ends = [
        (*each.identity, each.token, each.owner, each.outcome, now, now + each.ttl)
        for each in finishes
    ]
    connection.execute("SAVEPOINT duet_group")
    if _execute(connection, _INSERT, rows) and _execute(connection, _FINISH, ends):
        connection.execute("RELEASE duet_group")
        tokens = iter(record.token for record in records if record is not None)
        return [
            Claimed(next(tokens), 1) if isinstance(each, Claim) else Kept() for each in operations
        ]
    connection.execute("ROLLBACK TO duet_group")
    return None


def _execute(
    connection: sqlite3.Connection, statements: dict[int, str], rows: Sequence[Sequence[Any]]
) -> bool:
    for chunk in _chunks(rows):
        values = [value for row in chunk for value in row]
        if connection.execute(statements[len(chunk)], values).rowcount != len(chunk):
            return False
    return True


def _chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    start = 0
    for size in _SIZES:
        while len(items) - start >= size:
            yield items[start : start + size]
            start += size
