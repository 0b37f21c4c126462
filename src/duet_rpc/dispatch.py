"""One request in, one answer or nothing out. The only place where exceptions become wire errors.

The walk of a request: method -> id and notification rule -> key rule -> params -> ledger ->
handler. `prepare` goes as far as the params, `run` and `run_async` do the rest; what a handler
raises becomes an answer in `_failure` and nowhere else, and tells the peer nothing that was not
meant for it.

`answer_at_once` is the same walk in a straight line for the common case: a query of plain params
with an id. It reads envelope and params in one pass and gives up, by returning None, on anything
odd.
"""

import functools
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal, Protocol, TypeAlias, Union

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from duet_rpc.collector import LARGE, decode_large
from duet_rpc.context import Context, Peer
from duet_rpc.errors import (
    RESERVED_CODES,
    Cancelled,
    InternalError,
    InvalidParams,
    InvalidRequest,
    MethodNotFound,
    ResultUnserializable,
    RpcError,
)
from duet_rpc.messages import (
    NULL,
    Notification,
    Request,
    encode_batch,
    encode_error,
    error_object,
    is_json_text,
)
from duet_rpc.parameters import KEY, Bound
from duet_rpc.policy import Notifications, Policy
from duet_rpc.promise import Promise
from duet_rpc.service import Kind, Method, Service


class AnswerAtOnce(Protocol):
    """The straight line: a body in, its answer out, or None if it has to go the long way."""

    def __call__(self, body: bytes | bytearray, connection_id: str = "", /) -> bytes | None:
        """Answer one message if it is a plain request."""
        ...


class Log(Protocol):
    """Where the engine tells what happened; it never says more than these two kinds of things."""

    def note(
        self, severity: Literal["debug", "info", "warn", "error"], text: str, **fields: Any
    ) -> None:
        """Tell a fact about the stream or a request."""
        ...

    def failure(self, text: str, error: BaseException, **fields: Any) -> str:
        """Tell of an unforeseen exception, in full; return the reference that the peer is given."""
        ...


class Silence:
    """A log that keeps nothing."""

    def note(self, severity: str, text: str, **fields: Any) -> None:
        """Forget it."""

    def failure(self, text: str, error: BaseException, **fields: Any) -> str:
        """Forget it; the reference leads nowhere."""
        return "unlogged"


class Ledger(Protocol):
    """What remembers commands, as the dispatcher sees it: run one once, give its one outcome.

    `work` runs the handler inside the transaction it is given and returns the member to send;
    `failure` makes an error of what it raises. Refusals of the ledger itself are raised.
    """

    def run(self, job: "Job", work: Callable[[Any], bytes], failure: "Failure") -> bytes:
        """Run a `def` unless the command has an outcome already; return the member to send."""
        ...

    async def run_async(
        self, job: "Job", work: Callable[[Any], Awaitable[bytes]], failure: "Failure"
    ) -> bytes:
        """Do the same for an `async def`."""
        ...


class Job:
    """One request or notification that has passed every rule before the handler."""

    __slots__ = (
        "answered",
        "batch",
        "bound",
        "connection_id",
        "context",
        "correlation_id",
        "id",
        "key",
        "method",
        "params",
        "running",
    )

    def __init__(
        self,
        id: bytes | None,
        method: Method,
        bound: Bound,
        params: bytes | None,
        context: Context | None,
        key: str | None,
        connection_id: str,
    ) -> None:
        self.id = id
        """The raw id to answer under; None for a notification."""
        self.method = method
        self.bound = bound
        self.params = params
        self.context = context
        self.key = key
        """The idempotency key of a command, if it has one."""
        self.connection_id = connection_id
        self.correlation_id = "" if context is None else context.correlation_id
        """Empty until the first log line needs one."""
        self.answered = False
        """True once the peer has its answer, or will never get one."""
        self.batch: Any = None
        """Where the answer goes if the request came in a batch."""
        self.running: Any = None
        """What the host needs to cancel the handler."""


