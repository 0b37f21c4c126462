"""The parameters of one handler: read from its type hints, decoded in one typed pass.

At registration the hints become a msgspec struct (names) and a second one (positions), and a small
adapter is compiled that calls the handler with the struct's fields, which is three times as fast as
`handler(**dict)`. What a caller got wrong is told as `InvalidParams` with the parameter's name,
what was expected and what came.
"""

import enum
import keyword
import re
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Raw, UnsetType

from duet_rpc.context import Context, is_transaction
from duet_rpc.errors import InvalidParams, ParseError, UsageError

KEY = "idempotency_key"
META = "_meta"

Adapter = Callable[[Any, Context | None, Any], Any]
"""Calls a handler: decoded params, context, transaction."""


class Parameter(msgspec.Struct, frozen=True):
    """One parameter as callers see it."""

    name: str
    hint: Any
    required: bool
    default: Any = None
    positional: bool = True


class Bound(msgspec.Struct, gc=False):
    """The params of one request, decoded: ready for the adapter."""

    values: Any
    key: Any = UNSET
    """What came as the idempotency key, unchecked; UNSET if none did."""
    meta: Raw | UnsetType = UNSET


class Parameters:
    """How the params of one method are decoded and handed to its handler."""

    def __init__(
        self,
        method: str,
        listed: tuple[Parameter, ...],
        *,
        rest: Any,
        context: str | None,
        transaction: str | None,
        returns: Any,
        takes_key: bool,
        ignore_unknown: bool,
        call: Adapter,
    ) -> None:
        self.listed = listed
        self.rest = rest
        """The hint of `*args`, or UNSET."""
        self.context = context
        self.transaction = transaction
        self.returns = returns
        self.call = call
        self.wants_key = any(parameter.name == KEY for parameter in listed)
        self._takes_key = takes_key
        self._ignore_unknown = ignore_unknown
        # A required keyword-only parameter leaves no way to call by position.
        self._only_named = any(p.required and not p.positional for p in listed)
        try:
            self.struct = self._define(method, array_like=False)
            self._by_name = msgspec.json.Decoder(self.struct).decode
            self._by_position = msgspec.json.Decoder(self._define(method, array_like=True)).decode
            if rest is not UNSET:
                self._rest = msgspec.json.Decoder(list[rest]).decode
        except (TypeError, ValueError) as error:
            raise UsageError(f"{method}: these parameters cannot be decoded: {error}") from None

    @staticmethod
    def of(
        handler: Callable[..., Any],
        method: str,
        *,
        takes_key: bool,
        ignore_unknown: bool,
        scope: Mapping[str, Any],
    ) -> "Parameters":
        """Read a handler's parameters. Raises `UsageError` for what cannot be served."""
        return _read(handler, method, takes_key, ignore_unknown, scope)

    def bind(self, params: bytes | None) -> Bound:
        """Decode the params of one request; raise `InvalidParams`, or `ParseError` for bad JSON."""
        try:
            if params is None:
                if self.rest is not UNSET:
                    return Bound([])
                return Bound(self._by_name(b"{}"))
            if params[0] == 0x5B:  # an array
                if self.rest is not UNSET:
                    return Bound(self._rest(params))
                if self._only_named:
                    raise _invalid("params", "object", "array")
                return self._bound(self._by_position(params))
            if self.rest is not UNSET:
                raise _invalid("params", "array", "object")
            return self._bound(self._by_name(params))
        except msgspec.ValidationError as error:
            raise self._explain(str(error)) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise ParseError() from None

    def _bound(self, values: Any) -> Bound:
        key = getattr(values, KEY, UNSET) if self._takes_key else UNSET
        return Bound(values, key, getattr(values, META, UNSET))

    def _define(self, method: str, *, array_like: bool) -> type[msgspec.Struct]:
        fields: list[Any] = [
            (parameter.name, parameter.hint)
            if parameter.required
            else (parameter.name, parameter.hint, _default_field(parameter.default))
            for parameter in sorted(self.listed, key=lambda parameter: not parameter.required)
        ]
        taken = {parameter.name for parameter in self.listed}
        if not array_like:
            # What travels beside the params is part of the struct, so that it costs no second pass.
            if self._takes_key and KEY not in taken:
                fields.append((KEY, Any, UNSET))
            if META not in taken:
                fields.append((META, Raw | UnsetType, UNSET))
        return msgspec.defstruct(
            "Params",
            fields,
            module=f"duet_rpc.params.{method}",
            gc=False,
            array_like=array_like,
            forbid_unknown_fields=not self._ignore_unknown,
        )

    def _explain(self, text: str) -> InvalidParams:
        """Turn msgspec's sentence into the members that callers can act on."""
        sentence, _, path = text.partition(" - at `")
        path = path.rstrip("`").removeprefix("$").lstrip(".")
        hints = {parameter.name: parameter.hint for parameter in self.listed}
        if path.startswith("["):  # by position: say the parameter's name
            index, _, inner = path[1:].partition("]")
            if index.isdigit() and int(index) < len(self.listed):
                path = self.listed[int(index)].name + inner
        name = re.split(r"[.\[]", path, maxsplit=1)[0]
        if match := _MISSING.match(sentence):
            missing = match[1]
            expected = type_name(hints[missing]) if not path and missing in hints else "a value"
            param = f"{path}.{missing}" if path else missing
            return _invalid(param, expected, "nothing", hints.get(missing) if not path else None)
        if match := _UNKNOWN.match(sentence):
            param = f"{path}.{match[1]}" if path else match[1]
            known = ", ".join(hints) or "none"
            return _invalid(param, f"no such parameter (known: {known})", "a value")
        if match := _TOO_SHORT.match(sentence):
            count = int(match[2])
            if not path and count < len(self.listed):
                parameter = self.listed[count]
                return _invalid(
                    parameter.name, type_name(parameter.hint), "nothing", parameter.hint
                )
        if match := _TOO_LONG.match(sentence):
            return _invalid(path or "params", f"at most {match[1]} values", "more")
        if match := _EXPECTED.match(sentence):
            return _invalid(
                path or "params", _json_words(match[1]), _json_words(match[2]), hints.get(path)
            )
        if match := _CONSTRAINED.match(sentence):
            return _invalid(
                path or "params", _json_words(match[1]), "another value", hints.get(path)
            )
        expected = type_name(hints[name]) if name in hints else "another value"
        return _invalid(path or "params", expected, _shorten(sentence), hints.get(path))


