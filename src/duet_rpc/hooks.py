"""Hooks: middleware around handlers, and typed events of what happens on a server or a client.

    class Timing(Hooks):
        def around(self, call, next):
            begun = time.perf_counter()
            try:
                return next(call)
            finally:
                print(call.method, time.perf_counter() - begun)

    Server(service, hooks=[Timing()])

Without hooks nothing of this is loaded, and no request pays for it.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal, TypeAlias

from msgspec import Raw, Struct

from duet_rpc.context import Context, Origin, RemotePeer
from duet_rpc.errors import RpcError, UsageError

__all__ = [
    "AnswerDropped",
    "CallSent",
    "CallSettled",
    "CommandTransition",
    "ConnectionClosed",
    "ConnectionOpened",
    "Event",
    "FrameFault",
    "Hooks",
    "Invocation",
    "RequestBegun",
    "RequestEnded",
    "RequestRefused",
]


class ConnectionOpened(Struct, frozen=True):
    """A peer is there."""

    origin: Origin
    peer: RemotePeer
    """The other end, to be kept: it can be notified and called outside of any request."""


class ConnectionClosed(Struct, frozen=True):
    """A peer is gone."""

    origin: Origin
    requests: int
    """Messages of the peer that were requests or notifications."""
    faults: int
    """Those that could not be read."""
    peer: RemotePeer
    """The other end that was; equal to that of `ConnectionOpened`."""


class FrameFault(Struct, frozen=True):
    """Something came that cannot be read."""

    origin: Origin
    reason: str
    """A word of ours, such as `oversize`; nothing of what came."""
    what: Literal["frame", "message", "late frame", "answer"]
    """It is no frame; or its body is no message; or its rest did not come in time; or it is the
    answer to a call of ours, which has ended with `InvalidAnswer`."""
    id: bytes | None = None
    """The raw id of a message, if that could be read."""


class RequestBegun(Struct, frozen=True):
    """A request or a notification has passed every rule; its handler is next."""

    origin: Origin
    method: str
    correlation_id: str
    key: str | None
    """The idempotency key of a command."""


class RequestEnded(Struct, frozen=True):
    """It is over. Its caller may have been answered before, if it has cancelled."""

    origin: Origin
    method: str
    correlation_id: str
    key: str | None
    error: RpcError | None
    """What the caller is answered instead of a result. The `__cause__` of one that stands for an
    unforeseen exception is that exception."""


class RequestRefused(Struct, frozen=True):
    """A request or a notification was not begun: it broke a rule, or there is no room for it."""

    origin: Origin
    method: str
    correlation_id: str | None
    """None for a notification."""
    error: RpcError
    id: bytes | None
    """The raw id; None for a notification."""


class CommandTransition(Struct, frozen=True):
    """A command with a key went on: its handler began, or its outcome is recorded."""

    origin: Origin
    method: str
    key: str
    state: Literal["running", "done", "none", "unknown"]
    """`none`: it was rolled back or given back, and may be sent again."""


class CallSent(Struct, frozen=True):
    """We ask the peer something. The call may still wait for the peer to read."""

    origin: Origin
    id: int
    method: str


class CallSettled(Struct, frozen=True):
    """A call of ours is over."""

    origin: Origin
    id: int
    method: str
    error: Exception | None
    """`Cancelled` if we gave it up: it was cancelled, or its time was over."""


class AnswerDropped(Struct, frozen=True):
    """An answer came that no open call waits for: late, repeated, or never asked for."""

    origin: Origin
    id: bytes
    """The raw id."""
    error: RpcError | None
    """Of an answer under the id null: it may refuse a notification of ours."""

    @property
    def refuses_notification(self) -> bool:
        """Whether the peer says that a notification of ours was not taken."""
        reasons = ("command-requires-id", "notification-not-allowed")
        return self.error is not None and self.error.reason in reasons


Event: TypeAlias = (
    ConnectionOpened
    | ConnectionClosed
    | FrameFault
    | RequestBegun
    | RequestEnded
    | RequestRefused
    | CommandTransition
    | CallSent
    | CallSettled
    | AnswerDropped
)


class Invocation(Struct, frozen=True):
    """What is about to be run: a handler, or the ledger that runs it once."""

    context: Context
    """The request: who asks, under which ids and key. The handler gets the same, if it takes one.
    """
    params: Raw | None
    """The params as they came, encoded."""

    @property
    def method(self) -> str:
        """The name of the method."""
        return self.context.method


class Hooks:
    """The base class of hooks: override what you need.

    What one of them does may happen on any thread, several at a time.
    """

    def on(self, event: Event) -> None:
        """Take an event. What this raises is logged and changes nothing."""

    def around(self, call: Invocation, next: Callable[[Invocation], Raw]) -> Any:
        """Run a `def` handler by `next(call)`; it runs on this thread.

        `next` returns the encoded result, or raises the `RpcError` that the caller would be
        answered. Return it, or another value in its place; raise an `RpcError` to refuse. A command
        that was done before is not run again by `next`; its recorded outcome is returned or raised.
        """
        return next(call)

    async def around_async(
        self, call: Invocation, next: Callable[[Invocation], Awaitable[Raw]]
    ) -> Any:
        """Do the same for an `async def`: `await next(call)`."""
        return await next(call)


def check_hooks(hooks: Iterable[Hooks], *, has_async: bool) -> tuple[Hooks, ...]:
    """Refuse hooks that cannot work, or that would leave a handler out."""
    found = tuple(hooks)
    for hook in found:
        if not isinstance(hook, Hooks):
            raise UsageError(f"hooks are objects of subclasses of duet_rpc.hooks.Hooks: {hook!r}")
        name = type(hook).__name__
        if wraps(hook, "around") and not wraps(hook, "around_async") and has_async:
            raise UsageError(
                f"{name}.around is for def handlers, and some are async def:"
                f" override {name}.around_async too"
            )
        if wraps(hook, "around_async") and not wraps(hook, "around"):
            raise UsageError(
                f"{name}.around_async is for async def handlers, and some are def:"
                f" override {name}.around too"
            )
    return found


def wraps(hook: Hooks, verb: Literal["around", "around_async"]) -> bool:
    """Tell whether a hook has a middleware of its own."""
    return getattr(type(hook), verb) is not getattr(Hooks, verb)
