"""One flight from its claim to its answer: the logic that threads and event loops share.

    claim  -> the store says who runs; a duplicate of another process polls, with nothing held
    run    -> the handler; meanwhile the heart keeps the lease
    finish -> the outcome is durable before anybody is answered

Transactional commands are shorter: begin, run, commit. The rule behind every branch: what may have
had an effect is never given back as if it had not, and nothing is answered that the store does not
hold.
"""

import contextlib
import logging
import time
from functools import partial

from duet_rpc.errors import (
    InProgress,
    KeyReused,
    OutcomeUnknown,
    ResultUnserializable,
    RpcError,
    StoreUnavailable,
)
from duet_rpc.ledger.faults import explain
from duet_rpc.ledger.inflight import Ended, Flight
from duet_rpc.ledger.leases import Beat, Heart, about
from duet_rpc.ledger.running import Ending, Ran, Run, error_body
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
from duet_rpc.ledger.waits import Steps, Work
from duet_rpc.tracebacks import OwnFault

log = logging.getLogger("duet_rpc.ledger")

FIRST_POLL, LAST_POLL = 0.005, 0.1
"""How long a duplicate of another process waits between two looks at the record: ever longer."""
FIRST_RETRY, LAST_RETRY = 0.05, 1.0
"""The same for an outcome that the store cannot take."""
REPORT_EVERY = 1.0
SOONEST, SOON, LATEST = 0.1, 1.0, 60.0
"""What a caller is told to wait before it asks again, in seconds: the bounds, and the usual."""


class Abandoned(Exception):
    """The caller went away before the handler began, so it did not begin."""


