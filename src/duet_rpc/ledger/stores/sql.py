"""How a record looks as a row of an SQL table, for the two stores that have one."""

from collections.abc import Sequence
from typing import Any

from duet_rpc.ledger.states import Identity, Promise, Record, State

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
UPKEEP = ("since", "swept_at", "swept_by", "gap_end", "gap")
"""The columns of the one row of `duet_schema` that a store keeps about itself."""
IS_CUT_OFF = "(state = 'running' AND promise <> 'retry-safe')"
"""Which rows whose time is over become unknown; the others go. See `machine.decide_sweep`."""
SELECT = f"SELECT {', '.join(COLUMNS)} FROM duet_commands"


def seen_state(now: str) -> str:
    """Write the SQL for the state of a row at the time that the expression `now` gives."""
    return (
        f"CASE WHEN state = 'running' AND promise <> 'retry-safe' AND lease_until <= {now}"
        " THEN 'unknown' ELSE state END"
    )


def alive(now: str) -> str:
    """Write the SQL that finds the rows whose time is not over; that of a running one never is."""
    return f"(expires_at > {now} OR state = 'running')"


def add_upkeep(*, add: str, real: str, now: str) -> tuple[str, ...]:
    """Write the statements that give a store without it what it keeps about itself.

    It began with the oldest command that it holds, or just now.
    """
    return (
        *(
            f"ALTER TABLE duet_schema {add} {name} {real} NOT NULL DEFAULT 0"
            for name in UPKEEP
            if name != "swept_by"
        ),
        f"ALTER TABLE duet_schema {add} swept_by text NOT NULL DEFAULT ''",
        f"""
        UPDATE duet_schema SET swept_at = {now},
        since = (SELECT coalesce(min(created_at), {now}) FROM duet_commands)""",
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
