"""One execution from its claim to its answer: the logic that threads and event loops share.

    claim  -> the store says who runs; a duplicate of another process polls, with nothing held
    run    -> the handler; meanwhile the heartbeat keeps the lease
    finish -> the outcome is durable before anyone is answered

Transactional commands are shorter: begin, run, commit. The rule behind every branch: what may have
had an effect is never given back as if it had not, and nothing is answered that the store does not
hold. The file is longer than others so that all of that is in one place.
"""

import contextlib
import enum
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from msgspec import Struct

from duet_rpc.engine.failures import error_member
from duet_rpc.errors import (
    InProgress,
    KeyReused,
    OutcomeUnknown,
    ResultUnserializable,
    RpcError,
    StoreUnavailable,
)
from duet_rpc.ledger.faults import explain
from duet_rpc.ledger.inflight import Execution, Result
from duet_rpc.ledger.leases import Heartbeat, Lease, Settings
from duet_rpc.ledger.states import (
    Busy,
    Claim,
    Claimed,
    Command,
    Fenced,
    Finish,
    Mismatch,
    Operation,
    Promise,
    Record,
    Release,
    Renew,
    Replay,
    State,
    Unknown,
)
from duet_rpc.ledger.stores.base import Store
from duet_rpc.ledger.waits import Waits
from duet_rpc.tracebacks import OwnFault

log: logging.Logger = logging.getLogger("duet_rpc.ledger")

FIRST_POLL, LAST_POLL = 0.005, 0.1
"""How long a duplicate of another process waits between two looks at the record: ever longer."""
FIRST_RETRY, LAST_RETRY = 0.05, 1.0
"""The same for an outcome that the store cannot take."""
REPORT_EVERY = 1.0
SOONEST, SOON, LATEST = 0.1, 1.0, 60.0
"""Seconds that a caller is asked to wait before it asks again: the bounds, and the usual."""


class Run(Struct, frozen=True):
    """One run of a command. Later runs of the same command have higher tokens."""

    command: Command
    token: int
    attempt: int = 1
    transaction: Any = None
    """The database connection inside its open transaction; only for transactional commands."""


class Ending(enum.Enum):
    """How a handler result."""

    SUCCEEDED = "succeeded"
    DECLARED = "declared"
    """It raised an error of its interface: an outcome like any other."""
    FAILED = "failed"
    """It raised something that no one foresaw."""
    UNSERIALIZABLE = "unserializable"
    """It returned something that cannot be sent."""
    ASKED = "asked"
    """It has asked its own caller for something: nothing has happened, and it will run again."""


class Ran(Struct, frozen=True):
    """What a handler did; the body is the JSON member to send: `"result":…` or `"error":{…}`."""

    body: bytes
    ending: Ending = Ending.SUCCEEDED


Work = Callable[[Run], Ran | Awaitable[Ran]]


class Abandoned(Exception):
    """The caller went away before the handler began, so it did not begin."""


