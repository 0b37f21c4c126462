"""Writes the description of a service as an OpenRPC document, and reads those of any server.

What only we know stands in extensions: `x-kind` (query, command, ...), `x-promise` (what a retry of
the command means), `x-dedupe` (for how long the same arguments are the same command),
`x-variadic` (a method that takes any number of values), `x-whole` (its one param is all of params)
and `x-ignore-unknown` (it drops params that it does not have). The result of a subscription
is its name; `x-item` is the schema of what it sends, and `x-when-slow` what becomes of a subscriber
that is too slow.

Schemas are those of JSON Schema draft 7, which OpenRPC 1.3 uses.
"""

from typing import Any

from msgspec import UNSET, Struct

from duet_rpc.server.description import (
    MethodDescription,
    ParamDescription,
    ServiceDescription,
    items,
    read_errors,
    read_seconds,
    text,
    write_errors,
)

OPENRPC_VERSION = "1.3.2"
_SUBSCRIPTION = "subscription"
_SUBSCRIBED = {
    "type": "object",
    "properties": {"subscription": {"type": "integer"}},
    "required": ["subscription"],
}
"""The answer to a request for a subscription."""


class Document(Struct):
    """As much of a document as has to be there, to be one."""

    methods: list[dict[str, Any]]
    components: dict[str, Any] = {}


def write_openrpc(service: ServiceDescription) -> dict[str, Any]:
    """Write a description as a document."""
    info = {"title": service.name, "version": service.version}
    if service.description:
        info["description"] = service.description
    document: dict[str, Any] = {
        "openrpc": OPENRPC_VERSION,
        "info": info,
        "methods": [_write_method(method) for method in service.methods],
    }
    if service.schemas:
        document["components"] = {"schemas": service.schemas}
    return document


def _write_method(method: MethodDescription) -> dict[str, Any]:
    written: dict[str, Any] = {"name": method.name}
    if method.description:
        written["description"] = method.description
    written["paramStructure"] = method.structure
    written["params"] = [_write_param(param) for param in method.params]
    if method.is_variadic:
        written["x-variadic"] = True
    if method.is_whole:
        written["x-whole"] = True
    if method.ignores_unknown:
        written["x-ignore-unknown"] = True
    if method.kind == _SUBSCRIPTION:
        written["result"] = {"name": "result", "schema": _SUBSCRIBED}
        written |= {"x-item": {"schema": method.result}, "x-when-slow": method.when_slow}
    else:
        written["result"] = {"name": "result", "schema": method.result}
    if method.errors:
        written["errors"] = write_errors(method)
    written["x-kind"] = method.kind
    if method.promise is not None:
        written["x-promise"] = method.promise
    if method.dedupe_window is not None:
        written["x-dedupe"] = {"by": "arguments", "window": method.dedupe_window}
    if method.scopes:
        written["x-scopes"] = list(method.scopes)
    return written


def _write_param(param: ParamDescription) -> dict[str, Any]:
    schema = param.schema or {}
    if param.default is not UNSET:
        # What stands beside a $ref counts for nothing.
        schema = {"allOf": [schema]} if "$ref" in schema else schema
        schema = {**schema, "default": param.default}
    written: dict[str, Any] = {"name": param.name}
    if param.description:
        written["description"] = param.description
    return written | {"required": param.required, "schema": schema}


def read_openrpc(document: Document) -> ServiceDescription:
    """Read a document of any server, in which anything may be missing or odd."""
    schemas = document.components.get("schemas")
    return ServiceDescription(
        methods=tuple(
            _read_method(each) for each in document.methods if isinstance(each.get("name"), str)
        ),
        schemas=schemas if isinstance(schemas, dict) else {},
    )


def _read_method(document: dict[str, Any]) -> MethodDescription:
    result = document.get("x-item", document.get("result"))
    return MethodDescription(
        name=document["name"],
        summary=text(document, "summary") or "",
        description=text(document, "description") or "",
        kind=text(document, "x-kind"),
        promise=text(document, "x-promise"),
        dedupe_window=_read_window(document),
        params=tuple(_read_param(each) for each in items(document, "params", dict)),
        structure=text(document, "paramStructure") or "either",
        is_variadic=bool(document.get("x-variadic")),
        is_whole=bool(document.get("x-whole")),
        ignores_unknown=bool(document.get("x-ignore-unknown")),
        result=_read_schema(result) if isinstance(result, dict) else None,
        when_slow=text(document, "x-when-slow"),
        scopes=tuple(items(document, "x-scopes", str)),
        errors=read_errors(document),
        source=document,
    )


def _read_window(document: dict[str, Any]) -> float | None:
    dedupe = document.get("x-dedupe")
    return read_seconds(dedupe, "window") if isinstance(dedupe, dict) else None


def _read_param(document: dict[str, Any]) -> ParamDescription:
    schema = _read_schema(document)
    return ParamDescription(
        name=str(document.get("name")),
        required=bool(document.get("required")),
        default=schema.get("default", UNSET),
        schema=schema,
        description=text(document, "description") or "",
    )


def _read_schema(document: dict[str, Any]) -> dict[str, Any]:
    schema = document.get("schema")
    return schema if isinstance(schema, dict) else {}