Failure: TypeAlias = Callable[[BaseException, Job], RpcError]


class _Answer(Struct, gc=False, tag_field="jsonrpc", tag="2.0"):
    id: int | str
    result: Any


_OUTER_NESTING = 3
"""The array of a batch, the envelope, the params."""

_encode = msgspec.json.Encoder().encode
_decode_text = msgspec.json.Decoder(str).decode
_decode_any = msgspec.json.Decoder().decode


class _Meta(Struct):
    """What of `params._meta` is ours. Raw, because a peer may send anything under these names."""

    idempotency_key: Raw | UnsetType = UNSET
    traceparent: Raw | UnsetType = UNSET
    progressToken: Raw | UnsetType = UNSET


_NO_META = _Meta()
_decode_meta = msgspec.json.Decoder(_Meta).decode


def _meta(raw: Raw) -> _Meta:
    """Read what of `params._meta` is ours; other programs keep theirs there too."""
    try:
        return _decode_meta(raw)
    except msgspec.ValidationError:
        return _NO_META


def _short(raw: Raw | UnsetType) -> Any:
    """Decode one of our own small values; None is anything that cannot be one."""
    if raw is UNSET:
        return UNSET
    try:
        return _decode_any(raw) if memoryview(raw).nbytes <= _MAX_SHORT else None
    except msgspec.ValidationError:
        return None


_MAX_KEY = 255
_MAX_SHORT = 12 * _MAX_KEY + 2
"""The longest spelling of a key: every character two escaped halves, and the quotes."""


