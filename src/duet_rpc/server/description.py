"""The description of a service: frozen values that everything said about methods is made from.

A description is made of a service (`describe`), which says it by its functions: names, hints,
defaults and docstrings are written once. Or it is read from what a server of any make says about
itself: `describeMethods` here, OpenRPC in `openrpc`. Both forms are written from it, and so are the
pages of the command line.
"""

from typing import Any

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from duet_rpc.errors import RESERVED_CODES
from duet_rpc.methods.docstrings import read_docstring
from duet_rpc.methods.members import list_defaults, list_members
from duet_rpc.methods.signature import Parameter
from duet_rpc.methods.wording import type_name
from duet_rpc.options import is_number
from duet_rpc.server.schemas import OPENRPC_FORM, Schema, SchemaForm, make_schemas, resolve
from duet_rpc.service import Kind, Method, Service
from duet_rpc.wire.surrogates import encode_value


class ParamDescription(Struct, frozen=True):
    """One parameter, as callers see it."""

    name: str
    type: str = ""
    """Its type in words, if the server has any."""
    required: bool = True
    default: Any = UNSET
    """As JSON carries it; UNSET if there is none, or none that JSON can carry."""
    schema: Schema | None = None
    """None if it was not asked for, or is not known."""
    description: str = ""


class ErrorDescription(Struct, frozen=True):
    """An error that a method may answer."""

    code: Any
    message: str


class MethodDescription(Struct, frozen=True, kw_only=True):
    """One method: what it takes, returns and raises, and what a retry means.

    It has more than fifteen fields because each thing that is said of a method is one of them.
    """

    name: str
    summary: str = ""
    description: str = ""
    kind: str | None = None
    promise: str | None = None
    params: tuple[ParamDescription, ...] = ()
    structure: str = "either"
    """How params are given: `by-name`, `by-position` or `either`."""
    is_variadic: bool = False
    """It takes any number of values; its one param tells of which type."""
    is_whole: bool = False
    """Its one param is not a member of params, but all of them."""
    ignores_unknown: bool = False
    """It drops params that it does not have, and refuses none of them."""
    returns: str | None = None
    """The type of its result, or of an item of a subscription, in words, if the server has any."""
    result: Schema | None = None
    """The schema of the same."""
    dedupe_window: float | None = None
    """Seconds in which the same arguments are the same command; None if only a key tells."""
    when_slow: str | None = None
    """What a subscription does with a subscriber that is too slow."""
    scopes: tuple[str, ...] = ()
    """What its caller has to be allowed to, sorted."""
    errors: tuple[ErrorDescription, ...] = ()
    source: dict[str, Any] = {}
    """All that the server said about it, where it was read from one."""


class ServiceDescription(Struct, frozen=True, kw_only=True):
    """Everything there is to know about what is served."""

    name: str = ""
    version: str = ""
    description: str = ""
    methods: tuple[MethodDescription, ...] = ()
    schemas: dict[str, Any] = {}
    """The types with names that schemas refer to."""

    @property
    def names(self) -> list[str]:
        """The names of all methods."""
        return [method.name for method in self.methods]

    def find(self, name: str) -> MethodDescription | None:
        """Find a method by its name."""
        return next((method for method in self.methods if method.name == name), None)


def describe(
    service: Service,
    *,
    name: str = "",
    version: str = "",
    with_schemas: bool = True,
    form: SchemaForm = OPENRPC_FORM,
) -> ServiceDescription:
    """Describe every method of a service, sorted by name; schemas cost more than all the rest."""
    methods = sorted(service, key=lambda method: method.name)
    of_params: list[Schema] = []
    of_results: list[Schema] = []
    components: dict[str, Schema] = {}
    if with_schemas:
        hints = [each.hint for method in methods for each in _list_given(method)]
        returns = [method.parameters.returns for method in methods]
        of_params, of_results, components = make_schemas(hints, returns, form)
    params, results = iter(of_params), iter(of_results)
    return ServiceDescription(
        name=name or service.name,
        version=version or service.version,
        description=service.description,
        methods=tuple(
            _describe_method(
                method,
                [next(params, None) for _ in _list_given(method)],
                next(results, None),
                components,
            )
            for method in methods
        ),
        schemas=components,
    )


def write_method(method: MethodDescription) -> dict[str, Any]:
    """Say what `describeMethods` says of a method."""
    written: dict[str, Any] = {
        "name": method.name,
        "params": [] if method.is_variadic else [write_param(each) for each in method.params],
        "returns": method.returns,
    }
    if method.kind == Kind.COMMAND.value:
        written |= {"kind": method.kind, "promise": method.promise}
        if method.dedupe_window is not None:
            written |= {"dedupe": "arguments", "dedupe_window": method.dedupe_window}
    elif method.kind == Kind.SUBSCRIPTION.value:
        written |= {"kind": method.kind, "when_slow": method.when_slow}
    if method.scopes:
        written["scopes"] = list(method.scopes)
    if method.is_whole:
        written["whole"] = True
    if method.ignores_unknown:
        written["ignore_unknown"] = True
    own = [error for error in write_errors(method) if error["code"] not in RESERVED_CODES]
    if own:  # the others may come from any method
        written["errors"] = own
    return written


def write_errors(method: MethodDescription) -> list[dict[str, Any]]:
    """Say the errors that a method is known to answer."""
    return [{"code": error.code, "message": error.message} for error in method.errors]


