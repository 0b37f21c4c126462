"""The SQL of the PostgreSQL store: the machine's transitions as conditional statements.

Times come from the server's clock, in the statement that uses them. A statement that changes no row
leaves the question open, and the store answers it by reading the record and asking the machine.
"""

from collections.abc import Sequence
from typing import Any

from .machine import Claim, Finish, Operation, Record, Release, Renew
from .postgres_line import Statement
from .rows import COLUMNS, from_row, schema, to_row

NOW = "extract(epoch FROM clock_timestamp())::float8"
SAME = "principal = %s AND method = %s AND key = %s"
LOAD = f"SELECT {', '.join(COLUMNS)}, {NOW} FROM duet_commands WHERE {SAME}"
INSERT = f"""
    INSERT INTO duet_commands ({", ".join(COLUMNS)})
    SELECT %s, %s, %s, %s, %s, 'running', (clock.now * 1000)::bigint, %s, 1, %s,
        clock.now + %s, clock.now, NULL, clock.now + %s, NULL
    FROM (SELECT {NOW} AS now) AS clock
    ON CONFLICT DO NOTHING RETURNING token"""
PUT = f"""
    INSERT INTO duet_commands ({", ".join(COLUMNS)}) VALUES ({", ".join(["%s"] * len(COLUMNS))})
    ON CONFLICT DO NOTHING"""
RENEW = f"""
    UPDATE duet_commands SET lease_until = {NOW} + %s, expires_at = {NOW} + %s
    WHERE {SAME} AND token = %s AND owner = %s AND state = 'running' RETURNING token"""
FINISH = f"""
    UPDATE duet_commands
    SET state = 'done', outcome = %s, finished_at = {NOW}, expires_at = {NOW} + %s
    WHERE {SAME} AND token = %s AND owner = %s AND state <> 'done' RETURNING token"""
RELEASE = f"""
    DELETE FROM duet_commands
    WHERE {SAME} AND owner = %s AND state = 'running' RETURNING token"""
SWAP = f"""
    UPDATE duet_commands SET ({", ".join(COLUMNS)}) = ROW({", ".join(["%s"] * len(COLUMNS))})
    WHERE {SAME} AND token = %s AND owner = %s AND state = %s AND lease_until = %s
    AND expires_at = %s"""
DROP = f"""
    DELETE FROM duet_commands
    WHERE {SAME} AND token = %s AND owner = %s AND state = %s AND lease_until = %s
    AND expires_at = %s"""
SWEEP = f"""
    DELETE FROM duet_commands WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM duet_commands WHERE expires_at <= {NOW}
        LIMIT %s FOR UPDATE SKIP LOCKED))"""

MIGRATIONS = (
    (
        schema(blob="bytea", integer="bigint", real="float8", suffix=""),
        "CREATE INDEX duet_commands_expire ON duet_commands (expires_at)",
    ),
)
"""The statements that lead to each version of the schema; a released one is never edited."""


def _numbered(query: str) -> bytes:
    """Write a statement as the server wants it prepared: `$1` for the first value."""
    first, *rest = query.split("%s")
    return "".join([first, *(f"${n}{part}" for n, part in enumerate(rest, 1))]).encode()


_CLAIM, _RENEW, _FINISH, _RELEASE = map(_numbered, (INSERT, RENEW, FINISH, RELEASE))


def statement(operation: Operation) -> Statement:
    """Write an operation as a statement that returns its token if it took effect."""
    match operation:
        case Claim():
            return _CLAIM, insert_values(operation)
        case Renew(identity, token, owner, lease, unknown_ttl):
            return _RENEW, (lease, lease + unknown_ttl, *identity, token, owner)
        case Finish(identity, token, owner, outcome, ttl):
            return _FINISH, (outcome, ttl, *identity, token, owner)
        case Release(identity, owner):
            return _RELEASE, (*identity, owner)


def insert_values(claim: Claim) -> Sequence[Any]:
    """Give the values of `INSERT`."""
    command = claim.command
    return (
        *claim.identity,
        command.fingerprint,
        command.promise.value,
        claim.owner,
        command.correlation_id.replace("\0", "\ufffd"),  # the one character that text has not
        claim.lease,
        claim.lease + claim.unknown_ttl,
    )


def swap_values(old: Record, new: Record) -> Sequence[Any]:
    """Give the values of `SWAP`: it writes the new record only where the old one still stands."""
    return *to_row(new), *drop_values(old)


def drop_values(old: Record) -> Sequence[Any]:
    """Give the values of `DROP`: it deletes a record only where it still stands."""
    return *old.identity, old.token, old.owner, old.state.value, old.lease_until, old.expires_at


def loaded(row: Sequence[Any]) -> tuple[Record, float]:
    """Make the record and the server's time out of a row of `LOAD`."""
    return from_row(row[:-1]), row[-1]
