"""The engine with hooks: no fast path; events are reported and middleware runs.

Subclasses of dispatcher, connection and calls, loaded only where there are hooks. So the engine
without hooks has no line about them, and what decides is which class is made at the start.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Literal

from msgspec import Raw

from duet_rpc.context import Context, Origin, Peer, RemotePeer
from duet_rpc.engine.calls import CallingConnection, Calls, Refused, Waiter
from duet_rpc.engine.connection import Connection, ConnectionOptions, Host
from duet_rpc.engine.dispatch import Dispatcher, Job, result_member
from duet_rpc.engine.failures import make_overloaded
from duet_rpc.errors import (
    Cancelled,
    InternalError,
    InvalidAnswer,
    OutcomeUnknown,
    ResultUnserializable,
    RpcError,
    StoreUnavailable,
)
from duet_rpc.hooks import (
    CallSent,
    CallSettled,
    CommandTransition,
    ConnectionClosed,
    ConnectionOpened,
    Event,
    Hooks,
    Invocation,
    RequestBegun,
    RequestEnded,
    RequestRefused,
    check_hooks,
    wraps,
)
from duet_rpc.kinds import Promise
from duet_rpc.policy import Policy
from duet_rpc.service import Method, Service
from duet_rpc.wire.framing import Fault, Framing
from duet_rpc.wire.messages import Response, decode_error

_RESULT, _ERROR = b'"result":', b'"error":'


class _Outcome:
    """What a handler answered, as middleware sees it; unchanged it goes out byte for byte."""

    def __init__(self) -> None:
        self.member = b""
        self.value: Raw | None = None
        self.error: RpcError | None = None

    def open(self, member: bytes, error: RpcError | None) -> Raw:
        self.member = member
        if member.startswith(_ERROR):
            self.error = error or decode_error(Raw(member[len(_ERROR) :])) or InternalError()
            raise self.error
        self.value = Raw(member[len(_RESULT) :])
        return self.value


class HookedDispatcher(Dispatcher):
    """A dispatcher with hooks around its handlers."""

    def __init__(
        self, service: Service, policy: Policy, *, hooks: Sequence[Hooks], **options: Any
    ) -> None:
        super().__init__(service, policy, **options)
        self.intake = self.answer_at_once = None
        self._hooks = check_hooks(hooks, has_async=any(method.is_async for method in service))
        self._middleware = [hook for hook in self._hooks if wraps(hook, "around")]
        self._async_middleware = [hook for hook in self._hooks if wraps(hook, "around_async")]
        self._errors_of: dict[Job, RpcError | None] = {}
        """What the jobs that run have failed with so far."""

    def tell(self, event: Event) -> None:
        """See `Dispatcher.tell`. Every hook listens too; one that fails is logged."""
        super().tell(event)
        self._tell_hooks(event)

    def _tell_hooks(self, event: Event) -> None:
        for hook in self._hooks:
            try:
                hook.on(event)
            except KeyboardInterrupt:  # the program's own, not the hook's
                raise
            except (
                BaseException
            ) as error:  # what reported the event goes on, a request to its answer
                self.log.failure("a hook failed", error)

    def prepare_call(
        self,
        method: Method,
        id: bytes | None,
        params: bytes | None,
        peer: Peer,
        origin: Origin,
        **options: Any,
    ) -> Job:
        """See `Dispatcher.prepare_call`. Hooks need a context, also if the handler takes none."""
        job = super().prepare_call(method, id, params, peer, origin, **options)
        if job.context is None:
            correlation_id = self.correlate(job)
            job.context = Context(
                peer, job.method.name, correlation_id=correlation_id, origin=origin
            )
        return job

    # Running.

    def run(self, job: Job) -> bytes:
        """See `Dispatcher.run`."""
        self._begin(job)
        outcome, run = _Outcome(), super().run

        def innermost(call: Invocation) -> Raw:
            return outcome.open(run(job), self._errors_of[job])

        if not self._middleware:
            return self._end(job, run(job))
        step: Callable[[Invocation], Any] = innermost
        for hook in reversed(self._middleware):
            step = partial(_apply, hook.around, step)
        try:
            result = step(_invocation(job))
            member = outcome.member if result is outcome.value else result_member(result)
        except BaseException as error:
            member = self._failed_member(error, outcome, job)
        return self._end(job, member)

    async def run_yielding(self, job: Job) -> bytes:
        """See `Dispatcher.run_yielding`. Middleware cannot suspend, so with it a thread waits."""
        if self._middleware:
            return self.run(job)
        self._begin(job)
        return self._end(job, await super().run_yielding(job))

    async def run_async(self, job: Job) -> bytes:
        """See `Dispatcher.run_async`."""
        self._begin(job)
        outcome, run = _Outcome(), super().run_async

        async def innermost(call: Invocation) -> Raw:
            return outcome.open(await run(job), self._errors_of[job])

        if not self._async_middleware:
            return self._end(job, await run(job))
        step: Callable[[Invocation], Awaitable[Any]] = innermost
        for hook in reversed(self._async_middleware):
            step = partial(_apply, hook.around_async, step)
        try:
            result = await step(_invocation(job))
            member = outcome.member if result is outcome.value else result_member(result)
        except BaseException as error:
            member = self._failed_member(error, outcome, job)
        return self._end(job, member)

    def _failed_member(self, error: BaseException, outcome: _Outcome, job: Job) -> bytes:
        if error is outcome.error:
            return outcome.member
        return self.broken_off(error, job, "a hook failed")

    def failure(self, error: BaseException, job: Job, text: str = "handler failed") -> RpcError:
        """See `Dispatcher.failure`."""
        seen = super().failure(error, job, text)
        if seen is not error:
            seen.__cause__ = error
        if job in self._errors_of:
            self._errors_of[job] = seen
        return seen

    def not_started(self, error: Exception, job: Job) -> bytes:
        """See `Dispatcher.not_started`."""
        context = _context_of(job)
        refusal = make_overloaded()
        refused = RequestRefused(
            context.origin, context.method, context.correlation_id, refusal, job.id
        )
        self._tell_hooks(refused)  # the log has more to say about it
        return super().not_started(error, job)

    def _call(self, job: Job, transaction: Any) -> bytes:
        self._tell_state(job, "running")
        return super()._call(job, transaction)

    async def _call_async(self, job: Job, transaction: Any) -> bytes:
        self._tell_state(job, "running")
        return await super()._call_async(job, transaction)

    def _begin(self, job: Job) -> None:
        self._errors_of[job] = None
        context = _context_of(job)
        self.tell(RequestBegun(context.origin, context.method, context.correlation_id, job.key))

    def _end(self, job: Job, member: bytes) -> bytes:
        context, error = _context_of(job), self._errors_of.pop(job, None)
        if not member.startswith(_ERROR):
            error = None
        elif error is None:
            error = decode_error(Raw(member[len(_ERROR) :]))
        if job.has_begun:
            self._tell_state(job, _state_after(job.method.promise, error))
        self.tell(
            RequestEnded(context.origin, context.method, context.correlation_id, job.key, error)
        )
        return member

    def _tell_state(self, job: Job, state: Literal["running", "done", "none", "unknown"]) -> None:
        if job.key is not None and self._ledger is not None:
            context = _context_of(job)
            self.tell(CommandTransition(context.origin, context.method, job.key, state))


def _apply(around: Callable[..., Any], next: Callable[..., Any], call: Invocation) -> Any:
    return around(call, next)


def _invocation(job: Job) -> Invocation:
    return Invocation(_context_of(job), None if job.params is None else Raw(job.params))


def _context_of(job: Job) -> Context:
    assert job.context is not None, "made by `prepare`"
    return job.context


def _state_after(
    promise: Promise | None, error: RpcError | None
) -> Literal["done", "none", "unknown"]:
    """Say what the ledger holds of a command whose handler has run."""
    if isinstance(error, OutcomeUnknown | StoreUnavailable):
        return "unknown"
    if isinstance(error, InternalError | Cancelled) and promise is Promise.RETRY_SAFE:
        return "none"
    if isinstance(error, InternalError | ResultUnserializable | Cancelled):
        if promise is Promise.TRANSACTIONAL:
            return "none"
    return "unknown" if isinstance(error, Cancelled) else "done"


class HookedCalls(Calls):
    """The open calls of a connection, each reported when it is sent and when it is over."""

    def __init__(self, wire: CallingConnection, *args: Any) -> None:
        super().__init__(wire, *args)
        self._methods: dict[int, str] = {}

    def send(self, method: str, params: bytes | None, waiter: Waiter, in_turn: bool = True) -> int:
        """See `Calls.send`."""
        id = super().send(method, params, waiter, in_turn)
        self._tell_sent(id, method)
        return id

    def send_batch(
        self, items: Sequence[tuple[str, bytes | None, Waiter | None]], refused: Refused
    ) -> list[int]:
        """See `Calls.send_batch`."""
        ids = super().send_batch(items, refused)
        methods = (method for method, _, waiter in items if waiter is not None)
        for id, method in zip(ids, methods, strict=True):
            self._tell_sent(id, method)
        return ids

    def _tell_sent(self, id: int, method: str) -> None:
        self._methods[id] = method
        self._wire.dispatcher.tell(CallSent(self._wire.requests.origin, id, method))

    def _tell_settled(self, error: Exception | None) -> None:
        """Tell of the calls that are open no more."""
        for id in [id for id in self._methods if id not in self.open]:
            method = self._methods.pop(id)
            self._wire.dispatcher.tell(CallSettled(self._wire.requests.origin, id, method, error))

    def take_answers(self, arrived: deque[bytes | bytearray | Fault]) -> None:
        """See `Calls.take_answers`."""
        super().take_answers(arrived)
        self._tell_settled(None)

    def settle(self, response: Response) -> None:
        """See `Calls.settle`."""
        error = None if response.error is None else decode_error(response.error)
        super().settle(response)
        self._tell_settled(error)

    def fail(self, id: bytes, why: str = "the answer has neither a result nor an error") -> bool:
        """See `Calls.fail`."""
        failed = super().fail(id, why)
        self._tell_settled(InvalidAnswer(why))
        return failed

    def _fail_all(self, ids: list[int], why: str) -> bool:
        failed = super()._fail_all(ids, why)
        self._tell_settled(InvalidAnswer(why))
        return failed

    def forget(self, id: int, *, tell_peer: bool) -> bool:
        """See `Calls.forget`."""
        forgotten = super().forget(id, tell_peer=tell_peer)
        self._tell_settled(Cancelled())
        return forgotten

    def lose(self, error: Exception) -> int:
        """See `Calls.lose`."""
        lost = super().lose(error)
        self._tell_settled(error)
        return lost


class HookedConnection(Connection):
    """A connection that reports its beginning and its end, and each of our calls."""

    __slots__ = ("_is_open",)
    calls_class: type[Calls] = HookedCalls
    dispatcher: HookedDispatcher

    def __init__(
        self, dispatcher: Dispatcher, framing: Framing, host: Host, options: ConnectionOptions
    ) -> None:
        super().__init__(dispatcher, framing, host, options)
        self._is_open = False

    def begin(self) -> None:
        """See `Connection.begin`."""
        self._is_open = True
        self.dispatcher.tell(ConnectionOpened(self.requests.origin, self._remote))

    def close(self) -> None:
        """See `Connection.close`."""
        super().close()
        if self._is_open:
            self._is_open = False
            origin, stats = self.requests.origin, self.requests.stats
            closed = ConnectionClosed(origin, stats.requests, stats.faults, self._remote)
            self.dispatcher.tell(closed)

    @property
    def _remote(self) -> RemotePeer:
        return RemotePeer(self._host.peer, self.requests.origin)
