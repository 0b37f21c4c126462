"""Connections to Redis or Valkey: scripts go out many at once, and faults get their meaning.

On connections of our own: the client's ways to a connection and back, and into its protocol, cost
more than a script does.
"""

import encodings.idna  # noqa: F401  # for the name of a host; see below
import socket
import struct
from collections.abc import Callable, Sequence
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

from duet_rpc.errors import StoreUnavailable
from duet_rpc.forks import renew_in_child
from duet_rpc.ledger.faults import CircuitBreaker, StoreFault, make_unavailable
from duet_rpc.ledger.stores.redis.scripts import SCRIPTS, ScriptCall, pack

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


class RedisConnections:
    """The connections of one store. Safe to use from any thread."""

    def __init__(self, url: str, timeout: float):
        self._url = url
        self._timeout = timeout
        # One retry of our own instead of the client's: it knows nothing of scripts that are gone.
        connect = partial(_client, url, timeout)
        self._client = connect()
        self._breaker = CircuitBreaker(self._probe, fresh=timeout / 2)
        self._idle: list[Any] = []
        # The client too: it has locks, and a thread of the parent may hold one while it connects.
        renew_in_child(self, _idle=list, _client=connect)

    def run(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Run scripts at once; an error is the reply to its own script."""
        return self.ask(lambda client: self._run(calls))

    def run_one(self, call: ScriptCall) -> Any:
        """Run one script, and raise the error that its reply may be."""
        [reply] = self.run([call])
        if isinstance(reply, Exception):
            raise make_refusal(reply)
        return reply

    def ask(self, use: Callable[[Any], T]) -> T:
        """Ask the server; once more if the line fails, for it may have gone stale with a restart.

        Whatever is asked bears that: an owner who claims or finishes again is known.
        """
        self._breaker.admit()
        try:
            try:
                return use(self._client)
            except Silence:
                raise
            except RedisError:
                # Only the idle ones: what other threads read from must not be closed under them.
                self._drop_idle()
                return use(self._client)
        except RedisError as error:
            if isinstance(error, Silence):
                self._breaker.lost()
            raise make_refusal(error) from error

    def close(self) -> None:
        """Give the connections back. Idempotent."""
        self._breaker.close()
        self._drop_idle()
        self._client.close()

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
        """Send any number of calls at once and read their replies, errors among them."""
        message = b"".join(map(pack, calls))
        try:
            connection = self._idle.pop()
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
                self._idle.append(connection)
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
                self._drop(self._idle.pop())
        self._client.connection_pool.disconnect(inuse_connections=False)

    def _probe(self) -> None:
        """See whether the server answers."""
        client = _client(self._url, self._timeout / 2)
        try:
            client.ping()
        except RedisError as error:
            raise make_refusal(error) from error
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


def make_refusal(error: Exception) -> StoreUnavailable:
    """Say what an error of the server or the line means to a caller."""
    if isinstance(error, Silence):
        return make_unavailable(StoreFault.SILENT, error)
    if isinstance(error, AuthenticationError | NoPermissionError):
        return make_unavailable(StoreFault.FORBIDDEN, error)
    if isinstance(error, ReadOnlyError):
        return make_unavailable(StoreFault.READ_ONLY, error)
    if isinstance(error, OutOfMemoryError):
        return make_unavailable(StoreFault.FULL, error)
    if not isinstance(error, ResponseError):
        return make_unavailable(StoreFault.UNREACHABLE, error)
    # The driver has taken the first word off some errors, but not off all of them.
    return make_unavailable(_FAULTS.get(str(error).partition(" ")[0], StoreFault.FAILED), error)
