"""The parameters of one handler: read from its type hints, decoded in one typed pass.

At registration the hints become a msgspec struct (names) and a second one (positions), and a small
adapter is compiled that calls the handler with the struct's fields, which is three times as fast as
`handler(**dict)`. What a caller got wrong is told as `InvalidParams` with the parameter's name,
what was expected and what came.
"""

import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, get_args, get_type_hints

import msgspec
from msgspec import UNSET, Raw, UnsetType

from duet_rpc.context import Context, transaction_type
from duet_rpc.engine.wording import accepted_values, explain, invalid, type_name
from duet_rpc.errors import InvalidParams, UsageError
from duet_rpc.wire import surrogates
from duet_rpc.wire.large import LARGE, decode_large
from duet_rpc.wire.messages import SHALLOW, shallow_json
from duet_rpc.wire.params import KEY, META

__all__ = ["KEY", "META", "Bound", "Parameter", "Parameters", "accepted_values", "type_name"]

PARTIAL_TOKEN = "partialResultToken"
"""What LSP sends beside the params of a request that may be answered in parts."""
UNKNOWN = float("inf")
"""How deep a value nests whose type does not tell."""

Adapter = Callable[[Any, Context | None, Any], Any]
"""Calls a handler: decoded params, context, transaction."""


class Parameter(msgspec.Struct, frozen=True):
    """One parameter as callers see it."""

    name: str
    hint: Any
    required: bool
    default: Any = None
    positional: bool = True


