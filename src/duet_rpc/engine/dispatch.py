"""One request in, one answer or nothing out: the rules of a request, in their order.

The walk of a request: method -> id and notification rule -> params -> key rule -> ledger ->
handler. A plain request has passed the first three when `intake` has decoded it, and `admit` goes
on; any other is taken as far by `prepare`. `run` and `run_async` do the rest. What a handler raises
becomes an answer in `failures`, which tells the peer nothing that was not meant for it.

The common case, a query of plain params with an id, takes the same walk on the fast path
(`intake`), which comes here with what is rare.

It has more than 400 lines because the rules are read in one piece: their order is the contract.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from duet_rpc.context import Context, Origin, Peer
from duet_rpc.engine.failures import Failures
from duet_rpc.engine.intake import AnswerAtOnce, Intake, Plain, Unserializable, compile_intake
from duet_rpc.engine.log import Log
from duet_rpc.errors import (
    ErrorClasses,
    InvalidRequest,
    MethodNotFound,
    PermissionDenied,
    RpcError,
    UsageError,
)
from duet_rpc.kinds import Promise
from duet_rpc.policy import Notifications, Policy
from duet_rpc.service import Kind, Method, Service
from duet_rpc.wire import surrogates
from duet_rpc.wire.dialect import JSONRPC, Dialect
from duet_rpc.wire.messages import (
    NULL,
    Notification,
    Request,
    encode_error,
    raw_params,
)
from duet_rpc.wire.models import write_model
from duet_rpc.wire.params import (
    KEY,
    KEY_OF_ARGUMENTS,
    NO_META,
    Meta,
    RetryAge,
    find_token,
    read_key,
    read_meta,
    read_retry,
    read_short,
)

if TYPE_CHECKING:
    from duet_rpc.engine.face import Face, MakeFace
    from duet_rpc.hooks import Event, Hooks


class CommandLedger(Protocol):
    """What remembers commands, as the dispatcher sees it: run one once, give its one outcome.

    `work` runs the handler inside the transaction it is given and returns the member to send;
    `failure` makes an error of what it raises. Refusals of the ledger itself are raised.
    """

    def now(self) -> float:
        """Tell the time."""
        ...

    def first_sent(self, age: float, read_at: float) -> float:
        """Tell when a command was first sent whose retry, read at that time, says its age."""
        ...

    def run(self, job: "Job", work: Callable[[Any], bytes], failure: "Failure") -> bytes:
        """Run a `def` unless the command has an outcome already; return the member to send."""
        ...

    async def run_yielding(
        self, job: "Job", work: Callable[[Any], bytes], failure: "Failure"
    ) -> bytes:
        """Do the same, but suspend where it would wait for another run of the command."""
        ...

    async def run_async(
        self, job: "Job", work: Callable[[Any], Awaitable[bytes]], failure: "Failure"
    ) -> bytes:
        """Do the same for an `async def`."""
        ...

    def fingerprint(self, method: str, params: bytes | None, without: Sequence[str]) -> bytes:
        """Hash a method and its params but for these members: the same for the same values."""
        ...

    def outcome(self, principal: str, method: str, key: str, age: float = 0.0) -> Any:
        """Tell what became of a command: its state, and its result or error once it has one."""
        ...


class Job(Struct, eq=False):
    """One request or notification that has passed every rule before the handler.

    It has more than fifteen fields because it is one flat value that is made for each request.
    """

    id: bytes | None
    """The raw id to answer under; None for a notification."""
    method: Method
    values: Any
    """The decoded params."""
    connection_id: str
    params: bytes | None = None
    """The params as they came, if the ledger needs them."""
    context: Context | None = None
    key: str | None = None
    """The idempotency key of a command, if it has one."""
    fingerprint: bytes | None = None
    """That of its params, if its key was made of it because its caller gave none."""
    is_recorded: bool = False
    """Whether the ledger runs it."""
    correlation_id: str = ""
    """Empty until the first log line needs one."""
    answered: bool = False
    """True once the peer has its answer, or will never get one."""
    place: Any = None
    """Where the answer goes if the request came in a batch."""
    running: Any = None
    """What the host needs to cancel the handler."""
    has_begun: bool = False
    """Whether the handler has been called; one that waits for another run has not."""
    size: int = 0
    """What it costs in the queue; 0 once it has begun."""
    shape: Callable[[bytes], bytes] | None = None
    """Spells the member of its answer as the face has it; None where there is no face. Nothing
    leaves the request open."""

    @property
    def name(self) -> str:
        """The method's name."""
        return self.method.name

    @property
    def may_be_stopped(self) -> bool:
        """Whether it may end before it is done, because no one waits for it any more.

        A command that has begun may not, unless its transaction can be rolled back: its effect may
        have happened. One that waits for another run of it has done nothing yet.
        """
        return not self.has_begun or self.method.promise in (None, Promise.TRANSACTIONAL)

    @property
    def retry(self) -> RetryAge | None:
        """How old this retry of a command is; None for a first attempt."""
        return None if self.context is None else self.context.retry


