"""The front door of every method: a plain request is decoded, envelope and params, in one pass.

`compile_intake` makes one union of the types of all methods. A query of plain params that runs
where it is read takes the fast path: one decode, the call, one encode. Of every other method the
typed request is handed on, to be run. What is odd (a batch with other methods, an id spelled in a
way of its own, params that do not fit) is given up by returning None: the slow decode then says
what it is, and nothing has been run.

Laws of this file:
- What is answered here is answered as after the slow decode, byte for byte.
- A type that leaves bytes unread or may nest without end is not trusted: the body is looked at once
  more (decision 12).
- What has to wait is decoded when it has its turn, unless it is small and its params are scalars:
  others may take many times the room of their text, and a class's own checks have their turn too.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Protocol, TypeAlias, Union

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from duet_rpc.policy import Notifications, Policy
from duet_rpc.service import Kind, Method
from duet_rpc.startup import pattern
from duet_rpc.wire import surrogates
from duet_rpc.wire.depth import is_json_text
from duet_rpc.wire.large import LARGE, decode_large
from duet_rpc.wire.messages import encode_batch
from duet_rpc.wire.models import make_model, write_model


class Plain:
    """A plain request, decoded with the types of its method: what all their classes have."""

    id: int | str | Raw | UnsetType
    """As it was spelled, of a method that is not answered here."""
    params: Any
    served: Method
    notifiable: bool
    """Whether it may come without an id."""

    def __len__(self) -> int:
        """Be as long as an answer that there is none of: so a connection need not ask for it."""
        return 0


class AnswerAtOnce(Protocol):
    """The fast path: a body in, its answer out; None if it needs the slow decode.

    A plain request that needs more than a call comes back decoded.
    """

    def __call__(self, body: bytes | bytearray, connection_id: str = "", /) -> bytes | Plain | None:
        """Answer one message if it is a plain request."""
        ...


Read: TypeAlias = Callable[[bytes | bytearray], Plain | None]
"""Decodes a body; None if it needs the slow decode."""


class LongWay(Protocol):
    """What the fast path leaves to others, because it is rare."""

    leave: Callable[[BaseException | None], object] | None
    """Ends this process, if it is the forked child of a handler."""
    batches: list[list[Any]]
    """The messages of the batches that are being answered; a forked child empties them."""

    def failed(self, message: Any, error: BaseException, connection_id: str) -> bytes:
        """Make the answer to a message whose handler, or whose result, has failed."""
        ...

    def notified(self, message: Any, connection_id: str) -> bytes | Plain | None:
        """Run a notification; nothing is answered. None if the slow decode has to refuse it."""
        ...

    def keep(self, message: Any) -> None:
        """Keep a large message until its answer has gone."""
        ...


class Unserializable(Exception):
    """A handler's result cannot be written; the cause tells the log why."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__("the result cannot be written as JSON")
        self.__cause__ = cause


class _Answer(Struct, gc=False, tag_field="jsonrpc", tag="2.0"):
    id: int | str
    result: Any


_METHOD = rb'"method"\s*:\s*"([^"\\]+)"'
_HEAD = 256
"""Bytes in which nearly every large request has named its method."""
_ODD = "the slow decode says what is wrong with it"
_OUTER_NESTING = 3
"""The array of a batch, the envelope, the params."""
SMALL_WAITING = 1024
"""Bytes of a request that may wait decoded; its text, in parts, would take as much room."""

_encode = msgspec.json.Encoder(enc_hook=write_model).encode


class Intake(Struct, frozen=True):
    """What a connection asks first about a body."""

    answer_at_once: AnswerAtOnce
    read: Read
    """For what can begin now, beside what runs."""
    read_waiting: Read
    """For what has to wait its turn."""


