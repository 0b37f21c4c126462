"""The SQL of the PostgreSQL store: the machine's transitions as conditional statements.

Times come from the server's clock, in the statement that uses them. A statement that changes no row
leaves the question open, and the store answers it by reading the record and asking the machine.
"""

from collections.abc import Sequence
from typing import Any

from duet_rpc.ledger.states import (
    ALWAYS,
    Claim,
    Finish,
    Operation,
    Record,
    Release,
    Renew,
    must_have_record,
    remembers,
)
from duet_rpc.ledger.stores.postgres.pipeline import Statement
from duet_rpc.ledger.stores.sql import (
    COLUMNS,
    IS_CUT_OFF,
    UPKEEP,
    add_upkeep,
    from_row,
    schema,
    to_row,
)

NOW = "extract(epoch FROM clock_timestamp())::float8"
SAME = "principal = %s AND method = %s AND key = %s"
LOAD = f"SELECT {', '.join(COLUMNS)}, {NOW} FROM duet_commands WHERE {SAME}"
UPKEEP_NOW = f"SELECT {', '.join(UPKEEP)}, {NOW} FROM duet_schema"
_INSERT = f"""
    INSERT INTO duet_commands ({", ".join(COLUMNS)})
    SELECT %s, %s, %s, %s, %s, 'running', (clock.now * 1000)::bigint, %s, 1, %s,
        clock.now + %s, clock.now, NULL, clock.now + %s, NULL
    FROM (SELECT {NOW} AS now) AS clock"""
INSERT = f"{_INSERT} ON CONFLICT DO NOTHING RETURNING token"
INSERT_IF_KNOWN = f"""{_INSERT}
    WHERE (SELECT since FROM duet_schema) <= clock.now - %s
    ON CONFLICT DO NOTHING RETURNING token"""
"""The claim of a retry: it runs only if the store would have a record of the first try."""
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
SET_UPKEEP = f"UPDATE duet_schema SET ({', '.join(UPKEEP)}) = (%s, %s, %s, %s, %s)"
LOCK_UPKEEP = f"{UPKEEP_NOW} FOR UPDATE SKIP LOCKED"
"""Finds no row while another process is in a step of its own sweep."""


def _some(where: str) -> str:
    """Write the condition for a bounded number of rows, found by the index on their end."""
    return f"""ctid = ANY (ARRAY(
        SELECT ctid FROM duet_commands WHERE {where}
        ORDER BY expires_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED))"""


CUT_OFF = f"""
    UPDATE duet_commands SET state = 'unknown', expires_at = %(now)s + %(unknown_ttl)s
    WHERE {_some("expires_at <= %(now)s")} AND {IS_CUT_OFF}"""
SWEEP = f"""
    DELETE FROM duet_commands WHERE {_some("expires_at <= %(now)s")} AND NOT {IS_CUT_OFF}"""
SHIFT = f"""
    UPDATE duet_commands SET expires_at = expires_at + %(by)s
    WHERE {_some("expires_at > %(after)s AND expires_at <= %(until)s")}"""

_LONGER_THAN_ANY = 1e12

MIGRATIONS = (
    (
        schema(blob="bytea", integer="bigint", real="float8", suffix=""),
        "CREATE INDEX duet_commands_expire ON duet_commands (expires_at)",
    ),
    add_upkeep(add="ADD COLUMN IF NOT EXISTS", real="float8", now=NOW),
)
"""The statements that lead to each version of the schema; a released one is never edited."""


def _numbered(query: str) -> bytes:
    """Write a statement as the server wants it prepared: `$1` for the first value."""
    first, *rest = query.split("%s")
    return "".join([first, *(f"${n}{part}" for n, part in enumerate(rest, 1))]).encode()


_CLAIM, _RENEW, _FINISH, _RELEASE = map(_numbered, (INSERT, RENEW, FINISH, RELEASE))
_CLAIM_IF_KNOWN = _numbered(INSERT_IF_KNOWN)


def statement(operation: Operation) -> Statement:
    """Write an operation as a statement that returns its token if it took effect."""
    match operation:
        case Claim():
            if must_have_record(operation):
                return _CLAIM_IF_KNOWN, (*insert_values(operation), unseen_for(operation))
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


def insertion(claim: Claim) -> tuple[str, Sequence[Any]]:
    """Give the statement that claims a command with no record, and its values."""
    if must_have_record(claim):
        return INSERT_IF_KNOWN, (*insert_values(claim), unseen_for(claim))
    return INSERT, insert_values(claim)


def unseen_for(claim: Claim) -> float:
    """Tell how long the store must have remembered for a missing record to mean anything."""
    return claim.command.age if remembers(claim, 0.0, ALWAYS) else _LONGER_THAN_ANY


def swap_values(old: Record, new: Record) -> Sequence[Any]:
    """Give the values of `SWAP`: it writes the new record only where the old one still stands."""
    return *to_row(new), *drop_values(old)


def drop_values(old: Record) -> Sequence[Any]:
    """Give the values of `DROP`: it deletes a record only where it still stands."""
    return *old.identity, old.token, old.owner, old.state.value, old.lease_until, old.expires_at


def loaded(row: Sequence[Any]) -> tuple[Record, float]:
    """Make the record and the server's time out of a row of `LOAD`."""
    return from_row(row[:-1]), row[-1]
