"""JSON Schema in words: `array of string`, `integer >= 0`, `"up" | "down"`, `Note`.

Schemas come from servers of any make, so anything may be missing or odd; what cannot be said is
`any`.
"""

from typing import Any

from msgspec import UNSET

from duet_rpc.cli.output import safe, write_compact

_LIMITS = {
    "exclusiveMinimum": "> {}",
    "minimum": ">= {}",
    "exclusiveMaximum": "< {}",
    "maximum": "<= {}",
    "multipleOf": "a multiple of {}",
    "minLength": "of length >= {}",
    "maxLength": "of length <= {}",
    "minItems": "of length >= {}",
    "maxItems": "of length <= {}",
    "pattern": "matching {}",
    "format": "({})",
}


def say_type(schema: Any) -> str:
    """Say a schema in a few words."""
    if not isinstance(schema, dict):
        return "any"
    if isinstance(schema.get("$ref"), str):
        return safe(schema["$ref"].rpartition("/")[2])
    if isinstance(schema.get("enum"), list):
        return " | ".join(map(write_compact, schema["enum"]))
    if "const" in schema:
        return write_compact(schema["const"])
    for choice in ("anyOf", "oneOf"):
        if isinstance(schema.get(choice), list):
            return " | ".join(dict.fromkeys(map(say_type, schema[choice])))
    if isinstance(schema.get("allOf"), list) and schema["allOf"]:
        return " and ".join(map(say_type, schema["allOf"]))
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(_say_kind(str(each), schema) for each in kind)
    return _say_kind(kind, schema) if isinstance(kind, str) else "any"


def _say_kind(kind: str, schema: dict[str, Any]) -> str:
    words = safe(kind)
    if kind == "array":
        items = schema.get("items")
        if isinstance(items, list):
            return f"[{', '.join(map(say_type, items))}]"  # its length is plain
        if isinstance(items, dict) and items:
            words = f"array of {say_type(items)}"
    elif kind == "object":
        values = schema.get("additionalProperties")
        if isinstance(schema.get("title"), str):
            words = safe(schema["title"])
        elif isinstance(values, dict) and values:
            words = f"object of {say_type(values)}"
    limits = [
        form.format(safe(str(schema[name]))) for name, form in _LIMITS.items() if name in schema
    ]
    return " ".join([words, ", ".join(limits)]) if limits else words


def list_members(schema: Any) -> list[tuple[str, ...]]:
    """List the members of an object: name, type, and whether it is required or what it is else."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return []
    required = schema.get("required")
    needed = required if isinstance(required, list) else []
    return [
        (safe(name), say_type(each), "required" if name in needed else _say_absence(each))
        for name, each in properties.items()
    ]


def _say_absence(schema: Any) -> str:
    return say_default(schema.get("default", UNSET) if isinstance(schema, dict) else UNSET)


def say_default(default: Any) -> str:
    """Say what a value is when it is left out."""
    return "optional" if default is UNSET else f"default {write_compact(default)}"


def list_names(schema: Any) -> list[str]:
    """List the named types that a schema refers to, in order."""
    if isinstance(schema, list):
        return [name for part in schema for name in list_names(part)]
    if not isinstance(schema, dict):
        return []
    found = []
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str):
            found.append(value.rpartition("/")[2])
        else:
            found += list_names(value)
    return found