class Bound(msgspec.Struct):
    """The params of one request, decoded: ready for the adapter."""

    values: Any
    key: Raw | UnsetType = UNSET
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
        rest_name: str | None,
        context: str | None,
        transaction: str | None,
        connection: str,
        returns: Any,
        takes_key: bool,
        ignore_unknown: bool,
        nestings: Mapping[str, float],
        beside: Iterable[str],
        call: Adapter,
        call_message: Callable[[Any], Any],
    ) -> None:
        self.listed = listed
        self.rest = rest
        """The hint of `*args`, or UNSET."""
        self.context = context
        self.transaction = transaction
        self.connection = connection
        """The type of connection that the transaction is asked for by, or empty for any."""
        self.returns = returns
        self.call = call
        self.call_message = call_message
        """The same for a message with such `params` and nothing else, as a method of its class."""
        self.holds_meta = rest is UNSET and all(p.name != META for p in listed)
        """Whether `typed` params may have brought a `_meta` beside them."""
        self.takes_key = takes_key
        """Whether an idempotency key may travel with the params."""
        self._nestings = nestings
        self._beside = beside
        self.nesting = UNKNOWN if ignore_unknown else max(nestings.values(), default=0)
        """How deep a param can nest, if its type reads every byte of it; `_meta` does not count."""
        self._key = next((p for p in listed if takes_key and p.name == KEY), None)
        self._ignore_unknown = ignore_unknown
        self._hints = {parameter.name: parameter.hint for parameter in listed}
        self._positions = [parameter.name for parameter in listed if parameter.positional]
        self._rest_name = rest_name
        # A required keyword-only parameter leaves no way to call by position.
        self._only_named = any(p.required and not p.positional for p in listed)
        self.struct = self._define(method, array_like=False)
        self.typed: Any = self.struct if rest is UNSET else list[rest]
        """What the params of a plain request are decoded into: an array where the handler takes
        `*args`, else an object."""
        self._by_name = msgspec.json.Decoder(self.struct)
        self._method = method
        self._positional: msgspec.json.Decoder[Any] | None = None
        if rest_name is not None:
            self._hints[rest_name] = list[rest]
            self._rest = msgspec.json.Decoder(list[rest])

    @staticmethod
    def of(
        handler: Callable[..., Any],
        method: str,
        *,
        takes_key: bool,
        ignore_unknown: bool,
        scope: Mapping[str, Any],
        beside: Iterable[str] = (),
    ) -> "Parameters":
        """Read a handler's parameters. Raises `UsageError` for what cannot be served.

        `beside` names members that callers may send beside the params, as they send `_meta`.
        """
        return _read(handler, method, takes_key, ignore_unknown, scope, beside)

    def bind(self, params: bytes | None) -> Bound:
        """Decode the params of one request, which are known to be JSON; raise `InvalidParams`.

        Whatever else the types' own checks raise comes out as it is.
        """
        try:
            if params is None:
                return (
                    Bound([])
                    if self.rest is not UNSET
                    else self._bound(self._by_name.decode(b"{}"))
                )
            if params[0] == 0x5B:  # an array
                if self.rest is not UNSET:
                    return Bound(_decoded(self._rest, params))
                if self._only_named:
                    raise invalid("params", "object", "array")
                return self._bound(self._by_position(params))
            if self.rest is not UNSET:
                return self._none_but_what_travels_beside(params)
            return self._bound(_decoded(self._by_name, params))
        except msgspec.ValidationError as error:
            raise self._explained(error, params or b"{}") from None

    def _explained(self, error: msgspec.ValidationError, params: bytes) -> InvalidParams:
        refused = explain(error, params, self._hints, self._positions, self._rest_name)
        if refused.data["param"] == KEY and KEY not in self._hints:
            return invalid(KEY, f"no key ({self._method} is a query)", "a key")
        return refused

    def give_key(self, values: Any, key: str | None) -> None:
        """Hand the idempotency key, or None if there is none, to a handler that asks for it."""
        wanted = self._key
        if wanted is None:
            return
        if key is None and wanted.required:
            raise invalid(KEY, type_name(wanted.hint), "nothing")
        setattr(values, KEY, wanted.default if key is None else key)

    def shallow(self) -> tuple[type[msgspec.Struct], float]:
        """Define the struct again, for large params, and say how deep they nest then.

        Where anything may come, nothing may that nests deeper than nearly everything does; so what
        fits needs no second look.
        """
        nestings = dict(self._nestings)
        hints = {}
        for parameter in self.listed:
            found = _shallow(parameter.hint)
            if found is not None:
                hints[parameter.name], nestings[parameter.name] = found
        if not hints:
            return self.struct, self.nesting
        nesting = UNKNOWN if self._ignore_unknown else max(nestings.values())
        return self._define(self._method, array_like=False, instead=hints), nesting

    def _by_position(self, params: bytes) -> Any:
        """Decode an array. Most methods are never sent one, so its struct waits for the first."""
        if self._positional is None:
            struct = self._define(self._method, array_like=True)
            self._positional = msgspec.json.Decoder(struct)
        return _decoded(self._positional, params)

    def _none_but_what_travels_beside(self, params: bytes) -> Bound:
        """Take an object without params, which may hold `_meta`, for no values."""
        try:
            bound = self._bound(_decoded(self._by_name, params))
        except msgspec.ValidationError:
            raise invalid("params", "array", "object") from None
        return Bound([], meta=bound.meta)

    def _bound(self, values: Any) -> Bound:
        key = getattr(values, KEY, UNSET) if self.takes_key else UNSET
        meta = UNSET if META in self._hints else getattr(values, META, UNSET)
        return Bound(values, key, meta)

    def _define(
        self, method: str, *, array_like: bool, instead: Mapping[str, Any] | None = None
    ) -> type[msgspec.Struct]:
        fields: dict[str, Any] = {}
        unreachable: dict[str, Any] = {}
        for parameter in self.listed:
            name = parameter.name
            hint = parameter.hint if instead is None else instead.get(name, parameter.hint)
            if parameter is self._key:
                # Its own rule checks it, wherever it came from.
                fields[name] = (name, Raw | UnsetType, UNSET)
            elif array_like and not parameter.positional:
                unreachable[name] = parameter.default
            elif parameter.required:
                fields[name] = (name, hint)
            else:
                fields[name] = (name, hint, _default(parameter.default))
        if not array_like:
            # What travels beside the params is part of the struct, so that it costs no second pass.
            if self.takes_key:
                fields.setdefault(KEY, (KEY, Raw | UnsetType, UNSET))
            for name in (META, *self._beside):
                fields.setdefault(name, (name, Raw | UnsetType, UNSET))
        return msgspec.defstruct(
            "Params",
            fields.values(),
            module=f"duet_rpc.wire.params.{method}",
            namespace=unreachable,
            kw_only=True,
            # A handler can put an error, which knows the frames that hold this struct, into a param
            # that is no scalar; only the collector can take such a circle apart.
            gc=any(self._nestings.values()),
            array_like=array_like,
            forbid_unknown_fields=not self._ignore_unknown,
        )


