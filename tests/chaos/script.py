"""Two servers on one store and what is done to them, one thing after the other.

For cases that must go the same way on every machine; the storm is for all the others.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.chaos.cluster import Cluster
from tests.chaos.history import Fault, History
from tests.chaos.storm import Caller
from tests.ledger.servers import PATIENCE, Postgres, Valkey


class Script:
    """Two servers, a caller at each, and the words that cases are written in."""

    def __init__(self, cluster: Cluster, *, is_torn: bool):
        self.cluster = cluster
        self.is_torn = is_torn
        """Whether effects and records are committed one after the other."""
        self.first, self.second = (Caller(each.name, each) for each in cluster.servers)

    async def noted(self, what: str) -> None:
        """Wait until the first server has noted something."""
        give_up = time.monotonic() + PATIENCE
        while all(note["what"] != what for note in self.first.server.notes()):
            assert time.monotonic() < give_up, f"no {what}: {self.first.server.tail()}"
            await asyncio.sleep(0.02)

    @asynccontextmanager
    async def stopped(self) -> AsyncIterator[None]:
        """Stop the first server for as long as the block lasts."""
        began = time.monotonic()
        await self._stop()
        try:
            yield
        finally:
            self.first.server.send(signal.SIGCONT)
            ended = time.monotonic() + self.cluster.lease
            self.cluster.faults.append(Fault("stop", self.first.server.name, began, ended))

    async def _stop(self) -> None:
        # Not while it holds the lock of an SQLite file: nobody would get on.
        for _ in range(50):
            self.first.server.send(signal.SIGSTOP)
            if await asyncio.to_thread(self.cluster.is_free):
                return
            self.first.server.send(signal.SIGCONT)
            await asyncio.sleep(0.05)
        raise AssertionError("the server always holds the lock")

    def history(self) -> History:
        return History(
            calls=self.first.calls + self.second.calls,
            runs=self.cluster.runs(),
            effects=self.cluster.effects(),
            faults=self.cluster.faults + self.cluster.late_heartbeats(),
        )


@asynccontextmanager
async def script_of(
    kind: str,
    directory: Path,
    lease: float,
    *,
    without: str = "",
    store: Postgres | Valkey | None = None,
) -> AsyncIterator[Script]:
    """Start the servers, and end them whatever happens."""
    cluster = Cluster(kind, directory, lease=lease, servers=2, without=without, store=store)
    try:
        await cluster.start()
        script = Script(cluster, is_torn=without == "transaction")
        try:
            yield script
        finally:
            await script.first.drop()
            await script.second.drop()
    finally:
        cluster.close()
