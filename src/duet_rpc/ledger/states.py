"""The state machine of a command: what each operation means to the record that it finds.

    (none) --claim--> RUNNING(token, lease) --finish--> DONE(outcome)
    RUNNING, lease over:  retry safe -> RUNNING(token + 1) · anything else -> UNKNOWN
    UNKNOWN -> DONE when its own owner finishes late, or an operator resolves it
    release -> (none) when nothing happened
    transactional commands go from (none) to DONE in the one transaction that holds their effects
    a retry that finds (none) where the store cannot know what the first try did -> UNKNOWN
    DONE, claimed by its arguments after their window -> RUNNING, as from (none)

Times come from clocks that may be set. So RUNNING never expires into nothing, a lease is never
longer than a lease, and a record that is still there answers a retry even if its time seems over.

Every function takes the record as it is (or None) and the store's time, and returns a `Decision`:
the answer to give and the record to keep. Law of this file: no I/O, no clock, no threads, no
database. A store that can read, decide and write as one step calls `decide`; one that cannot
(PostgreSQL, Valkey) says the same in conditional statements, and the tests compare it with this
module step by step.
"""

import enum
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from duet_rpc.kinds import Promise as Promise
from duet_rpc.ledger.retry_age import must_have_record, remembers

LEASE_SLACK = 1.0
"""Seconds: a lease that ends later than this after a full one was given by a clock set back."""


class State(enum.Enum):
    """Where a recorded command stands."""

    RUNNING = "running"
    DONE = "done"
    UNKNOWN = "unknown"


class Identity(NamedTuple):
    """What makes two calls the same command: a key means nothing outside principal and method."""

    principal: str
    method: str
    key: str


class Command(Struct, frozen=True):
    """One call of a command, as the engine hands it to the ledger."""

    principal: str
    method: str
    key: str
    fingerprint: bytes
    promise: Promise
    correlation_id: str = ""
    age: float = 0.0
    """Seconds since its first try was sent; zero for a first try, or one that does not say."""
    window: float | None = None
    """Seconds after its end in which it is repeated by a call with the same arguments, which are
    its key; None if its caller gave a key, which holds for as long as the record lives."""

    @property
    def identity(self) -> Identity:
        """The primary key of its record."""
        return Identity(self.principal, self.method, self.key)


class Record(Struct, frozen=True):
    """What a store keeps about one command. Times are the store's own, in seconds since 1970."""

    identity: Identity
    fingerprint: bytes
    promise: Promise
    state: State
    token: int
    owner: str
    attempts: int
    correlation_id: str
    lease_until: float
    created_at: float
    finished_at: float | None
    expires_at: float
    outcome: bytes | None


class Claim(Struct, frozen=True):
    """Ask to run a command. Asking again as the same owner is answered as the first time."""

    command: Command
    owner: str
    lease: float
    unknown_ttl: float
    ttl: float = 86400.0

    @property
    def identity(self) -> Identity:
        """The record that the operation is about."""
        return self.command.identity


class Renew(Struct, frozen=True):
    """Prolong the lease of a run; a lease of zero gives it up at once."""

    identity: Identity
    token: int
    owner: str
    lease: float
    unknown_ttl: float


class Finish(Struct, frozen=True):
    """Record the outcome of a run."""

    identity: Identity
    token: int
    owner: str
    outcome: bytes
    ttl: float


class Release(Struct, frozen=True):
    """Undo a claim: the handler did nothing, or may be run again from the start.

    It needs no token: an owner is one run, and the answer that held the token may have been lost.
    """

    identity: Identity
    owner: str


ALWAYS = float("-inf")
"""Since when a store remembers that has never forgotten anything."""

Operation = Claim | Renew | Finish | Release


class Claimed(Struct, frozen=True):
    """The command is yours to run. Later runs of the same command have higher tokens."""

    token: int
    attempt: int


class Replay(Struct, frozen=True):
    """The command has its outcome; these bytes are the answer."""

    outcome: bytes


class Busy(Struct, frozen=True):
    """Somebody runs it; the lease lasts so many seconds more unless it is renewed."""

    lease_left: float


class Unknown(Struct, frozen=True):
    """A run was cut off and no one can know whether its effect happened."""


