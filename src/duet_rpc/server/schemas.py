"""JSON Schema for type hints: by msgspec, and by pydantic for its own models.

Types with names stand in components that all schemas share. A model is described as it is read,
and one that only results hold as it is written.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from duet_rpc.methods.hints import list_models

Schema = dict[str, Any]
"""JSON Schema."""


class SchemaForm(Struct, frozen=True):
    """Which JSON Schema is written."""

    reference: str
    """How a schema refers to a type with a name."""
    is_draft_7: bool
    """Draft 7, else that of 2020-12."""


OPENRPC_FORM = SchemaForm("#/components/schemas/{name}", is_draft_7=True)
TOOL_FORM = SchemaForm("#/$defs/{name}", is_draft_7=False)


def make_schemas(
    params: Sequence[Any], results: Sequence[Any], schema_form: SchemaForm = OPENRPC_FORM
) -> tuple[list[Schema], list[Schema], dict[str, Schema]]:
    """Make the schemas of params and of results, and the components that they refer to."""
    modes = dict.fromkeys((cls for hint in results for cls in list_models(hint)), "serialization")
    modes |= dict.fromkeys((cls for hint in params for cls in list_models(hint)), "validation")
    for form in ("{name}", "pydantic.{name}"):
        references, models = _describe_models(modes, form, schema_form.reference)
        hook = _make_hook(references)
        hints = [_describable(hint, hook) for hint in (*params, *results)]
        made, components = msgspec.json.schema_components(
            hints, schema_hook=hook, ref_template=schema_form.reference
        )
        if not components.keys() & models.keys():
            break  # else a model has the name of another class
    schemas, components = list(made), components | models
    if schema_form.is_draft_7:
        schemas, components = _write_draft_7(schemas), _write_draft_7(components)
    return schemas[: len(params)], schemas[len(params) :], components


def resolve(schema: Schema | None, components: dict[str, Schema]) -> Schema:
    """Find what a schema refers to; itself if it refers to nothing."""
    reference = (schema or {}).get("$ref", "")
    return components.get(reference.rpartition("/")[2], schema or {})


def _describe_models(
    modes: dict[Any, str], form: str, reference: str
) -> tuple[dict[Any, Schema], Any]:
    """Have pydantic describe models: the reference to each, and the components."""
    if not modes:
        return {}, {}
    from pydantic.json_schema import models_json_schema  # there, since they are its models

    template = reference.format(name=form.format(name="{model}"))

    def describe(some: Iterable[tuple[Any, Any]]) -> tuple[dict[Any, Schema], Any]:
        references, document = models_json_schema(list(some), ref_template=template)
        components = {form.format(name=n): s for n, s in document.get("$defs", {}).items()}
        return {cls: schema for (cls, _), schema in references.items()}, components

    try:
        return describe(modes.items())
    except Exception:  # one of them holds what no schema can say
        return describe(item for item in modes.items() if _is_describable(describe, item))


def _is_describable(describe: Any, item: tuple[Any, str]) -> bool:
    try:
        describe([item])
    except Exception:
        return False
    return True


def _make_hook(references: dict[Any, Schema]) -> Any:
    def describe_model(cls: Any) -> Schema:
        return references[cls]

    return describe_model


def _describable(hint: Any, hook: Any) -> Any:
    """Take a hint as it is, or as "anything" if JSON Schema has no words for it."""
    try:
        msgspec.json.schema_components([hint], schema_hook=hook)
    except (TypeError, ValueError, NameError, LookupError):
        return Any
    return hint


def _write_draft_7(schema: Any) -> Any:
    """Say in draft 7 what is said in the draft of 2020: arrays whose places differ."""
    if isinstance(schema, list):
        return [_write_draft_7(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    said = {key: _write_draft_7(value) for key, value in schema.items()}
    if isinstance(said.get("prefixItems"), list):
        rest = said.pop("items", UNSET)
        said["items"] = said.pop("prefixItems")
        if rest is not UNSET:
            said["additionalItems"] = rest
    return said
