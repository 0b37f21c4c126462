"""JSON Schema in words: `array of string`, `integer >= 0`, `"up" | "down"`, `Note`.

Schemas come from servers of any make, so anything may be missing or odd; what cannot be said is
`any`.
"""

from typing import Any

from duet_rpc.cli.output import compact, safe

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


def worded(schema: Any) -> str:
    """Say a schema in a few words."""
    if not isinstance(schema, dict):
        return "any"
    if isinstance(schema.get("$ref"), str):
        return safe(schema["$ref"].rpartition("/")[2])
    if isinstance(schema.get("enum"), list):
        return " | ".join(map(compact, schema["enum"]))
    if "const" in schema:
        return compact(schema["const"])
    for choice in ("anyOf", "oneOf"):
        if isinstance(schema.get(choice), list):
            return " | ".join(dict.fromkeys(map(worded, schema[choice])))
    if isinstance(schema.get("allOf"), list) and schema["allOf"]:
        return " and ".join(map(worded, schema["allOf"]))
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(_of_type(str(each), schema) for each in kind)
    return _of_type(kind, schema) if isinstance(kind, str) else "any"


def _of_type(kind: str, schema: dict[str, Any]) -> str:
    said = safe(kind)
    if kind == "array":
        items = schema.get("items")
        if isinstance(items, list):
            said = f"[{', '.join(map(worded, items))}]"
            return said  # its length is plain
        if isinstance(items, dict) and items:
            said = f"array of {worded(items)}"
    elif kind == "object":
        values = schema.get("additionalProperties")
        if isinstance(schema.get("title"), str):
            said = safe(schema["title"])
        elif isinstance(values, dict) and values:
            said = f"object of {worded(values)}"
    limits = [
        form.format(safe(str(schema[name]))) for name, form in _LIMITS.items() if name in schema
    ]
    return " ".join([said, ", ".join(limits)]) if limits else said


def members(schema: Any) -> list[tuple[str, str, str]]:
    """List the members of an object: name, type, and whether it is required or what it is else."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return []
    required = schema.get("required")
    needed = required if isinstance(required, list) else []
    return [
        (safe(name), worded(each), "required" if name in needed else default_of(each))
        for name, each in properties.items()
    ]


def default_of(schema: Any) -> str:
    """Say what a value is when it is left out."""
    if isinstance(schema, dict) and "default" in schema:
        return f"default {compact(schema['default'])}"
    return "optional"


def names_in(schema: Any) -> list[str]:
    """List the named types that a schema refers to, in order."""
    if isinstance(schema, list):
        return [name for part in schema for name in names_in(part)]
    if not isinstance(schema, dict):
        return []
    found = []
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str):
            found.append(value.rpartition("/")[2])
        else:
            found += names_in(value)
    return found
