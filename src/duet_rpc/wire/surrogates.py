r"""JSON text with a lone surrogate escape, `"\ud83d"`: JSON by its grammar, and msgspec refuses it.

JavaScript and Python both write such text (half an emoji, a file name that is no UTF-8), so what
msgspec could not read or write comes here, and nothing else does.

Laws of this file:
- msgspec is the judge. It reads the same text with another escape in each such place; what it
  refuses then is refused. Only the strings themselves come from Python's own json module.
- The spelling is kept where it matters: ids, raw values, numbers with more digits than a float.
- All work is done at the speed of C but for types that want such spellings: a peer may send ten
  megabytes of nothing else.
"""

import re
from collections.abc import Callable
from math import inf
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, inspect

from duet_rpc.startup import pattern
from duet_rpc.wire.models import make_model, write_model

T = TypeVar("T")

_HIGH = rb"[dD][89abAB][0-9a-fA-F]{2}"
_LOW = rb"[dD][c-fC-F][0-9a-fA-F]{2}"
_LONE = rb"\\u(?=%b(?!\\u%b))|(?<!\\u%b)\\u(?=%b)" % (_HIGH, _LOW, _HIGH, _LOW)
"""The first two bytes of such an escape, in text that has no escaped backslashes."""
_BACKSLASH, _STAND_IN = rb"\\", b"\1\1"

CANNOT_HOLD = "a lone surrogate cannot stand here"
"""What a `msgspec.ValidationError` says if a type has no room for such a string."""

_SPELLED = (inspect.RawType, inspect.DecimalType)
"""Types that want more than the value that JSON's usual decoding leaves."""
_WITH_FIELDS = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType)


def decode_value(decoder: msgspec.json.Decoder[T], raw: Any) -> T:
    """Decode a part of a message; a string in it may hold lone surrogates.

    Raises what the decoder raises for all that is not JSON, or not of its type.
    """
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        found: T = decode(raw, decoder.type)
        return found


_encode = msgspec.json.Encoder(enc_hook=write_model).encode


