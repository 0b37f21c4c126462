"""The params of `tools/call`: which arguments, and under which idempotency key."""

import msgspec
from msgspec import UNSET, Raw, UnsetType

from duet_rpc.errors import InvalidParams
from duet_rpc.mcp.asked import Asked
from duet_rpc.mcp.dialogue import Repeatable
from duet_rpc.mcp.request_meta import KEY_META
from duet_rpc.mcp.tools import Tool
from duet_rpc.wire.messages import NULL
from duet_rpc.wire.params import KEY, read_short
from duet_rpc.wire.surrogates import decode_value, encode_value

_members_decoder = msgspec.json.Decoder(dict[str, Raw])


class CallParams(Repeatable):
    """The params of `tools/call`."""

    name: str
    arguments: Raw | UnsetType = UNSET
    idempotencyKey: Raw | UnsetType = UNSET
    task: Raw | UnsetType = UNSET


def read_arguments(tool: Tool, params: CallParams) -> bytes | None:
    """Give the arguments as the params of the method."""
    sent = params.arguments
    if sent is UNSET or bytes(sent) == NULL:
        return None
    raw = bytes(sent)
    if not raw.startswith(b"{"):
        raise InvalidParams(
            data={"param": "arguments", "expected": "object", "received": "another value"}
        )
    if tool.method.parameters.rest is not UNSET:
        members = decode_value(_members_decoder, raw)
        return bytes(members.get("values", Raw(b"[]")))
    return raw


def add_key(asked: Asked, params: CallParams) -> Raw | UnsetType:
    """Give `_meta` as the engine reads it: a key is under our own name there."""
    sent = asked.sent.key if params.idempotencyKey is UNSET else params.idempotencyKey
    if asked.rounds.key is not None:
        sent = Raw(encode_value(asked.rounds.key))
    if sent is UNSET:
        return asked.meta
    members = {} if asked.meta is UNSET else decode_value(_members_decoder, asked.meta)
    members.pop(KEY_META, None)
    members.setdefault(KEY, sent)
    return Raw(encode_value(members))


def find_key(params: CallParams) -> str | None:
    """Find the key of a call that was refused, for the text that says so."""
    try:
        members = decode_value(_members_decoder, params.arguments)
        key = read_short(members.get(KEY, UNSET))
    except (msgspec.DecodeError, TypeError):
        return None
    return key if isinstance(key, str) else None
