"""Says of each time in the arguments of a tool that it is one: `"format": "date-time"`.

msgspec says so only of times that must have a time zone. For a model it is what tells a time from
any other text. Hints and schemas are walked side by side; a schema of a shape that is not known
stays as it is.
"""

from typing import Any

from msgspec import inspect

from duet_rpc.mcp.schemas import REFERENCE
from duet_rpc.server.schemas import Schema

_CLASSES = (
    inspect.StructType,
    inspect.DataclassType,
    inspect.TypedDictType,
    inspect.NamedTupleType,
)


def mark_datetimes(hint: Any, schema: Schema | None, definitions: dict[str, Schema]) -> None:
    """Mark the times in the schema of a hint, and in the definitions that it refers to."""
    if schema is None:
        return
    try:
        described = inspect.type_info(hint)
    except (TypeError, ValueError, NameError):
        return  # which is described as anything
    _Marking(definitions).mark(described, schema)


class _Marking:
    def __init__(self, definitions: dict[str, Schema]) -> None:
        self._definitions = definitions
        self._seen: set[str] = set()

    def mark(self, described: Any, schema: Any) -> None:
        """Walk a type and its schema."""
        while isinstance(described, inspect.Metadata):
            described = described.type
        if not isinstance(schema, dict):
            return
        if (reference := schema.get("$ref")) is not None:
            name = reference.removeprefix(REFERENCE)
            if name in self._seen:
                return
            self._seen.add(name)
            schema = self._definitions.get(name, {})
        match described:
            case inspect.DateTimeType(tz=None):
                schema.setdefault("format", "date-time")
            case inspect.CollectionType(item_type=item):
                self.mark(item, schema.get("items"))
            case inspect.DictType(value_type=value):
                self.mark(value, schema.get("additionalProperties"))
            case inspect.TupleType(item_types=items):
                self._mark_all(items, schema.get("prefixItems", ()))
            case inspect.UnionType(types=types):
                self._mark_union(types, schema.get("anyOf", ()))
            case inspect.Type() if isinstance(described, _CLASSES):
                self._mark_members(described, schema)

    def _mark_all(self, described: Any, schemas: Any) -> None:
        for each, schema in zip(described, schemas, strict=False):
            self.mark(each, schema)

    def _mark_union(self, types: Any, options: Any) -> None:
        """Walk the alternatives: plain ones come first, then objects, then null."""
        plain, objects = [], []
        for each in types:
            real = each
            while isinstance(real, inspect.Metadata):
                real = real.type
            if isinstance(real, inspect.StructType) and not real.array_like:
                objects.append(each)
            elif not isinstance(real, inspect.NoneType):
                plain.append(each)
        self._mark_all(plain, options)
        rest = options[len(plain) :]
        if rest and "anyOf" in rest[0]:
            rest = rest[0]["anyOf"]
        self._mark_all(objects, rest)

    def _mark_members(self, described: Any, schema: Schema) -> None:
        if "properties" in schema:
            for field in described.fields:
                self.mark(field.type, schema["properties"].get(field.encode_name))
        else:
            tag = getattr(described, "tag_field", None)
            types = [field.type for field in described.fields]
            self._mark_all(types, schema.get("prefixItems", ())[tag is not None :])
