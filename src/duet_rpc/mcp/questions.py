"""Questions to a client: forms for its user, samples of its model, its roots. As values.

Each knows its method and params, which capability it needs, and how to read the answer.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from duet_rpc.errors import RpcError, UsageError
from duet_rpc.mcp.content import Message
from duet_rpc.mcp.revision import Revision
from duet_rpc.server.schemas import TOOL_FORM, Schema, make_schemas, resolve
from duet_rpc.wire.agents import Root, Sample

_SIMPLE = ("string", "number", "integer", "boolean")
_KEPT = (
    *("type", "title", "description", "default", "enum", "format", "minLength", "maxLength"),
    *("minimum", "maximum", "items", "minItems", "maxItems", "oneOf", "const"),
)


class Unanswerable(RpcError):
    """A client has answered a question with something else than was asked for."""

    code: int = -33601
    message: str = "The client has not answered what was asked"


class Question(Struct, frozen=True):
    """Something that a handler wants to know from its caller."""

    method: str
    params: dict[str, Any]
    needs: dict[str, Any]
    """The capability of clients that can answer it."""
    read: Callable[[Any], Any]
    """Makes what the handler gets of the answer."""

    def is_answerable(self, capabilities: dict[str, Any]) -> bool:
        """Tell whether a client that can do this can answer it."""
        return _covers(capabilities, self.needs)


def _covers(has: Any, needs: dict[str, Any]) -> bool:
    if not isinstance(has, dict):
        return False
    return all(name in has and _covers(has[name], part) for name, part in needs.items())


class _FormAnswer(Struct):
    action: Literal["accept", "decline", "cancel"]
    content: dict[str, Any] | UnsetType | None = UNSET


class _SampleAnswer(Struct):
    content: Any
    model: str = ""
    stopReason: str | None = None


class _RootsAnswer(Struct):
    roots: list[Root]


def ask_form(kind: Any, message: str) -> Question:
    """Ask the user of a client to fill in a form: the fields of a type."""

    def read(answer: Any) -> Any:
        said = _convert(answer, _FormAnswer)
        if said.action != "accept":
            return None
        return _convert({} if said.content in (UNSET, None) else said.content, kind)

    schema = make_form(kind)
    params = {"message": message, "requestedSchema": schema}
    return Question("elicitation/create", params, {"elicitation": {}}, read)


def ask_model(
    messages: str | Sequence[Message | str],
    *,
    max_tokens: int,
    system: str | None = None,
    temperature: float | None = None,
    stop: Sequence[str] = (),
    preferences: dict[str, Any] | None = None,
) -> Question:
    """Ask a model of the client's to go on after some messages."""
    said = [messages] if isinstance(messages, str) else list(messages)
    params: dict[str, Any] = {"messages": [_spell(each) for each in said], "maxTokens": max_tokens}
    more = {
        "systemPrompt": system,
        "temperature": temperature,
        "stopSequences": list(stop) or None,
        "modelPreferences": preferences,
    }
    params |= {name: value for name, value in more.items() if value is not None}

    def read(answer: Any) -> Sample:
        got = _convert(answer, _SampleAnswer)
        blocks = got.content if isinstance(got.content, list) else [got.content]
        texts = [b["text"] for b in blocks if isinstance(b, dict) and b.get("type") == "text"]
        return Sample("".join(map(str, texts)), got.content, got.model, got.stopReason)

    return Question("sampling/createMessage", params, {"sampling": {}}, read)


def ask_roots() -> Question:
    """Ask for the places that the client works in."""

    def read(answer: Any) -> list[Root]:
        return list(_convert(answer, _RootsAnswer).roots)

    return Question("roots/list", {}, {"roots": {}}, read)


def spell_question(question: Question, revision: Revision) -> dict[str, Any]:
    """Say a question in the words of a revision."""
    params = dict(question.params)
    if question.method == "elicitation/create" and "url" in revision.elicits:
        params["mode"] = "form"
    return params


def make_form(kind: Any) -> Schema:
    """Make the schema of a form: one level of simple fields."""
    (made,), _, definitions = make_schemas([kind], [], TOOL_FORM)
    root = resolve(made, definitions)
    if root.get("type") != "object" or "properties" not in root:
        raise UsageError(f"{kind} has no fields to ask for; give a dataclass or a Struct")
    properties = {
        name: _make_field(name, resolve(field, definitions), definitions)
        for name, field in root["properties"].items()
    }
    form: Schema = {"type": "object", "properties": properties}
    if root.get("required"):
        form["required"] = root["required"]
    return form


def _make_field(name: str, field: Schema, definitions: dict[str, Schema]) -> Schema:
    options = field.get("anyOf")
    if options is not None:  # a value or none: none is to leave it out
        rest = [resolve(each, definitions) for each in options if each.get("type") != "null"]
        if len(rest) == 1:
            field = rest[0] | {k: v for k, v in field.items() if k != "anyOf" and v is not None}
    if "enum" in field and "type" not in field:
        field = {"type": "string", **field}
    if field.get("type") == "array":
        items = resolve(field.get("items"), definitions)
        if "enum" in items:
            field = {**field, "items": {"type": "string", "enum": items["enum"]}}
            return {key: value for key, value in field.items() if key in _KEPT}
    if field.get("type") not in _SIMPLE:
        raise UsageError(
            f"{name} cannot be asked for: a form has texts, numbers, yes or no, and choices"
        )
    return {key: value for key, value in field.items() if key in _KEPT}


def _spell(message: Message | str) -> dict[str, Any]:
    if isinstance(message, str):
        return {"role": "user", "content": {"type": "text", "text": message}}
    content = message.content
    said = {"type": "text", "text": content} if isinstance(content, str) else content
    return {"role": message.role, "content": said}


def _convert(value: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise Unanswerable(data={"detail": str(error)}) from None
