"""Which error a caller gets for what a handler raised: here alone exceptions become wire errors.

An `RpcError` was meant for the caller and is answered as it is. All else is unforeseen: the log
tells all there is to know, and the caller gets the reference under which it appears there.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from duet_rpc.engine.intake import Unserializable
from duet_rpc.engine.log import Log, Silence
from duet_rpc.errors import (
    RESERVED_CODES,
    Cancelled,
    InternalError,
    NeedsInput,
    Overloaded,
    ResultUnserializable,
    RpcError,
    UsageError,
    misuse,
)
from duet_rpc.wire.messages import error_object

if TYPE_CHECKING:
    from duet_rpc.engine.dispatch import Job

_decode_text = msgspec.json.Decoder(str).decode
_COROUTINE = "Encoding objects of type coroutine is unsupported"
"""How msgspec refuses the result of a handler that has not awaited it."""


class Failures:
    """What becomes of requests that fail: their errors, and what is logged of them."""

    def __init__(self, log: Log | None) -> None:
        self.log: Log = log if log is not None else Silence()
        self.leave: Callable[[BaseException | None], object] | None = None
        """Set in a forked child: ends it, because its handler has ended and we serve no one."""
        self._unnumbered = 0

    def forked(self, leave: Callable[[BaseException | None], object]) -> None:
        """This is a copy in a child, which ends by `leave`."""
        self.leave = leave

    def failure(self, error: BaseException, job: "Job", text: str = "handler failed") -> RpcError:
        """Turn what a handler raised into the error that its caller may see."""
        if isinstance(error, NeedsInput):
            return error.refusal
        if self.leave is not None:
            self.leave(None if isinstance(error, Unserializable) else error)
        if isinstance(error, RpcError) and not (error.from_peer and error.code in RESERVED_CODES):
            if (wrong := misuse(error)) is not None:
                text = f"{text}: {wrong}"
            elif not isinstance(error, InternalError):  # which has a reference, and only we know it
                return error
        if isinstance(error, Unserializable):
            text = "a result cannot be sent"
            if str(error.__cause__) == _COROUTINE:
                text += ": it is or holds a coroutine; an await is missing in the handler"
            return self._log_unforeseen(text, error, job)
        if job.answered and type(error).__name__ == "CancelledError":
            return Cancelled()  # its caller has its answer, or is gone
        return self._log_unforeseen(text, error, job)

    def not_started(self, error: Exception, job: "Job") -> bytes:
        """Answer for a host that could not begin: nothing has happened, so it may be sent again."""
        if isinstance(error, UsageError):
            return self.broken_off(error, job, "a handler could not be started")
        self.log.note(
            "error",
            "a handler could not be started",
            method=job.method.name,
            id=job.id,
            correlation_id=self.correlate(job),
            connection_id=job.connection_id,
            why=f"{type(error).__name__}: {error}",
        )
        return error_member(make_overloaded())

    def broken_off(
        self, error: BaseException, job: "Job", text: str = "a handler was broken off"
    ) -> bytes:
        """Answer for a handler that ended, or whose task or thread did, by an exception.

        Never raises, for then the request would have no answer and its slot would not come back.
        """
        try:
            return error_member(self.failure(error, job, text))
        except BaseException:  # even the log fails
            return error_member(InternalError())

    def _log_unforeseen(self, text: str, error: BaseException, job: "Job") -> RpcError:
        """Log all there is to know; the peer gets the reference under which it appears there."""
        reference = self.log.failure(
            text,
            error,
            method=job.method.name,
            id=job.id,
            correlation_id=self.correlate(job),
            connection_id=job.connection_id,
        )
        if isinstance(error, Unserializable):
            detail = "the handler has run, but its result cannot be written as JSON"
            return ResultUnserializable(data={"detail": detail, "reference": reference})
        return InternalError(data={"reference": reference})

    def log_failed_notification(self, job: "Job") -> None:
        """Log that a notification was not done; no answer tells its sender."""
        self.log.note(
            "error",
            "notification failed",
            method=job.method.name,
            id=None,
            correlation_id=self.correlate(job),
            connection_id=job.connection_id,
        )

    # The name of a request in the log.

    def correlation_id(self, id: bytes | None, connection_id: str) -> str:
        """Say a request's id as text; make one up for a message that has none."""
        if id is None:
            self._unnumbered += 1
            return f"{connection_id}-n{self._unnumbered}"
        if id[0] != 0x22:
            return id.decode()
        try:
            return _decode_text(id)
        except msgspec.DecodeError:
            # A lone surrogate: as it is spelled, which every log and every store takes.
            return id[1:-1].decode()

    def correlate(self, job: "Job") -> str:
        """Say the correlation id of a job; every line about it carries the same."""
        if not job.correlation_id:
            job.correlation_id = self.correlation_id(job.id, job.connection_id)
        return job.correlation_id


RETRY_AFTER_MS = 100
"""How long a refused caller is asked to wait: a few times what a quick handler needs."""


def make_overloaded() -> Overloaded:
    """Make the refusal of a request for which there is no room now."""
    detail = "nothing was started: wait a moment, then send it again"
    return Overloaded(data={"detail": detail, "retry_after_ms": RETRY_AFTER_MS})


def error_member(error: RpcError) -> bytes:
    """Encode an error as the member of an answer."""
    return b'"error":' + error_object(error)
