"""The fast path of `tools/call`: envelope, name and arguments decoded in one typed pass.

Laws of this file are those of `engine/intake`: what is answered here is answered as after the slow
decode, byte for byte, and what is odd in any way is left to that. Here are tools that run at once:
queries that are inline and need nothing but their arguments.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Union

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from duet_rpc.engine.dispatch import Dispatcher, Job, result_member
from duet_rpc.engine.failures import error_member
from duet_rpc.engine.intake import Intake, Plain
from duet_rpc.mcp.results import ERROR, RESULT, spell_failure, spell_tool_result
from duet_rpc.mcp.revision import Revision
from duet_rpc.mcp.tools import Tool
from duet_rpc.wire.depth import is_json_text
from duet_rpc.wire.large import LARGE
from duet_rpc.wire.models import make_model, write_model

if TYPE_CHECKING:
    from duet_rpc.mcp.face import BoundMcp

_NESTING = 3
"""The envelope, its params, the arguments."""
_MARKED = frozenset(b'"[{')
"""How values begin whose text needs escapes."""
_encode = msgspec.json.Encoder(enc_hook=write_model).encode


def compile_tools(bound: "BoundMcp") -> Intake | None:
    """Compile the front door of the tools that are answered at once; None if there are none."""
    dispatcher = bound.dispatcher
    simple = [tool for tool in bound.tools.values() if _is_simple(tool, dispatcher)]
    if not simple:
        return None
    max_depth = dispatcher.policy.max_depth
    kinds = {_define_params(tool): tool for tool in simple}
    closed = {
        kind
        for kind, tool in kinds.items()
        if tool.method.parameters.nesting + _NESTING <= max_depth
    }
    params: Any = Union[tuple(kinds)]  # noqa: UP007
    envelope = msgspec.defstruct(
        "ToolRequest",
        [
            ("jsonrpc", Literal["2.0"]),
            ("method", Literal["tools/call"]),
            ("id", int | str),
            ("params", params),
        ],
        kw_only=True,
        forbid_unknown_fields=True,
    )
    decode = msgspec.json.Decoder(envelope, dec_hook=make_model).decode
    agreed, known = bound.agreed, bound.known_metas
    spellings = {
        revision.name: {kind: _compile_spelling(tool, revision) for kind, tool in kinds.items()}
        for revision in bound.revisions
    }

    def answer_at_once(body: bytes | bytearray, connection_id: str = "", /) -> bytes | None:
        if len(body) >= LARGE:
            return None
        try:
            message: Any = decode(body)
        except BaseException:  # also out of a type's own check; the slow decode says what it is
            return None
        params, id = message.params, message.id
        meta, kind = params._meta, type(params)
        revision = agreed.get(connection_id) if meta is UNSET else known.get(bytes(meta))
        if revision is None or params.arguments._meta is not UNSET:
            return None
        if kind not in closed or b"\\" in body:
            if not is_json_text(body, max_depth):
                return None
        if type(id) is int:
            if not id and b"-0" in body:
                return None
            raw_id = b"%d" % id
        elif b"\\" in body:
            return None
        else:
            raw_id = _encode(id)
        try:
            result = params.call()
            try:
                value = _encode(result)
            except BaseException:
                value = result_member(result)[len(RESULT) :]
        except BaseException as error:
            return failed(kinds[kind], revision, raw_id, connection_id, error)
        return spellings[revision.name][kind](raw_id, value)

    def failed(
        tool: Tool, revision: Revision, id: bytes, connection_id: str, error: BaseException
    ) -> bytes:
        """Answer for a tool that has failed, or whose result has."""
        job = Job(id, tool.method, None, connection_id)
        member = error_member(dispatcher.failure(error, job))
        spelled = spell_failure(tool.name, revision, None, member[len(ERROR) :])
        return b'{"jsonrpc":"2.0","id":%b,%b}' % (id, spelled)

    def read(body: bytes | bytearray, /) -> Plain | None:
        """Leave what runs beside others to the slow decode."""
        return None

    return Intake(answer_at_once, read, read)


def _is_simple(tool: Tool, dispatcher: Dispatcher) -> bool:
    parameters = tool.method.parameters
    return dispatcher.is_simple(tool.method) and parameters.holds_meta and parameters.whole is None


def _define_params(tool: Tool) -> type[Struct]:
    """Define the params of one tool's calls."""
    parameters = tool.method.parameters
    arguments: Any = ("arguments", parameters.typed)
    if not any(parameter.required for parameter in parameters.listed):
        arguments = (*arguments, msgspec.field(default_factory=parameters.typed))
    return msgspec.defstruct(
        "ToolParams",
        [arguments, ("_meta", Raw | UnsetType, UNSET)],
        namespace={"call": parameters.source.compile("m", params="m.arguments")},
        kw_only=True,
        forbid_unknown_fields=True,
        tag_field="name",
        tag=tool.name,
    )


def _compile_spelling(tool: Tool, revision: Revision) -> Callable[[bytes, bytes], bytes]:
    """Compile what spells an answer; that of a tool that returns numbers is one step."""

    def spell(id: bytes, value: bytes) -> bytes:
        member = spell_tool_result(tool, revision, None, b'"result":' + value)
        return b'{"jsonrpc":"2.0","id":%b,%b}' % (id, member)

    example = b"\x01"
    if tool.is_content or not tool.is_wrapped:
        return spell
    # The same bytes as above, for values whose text needs no escapes: numbers, true, false, null.
    form = spell_tool_result(tool, revision, None, b'"result":' + example)
    form = form.replace(b"\\u0001", b"%b").replace(example, b"%b")
    form = b'{"jsonrpc":"2.0","id":%b,' + form + b"}"
    count = form.count(b"%b") - 1

    def spell_scalar(id: bytes, value: bytes) -> bytes:
        if value[0] in _MARKED:
            return spell(id, value)
        return form % (id, value, value) if count == 2 else form % (id, value)

    return spell_scalar
