"""The signature of one handler: what it takes and returns, and how it is called.

Read once, at registration, from the function itself. Parameters that the runtime fills in, a
`Context` and a transaction, are kept apart from those that callers give.
"""

import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args, get_type_hints

import msgspec
from msgspec import UNSET

from duet_rpc.around.injection import injected_type
from duet_rpc.context import Context, transaction_type
from duet_rpc.errors import UsageError
from duet_rpc.methods.hints import check_parameter, check_returns
from duet_rpc.methods.names import WholeMark, read_name, take_mark
from duet_rpc.wire.params import KEY, META

Adapter = Callable[[Any, Context | None, Any], Any]
"""Calls a handler: decoded params, context, transaction."""


class Parameter(msgspec.Struct, frozen=True):
    """One parameter as callers see it."""

    name: str
    """On the wire."""
    hint: Any
    required: bool
    default: Any = None
    positional: bool = True
    argument: str = ""
    """What the handler calls it."""


def fresh_default(value: Any) -> Any:
    """Give a default to msgspec; one that a handler could change is copied for each call."""
    match value:
        case list() | dict() | set() | bytearray():
            return msgspec.field(default_factory=value.copy)
        case msgspec.Struct():
            return msgspec.field(default_factory=lambda: msgspec.structs.replace(value))
    return value


class CallSource(msgspec.Struct, frozen=True):
    """The call of a handler as Python text, from which adapters are compiled.

    Compiled, because the attribute loads of a fixed call are what makes a small request cheap.
    """

    call: str
    known: Mapping[str, Any]

    def compile(self, arguments: str, *, params: str = "p", **known: Any) -> Callable[..., Any]:
        """Compile a function of these arguments that calls the handler."""
        names = {**self.known, **known}
        compiled: Callable[..., Any] = eval(
            f"lambda {arguments}: {self.call.format(p=params)}", names
        )
        return compiled


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """What a handler takes and returns, and how it is called."""

    listed: tuple[Parameter, ...]
    """The parameters that callers give."""
    rest: Any
    """The hint of `*args`, or UNSET."""
    rest_name: str | None
    is_whole: bool
    """Whether the one parameter takes all params as they are."""
    context: str | None
    transaction: str | None
    connection: str
    """The type of connection that the transaction is asked for by, or empty for any."""
    returns: Any
    nestings: Mapping[str, float]
    """How deep the value of each parameter can nest."""
    injected: Mapping[str, Any]
    """The parameters that are given what the service provides, and by which type."""
    source: CallSource


def read_signature(
    handler: Callable[..., Any],
    method: str,
    scope: Mapping[str, Any],
    *,
    takes_key: bool,
    rule: Callable[[str], str] = str,
) -> Signature:
    """Read a handler's signature. Raises `UsageError` for what cannot be served."""
    hints = _read_hints(handler, method, scope)
    returns = hints.pop("return", Any)
    check_returns(returns, method)
    listed: list[Parameter] = []
    rest: Any = UNSET
    rest_name = context = transaction = None
    connection = ""
    is_whole = False
    arguments: list[str] = []
    nestings: dict[str, float] = {}
    injected: dict[str, Any] = {}
    known: dict[str, Any] = {"handler": handler}
    for name, kind, default in _list_parameters(handler, method):
        hint = hints.get(name, Any)
        if kind == "**":
            raise UsageError(
                f"{method}: **{name} tells callers nothing; name the parameters one by one,"
                " or take one of type dict"
            )
        if kind != "*" and (provided := injected_type(hint)) is not None:
            injected[name] = provided
            value = f"given[t{len(injected)}]"
            known[f"t{len(injected)}"] = provided
        elif hint is Context or Context in get_args(hint):
            context, value = name, "ctx"
        elif (wanted := transaction_type(hint)) is not None:
            transaction, connection, value = name, wanted, "tx"
        else:
            wire_name, hint, takes_all = _read_marks(name, hint, method, takes_key, rule)
            nestings[wire_name] = check_parameter(name, hint, method)
            is_whole = is_whole or takes_all
            if kind == "*":
                rest, rest_name, value = hint, wire_name, "*{p}"
            else:
                required = default is _NO_DEFAULT
                default = None if required else default
                value = f"{{p}}.{name}"
                listed.append(Parameter(wire_name, hint, required, default, kind != "=", name))
        arguments.append(f"{name}={value}" if kind == "=" else value)
    if is_whole and (rest is not UNSET or len(listed) > 1):
        raise UsageError(f"{method}: a parameter that takes all params leaves none to others")
    _check_names(listed, method)
    if rest is not UNSET and (listed or takes_key):
        from duet_rpc.methods.wording import type_name

        # Values by position are an array, and what travels beside params needs an object.
        why = (
            "beside other parameters cannot be told apart in JSON"
            if listed
            else "leaves a command no place for its idempotency key"
        )
        raise UsageError(
            f"{method}: *{rest_name} {why}; make it a list: {rest_name}: list[{type_name(rest)}]"
        )
    return Signature(
        listed=tuple(listed),
        rest=rest,
        rest_name=rest_name,
        is_whole=is_whole,
        context=context,
        transaction=transaction,
        connection=connection,
        returns=returns,
        nestings=nestings,
        injected=injected,
        source=CallSource(f"handler({', '.join(arguments)})", known),
    )


def _read_marks(
    argument: str, hint: Any, method: str, takes_key: bool, rule: Callable[[str], str]
) -> tuple[str, Any, bool]:
    """Read what a hint says beside the type: the wire name, and whether it takes all params."""
    fixed = (META, KEY) if takes_key else (META,)
    try:
        whole, hint = take_mark(hint, WholeMark)
        name, hint = read_name(argument, hint, str if whole else rule, fixed)
    except UsageError as error:
        raise UsageError(f"{method}: parameter {argument}: {error}") from None
    if whole is None:
        return name, hint, False
    if argument in fixed or name != argument:
        raise UsageError(
            f"{method}: {argument} takes all params, which have no name; call it params"
        )
    return "params", hint, True


def _check_names(listed: Iterable[Parameter], method: str) -> None:
    arguments: dict[str, str] = {}
    for parameter in listed:
        other = arguments.setdefault(parameter.name, parameter.argument)
        if other != parameter.argument:
            raise UsageError(
                f"{method}: {other} and {parameter.argument} are both called {parameter.name} on"
                " the wire; give one of them another Name"
            )


def _list_parameters(handler: Callable[..., Any], method: str) -> list[tuple[str, str, Any]]:
    """List (name, kind, default) of each parameter; `*`, `**` and `=` (by name only) are kinds."""
    if not isinstance(handler, types.FunctionType) or hasattr(handler, "__wrapped__"):
        return _inspect_parameters(handler, method)
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


def _inspect_parameters(handler: Callable[..., Any], method: str) -> list[tuple[str, str, Any]]:
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


def _read_hints(handler: Any, method: str, scope: Mapping[str, Any]) -> dict[str, Any]:
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
