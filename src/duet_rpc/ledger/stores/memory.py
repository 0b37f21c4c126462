"""A store in the memory of one process: for tests and for development.

It follows the machine literally, under one lock, and is the model that the other stores are
compared with. Its promises end with the process, and so does its clock: it begins at the wall clock
and then follows the monotonic one, so no change of the system's time reaches it.
"""

import threading
import time
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from duet_rpc.errors import UsageError
from duet_rpc.forks import renew_in_child
from duet_rpc.ledger.states import (
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
    decide_sweep,
    is_expired,
)
from duet_rpc.ledger.stores.base import (
    UNKNOWN_TTL,
    Capabilities,
    Counts,
    NotBegun,
    StoreTransaction,
)
from duet_rpc.ledger.upkeep import Clocks

_STARTED = time.time() - time.monotonic()


def steady_time() -> float:
    """Tell the time by a clock that no one can set while the process runs."""
    return _STARTED + time.monotonic()


class MemoryStore:
    """Records in a dictionary. It remembers from its making on, or since the time that is given."""

    keeps = ("memory", "until exit")

    capabilities = Capabilities(
        transactional=False,
        durable=False,
        note="records are lost when the process ends",
        waits=False,
    )

    def __init__(
        self, *, clock: Callable[[], float] = steady_time, since: float | None = None
    ) -> None:
        self._clock = clock
        self._since = clock() if since is None else since
        self._lock = threading.Lock()
        renew_in_child(self, _lock=threading.Lock)
        self._records: dict[Identity, Record] = {}
        self._running: set[Identity] = set()
        self._ends: list[tuple[float, Identity]] = []
        """A heap of the ends of records that do not run; of some, a former end stands here too."""

    def commit(self, operations: Sequence[Operation]) -> list[Answer | Exception]:
        """See `Store.commit`."""
        with self._lock:
            now = self._clock()
            answers: list[Answer | Exception] = []
            for operation in operations:
                identity = operation.identity
                found = self._records.get(identity)
                decision = decide(operation, found, now, self._since)
                answers.append(self._keep(identity, found, decision))
            return answers

    def look(self, identity: Identity, *, by_retry: bool = False) -> Record | None:
        """See `Store.look`."""
        with self._lock:
            record = self._records.get(identity)
            return None if record is None else as_seen(record, self._clock(), by_retry=by_retry)

    def since(self, ttl: float) -> tuple[float, float]:
        """See `Store.since`."""
        return self._since, self._clock()

    def begin(self, claim: Claim, patience: float) -> StoreTransaction | NotBegun:
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
            return self._keep(identity, found, decision) == Kept()

    def forget(self, identity: Identity) -> bool:
        """See `Store.forget`."""
        with self._lock:
            found = self._records.get(identity)
            decision = decide_forget(found, self._clock())
            return self._keep(identity, found, decision) == Kept()

    def sweep(
        self, limit: int = 500, *, unknown_ttl: float = UNKNOWN_TTL, clocks: Clocks | None = None
    ) -> int:
        """See `Store.sweep`. Its clock does not jump, and it has one sweeper."""
        with self._lock:
            now = self._clock()
            changed = 0
            over = [each for each in self._running if self._records[each].expires_at <= now]
            for identity in over[:limit]:
                record = self._records[identity]
                kept = Decision(Kept(), decide_sweep(record, now, unknown_ttl))
                self._keep(identity, record, kept)
                changed += 1
            while self._ends and self._ends[0][0] <= now and changed < limit:
                _, identity = heappop(self._ends)
                found = self._records.get(identity)
                if found is not None and is_expired(found, now):
                    del self._records[identity]
                    changed += 1
            return changed

    def counts(self) -> Counts:
        """See `Store.counts`."""
        return count(self.records(limit=len(self._records)))

    def close(self) -> None:
        """Do nothing: what was recorded stays for the next ledger on this store."""

    def _keep(self, identity: Identity, found: Record | None, decision: Decision) -> Answer:
        record = decision.record
        if record is found:
            return decision.answer
        if record is None:
            del self._records[identity]
            self._running.discard(identity)
            return decision.answer
        self._records[identity] = record
        if record.state is State.RUNNING:
            self._running.add(identity)
        else:
            self._running.discard(identity)
            heappush(self._ends, (record.expires_at, identity))
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