def _default(value: Any) -> Any:
    """Give a default to msgspec; one that a handler could change is copied for each call."""
    match value:
        case list() | dict() | set() | bytearray():
            return msgspec.field(default_factory=value.copy)
        case msgspec.Struct():
            return msgspec.field(default_factory=lambda: msgspec.structs.replace(value))
    return value


def _decoded(decoder: msgspec.json.Decoder[Any], params: bytes) -> Any:
    try:
        return (
            decoder.decode(params) if len(params) < LARGE else decode_large(decoder.decode, params)
        )
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:  # params are JSON, so they hold a lone surrogate
        return surrogates.decode(params, decoder.type)


def _read(
    handler: Callable[..., Any],
    method: str,
    takes_key: bool,
    ignore_unknown: bool,
    scope: Mapping[str, Any],
    beside: Iterable[str],
) -> Parameters:
    hints = _hints(handler, method, scope)
    returns = hints.pop("return", Any)
    _check_returns(returns, method)
    listed: list[Parameter] = []
    rest: Any = UNSET
    rest_name = context = transaction = None
    connection = ""
    arguments: list[str] = []
    nestings: dict[str, float] = {}
    for name, kind, default in _signature(handler, method):
        hint = hints.get(name, Any)
        if kind == "**":
            raise UsageError(
                f"{method}: **{name} tells callers nothing; name the parameters one by one,"
                " or take one of type dict"
            )
        if hint is Context or Context in get_args(hint):
            context, value = name, "ctx"
        elif (wanted := transaction_type(hint)) is not None:
            transaction, connection, value = name, wanted, "tx"
        else:
            nestings[name] = _check_parameter(name, hint, method)
            if kind == "*":
                rest, rest_name, value = hint, name, "*{p}"
            else:
                required = default is _NO_DEFAULT
                value = f"{{p}}.{name}"
                listed.append(
                    Parameter(name, hint, required, None if required else default, kind != "=")
                )
        arguments.append(f"{name}={value}" if kind == "=" else value)
    if rest is not UNSET and (listed or takes_key):
        # Values by position are an array, and what travels beside params needs an object.
        why = (
            "beside other parameters cannot be told apart in JSON"
            if listed
            else "leaves a command no place for its idempotency key"
        )
        raise UsageError(
            f"{method}: *{rest_name} {why}; make it a list: {rest_name}: list[{type_name(rest)}]"
        )
    # Compiled, because the attribute loads of a fixed call are what makes a small request cheap.
    called, known = f"handler({', '.join(arguments)})", {"handler": handler}
    call: Adapter = eval("lambda p, ctx, tx: " + called.format(p="p"), known)
    call_message = eval("lambda m: " + called.format(p="m.params"), known)
    return Parameters(
        method,
        tuple(listed),
        rest=rest,
        rest_name=rest_name,
        context=context,
        transaction=transaction,
        connection=connection,
        returns=returns,
        takes_key=takes_key,
        ignore_unknown=ignore_unknown,
        nestings=nestings,
        beside=beside,
        call=call,
        call_message=call_message,
    )


