"""A store in the memory of one process: for tests and for development.

It follows `states` literally, under one lock, and is the model that the other stores are compared
with. Its promises end with the process, and so does its clock: it begins at the wall clock and then
follows the monotonic one, so no change of the system's time reaches it.
"""

import threading
import time
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from duet_rpc.forks import renew_in_child
from duet_rpc.ledger.states import (
    Answer,
    Decision,
    Identity,
    Kept,
    Operation,
    Record,
    State,
    decide,
    decide_sweep,
    is_expired,
    show_record,
)
from duet_rpc.ledger.stores.base import (
    UNKNOWN_TTL,
    Capabilities,
    Decide,
    Found,
    RecordStore,
    Series,
)
from duet_rpc.ledger.upkeep import Clocks

_STARTED = time.time() - time.monotonic()


def steady_time() -> float:
    """Tell the time by a clock that no one can set while the process runs."""
    return _STARTED + time.monotonic()


class MemoryStore(RecordStore):
    """Records in a dictionary. It remembers from its making on, or since the time that is given."""

    keeps: tuple[str, str] = ("memory", "until exit")

    capabilities: Capabilities = Capabilities(
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
        with self._lock:
            now = self._clock()
            answers: list[Answer | Exception] = []
            for operation in operations:
                identity = operation.identity
                found = self._records.get(identity)
                decision = decide(operation, found, now, self._since)
                answers.append(self._keep(identity, found, decision))
            return answers

    def since(self, ttl: float) -> tuple[float, float]:
        return self._since, self._clock()

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

    def close(self) -> None:
        """Do nothing: what was recorded stays for the next ledger on this store."""

    def _load(self, identity: Identity) -> Found:
        with self._lock:
            return self._records.get(identity), self._clock(), self._since

    def _change(self, identity: Identity, decide: Decide) -> Answer:
        with self._lock:
            found = self._records.get(identity)
            return self._keep(identity, found, decide(found, self._clock(), self._since))

    def _list(self, of: Series | None = None) -> list[Record]:
        with self._lock:
            now = self._clock()
            seen = [
                show_record(record, now)
                for record in self._records.values()
                if of is None or of.holds(record)
            ]
        return [record for record in seen if record is not None]

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
