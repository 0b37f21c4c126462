"""Objects whose methods are calls: typed by a `Protocol` class, or named by the `Service` itself.

An interface says by `@query` and `@command` what kind each method is; one that says nothing is
called once and never again. The kinds decide how a lost call is retried, so they belong to the
interface. A method that returns an iterator is a stream.
"""

import collections.abc
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints, overload

from msgspec import UNSET

from duet_rpc.errors import ErrorClasses, UsageError, error_classes
from duet_rpc.methods.names import Rename, WholeMark, find_rule, read_name, take_mark
from duet_rpc.options import check
from duet_rpc.service import Kind, Method, Service

F = TypeVar("F", bound=Callable[..., Any])
_KIND, _NAME = "__duet_rpc_kind__", "__duet_rpc_name__"
_VERBS = {
    Kind.QUERY: "query",
    Kind.COMMAND: "command",
    Kind.NOTIFICATION: "notify",
    Kind.SUBSCRIPTION: "subscribe",
}
_CO_VARIADIC = 0x04
_STREAMS = (
    collections.abc.AsyncIterator,
    collections.abc.AsyncGenerator,
    collections.abc.AsyncIterable,
    collections.abc.Iterator,
    collections.abc.Generator,
)


@overload
def query(method: F, /) -> F: ...
@overload
def query(*, name: str | None = None) -> Callable[[F], F]: ...
def query(method: Any = None, /, *, name: str | None = None) -> Any:
    """Mark a method of an interface as one that changes nothing.

    `name` is its whole name at the server, if that is not made of the attribute's.
    """
    return _mark(Kind.QUERY, method, name)


@overload
def command(method: F, /) -> F: ...
@overload
def command(*, name: str | None = None) -> Callable[[F], F]: ...
def command(method: Any = None, /, *, name: str | None = None) -> Any:
    """Mark a method of an interface as one with effects; `name` as for `query`."""
    return _mark(Kind.COMMAND, method, name)


@overload
def notification(method: F, /) -> F: ...
@overload
def notification(*, name: str | None = None) -> Callable[[F], F]: ...
def notification(method: Any = None, /, *, name: str | None = None) -> Any:
    """Mark a method of an interface as one that is sent without waiting for an answer."""
    return _mark(Kind.NOTIFICATION, method, name)


@overload
def subscription(method: F, /) -> F: ...
@overload
def subscription(*, name: str | None = None) -> Callable[[F], F]: ...
def subscription(method: Any = None, /, *, name: str | None = None) -> Any:
    """Mark a method of an interface as one that is subscribed to: `-> Subscription[Item]`."""
    return _mark(Kind.SUBSCRIPTION, method, name)


def _mark(kind: Kind, method: Any, name: str | None) -> Any:
    is_name = name is None or (isinstance(name, str) and name != "")
    check("name", name, is_name, "the whole name of a method at the server")

    def mark(method: F) -> F:
        setattr(method, _KIND, kind)
        if name is not None:
            setattr(method, _NAME, name)
        return method

    return mark if method is None else mark(method)


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
    if isinstance(interface, Service):
        classes = error_classes(interface if errors is None else errors)
        prefix = f"{interface.name}." if interface.name else ""
        methods = {
            method.name.removeprefix(prefix): _calling(client, _read_method(method), classes)
            for method in interface
        }
        return _Proxy(interface.name or "the service", methods)
    rule = find_rule(rename)
    methods = {}
    for attribute in dir(interface):
        function = getattr(interface, attribute)
        if attribute.startswith("_") or not hasattr(function, "__code__"):
            continue
        called = f"{name}.{attribute}" if name else attribute
        remote = _read_function(function, getattr(function, _NAME, called), rule)
        methods[attribute] = _calling(
            client, remote, None if errors is None else error_classes(errors)
        )
    if not methods:
        raise UsageError(
            f"{interface!r} has no methods to call; give a Protocol class or a Service"
        )
    return _Proxy(interface.__name__, methods)


class _RemoteMethod(NamedTuple):
    """A method of the server, as a method of a proxy calls it."""

    name: str
    kind: Kind | None
    names: dict[str, str]
    """Python's names of its arguments, with those on the wire."""
    is_whole: bool
    """The one argument is all params."""
    is_variadic: bool
    """It takes any number of values, by position."""
    streams: bool
    returns: Any
    """The type of its result, or of an item of its stream."""


def _read_method(method: Method) -> _RemoteMethod:
    parameters = method.parameters
    streams = method.streams and method.kind is not Kind.SUBSCRIPTION
    return _RemoteMethod(
        method.name,
        method.kind,
        {each.argument: each.name for each in parameters.listed},
        parameters.whole is not None,
        parameters.rest is not UNSET,
        streams,
        (*get_args(parameters.returns), Any)[0] if streams else parameters.returns,
    )


def _read_function(function: Any, name: str, rule: Callable[[str], str]) -> _RemoteMethod:
    code = function.__code__
    parameters = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    hints = get_type_hints(function, include_extras=True)
    given = {each: hints.get(each, Any) for each in parameters}
    returns = _unwrap_awaitable(hints.get("return", Any))
    kind = getattr(function, _KIND, None)
    streams = (get_origin(returns) or returns) in _STREAMS and kind is not Kind.SUBSCRIPTION
    return _RemoteMethod(
        name,
        kind,
        {argument: read_name(argument, hint, rule)[0] for argument, hint in given.items()},
        any(take_mark(hint, WholeMark)[0] for hint in given.values()),
        bool(code.co_flags & _CO_VARIADIC),
        streams,
        (*get_args(returns), Any)[0] if streams or kind is Kind.SUBSCRIPTION else returns,
    )


def _unwrap_awaitable(hint: Any) -> Any:
    """Say what comes of awaiting it, for interfaces that spell out their awaitables."""
    if get_origin(hint) in (collections.abc.Awaitable, collections.abc.Coroutine):
        return get_args(hint)[-1]
    return hint


def _calling(client: Any, remote: _RemoteMethod, errors: ErrorClasses | None) -> Callable[..., Any]:
    full_name, names = remote.name, remote.names
    verb = "call" if remote.kind is None else _VERBS[remote.kind]
    send = client.stream if remote.streams else getattr(client, verb)
    options: dict[str, Any] = {} if errors is None else {"errors": errors}
    if remote.kind is Kind.NOTIFICATION:
        options = {}
    else:
        options["returns"] = type(None) if remote.returns is None else remote.returns

    def method(*args: Any, **kwargs: Any) -> Any:
        if remote.is_variadic and not kwargs:
            return send(full_name, list(args) or None, **options)
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
        if remote.is_whole:
            params = next(iter(params.values()), None)
        return send(full_name, params or None, **options)

    method.__name__ = full_name
    return method