class Conductor:
    """Takes flights from claim to landing."""

    def __init__(
        self,
        store: Store,
        heart: Heart,
        lease: float,
        wait: float,
        ttl: float,
        unknown_ttl: float,
        max_outcome_bytes: int,
    ):
        self._store = store
        self._heart = heart
        self._lease = lease
        self._wait = wait
        self._ttl = ttl
        self._unknown_ttl = unknown_ttl
        self._max_outcome_bytes = max_outcome_bytes
        self._reported = -REPORT_EVERY

    async def conduct(self, steps: Steps, flight: Flight, work: Work, give_up: float) -> bytes:
        """Run a command or find its outcome, land the flight with it, and return it."""
        ended: Ended = None
        try:
            if flight.command.promise is Promise.TRANSACTIONAL:
                ended = await self._transact(steps, flight, work, give_up)
            else:
                ended = await self._claim_and_run(steps, flight, work, give_up)
            return ended
        except StoreUnavailable as error:
            self._report(flight, error)
            ended = error
            raise
        except RpcError as error:
            ended = error
            raise
        finally:
            flight.land(ended)

    def _report(self, flight: Flight, error: StoreUnavailable) -> None:
        """Log why commands are refused: one of them a second."""
        now = time.monotonic()
        if now - self._reported >= REPORT_EVERY:
            self._reported = now
            command = flight.command
            fields = {"method": command.method, "correlation_id": command.correlation_id}
            why = explain(error)
            log.warning("a command was refused: %s", why, extra={"duet_rpc": fields})

    # Commands whose effects are nobody's business but the handler's

    async def _claim_and_run(
        self, steps: Steps, flight: Flight, work: Work, give_up: float
    ) -> bytes:
        claimed = await self._claim(steps, flight, give_up)
        if isinstance(claimed, bytes):
            return claimed
        command, beat, attempt = flight.command, *claimed
        release = Release(beat.identity, beat.owner)
        if flight.is_abandoned:
            await self._submit_or_owe(steps, release)
            raise Abandoned
        self._heart.keep(beat)
        try:
            flight.has_begun = True
            try:
                ran = await steps.work(work, Run(command, beat.token, attempt))
            except BaseException:
                # An effect may have happened: the lease ends now, so that retries need not wait for
                # what they will be told.
                give_back = Renew(beat.identity, beat.token, beat.owner, 0.0, self._unknown_ttl)
                is_safe = command.promise is Promise.RETRY_SAFE
                await self._submit_or_owe(steps, release if is_safe else give_back)
                raise
            flight.is_ending = True
            ran = self._within_limit(ran)
            if ran.ending is Ending.FAILED and command.promise is Promise.RETRY_SAFE:
                await self._submit_or_owe(steps, release)
                return ran.body
            return await self._finish(steps, flight, beat, ran.body)
        finally:
            self._heart.drop(beat)

    async def _claim(
        self, steps: Steps, flight: Flight, give_up: float
    ) -> tuple[Beat, int] | bytes:
        command = flight.command
        claim = Claim(command, flight.owner, self._lease, self._unknown_ttl, self._ttl)
        for owed in self._heart.owed(flight.identity):
            # A claim of ours whose answer was lost must not keep us waiting for its lease.
            await steps.submit(owed)
            self._heart.settled(owed)
        while True:
            asked = time.monotonic()
            try:
                answer = await steps.submit(claim)
            except BaseException:
                # The claim may have been committed and only its answer lost.
                self._heart.owe(Release(flight.identity, flight.owner))
                raise
            match answer:
                case Claimed(token, attempt):
                    correlation_id = command.correlation_id
                    beat = Beat(flight.identity, token, flight.owner, correlation_id, asked)
                    return beat, attempt
                case Busy(lease_left):
                    await self._wait_elsewhere(steps, flight, lease_left, give_up)
                case _:
                    return _replay(answer)

    async def _finish(self, steps: Steps, flight: Flight, beat: Beat, body: bytes) -> bytes:
        finish = Finish(beat.identity, beat.token, beat.owner, body, self._ttl)
        pause = FIRST_RETRY
        while True:
            try:
                answer = await steps.submit(finish)
                break
            except StoreUnavailable as error:
                if time.monotonic() >= beat.renewed + self._lease:
                    self._heart.owe(finish)
                    raise _cut_off(flight.command) from error
            except Exception as error:
                # The handler has run: no fault of a store may be told as if it were an outcome.
                log.error(
                    "the store failed to take an outcome",
                    exc_info=OwnFault(error),
                    extra=about(beat),
                )
                raise _cut_off(flight.command) from error
            await steps.pause(min(pause, self._lease / 6))
            pause = min(pause * 2, LAST_RETRY)
        if isinstance(answer, Fenced):
            return await self._what_the_store_says(steps, flight, answer.record)
        return body

    async def _what_the_store_says(
        self, steps: Steps, flight: Flight, record: Record | None
    ) -> bytes:
        command = flight.command
        give_up = time.monotonic() + self._wait
        try:
            while record is not None and record.state is State.RUNNING:
                await self._wait_elsewhere(steps, flight, self._lease, give_up)
                record = await steps.call(self._store.look, flight.identity)
        except StoreUnavailable as error:
            # That word would tell the caller that its handler has not run.
            raise _cut_off(command) from error
        if record is not None and record.fingerprint == command.fingerprint:
            if record.outcome is not None:
                return record.outcome
        raise _cut_off(command)

    # Commands whose effects are in the store's own database

    async def _transact(self, steps: Steps, flight: Flight, work: Work, give_up: float) -> bytes:
        command = flight.command
        claim = Claim(command, flight.owner, self._lease, self._unknown_ttl, self._ttl)
        while True:
            patience = max(give_up - time.monotonic(), 0.0)
            begun = await steps.begin(self._store, claim, patience)
            if not isinstance(begun, Busy):
                break
            await self._wait_elsewhere(steps, flight, begun.lease_left, give_up)
        if isinstance(begun, Replay | Unknown | Mismatch):
            return _replay(begun)
        if flight.is_abandoned:
            await steps.end(begun.rollback)
            raise Abandoned
        flight.has_begun = True
        try:
            ran = await steps.work(work, Run(command, begun.token, 1, begun.connection))
        except BaseException:
            with contextlib.suppress(StoreUnavailable):
                await steps.end(begun.rollback)
            raise
        flight.is_ending = True
        ran = self._within_limit(ran)
        match ran.ending:
            case Ending.SUCCEEDED:
                held = await steps.end(partial(begun.commit, ran.body, self._ttl))
            case Ending.DECLARED:
                held = await steps.end(partial(begun.reject, ran.body, self._ttl))
            case _:
                await steps.end(begun.rollback)
                held = None
        return ran.body if held is None else held

    # What both need

    async def _wait_elsewhere(
        self, steps: Steps, flight: Flight, lease_left: float, give_up: float
    ) -> None:
        """Wait while another process runs the command; return when a claim is worth a try."""
        lease_end = time.monotonic() + lease_left
        pause = FIRST_POLL
        first_seen: Record | None = None
        is_alive = False
        while (now := time.monotonic()) < lease_end:
            if flight.is_abandoned and not flight.has_begun:
                raise Abandoned
            if now >= give_up:
                raise in_progress(lease_end - now, is_alive=is_alive)
            await steps.pause(min(pause, give_up - now))
            pause = min(pause * 2, LAST_POLL)
            record = await steps.call(self._store.look, flight.identity)
            if record is None or record.state is not State.RUNNING:
                return
            first_seen = first_seen or record
            is_alive = record.lease_until > first_seen.lease_until
        if time.monotonic() >= give_up:
            raise in_progress(0.0)

    async def _submit_or_owe(self, steps: Steps, operation: Operation) -> None:
        try:
            await steps.submit(operation)
        except StoreUnavailable:
            self._heart.owe(operation)

    def _within_limit(self, ran: Ran) -> Ran:
        if len(ran.body) <= self._max_outcome_bytes:
            return ran
        error = ResultUnserializable(data={"limit": self._max_outcome_bytes})
        return Ran(error_body(error), Ending.UNSERIALIZABLE)


def in_progress(lease_left: float, *, is_alive: bool = False) -> InProgress:
    """Make the refusal that tells when to ask again.

    A run that is alive may end at any time, so soon. Of one that gave no sign of life more is known
    when its lease is over.
    """
    seconds = min(max(lease_left, SOONEST), SOON if is_alive else LATEST)
    return InProgress(data={"retry_after_ms": int(seconds * 1000)})


def _cut_off(command: Command) -> RpcError:
    """Make the answer of a run that cannot tell its outcome: only some can be asked for again."""
    if command.promise is Promise.RETRY_SAFE:
        return in_progress(0.0)
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
