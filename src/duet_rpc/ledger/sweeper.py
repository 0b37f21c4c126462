"""The thread that drops what need not be kept any longer: often enough, and never for long.

It wakes at a twentieth of the shortest time that records are kept, at most once a minute. It takes
steps until one finds less than it could take, and rests after each for nine times as long as it
took: a tenth of the time at most, whatever the rate of commands. A step is bounded twice: by the
rows that it may change, and by its time, because others wait meanwhile for a store that one may
write. A step that was full and quick makes the next one larger, a slow one makes it smaller.

It has a thread of its own, so that no lease is renewed late because the store is slow to delete.
"""

import logging
import time
from collections.abc import Callable

from duet_rpc.errors import StoreUnavailable
from duet_rpc.ledger.background import BackgroundThread
from duet_rpc.ledger.faults import explain
from duet_rpc.ledger.stores.base import Store
from duet_rpc.ledger.upkeep import Clocks
from duet_rpc.tracebacks import OwnFault

log: logging.Logger = logging.getLogger("duet_rpc.ledger")

SWEEP_ROWS, MOST_ROWS = 500, 16_000
"""Rows to a step: at first, and at most."""
QUICK, SLOW = 0.02, 0.05
"""Seconds: where a step could have been larger, and where it should have been smaller."""
AT_MOST_EVERY, FIRST = 60.0, 1.0
SHARE = 20
"""How often it wakes in the time that a record lives: what is over stays for little longer."""
REST = 9
"""How many times as long as a step takes it rests before the next."""


class Sweeper(BackgroundThread):
    """Sweeps a store in the background."""

    NAME = "duet-sweep"

    def __init__(
        self,
        store: Store,
        name: str,
        ttl: float,
        unknown_ttl: float,
        monotonic: Callable[[], float] = time.monotonic,
    ):
        super().__init__()
        self._store = store
        self._every = min(AT_MOST_EVERY, ttl / SHARE, unknown_ttl / SHARE)
        self._clocks = Clocks(name, self._every / 2, unknown_ttl, ttl)
        self._monotonic = monotonic
        self._rows = SWEEP_ROWS

    def step(self) -> bool:
        """Take one step; tell whether there may be more to do. Raises `StoreUnavailable`."""
        clocks, rows = self._clocks, self._rows
        began = time.monotonic()
        clocks.monotonic = self._monotonic()
        changed = self._store.sweep(rows, unknown_ttl=clocks.unknown_ttl, clocks=clocks)
        clocks.confirm()
        took = time.monotonic() - began
        if took > SLOW:
            self._rows = max(rows // 2, SWEEP_ROWS)
        elif changed >= rows and took < QUICK:
            self._rows = min(rows * 2, MOST_ROWS)
        return changed >= rows

    def _run(self) -> None:
        # Not at once: the first command need not wait for it. Until then, no time is seen to pass.
        pause = min(self._every, FIRST)
        is_down = False
        while not self._stop.wait(pause):
            is_done = True
            began = time.monotonic()
            try:
                is_done = not self.step()
                is_down = False
            except StoreUnavailable as error:
                if not is_down:
                    log.warning("the command store is not swept: %s", explain(error))
                is_down = True
            except Exception as error:
                log.error("the sweep of the command store failed", exc_info=OwnFault(error))
            rest = REST * (time.monotonic() - began)
            pause = max(rest, self._every) if is_done else rest
