"""JSON-RPC 2.0 messages: bytes to values and back.

`decode` takes one body and gives one of a closed set of frozen values. It never raises: what is not
a message is `Invalid` and carries the error to answer. Ids and params stay the raw bytes they came
as; an id is echoed exactly as it was spelled (`1.0`, `-0`, thirty digits), which no JSON library
does through values. Absent and null are different things: a `Notification` has no id at all.

This module knows the envelope and nothing else: no methods, no policy, no I/O.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from duet_rpc.errors import InvalidRequest, ParseError, RpcError
from duet_rpc.startup import pattern
from duet_rpc.wire import surrogates
from duet_rpc.wire.depth import is_json_text

Json: TypeAlias = Any
"""A decoded JSON value."""

NULL = b"null"


class Request(Struct, frozen=True, gc=False):
    """A call that wants an answer under `id` (raw JSON; `null` is an id like any other)."""

    id: bytes
    method: str
    params: bytes | None
    """Raw JSON array or object; None when none are given (absent, null, `[]` and `{}` are one)."""


class Notification(Struct, frozen=True, gc=False):
    """A call that is never answered."""

    method: str
    params: bytes | None


class Response(Struct, frozen=True, gc=False):
    """An answer to a call of ours: raw `result` or `error`. Both at once are the peer's fault."""

    id: bytes
    result: bytes | None
    error: bytes | None

    @property
    def is_anonymous(self) -> bool:
        """It is a result, and its id is null: an error may be so, of what could not be read.

        Not if the result is null too: some servers answer notifications in that way.
        """
        return self.id == NULL and self.error is None and self.result != NULL


class Invalid(Struct, frozen=True):
    """Something that is no message: the error to answer, and the id if it could be read."""

    error: RpcError
    id: bytes = NULL
    is_answer: bool = False
    """It has no method, but an id, or at least a result: someone waits for something better."""


Single: TypeAlias = Request | Notification | Response | Invalid


class Batch(Struct, frozen=True):
    """Several messages in one array, in their order."""

    items: list[Single]


class TooLarge(Struct, frozen=True):
    """An array with more items than a batch may have."""


Message: TypeAlias = Single | Batch | TooLarge


class _Envelope(Struct, gc=False):
    """The members of the specification; anything else in the object is ignored."""

    jsonrpc: Raw | UnsetType = UNSET
    id: Raw | UnsetType = UNSET
    method: Raw | UnsetType = UNSET
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_text = msgspec.json.Decoder(str).decode
_check_syntax = msgspec.json.Decoder(Raw).decode
_encode = msgspec.json.Encoder().encode

_STARTS_ID = frozenset(b'"-0123456789n')
_STARTS_BATCH = rb"[ \t\r\n]*\["
_NO_PARAMS = rb"null|[\[{][ \t\r\n]*[\]}]"


def decode(body: bytes | bytearray, max_depth: int, max_batch: int) -> Message:
    """Read one message or batch. Never raises; what cannot be read is `Invalid`.

    A batch of more than `max_batch` items comes back as `TooLarge`, its items unread: an array of
    millions must not become millions of objects before it is refused.
    """
    if not is_json_text(body, max_depth):
        return _not_json(max_depth)
    try:
        if pattern(_STARTS_BATCH).match(body):
            return _decode_batch(body, max_batch)
        return _decode_single(body)
    except (msgspec.DecodeError, RecursionError):
        return _decode_masked(body, max_batch) or _not_json(max_depth)


def _decode_masked(body: bytes | bytearray, max_batch: int) -> Message | None:
    """Read a message that holds a lone surrogate, which msgspec takes for a fault."""
    masked = surrogates.mask(body)
    if masked is None:
        return None
    try:
        if pattern(_STARTS_BATCH).match(masked.text):
            batch = _decode_batch(masked.text, max_batch)
            if isinstance(batch, TooLarge):
                return batch
            return Batch([_unmask(item, masked) for item in batch.items])
        return _unmask(_decode_single(masked.text), masked)
    except (msgspec.DecodeError, RecursionError):
        return None


def _unmask(message: Single, masked: surrogates.Masked) -> Single:
    """Give the parts of a message back as they were spelled."""

    def unmask_part(part: bytes | None) -> bytes | None:
        return None if part is None else masked.unmask(part)

    match message:
        case Request(id, method, params):
            return Request(masked.unmask(id), masked.unmask_text(method), unmask_part(params))
        case Notification(method, params):
            return Notification(masked.unmask_text(method), unmask_part(params))
        case Response(id, result, error):
            return Response(masked.unmask(id), unmask_part(result), unmask_part(error))
        case Invalid(error, id, is_answer):
            return Invalid(error, masked.unmask(id), is_answer)


def _not_json(max_depth: int) -> Invalid:
    detail = f"send one JSON value in UTF-8, nested at most {max_depth} deep"
    return Invalid(ParseError(data={"detail": detail}))


def _decode_batch(body: bytes | bytearray, max_batch: int) -> Batch | TooLarge:
    try:
        items = _decode_items(max_batch)(body)
    except msgspec.ValidationError:
        _check_syntax(body)  # not JSON at all is the graver fault, and raises
        return TooLarge()
    return Batch([_decode_single(item) for item in msgspec.structs.astuple(items) if item])


@functools.cache
def _decode_items(max_batch: int) -> Callable[[bytes | bytearray], Struct]:
    """Make the decoder of arrays of at most so many items; it stops at the first beyond."""
    fields = [(f"item{index}", Raw, Raw()) for index in range(max_batch)]
    items = msgspec.defstruct("Items", fields, array_like=True, forbid_unknown_fields=True)
    return msgspec.json.Decoder(items).decode