class Mismatch(Struct, frozen=True):
    """The key was used with other params."""


class Kept(Struct, frozen=True):
    """The operation took effect."""


class Fenced(Struct, frozen=True):
    """The run no longer owns the command, so nothing was written; this is what the store holds."""

    record: Record | None


Answer = Claimed | Replay | Busy | Unknown | Mismatch | Kept | Fenced
"""The first five answer a claim, the others an operation of the owner."""


class Decision(NamedTuple):
    """An answer, and the record to keep: None for no record, the very same object for no change."""

    answer: Answer
    record: Record | None


def decide(
    operation: Operation, record: Record | None, now: float, since: float = ALWAYS
) -> Decision:
    """Decide any operation on the record found under its identity.

    `since` is when the store began to remember; only a claim asks for it.
    """
    match operation:
        case Claim():
            return decide_claim(operation, record, now, since)
        case Renew():
            return decide_renew(operation, record, now)
        case Finish():
            return decide_finish(operation, record, now)
        case Release():
            return decide_release(operation, record)


def decide_claim(
    claim: Claim, record: Record | None, now: float, since: float = ALWAYS
) -> Decision:
    """Decide who runs: the caller, the run before it, or no one ever again."""
    command = claim.command
    if record is None and must_have_record(claim) and not remembers(claim, now, since):
        return Decision(Unknown(), make_forgotten(claim, now))
    # A retry takes an expired record at its word: either the clock jumped, or the key is used anew
    # with the same params, and the old answer does no harm.
    if (
        record is None
        or (is_expired(record, now) and not command.age)
        or is_after_window(command, record, now)
    ):
        fresh = make_first_run(claim, now, after=record.token if record is not None else 0)
        return Decision(Claimed(fresh.token, fresh.attempts), fresh)
    if record.fingerprint != command.fingerprint:
        return Decision(Mismatch(), record)
    if record.state is State.DONE:
        assert record.outcome is not None, "a finished record holds its outcome"
        return Decision(Replay(record.outcome), record)
    if record.state is State.UNKNOWN:
        return Decision(Unknown(), record)
    if record.owner == claim.owner:
        # The answer to the first try was lost with the connection.
        return Decision(Claimed(record.token, record.attempts), record)
    if record.lease_until > now + claim.lease + LEASE_SLACK:
        # No lease is that long: the clock was set back. A run that is alive renews it anyway.
        return Decision(Busy(claim.lease), make_leased(record, now, claim.lease, claim.unknown_ttl))
    if record.lease_until > now:
        return Decision(Busy(record.lease_until - now), record)
    # Both the run that was cut off and the caller must have declared it: a method that became retry
    # safe with a new release says nothing about how the old code behaved.
    if record.promise is Promise.RETRY_SAFE and command.promise is Promise.RETRY_SAFE:
        again = replace(
            make_first_run(claim, now, after=record.token),
            token=record.token + 1,
            attempts=record.attempts + 1,
            created_at=record.created_at,
        )
        return Decision(Claimed(again.token, again.attempts), again)
    return Decision(Unknown(), cut_off(record, now, claim.unknown_ttl))


def decide_renew(renew: Renew, record: Record | None, now: float) -> Decision:
    """Prolong the lease if the run still owns the command, also when the lease is over already."""
    if record is None or not _owns(renew, record) or record.state is not State.RUNNING:
        return Decision(Fenced(record), record)
    return Decision(Kept(), make_leased(record, now, renew.lease, renew.unknown_ttl))


def decide_finish(finish: Finish, record: Record | None, now: float) -> Decision:
    """Store the outcome if the run still owns the command; a late owner heals an unknown one."""
    if record is None or not _owns(finish, record) or record.state is State.DONE:
        return Decision(Fenced(record), record)
    return Decision(Kept(), make_finished(record, finish.outcome, now, finish.ttl))


def decide_release(release: Release, record: Record | None) -> Decision:
    """Take the record away if the run still owns the command."""
    if record is None or record.owner != release.owner or record.state is not State.RUNNING:
        return Decision(Fenced(record), record)
    return Decision(Kept(), None)


