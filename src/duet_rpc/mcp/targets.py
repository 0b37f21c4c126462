"""Requests that ask for something of the service: a tool, a resource, a prompt, a completion.

Each finds the method that is behind it, makes its params, and says how its answer is spelled.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec import Raw

from duet_rpc.context import Context
from duet_rpc.engine.dispatch import Job
from duet_rpc.errors import InvalidParams, RpcError
from duet_rpc.mcp import completion, prompts, resources
from duet_rpc.mcp.asked import Asked
from duet_rpc.mcp.call_params import CallParams, add_key, read_arguments
from duet_rpc.mcp.dialogue import Repeatable, Repeated
from duet_rpc.mcp.errors import malformed
from duet_rpc.mcp.results import mark_repetition, spell_tool_result
from duet_rpc.mcp.task_forms import is_wanted, spell_created
from duet_rpc.mcp.texts import make_params
from duet_rpc.mcp.tools import Tool
from duet_rpc.service import Method
from duet_rpc.wire.messages import NULL, Request
from duet_rpc.wire.surrogates import decode_value, encode_value

if TYPE_CHECKING:
    from duet_rpc.mcp.session import McpSession

Target: TypeAlias = "Callable[[McpSession, Request, Asked, float | None], Job]"
_NO_META = Raw(b"{}")


class _ReadParams(Repeatable):
    uri: str


class _GetParams(Repeatable):
    name: str
    arguments: dict[str, str] = {}


_READ = msgspec.json.Decoder(_ReadParams)
_GET = msgspec.json.Decoder(_GetParams)
_COMPLETE = msgspec.json.Decoder(completion.CompleteParams)
_call_decoder = msgspec.json.Decoder(CallParams)


def read_call(params: bytes | None) -> CallParams:
    """Read what a `tools/call` asks for; raise `ProtocolError`."""
    found: CallParams = _decode(_call_decoder, params, "name and arguments")
    return found


def call_tool(session: "McpSession", message: Request, asked: Asked, read_at: float | None) -> Job:
    """Prepare the call of a tool."""
    params = read_call(message.params)
    tool = session.bound.tools.get(params.name)
    if tool is None:
        raise malformed(f"Unknown tool: {shorten(params.name)}")
    arguments = read_arguments(tool, params)
    if is_wanted(tool, asked, params):
        return _create_task(session, message, asked, tool, params, arguments, read_at)
    repeated = Repeated(message, f"tools/call {tool.name}", arguments)
    session.dialogue.resume(asked, params, repeated)
    asked.rounds.method = tool.method
    meta = add_key(asked, params)
    job = session.prepare_method(
        tool.method, message.id, arguments, asked, meta=meta, read_at=read_at
    )
    spell = partial(spell_tool_result, tool, asked.revision, job.key)
    if job.fingerprint is not None and job.context is not None:
        spell = partial(_spell_once, spell, job.context, tool.method)
    job.shape = partial(session.dialogue.spell, asked, repeated, spell)
    return job


def _create_task(
    session: "McpSession",
    message: Request,
    asked: Asked,
    tool: Tool,
    params: CallParams,
    arguments: bytes | None,
    read_at: float | None,
) -> Job:
    """Prepare the creation of a task, in place of the call, which has to be sound as well."""
    from duet_rpc.mcp.task_methods import CREATE  # with the first task that there is

    meta = add_key(asked, params)
    call = session.prepare_method(
        tool.method, message.id, arguments, asked, meta=meta, read_at=read_at
    )
    sent = None if call.context is None else call.context.first_sent
    ledger = session.dispatcher.ledger
    assert ledger is not None, "else there are no tasks"
    given = {
        "method": tool.method.name,
        "key": call.key or f"task-{os.urandom(16).hex()}",
        "arguments": Raw(arguments or NULL),
        "age": 0.0 if sent is None else max(ledger.now() - sent, 0.0),
    }
    create = session.bound.task_methods.get(CREATE)
    assert create is not None, "it is one of them"
    job = session.prepare_method(create, message.id, encode_value(given), asked, meta=_NO_META)
    job.shape = partial(spell_created, tool, asked.revision, call.key)
    return job


def read_resource(
    session: "McpSession", message: Request, asked: Asked, read_at: float | None
) -> Job:
    """Prepare the reading of a resource."""
    params = _decode(_READ, message.params, "a uri")
    uri = params.uri
    found = session.bound.resources.find(uri)
    if found is None:
        raise resources.not_found(uri, asked.revision)
    offer, method, values = found
    repeated = Repeated(message, f"resources/read {uri}", None)
    session.dialogue.resume(asked, params, repeated)
    try:
        job = session.prepare_method(method, message.id, make_params(method, values), asked)
    except InvalidParams:  # its address does not fit, so there is nothing at it
        raise resources.not_found(uri, asked.revision) from None
    spell = partial(resources.spell_contents, offer, uri, asked.revision)
    job.shape = partial(session.dialogue.spell, asked, repeated, spell)
    return job


def get_prompt(session: "McpSession", message: Request, asked: Asked, read_at: float | None) -> Job:
    """Prepare a prompt."""
    params = _decode(_GET, message.params, "name and arguments, which are texts")
    found = session.bound.prompts.find(params.name)
    if found is None:
        raise malformed(f"Unknown prompt: {shorten(params.name)}")
    offer, method = found
    given = make_params(method, params.arguments)
    repeated = Repeated(message, f"prompts/get {params.name}", given)
    session.dialogue.resume(asked, params, repeated)
    try:
        job = session.prepare_method(method, message.id, given, asked)
    except InvalidParams as error:
        raise malformed(say_refusal(error), **(error.data or {})) from None
    spell = partial(prompts.spell_messages, offer, asked.revision)
    job.shape = partial(session.dialogue.spell, asked, repeated, spell)
    return job


def complete(session: "McpSession", message: Request, asked: Asked, read_at: float | None) -> Job:
    """Prepare the completion of an argument."""
    params = _decode(_COMPLETE, message.params, "ref and argument")
    completing = session.bound.completions.get((params.ref.target, params.argument.name))
    if completing is None:
        return session.prepare_own(message, asked)
    given = completion.make_completion_params(completing, params)
    job = session.prepare_method(completing, message.id, given, asked)
    job.shape = partial(completion.spell_completion, asked.revision)
    return job


TARGETS: dict[str, Target] = {
    "tools/call": call_tool,
    "resources/read": read_resource,
    "prompts/get": get_prompt,
    "completion/complete": complete,
}


def _spell_once(
    spell: Callable[[bytes], bytes], context: Context, method: Method, member: bytes
) -> bytes:
    """Spell the answer of a tool that does the same once: a repetition says that it is one."""
    spelled, window = spell(member), method.dedupe_window
    if window is None or not context._is_replayed:
        return spelled
    return mark_repetition(window, spelled)


def _decode(decoder: "msgspec.json.Decoder[Any]", params: bytes | None, wanted: str) -> Any:
    try:
        return decode_value(decoder, params or b"{}")
    except msgspec.ValidationError as error:
        raise malformed(f"params have to hold {wanted}: {error}") from None


def say_refusal(error: RpcError) -> str:
    """Say why params do not fit."""
    details = error.data if isinstance(error.data, dict) else {}
    if "param" in details:
        said = f"Invalid params: {details['param']} has to be {details.get('expected')}"
        return f"{said}, but {details.get('received')} came"
    return error.message


def shorten(text: str) -> str:
    """Cut what a client has made up, for a message."""
    return text if len(text) <= 80 else text[:80] + "..."
