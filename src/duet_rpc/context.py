"""What a handler may ask for beside its params, by annotating a parameter with it.

`Context` tells a handler about the request it answers and lets it talk back to the peer. It works
in both kinds of handler: what it sends, it sends at once; the object that comes back can be awaited
in an `async def` and asked for its `result()` in a `def`.

It has more than 400 lines because everything that a handler can do is described where it is found.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    Protocol,
    TypeAlias,
    TypeVar,
    overload,
)

from msgspec import Struct

from duet_rpc.errors import UsageError
from duet_rpc.options import TIME_LEFT, check, is_time_left
from duet_rpc.wire.dialect import Dialect
from duet_rpc.wire.params import RetryAge
from duet_rpc.wire.surrogates import encode_value

if TYPE_CHECKING:
    from logging import LoggerAdapter

    from duet_rpc.wire.agents import Root, Sample
    from duet_rpc.wire.lsp_progress import WorkDoneReports
    from duet_rpc.wire.streams import StreamRequest
    from duet_rpc.wire.subscriptions import SubscriptionRequest


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Transport: TypeAlias = Literal["stdio", "unix", "tcp", "http", "websocket", "memory"]


_TRUSTED = frozenset({"stdio", "unix", "memory"})


class Origin(Struct, frozen=True, kw_only=True):
    """Where requests come from: who calls, and through what. Made by the transport, once."""

    connection_id: str
    transport: Transport
    principal: str = "local"
    """Who is calling: `local` on stdio, the peer's `uid:N` on a unix socket."""
    scopes: frozenset[str] = frozenset()
    """What the caller may do, where its credentials say so."""
    address: str | None = None
    """Where the peer is; None where it has no address of its own: stdio, a client's unix socket."""
    headers: Mapping[str, str] = {}
    """What came beside the messages, by name in lower case; empty but for HTTP."""
    can_be_called: bool = True
    """Whether the caller can be sent requests and notifications: `ctx.call`, `ctx.notify`."""

    def lacks(self, scopes: frozenset[str]) -> frozenset[str]:
        """Tell which of these the caller is not allowed to.

        Who has started this process, or is the same user on this machine, may do everything.
        """
        return frozenset() if self.transport in _TRUSTED else scopes - self.scopes


class Reply(Protocol[T_co]):
    """The answer of the peer to a call of ours, still to come."""

    def __await__(self) -> Generator[Any, None, T_co]:
        """Wait for the answer in an `async def`."""
        ...

    def result(self) -> T_co:
        """Wait for the answer in a `def`."""
        ...


class ItemSink(Protocol):
    """Where the items of a stream go: to a caller that takes them one by one."""

    async def ready(self) -> None:
        """Wait until the caller takes another item; the handler gives up its slot meanwhile."""
        ...

    def send(self, value: Any) -> None:
        """Send one item."""
        ...

    def close(self) -> Any:
        """Forget the stream; return the result that its request is answered with."""
        ...


class SubscriberSink(Protocol):
    """Where the items of a subscription go."""

    def send(self, value: Any) -> None:
        """Send one item, or keep it until it can be sent."""
        ...

    async def ready(self) -> None:
        """Wait until another item may be made."""
        ...

    async def drain(self) -> None:
        """Wait until everything is sent, or nothing more can be."""
        ...