def _signature(handler: Callable[..., Any], method: str) -> list[tuple[str, str, Any]]:
    """List (name, kind, default) of each parameter; `*`, `**` and `=` (by name only) are kinds."""
    if not isinstance(handler, types.FunctionType) or hasattr(handler, "__wrapped__"):
        return _inspected(handler, method)
    # Plain functions, nearly all there are, spare a cold start the import of inspect.
    code = handler.__code__
    names = code.co_varnames
    count, named = code.co_argcount, code.co_kwonlyargcount
    defaults = handler.__defaults__ or ()
    missing = (_NO_DEFAULT,) * (count - len(defaults))
    found = [
        (name, "", default) for name, default in zip(names[:count], missing + defaults, strict=True)
    ]
    if found and found[0][0] == "self" and "self" not in handler.__annotations__:
        raise UsageError(
            f"{method} is a method without its object: register it on an instance,"
            f" service.query(instance.{handler.__name__})"
        )
    after = count + named
    if code.co_flags & _CO_VARARGS:
        found.append((names[after], "*", _NO_DEFAULT))
    for name in names[count:after]:
        found.append((name, "=", (handler.__kwdefaults__ or {}).get(name, _NO_DEFAULT)))
    if code.co_flags & _CO_VARKEYWORDS:
        found.append((names[after + bool(code.co_flags & _CO_VARARGS)], "**", _NO_DEFAULT))
    return found


_CO_VARARGS, _CO_VARKEYWORDS = 0x04, 0x08
_NO_DEFAULT: Any = object()
"""What a parameter has that callers must give. `UNSET` may be a default of the handler's own."""


def _inspected(handler: Callable[..., Any], method: str) -> list[tuple[str, str, Any]]:
    import inspect

    kinds: dict[Any, str] = {
        inspect.Parameter.VAR_POSITIONAL: "*",
        inspect.Parameter.KEYWORD_ONLY: "=",
        inspect.Parameter.VAR_KEYWORD: "**",
    }
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        raise UsageError(
            f"{method}: Python cannot tell its parameters; wrap it in a def with type hints"
        ) from None
    return [
        (
            p.name,
            kinds.get(p.kind, ""),
            _NO_DEFAULT if p.default is inspect.Parameter.empty else p.default,
        )
        for p in signature.parameters.values()
    ]


def _hints(handler: Any, method: str, scope: Mapping[str, Any]) -> dict[str, Any]:
    target = handler
    while hasattr(target, "func"):  # a functools.partial
        target = target.func
    if not hasattr(target, "__code__") and not isinstance(target, type):
        target = type(target).__call__
    try:
        return get_type_hints(target, localns=dict(scope), include_extras=True)
    except NameError as error:
        raise UsageError(
            f"{method}: the hint {error.name!r} is not known where the function stands;"
            " import or define it above"
        ) from None
    except (AttributeError, SyntaxError) as error:
        raise UsageError(f"{method}: a hint cannot be read: {error}") from None


def _check_parameter(name: str, hint: Any, method: str) -> float:
    """Refuse what cannot be decoded; return how deep a value can nest."""
    if name.startswith("__"):
        raise UsageError(f"{method}: {name} is a name for Python's own use; choose another")
    try:
        described = msgspec.inspect.type_info(hint)
        parts = list(_parts(described, set()))
    except (TypeError, ValueError, NameError) as error:
        raise UsageError(f"{method}: parameter {name} cannot be decoded: {error}") from None
    if (foreign := next(_foreign(parts), None)) is not None:
        raise UsageError(
            f"{method}: parameter {name} holds {foreign.__name__}, which JSON cannot carry;"
            " use a dataclass, a msgspec.Struct, plain types, or Any for whatever comes"
        )
    if _has_keys_that_are_no_text(parts):
        raise UsageError(f"{method}: parameter {name} holds a dict {_KEYS_ARE_TEXT}")
    return _nesting(described)