Failure: TypeAlias = Callable[..., RpcError]


_encode = msgspec.json.Encoder(enc_hook=write_model).encode
_PLAIN_IDS = frozenset(b'"-0123456789')
"""How a string and a number begin; null has rules of its own."""


class Dispatcher(Failures):
    """Serves the methods of one service under one policy; shared by all connections.

    It has more than twenty methods because each rule, way to run and way to fail is one of them.
    """

    def __init__(
        self,
        service: Service,
        policy: Policy,
        *,
        ledger: CommandLedger | None = None,
        log: Log | None = None,
        errors: ErrorClasses | None = None,
        shares_thread: bool = False,
        dialect: Dialect = JSONRPC,
        face: "MakeFace | None" = None,
    ) -> None:
        super().__init__(log)
        self._shares_thread = shares_thread
        """Several connections are read on one thread: only what is declared inline runs there."""
        self._beside = dialect.beside
        if self._beside:
            service = service.accepting(self._beside)
        self.service = service
        self.policy = policy
        self.dialect = dialect
        self.errors: ErrorClasses = ErrorClasses(service) if errors is None else errors
        """What the errors are raised in that a peer answers to the calls of handlers."""
        self._ledger = ledger
        self.batches: list[list[Any]] = []
        """The messages of the batches that are being answered on the fast path."""
        self.spent: Any = None
        """The last large message that was answered. To free it takes as long as to read its answer,
        so the host does that when it has sent the answer."""
        if dialect.cancel in service:
            raise UsageError(
                f"{dialect.cancel} is how requests are cancelled here, and cannot be served;"
                " a handler sees it in ctx.cancelled, or by the CancelledError of its task"
            )
        self.face: Face | None = None if face is None else face.bind(self)
        """What another protocol makes of the methods."""
        self.intake: Intake | None = (
            self._compile_intake() if self.face is None else self.face.compile_intake()
        )
        """What reads plain requests."""
        self.answer_at_once: AnswerAtOnce | None = (
            None if self.intake is None else self.intake.answer_at_once
        )

    def _compile_intake(self) -> Intake | None:
        dialect = self.dialect
        methods = [each for each in self.service if each.name not in dialect.method_names]
        simple = [method for method in methods if self.is_simple(method)]
        return compile_intake(methods, simple, self.policy, self) if methods else None

    def forked(self, leave: Callable[[BaseException | None], object]) -> None:
        """This is a copy in a child: run nothing more, and leave as soon as a handler ends."""
        super().forked(leave)
        for messages in self.batches:
            messages.clear()  # the one that runs is the last

    # The rules, in the order of the contract.

    @property
    def ledger(self) -> CommandLedger | None:
        """What remembers commands; None where nothing does."""
        return self._ledger

    def now(self) -> float | None:
        """Tell the time, if anything here depends on it."""
        return None if self._ledger is None else self._ledger.now()

    def admit(
        self,
        message: Plain,
        body: bytes | bytearray,
        peer: Peer,
        origin: Origin,
    ) -> Job:
        """Make the job of a plain request; raise the `RpcError` of the first rule that it breaks.

        Nothing is kept of one that is refused: the slow decode may look at it again.
        """
        sent_id, method, values = message.id, message.served, message.params
        if sent_id is UNSET:
            id = None
        else:
            id = bytes(sent_id) if isinstance(sent_id, Raw) else _encode(sent_id)
            if id[0] not in _PLAIN_IDS:
                raise InvalidRequest()
        if method.scopes:
            _check_scopes(method, origin)
        job = Job(id, method, values, origin.connection_id)
        parameters = method.parameters
        if parameters.takes_key or parameters.context is not None:
            key = values.idempotency_key if parameters.takes_key else UNSET
            meta = values._meta if parameters.holds_meta else UNSET
            self._complete(job, key, meta, peer, origin, None, body)
            if job.is_recorded:
                job.params = raw_params(body)
        return job

    def prepare(
        self,
        message: Request | Notification,
        peer: Peer,
        origin: Origin,
        read_at: float | None = None,
    ) -> Job:
        """Apply every rule before the handler; raise the `RpcError` of the first broken.

        `read_at` is when the message was read, if that was not just now.
        """
        id = message.id if isinstance(message, Request) else None
        method = self.service.get(message.method)
        if method is None:
            from duet_rpc.methods.wording import printable  # with the first refusal

            name = printable(message.method)
            raise MethodNotFound(data={"detail": f"no method '{name}' is served here"})
        return self.prepare_call(method, id, message.params, peer, origin, read_at=read_at)

    def prepare_call(
        self,
        method: Method,
        id: bytes | None,
        params: bytes | None,
        peer: Peer,
        origin: Origin,
        *,
        meta: Raw | UnsetType = UNSET,
        read_at: float | None = None,
    ) -> Job:
        """Do the same for a method that is known. `meta` stands in for the `_meta` of params."""
        self._check_id(method, id)
        _check_scopes(method, origin)
        job = Job(id, method, None, origin.connection_id, params)
        try:
            bound = method.parameters.bind(params)
        except BaseException as error:  # InvalidParams, or out of a type's own check
            raise self.failure(error, job, "a type of the params failed") from None
        job.values = bound.values
        sent_meta = bound.meta if meta is UNSET else meta
        self._complete(job, bound.key, sent_meta, peer, origin, read_at)
        return job

    def _complete(
        self,
        job: Job,
        sent_key: Raw | UnsetType,
        sent_meta: Raw | UnsetType,
        peer: Peer,
        origin: Origin,
        read_at: float | None = None,
        body: bytes | bytearray | None = None,
    ) -> None:
        """Apply the rules for what travels beside params; make the context if one is asked for.

        `body` is the message, if the job has not been given its params.
        """
        method, ledger = job.method, self._ledger
        meta = NO_META if sent_meta is UNSET else read_meta(sent_meta)
        key = retry = None
        if method.kind is Kind.COMMAND:
            required = self.policy.key_required and method.dedupe_window is None
            key = read_key(sent_key, meta, method.name, required=required)
            if method.dedupe_window is not None and ledger is not None:
                key = self._choose_key(job, key, ledger, body)
            retry = read_retry(meta)
            method.parameters.give_key(job.values, key)
        is_recorded = key is not None or method.promise is Promise.TRANSACTIONAL
        if not is_recorded and method.parameters.context is None:
            return
        job.key = key
        job.is_recorded = is_recorded and ledger is not None
        job.correlation_id = self.correlation_id(job.id, job.connection_id)
        context = Context(peer, method.name, job.correlation_id, origin, key)
        job.context = context
        if (method.streams or self._beside) and job.id is not None:
            self._read_stream(job, context, meta)
            self._read_work_done(job.values, method, context)
        if meta is not NO_META:
            trace_parent, token = read_short(meta.traceparent), read_short(meta.progressToken)
            context.trace_parent = trace_parent if isinstance(trace_parent, str) else None
            token = self.dialect.read_token(token)
            if token is not None:  # it goes before that of work done: it takes any value
                context.progress_token, context._work_done = token, None
            context.retry = retry
            # An age of zero: no try before this one can have had an effect.
            if retry is not None and retry.age_ms and ledger is not None:
                at = ledger.now() if read_at is None else read_at
                context.first_sent = ledger.first_sent(retry.age, at)

    def _choose_key(
        self, job: Job, given: str | None, ledger: CommandLedger, body: bytes | bytearray | None
    ) -> str:
        """Choose the key of a command that has its arguments as its key, if it is given no other.

        That key may be given as well: a caller that was told of a failure has read it.
        """
        if given is not None and not given.startswith(KEY_OF_ARGUMENTS):
            return given
        params = job.params if body is None else raw_params(body)
        fingerprint = ledger.fingerprint(job.method.name, params, self._beside)
        key = KEY_OF_ARGUMENTS + fingerprint.hex()
        if given is not None and given != key:
            return given
        job.fingerprint = fingerprint
        return key

    def _read_stream(self, job: Job, context: Context, meta: Meta) -> None:
        """Read how the caller wants the items of a method that yields."""
        assert job.id is not None, "only then can items be sent"
        if job.method.kind is not Kind.SUBSCRIPTION:
            from duet_rpc.engine.streams import read_request

            context._stream = read_request(job.id, job.values, meta, self.dialect)
            return
        if not context._peer.takes_subscriptions:
            detail = (
                f"{job.method.name} is a subscription, which needs a connection that stays open"
            )
            raise MethodNotFound(data={"detail": detail})
        from duet_rpc.engine.subscriptions import read_subscription

        context._stream = read_subscription(job, meta)

    def _read_work_done(self, values: Any, method: Method, context: Context) -> None:
        """Read whether the caller wants progress with a begin and an end."""
        token = find_token(values, self.dialect.work_done_token)
        if token is None:
            return
        from duet_rpc.wire.lsp_progress import WorkDoneReports  # with the first one that there is

        context.progress_token = read_short(token)
        title = method.description.partition(". ")[0].removesuffix(".") or method.name
        context._work_done = WorkDoneReports(token, title)

    def _check_id(self, method: Method, id: bytes | None) -> None:
        policy = self.policy
        if method.kind is Kind.NOTIFICATION and id is not None:
            raise MethodNotFound(
                data={"detail": f"{method.name} is a notification: send it without an id"}
            )
        if method.kind is Kind.COMMAND and policy.command_needs_id and (id is None or id == NULL):
            raise InvalidRequest.because(
                "command-requires-id", detail=f"{method.name} is a command: send it with an id"
            )
        if method.kind is Kind.SUBSCRIPTION and id is None:
            raise InvalidRequest.because(
                "notification-not-allowed",
                detail=f"{method.name} is a subscription: send it with an id",
            )
        if (
            id is None
            and policy.notifications is Notifications.DECLARED
            and not method.notification_allowed
        ):
            raise InvalidRequest.because(
                "notification-not-allowed",
                detail=f"{method.name} takes no notifications: send an id",
            )

    def tell(self, event: "Event") -> None:
        """Report something rare that happened on a connection: the log listens."""
        from duet_rpc.engine.event_log import log_event  # with the first event that there is

        log_event(event, self)

    def facts(self, name: str, error: RpcError) -> dict[str, Any]:
        """Say what of a refusal may be logged: words of ours, and none of the caller's."""
        facts: dict[str, Any] = dict(error.data) if isinstance(error.data, dict) else {}
        # Below a parameter's own name, and in place of it, may stand names that the caller made up.
        facts["param"] = str(facts.get("param", "")).partition(".")[0].partition("[")[0]
        method = self.service.get(name)
        known = [KEY] if method is None else [KEY, *method.parameters.names]
        if facts["param"] not in known:
            del facts["param"]
        return {word: facts[word] for word in ("reason", "param", "expected") if word in facts}

    # Running. What comes back is the answer's `result` or `error` member.

    def run(self, job: Job) -> bytes:
        """Run a `def` to its end; never raises."""
        try:
            if job.is_recorded and self._ledger is not None:
                return self._ledger.run(job, partial(self._call, job), self.failure)
            return self._call(job, None)
        except BaseException as error:  # a handler's SystemExit does not end the server
            return self.broken_off(error, job, "handler failed")

    async def run_yielding(self, job: Job) -> bytes:
        """Run a `def` of a recorded job, and suspend while it waits for another; never raises."""
        assert self._ledger is not None, "there is one to wait for"
        try:
            return await self._ledger.run_yielding(job, partial(self._call, job), self.failure)
        except GeneratorExit:
            raise
        except BaseException as error:
            return self.broken_off(error, job, "handler failed")

    async def run_async(self, job: Job) -> bytes:
        """Run an `async def` to its end; never raises."""
        try:
            if job.is_recorded and self._ledger is not None:
                work = partial(self._call_async, job)
                return await self._ledger.run_async(job, work, self.failure)
            return await self._call_async(job, None)
        except BaseException as error:
            return self.broken_off(error, job, "handler failed")

    def _call(self, job: Job, transaction: Any) -> bytes:
        job.has_begun = True
        try:
            result = job.method.parameters.call(job.values, job.context, transaction)
        except BaseException as error:
            if self.leave is not None:
                self.leave(error)
            raise
        if self.leave is not None:
            self.leave(None)
        return result_member(result)

    async def _call_async(self, job: Job, transaction: Any) -> bytes:
        job.has_begun = True
        try:
            result = await job.method.parameters.call(job.values, job.context, transaction)
        except BaseException as error:
            if self.leave is not None:
                self.leave(error)
            raise
        if self.leave is not None:
            self.leave(None)
        return result_member(result)

    # For the fast path: what is rare in it.

    def keep(self, message: Any) -> None:
        """Keep a large message until its answer has gone, instead of the one before."""
        self.spent = message

    def drop_spent(self) -> None:
        """The answer has gone: free the message."""
        self.spent = None

    def notified(self, message: Any, connection_id: str) -> bytes | Plain | None:
        """Run a notification; nothing is answered. None if the slow decode has to refuse it."""
        if not message.notifiable:
            return None
        if message.call is None:
            plain: Plain = message
            return plain  # to be run by others
        try:
            message.call()
            if self.leave is not None:
                self.leave(None)
        except BaseException as error:
            job = Job(None, message.served, None, connection_id)
            self.failure(error, job)
            self.log_failed_notification(job)
        return b""

    def failed(self, message: Any, error: BaseException, connection_id: str) -> bytes:
        """Make the answer to a message whose handler, or whose result, has failed."""
        id = _encode(message.id)
        job = Job(id, message.served, None, connection_id)
        return encode_error(id, self.failure(error, job))

    def is_simple(self, method: Method) -> bool:
        """Tell whether a method can be answered on the fast path."""
        parameters = method.parameters
        return (
            method.kind is not Kind.COMMAND
            and not method.is_async
            and (method.inline or (self.policy.max_in_flight == 1 and not self._shares_thread))
            and parameters.context is None
            and parameters.rest is UNSET
            and method.timeout is None
            and not method.scopes
        )


