"""Which status an answer of JSON-RPC has over HTTP. Pure.

An answer is 200, also when it is an error: clients of JSON-RPC over HTTP take everything else for a
fault of the transport. Other statuses say what the transport itself is to do: try later (503), send
credentials (401), or send something that can be read (400).
"""

import math

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from duet_rpc.errors import (
    InvalidRequest,
    Overloaded,
    ParseError,
    PermissionDenied,
    ShuttingDown,
    Unauthenticated,
)
from duet_rpc.http.messages import JSON, Headers, HttpAnswer

_MARK = b'"error":{"code":-'
_LATER = {Overloaded.code: 503, ShuttingDown.code: 503}
_BY_CODE = {Unauthenticated.code: 401, PermissionDenied.code: 403, **_LATER}
_UNREADABLE = (ParseError.code, InvalidRequest.code)


class _Failed(Struct):
    code: int
    data: Raw | UnsetType = UNSET


class _Status(Struct):
    id: Raw
    error: _Failed | UnsetType = UNSET


class _Wait(Struct):
    retry_after_ms: float = 0.0


_decoder = msgspec.json.Decoder(_Status)
_wait_decoder = msgspec.json.Decoder(_Wait)


def is_error(body: bytes) -> bool:
    """Tell whether an answer may be an error; one that only speaks of errors may look so."""
    return _MARK in body


def spell_answer(body: bytes | None, headers: Headers) -> HttpAnswer:
    """Make the answer to a request that was taken; None if nothing in it is to be answered."""
    if body is None:
        return HttpAnswer(204, headers=headers)
    if _MARK not in body or body.startswith(b"["):
        return HttpAnswer(200, body, (*JSON, *headers))
    answer = _decoder.decode(body)
    if answer.error is UNSET:  # the text of an error, within a result
        return HttpAnswer(200, body, (*JSON, *headers))
    code = answer.error.code
    status = _BY_CODE.get(code, 200)
    if code in _UNREADABLE and bytes(answer.id) == b"null":
        status = 400
    said: Headers = ((b"duet-error-code", b"%d" % code),)
    if code in _LATER:
        said = (*said, (b"retry-after", b"%d" % _wait_seconds(answer.error)))
    elif status == 401:
        said = (*said, (b"www-authenticate", b"Bearer"))
    return HttpAnswer(status, body, (*JSON, *said, *headers))


def _wait_seconds(failed: _Failed) -> int:
    """Say in whole seconds how long to wait; the error has the exact time."""
    try:
        wait = _wait_decoder.decode(failed.data) if failed.data is not UNSET else _Wait()
    except msgspec.ValidationError:
        wait = _Wait()
    return max(1, math.ceil(wait.retry_after_ms / 1000))
