"""The messages of a stream: the window that its caller offers, its items, and the grants of more.

    params._meta.stream {"window": 64}                        in the request: I can take a stream
    $/item {"stream": 7, "seq": 1, "value": ...}              from the server: one item of request 7
    $/more {"stream": 7, "items": 32}                         from the caller: so many more may come
    {"jsonrpc": "2.0", "id": 7, "result": {"items": 40}}      the answer to the request is the end

Laws of this file:
- The items of one stream are numbered from 1 without a gap, and the answer says how many they were.
- What a caller may send (an id spelled in any way, any number) is read as raw bytes or refused.

The names of the two methods belong to the dialect. It knows bytes and values; no clock, no I/O.
"""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from duet_rpc.wire.surrogates import decode_value

MAX_WINDOW = 1024
"""Items that a stream may be ahead of its reader; a larger window is cut to this."""
_MOST = 2**53


class _Window(Struct):
    window: Annotated[int, Meta(ge=1, le=_MOST)]


class StreamRequest(Struct, frozen=True):
    """How the caller of one request wants its stream."""

    id: bytes
    """The raw id of the request, which names the stream."""
    window: int
    """How many items may be on their way at first."""
    token: Raw | UnsetType = UNSET
    """Of partial results; they have a token instead of numbers and grants."""


class _Item(Struct):
    stream: Raw
    seq: int
    value: Raw


class _More(Struct):
    stream: Raw
    items: Annotated[int, Meta(ge=1, le=_MOST)]


class _End(Struct):
    items: int | list[Raw]


_window_decoder = msgspec.json.Decoder(_Window)
_item_decoder = msgspec.json.Decoder(_Item)
_more_decoder = msgspec.json.Decoder(_More)
_end_decoder = msgspec.json.Decoder(_End)
_list_decoder = msgspec.json.Decoder(list[Raw])


def read_or_none(decoder: "msgspec.json.Decoder[Any]", raw: bytes | Raw | None) -> Any:
    """Read what a peer may have written in any way; None if it is of another form."""
    if raw is None:
        return None
    try:
        return decode_value(decoder, raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def read_window(raw: Raw) -> int | None:
    """Read how many items a caller takes ahead; None if it does not say so in the right form."""
    found: _Window | None = read_or_none(_window_decoder, raw)
    return None if found is None else min(found.window, MAX_WINDOW)


def encode_item(id: bytes, seq: int, value: bytes) -> bytes:
    """Write the params of one item."""
    return b'{"stream":%b,"seq":%d,"value":%b}' % (id, seq, value)


def read_item(params: bytes | None) -> tuple[bytes, int, Raw] | None:
    """Read the stream, the number and the undecoded value of an item."""
    found: _Item | None = read_or_none(_item_decoder, params)
    return None if found is None else (bytes(found.stream), found.seq, found.value)


def encode_more(id: int, items: int) -> bytes:
    """Write the params of a grant."""
    return b'{"stream":%d,"items":%d}' % (id, items)


def read_more(params: bytes | None) -> tuple[bytes, int] | None:
    """Read the stream and the number of a grant."""
    found: _More | None = read_or_none(_more_decoder, params)
    return None if found is None else (bytes(found.stream), found.items)


def read_list(value: bytes | Raw) -> list[Raw] | None:
    """Read the undecoded items of a list; None if it is none."""
    items: list[Raw] | None = read_or_none(_list_decoder, value)
    return items


def read_end(result: bytes | Raw) -> int | list[Raw] | None:
    """Read the answer to a stream: how many items came, or all of them; None if it is neither.

    All of them are a list, or the `items` of an object, as some results of LSP are.
    """
    items = read_list(result)
    if items is not None:
        return items
    found: _End | None = read_or_none(_end_decoder, result)
    return None if found is None else found.items