class Peer(Protocol):
    """The other end, as a running handler sees it."""

    @property
    def dialect(self) -> Dialect:
        """How progress is spelled for it."""
        ...

    def notify(self, method: str, params: Any) -> None:
        """Send a notification; it is on its way when this returns."""
        ...

    def notify_outside(self, method: str, params: Any) -> None:
        """Do the same although it is perhaps no handler that does it."""
        ...

    def call(
        self, ctx: "Context | None", method: str, params: Any, timeout: float | None, returns: Any
    ) -> Reply[Any]:
        """Send a request; while it waits for the reply, the handler gives up its slot.

        Without a context it is no handler that calls.
        """
        ...

    @property
    def gone(self) -> Exception | None:
        """Why nothing can be sent to it any more; None while it is there."""
        ...

    @property
    def behind(self) -> bool:
        """It has not taken what we sent."""
        ...

    def send_ahead(self, ctx: "Context", spell: "Callable[[], bytes | None]") -> None:
        """Send progress of a request ahead of its answer, also if the peer does not read now.

        `spell` writes its params when it is sent; nothing is sent once the request is answered.
        """
        ...

    def open_stream(self, ctx: "Context") -> ItemSink | None:
        """Begin to send items; None if the caller, or this host, cannot take them one by one."""
        ...

    @property
    def has_loop(self) -> bool:
        """Whether there is an event loop, so that work can go on without a request."""
        ...

    @property
    def takes_subscriptions(self) -> bool:
        """Whether items can be sent to it after its request was answered."""
        ...

    def open_subscription(self, ctx: "Context") -> SubscriberSink:
        """Answer the request of a subscription and begin to send items; raise the refusal."""
        ...

    def logger(self, ctx: "Context") -> "LoggerAdapter[Any]":
        """Make the logger whose lines carry this request's ids."""
        ...


class FaceRequest(Protocol):
    """What a handler may ask of a protocol that is not JSON-RPC itself."""

    def elicit(self, ctx: "Context", kind: Any, message: str, **options: Any) -> "Reply[Any]":
        """See `Context.elicit`."""
        ...

    def sample(self, ctx: "Context", messages: Any, **options: Any) -> "Reply[Sample]":
        """See `Context.sample`."""
        ...

    def roots(self, ctx: "Context", **options: Any) -> "Reply[list[Root]]":
        """See `Context.roots`."""
        ...

    def wrap_logger(self, logger: "LoggerAdapter[Any]") -> "LoggerAdapter[Any]":
        """Have log lines sent to the caller as well, if it wants them."""
        ...