def read_errors(document: dict[str, Any]) -> tuple[ErrorDescription, ...]:
    """Read the errors that a server of any make says of a method."""
    return tuple(
        ErrorDescription(each.get("code"), str(each.get("message")))
        for each in items(document, "errors", dict)
    )


def write_param(param: ParamDescription) -> str:
    """Say a parameter in a line: `a: integer = 3`."""
    written = f"{param.name}: {param.type}" if param.type else param.name
    if param.required:
        return written
    try:
        return f"{written} = {encode_value(param.default).decode()}"
    except (TypeError, ValueError):
        return f"{written} = ..."


def read_method(document: dict[str, Any]) -> MethodDescription | None:
    """Read what `describeMethods` or `listMethods` of any server say of a method."""
    if not isinstance(document.get("name"), str):
        return None
    params = [line.partition(": ") for line in items(document, "params", str)]
    return MethodDescription(
        name=document["name"],
        description=text(document, "description") or "",
        kind=text(document, "kind"),
        promise=text(document, "promise"),
        dedupe_window=read_seconds(document, "dedupe_window"),
        params=tuple(ParamDescription(name, words) for name, _, words in params),
        returns=text(document, "returns"),
        when_slow=text(document, "when_slow"),
        scopes=tuple(items(document, "scopes", str)),
        is_whole=document.get("whole") is True,
        ignores_unknown=document.get("ignore_unknown") is True,
        errors=read_errors(document),
        source=document,
    )


def text(document: dict[str, Any], name: str) -> str | None:
    """Take a member if it is a text."""
    value = document.get(name)
    return value if isinstance(value, str) else None


def read_seconds(document: dict[str, Any], name: str) -> float | None:
    """Take a member if it is a number of seconds."""
    value: Any = document.get(name)
    return float(value) if is_number(value) else None


def items(document: dict[str, Any], name: str, kind: type) -> list[Any]:
    """Take the items of a member that are of a kind, if it is an array."""
    value = document.get(name)
    return [each for each in value if isinstance(each, kind)] if isinstance(value, list) else []


def _describe_method(
    method: Method,
    schemas: list[Schema | None],
    result: Schema | None,
    components: dict[str, Schema],
) -> MethodDescription:
    parameters = method.parameters
    given = _list_given(method)
    doc = method.handler.__doc__
    if parameters.whole is not None and parameters.whole.members:
        doc = parameters.whole.shape.__doc__
        given, schemas = _list_members(given[0], resolve(schemas[0], components))
    words = read_docstring(doc).params
    return MethodDescription(
        name=method.name,
        description=method.description,
        kind=method.kind.value,
        promise=None if method.promise is None else method.promise.value,
        dedupe_window=method.dedupe_window,
        params=tuple(
            _describe_param(parameter, schema, words.get(parameter.argument or parameter.name, ""))
            for parameter, schema in zip(given, schemas, strict=True)
        ),
        structure=_find_structure(method),
        is_variadic=parameters.rest is not UNSET,
        is_whole=parameters.whole is not None and not parameters.whole.members,
        ignores_unknown=parameters.ignores_unknown,
        returns=type_name(parameters.returns),
        result=result,
        when_slow=method.when_slow,
        scopes=tuple(sorted(method.scopes)),
        errors=_describe_errors(method),
    )


def _describe_param(
    parameter: Parameter, schema: Schema | None, description: str
) -> ParamDescription:
    default = UNSET
    if not parameter.required:
        try:
            default = msgspec.json.decode(encode_value(parameter.default))
        except (TypeError, ValueError):
            pass  # a default that JSON cannot carry is our own affair
    words = type_name(parameter.hint)
    return ParamDescription(parameter.name, words, parameter.required, default, schema, description)


def _describe_errors(method: Method) -> tuple[ErrorDescription, ...]:
    """List the errors that a method is declared to raise, and those found in its code."""
    found: dict[int, str] = {}
    for cls in method.list_errors():
        found.setdefault(cls.code, cls.message)
    return tuple(ErrorDescription(code, found[code]) for code in sorted(found))


def _find_structure(method: Method) -> str:
    parameters = method.parameters
    if parameters.rest is not UNSET:
        return "by-position"
    if parameters.whole is not None:
        return parameters.whole.structure
    if any(parameter.required and not parameter.positional for parameter in parameters.listed):
        return "by-name"
    return "either"


def _list_given(method: Method) -> list[Parameter]:
    """List what callers of a method give."""
    parameters = method.parameters
    if parameters.rest is not UNSET:
        return [Parameter("values", parameters.rest, required=False, default=UNSET)]
    if parameters.whole is not None:
        return [replace(parameters.listed[0], hint=parameters.whole.shape)]
    return list(parameters.listed)


def _list_members(whole: Parameter, schema: Schema) -> tuple[list[Parameter], list[Schema | None]]:
    """List the members of what takes all params: callers give them by name."""
    defaults = list_defaults(whole.hint)
    members = [
        Parameter(name, hint, whole.required and name not in defaults, defaults.get(name, UNSET))
        for name, hint in list_members(whole.hint).items()
    ]
    described = schema.get("properties", {})
    # The tag of a struct is none of its members, but may be sent.
    tags = [name for name in described if name not in {member.name for member in members}]
    members += [Parameter(name, str, required=False, default=UNSET) for name in tags]
    return members, [described.get(member.name) for member in members]