def _decode_single(body: bytes | bytearray | Raw) -> Single:
    """Read one object. Raises msgspec.DecodeError if the body is not JSON at all."""
    try:
        envelope = _decode_envelope(body)
    except msgspec.ValidationError:
        _check_syntax(body)  # not JSON at all is the graver fault, and raises
        return _invalid(None, "a message is an object, or an array of them")
    if envelope.id is UNSET:
        id = None
    else:
        id = bytes(envelope.id)
        if id[0] not in _STARTS_ID:
            return Invalid(
                InvalidRequest.because(
                    "invalid-id-type", detail="an id is a string, a number or null"
                ),
                is_answer=_is_answer(envelope, None),
            )
    if envelope.jsonrpc is UNSET or _text(envelope.jsonrpc) != "2.0":
        return _invalid(id, 'jsonrpc must be "2.0"', is_answer=_is_answer(envelope, id))
    if envelope.method is not UNSET:
        method = _text(envelope.method)
        if method is None:
            return _invalid(id, "method must be a string")
        params = None
        if envelope.params is not UNSET:
            params = bytes(envelope.params)
            if params[0] not in b"[{n":
                return _invalid(id, "params must be an array or an object")
            if pattern(_NO_PARAMS).fullmatch(params):
                params = None
        return Notification(method, params) if id is None else Request(id, method, params)
    if id is not None and not (envelope.result is UNSET and envelope.error is UNSET):
        result = None if envelope.result is UNSET else bytes(envelope.result)
        error = None if envelope.error is UNSET else bytes(envelope.error)
        if result is not None and error == NULL:
            error = None  # several peers send both members and mean the result
        return Response(id, result, error)
    detail = "neither a request (method) nor an answer (result or error)"
    return _invalid(id, detail, is_answer=_is_answer(envelope, id))


def raw_params(body: bytes | bytearray) -> bytes | None:
    """Take the params out of a request that is known to be a good one."""
    params = _decode_envelope(body).params
    return None if params is UNSET else bytes(params)


def _is_answer(envelope: _Envelope, id: bytes | None) -> bool:
    """Tell whether someone waits for this: by its id, or by its result if it has no usable one.

    Without an id and a version it is any object: programs log results in JSON, too.
    """
    if envelope.method is not UNSET:
        return False
    if id is not None and id != NULL:
        return True
    if envelope.result is UNSET or (envelope.id is UNSET and envelope.jsonrpc is UNSET):
        return False
    return envelope.error is UNSET or bytes(envelope.error) == NULL


def _invalid(id: bytes | None, detail: str, *, is_answer: bool = False) -> Invalid:
    error = InvalidRequest.because("invalid-envelope", detail=detail)
    return Invalid(error, NULL if id is None else id, is_answer)


def _text(raw: Raw) -> str | None:
    try:
        return _decode_text(raw)
    except msgspec.ValidationError:
        return None


def encode_error(id: bytes, error: RpcError) -> bytes:
    """Make the error answer to `id`; data that cannot be encoded is left out."""
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (id, error_object(error))


def error_object(error: RpcError) -> bytes:
    """Encode the `error` member alone.

    Whatever somebody's class and objects raise must not keep the peer from its answer.
    """
    try:
        message = str(error.message)
    except Exception:
        message = RpcError.message
    members: dict[str, Any] = {"code": error.code, "message": message}
    try:
        return surrogates.encode_value(
            members if error.data is None else {**members, "data": error.data}
        )
    except Exception:
        return surrogates.encode_value(members)


def encode_batch(answers: list[bytes]) -> bytes:
    """Put answers into one array, in the order given."""
    return b"[%b]" % b",".join(answers)


def encode_request(id: int, method: str, params: bytes | None) -> bytes:
    """Make a call of ours."""
    try:
        name = _encode(method)
    except UnicodeEncodeError:
        name = surrogates.encode(method)
    if params is None:
        return b'{"jsonrpc":"2.0","id":%d,"method":%b}' % (id, name)
    return b'{"jsonrpc":"2.0","id":%d,"method":%b,"params":%b}' % (id, name, params)


def request_around(id: int, method: str, params: bytes) -> tuple[bytes, bytes, bytes]:
    """Make a call of ours in parts: its params are large, and need not be copied for it."""
    name = surrogates.encode_value(method)
    before = b'{"jsonrpc":"2.0","id":%d,"method":%b,"params":' % (id, name)
    return before, params, b"}"


def request_form(method: str) -> bytes:
    """Make the calls of one method but for their id and params, which `%` puts in."""
    name = surrogates.encode_value(method).replace(b"%", b"%%")
    return b'{"jsonrpc":"2.0","id":%%d,"method":%b,"params":%%b}' % name


def encode_notification(method: str, params: bytes | None) -> bytes:
    """Make a notification of ours."""
    name = surrogates.encode_value(method)
    if params is None:
        return b'{"jsonrpc":"2.0","method":%b}' % name
    return b'{"jsonrpc":"2.0","method":%b,"params":%b}' % (name, params)


class _ErrorObject(Struct):
    code: int
    message: str
    data: Json = None


_decode_error_object = msgspec.json.Decoder(_ErrorObject)


def decode_error(raw: bytes) -> RpcError | None:
    """Read the `error` member of an answer; None if it is malformed."""
    try:
        error = surrogates.decode_value(_decode_error_object, raw)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None
    return RpcError.from_wire(error.code, error.message, error.data)
