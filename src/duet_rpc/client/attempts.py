"""The attempts at one call, a command's key and age, and commands whose outcome is unknown.

A command that is sent again says how long ago it was first sent: a server that cannot know any more
what became of it then does not run it twice.
"""

import os
from math import ceil
from typing import Any

from duet_rpc.engine.calls import encode_params
from duet_rpc.errors import (
    Cancelled,
    ConnectFailed,
    DeadlineExceeded,
    InProgress,
    InvalidParams,
    InvalidRequest,
    KeyReused,
    MethodNotFound,
    OutcomeUnknown,
    Overloaded,
    ParseError,
    RpcError,
    ShuttingDown,
    StoreUnavailable,
    UsageError,
)
from duet_rpc.options import check, is_time_left
from duet_rpc.wire.params import RetryAge, add_metadata, find_key

NOT_BEGUN = (ConnectFailed, Overloaded, ShuttingDown, StoreUnavailable)
"""What an attempt ends with of which the server has run nothing."""
REFUSED = (ParseError, InvalidRequest, MethodNotFound, InvalidParams, KeyReused)
"""Answers of a server that has run nothing, and would run nothing if it were asked again."""
UNSETTLED = (*NOT_BEGUN, *REFUSED, InProgress, DeadlineExceeded, OutcomeUnknown, Cancelled)
"""Answers after which the outcome of a command that was sent before is as unknown as before."""


class Attempts:
    """The attempts at one call so far; a command's tell their age from the second one on.

    A query's do not: it has no effect that a second attempt could repeat. The clock starts with the
    first that may have had an effect. One that was certainly not sent, or that was refused before
    it began, had none, and what follows it is a first attempt again.
    """

    def __init__(
        self, params: bytes | None, key: str | None = None, since: float | None = None
    ) -> None:
        self._params = params
        self.key = key
        self._sent = 0
        self.since: float | None = None
        """When the first one was sent that may have had an effect; None if there was none."""
        self._began: float | None = None
        self.include(since)

    def include(self, since: float | None) -> None:
        """Take when another call has sent the same command; None if none is known of."""
        if since is None:
            return
        self._sent = max(self._sent, 1)
        self.since = since if self.since is None else min(self.since, since)

    def begin(self, now: float) -> bytes | None:
        """Make the params of the next one, which is sent now."""
        self._began = now
        if self.key is None:
            return self._params
        retry = None
        if self.since is not None:
            retry = RetryAge(self._sent + 1, in_ms(now - self.since))
        return add_metadata(self._params, key=self.key, retry=retry)

    def end(self, failure: BaseException) -> None:
        """Take how the last one failed, if there is one that has not ended yet."""
        began, self._began = self._began, None
        if began is None:
            return
        if not isinstance(failure, ConnectFailed):
            self._sent += 1
        if not isinstance(failure, (*NOT_BEGUN, *REFUSED, UsageError)) and self.since is None:
            self.since = began


class Doubts:
    """When each command was first sent whose outcome is not known: it may be sent again by hand."""

    MOST = 1000
    """Of more, the oldest is forgotten."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str | None], float] = {}

    def since(self, method: str, key: str | None) -> float | None:
        """Say when a command was first sent; None if it is not in doubt."""
        return self._since.get((method, key))

    def note(self, method: str, attempts: Attempts, failure: BaseException | None) -> None:
        """Take how a command has ended; None: with a result."""
        command = (method, attempts.key)
        if failure is None or (
            isinstance(failure, RpcError) and not isinstance(failure, UNSETTLED)
        ):
            self._since.pop(command, None)
            return
        attempts.end(failure)
        if attempts.since is None:
            return
        self._since[command] = min(attempts.since, self._since.get(command, attempts.since))
        if len(self._since) > self.MOST:
            self._since.pop(next(iter(self._since)), None)


def in_ms(seconds: float) -> int:
    """Say an age in milliseconds, rather more than less: too young may run a command twice."""
    return ceil(max(0.0, seconds) * 1000)


def retry_after(error: RpcError) -> float:
    """Read how long a refusal asks us to wait, in seconds."""
    hint = error.data.get("retry_after_ms") if isinstance(error.data, dict) else None
    return hint / 1000 if isinstance(hint, (int, float)) and 0 <= hint <= 60_000 else 0.0


def new_key() -> str:
    """Make an idempotency key that no one else makes."""
    return os.urandom(16).hex()


def settle_key(params: Any, key: str | None, age: float | None) -> tuple[bytes | None, str]:
    """Encode the params of a command, and say its key: as given, or as in them, or a new one.

    Two that differ are a `UsageError`.
    """
    if key is not None:
        check("key", key, isinstance(key, str), "text of 1 to 255 printable characters")
    encoded = encode_params(params)
    key = find_key(encoded, key)
    if age is not None:
        check("age", age, is_time_left(age), "seconds since the first try, 0 or more")
        if key is None:
            raise UsageError("age= tells of a try before this one, so it needs the key of that")
    return encoded, new_key() if key is None else key
