"""How tasks are spelled: when a call becomes one, and what clients are told of it."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Raw

from duet_rpc.errors import Cancelled, InternalError, KeyReused, OutcomeUnknown
from duet_rpc.mcp.call_params import CallParams
from duet_rpc.mcp.errors import ProtocolError, malformed, missing_capability
from duet_rpc.mcp.results import ERROR, RESULT, spell_error, spell_failure, spell_tool_result
from duet_rpc.mcp.revision import Revision, TaskForm
from duet_rpc.mcp.tools import Tool
from duet_rpc.mcp.wording import ToolError, word_failure
from duet_rpc.wire.surrogates import decode_value, encode_value

if TYPE_CHECKING:
    from duet_rpc.mcp.asked import Asked
    from duet_rpc.mcp.tasks import TaskState

POLL_MS = 1000
"""How long clients are asked to wait before they ask again."""
RELATED = "io.modelcontextprotocol/related-task"
GOES_ON = (
    "It was cancelled when it had begun. What can be undone is being undone; anything else goes on,"
    " and its outcome will be told."
)
_BROKEN = {InternalError.code, OutcomeUnknown.code, KeyReused.code}
"""Errors that are not those of a tool that ran and failed."""
_error_decoder = msgspec.json.Decoder(ToolError)
_members_decoder = msgspec.json.Decoder(dict[str, Raw])


def find_form(asked: "Asked") -> TaskForm | None:
    """Say how a request spells tasks; None if there are none for it."""
    return asked.revision.tasks if asked.session.offers_tasks else None


def is_declared(form: TaskForm, asked: "Asked") -> bool:
    """Tell whether the client has declared that it knows tasks."""
    if not form.extension:
        return True
    extensions = asked.capabilities.get("extensions")
    return isinstance(extensions, dict) and form.extension in extensions


def check_declared(form: TaskForm, asked: "Asked") -> None:
    """Refuse to talk about tasks with a client that has not declared that it knows them."""
    if not is_declared(form, asked):
        raise missing_capability({"extensions": {form.extension: {}}})


def is_wanted(tool: Tool, asked: "Asked", params: CallParams) -> bool:
    """Tell whether a call becomes a task; refuse one that has to and cannot, or the reverse."""
    form = find_form(asked)
    if form is None:
        return False
    if form.extension:
        if tool.options.task == "required":
            check_declared(form, asked)
        return tool.has_task and is_declared(form, asked)
    if params.task is UNSET:
        if tool.has_task and tool.options.task == "required":
            raise ProtocolError(form.refusal, f"{tool.name} is called as a task only: send task")
        return False
    if not bytes(params.task).startswith(b"{"):
        raise malformed("task has to be an object")
    if not tool.has_task:
        raise ProtocolError(form.refusal, f"{tool.name} cannot be called as a task")
    return True


def describe_capability(form: TaskForm) -> dict[str, Any]:
    """Say that there are tasks, among the capabilities."""
    if form.extension:
        return {"extensions": {form.extension: {}}}
    return {"tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}}


def describe_task(tool: Tool, revision: Revision, state: "TaskState") -> dict[str, Any]:
    """Say how a task stands."""
    form, task = revision.tasks, state.task
    assert form is not None, "only there are tasks asked for"
    said: dict[str, Any] = {
        "taskId": task.id,
        "status": find_status(form, state),
        "createdAt": _write_time(task.created_at),
        "lastUpdatedAt": _write_time(state.changed_at),
        form.ttl: int(task.ttl) * 1000,
        form.poll_interval: POLL_MS,
    }
    if said["status"] in ("failed", "cancelled"):
        assert state.ending is not None, "it has ended"
        said["statusMessage"] = word_failure(_read_error(state.ending), tool.name, task.key)
    elif state.goes_on:
        said["statusMessage"] = GOES_ON
    return said


def find_status(form: TaskForm, state: "TaskState") -> str:
    """Say in one word how a task stands."""
    ending = state.ending
    if ending is None:
        return "working"
    if not ending.startswith(ERROR):
        return "completed"
    code = _read_error(ending).code
    if code == Cancelled.code:
        return "cancelled"
    return "failed" if code in _BROKEN else form.of_failed_tool


def add_result(
    said: dict[str, Any], tool: Tool, revision: Revision, state: "TaskState"
) -> dict[str, Any]:
    """Add what a task has ended with, where a revision has that beside the status."""
    ending = state.ending
    if said["status"] == "completed":
        assert ending is not None, "it has ended"
        spelled = spell_tool_result(tool, revision, state.task.key, ending)
        said["result"] = Raw(spelled[len(RESULT) :])
    elif said["status"] == "failed":
        assert ending is not None, "it has ended"
        said["error"] = Raw(spell_error(ending)[len(ERROR) :])
    return said


def describe_result(tool: Tool, revision: Revision, state: "TaskState") -> Raw:
    """Give the result of the tool, as the call would have been answered, with its task."""
    assert state.ending is not None, "it has ended"
    spelled = spell_tool_result(tool, revision, state.task.key, state.ending)
    result = decode_value(_members_decoder, spelled[len(RESULT) :])
    meta = decode_value(_members_decoder, result.get("_meta", Raw(b"{}")))
    meta[RELATED] = Raw(encode_value({"taskId": state.task.id}))
    result["_meta"] = Raw(encode_value(meta))
    return Raw(encode_value(result))


def spell_created(tool: Tool, revision: Revision, key: str | None, member: bytes) -> bytes:
    """Spell the answer to a call that became a task; one that could not is a failed tool."""
    if member.startswith(ERROR):
        return spell_failure(tool.name, revision, key, member[len(ERROR) :])
    form = revision.tasks
    assert form is not None, "only there are tasks asked for"
    if form.extension:
        return b'"result":{"resultType":"task",' + member[len(RESULT) + 1 :]
    return b'"result":{"task":%b}' % member[len(RESULT) :]


def _read_error(member: bytes) -> ToolError:
    return decode_value(_error_decoder, member[len(ERROR) :])


def _write_time(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return moment.replace("+00:00", "Z")
