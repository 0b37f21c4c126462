"""The ledger: runs each command once, however often it is asked for, and gives one answer to all.

This module is the face of the package: it joins the duplicates of one process to one execution
(single flight) and leaves that to the `Executor`. It raises the refusals of the contract
(`KeyReused`, `InProgress`, `OutcomeUnknown`, `StoreUnavailable`); what the handler did comes back
as bytes.
"""

import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable
from copy import copy
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from duet_rpc.engine.steps import drive
from duet_rpc.errors import InProgress, KeyReused, RpcError, UsageError
from duet_rpc.forks import leave_to_parent, tell_in_child
from duet_rpc.ledger.execution import Executor, Ran, Run, Work, make_in_progress
from duet_rpc.ledger.faults import explain
from duet_rpc.ledger.group import Group
from duet_rpc.ledger.inflight import SingleFlight
from duet_rpc.ledger.leases import Heartbeat, Settings
from duet_rpc.ledger.retry_age import remembers
from duet_rpc.ledger.states import (
    Command,
    Identity,
    Promise,
    Record,
    make_first_run,
    make_forgotten,
)
from duet_rpc.ledger.stores.base import UNKNOWN_TTL, Capabilities, Series, Store
from duet_rpc.ledger.sweeper import SWEEP_ROWS, Sweeper
from duet_rpc.ledger.waits import Waits, YieldingWaits

log: logging.Logger = logging.getLogger("duet_rpc.ledger")

if TYPE_CHECKING:
    from duet_rpc.ledger.waits_asyncio import AsyncioWaits


