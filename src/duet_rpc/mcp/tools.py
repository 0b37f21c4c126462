"""Tools: what an agent sees of the methods of a service. Made once, at the start."""

from collections.abc import Iterable
from typing import Annotated, Any, Union, get_args, get_origin

from msgspec import UNSET, Raw, Struct
from msgspec.json import encode

from duet_rpc.errors import UsageError
from duet_rpc.kinds import Promise
from duet_rpc.mcp.content import CONTENT_TYPES
from duet_rpc.mcp.datetimes import mark_datetimes
from duet_rpc.mcp.revision import Revision
from duet_rpc.mcp.schemas import (
    adopt_input_schema,
    make_input_schema,
    make_key_schema,
    make_output_schema,
)
from duet_rpc.mcp.wording import word_window
from duet_rpc.methods.docstrings import read_docstring
from duet_rpc.methods.members import list_members
from duet_rpc.methods.tool_options import ToolOptions
from duet_rpc.server.description import MethodDescription, describe
from duet_rpc.server.schemas import TOOL_FORM, Schema
from duet_rpc.service import Kind, Method, Service, first_paragraph
from duet_rpc.startup import pattern
from duet_rpc.wire.params import KEY

MAX_NAME = 64
MAX_DESCRIPTION = 1024
"""How many characters of a docstring become a description: all tools share the model's context."""
_ODD = r"[^a-zA-Z0-9_-]"
_NOTHING_SAID = ToolOptions()


class Tool(Struct, frozen=True, kw_only=True):
    """A method, as an agent is offered it."""

    name: str
    method: Method
    description: str
    options: ToolOptions
    input_schema: Schema
    output_schema: Schema | None
    is_content: bool
    """It returns blocks of content."""
    is_text: bool
    """It returns a text."""
    is_wrapped: bool | None
    """Whether its structured result is `{"result": ...}`; None if that depends on the value."""
    has_task: bool
    """Whether it may go on as a task."""

    def describe(self, revision: Revision, *, offers_tasks: bool) -> dict[str, Any]:
        """Say what `tools/list` says of it."""
        said: dict[str, Any] = {"name": self.name}
        title = self.options.title
        if revision.has_structure and title is not None:
            said["title"] = title
        said |= {"description": self.description, "inputSchema": self.input_schema}
        if revision.has_structure and self.output_schema is not None:
            said["outputSchema"] = self.output_schema
        if revision.has_annotations:
            said["annotations"] = self.annotate() | ({} if title is None else {"title": title})
        if revision.has_icons and self.options.icons:
            said["icons"] = list(self.options.icons)
        form = revision.tasks
        if offers_tasks and self.has_task and form is not None and not form.extension:
            said["execution"] = {"taskSupport": self.options.task}
        if revision.has_structure and self.options.meta is not None:
            said["_meta"] = self.options.meta
        return said

    def annotate(self) -> dict[str, Any]:
        """Say all four hints: what is left out is taken for the worst."""
        options, method = self.options, self.method
        reads = method.kind is Kind.QUERY
        needs_key = KEY in self.input_schema.get("required", ())
        does_once = needs_key or method.dedupe_window is not None
        is_idempotent = reads or does_once or method.promise is Promise.RETRY_SAFE
        return {
            "readOnlyHint": reads,
            "destructiveHint": _choose(options.destructive, not reads),
            "idempotentHint": _choose(options.idempotent, is_idempotent),
            "openWorldHint": _choose(options.open_world, False),
        }


def _choose(said: bool | None, otherwise: bool) -> bool:
    return otherwise if said is None else said


def make_tools(
    service: Service, methods: Iterable[Method], *, key_required: bool
) -> dict[str, Tool]:
    """Make tools of methods, sorted by name; a `UsageError` says what no host could take."""
    offered = [method for method in methods if _is_offered(method)]
    chosen = Service(service.name, version=service.version).with_methods(offered)
    description = describe(chosen, form=TOOL_FORM)
    by_name = {method.name: method for method in offered}
    tools: dict[str, Tool] = {}
    for described in description.methods:
        method = by_name[described.name]
        name = name_tool(method.name)
        if name in tools:
            raise UsageError(
                f"{method.name} and {tools[name].method.name} would both be the tool {name};"
                " give one of them another name="
            )
        tools[name] = _make_tool(name, method, described, description.schemas, key_required)
    return dict(sorted(tools.items()))


def name_tool(method: str) -> str:
    """Say the name of a method in the letters that every model takes."""
    name = pattern(_ODD).sub("_", method)
    if len(name) > MAX_NAME:
        raise UsageError(
            f"{method} is too long for the name of a tool, which has {MAX_NAME} characters at"
            " most; give it a shorter name="
        )
    return name


