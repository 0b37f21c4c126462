"""A store in Redis or Valkey: shared and fast, but with no transactions for handlers.

Each operation is a script, so that it is applied as a whole and by the server's clock; a group of
them is one pipeline. The common case is decided in the script, by token and owner; what it leaves
open is read back and decided by `states`. Records that have an outcome expire by themselves;
only runs that were cut off are swept.

It is as durable as the server is told to be: without the append-only file a restart forgets, and a
failover to a replica may lose what was answered last.
"""

import encodings.idna  # noqa: F401  # for the name of a host; see below
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import redis
from redis.exceptions import (
    AuthenticationError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as Silence

from duet_rpc.errors import StoreUnavailable, UsageError
from duet_rpc.forks import renew_in_child
from duet_rpc.ledger.faults import CircuitBreaker, StoreFault, unavailable
from duet_rpc.ledger.states import (
    ALWAYS,
    Answer,
    Claim,
    Claimed,
    Fenced,
    Identity,
    Kept,
    Operation,
    Record,
    as_seen,
    decide_claim,
    must_have_record,
)
from duet_rpc.ledger.stores.base import (
    UNKNOWN_TTL,
    Capabilities,
    Decide,
    Found,
    RecordStore,
    compare_and_swap,
)
from duet_rpc.ledger.stores.redis.scripts import (
    BEGIN,
    LOAD,
    PREFIX,
    SCRIPTS,
    STORE,
    SWAP,
    SWEEP,
    UPKEEP,
    ScriptCall,
    key_of,
    pack,
    read_found,
    script,
    slack,
    swap_values,
)
from duet_rpc.ledger.upkeep import Clocks

T = TypeVar("T")

# The client imports more for its first connection. A thread must not be at that when another forks:
# the child would wait for the rest of that import, and nothing is left there that goes on with it.
redis.Connection()  # type: ignore[no-untyped-call]

_AT_ONCE = struct.pack("ii", 1, 0)
"""For SO_LINGER: a close throws away what was not sent."""

_FAULTS = {
    "OOM": StoreFault.FULL,
    "MISCONF": StoreFault.FULL,
    "READONLY": StoreFault.READ_ONLY,
    "NOAUTH": StoreFault.FORBIDDEN,
    "NOPERM": StoreFault.FORBIDDEN,
    "WRONGPASS": StoreFault.FORBIDDEN,
    "LOADING": StoreFault.UNREACHABLE,
    "BUSY": StoreFault.UNREACHABLE,
    "MASTERDOWN": StoreFault.UNREACHABLE,
    "CLUSTERDOWN": StoreFault.UNREACHABLE,
    "NOREPLICAS": StoreFault.UNREACHABLE,
}
"""What errors of a server mean, by their first word."""


class RedisStore(RecordStore):
    """Records as hashes under `duet:command:` keys of one database.

    `timeout` is how long the server may take to answer; after that the store counts as unavailable
    until it answers again.
    """

    keeps = ("redis", "as its server does")

    def __init__(self, url: str, *, timeout: float = 5.0):
        if timeout <= 0:
            raise UsageError(f"timeout is {timeout!r}; give the seconds that a server may take")
        self._url = url
        self._timeout = timeout
        # One retry of our own instead of the client's: it knows nothing of scripts that are gone.
        connect = partial(_client, url, timeout)
        self._client = connect()
        self._breaker = CircuitBreaker(self._probe, fresh=timeout / 2)
        self.idle: list[Any] = []
        # The client too: it has locks, and a thread of the parent may hold one while it connects.
        renew_in_child(self, idle=list, _client=connect)
        self._capabilities: Capabilities | None = None
        self._has_begun = False

    @property
    def capabilities(self) -> Capabilities:
        """What the server promises by its settings, asked until it has answered once."""
        if self._capabilities is None:
            try:
                info = self._twice(lambda: self._client.info("persistence"))
            except StoreUnavailable:
                note = "it has no transactions, and could not be asked whether it forgets"
                return Capabilities(transactional=False, durable=True, note=note)
            is_logged = bool(info.get("aof_enabled"))
            self._capabilities = Capabilities(
                transactional=False,
                durable=is_logged,
                note="it has no transactions; failover may lose records"
                if is_logged
                else "it has no transactions; without the append-only file a restart forgets",
            )
        return self._capabilities

    def since(self, ttl: float) -> tuple[float, float]:
        return self._upkeep(slack(ttl))

    def sweep(
        self, limit: int = 500, *, unknown_ttl: float = UNKNOWN_TTL, clocks: Clocks | None = None
    ) -> int:
        """See `Store.sweep`. The server drops what is finished when its time is over."""
        if clocks is not None:
            self._upkeep(slack(clocks.ttl))
        values = (limit, unknown_ttl, unknown_ttl + slack(unknown_ttl))
        return int(self._one((SWEEP, STORE, values)))

    def close(self) -> None:
        self._breaker.close()
        self._drop_idle()
        self._client.close()

    def _commit(self, operations: Sequence[Operation]) -> list[Answer | Exception]:
        if not self._has_begun:
            self._one((BEGIN, STORE, ()))
            self._has_begun = True
        calls = [script(operation) for operation in operations]
        replies = self._twice(lambda: self._run(calls))
        return [
            self._answer(operation, reply)
            for operation, reply in zip(operations, replies, strict=True)
        ]

    def _answer(self, operation: Operation, reply: Any) -> Answer | Exception:
        if isinstance(reply, Exception):
            return refusal(reply)
        if isinstance(reply, int):
            return Claimed(reply, 1) if isinstance(operation, Claim) else Kept()
        if not isinstance(operation, Claim):
            return Fenced(read_found(*reply)[0])
        try:
            since = ALWAYS
            if must_have_record(operation):
                since, _ = self._upkeep(slack(operation.ttl))
            return self._change(
                operation.identity, lambda found, now, _: decide_claim(operation, found, now, since)
            )
        except Exception as error:
            return error

    def _change(self, identity: Identity, decide: Decide) -> Answer:
        key = key_of(identity)

        def swap(found: Record | None, kept: Record | None, now: float) -> bool:
            swapped: bool = self._one((SWAP, key, swap_values(found, kept, now))) == 1
            return swapped

        return compare_and_swap(partial(self._load, identity), swap, decide)

    def _load(self, identity: Identity) -> Found:
        """Read a record; `_upkeep` alone tells since when the store remembers."""
        return *read_found(*self._one((LOAD, key_of(identity), ()))), ALWAYS

    def _upkeep(self, unseen: float) -> tuple[float, float]:
        """Look at the clock; return since when the store remembers, and the time.

        It begins anew if its clock was not looked at for longer than `unseen` seconds.
        """
        since, now = self._one((UPKEEP, STORE, (unseen,)))
        return float(since), float(now)

    def _one(self, call: ScriptCall) -> Any:
        [reply] = self._twice(lambda: self._run([call]))
        if isinstance(reply, Exception):
            raise refusal(reply)
        return reply

    def _list(self) -> Iterator[Record]:
        """See `RecordStore._list`. Reads every record there is, one by one."""
        keys = self._twice(lambda: list(self._client.scan_iter(f"{PREFIX}*", count=1000)))
        for key in keys:
            found, now = read_found(*self._one((LOAD, key.decode(), ())))
            seen = None if found is None else as_seen(found, now)
            if seen is not None:
                yield seen

    def _run(self, calls: Sequence[ScriptCall]) -> list[Any]:
        replies = self._pipe(calls)
        # A server that was restarted has forgotten its scripts.
        lost = [n for n, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if lost:
            for source in SCRIPTS.values():
                self._client.script_load(source)
            for number, reply in zip(lost, self._pipe([calls[n] for n in lost]), strict=True):
                replies[number] = reply
        return replies

    def _pipe(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Send any number of calls at once and read their replies, errors among them.

        On connections of our own: the client's ways to a connection and back, and into its
        protocol, cost more than a script does.
        """
        message = b"".join(map(pack, calls))
        try:
            connection = self.idle.pop()
        except IndexError:
            connection = self._client.connection_pool.get_connection()
        is_whole = False
        try:
            connection.send_packed_command([message])
            replies = [_read(connection) for _ in calls]
            is_whole = True
            return replies
        finally:
            if is_whole:
                self.idle.append(connection)
            else:
                self._drop(connection, unread=True)

    def _drop(self, connection: Any, *, unread: bool = False) -> None:
        if unread and connection._sock is not None:
            # What lies unsent in our own buffers must not arrive later, when others have acted.
            connection._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            connection._sock.close()
        connection.disconnect()
        self._client.connection_pool.release(connection)

    def _drop_idle(self) -> None:
        with suppress(IndexError):
            while True:
                self._drop(self.idle.pop())
        self._client.connection_pool.disconnect(inuse_connections=False)

    def _twice(self, use: Callable[[], T]) -> T:
        """Ask the server; once more if the line fails, for it may have gone stale with a restart.

        Whatever is asked bears that: an owner who claims or finishes again is known.
        """
        self._breaker.admit()
        try:
            try:
                return use()
            except Silence:
                raise
            except RedisError:
                # Only the idle ones: what other threads read from must not be closed under them.
                self._drop_idle()
                return use()
        except RedisError as error:
            if isinstance(error, Silence):
                self._breaker.lost()
            raise refusal(error) from error

    def _probe(self) -> None:
        """See whether the server answers."""
        client = _client(self._url, self._timeout / 2)
        try:
            client.ping()
        except RedisError as error:
            raise refusal(error) from error
        finally:
            client.close()


def _read(connection: Any) -> Any:
    try:
        return connection.read_response()
    except ResponseError as error:
        return error


def _client(url: str, timeout: float) -> "redis.Redis":
    return redis.Redis.from_url(
        url, socket_timeout=timeout, socket_connect_timeout=timeout, retry=None
    )


def refusal(error: Exception) -> StoreUnavailable:
    """Say what an error of the server or the line means to a caller."""
    if isinstance(error, Silence):
        return unavailable(StoreFault.SILENT, error)
    if isinstance(error, AuthenticationError | NoPermissionError):
        return unavailable(StoreFault.FORBIDDEN, error)
    if isinstance(error, ReadOnlyError):
        return unavailable(StoreFault.READ_ONLY, error)
    if isinstance(error, OutOfMemoryError):
        return unavailable(StoreFault.FULL, error)
    if not isinstance(error, ResponseError):
        return unavailable(StoreFault.UNREACHABLE, error)
    # The driver has taken the first word off some errors, but not off all of them.
    return unavailable(_FAULTS.get(str(error).partition(" ")[0], StoreFault.FAILED), error)