def _check_scopes(method: Method, origin: Origin) -> None:
    """Refuse a caller that may not call a method; its params have not been looked at."""
    missing = origin.lacks(method.scopes)
    if missing:
        raise PermissionDenied(data={"scopes": sorted(missing)})


def make_dispatcher(
    service: Service,
    policy: Policy,
    *,
    hooks: "Sequence[Hooks]" = (),
    bind: Callable[[Service], Service] | None = None,
    **options: Any,
) -> Dispatcher:
    """Make a dispatcher; with hooks, one that runs them and tells them events.

    `bind` gives the methods what they ask for; without it the service has no lifespans.
    """
    service.check_errors()
    if bind is not None:
        service = bind(service)
    elif service.needs_binding:
        from duet_rpc.around.dependencies import bind_alone

        service = bind_alone(service)
    if service.middleware or service.listeners:
        from duet_rpc.around.middleware import make_hooks

        hooks = (*hooks, *make_hooks(service))
    if not hooks:
        return Dispatcher(service, policy, **options)
    from duet_rpc.engine.hooks import HookedDispatcher

    return HookedDispatcher(service, policy, hooks=hooks, **options)


_RESULT = b'"result":'


def result_member(result: Any) -> bytes:
    """Encode a handler's result as the member of an answer."""
    try:
        return b'"result":' + _encode(result)
    except UnicodeEncodeError:
        return b'"result":' + _encode_lone(result)
    except BaseException as error:
        raise Unserializable(error) from error


def encode_result(result: Any) -> bytes:
    """Encode what a handler yields, alone."""
    return result_member(result)[len(_RESULT) :]


def _encode_lone(result: Any) -> bytes:
    try:
        return surrogates.encode(result)
    except BaseException as error:
        raise Unserializable(error) from error
