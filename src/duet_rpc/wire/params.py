"""What travels beside params: idempotency key, trace context, progress token, retry, stream window.

    {"idempotency_key": "order-17", "amount": 5,
     "_meta": {"traceparent": "00-...", "progressToken": 7, "retry": {"attempt": 2, "age_ms": 350}}}

Clients put these in by `add_metadata` and nowhere else; servers take them out by `Meta`, `read_key`
and `read_retry`. Laws of this file:
- What the params hold already is kept: a `_meta` is merged with, never written a second time.
- The same thing said twice in two ways is refused, by the client before anything is sent and by the
  server before anything runs. Neither has a way to tell which one was meant.

It knows bytes and values; no clock, no I/O, no methods.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from duet_rpc.errors import InvalidParams, UsageError
from duet_rpc.options import is_integer
from duet_rpc.wire.surrogates import decode_value, encode_value

KEY = "idempotency_key"
AGE = b"age_ms"
"""Stands in the params of every retry that tells its age."""
META = "_meta"
KEY_OF_ARGUMENTS = "arguments-"
"""How the key begins that a command has from its arguments; their fingerprint follows."""
SPACE = b" \t\r\n"
"""What JSON allows around values: a caller's own text may be laid out in any way."""

MAX_KEY = 255
_KEY_FORM = f"string of 1 to {MAX_KEY} printable characters"
_MAX_SHORT = 12 * MAX_KEY + 2
"""The longest spelling of a key: every character two escaped halves, and the quotes."""
_MOST = 2**53
_RETRY_FORM = "{attempt: integer of 2 or more, age_ms: integer of 0 or more}"

_anything = msgspec.json.Decoder()


class RetryAge(Struct, frozen=True):
    """How a retry of a command presents itself: which attempt it is, and how old the first one is.

    The age is relative, so no clocks need to agree: milliseconds from the moment when the first
    attempt was sent until this one was; zero if none before this one can have had an effect.
    """

    attempt: Annotated[int, msgspec.Meta(ge=2, le=_MOST)]
    age_ms: Annotated[int, msgspec.Meta(ge=0, le=_MOST)]

    @property
    def age(self) -> float:
        """The age in seconds."""
        return self.age_ms / 1000


_retry_decoder = msgspec.json.Decoder(RetryAge)


# Putting in.


def add_metadata(
    params: bytes | None,
    *,
    key: str | None = None,
    trace_parent: str | None = None,
    progress_token: int | None = None,
    retry: RetryAge | None = None,
    stream_window: int | None = None,
    tokens: Mapping[str, int] = {},
) -> bytes | None:
    """Put what is given beside encoded params. Raises `UsageError` if they say otherwise already.

    `tokens` are members of the params themselves, as LSP has them. Params by position have no room
    for anything.
    """
    ours: dict[str, Any] = {
        "traceparent": trace_parent,
        "progressToken": progress_token,
        "retry": retry,
        "stream": None if stream_window is None else {"window": stream_window},
    }
    meta = {name: value for name, value in ours.items() if value is not None}
    if key is None and not meta and not tokens:
        return params
    params = b"{}" if params is None else params.strip(SPACE)
    if params == b"null":
        params = b"{}"
    elif params[:1] != b"{":
        named = [*(f"_meta.{name}" for name in meta), *tokens]
        what = "an idempotency key" if key is not None else named[0]
        raise UsageError(f"{what} needs named params (a dict): a list has no room for it")
    elif (
        b"\\" in params
        or (key is not None and _KEY in params)
        or _META in params
        or any(name.encode() in params for name in tokens)
    ):
        return _merge(params, key, meta, tokens)
    added: dict[str, Any] = dict(tokens) if key is None else {KEY: key, **tokens}
    if meta:
        added[META] = meta
    spliced = encode_value(added)
    theirs = params[1:].lstrip(SPACE)
    return spliced if theirs == b"}" else b"%b,%b" % (spliced[:-1], theirs)


_KEY, _META, _NULL = KEY.encode(), META.encode(), Raw(b"null")


def _merge(
    params: bytes, key: str | None, meta: dict[str, Any], tokens: Mapping[str, int]
) -> bytes:
    members = _members(params, "params")
    theirs = members.pop(META, UNSET)
    for name, token in tokens.items():
        if members.get(name, _NULL) != _NULL:
            raise UsageError(f"the params hold a {name} already, and the call adds one")
        members[name] = token
    if key is not None:
        _given_key(members, theirs, key)
        members[KEY] = key  # in place of an equal one, or of null
        if read_meta(theirs).idempotency_key is not UNSET:
            others = _members(theirs, META)
            del others[KEY]
            theirs = Raw(encode_value(others))
    if not meta and theirs is not UNSET:
        members[META] = theirs
    elif meta:
        held = {} if theirs in (UNSET, _NULL) else _members(theirs, META)
        for name, value in meta.items():
            if held.get(name, UNSET) not in (UNSET, _NULL, Raw(encode_value(value))):
                raise UsageError(f"the params hold a _meta.{name} already, and the call adds one")
        members[META] = {**held, **meta}
    return encode_value(members)