def encode_value(value: Any) -> bytes:
    """Encode a value; a lone surrogate in a string is written as its escape."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return encode(value)


class Masked:
    """A text in which each lone surrogate is masked, so that msgspec can cut it into parts."""

    def __init__(self, found: bytes, token: bytes) -> None:
        self._found = found
        self._token = token
        self.text: bytes = found.replace(_STAND_IN, _BACKSLASH)

    def unmask(self, part: Any) -> bytes:
        """Give a part of the text back as it was spelled."""
        return bytes(part).replace(self._token, rb"\u")

    def unmask_text(self, text: str) -> str:
        """Give a decoded string what it held."""
        token = self._token.decode()
        if token not in text:
            return text
        return re.sub(token + "(....)", lambda found: chr(int(found[1], 16)), text)

    def replace(self) -> bytes:
        """Give the text with U+FFFD in place of each lone surrogate."""
        with_others = re.sub(self._token + b"....", rb"\\ufffd", self._found)
        return with_others.replace(_STAND_IN, _BACKSLASH)


def mask(text: bytes | bytearray) -> Masked | None:
    """Mask the lone surrogates of a text that may be JSON; None if it has none."""
    if rb"\u" not in text or b"\1" in text:  # which stands nowhere in JSON
        return None
    from hashlib import sha256

    # No one can write a text that holds its own hash.
    token = b"~%b~" % sha256(text).hexdigest()[:16].encode()
    found, count = pattern(_LONE).subn(token, bytes(text).replace(_BACKSLASH, _STAND_IN))
    return Masked(found, token) if count else None


def decode(text: Any, type: Any = Any, float_hook: Callable[[str], Any] | None = None) -> Any:
    """Decode what msgspec has refused, as it would if it knew of lone surrogates.

    Raises `msgspec.DecodeError` if it is not JSON, and `msgspec.ValidationError` if it is not of
    this type, or holds a lone surrogate where the type has no room for one.
    """
    text = bytes(text)
    masked = mask(text)
    if masked is None:
        return msgspec.json.decode(text, type=type, dec_hook=make_model)
    msgspec.json.decode(masked.replace(), type=type, dec_hook=make_model)
    if type is Any:
        return _values(text, float_hook)
    described = inspect.type_info(type)
    try:
        return _convert(masked, described, type, _SPELLED)
    except UnicodeEncodeError:
        pass  # perhaps out of a name that is none of the type's
    try:
        return _convert(masked, described, type, _SPELLED + _WITH_FIELDS)
    except UnicodeEncodeError:
        raise msgspec.ValidationError(CANNOT_HOLD) from None


def _values(text: bytes, float_hook: Callable[[str], Any] | None = None) -> Any:
    from json import loads  # here: nearly every process never needs it

    try:
        return loads(text.decode(), parse_float=float_hook)
    except ValueError:  # an integer that is too long, where the judge did not look at it
        raise msgspec.ValidationError("Number out of range") from None


def _convert(masked: Masked, described: Any, type: Any, kinds: tuple[type, ...]) -> Any:
    values = _read(masked, masked.text, described, kinds)
    return msgspec.convert(values, type, str_keys=True, dec_hook=make_model)


def _read(masked: Masked, part: Any, described: Any, kinds: tuple[type, ...]) -> Any:
    """Read a part of the text: plain values, with the spelling where the type wants it."""
    if not _holds(described, kinds, set()):
        return _values(masked.unmask(part))

    def read(part: Any, described: Any) -> Any:
        return _read(masked, part, described, kinds)

    match described, bytes(part[:1] if isinstance(part, bytes) else memoryview(part)[:1]):
        case inspect.RawType(), _:
            return Raw(masked.unmask(part))
        case inspect.DecimalType(), first if first in b"-0123456789":
            from decimal import Decimal

            return msgspec.json.decode(part, type=Decimal)
        case inspect.UnionType(types=types), first:
            fitting = [one for one in types if _fits(one, first) and _is_tagged(one, masked, part)]
            return read(part, fitting[0]) if len(fitting) == 1 else _values(masked.unmask(part))
        case inspect.DictType(value_type=inner), b"{":
            return {name: read(member, inner) for name, member in _members(masked, part)}
        case inspect.CollectionType(item_type=inner), b"[":
            return [read(item, inner) for item in _items(part)]
        case inspect.TupleType(item_types=inners), b"[":
            return [read(*each) for each in zip(_items(part), inners, strict=True)]
        case _, b"{" | b"[":
            return _read_fields(masked, part, described.fields, read)
    return _values(masked.unmask(part))


def _read_fields(masked: Masked, part: Any, fields: Any, read: Callable[[Any, Any], Any]) -> Any:
    if bytes(memoryview(part)[:1]) == b"[":
        items = _items(part)
        types = [field.type for field in fields] + [inspect.AnyType()] * len(items)
        return [read(*each) for each in zip(items, types, strict=False)]
    known = {field.encode_name: field.type for field in fields}
    return {
        name: read(member, known.get(name, inspect.AnyType()))
        for name, member in _members(masked, part)
        if name in known or not _is_lone(name)
    }


def _members(masked: Masked, part: Any) -> list[tuple[str, Raw]]:
    members = msgspec.json.decode(part, type=dict[str, Raw])
    return [(masked.unmask_text(name), member) for name, member in members.items()]


def _items(part: Any) -> list[Raw]:
    return msgspec.json.decode(part, type=list[Raw])


def _fits(described: Any, first: bytes) -> bool:
    """Tell whether a type may be what begins with this byte."""
    if isinstance(described, (*_WITH_FIELDS, inspect.DictType)):
        return first == (b"[" if getattr(described, "array_like", False) else b"{")
    if isinstance(described, (inspect.CollectionType, inspect.TupleType)):
        return first == b"["
    if isinstance(described, inspect.DecimalType):
        return first in b"-0123456789"
    return isinstance(described, inspect.RawType) and first != b"n"


def _is_tagged(described: Any, masked: Masked, part: Any) -> bool:
    """Tell whether an object has the tag of a type that has one, as the types of a union have."""
    if getattr(described, "tag", None) is None or described.array_like:
        return True
    tag = dict(_members(masked, part)).get(described.tag_field)
    return tag is not None and _values(masked.unmask(tag)) == described.tag


def _holds(described: Any, kinds: tuple[type, ...], seen: set[int]) -> bool:
    """Tell whether a type is made of one of these kinds."""
    if isinstance(described, tuple):
        return any(_holds(each, kinds, seen) for each in described)
    if not isinstance(described, (inspect.Type, inspect.Field)) or id(described) in seen:
        return False
    seen.add(id(described))
    return isinstance(described, kinds) or _holds(msgspec.structs.astuple(described), kinds, seen)


def encode(value: Any, *, in_order: bool = False) -> bytes:
    """Encode what msgspec has refused because of a lone surrogate, which is written as its escape.

    `in_order` sorts members by name. Raises what msgspec raises for anything else that JSON cannot
    carry.
    """
    raw: dict[str, bytes] = {}
    values = msgspec.to_builtins(value, str_keys=True, enc_hook=_keeper(raw))
    encoded = _dumps(values, in_order).encode("utf-8", "backslashreplace")
    if not raw:
        return encoded
    names = re.compile(b'"(%b\\.[0-9]+)"' % next(iter(raw)).partition(".")[0].encode())
    return names.sub(lambda found: raw[found[1].decode()], encoded)


def _keeper(raw: dict[str, bytes]) -> Callable[[Any], str]:
    """Make the hook that has a name stand for each raw value, which is JSON already."""
    from random import getrandbits

    token = f"{getrandbits(64):x}"  # no peer can know it, and have its text taken for a name

    def keep(value: Any) -> str:
        name = f"{token}.{len(raw)}"
        raw[name] = bytes(value if isinstance(value, Raw) else write_model(value))
        return name

    return keep


def _dumps(values: Any, in_order: bool) -> str:
    from json import JSONEncoder

    encoder = JSONEncoder(
        ensure_ascii=False, allow_nan=False, sort_keys=in_order, separators=(",", ":")
    )
    try:
        return encoder.encode(values)
    except ValueError:
        return encoder.encode(_without_nan(values))


def _without_nan(values: Any) -> Any:
    """Put null in place of what is no number, as msgspec does."""
    match values:
        case dict():
            return {name: _without_nan(value) for name, value in values.items()}
        case list() | tuple():
            return [_without_nan(value) for value in values]
        case float() if not -inf < values < inf:
            return None
    return values


def layout(text: Any, indent: int) -> bytes:
    """Lay out JSON, which may hold lone surrogates."""
    given = bytes(text)
    masked = mask(given)
    if masked is None:
        return msgspec.json.format(given, indent=indent)
    return masked.unmask(msgspec.json.format(masked.text, indent=indent))


def _is_lone(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