def compile_intake(
    methods: Sequence[Method], simple: Sequence[Method], policy: Policy, others: LongWay
) -> Intake:
    """Compile the front door of these methods; simple are those that are answered here."""
    max_batch, max_depth = policy.max_batch if simple else 0, policy.max_depth
    small = 2 * max_depth  # what is nested n deep has 2n bytes at least
    failed, notified, batches = others.failed, others.notified, others.batches
    answered = {method.name for method in simple}
    closed: set[type[Struct]] = set()
    """Their types read every byte of a request, and keep it from nesting too deep."""

    def is_closed(nesting: float) -> bool:
        return nesting + _OUTER_NESTING <= max_depth

    def union(some: Sequence[Method]) -> Any:
        """Define what a request of these methods may be; each class belongs to one union."""
        kinds = []
        for method in some:
            parameters = method.parameters
            is_simple = method.name in answered
            kind = _envelope(method, parameters.typed, policy, len(some) == 1, is_simple)
            kinds.append(kind)
            if is_simple and is_closed(parameters.nesting):
                closed.add(kind)
        return Union[tuple(kinds)]  # noqa: UP007

    envelopes: Any = union(methods)
    decode = msgspec.json.Decoder(envelopes, dec_hook=make_model).decode

    @functools.cache
    def decode_batch() -> Callable[[Any], Any]:
        """Make what decodes a batch of simple requests, when the first one comes."""
        items: Any = envelopes if len(simple) == len(methods) else union(simple)
        return msgspec.json.Decoder(list[items], dec_hook=make_model).decode

    def is_text(body: bytes | bytearray, kinds: Iterable[type[Struct]]) -> bool:
        """Look at what the types have not: with closed ones, that is `_meta` alone."""
        if closed.issuperset(kinds) and b"\\" not in body:
            if b"_" not in body or b"_meta" not in body:
                return True
        return is_json_text(body, max_depth)

    def decode_with_care(body: bytes | bytearray) -> Any:
        if len(body) >= LARGE:
            return decode_by_head(body)
        message = decode(body)
        if not is_text(body, (type(message),)):
            raise ValueError(_ODD)
        return message

    def decode_by_head(body: bytes | bytearray) -> Any:
        """Decode a large message with the types of the one method that its head names."""
        named = pattern(_METHOD).search(body, 0, _HEAD)
        if named is None:
            raise ValueError(_ODD)
        decode_shallow, is_shallow = shallow(named[1].decode())
        message = decode_large(decode_shallow, body)
        if message.params._meta is not UNSET or not is_shallow:
            if not is_json_text(body, max_depth):
                raise ValueError(_ODD)
        others.keep(message)
        return message

    @functools.cache
    def shallow(name: str) -> tuple[Callable[[Any], Any], bool]:
        """Make what decodes the large requests of one method, when the first one comes."""
        method = next(method for method in simple if method.name == name)
        params, nesting = method.parameters.shallow()
        kind = _envelope(method, params, policy, alone=True, is_simple=True)
        return msgspec.json.Decoder(kind, dec_hook=make_model).decode, is_closed(nesting)

    def answer_at_once(body: bytes | bytearray, connection_id: str = "", /) -> Any:
        try:
            if len(body) <= small and body.isascii():
                message = decode(body)
            else:
                message = decode_with_care(body)
        except BaseException:  # also out of a type's own check; the slow decode says what it is
            if max_batch and body[:1] == b"[" and len(body) < LARGE:
                return answer_batch(body, connection_id)
            return None
        id = message.id
        if type(id) is not int or not id:
            if type(id) is Raw:
                return message  # to be run by others
            if id is UNSET:
                return notified(message, connection_id)
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
            return encode_otherwise(message, result, error, connection_id)

    def encode_otherwise(
        message: Any, result: Any, error: BaseException, connection_id: str
    ) -> bytes:
        """Encode an answer that msgspec has refused, if it is for a lone surrogate."""
        try:
            if isinstance(error, UnicodeEncodeError):
                return surrogates.encode(_Answer(message.id, result))
        except BaseException as another:
            error = another
        return failed(message, Unserializable(error), connection_id)

    def answer_batch(body: bytes | bytearray, connection_id: str) -> bytes | None:
        """Answer a batch of such requests, in their order; None if one of them is another."""
        try:
            messages = decode_batch()(body)
        except BaseException:
            return None
        if not _is_plain(body, messages, max_batch) or not is_text(body, map(type, messages)):
            return None
        answers: list[_Answer | Raw] = []
        batches.append(messages)
        try:
            for message in messages:
                id = message.id
                if id is UNSET:
                    notified(message, connection_id)
                    continue
                try:
                    answers.append(_Answer(id, message.call()))
                except BaseException as error:
                    answers.append(Raw(failed(message, error, connection_id)))
            if not answers:
                return b""
            try:
                return _encode(answers)
            except BaseException:
                return encode_batch(
                    [encode_answer(each, messages, connection_id) for each in answers]
                )
        finally:
            batches.pop()
            answers.clear()  # the collector does not see them, so no frame may keep them

    def encode_answer(answer: _Answer | Raw, messages: list[Any], connection_id: str) -> bytes:
        try:
            return _encode(answer)
        except BaseException as error:
            if others.leave is not None:
                others.leave(None)
            assert isinstance(answer, _Answer), "an error is encoded already"
            message = next(message for message in messages if message.id == answer.id)
            result = answer.result
            del answer  # the error knows this frame
            return encode_otherwise(message, result, error, connection_id)

    def read(body: bytes | bytearray, decode: Callable[[Any], Any] = decode, /) -> Any:
        try:
            if len(body) <= small and body.isascii():
                message = decode(body)
            elif len(body) >= LARGE:
                return None
            else:
                message = decode(body)
                if not is_text(body, (type(message),)):
                    return None
        except BaseException:
            return None
        id = message.id
        if type(id) is not int or not id:
            if type(id) is Raw:
                return message
            if id is UNSET:
                return message if message.notifiable else None
            if b"\\" in body or (not id and b"-0" in body):
                return None
        return message

    def read_waiting(body: bytes | bytearray, /) -> Any:
        decode = decode_scalars() if len(body) <= SMALL_WAITING else None
        return None if decode is None else read(body, decode)

    @functools.cache
    def decode_scalars() -> Callable[[Any], Any] | None:
        """Make what decodes requests of scalars, when the first one has to wait."""
        plain = [m for m in methods if m.parameters.nesting == 0 and m.parameters.rest is UNSET]
        return msgspec.json.Decoder(union(plain)).decode if plain else None

    return Intake(answer_at_once, read, read_waiting)


