"""The SQL of the PostgreSQL store: the transitions of `states` as conditional statements.

Times come from the server's clock, in the statement that uses them. A statement that changes no row
leaves the question open, and the store answers it by reading the record and asking `states`.
"""

from collections.abc import Sequence
from typing import Any

from duet_rpc.ledger.retry_age import must_have_record, remembers
from duet_rpc.ledger.states import (
    ALWAYS,
    Claim,
    Finish,
    Operation,
    Record,
    Release,
    Renew,
)
from duet_rpc.ledger.stores.sql import (
    COLUMNS,
    Statements,
    add_upkeep,
    refuse_newer,
    to_row,
    write_schema,
)

Statement = tuple[str, Sequence[Any]]
"""A query with `%s` for each value, and its values."""

NOW = "extract(epoch FROM clock_timestamp())::float8"
SAME = "principal = %s AND method = %s AND key = %s"


def _some(where: str) -> str:
    return f"""ctid = ANY (ARRAY(
        SELECT ctid FROM duet_commands WHERE {where}
        ORDER BY expires_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED))"""


SQL = Statements(now=NOW, value="%({})s".format, some=_some)
LOCK_UPKEEP = f"{SQL.upkeep} FOR UPDATE SKIP LOCKED"
"""Finds no row while another process is in a step of its own sweep."""
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
_PUT = f"""
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
_IS_THE_OLD = f"""
    {SAME} AND token = %s AND owner = %s AND state = %s AND lease_until = %s AND expires_at = %s"""
_SWAP = f"""
    UPDATE duet_commands SET ({", ".join(COLUMNS)}) = ROW({", ".join(["%s"] * len(COLUMNS))})
    WHERE {_IS_THE_OLD}"""
_DROP = f"DELETE FROM duet_commands WHERE {_IS_THE_OLD}"

_LONGER_THAN_ANY = 1e12
_ADVISORY_LOCK = 0x64756574
"""Keeps two processes from migrating at once: "duet" as a number."""

_MIGRATIONS = (
    (
        write_schema(blob="bytea", integer="bigint", real="float8", suffix=""),
        "CREATE INDEX duet_commands_expire ON duet_commands (expires_at)",
    ),
    add_upkeep(add="ADD COLUMN IF NOT EXISTS", real="float8", now=NOW),
)
"""The statements that lead to each version of the schema; a released one is never edited."""


def write_statement(operation: Operation) -> Statement:
    """Write an operation as a statement that returns its token if it took effect."""
    match operation:
        case Claim():
            if must_have_record(operation):
                return INSERT_IF_KNOWN, (*insert_values(operation), _unseen_for(operation))
            return INSERT, insert_values(operation)
        case Renew(identity, token, owner, lease, unknown_ttl):
            return RENEW, (lease, lease + unknown_ttl, *identity, token, owner)
        case Finish(identity, token, owner, outcome, ttl):
            return FINISH, (outcome, ttl, *identity, token, owner)
        case Release(identity, owner):
            return RELEASE, (*identity, owner)


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


def _unseen_for(claim: Claim) -> float:
    """Tell how long the store must have remembered for a missing record to mean anything."""
    return claim.command.age if remembers(claim, 0.0, ALWAYS) else _LONGER_THAN_ANY


def write_swap(old: Record | None, new: Record | None) -> Statement:
    """Write the statement that puts a record in the place of another, if that still stands."""
    if old is None:
        assert new is not None, "nothing became something"
        return _PUT, to_row(new)
    same = *old.identity, old.token, old.owner, old.state.value, old.lease_until, old.expires_at
    return (_DROP, same) if new is None else (_SWAP, (*to_row(new), *same))


def _is_missing(connection: Any, table: str) -> bool:
    [(found,)] = connection.execute("SELECT to_regclass(%s)", (table,)).fetchall()
    return found is None


def migrate(line: Any) -> None:
    with line.transaction():
        line.execute("SELECT pg_advisory_xact_lock(%s)", (_ADVISORY_LOCK,))
        version = 0
        if _is_missing(line, "duet_schema"):
            line.execute("CREATE TABLE duet_schema (version integer NOT NULL)")
            line.execute("INSERT INTO duet_schema VALUES (0)")
            version = 1  # unless the other table is missing too
        else:
            [(version,)] = line.execute("SELECT version FROM duet_schema").fetchall()
        refuse_newer(version, len(_MIGRATIONS))
        if _is_missing(line, "duet_commands"):
            version = 0  # dropped, whatever the version says
        for statements in _MIGRATIONS[version:]:
            for each in statements:
                line.execute(each)
            line.execute("UPDATE duet_schema SET version = %s", (len(_MIGRATIONS),))
