"""The schemas of tools, in the form that hosts take: an object at the root, all written out.

One tool whose schema has `anyOf` or `$ref` at its root makes some model APIs refuse every tool of
the server. So the root is written out; what it refers to is in `$defs`. What is said of results has
to hold for every result: clients check them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import UNSET

from duet_rpc.errors import UsageError
from duet_rpc.server.description import MethodDescription, ParamDescription
from duet_rpc.server.schemas import Schema
from duet_rpc.wire.params import MAX_KEY

REFERENCE = "#/$defs/"
COMBINED = ("$ref", "anyOf", "oneOf", "allOf", "not", "enum")
"""What no root may have."""

_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}

# The keywords whose values are schemas: one, a list of them, or a dict of them. The values of all
# others are data, and stay as they are.
_ONE = frozenset({"items", "additionalProperties", "propertyNames", "contains", "not"})
_MANY = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_NAMED = frozenset({"properties", "patternProperties", "$defs"})

_UNKNOWN_FORMATS = frozenset({"decimal", "partial-time"})
"""Formats that JSON Schema does not have; some checkers of schemas complain."""
_UNSURE_FORMATS = frozenset({"date-time", "time", "duration"})
"""Formats that not every value has: RFC 3339 wants a time zone, and no fractions of a duration."""

KEY_SCHEMA: Schema = {
    "type": "string",
    "minLength": 1,
    "maxLength": MAX_KEY,
    "description": (
        "Makes it safe to repeat this call. Choose a new value for each new action; repeat the"
        " call with the same value and the same arguments if you do not know whether it happened."
    ),
}


def make_key_schema(window: float | None) -> Schema:
    """Describe the key of a command; `window` is for how long its arguments stand in for one."""
    if window is None:
        return KEY_SCHEMA
    description = (
        f"Leave it out, unless you want the same once more within {window:g} s of the last time:"
        " then choose a new value."
    )
    return KEY_SCHEMA | {"description": description}


def make_input_schema(
    method: MethodDescription,
    definitions: dict[str, Schema],
    *,
    key: str | None,
    required: bool,
    key_schema: Schema = KEY_SCHEMA,
) -> Schema:
    """Make the schema of a tool's arguments; `key` is the name of the one that is a key, if any."""
    schema: Schema = {"type": "object"}
    if method.is_whole:
        root = _write_out(method.params[0].schema or {}, definitions)
        if _is_plain_object(root):
            schema = dict(root)
    elif not method.ignores_unknown:
        schema["additionalProperties"] = False
    properties: dict[str, Schema] = dict(schema.pop("properties", {}))
    needed: list[str] = list(schema.pop("required", ()))
    for param in () if method.is_whole else method.params:
        properties[param.name] = _describe(param, is_variadic=method.is_variadic)
        if param.required:
            needed.append(param.name)
    if key is not None:
        properties[key] = key_schema
        needed = [name for name in needed if name != key] + ([key] if required else [])
    said: Schema = {"type": "object"}
    if properties:
        said["properties"] = properties
    if needed:
        said["required"] = needed
    return _with_definitions(said | schema, definitions)


def adopt_input_schema(
    given: Mapping[str, Any],
    method: MethodDescription,
    *,
    key: str | None,
    required: bool,
    key_schema: Schema = KEY_SCHEMA,
) -> Schema:
    """Take a schema that the author has written, as it is; a command's key is added to it."""
    schema = dict(given)
    properties: dict[str, Any] = dict(schema.get("properties", {}))
    if not (method.is_whole or method.is_variadic or method.ignores_unknown):
        taken = {param.name: param.required for param in method.params}
        for name in properties.keys() - taken.keys() - {key}:
            raise UsageError(
                f"{method.name}: its input_schema has {name}, which the function does not take"
            )
        for name, is_needed in taken.items():
            if is_needed and name not in properties and name != key:
                raise UsageError(
                    f"{method.name}: the function takes {name}, which its input_schema does not"
                    " have among its properties"
                )
    if key is None:
        return schema
    needed = [*schema.get("required", ()), *((key,) if required else ())]
    schema["properties"] = {**properties, key: properties.get(key, key_schema)}
    return schema | ({"required": list(dict.fromkeys(needed))} if needed else {})


