"""The heartbeat of leases: the ledger's own thread keeps them alive and settles what is owed.

A thread, because a handler may block the event loop for as long as it likes and must not lose its
lease by that. It starts with the first command and ends with the ledger.

Owed are operations that the store could not take in time: the outcome of a run whose lease ended
while the store was down, and the release of a claim whose answer was lost. Both are safe at any
later time, for the store checks the owner, and both spare an operator a command of unknown
outcome. They are tried again every second at least, and before the next claim of the same command.
"""

import logging
import threading
import time

from msgspec import Struct

from duet_rpc.errors import StoreUnavailable
from duet_rpc.ledger.background import BackgroundThread
from duet_rpc.ledger.faults import explain
from duet_rpc.ledger.group import MAX_GROUP, Group
from duet_rpc.ledger.states import Fenced, Finish, Identity, Kept, Operation, Renew
from duet_rpc.ledger.stores.base import Store
from duet_rpc.tracebacks import OwnFault

log: logging.Logger = logging.getLogger("duet_rpc.ledger")

SETTLE_EVERY = 1.0
MAX_OWED = 10_000


class Settings(Struct, frozen=True, kw_only=True):
    """The times and limits of a ledger; see `Ledger`."""

    lease: float
    wait: float
    ttl: float
    unknown_ttl: float
    max_outcome_bytes: int


class Lease(Struct, eq=False):
    """The lease of a run; it is kept alive until the run is over."""

    identity: Identity
    token: int
    owner: str
    correlation_id: str
    renewed: float
    """When (monotonic) it was last asked for; it holds at least for its length from then on."""

    def about(self) -> dict[str, dict[str, str]]:
        """Give the fields that a log line about the run carries."""
        fields = {"method": self.identity.method, "correlation_id": self.correlation_id}
        return {"duet_rpc": fields}


class Heartbeat(BackgroundThread):
    """Renews the leases of running commands at a third of their length."""

    NAME = "duet-ledger"

    def __init__(self, store: Store, group: Group, settings: Settings):
        super().__init__()
        self._store = store
        self._group = group
        self._settings = settings
        self._leases: set[Lease] = set()
        self._owed: dict[Identity, list[Operation]] = {}
        self._wake = threading.Event()
        self._is_down = False

    def keep(self, lease: Lease) -> None:
        """Renew a lease from now on."""
        with self._lock:
            self._leases.add(lease)

    def drop(self, lease: Lease) -> None:
        """Stop renewing a lease."""
        with self._lock:
            self._leases.discard(lease)

    def owe(self, operation: Operation) -> None:
        """Apply an operation when the store can be reached again."""
        with self._lock:
            while len(self._owed) >= MAX_OWED:
                del self._owed[next(iter(self._owed))]
            self._owed.setdefault(operation.identity, []).append(operation)
        self._wake.set()

    def list_owed(self, identity: Identity) -> list[Operation]:
        """Give what is owed about one command, the oldest first."""
        if not self._owed:
            return []
        with self._lock:
            return list(self._owed.get(identity, ()))

    def settle(self, operation: Operation) -> None:
        """Owe an operation no longer."""
        with self._lock:
            left = self._owed.get(operation.identity, [])
            if operation in left:
                left.remove(operation)
            if not left:
                self._owed.pop(operation.identity, None)

    def close(self) -> None:
        """End the thread; what is owed is tried once more. Idempotent."""
        self._stop.set()
        self._wake.set()
        super().close()

    def _run(self) -> None:
        # Two looks in a third of the lease: no lease is ever older than that when it is renewed.
        pause = self._settings.lease / 6
        while not self._stop.is_set():
            self._wake.wait(min(pause, SETTLE_EVERY) if self._owed else pause)
            self._wake.clear()
            try:
                self._renew()
                self._settle_owed()
                self._report(None)
            except StoreUnavailable as error:
                self._report(error)
            except Exception as error:
                log.error("the ledger's thread met a fault and goes on", exc_info=OwnFault(error))
        try:
            self._settle_owed()
        except Exception as error:
            owed = [each for operations in self._owed.values() for each in operations]
            outcomes = sum(isinstance(each, Finish) for each in owed)
            if outcomes:
                why = explain(error)
                log.warning("the command store cannot be used; %d outcomes lost: %s", outcomes, why)

    def _report(self, error: StoreUnavailable | None) -> None:
        """Log that the store went away, or is back; once each."""
        if error is not None and not self._is_down:
            log.warning("the command store cannot be used: %s", explain(error))
        elif error is None and self._is_down:
            log.info("the command store can be used again")
        self._is_down = error is not None

    def _renew(self) -> None:
        due = time.monotonic() - self._settings.lease / 6
        with self._lock:
            leases = [lease for lease in self._leases if lease.renewed <= due]
        for start in range(0, len(leases), MAX_GROUP):
            self._renew_together(leases[start : start + MAX_GROUP])

    def _renew_together(self, leases: list[Lease]) -> None:
        asked = time.monotonic()
        times = self._settings.lease, self._settings.unknown_ttl
        answers = self._store.commit(
            [Renew(each.identity, each.token, each.owner, *times) for each in leases]
        )
        for lease, answer in zip(leases, answers, strict=True):
            if answer == Kept():
                lease.renewed = asked
            elif isinstance(answer, Fenced):
                self.drop(lease)
                # A run that has ended meanwhile is fenced too, and that is as it should be.
                if answer.record is None or answer.record.owner != lease.owner:
                    method = lease.identity.method
                    log.warning("a run of %s lost its lease", method, extra=lease.about())

    def _settle_owed(self) -> None:
        with self._lock:
            owed = [each for operations in self._owed.values() for each in operations]
        for operation in owed:
            self._group.submit(operation)
            self.settle(operation)