def _is_offered(method: Method) -> bool:
    hidden = method.tool is not None and method.tool.hidden
    return method.kind in (Kind.QUERY, Kind.COMMAND) and not hidden


def _make_tool(
    name: str,
    method: Method,
    described: MethodDescription,
    definitions: dict[str, Schema],
    key_required: bool,
) -> Tool:
    returns = method.parameters.returns
    is_content = _is_content(returns)
    output, is_wrapped = make_output_schema(None if is_content else described.result, definitions)
    is_command = method.kind is Kind.COMMAND
    options = method.tool or _NOTHING_SAID
    key = KEY if is_command else None
    wants_key = next((p.required for p in method.parameters.listed if p.name == KEY), False)
    required = (key_required or wants_key) and method.dedupe_window is None
    key_schema = make_key_schema(method.dedupe_window)
    if options.input_schema is not None:
        schema = adopt_input_schema(
            options.input_schema, described, key=key, required=required, key_schema=key_schema
        )
    else:
        hints = _list_hints(method)
        for param in described.params:
            mark_datetimes(hints.get(param.name), param.schema, definitions)
        schema = make_input_schema(
            described, definitions, key=key, required=required, key_schema=key_schema
        )
    return Tool(
        name=name,
        method=method,
        description=describe_tool(method),
        options=options,
        input_schema=schema,
        output_schema=output,
        is_content=is_content,
        is_text=returns is str,
        is_wrapped=is_wrapped,
        has_task=_may_be_task(method, options),
    )


def _may_be_task(method: Method, options: ToolOptions) -> bool:
    """Tell whether a command may go on as a task: its record needs a key that stays the same."""
    if method.dedupe_window is None:
        return method.kind is Kind.COMMAND and options.task != "forbidden"
    if options.task == "required":
        raise UsageError(
            f'{method.name}: dedupe="arguments" and task="required" exclude each other: a task is'
            " found by its key for a day, and these arguments are a key for a while only"
        )
    return False


def _list_hints(method: Method) -> dict[str, Any]:
    """List the hints of what callers give, by wire names."""
    parameters = method.parameters
    if parameters.rest is not UNSET:
        return {"values": parameters.rest}
    if parameters.whole is not None and parameters.whole.members:
        return list_members(parameters.whole.shape)
    return {parameter.name: parameter.hint for parameter in parameters.listed}


def describe_tool(method: Method) -> str:
    """Say what a model reads of a tool: what the author gave, the docstring, or its name."""
    window = method.dedupe_window
    more = "" if window is None else f"\n\n{word_window(window)}"
    doc = method.handler.__doc__
    if method.description != first_paragraph(doc):
        return method.description + more
    text = _shorten(read_docstring(doc).text, MAX_DESCRIPTION - len(more))
    return (text or _describe_by_name(method.name)) + more


def _shorten(text: str, most: int) -> str:
    """Leave out what comes after the last paragraph, or else sentence, that there is room for."""
    if len(text) <= most:
        return text
    room = text[: most - 4]
    for end, rest in (("\n\n", ""), (". ", "."), (" ", " ...")):
        head, found, _ = room.rpartition(end)
        if found and len(head) > most // 4:
            return head.rstrip() + rest
    return f"{room} ..."


def _describe_by_name(name: str) -> str:
    """Say something of a tool without a docstring: hosts want a description of each."""
    words = pattern(r"[._/-]+").sub(" ", name).strip()
    return f"{words[:1].upper()}{words[1:]}."


def _is_content(hint: Any) -> bool:
    """Tell whether a hint is one of content: a block, a choice of blocks, or a list of them."""
    origin = get_origin(hint)
    if origin is Annotated:
        return _is_content(get_args(hint)[0])
    if origin in (list, tuple):
        parts = [part for part in get_args(hint) if part is not Ellipsis]
        return bool(parts) and all(map(_is_content, parts))
    if origin is Union or type(hint).__name__ == "UnionType":
        return all(map(_is_content, get_args(hint)))
    return hint in CONTENT_TYPES


class ListedTools:
    """What `tools/list` answers, encoded once for each revision."""

    def __init__(self, tools: dict[str, Tool]) -> None:
        self._tools = tools
        self._encoded: dict[tuple[str, bool], list[Raw]] = {}

    def describe(self, revision: Revision, *, offers_tasks: bool) -> list[Raw]:
        """List the tools as this revision describes them."""
        form = revision.name, offers_tasks
        if form not in self._encoded:
            self._encoded[form] = [
                Raw(encode(tool.describe(revision, offers_tasks=offers_tasks)))
                for tool in self._tools.values()
            ]
        return self._encoded[form]