def make_output_schema(
    result: Schema | None, definitions: dict[str, Schema]
) -> tuple[Schema | None, bool | None]:
    """Make the schema of a tool's structured result, and tell whether results are wrapped.

    No schema if anything may come; it then depends on the value whether it is wrapped.
    """
    if not result:
        return None, None
    root = _write_out(result, definitions)
    is_wrapped = not _is_plain_object(root)
    if is_wrapped:
        root = {"type": "object", "properties": {"result": result}, "required": ["result"]}
    return _with_definitions(root, definitions, is_output=True), is_wrapped


def list_subschemas(schema: Any) -> Iterator[Schema]:
    """Go through a schema and all schemas in it."""
    waiting: list[Any] = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            for keyword, value in part.items():
                if keyword in _ONE:
                    waiting.append(value)
                elif keyword in _MANY and isinstance(value, list):
                    waiting += value
                elif keyword in _NAMED and isinstance(value, dict):
                    waiting += value.values()


def list_references(schema: Any) -> Iterator[str]:
    """List what a schema refers to."""
    for part in list_subschemas(schema):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]


def _is_plain_object(root: Schema) -> bool:
    return root.get("type") == "object" and not any(name in root for name in COMBINED)


def _describe(param: ParamDescription, *, is_variadic: bool) -> Schema:
    schema = dict(param.schema or {})
    if is_variadic:
        schema = {"type": "array", "items": schema}
    elif not param.required and param.default is not UNSET:
        schema.setdefault("default", param.default)
    if param.description:
        schema.setdefault("description", param.description)
    return schema


def _write_out(schema: Schema, definitions: dict[str, Schema]) -> Schema:
    """Write out what the root refers to."""
    seen = set()
    while (reference := schema.get("$ref")) is not None and reference not in seen:
        seen.add(reference)
        rest = {name: value for name, value in schema.items() if name != "$ref"}
        schema = {**definitions[reference.removeprefix(REFERENCE)], **rest}
    return schema


def _with_definitions(
    schema: Schema, definitions: dict[str, Schema], *, is_output: bool = False
) -> Schema:
    """Add those definitions that are referred to, and spell all for hosts."""
    used: dict[str, Schema] = {}
    waiting = list(list_references(schema))
    while waiting:
        name = waiting.pop().removeprefix(REFERENCE)
        if name not in used and name in definitions:
            used[name] = definitions[name]
            waiting += list_references(definitions[name])
    spelled = _spell(schema, is_output)
    if used:
        spelled["$defs"] = {name: _spell(used[name], is_output) for name in sorted(used)}
    return spelled


def _spell(schema: Schema, is_output: bool) -> Schema:
    """Copy a schema in the words that every host knows."""
    said: Schema = {}
    for keyword, value in schema.items():
        if keyword in _ONE and isinstance(value, dict):
            said[keyword] = _spell(value, is_output)
        elif keyword in _MANY:
            said[keyword] = [_spell(each, is_output) for each in value]
        elif keyword in _NAMED:
            said[keyword] = {name: _spell(each, is_output) for name, each in value.items()}
        elif keyword == "discriminator":
            pass  # of OpenAPI; the tag of each alternative says the same
        elif keyword == "format":
            if value not in _UNKNOWN_FORMATS and not (is_output and value in _UNSURE_FORMATS):
                said[keyword] = value
        else:
            said[keyword] = value
    if isinstance(said.get("enum"), list) and "type" not in said:  # which strict hosts want
        types = sorted({_TYPES[type(value)] for value in said["enum"] if type(value) in _TYPES})
        if types:
            said["type"] = types[0] if len(types) == 1 else types
    return said