class Dispatcher:
    """Serves the methods of one service under one policy; shared by all connections."""

    def __init__(
        self,
        service: Service,
        policy: Policy,
        *,
        ledger: Ledger | None = None,
        log: Log | None = None,
        shares_thread: bool = False,
    ) -> None:
        self._shares_thread = shares_thread
        """Several connections are read on one thread: only what is declared inline runs there."""
        self.service = service
        self.policy = policy
        self.log: Log = log if log is not None else Silence()
        self._ledger = ledger
        self._unnumbered = 0
        self.spent: Any = None
        """The last large message that was answered. To free it takes as long as to read its answer,
        so whoever has sent the answer does that then."""
        self.answer_at_once = self._straight_line()

    # The rules, in the order of the contract.

    def prepare(
        self, message: Request | Notification, peer: Peer, connection_id: str, principal: str
    ) -> Job:
        """Apply every rule before the handler; raise the `RpcError` of the first broken."""
        id = message.id if isinstance(message, Request) else None
        method = self.service.get(message.method)
        if method is None:
            raise MethodNotFound(data={"detail": "no method of this name is served here"})
        self._check_id(method, id)
        try:
            bound = method.parameters.bind(message.params)
        except BaseException as error:  # InvalidParams, or out of a type's own check
            job = Job(id, method, Bound(None), None, None, None, connection_id)
            raise self.failure(error, job, "a type of the params failed") from None
        meta = _NO_META if bound.meta is UNSET else _meta(bound.meta)
        key = self._key(method, bound, meta)
        method.parameters.give_key(bound, key)
        context = None
        if method.parameters.context is not None or key is not None or _needs_ledger(method):
            trace_parent = _short(meta.traceparent)
            context = Context(
                peer,
                method.name,
                correlation_id=self.correlation_id(id, connection_id),
                connection_id=connection_id,
                principal=principal,
                idempotency_key=key,
                trace_parent=trace_parent if isinstance(trace_parent, str) else None,
            )
            token = _short(meta.progressToken)
            context.progress_token = None if token is UNSET else token
        return Job(id, method, bound, message.params, context, key, connection_id)

    def _check_id(self, method: Method, id: bytes | None) -> None:
        policy = self.policy
        if method.kind is Kind.COMMAND and policy.command_needs_id and (id is None or id == NULL):
            raise InvalidRequest.because(
                "command-requires-id", detail=f"{method.name} is a command: send it with an id"
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

    def _key(self, method: Method, bound: Bound, meta: "_Meta") -> str | None:
        """Find the idempotency key of a command, beside its params or in their `_meta`."""
        if method.kind is not Kind.COMMAND:
            return None
        key = _short(meta.idempotency_key if bound.key is UNSET else bound.key)
        if isinstance(key, str) and 1 <= len(key) <= _MAX_KEY and key.isprintable():
            return key
        if key is UNSET and not self.policy.key_required:
            return None
        received = "nothing" if key is UNSET else "another value"
        if isinstance(key, str):
            received = f"{len(key)} characters" if key.isprintable() else "unprintable characters"
        raise InvalidParams(
            data={
                "reason": f"idempotency-key-{'missing' if key is UNSET else 'invalid'}",
                "param": KEY,
                "expected": f"string of 1 to {_MAX_KEY} printable characters",
                "received": received,
            }
        )

    def facts(self, name: str, error: RpcError) -> dict[str, Any]:
        """Say what of a refusal may stand in the log: words of ours, and none of the caller's."""
        told: dict[str, Any] = dict(error.data) if isinstance(error.data, dict) else {}
        # Below a parameter's own name, and in place of it, may stand names that the caller made up.
        told["param"] = str(told.get("param", "")).partition(".")[0].partition("[")[0]
        method = self.service.get(name)
        known = [KEY] if method is None else [KEY, *(p.name for p in method.parameters.listed)]
        if told["param"] not in known:
            del told["param"]
        return {word: told[word] for word in ("reason", "param", "expected") if word in told}

    def correlation_id(self, id: bytes | None, connection_id: str) -> str:
        """Say a request's id as text; make one up for a message that has none."""
        if id is None:
            self._unnumbered += 1
            return f"{connection_id}-n{self._unnumbered}"
        return _decode_text(id) if id[0] == 0x22 else id.decode()

    def correlate(self, job: Job) -> str:
        """Say the correlation id of a job; every line about it carries the same."""
        if not job.correlation_id:
            job.correlation_id = self.correlation_id(job.id, job.connection_id)
        return job.correlation_id

    # Running. What comes back is the answer's `result` or `error` member.

    def run(self, job: Job) -> bytes:
        """Run a `def` to its end; never raises."""

        def work(transaction: Any) -> bytes:
            parameters = job.method.parameters
            return result_member(parameters.call(job.bound.values, job.context, transaction))

        try:
            if self._ledger is not None and (job.key is not None or _needs_ledger(job.method)):
                return self._ledger.run(job, work, self.failure)
            return work(None)
        except BaseException as error:  # a handler's SystemExit does not end the server
            return error_member(self.failure(error, job))

    async def run_async(self, job: Job) -> bytes:
        """Run an `async def` to its end; never raises."""

        async def work(transaction: Any) -> bytes:
            parameters = job.method.parameters
            return result_member(await parameters.call(job.bound.values, job.context, transaction))

        try:
            if self._ledger is not None and (job.key is not None or _needs_ledger(job.method)):
                return await self._ledger.run_async(job, work, self.failure)
            return await work(None)
        except BaseException as error:
            return error_member(self.failure(error, job))

    def failure(self, error: BaseException, job: Job, text: str = "handler failed") -> RpcError:
        """Turn what a handler raised into the error that its caller may see."""
        if isinstance(error, RpcError) and not (error.from_peer and error.code in RESERVED_CODES):
            if (misuse := error.misuse) is not None:
                text = f"{text}: {misuse}"
            elif not isinstance(error, InternalError):  # which has a reference, and only we know it
                return error
        if isinstance(error, _Unserializable):
            return self._unforeseen("a result cannot be sent", error, job)
        if job.answered and type(error).__name__ == "CancelledError":
            return Cancelled()  # its caller has been told, or is gone
        return self._unforeseen(text, error, job)

    def _unforeseen(self, text: str, error: BaseException, job: Job) -> RpcError:
        """Log all there is to know; the peer gets the reference under which it stands there."""
        reference = self.log.failure(
            text,
            error,
            method=job.method.name,
            id=job.id,
            correlation_id=self.correlate(job),
            connection_id=job.connection_id,
        )
        if isinstance(error, _Unserializable):
            detail = "the handler has run, but its result cannot be written as JSON"
            return ResultUnserializable(data={"detail": detail, "reference": reference})
        return InternalError(data={"reference": reference})

    # The straight line.

    def _straight_line(self) -> AnswerAtOnce | None:
        """Compile the walk for methods that need nothing of the long one, if there are any."""
        simple = [method for method in self.service if self._is_simple(method)]
        if not simple:
            return None
        alone = len(simple) == 1
        max_batch, max_depth = self.policy.max_batch, self.policy.max_depth
        small = 2 * max_depth  # what is nested n deep has 2n bytes at least
        closed: set[type[Struct]] = set()
        """Their types read every byte of a request, and keep it from nesting too deep."""

        def define(params: Iterable[tuple[type[Struct], float]]) -> Any:
            """Define the envelopes of all methods whose params are these, and nest so deep."""
            kinds = []
            for method, (struct, nesting) in zip(simple, params, strict=True):
                kinds.append(self._tagged(method, struct, alone))
                if nesting + _OUTER_NESTING <= max_depth:
                    closed.add(kinds[-1])
            return Union[tuple(kinds)]  # noqa: UP007

        envelopes: Any = define((m.parameters.struct, m.parameters.nesting) for m in simple)
        decode = msgspec.json.Decoder(envelopes).decode
        decode_batch = msgspec.json.Decoder(list[envelopes]).decode
        failed, notify, answer_batch = self._failed, self._notified, self._answer_batch

        def is_text(body: bytes | bytearray, kinds: Iterable[type[Struct]]) -> bool:
            """Look at what the types have not: with closed ones, that is `_meta` alone."""
            if closed.issuperset(kinds) and b"\\" not in body:
                if b"_" not in body or b"_meta" not in body:
                    return True
            return is_json_text(body, max_depth)

        @functools.cache
        def shallow() -> Callable[[Any], Any]:
            """Make what decodes large messages, when the first one comes."""
            return msgspec.json.Decoder(define(m.parameters.shallow() for m in simple)).decode

        def decode_with_care(body: bytes | bytearray) -> Any:
            if len(body) < LARGE:
                message = decode(body)
            else:
                message = self.spent = decode_large(shallow(), body)
            if not is_text(body, (type(message),)):
                raise ValueError("the long way says what is wrong with it")
            return message

        def answer_at_once(body: bytes | bytearray, connection_id: str = "", /) -> bytes | None:
            try:
                if len(body) <= small and body.isascii():
                    message = decode(body)
                else:
                    message = decode_with_care(body)
            except BaseException:  # also out of a type's own check; the long way says what it is
                if max_batch and body[:1] == b"[" and len(body) < LARGE:
                    return answer_batch(body, decode_batch, is_text, connection_id)
                return None
            id = message.id
            if type(id) is not int or not id:
                if id is UNSET:
                    return notify(message, connection_id)
                # Zero may have been spelled -0, and a string with an escape in several ways.
                if b"\\" in body or (not id and b"-0" in body):
                    return None
            try:
                result = message.call()
            except BaseException as error:
                return failed(message, error, connection_id)
            try:
                return _encode(_Answer(id, result))
            except BaseException as error:
                return failed(message, _Unserializable(error), connection_id)

        return answer_at_once

    def _answer_batch(
        self,
        body: bytes | bytearray,
        decode: Callable[[Any], Any],
        is_text: Callable[[Any, Iterable[type[Struct]]], bool],
        connection_id: str,
    ) -> bytes | None:
        """Answer a batch of such requests, in their order; None if one of them is anything else."""
        try:
            messages = decode(body)
        except BaseException:
            return None
        ids = {message.id for message in messages}
        wanted = len(messages)
        if UNSET in ids:
            ids.remove(UNSET)
            wanted = sum(message.id is not UNSET for message in messages)
        if (
            not 0 < len(messages) <= self.policy.max_batch
            or len(ids) < wanted
            or b"\\" in body
            or (0 in ids and b"-" in body and b"-0" in body)
            or not is_text(body, map(type, messages))
            or (
                wanted < len(messages)
                and not all(m.id is not UNSET or m.notifiable for m in messages)
            )
        ):
            return None
        answers: list[_Answer | Raw] = []
        for message in messages:
            id = message.id
            if id is UNSET:
                self._notified(message, connection_id)
                continue
            try:
                answers.append(_Answer(id, message.call()))
            except BaseException as error:
                answers.append(Raw(self._failed(message, error, connection_id)))
        if not answers:
            return b""
        try:
            return _encode(answers)
        except BaseException:
            return encode_batch(
                [self._encoded(answer, messages, connection_id) for answer in answers]
            )

    def _encoded(self, answer: "_Answer | Raw", messages: list[Any], connection_id: str) -> bytes:
        try:
            return _encode(answer)
        except BaseException as error:
            assert isinstance(answer, _Answer), "an error is encoded already"
            message = next(message for message in messages if message.id == answer.id)
            return self._failed(message, _Unserializable(error), connection_id)

    def _notified(self, message: Any, connection_id: str) -> bytes | None:
        """Run a notification; nothing is answered. None if the long way has to refuse it."""
        if not message.notifiable:
            return None
        try:
            message.call()
        except BaseException as error:
            job = Job(None, message.served, Bound(None), None, None, None, connection_id)
            self.failure(error, job)
            self.log.note(
                "error",
                "notification failed",
                method=job.method.name,
                id=None,
                correlation_id=self.correlate(job),
                connection_id=connection_id,
            )
        return b""

    def _failed(self, message: Any, error: BaseException, connection_id: str) -> bytes:
        id = _encode(message.id)
        job = Job(id, message.served, Bound(None), None, None, None, connection_id)
        return encode_error(id, self.failure(error, job))

    def _tagged(self, method: Method, params: type[Struct], alone: bool) -> type[Struct]:
        """Define the envelope of one method's requests, with its params typed."""
        # A tag may be missing where there is nothing to tell apart, but a method may not.
        tag: dict[str, Any] = {} if alone else {"tag_field": "method", "tag": method.name}
        parameters = method.parameters
        fields: list[Any] = [("jsonrpc", Literal["2.0"])]
        if alone:
            fields.append(("method", Literal[method.name]))
        if any(parameter.required for parameter in parameters.listed):
            fields.append(("params", params))
        else:
            fields.append(("params", params, msgspec.field(default_factory=params)))
        fields.append(("id", int | str | UnsetType, UNSET))
        return msgspec.defstruct(
            "Request",
            fields,
            namespace={
                "call": parameters.call_message,
                "served": method,
                "notifiable": method.notification_allowed
                or self.policy.notifications is Notifications.ANY,
            },
            gc=False,
            kw_only=True,
            forbid_unknown_fields=True,
            **tag,
        )

    def _is_simple(self, method: Method) -> bool:
        parameters = method.parameters
        return (
            method.kind is Kind.QUERY
            and not method.is_async
            and (method.inline or (self.policy.max_in_flight == 1 and not self._shares_thread))
            and parameters.context is None
            and parameters.rest is UNSET
            and method.timeout is None
        )


def _needs_ledger(method: Method) -> bool:
    """Tell whether a command cannot run without the ledger, though it may come without a key."""
    return method.promise is Promise.TRANSACTIONAL


class _Unserializable(Exception):
    """A handler's result cannot be written; the cause tells the log why."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__("the result cannot be written as JSON")
        self.__cause__ = cause


def result_member(result: Any) -> bytes:
    """Encode a handler's result as the member of an answer."""
    try:
        return b'"result":' + _encode(result)
    except BaseException as error:
        raise _Unserializable(error) from error


def error_member(error: RpcError) -> bytes:
    """Encode an error as the member of an answer."""
    return b'"error":' + error_object(error)