class Ledger:
    """What became of each command. Safe to use from any thread and any event loop.

    `lease` is how long a run may stay silent before it counts as cut off; `wait` how long a
    duplicate waits for the run before it; `ttl` and `unknown_ttl` how long outcomes and unknown
    ones are kept. An outcome above `max_outcome_bytes` counts as one that cannot be sent.
    """

    def __init__(
        self,
        store: Store,
        *,
        lease: float = 30.0,
        wait: float = 10.0,
        ttl: float = 86400.0,
        unknown_ttl: float = UNKNOWN_TTL,
        max_outcome_bytes: int = 256 * 1024,
    ):
        if lease <= 0 or wait < 0 or ttl <= 0 or unknown_ttl <= 0 or max_outcome_bytes <= 0:
            raise UsageError("a ledger's times and limits are above zero")
        self.store = store
        self._settings = Settings(
            lease=lease,
            wait=wait,
            ttl=ttl,
            unknown_ttl=unknown_ttl,
            max_outcome_bytes=max_outcome_bytes,
        )
        self._set_up()
        tell_in_child(self)
        # One that has to be asked for what it can do is one to wait for.
        able = getattr(type(store), "capabilities", None)
        self._is_at_hand = isinstance(able, Capabilities) and not able.waits

    def _set_up(self) -> None:
        """Make what belongs to one process: its name, its runs, its locks and its threads."""
        store, settings = self.store, self._settings
        self._name = os.urandom(8).hex()
        self._runs = count(1)
        self._executions = SingleFlight()
        self._group = Group(store.commit)
        self._heartbeat = Heartbeat(store, self._group, settings)
        self._sweeper = Sweeper(store, self._name, settings.ttl, settings.unknown_ttl)
        self._executor = Executor(store, self._heartbeat, settings)
        self._blocking = Waits(self._group)
        self._yielding = YieldingWaits(self._group)
        self._on_loop: AsyncioWaits | None = None
        self._lock = threading.Lock()
        self._checking: threading.Thread | None = None

    def forked(self) -> None:
        """Begin anew on the same store: what runs is the parent's, and its threads are not here."""
        leave_to_parent(
            self._executions, self._heartbeat, self._sweeper, self._on_loop, self._checking
        )
        self._set_up()

    def run(
        self, command: Command, work: Callable[[Run], Ran], *, deadline: float | None = None
    ) -> bytes:
        """Answer a command: by running `work`, or with the outcome of the run before it.

        Blocks. `deadline`, a `time.monotonic()` value, bounds the waiting for another run; a run
        of its own is never cut short. `work` returns a `Ran` however the handler ends; if it
        raises, the run counts as cut off.
        """
        return drive(self._answer(self._blocking, command, work, deadline))

    async def run_yielding(
        self, command: Command, work: Callable[[Run], Ran], *, deadline: float | None = None
    ) -> bytes:
        """Answer a command as `run` does, but suspend where `run` would wait for another run.

        Not for an event loop: it blocks for the store and for `work`. Its driver is given a
        `waits.Wait` and goes on when that is over, on any thread that may block.
        """
        return await self._answer(self._yielding, command, work, deadline)

    async def run_async(
        self,
        command: Command,
        work: Callable[[Run], Awaitable[Ran]],
        *,
        deadline: float | None = None,
    ) -> bytes:
        """Answer a command whose handler runs on the event loop; as `run` in everything else.

        Cancelling the caller ends its waiting. A command that has begun goes on in a task of its
        own, unless it is transactional: that one is cancelled too, and rolled back.
        """
        return await self._answer(self._waits_on_loop(), command, work, deadline)

    def require(self, promise: Promise) -> None:
        """Raise `UsageError` if the store cannot keep a promise. To be asked at the start."""
        if promise is not Promise.TRANSACTIONAL:
            return
        able = self.store.capabilities
        if not able.transactional:
            raise UsageError(
                f"{type(self.store).__name__} cannot run transactional commands ({able.note});"
                " use SQLite or PostgreSQL, or declare another promise"
            )

    def check(self) -> None:
        """Ask the store something, and log it if that fails. Returns at once: a thread asks."""
        if self._checking is None and not self._is_at_hand:
            self._checking = threading.Thread(target=self._check, name="duet-check", daemon=True)
            self._checking.start()

    def _check(self) -> None:
        try:
            self.store.since(self._settings.ttl)  # which it begins to remember, if it is new
        except Exception as error:
            log.warning("the command store cannot be used: %s", explain(error))

    def outcome(self, principal: str, method: str, key: str, *, age: float = 0.0) -> Record | None:
        """Tell what became of a command; None if nothing did. Blocks.

        `age`, seconds since the command was first sent, tells "nothing" from "forgotten": what the
        store cannot remember any more is of unknown outcome.
        """
        identity = Identity(principal, method, key)
        # First what is in flight: what ends while the store is asked is in the store before.
        execution = self._executions.get(identity)
        record = self.store.look(identity, by_retry=age > 0)
        if record is not None:
            return record
        if execution is not None:
            # A transaction shows nothing to others before it commits.
            return make_first_run(
                self._executor.make_claim(execution.command, execution.owner), time.time()
            )
        if age > 0:
            asked = self._executor.make_claim(
                Command(*identity, b"", Promise.AT_MOST_ONCE, age=age), ""
            )
            since, now = self.store.since(self._settings.ttl)
            if not remembers(asked, now, since):
                return make_forgotten(asked, now)
        return None

    async def outcome_async(
        self, principal: str, method: str, key: str, *, age: float = 0.0
    ) -> Record | None:
        """Tell what `outcome` tells, without blocking the event loop."""
        look = partial(self.outcome, principal, method, key, age=age)
        return await self._waits_on_loop().call(look)

    async def list_async(self, of: Series, limit: int) -> list[Record]:
        """List the records of a series, the oldest first, without blocking the event loop."""
        look = partial(self.store.records, limit=limit, of=of)
        return await self._waits_on_loop().call(look)

    @property
    def max_outcome_bytes(self) -> int:
        """How many bytes an outcome may have."""
        return self._settings.max_outcome_bytes

    def sweep(self) -> int:
        """Take one step of a sweep now; the wall clock is taken to be right. Blocks."""
        return self.store.sweep(SWEEP_ROWS, unknown_ttl=self._settings.unknown_ttl)

    def close(self) -> None:
        """End the background threads and give back the store's connections. Idempotent."""
        self._heartbeat.close()
        self._sweeper.close()
        if self._checking is not None:
            self._checking.join(timeout=1.0)  # it must not open what is closed below
        if self._on_loop is not None:
            self._on_loop.close()
        self.store.close()

    async def _answer(
        self, waits: Waits, command: Command, work: Work, deadline: float | None
    ) -> bytes:
        self.require(command.promise)
        give_up = time.monotonic() + self._settings.wait
        if deadline is not None:
            give_up = min(give_up, deadline)
        owner = f"{self._name}-{next(self._runs)}"
        while True:
            execution = self._executions.join(command, owner)
            if execution.owner == owner:
                self._heartbeat.start()
                self._sweeper.start()
                logic = self._executor.execute(waits, execution, work, give_up)
                return await waits.run(execution, logic)
            if execution.command.fingerprint != command.fingerprint:
                raise KeyReused()
            if not await waits.join(execution, max(give_up - time.monotonic(), 0.0)):
                raise make_in_progress(self._settings.lease, is_alive=True)
            match execution.result:
                case bytes() as body:
                    return body
                case InProgress() | None:
                    # It gave up waiting, its caller went away before it began, or was asked for
                    # something. Our time is ours.
                    continue
                case RpcError() as error:
                    raise copy(error) from error

    def _waits_on_loop(self) -> "AsyncioWaits":
        if self._on_loop is None:
            from duet_rpc.ledger.waits_asyncio import AsyncioWaits

            with self._lock:
                if self._on_loop is None:
                    self._on_loop = AsyncioWaits(self._group, store_waits=not self._is_at_hand)
        return self._on_loop