class Sent:
    """A notification that is on its way; awaiting it is allowed and takes no time."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


_SENT = Sent()


class RemotePeer:
    """The other end of a connection, for as long as that lasts: `ctx.peer`.

    It may be kept after its request has ended, and used at any time from any thread. Two of the
    same connection are equal, so that a set of them holds each connection once. When the connection
    is gone, `notify` and `call` raise `ConnectionLost` at once.
    """

    __slots__ = ("_peer", "origin")

    def __init__(self, peer: Peer, origin: Origin) -> None:
        self._peer = peer
        self.origin: Origin = origin
        """Who it is, and through what it is connected."""

    def __repr__(self) -> str:
        return f"<RemotePeer {self.origin.connection_id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePeer) and other._peer is self._peer

    def __hash__(self) -> int:
        return hash(id(self._peer))

    @property
    def is_connected(self) -> bool:
        """Whether it can still be sent something. It may be gone in the next moment."""
        return self._peer.gone is None

    def notify(self, method: str, params: Any = None) -> Sent:
        """Send a notification."""
        self._refuse_if_gone()
        self._peer.notify_outside(method, params)
        return _SENT

    @overload
    def call(
        self,
        method: str,
        params: Any = None,
        *,
        timeout: float | None = None,
        returns: type[T],
    ) -> Reply[T]: ...
    @overload
    def call(
        self, method: str, params: Any = None, *, timeout: float | None = None, returns: Any = Any
    ) -> Reply[Any]: ...
    def call(
        self, method: str, params: Any = None, *, timeout: float | None = None, returns: Any = Any
    ) -> Reply[Any]:
        """Call a method: `await peer.call(...)`, or `peer.call(...).result()` on another thread.

        `timeout` is in seconds from now on. `returns` is the type to decode the result into. A
        handler that calls its own caller uses `ctx.call`, which gives up its slot while it waits.
        """
        check("timeout", timeout, is_time_left(timeout), TIME_LEFT)
        self._refuse_if_gone()
        return self._peer.call(None, method, params, timeout, returns)

    def _refuse_if_gone(self) -> None:
        gone = self._peer.gone
        if gone is not None:
            raise gone


def _encode_progress(params: Any) -> bytes:
    try:
        return encode_value(params)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise UsageError(f"this progress cannot be written as JSON: {error}") from None


class Context(Struct, eq=False):
    """The request being answered. Made for each call; to be kept longer, there is its `peer`.

    It has more than fifteen fields because it is one flat value that is made for each request.
    """

    _peer: Peer
    method: str
    correlation_id: str
    """The request's id as text, or a generated one; it stands on every log line."""
    origin: Origin
    """Who is calling, and through what."""
    idempotency_key: str | None = None
    deadline: float | None = None
    """When the caller gives up, on the monotonic clock; None if never."""
    trace_parent: str | None = None
    """The W3C trace context that came in `params._meta.traceparent`."""
    progress_token: Any = None
    """What the caller wants progress under, as it came in `params._meta.progressToken`, or under
    the dialect `lsp` in `params.workDoneToken`."""
    _progressed: Any = None
    retry: RetryAge | None = None
    """Which attempt at a command this is, and how old the first one; None for the first."""
    first_sent: float | None = None
    """When the first attempt was sent at the latest, on the monotonic clock; of retries."""
    cancelled: bool = False
    """True once the caller has cancelled: an `async def` is interrupted, a `def` looks here."""
    is_over: bool = False
    """True once the handler has ended."""
    _stream: "StreamRequest | SubscriptionRequest | None" = None
    """How the caller wants the items of a stream or subscription; None if it wants the list."""
    _asked: "FaceRequest | None" = None
    """What the face knows of the request, where another protocol is spoken."""
    _work_done: "WorkDoneReports | None" = None
    """What was reported, of a caller that wants progress with a begin and an end."""
    _is_replayed: bool = False
    """Whether a command was answered by the outcome of an earlier call."""

    def __repr__(self) -> str:
        return f"<Context of {self.method}, request {self.correlation_id}>"

    @property
    def principal(self) -> str:
        """Who is calling: `local` on stdio, the peer's uid on a unix socket."""
        return self.origin.principal

    @property
    def connection_id(self) -> str:
        """The connection of the caller, as log lines name it."""
        return self.origin.connection_id

    @property
    def peer(self) -> RemotePeer:
        """The caller, to be kept: it can be notified and called after this request has ended."""
        return RemotePeer(self._peer, self.origin)

    @property
    def logger(self) -> "LoggerAdapter[Any]":
        """A logger whose lines carry this request's method and ids.

        An agent that asks for log lines gets them too.
        """
        logger = self._peer.logger(self)
        return logger if self._asked is None else self._asked.wrap_logger(logger)

    def notify(self, method: str, params: Any = None) -> Sent:
        """Send a notification to the caller."""
        self._peer.notify(method, params)
        return _SENT

    def progress(self, value: Any, total: Any = None, message: str | None = None) -> Sent:
        """Tell the caller how far the work is, if it asked for progress; else do nothing.

        `value` is how much is done: a number that grows, if callers over MCP are to be served too.
        """
        if self._work_done is not None:
            self._report(self._work_done, value, total, message)
        elif self.progress_token is not None and self.origin.can_be_called:
            dialect = self._peer.dialect
            params, self._progressed = dialect.spell_progress(
                self.progress_token, value, total, message, self._progressed
            )
            if params is not None:
                encoded = _encode_progress(params)
                self._peer.send_ahead(self, lambda: encoded)
        return _SENT

    def _report(self, work: "WorkDoneReports", done: Any, total: Any, message: str | None) -> None:
        # A caller that does not read gets none: later they would come behind the answer.
        if self.origin.can_be_called and not self._peer.behind:
            from duet_rpc.wire.lsp_progress import describe_progress  # with the first that there is

            said = describe_progress(done, total, message)
            self._peer.send_ahead(self, lambda: work.report(said))

    @overload
    def call(
        self,
        method: str,
        params: Any = None,
        *,
        timeout: float | None = None,
        returns: type[T],
    ) -> Reply[T]: ...
    @overload
    def call(
        self, method: str, params: Any = None, *, timeout: float | None = None, returns: Any = Any
    ) -> Reply[Any]: ...
    def call(
        self, method: str, params: Any = None, *, timeout: float | None = None, returns: Any = Any
    ) -> Reply[Any]:
        """Call a method of the caller: `await ctx.call(...)`, or `ctx.call(...).result()` in a
        `def`.

        `timeout` is in seconds from now on, not from when the answer is waited for. `returns` is
        the type to decode the result into.
        """
        check("timeout", timeout, is_time_left(timeout), TIME_LEFT)
        return self._peer.call(self, method, params, timeout, returns)

    # For agents.

    def elicit(
        self, kind: type[T], message: str, *, key: str | None = None, timeout: float | None = None
    ) -> "Reply[T | None]":
        """Ask the user of an agent to fill in a form: the fields of a dataclass or a Struct.

        `await ctx.elicit(Details, "Who are you?")`, or `.result()` in a `def`. None is the answer
        of a user who does not want to. The handler may be run again from its beginning when the
        answer is there, so what it does before it asks must do no harm when it is done twice;
        a command that runs at most once cannot ask. `key` names the question; it is the same each
        time that the handler runs.
        """
        return self._agent.elicit(self, kind, message, key=key, timeout=timeout)

    def sample(
        self,
        messages: Any,
        *,
        max_tokens: int,
        system: str | None = None,
        temperature: float | None = None,
        stop: "Sequence[str]" = (),
        preferences: dict[str, Any] | None = None,
        key: str | None = None,
        timeout: float | None = None,
    ) -> "Reply[Sample]":
        """Have a model of the agent's go on after a text, or some `duet_rpc.mcp.Message`s.

        As with `elicit`, the handler may be run again from its beginning.
        """
        return self._agent.sample(
            self,
            messages,
            max_tokens=max_tokens,
            system=system,
            temperature=temperature,
            stop=stop,
            preferences=preferences,
            key=key,
            timeout=timeout,
        )

    def roots(self, *, key: str | None = None, timeout: float | None = None) -> "Reply[list[Root]]":
        """Ask an agent in which places it works; as with `elicit`, the handler may run again."""
        return self._agent.roots(self, key=key, timeout=timeout)

    @property
    def _agent(self) -> FaceRequest:
        if self._asked is None:
            raise UsageError("only an agent can be asked: this caller does not speak MCP")
        return self._asked