_MISSING = re.compile(r"Object missing required field `(.+)`$")
_UNKNOWN = re.compile(r"Object contains unknown field `(.+)`$")
_TOO_SHORT = re.compile(r"Expected `array` of (at least )?length .*?, got (\d+)$")
_TOO_LONG = re.compile(r"Expected `array` of at most length (\d+)")
_EXPECTED = re.compile(r"Expected `(.+)`, got `(.+)`$")
_CONSTRAINED = re.compile(r"Expected `(.+)`$")


def _invalid(param: str, expected: str, received: str, hint: Any = None) -> InvalidParams:
    data: dict[str, Any] = {"param": param, "expected": expected, "received": received}
    accepted = accepted_values(hint)
    if accepted is not None:
        data["accepted"] = accepted
    return InvalidParams(data=data)


def _json_words(words: str) -> str:
    """Say Python's type names, as msgspec spells them, in JSON's words."""
    named = {"int": "integer", "str": "string", "float": "number", "bool": "boolean"}
    return re.sub(r"\b(int|str|float|bool)\b", lambda match: named[match[0]], words)


def _shorten(sentence: str) -> str:
    return sentence if len(sentence) <= 120 else sentence[:117] + "..."


def _default_field(default: Any) -> Any:
    """Give a default to msgspec so that a mutable one is copied for each call."""
    if isinstance(default, (list, dict, set, bytearray)) and default:
        return msgspec.field(default_factory=default.copy)
    if isinstance(default, msgspec.Struct) or not isinstance(
        default, (int, float, str, bytes, bool, type(None), tuple, frozenset, enum.Enum)
    ):
        return default if isinstance(default, (list, dict, set)) else _constant(default)
    return default


def _constant(value: Any) -> Any:
    return msgspec.field(default_factory=lambda: value)


def _read(
    handler: Callable[..., Any],
    method: str,
    takes_key: bool,
    ignore_unknown: bool,
    scope: Mapping[str, Any],
) -> Parameters:
    hints = _hints(handler, method, scope)
    returns = hints.pop("return", Any)
    listed: list[Parameter] = []
    rest: Any = UNSET
    context = transaction = None
    arguments: list[str] = []
    for name, kind, default in _signature(handler, method):
        hint = hints.get(name, Any)
        if kind == "**":
            raise UsageError(f"{method}: name its parameters instead of taking **{name}")
        if hint is Context or Context in get_args(hint):
            context, value = name, "ctx"
        elif is_transaction(hint):
            transaction, value = name, "tx"
        elif kind == "*":
            rest = hint
            arguments.append("*p")
            continue
        else:
            value = f"p.{name}"
            required = default is UNSET
            listed.append(
                Parameter(name, hint, required, None if required else default, kind != "keyword")
            )
            _check_hint(hint, method, name)
        arguments.append(
            value if kind == "/" else f"{name}={value}" if kind == "keyword" else value
        )
    if rest is not UNSET and listed:
        raise UsageError(f"{method}: *args beside other parameters cannot be served; use a list")
    # Compiled, because the attribute loads of a fixed call are what makes a small request cheap.
    source = f"lambda p, ctx, tx: handler({', '.join(arguments)})"
    call: Adapter = eval(source, {"handler": handler})
    return Parameters(
        method,
        tuple(listed),
        rest=rest,
        context=context,
        transaction=transaction,
        returns=returns,
        takes_key=takes_key,
        ignore_unknown=ignore_unknown,
        call=call,
    )


