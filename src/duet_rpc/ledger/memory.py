"""A store in the memory of one process: for tests and for development.

It follows the machine literally, under one lock, and is the model that the other stores are
compared with. Its promises end with the process.
"""

import threading
import time
from collections.abc import Callable, Sequence
from itertools import islice

from ..errors import UsageError
from .machine import (
    Answer,
    Claim,
    Decision,
    Identity,
    Kept,
    Operation,
    Record,
    State,
    as_seen,
    decide,
    decide_forget,
    decide_resolve,
    is_expired,
)
from .store import Capabilities, Counts, NotBegun, Transaction


class MemoryStore:
    """Records in a dictionary."""

    capabilities = Capabilities(
        transactional=False,
        durable=False,
        note="records are lost when the process ends",
        waits=False,
    )

    def __init__(self, *, clock: Callable[[], float] = time.time):
        self._clock = clock
        self._lock = threading.Lock()
        self._records: dict[Identity, Record] = {}

    def commit(self, operations: Sequence[Operation]) -> list[Answer | Exception]:
        """See `Store.commit`."""
        with self._lock:
            now = self._clock()
            answers: list[Answer | Exception] = []
            for operation in operations:
                found = self._records.get(operation.identity)
                answers.append(self._keep(operation.identity, decide(operation, found, now)))
            return answers

    def look(self, identity: Identity) -> Record | None:
        """See `Store.look`."""
        with self._lock:
            record = self._records.get(identity)
            return None if record is None else as_seen(record, self._clock())

    def begin(self, claim: Claim, patience: float) -> Transaction | NotBegun:
        """Refuse: there is no database to take part in."""
        raise UsageError("the memory store has no transactions; use SQLite or PostgreSQL")

    def records(self, state: State | None = None, limit: int = 100) -> list[Record]:
        """See `Store.records`."""
        with self._lock:
            now = self._clock()
            seen = [as_seen(record, now) for record in self._records.values()]
        found = [r for r in seen if r is not None and (state is None or r.state is state)]
        return sorted(found, key=lambda record: record.created_at)[:limit]

    def resolve(self, identity: Identity, outcome: bytes, ttl: float) -> bool:
        """See `Store.resolve`."""
        with self._lock:
            found = self._records.get(identity)
            decision = decide_resolve(found, outcome, self._clock(), ttl)
            return self._keep(identity, decision) == Kept()

    def forget(self, identity: Identity) -> bool:
        """See `Store.forget`."""
        with self._lock:
            decision = decide_forget(self._records.get(identity), self._clock())
            return self._keep(identity, decision) == Kept()

    def sweep(self, limit: int = 500) -> int:
        """See `Store.sweep`."""
        with self._lock:
            now = self._clock()
            over = (each for each, record in self._records.items() if is_expired(record, now))
            dropped = list(islice(over, limit))
            for identity in dropped:
                del self._records[identity]
            return len(dropped)

    def counts(self) -> Counts:
        """See `Store.counts`."""
        return count(self.records(limit=len(self._records)))

    def close(self) -> None:
        """Do nothing: what was recorded stays for the next ledger on this store."""

    def _keep(self, identity: Identity, decision: Decision) -> Answer:
        if decision.record is None:
            self._records.pop(identity, None)
        else:
            self._records[identity] = decision.record
        return decision.answer


def count(records: list[Record]) -> Counts:
    """Count records by state, for a store that has no query language to do it."""
    by_state: dict[State, list[float]] = {state: [] for state in State}
    for record in records:
        by_state[record.state].append(record.created_at)
    return Counts(
        running=len(by_state[State.RUNNING]),
        done=len(by_state[State.DONE]),
        unknown=len(by_state[State.UNKNOWN]),
        oldest_running=min(by_state[State.RUNNING], default=None),
        oldest_unknown=min(by_state[State.UNKNOWN], default=None),
    )
