"""How a record looks as a row of an SQL table, for the two stores that have one."""

from collections.abc import Sequence
from typing import Any

from .machine import Identity, Promise, Record, State

COLUMNS = (
    "principal",
    "method",
    "key",
    "fingerprint",
    "promise",
    "state",
    "token",
    "owner",
    "attempts",
    "correlation_id",
    "lease_until",
    "created_at",
    "finished_at",
    "expires_at",
    "outcome",
)
SELECT = f"SELECT {', '.join(COLUMNS)} FROM duet_commands"


def seen_state(now: str) -> str:
    """Write the SQL for the state of a row at the time that the expression `now` gives."""
    return (
        f"CASE WHEN state = 'running' AND promise <> 'retry-safe' AND lease_until <= {now}"
        " THEN 'unknown' ELSE state END"
    )


def schema(*, blob: str, integer: str, real: str, suffix: str) -> str:
    """Write the table in the types of one database. Times are seconds since 1970."""
    return f"""
        CREATE TABLE duet_commands (
            principal text NOT NULL,
            method text NOT NULL,
            key text NOT NULL,
            fingerprint {blob} NOT NULL,
            promise text NOT NULL,
            state text NOT NULL CHECK (state IN ('running', 'done', 'unknown')),
            token {integer} NOT NULL,
            owner text NOT NULL,
            attempts {integer} NOT NULL,
            correlation_id text NOT NULL,
            lease_until {real} NOT NULL,
            created_at {real} NOT NULL,
            finished_at {real},
            expires_at {real} NOT NULL,
            outcome {blob},
            PRIMARY KEY (principal, method, key)
        ){suffix}"""


def from_row(row: Sequence[Any]) -> Record:
    """Make the record that a row holds."""
    principal, method, key, fingerprint, promise, state, *rest = row
    return Record(
        Identity(principal, method, key), fingerprint, Promise(promise), State(state), *rest
    )


def to_row(record: Record) -> tuple[Any, ...]:
    """Make the row that holds a record."""
    return (
        *record.identity,
        record.fingerprint,
        record.promise.value,
        record.state.value,
        record.token,
        record.owner,
        record.attempts,
        record.correlation_id,
        record.lease_until,
        record.created_at,
        record.finished_at,
        record.expires_at,
        record.outcome,
    )
