"""The options of a client and of a call: as keywords that a type checker knows, and once checked.

Both clients take the same. `ClientOptions` and `CallOptions` are what people write;
`CheckedOptions` and `Expected` are the frozen values that they become.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import msgspec
from msgspec import Struct

from duet_rpc.engine.log import Log
from duet_rpc.engine.results import Decode
from duet_rpc.errors import CallTimeout, ErrorClasses
from duet_rpc.options import SECONDS, check, is_seconds
from duet_rpc.policy import SPEC, Policy
from duet_rpc.retry import Retry
from duet_rpc.service import Service
from duet_rpc.wire.dialect import JSONRPC, Dialect, DialectName, Progress

if TYPE_CHECKING:
    from duet_rpc.hooks import Hooks


RETRY = "a Retry, such as Retry(attempts=3), or None"


class CommonOptions(TypedDict, total=False):
    """What can be said of a client, also of one that a test connects in memory."""

    timeout: float | None
    """Seconds that each call may take; None for no bound. 30 if it is left away."""
    retry: Retry | None
    """How queries and commands are tried again."""
    reconnect: bool | None
    """Whether a call connects anew after a loss; None: if there is a `retry`."""
    framing: Literal["lsp", "ndjson"]
    service: Service | None
    """What is served to the server, which may call back."""
    allow_concurrent_requests: bool
    """Whether a call is sent while another waits for its answer."""
    log: Log | None
    """What is reported of events that belong to no call."""
    errors: Any
    """The classes that the server's errors are raised in, by their codes: `RpcError` subclasses, a
    base class of theirs, or the `Service` that raises them."""
    dialect: Dialect | DialectName
    """How the server spells cancellation, progress and streams: `"jsonrpc"`, `"lsp"` or `"mcp"`."""


class ClientOptions(CommonOptions, total=False):
    """What can be said of a client."""

    policy: Policy
    """Its rules: limits of what it reads, and how its `service` is served."""
    hooks: "Sequence[Hooks]"
    """Run around the handlers of `service`, and given the events of the client's connections."""


class TimeOptions(TypedDict, total=False):
    """How long to wait for one answer."""

    timeout: float | None
    """Seconds, or None for no bound. The client's own if it is left away."""


class CallOptions(TimeOptions, total=False):
    """What can be said of one call."""

    on_progress: Callable[[Progress], object] | None
    """Called with the progress that the server sends, each of which starts the timeout again."""
    total_timeout: float | None
    """Seconds that bound the call whatever its progress, also with `timeout=None`."""
    errors: Any
    """The classes that its errors are raised in, before those of the client."""


class StreamOptions(TimeOptions, total=False):
    """What can be said of a stream. Its timeout bounds each wait for the next item."""

    window: int
    """How many items the server may be ahead of the reader, at most 1,024. 64 if it is left away.
    """
    errors: Any
    """The classes that its errors are raised in, before those of the client."""


class SubscribeOptions(TimeOptions, total=False):
    """What can be said of a subscription.

    Its `timeout` bounds each wait for the next item: None, if it is left away. The client's own is
    for the answer that begins it.
    """

    window: int
    """How many items may be on their way or wait for the reader, at most 1,024, which is usual."""
    errors: Any
    """The classes that its errors are raised in, before those of the client."""


class TryOptions(CallOptions, total=False):
    """What can be said of a call that may be tried again."""

    retry: Retry | None
    """How; as the client's own says if it is left away."""


class KeyOptions(TryOptions, total=False):
    """What can be said of a command."""

    key: str | None
    """Its idempotency key; a new one is made if it is left away."""
    age: float | None
    """How many seconds ago it was first sent under this key, if it was: by another process, say."""


class ItemOptions(TimeOptions, total=False):
    """What can be said of a command in a batch."""

    key: str | None
    age: float | None


class CheckedOptions(Struct, frozen=True, kw_only=True):
    """The options of a client; those that cannot work are refused here, before anything is sent."""

    timeout: float | None = 30.0
    retry: Retry | None = None
    reconnect: bool | None = None
    framing: Literal["lsp", "ndjson"] = "lsp"
    service: Service | None = None
    policy: Policy = SPEC
    allow_concurrent_requests: bool = True
    log: Log | None = None
    errors: Any = None
    dialect: Dialect | DialectName = JSONRPC
    hooks: "Sequence[Hooks]" = ()

    def __post_init__(self) -> None:
        retry, log = self.retry, self.log
        can_log = all(callable(getattr(log, verb, None)) for verb in ("note", "failure"))
        sound = {
            "timeout": (is_seconds(self.timeout), SECONDS),
            "retry": (retry is None or isinstance(retry, Retry), RETRY),
            "reconnect": (
                self.reconnect is None or isinstance(self.reconnect, bool),
                "True, False, or None to reconnect where there is a retry",
            ),
            "framing": (self.framing in ("lsp", "ndjson"), '"lsp" or "ndjson"'),
            "service": (
                self.service is None or isinstance(self.service, Service),
                "a Service that holds your functions, or None",
            ),
            "policy": (isinstance(self.policy, Policy), "one of duet_rpc.policy, such as SPEC"),
            "allow_concurrent_requests": (
                isinstance(self.allow_concurrent_requests, bool),
                "True or False",
            ),
            "log": (
                log is None or can_log,
                "an object with the methods note and failure, or None",
            ),
        }
        for name, (is_sound, accepted) in sound.items():
            check(name, getattr(self, name), is_sound, accepted)

    @property
    def reconnects(self) -> bool:
        """Whether a call connects anew after a loss."""
        return self.retry is not None if self.reconnect is None else self.reconnect


class Expected(Struct, frozen=True):
    """How long to wait for an answer, and what to make of it."""

    decode: Decode | None
    """None if whatever value comes will do."""
    timeout: float | None
    on_progress: Callable[[Progress], object] | None = None
    total_timeout: float | None = None
    """The most that it can take, whatever its progress."""
    errors: tuple[ErrorClasses, ...] = ()
    """The classes that error answers are raised in; the first that has one for the code counts."""
    spent: float = 0.0
    """Seconds of both that had passed before; they are what is left of them."""

    @property
    def limit(self) -> float | None:
        """How long it can take if there is no progress."""
        limits = [each for each in (self.timeout, self.total_timeout) if each is not None]
        return min(limits, default=None)

    def after(self, seconds: float) -> "Expected":
        """Say what it waits for when so many seconds have passed."""
        return msgspec.structs.replace(
            self,
            timeout=_subtract(self.timeout, seconds),
            total_timeout=_subtract(self.total_timeout, seconds),
            spent=self.spent + seconds,
        )

    def too_late(self, method: str, *, in_all: bool) -> CallTimeout:
        """Make the error of a call whose time is over, or whose time in all is."""
        limit = self.total_timeout if in_all else self.timeout
        assert limit is not None, "a call without a limit does not end by it"
        said = f"{limit + self.spent:g} s"
        if in_all:
            return CallTimeout(f"{method}: no result within {said}, its total timeout")
        return CallTimeout(f"{method}: no answer within {said}")


def _subtract(limit: float | None, spent: float) -> float | None:
    return None if limit is None else max(0.0, limit - spent)
