"""Objects whose methods are calls: typed by a `Protocol` class, or named by the `Service` itself.

An interface says by `@query` and `@command` what kind each method is; one that says nothing is
called once and never again. The kinds decide how a lost call is retried, so they belong to the
interface.
"""

import collections.abc
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from msgspec import UNSET

from duet_rpc.errors import ErrorClasses, UsageError, error_classes
from duet_rpc.methods.names import Rename, WholeMark, find_rule, read_name, take_mark
from duet_rpc.service import Kind, Service

F = TypeVar("F", bound=Callable[..., Any])
_KIND = "__duet_rpc_kind__"
_VERBS = {Kind.QUERY: "query", Kind.COMMAND: "command", Kind.NOTIFICATION: "notify"}


def query(method: F) -> F:
    """Mark a method of an interface as one that changes nothing."""
    setattr(method, _KIND, Kind.QUERY)
    return method


def command(method: F) -> F:
    """Mark a method of an interface as one with effects."""
    setattr(method, _KIND, Kind.COMMAND)
    return method


def notification(method: F) -> F:
    """Mark a method of an interface as one that is sent without waiting for an answer."""
    setattr(method, _KIND, Kind.NOTIFICATION)
    return method


class _Proxy:
    def __init__(self, title: str, methods: dict[str, Callable[..., Any]]) -> None:
        self.__dict__.update(methods)
        self._title = title

    def __repr__(self) -> str:
        return f"<proxy of {self._title}>"

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{self._title} has no method {name}")


def make_proxy(
    client: object, interface: Any, name: str, errors: Any = None, rename: Rename | None = None
) -> Any:
    """Make the proxy of an interface, whose methods the server has under `name.`."""
    rule = find_rule(rename)
    classes: ErrorClasses | None
    if isinstance(interface, Service):
        classes = error_classes(interface if errors is None else errors)
        prefix = f"{interface.name}." if interface.name else ""
        methods = {
            method.name.removeprefix(prefix): _calling(
                client,
                method.name,
                method.kind,
                _Arguments(
                    {each.argument: each.name for each in method.parameters.listed},
                    method.parameters.whole is not None,
                ),
                method.parameters.returns,
                classes,
            )
            for method in interface
        }
        return _Proxy(interface.name or "the service", methods)
    methods = {}
    classes = None if errors is None else error_classes(errors)
    for attribute in dir(interface):
        function = getattr(interface, attribute)
        if attribute.startswith("_") or not hasattr(function, "__code__"):
            continue
        code = function.__code__
        parameters = list(code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount])
        hints = get_type_hints(function, include_extras=True)
        arguments = _read_arguments({each: hints.get(each, Any) for each in parameters}, rule)
        methods[attribute] = _calling(
            client,
            f"{name}.{attribute}" if name else attribute,
            getattr(function, _KIND, None),
            arguments,
            _awaited(hints.get("return", Any)),
            classes,
        )
    if not methods:
        raise UsageError(
            f"{interface!r} has no methods to call; give a Protocol class or a Service"
        )
    return _Proxy(interface.__name__, methods)


class _Arguments(NamedTuple):
    """What a method of a proxy is called with."""

    names: dict[str, str]
    """Python's names, with those on the wire."""
    is_whole: bool
    """The one argument is all params."""


def _read_arguments(hints: dict[str, Any], rule: Callable[[str], str]) -> _Arguments:
    names = {argument: read_name(argument, hint, rule)[0] for argument, hint in hints.items()}
    return _Arguments(names, any(take_mark(hint, WholeMark)[0] for hint in hints.values()))


def _awaited(hint: Any) -> Any:
    """Say what comes of awaiting it, for interfaces that spell out their awaitables."""
    if get_origin(hint) in (collections.abc.Awaitable, collections.abc.Coroutine):
        return get_args(hint)[-1]
    return hint


def _calling(
    client: object,
    full_name: str,
    kind: Kind | None,
    arguments: _Arguments,
    returns: Any,
    errors: ErrorClasses | None,
) -> Callable[..., Any]:
    send = getattr(client, "call" if kind is None else _VERBS[kind])
    returns = type(None) if returns is None else returns
    options: dict[str, Any] = {} if errors is None else {"errors": errors}
    if kind is Kind.NOTIFICATION:
        options = {}
    else:
        options["returns"] = returns
    names = arguments.names

    def method(*args: Any, **kwargs: Any) -> Any:
        if len(args) > len(names):
            raise TypeError(f"{full_name} takes {len(names)} values, not {len(args)}")
        given = dict(zip(names, args, strict=False))
        for name, value in kwargs.items():
            if name not in names:
                raise TypeError(f"{full_name} has no parameter {name}")
            if name in given:
                raise TypeError(f"{full_name} was given {name} twice")
            given[name] = value
        params: Any = {names[name]: given[name] for name in given if given[name] is not UNSET}
        if arguments.is_whole:
            params = next(iter(params.values()), None)
        return send(full_name, params or None, **options)

    method.__name__ = full_name
    return method