def _members(raw: bytes | Raw, what: str) -> dict[str, Any]:
    try:
        return decode_value(_members_decoder, raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise UsageError(f"{what} has to be a JSON object to take anything beside it") from None


_members_decoder = msgspec.json.Decoder(dict[str, Raw])


def find_key(params: bytes | None, key: str | None = None) -> str | None:
    """Say the key of a command: the one given beside its encoded params, or the one in them.

    None if there is neither. Raises `UsageError` if one of them is no text, if two differ, or if
    the params tell the age of a retry themselves.
    """
    if params is None or params.lstrip(SPACE)[:1] != b"{":
        return key
    if b"\\" not in params and _KEY not in params and _META not in params:
        return key
    members = _members(params, "params")
    meta = members.get(META, UNSET)
    if read_meta(meta).retry not in (UNSET, _NULL):
        raise UsageError(
            "_meta.retry is the client's own: say age=, the seconds since the first try"
        )
    return _given_key(members, meta, key)


def _given_key(members: dict[str, Any], meta: Any, key: str | None) -> str | None:
    inside = read_meta(meta).idempotency_key
    found = [key] if key is not None else []
    for raw in (members.get(KEY, UNSET), inside):
        if raw in (UNSET, _NULL):
            continue
        other = decode_value(_anything, raw)
        if not isinstance(other, str):
            raise UsageError(f"an idempotency key is text, not {other!r}")
        found.append(other)
    if any(other != found[0] for other in found):
        said = " and ".join(repr(each) for each in dict.fromkeys(found))
        raise UsageError(f"one command, two idempotency keys, by key= or in its params: {said}")
    return found[0] if found else None


# Taking out.


class Meta(Struct):
    """What of `params._meta` is ours. Raw, because a peer may send anything under these names."""

    idempotency_key: Raw | UnsetType = UNSET
    traceparent: Raw | UnsetType = UNSET
    progressToken: Raw | UnsetType = UNSET
    retry: Raw | UnsetType = UNSET
    stream: Raw | UnsetType = UNSET


NO_META = Meta()
_meta_decoder = msgspec.json.Decoder(Meta)


def read_meta(raw: Raw | UnsetType) -> Meta:
    """Read what of `params._meta` is ours; other programs keep theirs there too."""
    if raw is UNSET:
        return NO_META
    try:
        return decode_value(_meta_decoder, raw)
    except msgspec.ValidationError:
        return NO_META


def read_short(raw: Raw | UnsetType) -> Any:
    """Decode one of our own small values; None is anything that cannot be one."""
    if raw is UNSET:
        return UNSET
    try:
        return decode_value(_anything, raw) if memoryview(raw).nbytes <= _MAX_SHORT else None
    except msgspec.ValidationError:
        return None


def find_token(values: Any, name: str | None) -> Raw | None:
    """Find a token of LSP among params: a text or a whole number. Anything else is none, as null.

    A handler that has a parameter of this name uses it by itself, or not at all.
    """
    token = None if name is None else getattr(values, name, None)
    if not isinstance(token, Raw):
        return None
    value = read_short(token)
    return token if isinstance(value, str) or is_integer(value) else None


def read_key(beside: Raw | UnsetType, meta: Meta, method: str, *, required: bool) -> str | None:
    """Find the key of a command, beside its params or in their `_meta`; raise `InvalidParams`.

    Two that differ are refused: whichever of them were taken, a retry that brings only the other
    one would run the command again.
    """
    key = read_short(beside)
    if meta.idempotency_key is not UNSET:
        other = read_short(meta.idempotency_key)
        if key is not UNSET and key != other:
            raise _invalid_key(
                "two different keys",
                f"{method}: {KEY} beside the params and in _meta differ; send one",
            )
        key = other
    if key is UNSET:
        if required:
            raise _missing_key(method)
        return None
    return check_key(key)


def check_key(key: Any) -> str:
    """Give back what may be an idempotency key; raise `InvalidParams` for anything else."""
    if isinstance(key, str) and 1 <= len(key) <= MAX_KEY and key.isprintable():
        return key
    received = "another value"
    if isinstance(key, str):
        received = f"{len(key)} characters" if key.isprintable() else "unprintable characters"
    raise _invalid_key(received)


def _invalid_key(received: str, detail: str | None = None) -> InvalidParams:
    data = {
        "reason": "idempotency-key-invalid",
        "param": KEY,
        "expected": _KEY_FORM,
        "received": received,
    }
    return InvalidParams(data=data if detail is None else {**data, "detail": detail})


def _missing_key(method: str) -> InvalidParams:
    return InvalidParams(
        data={
            "reason": "idempotency-key-missing",
            "param": KEY,
            "expected": _KEY_FORM,
            "received": "nothing",
            "detail": f"{method} is a command and needs a key: client.command and `duet-rpc call`"
            " send one",
        }
    )


def read_retry(meta: Meta) -> RetryAge | None:
    """Read how old a retry is; None for a first attempt. Raises `InvalidParams`.

    What cannot be read is refused, not ignored: it says that this is a retry, and a command that
    is taken for a first attempt may run a second time.
    """
    if meta.retry is UNSET:
        return None
    try:
        return decode_value(_retry_decoder, meta.retry)
    except (msgspec.ValidationError, RecursionError):
        raise InvalidParams(
            data={
                "param": f"{META}.retry",
                "expected": _RETRY_FORM,
                "received": "another value",
            }
        ) from None
