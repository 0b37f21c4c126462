"""The messages of a subscription: the answer that begins it, its items, grants, and its end.

    {"jsonrpc": "2.0", "id": 7, "result": {"subscription": 1}}    the answer to the request, at once
    $/item {"subscription": 1, "seq": 1, "value": ...}            from the server: one item
    $/more {"subscription": 1, "items": 32}                       from a subscriber with a window
    $/unsubscribe {"subscription": 1}                             from the subscriber
    $/end {"subscription": 1, "error": {...}}                     from the server, once

Laws of this file:
- A subscription is named by the server; its reader compares the raw bytes of that name.
- The numbers of items rise. One that is left out tells that an item was dropped.
- What a peer may send under these names is read as raw bytes or refused.

The names of the methods belong to the dialect. It knows bytes and values; no clock, no I/O.
"""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from duet_rpc.wire.streams import read_or_none

RESUME = "resume_after"
"""The param by which a subscriber that had items up to this number goes on after a loss."""
_MOST = 2**53
_NULL = Raw(b"null")


class SubscriptionRequest(Struct, frozen=True):
    """How the caller of one request wants its subscription."""

    job: Any
    """The job of its request."""
    window: int | None
    """How many items may be on their way; None: as many as the connection takes."""
    after: int
    """The number that its first item follows."""


class _Subscribed(Struct):
    subscription: Raw


class _SubscriptionItem(Struct):
    subscription: Raw
    seq: Annotated[int, Meta(ge=1, le=_MOST)]
    value: Raw


class _SubscriptionMore(Struct):
    subscription: Raw
    items: Annotated[int, Meta(ge=1, le=_MOST)]


class _SubscriptionEnd(Struct):
    subscription: Raw
    error: Raw | UnsetType = UNSET


_subscribed_decoder = msgspec.json.Decoder(_Subscribed)
_item_decoder = msgspec.json.Decoder(_SubscriptionItem)
_more_decoder = msgspec.json.Decoder(_SubscriptionMore)
_end_decoder = msgspec.json.Decoder(_SubscriptionEnd)


def encode_subscribed(id: bytes) -> bytes:
    """Write the name of a subscription: the result of its request, and the params of some."""
    return b'{"subscription":%b}' % id


def read_subscribed(raw: bytes | Raw | None) -> bytes | None:
    """Read the name of a subscription."""
    found: _Subscribed | None = read_or_none(_subscribed_decoder, raw)
    return None if found is None else bytes(found.subscription)


def encode_subscription_item(id: bytes, seq: int, value: bytes) -> bytes:
    """Write the params of one item."""
    return b'{"subscription":%b,"seq":%d,"value":%b}' % (id, seq, value)


def read_subscription_item(params: bytes | None) -> tuple[bytes, int, Raw] | None:
    """Read the subscription, the number and the undecoded value of an item."""
    found: _SubscriptionItem | None = read_or_none(_item_decoder, params)
    return None if found is None else (bytes(found.subscription), found.seq, found.value)


def encode_subscription_more(id: bytes, items: int) -> bytes:
    """Write the params of a grant."""
    return b'{"subscription":%b,"items":%d}' % (id, items)


def read_subscription_more(params: bytes | None) -> tuple[bytes, int] | None:
    """Read the subscription and the number of a grant."""
    found: _SubscriptionMore | None = read_or_none(_more_decoder, params)
    return None if found is None else (bytes(found.subscription), found.items)


def encode_subscription_end(id: bytes, error_member: bytes) -> bytes:
    """Write the params of the end; the member of the error is empty if there is none."""
    if not error_member:
        return encode_subscribed(id)
    return b'{"subscription":%b,%b}' % (id, error_member)


def read_subscription_end(params: bytes | None) -> tuple[bytes, bytes | None] | None:
    """Read which subscription has ended, and its undecoded error."""
    found: _SubscriptionEnd | None = read_or_none(_end_decoder, params)
    if found is None:
        return None
    error = found.error
    has_error = error is not UNSET and error != _NULL
    return bytes(found.subscription), bytes(error) if has_error else None  # type: ignore[arg-type]