def _signature(handler: Callable[..., Any], method: str) -> list[tuple[str, str, Any]]:
    """List (name, kind, default) of each parameter; kinds are `/`, ``, `*`, `keyword` and `**`."""
    if not isinstance(handler, types.FunctionType) or hasattr(handler, "__wrapped__"):
        return _inspected(handler, method)
    # Plain functions, nearly all there are, do not need the import of inspect (a cold start's
    # cost).
    code = handler.__code__
    names = code.co_varnames
    count, only = code.co_argcount, code.co_posonlyargcount
    defaults = handler.__defaults__ or ()
    found: list[tuple[str, str, Any]] = []
    for index, name in enumerate(names[:count]):
        at = index - (count - len(defaults))
        found.append((name, "/" if index < only else "", defaults[at] if at >= 0 else UNSET))
    after = count + code.co_kwonlyargcount
    if code.co_flags & 0x04:
        found.append((names[after], "*", UNSET))
    for name in names[count:after]:
        found.append((name, "keyword", (handler.__kwdefaults__ or {}).get(name, UNSET)))
    if code.co_flags & 0x08:
        found.append((names[after + bool(code.co_flags & 0x04)], "**", UNSET))
    return found


def _inspected(handler: Callable[..., Any], method: str) -> list[tuple[str, str, Any]]:
    import inspect

    kinds = {
        inspect.Parameter.POSITIONAL_ONLY: "/",
        inspect.Parameter.POSITIONAL_OR_KEYWORD: "",
        inspect.Parameter.VAR_POSITIONAL: "*",
        inspect.Parameter.KEYWORD_ONLY: "keyword",
        inspect.Parameter.VAR_KEYWORD: "**",
    }
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        raise UsageError(f"{method}: wrap it in a def with type hints to serve it") from None
    return [
        (p.name, kinds[p.kind], UNSET if p.default is inspect.Parameter.empty else p.default)
        for p in signature.parameters.values()
    ]


def _hints(handler: Any, method: str, scope: Mapping[str, Any]) -> dict[str, Any]:
    target = handler
    while hasattr(target, "func"):  # a functools.partial
        target = target.func
    if not hasattr(target, "__code__") and not isinstance(target, type):
        target = getattr(type(target), "__call__", target)
    try:
        return get_type_hints(target, localns=dict(scope), include_extras=True)
    except NameError as error:
        raise UsageError(
            f"{method}: the hint {error.name!r} is not known where the function stands"
        ) from None
    except TypeError:
        return {}


def _check_hint(hint: Any, method: str, name: str) -> None:
    if not name.isidentifier() or keyword.iskeyword(name):
        raise UsageError(f"{method}: {name!r} cannot be a parameter's name")
    try:
        described = msgspec.inspect.type_info(hint)
    except (TypeError, ValueError, NameError) as error:
        raise UsageError(f"{method}: parameter {name} cannot be decoded: {error}") from None
    if isinstance(described, msgspec.inspect.CustomType):
        raise UsageError(
            f"{method}: parameter {name} is a {type_name(hint)}, which JSON cannot carry;"
            " use a dataclass, a msgspec.Struct or plain types"
        )


_JSON_NAMES: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
    None: "null",
    Any: "any",
    list: "array",
    tuple: "array",
    set: "array",
    frozenset: "array",
    dict: "object",
    Mapping: "object",
    Raw: "any",
    bytes: "string",
}


def type_name(hint: Any) -> str:
    """Say a hint in JSON's words: `string`, `array of integer`, `"up" | "down"`."""
    origin = get_origin(hint)
    if hasattr(hint, "__metadata__"):
        return type_name(hint.__origin__)
    if origin is Literal:
        return " | ".join(f'"{v}"' if isinstance(v, str) else str(v) for v in get_args(hint))
    if origin is Union or isinstance(hint, types.UnionType):
        return " | ".join(type_name(part) for part in get_args(hint))
    if origin is not None:
        outer = _JSON_NAMES.get(origin, getattr(origin, "__name__", "object"))
        inner = [part for part in get_args(hint) if part is not Ellipsis]
        if outer == "array" and inner:
            return f"array of {' | '.join(dict.fromkeys(type_name(part) for part in inner))}"
        return outer
    if hint in _JSON_NAMES:
        return _JSON_NAMES[hint]
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return " | ".join(
            f'"{m.value}"' if isinstance(m.value, str) else str(m.value) for m in hint
        )
    return getattr(hint, "__name__", str(hint))


def accepted_values(hint: Any) -> list[Any] | None:
    """List the values of a closed set; None if the set is open."""
    if hasattr(hint, "__metadata__"):
        return accepted_values(hint.__origin__)
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return [member.value for member in hint]
    return None
