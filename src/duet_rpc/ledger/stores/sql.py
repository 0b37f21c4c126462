"""What the two stores with an SQL database share: rows, statements, sweeps."""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import asdict, astuple

from duet_rpc.errors import UsageError
from duet_rpc.ledger.faults import StoreFault, make_unavailable
from duet_rpc.ledger.states import Identity, Promise, Record, State, show_record
from duet_rpc.ledger.stores.base import Counts, Found, RecordStore, Series
from duet_rpc.ledger.upkeep import Clocks, Drop, Leave, Shift, Upkeep, after_step, plan_step

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
"""Which rows whose time is over become unknown; the others go. See `states.decide_sweep`."""


class Statements:
    """What both databases are asked, in the words of one of them.

    `now` is the SQL for the time. `value` writes the place of a named value, and `some` the
    condition for a bounded number of rows, found by the index on their end.
    """

    def __init__(self, now: str, value: Callable[[str], str], some: Callable[[str], str]):
        columns = f"{', '.join(COLUMNS)}, {now}, since"
        state = f"CASE WHEN {IS_CUT_OFF} AND lease_until <= {now} THEN 'unknown' ELSE state END"
        alive = f"(expires_at > {now} OR state = 'running')"
        wanted = f"CAST({value('state')} AS text)"
        over = some(f"expires_at <= {value('now')}")
        shifted = some(f"expires_at > {value('after')} AND expires_at <= {value('until')}")
        upkeep = ", ".join(UPKEEP)
        self.same: str = " AND ".join(f"{name} = {value(name)}" for name in COLUMNS[:3])
        self.load: str = f"SELECT {columns} FROM duet_schema LEFT JOIN duet_commands ON {self.same}"
        """Always one row: without a record it is empty but for the time and `since`."""
        self.records: str = f"""
            SELECT {columns} FROM duet_schema, duet_commands
            WHERE {alive} AND ({wanted} IS NULL OR {state} = {wanted})
            ORDER BY created_at LIMIT {value("limit")}"""
        prefix = f"CAST({value('prefix')} AS text)"
        self.series: str = self.records.replace(
            "ORDER BY",
            f"""AND principal = {value("principal")} AND created_at >= {value("since")}
            AND substr(method, 1, length({prefix})) = {prefix} ORDER BY""",
        )
        """The same of a `Series`."""
        self.counts: str = f"""
            SELECT {state} AS seen, count(*), min(created_at) FROM duet_commands
            WHERE {alive} GROUP BY seen"""
        self.cut_off: str = f"""
            UPDATE duet_commands
            SET state = 'unknown', expires_at = {value("now")} + {value("unknown_ttl")}
            WHERE {over} AND {IS_CUT_OFF}"""
        self.drop: str = f"DELETE FROM duet_commands WHERE {over} AND NOT {IS_CUT_OFF}"
        self.shift: str = f"""
            UPDATE duet_commands SET expires_at = expires_at + {value("by")} WHERE {shifted}"""
        self.upkeep: str = f"SELECT {upkeep}, {now} FROM duet_schema"
        self.set_upkeep: str = (
            f"UPDATE duet_schema SET ({upkeep}) = ({', '.join(map(value, UPKEEP))})"
        )


class SqlStore(RecordStore):
    """Records as rows of a table `duet_commands`."""

    sql: Statements

    def _fetch(self, query: str, values: dict[str, Any], *, is_long: bool = False) -> list[Any]:
        """Read rows; `is_long` if it goes over the whole table."""
        raise NotImplementedError

    def _load(self, identity: Identity) -> Found:
        [row] = self._fetch(self.sql.load, identity._asdict())
        return load_row(row)

    def since(self, ttl: float) -> tuple[float, float]:
        [(since, *_, now)] = self._fetch(self.sql.upkeep, {})
        return since, now

    def records(
        self, state: State | None = None, limit: int = 100, *, of: Series | None = None
    ) -> list[Record]:
        values: dict[str, Any] = {"state": state.value if state else None, "limit": limit}
        query = self.sql.records
        if of is not None:
            query, values = self.sql.series, values | of._asdict()
        found = [load_row(row) for row in self._fetch(query, values, is_long=True)]
        seen = [show_record(record, now) for record, now, _ in found if record is not None]
        return [record for record in seen if record is not None]

    def counts(self) -> Counts:
        rows = self._fetch(self.sql.counts, {}, is_long=True)
        return Counts(
            **{state: number for state, number, _ in rows},
            **{f"oldest_{state}": since for state, _, since in rows if state != "done"},
        )

    def _take_step(
        self,
        execute: Callable[[str, dict[str, Any]], Any],
        row: Sequence[Any],
        limit: int,
        unknown_ttl: float,
        clocks: Clocks | None,
    ) -> int:
        """Take one step of a sweep in a transaction that has read the row of `upkeep`."""
        upkeep, now = Upkeep(*row[:-1]), row[-1]
        step = Drop() if clocks is None else plan_step(upkeep, clocks, now)
        values = {"now": now, "limit": limit, "unknown_ttl": unknown_ttl}
        if isinstance(step, Leave):
            return 0
        if isinstance(step, Shift):
            values |= {"after": step.after, "until": step.until, "by": step.by}
            changed: int = execute(self.sql.shift, values).rowcount
        else:
            changed = execute(self.sql.cut_off, values).rowcount
            changed += execute(self.sql.drop, values | {"limit": limit - changed}).rowcount
        if clocks is not None:
            kept = after_step(upkeep, clocks, step, now, changed == limit)
            execute(self.sql.set_upkeep, asdict(kept))
        return changed


def refuse_newer(version: int, known: int) -> None:
    """Raise if a schema is one that only a newer release knows."""
    if version > known:
        error = UsageError(f"it has schema {version}; this duet-rpc knows {known}")
        raise make_unavailable(StoreFault.NEWER, error)


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


def write_schema(*, blob: str, integer: str, real: str, suffix: str) -> str:
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


def load_row(row: Sequence[Any]) -> Found:
    """Make what there is to decide by out of a row of `Statements.load` or `records`."""
    *columns, now, since = row
    return None if columns[0] is None else from_row(columns), now, since


def from_row(row: Sequence[Any]) -> Record:
    """Make the record that a row holds."""
    principal, method, key, fingerprint, promise, state, *rest = row
    return Record(
        Identity(principal, method, key), fingerprint, Promise(promise), State(state), *rest
    )


def to_row(record: Record) -> tuple[Any, ...]:
    """Make the row that holds a record."""
    identity, fingerprint, promise, state, *rest = astuple(record)
    return *identity, fingerprint, promise.value, state.value, *rest