def _is_plain(body: bytes | bytearray, messages: list[Any], max_batch: int) -> bool:
    """Tell whether a batch can be answered as it is: ids that differ, spelled in the usual way."""
    ids = {message.id for message in messages}
    wanted = len(messages)
    if UNSET in ids:
        ids.remove(UNSET)
        wanted = sum(message.id is not UNSET for message in messages)
        if not all(message.id is not UNSET or message.notifiable for message in messages):
            return False
    return (
        0 < len(messages) <= max_batch
        and len(ids) == wanted
        and b"\\" not in body
        and not (0 in ids and b"-" in body and b"-0" in body)
    )


def _bind_whole(message: Any) -> None:
    """Make one value of the params of a message whose method takes them whole."""
    raw = b"null" if message.params is UNSET else bytes(message.params)
    message.params = message.served.parameters.bind(None if raw == b"null" else raw).values


def _envelope(
    method: Method, params: Any, policy: Policy, alone: bool, is_simple: bool
) -> type[Struct]:
    """Define the envelope of one method's requests, with its params typed."""
    # A tag may be missing where there is nothing to tell apart, but a method may not.
    tag: dict[str, Any] = {} if alone else {"tag_field": "method", "tag": method.name}
    fields: list[Any] = [("jsonrpc", Literal["2.0"])]
    if alone:
        fields.append(("method", Literal[method.name]))
    namespace: dict[str, Any] = {}
    if method.parameters.whole is not None:
        fields.append(("params", Raw | UnsetType, UNSET))
        namespace["__post_init__"] = _bind_whole
    elif any(parameter.required for parameter in method.parameters.listed):
        fields.append(("params", params))
    else:
        empty = list if method.parameters.rest is not UNSET else params
        fields.append(("params", params, msgspec.field(default_factory=empty)))
    if method.kind is not Kind.NOTIFICATION:  # which may have none: the slow decode refuses it
        fields.append(("id", (int | str if is_simple else Raw) | UnsetType, UNSET))
    needs_id = method.kind is Kind.COMMAND and policy.command_needs_id
    allowed = method.notification_allowed or policy.notifications is Notifications.ANY
    if method.kind is Kind.SUBSCRIPTION:  # whose answer alone names it
        allowed = False
    return msgspec.defstruct(
        "Request",
        fields,
        namespace=namespace
        | {
            "call": method.parameters.call_message if is_simple else None,
            "served": method,
            **({"id": UNSET} if method.kind is Kind.NOTIFICATION else {}),
            "notifiable": allowed and not needs_id,
            "__len__": staticmethod(int),  # which is 0
        },
        gc=method.parameters.rest is not UNSET or params.__struct_config__.gc,
        kw_only=True,
        forbid_unknown_fields=True,
        **tag,
    )