def _check_returns(hint: Any, method: str) -> None:
    try:
        parts = list(_parts(msgspec.inspect.type_info(hint), set()))
    except (TypeError, ValueError, NameError):
        # More can be sent than can be told apart when it comes: look at the parts one by one.
        for part in get_args(hint):
            _check_returns(part, method)
        return
    if (foreign := next(filter(_never_sent, _foreign(parts)), None)) is not None:
        raise UsageError(
            f"{method}: it returns {foreign.__name__}, which JSON cannot carry; return a dataclass,"
            " a msgspec.Struct or plain types, or say Any if it is one of them after all"
        )
    if _has_keys_that_are_no_text(parts):
        raise UsageError(f"{method}: it returns a dict {_KEYS_ARE_TEXT}")


def _never_sent(cls: type) -> bool:
    """Tell whether no object of a class can be written, nor of a class that stands for others."""
    stands_for_others = (
        cls is object or getattr(cls, "__abstractmethods__", None) or hasattr(cls, "_is_protocol")
    )
    return not stands_for_others and not issubclass(cls, (dict, list, tuple, set, frozenset))


def _foreign(parts: Iterable[Any]) -> Iterator[type]:
    """Find the classes in a type that msgspec cannot make out of JSON."""
    return (part.cls for part in parts if isinstance(part, msgspec.inspect.CustomType))


def _has_keys_that_are_no_text(parts: Iterable[Any]) -> bool:
    return any(
        isinstance(part, msgspec.inspect.DictType) and isinstance(part.key_type, _NO_TEXT)
        for part in parts
    )


def _parts(described: Any, seen: set[int]) -> Iterator[Any]:
    """Go through a type and all that it is made of."""
    if isinstance(described, tuple):
        for part in described:
            yield from _parts(part, seen)
    elif isinstance(described, _DESCRIPTIONS) and id(described) not in seen:
        seen.add(id(described))  # a type may hold itself
        yield described
        yield from _parts(msgspec.structs.astuple(described), seen)


def _nesting(described: Any) -> float:
    """Say how deep a value can nest, if its type reads every byte of it."""
    if isinstance(described, _SCALARS):
        return 0
    match described:
        case msgspec.inspect.UnionType(types=parts):
            return max(map(_nesting, parts))
        case msgspec.inspect.DictType(key_type=key, value_type=value):
            return 1 + max(_nesting(key), _nesting(value))
        case msgspec.inspect.CollectionType(item_type=item):
            return 1 + _nesting(item)
    return UNKNOWN  # an object may have members that its type does not name


def _shallow(hint: Any) -> tuple[Any, float] | None:
    """Put a type that does not nest deep in place of one that takes anything; None if it is none.

    A hint that holds such a one further inside stays as it is.
    """
    value: Any = shallow_json()
    if hint is Any:
        return value, SHALLOW
    if hint in (list, list[Any]):
        return list[value], 1 + SHALLOW
    if hint in (dict, dict[str, Any]):
        return dict[str, value], 1 + SHALLOW
    return None


_SCALARS = (
    msgspec.inspect.NoneType,
    msgspec.inspect.BoolType,
    msgspec.inspect.IntType,
    msgspec.inspect.FloatType,
    msgspec.inspect.StrType,
    msgspec.inspect.EnumType,
    msgspec.inspect.LiteralType,
)
_DESCRIPTIONS = (msgspec.inspect.Type, msgspec.inspect.Field)
_NO_TEXT = (
    msgspec.inspect.NoneType,
    msgspec.inspect.BoolType,
    msgspec.inspect.CollectionType,
    msgspec.inspect.TupleType,
    msgspec.inspect.DictType,
    msgspec.inspect.NamedTupleType,
    msgspec.inspect.TypedDictType,
    msgspec.inspect.DataclassType,
    msgspec.inspect.StructType,
)
_KEYS_ARE_TEXT = (
    "whose keys JSON cannot carry: there they are text, which numbers and enums can be written as;"
    " use a list of pairs"
)
