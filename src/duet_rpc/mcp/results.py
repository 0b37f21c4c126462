"""How the answer of a method becomes the result of a tool, in the words of a revision.

A result stands in `content` for those hosts that show a model texts, and in `structuredContent` for
those that give it data: the same data in both. A failure is a result too, for a model can mend its
arguments; see `wording`.
"""

from typing import Any

import msgspec
from msgspec import Raw

from duet_rpc.engine.failures import error_member
from duet_rpc.errors import InternalError, RpcError
from duet_rpc.mcp.errors import MISSING_CAPABILITY
from duet_rpc.mcp.revision import Revision
from duet_rpc.mcp.tools import Tool
from duet_rpc.mcp.wording import ToolError, word_failure, word_repetition
from duet_rpc.wire.surrogates import decode_value, encode_value

ERROR_META = "duet-rpc/error"
"""Where the code, the reason and the data of a failed tool are, for programs."""

REPETITION_META = "duet-rpc/repetition"
"""Where a result says that it is that of an earlier call."""

RESULT, ERROR = b'"result":', b'"error":'
_MISSING_CAPABILITY = b'"error":{"code":%d' % MISSING_CAPABILITY
_COMPLETE = b'"resultType":"complete",'
_failed_decoder = msgspec.json.Decoder(ToolError)
_blocks_decoder = msgspec.json.Decoder(list[dict[str, Raw]])
_members_decoder = msgspec.json.Decoder(dict[str, Raw])
_quote = msgspec.json.Encoder().encode


def spell_tool_result(tool: Tool, revision: Revision, key: str | None, member: bytes) -> bytes:
    """Make the result of a tool of the member that its method is answered with."""
    if member.startswith(ERROR):
        if member.startswith(_MISSING_CAPABILITY) and revision.is_modern:
            return member
        return spell_failure(tool.name, revision, key, member[len(ERROR) :])
    value = member[len(RESULT) :]
    kind = _COMPLETE if revision.is_modern else b""
    if tool.is_content:
        blocks = value if value.startswith(b"[") else b"[%b]" % value
        if not revision.has_structure:
            blocks = _downgrade(blocks, revision)
        return b'"result":{%b"content":%b}' % (kind, blocks)
    text = value if value.startswith(b'"') else _quote(value.decode())
    content = b'"content":[{"type":"text","text":%b}]' % text
    if not revision.has_structure:
        return b'"result":{%b%b}' % (kind, content)
    is_wrapped = not value.startswith(b"{") if tool.is_wrapped is None else tool.is_wrapped
    structure = b'{"result":%b}' % value if is_wrapped else value
    return b'"result":{%b%b,"structuredContent":%b}' % (kind, content, structure)


def spell_failure(tool: str, revision: Revision, key: str | None, error: bytes) -> bytes:
    """Make the result of a tool that has failed of the error that its method is answered with."""
    try:
        failed = decode_value(_failed_decoder, error)
    except msgspec.DecodeError:
        failed = ToolError(InternalError.code, InternalError.message)
    text = encode_value(word_failure(failed, tool, key))
    if failed.code in _CLOSED_CODES:
        error = encode_value(_without_code(failed))
    kind = _COMPLETE if revision.is_modern else b""
    content = b'"content":[{"type":"text","text":%b}],"isError":true' % text
    return b'"result":{%b%b,"_meta":{"%b":%b}}' % (kind, content, ERROR_META.encode(), error)


def spell_refusal(tool: str, revision: Revision, key: str | None, error: RpcError) -> bytes:
    """Make the result of a tool that was not started."""
    return spell_failure(tool, revision, key, error_member(error)[len(ERROR) :])


def mark_repetition(window: float, member: bytes) -> bytes:
    """Say in a spelled result that it is that of an earlier call: in a text more, and in `_meta`.

    What it held before stays as it is.
    """
    if not member.startswith(RESULT):
        return member  # a refusal of the protocol's
    result = decode_value(_members_decoder, member[len(RESULT) :])
    text = word_repetition(window, has_failed="isError" in result)
    said = encode_value({"type": "text", "text": text})
    blocks = bytes(result["content"])
    comma = b"" if blocks == b"[]" else b","
    result["content"] = Raw(b"%b%b%b]" % (blocks[:-1], comma, said))
    meta = decode_value(_members_decoder, result.get("_meta", b"{}"))
    result["_meta"] = Raw(encode_value({**meta, REPETITION_META: True}))
    return RESULT + encode_value(result)


def spell_result(revision: Revision, member: bytes) -> bytes:
    """Spell the answer of one of the protocol's own methods."""
    if member.startswith(ERROR):
        return spell_error(member)
    if not revision.is_modern or not member.startswith(b'"result":{'):
        return member
    rest = member[len(b'"result":{') :]
    return b'"result":{"resultType":"complete"%b%b' % (b"" if rest == b"}" else b",", rest)


def spell_open(revision: Revision, member: bytes) -> bytes:
    """Spell the answer of a method whose request stays open: none, unless it was refused."""
    return spell_error(member) if member.startswith(ERROR) else b""


_CLOSED_CODES = range(-32019, -31999)
"""Codes to which the protocol gives no new meanings; ours among them."""


def spell_error(member: bytes) -> bytes:
    """Spell an error outside of tools: a code of ours becomes an internal error with a reason."""
    failed = decode_value(_failed_decoder, member[len(ERROR) :])
    if failed.code not in _CLOSED_CODES or failed.code == -32002:
        return member
    return b'"error":%b' % encode_value({"code": InternalError.code, **_without_code(failed)})


def _without_code(failed: ToolError) -> dict[str, Any]:
    said = {"message": failed.message, "data": failed.data}
    return {name: value for name, value in said.items() if value is not msgspec.UNSET}


def _downgrade(blocks: bytes, revision: Revision) -> bytes:
    """Say blocks of a later revision as text: links, and sound where there is none yet."""
    said: list[object] = []
    for block in decode_value(_blocks_decoder, blocks):
        kind = decode_value(msgspec.json.Decoder(str), block["type"])
        if kind == "resource_link":
            uri = decode_value(msgspec.json.Decoder(str), block["uri"])
            name = decode_value(msgspec.json.Decoder(str), block["name"])
            said.append({"type": "text", "text": f"{name}: {uri}"})
        elif kind == "audio" and not revision.has_annotations:
            said.append({"type": "text", "text": "[a sound, which this client cannot be sent]"})
        else:
            said.append(block)
    return encode_value(said)