class Executor:
    """Executes commands, from the claim to the answer."""

    def __init__(self, store: Store, heartbeat: Heartbeat, settings: Settings):
        self._store = store
        self._heartbeat = heartbeat
        self._settings = settings
        self._reported = -REPORT_EVERY

    async def execute(
        self, waits: Waits, execution: Execution, work: Work, give_up: float
    ) -> bytes:
        """Run a command or find its outcome, settle the execution with it, and return it."""
        result: Result = None
        try:
            if execution.command.promise is Promise.TRANSACTIONAL:
                result = await self._transact(waits, execution, work, give_up)
            else:
                result = await self._claim_and_run(waits, execution, work, give_up)
            return result
        except StoreUnavailable as error:
            self._report(execution, error)
            result = error
            raise
        except RpcError as error:
            result = error
            raise
        finally:
            execution.settle(None if execution.is_undone else result)

    def _report(self, execution: Execution, error: StoreUnavailable) -> None:
        """Log why commands are refused: one of them a second."""
        now = time.monotonic()
        if now - self._reported >= REPORT_EVERY:
            self._reported = now
            command = execution.command
            fields = {"method": command.method, "correlation_id": command.correlation_id}
            why = explain(error)
            log.warning("a command was refused: %s", why, extra={"duet_rpc": fields})

    # Commands whose effects are the handler's business alone

    async def _claim_and_run(
        self, waits: Waits, execution: Execution, work: Work, give_up: float
    ) -> bytes:
        claimed = await self._claim(waits, execution, give_up)
        if isinstance(claimed, bytes):
            return claimed
        command, lease, attempt = execution.command, *claimed
        release = Release(lease.identity, lease.owner)
        if execution.is_abandoned:
            await self._submit_or_owe(waits, release)
            raise Abandoned
        self._heartbeat.keep(lease)
        try:
            execution.has_begun = True
            try:
                ran = work(Run(command, lease.token, attempt))
                if not isinstance(ran, Ran):
                    ran = await ran
            except BaseException:
                # An effect may have happened: the lease ends now, so that retries need not wait for
                # what they will be answered.
                unknown_ttl = self._settings.unknown_ttl
                give_back = Renew(lease.identity, lease.token, lease.owner, 0.0, unknown_ttl)
                is_safe = command.promise is Promise.RETRY_SAFE
                await self._submit_or_owe(waits, release if is_safe else give_back)
                raise
            execution.is_ending = True
            ran = self._within_limit(ran)
            execution.is_undone = ran.ending is Ending.ASKED
            released = (Ending.FAILED, Ending.ASKED)
            if ran.ending in released and command.promise is Promise.RETRY_SAFE:
                await self._submit_or_owe(waits, release)
                return ran.body
            return await self._finish(waits, execution, lease, ran.body)
        finally:
            self._heartbeat.drop(lease)

    async def _claim(
        self, waits: Waits, execution: Execution, give_up: float
    ) -> tuple[Lease, int] | bytes:
        command = execution.command
        claim = self.make_claim(command, execution.owner)
        for owed in self._heartbeat.list_owed(execution.identity):
            # A claim of ours whose answer was lost must not keep us waiting for its lease.
            await waits.submit(owed)
            self._heartbeat.settle(owed)
        while True:
            asked = time.monotonic()
            try:
                answer = await waits.submit(claim)
            except BaseException:
                # The claim may have been committed and only its answer lost.
                self._heartbeat.owe(Release(execution.identity, execution.owner))
                raise
            match answer:
                case Claimed(token, attempt):
                    correlation_id = command.correlation_id
                    lease = Lease(execution.identity, token, execution.owner, correlation_id, asked)
                    return lease, attempt
                case Busy(lease_left):
                    await self._wait_elsewhere(waits, execution, lease_left, give_up)
                case _:
                    return _replay(answer)

    async def _finish(self, waits: Waits, execution: Execution, lease: Lease, body: bytes) -> bytes:
        ttl = self._choose_ttl(execution.command)
        finish = Finish(lease.identity, lease.token, lease.owner, body, ttl)
        pause = FIRST_RETRY
        while True:
            try:
                answer = await waits.submit(finish)
                break
            except StoreUnavailable as error:
                if time.monotonic() >= lease.renewed + self._settings.lease:
                    self._heartbeat.owe(finish)
                    raise _cut_off(execution.command) from error
            except Exception as error:
                # The handler has run: no fault of a store may be answered as if it were an outcome.
                log.error(
                    "the store failed to take an outcome",
                    exc_info=OwnFault(error),
                    extra=lease.about(),
                )
                raise _cut_off(execution.command) from error
            await waits.pause(min(pause, self._settings.lease / 6))
            pause = min(pause * 2, LAST_RETRY)
        if isinstance(answer, Fenced):
            return await self._what_the_store_says(waits, execution, answer.record)
        return body

    async def _what_the_store_says(
        self, waits: Waits, execution: Execution, record: Record | None
    ) -> bytes:
        command = execution.command
        give_up = time.monotonic() + self._settings.wait
        try:
            while record is not None and record.state is State.RUNNING:
                await self._wait_elsewhere(waits, execution, self._settings.lease, give_up)
                record = await waits.call(self._store.look, execution.identity)
        except StoreUnavailable as error:
            # That word would tell the caller that its handler has not run.
            raise _cut_off(command) from error
        if record is not None and record.fingerprint == command.fingerprint:
            if record.outcome is not None:
                return record.outcome
        raise _cut_off(command)

    # Commands whose effects are in the store's own database

    async def _transact(
        self, waits: Waits, execution: Execution, work: Work, give_up: float
    ) -> bytes:
        command = execution.command
        claim = self.make_claim(command, execution.owner)
        while True:
            patience = max(give_up - time.monotonic(), 0.0)
            begun = await waits.begin(self._store, claim, patience)
            if not isinstance(begun, Busy):
                break
            await self._wait_elsewhere(waits, execution, begun.lease_left, give_up)
        if isinstance(begun, Replay | Unknown | Mismatch):
            return _replay(begun)
        if execution.is_abandoned:
            await waits.end(begun.rollback)
            raise Abandoned
        execution.has_begun = True
        try:
            ran = work(Run(command, begun.token, 1, begun.connection))
            if not isinstance(ran, Ran):
                ran = await ran
        except BaseException:
            with contextlib.suppress(StoreUnavailable):
                await waits.end(begun.rollback)
            raise
        execution.is_ending = True
        execution.is_undone = ran.ending is Ending.ASKED
        ran = self._within_limit(ran)
        match ran.ending:
            case Ending.SUCCEEDED:
                held = await waits.end(partial(begun.commit, ran.body, claim.ttl))
            case Ending.DECLARED:
                held = await waits.end(partial(begun.reject, ran.body, claim.ttl))
            case _:
                await waits.end(begun.rollback)
                held = None
        return ran.body if held is None else held

    # What both need

    def make_claim(self, command: Command, owner: str) -> Claim:
        """Make the claim of a command."""
        settings, ttl = self._settings, self._choose_ttl(command)
        return Claim(command, owner, settings.lease, settings.unknown_ttl, ttl)

    def _choose_ttl(self, command: Command) -> float:
        """Say how long an outcome is kept: never shorter than it may be asked for."""
        ttl = self._settings.ttl
        return ttl if command.window is None else max(ttl, command.window)

    async def _wait_elsewhere(
        self, waits: Waits, execution: Execution, lease_left: float, give_up: float
    ) -> None:
        """Wait while another process runs the command; return when a claim is worth a try."""
        lease_end = time.monotonic() + lease_left
        pause = FIRST_POLL
        first_seen: Record | None = None
        is_alive = False
        while (now := time.monotonic()) < lease_end:
            if execution.is_abandoned and not execution.has_begun:
                raise Abandoned
            if now >= give_up:
                raise make_in_progress(lease_end - now, is_alive=is_alive)
            await waits.pause(min(pause, give_up - now))
            pause = min(pause * 2, LAST_POLL)
            record = await waits.call(self._store.look, execution.identity)
            if record is None or record.state is not State.RUNNING:
                return
            first_seen = first_seen or record
            is_alive = record.lease_until > first_seen.lease_until
        if time.monotonic() >= give_up:
            raise make_in_progress(0.0)

    async def _submit_or_owe(self, waits: Waits, operation: Operation) -> None:
        try:
            await waits.submit(operation)
        except StoreUnavailable:
            self._heartbeat.owe(operation)

    def _within_limit(self, ran: Ran) -> Ran:
        if len(ran.body) <= self._settings.max_outcome_bytes:
            return ran
        error = ResultUnserializable(data={"limit": self._settings.max_outcome_bytes})
        return Ran(error_member(error), Ending.UNSERIALIZABLE)


def make_in_progress(lease_left: float, *, is_alive: bool = False) -> InProgress:
    """Make the refusal that tells when to ask again.

    A run that is alive may end at any time, so soon. Of one that gave no sign of life more is known
    when its lease is over.
    """
    seconds = min(max(lease_left, SOONEST), SOON if is_alive else LATEST)
    return InProgress(data={"retry_after_ms": int(seconds * 1000)})


def _cut_off(command: Command) -> RpcError:
    """Make the answer of a run that cannot tell its outcome: only some can be asked for again."""
    if command.promise is Promise.RETRY_SAFE:
        return make_in_progress(0.0)
    return OutcomeUnknown()


def _replay(answer: object) -> bytes:
    match answer:
        case Replay(outcome):
            return outcome
        case Mismatch():
            raise KeyReused()
        case Unknown():
            raise OutcomeUnknown()
    raise AssertionError(f"{answer!r} is no answer to a claim")