class Transaction(Protocol):
    """The database transaction of a transactional command; the ledger's record commits with it.

    It is the ordinary connection of the store's driver. Annotate with `sqlite3.Connection` or
    `psycopg.Connection` instead to have all of its methods known to the type checker.
    """

    def execute(self, query: Any, params: Any = ..., /) -> Any:
        """Run one statement inside the transaction."""
        ...


INJECTED: Final = "what a lifespan or a dependency of the service provides"
Injected: TypeAlias = Annotated[T, INJECTED]
"""`settings: Injected[Settings]` is given what the service provides, although JSON could carry it.

A type that JSON cannot carry needs no such word.
"""

_DRIVER_CONNECTIONS = {
    ("sqlite3", "Connection"),
    ("psycopg", "Connection"),
    ("psycopg", "AsyncConnection"),
}


def transaction_type(hint: Any) -> str | None:
    """Name the connection that a parameter with this hint wants (no driver is imported).

    Empty if any will do, as with `Transaction`; None if it wants no connection of a store at all.
    """
    hint = getattr(hint, "__origin__", hint)
    if hint is Transaction:
        return ""
    package = getattr(hint, "__module__", "").partition(".")[0]
    name = getattr(hint, "__name__", "")
    return f"{package}.{name}" if (package, name) in _DRIVER_CONNECTIONS else None