def decide_resolve(record: Record | None, outcome: bytes, now: float, ttl: float) -> Decision:
    """Let an operator say what became of a run that was cut off; a live one is fenced."""
    seen = None if record is None else show_record(record, now)
    if record is None or seen is None or seen.state is not State.UNKNOWN:
        return Decision(Fenced(record), record)
    return Decision(Kept(), make_finished(record, outcome, now, ttl))


def decide_forget(record: Record | None, now: float) -> Decision:
    """Let an operator drop a record, so that the key can be used anew; never that of a live run."""
    if record is None or (record.state is State.RUNNING and record.lease_until > now):
        return Decision(Fenced(record), record)
    return Decision(Kept(), None)


def make_first_run(claim: Claim, now: float, *, after: int = 0) -> Record:
    """Make the record of a run that has just been claimed, with a token above `after`.

    Tokens start at the store's clock in milliseconds rather than at one, so that they also grow
    when a record was released or expired in between: handlers may fence their own downstream with
    them.
    """
    command = claim.command
    until = now + claim.lease
    return Record(
        identity=command.identity,
        fingerprint=command.fingerprint,
        promise=command.promise,
        state=State.RUNNING,
        token=max(int(now * 1000), after + 1),
        owner=claim.owner,
        attempts=1,
        correlation_id=command.correlation_id,
        lease_until=until,
        created_at=now,
        finished_at=None,
        expires_at=until + claim.unknown_ttl,
        outcome=None,
    )


def make_finished(record: Record, outcome: bytes, now: float, ttl: float) -> Record:
    """Make the record of a command that has its outcome; it lives `ttl` from now on."""
    return replace(record, state=State.DONE, outcome=outcome, finished_at=now, expires_at=now + ttl)


def cut_off(record: Record, now: float, unknown_ttl: float) -> Record:
    """Make the record of a run whose owner vanished."""
    return replace(record, state=State.UNKNOWN, expires_at=now + unknown_ttl)


def decide_sweep(record: Record, now: float, unknown_ttl: float) -> Record | None:
    """Decide what stays of a record whose time is over.

    A run that no one has heard of since its lease ended becomes UNKNOWN, for as long as any other:
    it may have had its effect. One that is retry safe goes, for it may be run again at any time.
    """
    if record.state is State.RUNNING and record.promise is not Promise.RETRY_SAFE:
        return cut_off(record, now, unknown_ttl)
    return None


def make_forgotten(claim: Claim, now: float) -> Record:
    """Make the record of a command whose first try no one can tell anything about."""
    return replace(cut_off(make_first_run(claim, now), now, claim.unknown_ttl), lease_until=now)


def make_leased(record: Record, now: float, lease: float, unknown_ttl: float) -> Record:
    """Make the record of a run whose lease counts from now."""
    until = now + lease
    return replace(record, lease_until=until, expires_at=until + unknown_ttl)


def show_record(record: Record, now: float, *, by_retry: bool = False) -> Record | None:
    """Show a record as it stands now, though no one has touched it since its lease ended.

    A retry is shown an expired record too, as `decide_claim` would take it.
    """
    if is_expired(record, now) and not by_retry:
        return None
    lost = record.state is State.RUNNING and record.lease_until <= now
    if lost and record.promise is not Promise.RETRY_SAFE:
        return replace(record, state=State.UNKNOWN)
    return record


def is_expired(record: Record, now: float) -> bool:
    """Tell whether the record's time is over: from then on the key is as good as new.

    That of a RUNNING one never is: its handler may still be at work when the clock jumps.
    """
    return record.expires_at <= now and record.state is not State.RUNNING


def is_after_window(command: Command, record: Record, now: float) -> bool:
    """Tell whether a command whose arguments are its key comes too late to be a repetition.

    The window counts from the end of the first run. A retry comes as early as its first try did. A
    run that goes on, or whose outcome is unknown, is never too long ago: to run beside it, or once
    more, is what no one asked for.
    """
    if command.window is None or record.state is not State.DONE:
        return False
    assert record.finished_at is not None, "a finished record holds its end"
    return now - command.age - record.finished_at >= command.window


def _owns(operation: Renew | Finish, record: Record) -> bool:
    # The token alone would do if records were never released; the owner makes it safe even then.
    return record.token == operation.token and record.owner == operation.owner
