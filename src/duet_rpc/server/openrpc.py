"""Describes a service as an OpenRPC document, made from what its functions say about themselves.

Names, hints, defaults and docstrings are all there is to read; nothing is written twice. What only
we know stands in extensions: `x-kind` (query or command), `x-promise` (what a retry of the command
means) and `x-variadic` (a method that takes any number of values).

Schemas are those of JSON Schema draft 7, which OpenRPC 1.3 uses.
"""

from typing import Any

import msgspec
from msgspec import UNSET

from duet_rpc.engine.parameters import Parameter
from duet_rpc.service import Method, Service, named_errors

OPENRPC_VERSION = "1.3.2"

_REFERENCE = "#/components/schemas/{name}"


def openrpc_document(service: Service, *, name: str, version: str) -> dict[str, Any]:
    """Describe every method of a service, sorted by name."""
    methods = sorted(service, key=lambda method: method.name)
    hints = [hint for method in methods for hint in _hints(method)]
    schemas, components = msgspec.json.schema_components(hints, ref_template=_REFERENCE)
    in_order = iter(schemas)
    info = {"title": name, "version": version}
    if service.description:
        info["description"] = service.description
    document: dict[str, Any] = {
        "openrpc": OPENRPC_VERSION,
        "info": info,
        "methods": [
            _described(method, [_draft_7(next(in_order)) for _ in _hints(method)])
            for method in methods
        ],
    }
    if components:
        document["components"] = {"schemas": _draft_7(components)}
    return document


def _hints(method: Method) -> list[Any]:
    """List the hints of a method's parameters and, last, of its result."""
    parameters = method.parameters
    hints = [parameter.hint for parameter in parameters.listed]
    if parameters.rest is not UNSET:
        hints.append(parameters.rest)
    return [_describable(hint) for hint in [*hints, parameters.returns]]


def _describable(hint: Any) -> Any:
    """Take a hint as it is, or as "anything" if JSON Schema has no words for it."""
    try:
        msgspec.json.schema_components([hint])
    except (TypeError, ValueError, NameError):
        return Any
    return hint


def _described(method: Method, schemas: list[dict[str, Any]]) -> dict[str, Any]:
    *of_params, of_result = schemas
    listed = method.parameters.listed
    described: dict[str, Any] = {"name": method.name}
    if method.description:
        described["description"] = method.description
    described["paramStructure"] = _structure(method)
    if method.parameters.rest is UNSET:
        described["params"] = [
            _parameter(parameter, schema)
            for parameter, schema in zip(listed, of_params, strict=True)
        ]
    else:
        described["params"] = [{"name": "values", "required": False, "schema": of_params[0]}]
        described["x-variadic"] = True
    described["result"] = {"name": "result", "schema": of_result}
    if errors := _errors(method):
        described["errors"] = errors
    described["x-kind"] = method.kind.value
    if method.promise is not None:
        described["x-promise"] = method.promise.value
    return described


def _structure(method: Method) -> str:
    parameters = method.parameters
    if parameters.rest is not UNSET:
        return "by-position"
    if any(parameter.required and not parameter.positional for parameter in parameters.listed):
        return "by-name"
    return "either"


def _parameter(parameter: Parameter, schema: dict[str, Any]) -> dict[str, Any]:
    if not parameter.required:
        try:
            default = msgspec.to_builtins(parameter.default)
        except (TypeError, ValueError):
            pass  # a default that JSON cannot carry is our own affair
        else:
            # What stands beside a $ref counts for nothing.
            schema = {"allOf": [schema]} if "$ref" in schema else schema
            schema = {**schema, "default": default}
    return {"name": parameter.name, "required": parameter.required, "schema": schema}


def _errors(method: Method) -> list[dict[str, Any]]:
    """List the errors that a handler names in its own code, by which it raises them."""
    found = {
        cls.code: {"code": cls.code, "message": cls.message} for cls in named_errors(method.handler)
    }
    return [found[code] for code in sorted(found)]


def _draft_7(schema: Any) -> Any:
    """Say in draft 7 what msgspec says in the draft of 2020: arrays whose places differ."""
    if isinstance(schema, list):
        return [_draft_7(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    said = {key: _draft_7(value) for key, value in schema.items()}
    if isinstance(said.get("prefixItems"), list):
        rest = said.pop("items", UNSET)
        said["items"] = said.pop("prefixItems")
        if rest is not UNSET:
            said["additionalItems"] = rest
    return said
