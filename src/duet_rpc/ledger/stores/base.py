"""What a store of commands is, what all of ours share, and how one is chosen by its URL.

A store keeps records and applies the operations of `states` to them, several in one durable
commit. It has its own clock, knows no handlers and no answers on the wire, and never waits for a
command to end: waiting is the ledger's business. All methods block and may be called from any
thread. A store that cannot be reached raises `StoreUnavailable` and works again by itself when the
fault is over.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, NamedTuple, Protocol, runtime_checkable
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from duet_rpc.errors import StoreUnavailable, UsageError
from duet_rpc.ledger.states import (
    Answer,
    Busy,
    Claim,
    Decision,
    Identity,
    Kept,
    Mismatch,
    Operation,
    Record,
    Replay,
    State,
    Unknown,
    decide_forget,
    decide_resolve,
    show_record,
)
from duet_rpc.ledger.upkeep import Clocks
from duet_rpc.redaction import without_password

UNKNOWN_TTL = 7 * 86400.0
"""How long commands of unknown outcome are kept, unless a ledger is given another time."""


class Capabilities(Struct, frozen=True):
    """What a store can promise; `note` says in a sentence what it cannot."""

    transactional: bool
    durable: bool
    note: str = ""
    waits: bool = True
    """Its methods may keep a thread waiting; where they do not, an event loop calls them itself."""
    connection: str = ""
    """The type of connection that a transactional `def`, or one that only reads, is given, by its
    full name; empty if there is none to give."""
    async_connection: str = ""
    """The same for an `async def`."""


class Counts(Struct, frozen=True):
    """The commands in a store by state, and since when (the store's time) the oldest one waits."""

    running: int = 0
    done: int = 0
    unknown: int = 0
    oldest_running: float | None = None
    oldest_unknown: float | None = None


class Series(NamedTuple):
    """The records of one principal whose method begins with a prefix, from a time on."""

    principal: str
    prefix: str
    since: float = 0.0
    """When the first of them was created, by the clock of the store."""

    def holds(self, record: Record) -> bool:
        """Tell whether a record is one of them."""
        principal, method, _ = record.identity
        is_named = principal == self.principal and method.startswith(self.prefix)
        return is_named and record.created_at >= self.since


class StoreTransaction(Protocol):
    """An open database transaction around a handler. Exactly one of the three methods ends it.

    With a driver that waits on an event loop the methods return awaitables.
    """

    connection: Any
    """The handler's database connection."""
    token: int
    """The fencing token of this run."""

    def commit(self, outcome: bytes, ttl: float) -> Awaitable[bytes | None] | bytes | None:
        """Commit the effects and the outcome together.

        Returns None if that is done, else the outcome that the store holds instead. Raises
        `StoreUnavailable` if nothing was committed and `OutcomeUnknown` if no one can know.
        """

    def reject(self, outcome: bytes, ttl: float) -> Awaitable[bytes | None] | bytes | None:
        """Undo the effects and commit the outcome alone; returns and raises as `commit` does."""

    def rollback(self) -> Awaitable[None] | None:
        """Undo everything. Raises `StoreUnavailable` if the database failed meanwhile."""


NotBegun = Replay | Busy | Unknown | Mismatch
Decide = Callable[[Record | None, float, float], Decision]
"""Decides by the record, the time, and since when the store remembers; see `states.decide`."""
Found = tuple[Record | None, float, float]
"""What there is to decide by."""


class Store(Protocol):
    """Where records live."""

    @property
    def capabilities(self) -> Capabilities:
        """What this store can promise."""

    def commit(self, operations: Sequence[Operation]) -> list[Answer | Exception]:
        """Apply the operations in one durable commit; one that fails does not fail the others.

        The answers stand in the order of the operations; an exception is the answer to its own
        operation. Raises `StoreUnavailable` if none could be applied.
        """

    def look(self, identity: Identity, *, by_retry: bool = False) -> Record | None:
        """Read a record as it stands now; None if there is none or its time is over.

        A retry is shown what is still there of a record whose time is over.
        """

    def since(self, ttl: float) -> tuple[float, float]:
        """Tell since when no record was lost that lives for `ttl`, and what time it is.

        Both by the store's own clock.
        """

    def begin(self, claim: Claim, patience: float) -> StoreTransaction | NotBegun:
        """Open a transaction for a handler, or say why not.

        Waits up to `patience` seconds for another transaction with the same command.
        """

    def records(
        self, state: State | None = None, limit: int = 100, *, of: Series | None = None
    ) -> list[Record]:
        """List records as they stand now, the oldest first; all of them, or those of a series."""

    def resolve(self, identity: Identity, outcome: bytes, ttl: float) -> bool:
        """Give a command of unknown outcome the outcome that an operator found out."""

    def forget(self, identity: Identity) -> bool:
        """Drop a record, so that its key can be used anew. Refuses (False) while a run is alive."""

    def sweep(
        self, limit: int = 500, *, unknown_ttl: float = UNKNOWN_TTL, clocks: Clocks | None = None
    ) -> int:
        """Take one step of a sweep; return how many records it changed, at most `limit`.

        Records whose time is over are dropped; those of runs that were cut off become unknown, for
        `unknown_ttl`. With `clocks`, those of a sweeper, the wall clock is not trusted blindly
        and sweepers take turns (see `upkeep`); without, an operator says that it is right.
        """

    def counts(self) -> Counts:
        """Count the records by state."""

    def close(self) -> None:
        """Give back connections. Idempotent."""


@runtime_checkable
class AsyncBeginner(Protocol):
    """A store with an asynchronous driver for transactions on an event loop."""

    def begin_async(self, claim: Claim, patience: float) -> Awaitable[StoreTransaction | NotBegun]:
        """See `Store.begin`."""


@runtime_checkable
class ReadableStore(Protocol):
    """A store that lends connections to its database to queries.

    They are outside of transactions: each statement sees what is committed, and none can write.
    Raises `StoreUnavailable`.
    """

    def read(self) -> AbstractContextManager[Any]:
        """Lend one to a `def`."""

    def read_async(self) -> AbstractAsyncContextManager[Any]:
        """Lend one to an `async def`."""


class RecordStore(Store):
    """What the stores share; each adds how it reads, decides and writes as one step."""

    def _commit(self, operations: Sequence[Operation]) -> list[Answer | Exception]:
        """Apply the operations in one commit; raises if one of them cannot be applied."""
        raise NotImplementedError

    def _load(self, identity: Identity) -> Found:
        """Read a record, if there is one."""
        raise NotImplementedError

    def _change(self, identity: Identity, decide: Decide) -> Answer:
        """Read, decide and write, with no one in between."""
        raise NotImplementedError

    def _list(self, of: Series | None = None) -> Iterable[Record]:
        """Give all records, or those of a series, as they stand now; without a query language."""
        raise NotImplementedError

    def commit(self, operations: Sequence[Operation]) -> list[Answer | Exception]:
        try:
            return self._commit(operations)
        except StoreUnavailable:
            raise
        except Exception as error:
            if len(operations) == 1:
                return [error]
        # One of them cannot be applied: find out which, and spare the others.
        return [answer for each in operations for answer in self.commit([each])]

    def look(self, identity: Identity, *, by_retry: bool = False) -> Record | None:
        record, now, _ = self._load(identity)
        return None if record is None else show_record(record, now, by_retry=by_retry)

    def begin(self, claim: Claim, patience: float) -> StoreTransaction | NotBegun:
        name = type(self).__name__
        raise UsageError(f"{name} has no transactions for handlers; use SQLite or PostgreSQL")

    def records(
        self, state: State | None = None, limit: int = 100, *, of: Series | None = None
    ) -> list[Record]:
        found = [each for each in self._list(of) if state is None or each.state is state]
        return sorted(found, key=lambda record: record.created_at)[:limit]

    def resolve(self, identity: Identity, outcome: bytes, ttl: float) -> bool:
        def decide(found: Record | None, now: float, since: float) -> Decision:
            return decide_resolve(found, outcome, now, ttl)

        return self._change(identity, decide) == Kept()

    def forget(self, identity: Identity) -> bool:
        return self._change(identity, lambda found, now, _: decide_forget(found, now)) == Kept()

    def counts(self) -> Counts:
        by_state: dict[State, list[float]] = {state: [] for state in State}
        for record in self._list():
            by_state[record.state].append(record.created_at)
        return Counts(
            **{state.value: len(times) for state, times in by_state.items()},
            oldest_running=min(by_state[State.RUNNING], default=None),
            oldest_unknown=min(by_state[State.UNKNOWN], default=None),
        )


def compare_and_swap(
    load: Callable[[], Found],
    swap: Callable[[Record | None, Record | None, float], bool],
    decide: Decide,
) -> Answer:
    """Read, decide and write, again and again until no one comes in between."""
    while True:
        found, now, since = load()
        answer, kept = decide(found, now, since)
        if kept is found or swap(found, kept, now):
            return answer


def open_store(url: str) -> Store:
    """Open the store that a URL names.

    `memory:` · `sqlite:///relative/path` · `sqlite:////absolute/path` · `postgresql://…` · `redis://…`
    (also `rediss://`, `unix://` and the same with `valkey`). Raises `UsageError` for anything else
    and for a store whose driver is not installed. A server that is down is no error here.
    """
    scheme, colon, rest = url.partition(":")
    if not colon:
        raise UsageError(f"{url!r} is no store URL; write sqlite:///{url} for a file")
    match scheme:
        case "memory":
            from duet_rpc.ledger.stores.memory import MemoryStore

            return MemoryStore()
        case "sqlite":
            from duet_rpc.ledger.stores.sqlite.store import SqliteStore

            return SqliteStore(file_of(url))
        case "postgresql" | "postgres":
            _need("psycopg", "postgres")
            from duet_rpc.ledger.stores.postgres.store import PostgresStore

            return PostgresStore(url)
        case "redis" | "rediss" | "valkey" | "valkeys" | "unix":
            _need("redis", "redis")
            from duet_rpc.ledger.stores.redis.store import RedisStore

            return RedisStore(f"redis{scheme[6:]}:{rest}" if scheme.startswith("valkey") else url)
    raise UsageError(
        f"no store for {scheme}: URLs; there are memory:, sqlite:, postgresql: and redis:"
    )


def file_of(url: str) -> str:
    """Take the path out of the URL of a file."""
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc or not path.startswith("/") or len(path) < 2:
        raise UsageError(
            f"{without_password(url)!r}: write sqlite:///relative/path or sqlite:////absolute/path"
        )
    return path[1:]


def _need(module: str, extra: str) -> None:
    from importlib.util import find_spec

    if find_spec(module) is None:
        raise UsageError(f"this store needs {module}: pip install 'duet-rpc[{extra}]'")
