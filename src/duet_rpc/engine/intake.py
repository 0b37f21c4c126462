"""The common request in a straight line: one decode, the call, one encode.

`straight_line` compiles one function for the methods that need nothing of the long way: queries of
plain params that run where they are read. It reads envelope and params in one pass and gives up, by
returning None, on anything odd: the long way then says what it is, and nothing has been run.

Laws of this file:
- What is answered here is answered as the long way would, byte for byte.
- A type that leaves bytes unread or may nest without end is not trusted: the body is looked at once
  more (decision 12).
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Protocol, Union

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from duet_rpc.policy import Notifications, Policy
from duet_rpc.service import Method
from duet_rpc.startup import pattern
from duet_rpc.wire import surrogates
from duet_rpc.wire.large import LARGE, decode_large
from duet_rpc.wire.messages import encode_batch, is_json_text


class AnswerAtOnce(Protocol):
    """The straight line: a body in, its answer out, or None if it has to go the long way."""

    def __call__(self, body: bytes | bytearray, connection_id: str = "", /) -> bytes | None:
        """Answer one message if it is a plain request."""
        ...


class LongWay(Protocol):
    """What the straight line leaves to others, because it is rare."""

    leave: Callable[[BaseException | None], object] | None
    """Ends this process, if it is the forked child of a handler."""
    batches: list[list[Any]]
    """The messages of the batches that are being answered; a forked child empties them."""

    def failed(self, message: Any, error: BaseException, connection_id: str) -> bytes:
        """Make the answer to a message whose handler, or whose result, has failed."""
        ...

    def notified(self, message: Any, connection_id: str) -> bytes | None:
        """Run a notification; nothing is answered. None if the long way has to refuse it."""
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
_ODD = "the long way says what is wrong with it"
_OUTER_NESTING = 3
"""The array of a batch, the envelope, the params."""

_encode = msgspec.json.Encoder().encode


def straight_line(methods: Sequence[Method], policy: Policy, others: LongWay) -> AnswerAtOnce:
    """Compile the walk for these methods."""
    max_batch, max_depth = policy.max_batch, policy.max_depth
    small = 2 * max_depth  # what is nested n deep has 2n bytes at least
    failed, notified, batches = others.failed, others.notified, others.batches

    def is_closed(nesting: float) -> bool:
        return nesting + _OUTER_NESTING <= max_depth

    alone = len(methods) == 1
    kinds = [_envelope(m, m.parameters.struct, policy, alone) for m in methods]
    envelopes: Any = Union[tuple(kinds)]  # noqa: UP007
    decode = msgspec.json.Decoder(envelopes).decode
    decode_batch = msgspec.json.Decoder(list[envelopes]).decode
    closed = {
        kind
        for kind, method in zip(kinds, methods, strict=True)
        if is_closed(method.parameters.nesting)
    }
    """Their types read every byte of a request, and keep it from nesting too deep."""

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
        method = next(method for method in methods if method.name == name)
        params, nesting = method.parameters.shallow()
        kind = _envelope(method, params, policy, alone=True)
        return msgspec.json.Decoder(kind).decode, is_closed(nesting)

    def answer_at_once(body: bytes | bytearray, connection_id: str = "", /) -> bytes | None:
        try:
            if len(body) <= small and body.isascii():
                message = decode(body)
            else:
                message = decode_with_care(body)
        except BaseException:  # also out of a type's own check; the long way says what it is
            if max_batch and body[:1] == b"[" and len(body) < LARGE:
                return answer_batch(body, connection_id)
            return None
        id = message.id
        if type(id) is not int or not id:
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
            return encoded_otherwise(message, result, error, connection_id)

    def encoded_otherwise(
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
            messages = decode_batch(body)
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
                return encode_batch([encoded(each, messages, connection_id) for each in answers])
        finally:
            batches.pop()
            answers.clear()  # the collector does not see them, so no frame may keep them

    def encoded(answer: _Answer | Raw, messages: list[Any], connection_id: str) -> bytes:
        try:
            return _encode(answer)
        except BaseException as error:
            if others.leave is not None:
                others.leave(None)
            assert isinstance(answer, _Answer), "an error is encoded already"
            message = next(message for message in messages if message.id == answer.id)
            result = answer.result
            del answer  # the error knows this frame
            return encoded_otherwise(message, result, error, connection_id)

    return answer_at_once


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


def _envelope(method: Method, params: type[Struct], policy: Policy, alone: bool) -> type[Struct]:
    """Define the envelope of one method's requests, with its params typed."""
    # A tag may be missing where there is nothing to tell apart, but a method may not.
    tag: dict[str, Any] = {} if alone else {"tag_field": "method", "tag": method.name}
    fields: list[Any] = [("jsonrpc", Literal["2.0"])]
    if alone:
        fields.append(("method", Literal[method.name]))
    if any(parameter.required for parameter in method.parameters.listed):
        fields.append(("params", params))
    else:
        fields.append(("params", params, msgspec.field(default_factory=params)))
    fields.append(("id", int | str | UnsetType, UNSET))
    return msgspec.defstruct(
        "Request",
        fields,
        namespace={
            "call": method.parameters.call_message,
            "served": method,
            "notifiable": method.notification_allowed or policy.notifications is Notifications.ANY,
        },
        gc=params.__struct_config__.gc,
        kw_only=True,
        forbid_unknown_fields=True,
        **tag,
    )
