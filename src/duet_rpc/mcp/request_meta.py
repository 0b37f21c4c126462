"""What a client says in the `_meta` of a request: revision, capabilities, level, key."""

from functools import cache
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from duet_rpc.mcp.errors import malformed
from duet_rpc.wire.messages import NULL
from duet_rpc.wire.surrogates import decode_value

PREFIX = "io.modelcontextprotocol/"
VERSION = PREFIX + "protocolVersion"
CAPABILITIES = PREFIX + "clientCapabilities"
KEY_META = "duet-rpc/idempotency-key"
"""The name of an idempotency key in `_meta`."""


class RequestMeta(Struct):
    """The members of `_meta` that mean something here."""

    version: Raw | UnsetType = msgspec.field(default=UNSET, name=VERSION)
    capabilities: Raw | UnsetType = msgspec.field(default=UNSET, name=CAPABILITIES)
    client: Raw | UnsetType = msgspec.field(default=UNSET, name=PREFIX + "clientInfo")
    level: Raw | UnsetType = msgspec.field(default=UNSET, name=PREFIX + "logLevel")
    key: Raw | UnsetType = msgspec.field(default=UNSET, name=KEY_META)


NO_META = RequestMeta()
_decoder = msgspec.json.Decoder(RequestMeta)


class Beside(Struct):
    """What stands beside the params of any request."""

    _meta: Raw | UnsetType = UNSET


_beside_decoder = msgspec.json.Decoder(Beside)


def find_meta(params: bytes | None) -> Raw | UnsetType:
    """Find `_meta` in params; raise `ProtocolError` if they are no object. Null is none."""
    if params is None:
        return UNSET
    try:
        found: Raw | UnsetType = decode_value(_beside_decoder, params)._meta
    except msgspec.ValidationError:
        raise malformed("params have to be an object") from None
    return UNSET if found is not UNSET and bytes(found) == NULL else found


def read_request_meta(raw: Raw | UnsetType) -> RequestMeta:
    """Read `_meta`; raise `ProtocolError` if it is no object."""
    if raw is UNSET:
        return NO_META
    try:
        return decode_value(_decoder, raw)
    except msgspec.ValidationError:
        raise malformed("_meta has to be an object") from None


@cache
def _make_decoder(kind: Any) -> "msgspec.json.Decoder[Any]":
    """Make what reads a type, once: to make it takes ten times as long as to read."""
    return msgspec.json.Decoder(kind)


def read_value(raw: Raw | UnsetType, kind: Any, name: str) -> Any:
    """Read one member, of this type; raise `ProtocolError` that names it."""
    if raw is UNSET:
        raise malformed(f"_meta has no {name}")
    try:
        return decode_value(_make_decoder(kind), raw)
    except msgspec.ValidationError:
        raise malformed(f"{name} in _meta is of another type") from None
