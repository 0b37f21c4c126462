"""A named set of typed functions, ready to be called by name. It knows nothing of serving.

Everything that can be prepared is prepared when a function is registered: its parameter decoder,
the adapter that calls it, its description. Mistakes show there too, as a `UsageError` that says
what to do, and not when the first request comes.
"""

import enum
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

from duet_rpc.context import Context, Transaction
from duet_rpc.engine.parameters import PARTIAL_TOKEN, Parameters
from duet_rpc.errors import ErrorClasses, RpcError, UsageError
from duet_rpc.kinds import Promise
from duet_rpc.options import SECONDS, check, is_seconds, is_text

if TYPE_CHECKING:
    from duet_rpc.policy import Policy

F = TypeVar("F", bound=Callable[..., Any])


class Errors:
    """The classes of a service's errors, as they are when somebody asks."""

    def __init__(self, service: "Service") -> None:
        self._service = service

    def get(self, code: int) -> type[RpcError] | None:
        """Find the one class for a code; None if there is none, or more than one."""
        return self._service._error_class(code)


def named_errors(handler: Any) -> list[type[RpcError]]:
    """List the error classes with a code that a handler names in its own code, to raise them."""
    while hasattr(handler, "__wrapped__") or hasattr(handler, "func"):
        handler = getattr(handler, "__wrapped__", None) or handler.func
    code = getattr(handler, "__code__", None)
    if code is None:
        return []
    scope = dict(handler.__globals__)
    for name, cell in zip(code.co_freevars, handler.__closure__ or (), strict=True):
        try:
            scope[name] = cell.cell_contents
        except ValueError:
            pass  # not bound yet
    named = [scope.get(name) for name in (*code.co_names, *code.co_freevars)]
    return [
        thing
        for thing in named
        if isinstance(thing, type)
        and issubclass(thing, RpcError)
        and thing.code != RpcError.code  # any method may fail, and a base class has no code
    ]


class Kind(enum.Enum):
    """What calling a method means."""

    QUERY = "query"
    """It changes nothing."""
    COMMAND = "command"
    """It has effects."""
    NOTIFICATION = "notification"
    """It tells something, and is never answered."""


class Method(msgspec.Struct, frozen=True, kw_only=True):
    """A handler with its name, its rules and its prepared parameter decoder."""

    name: str
    handler: Callable[..., Any]
    kind: Kind
    parameters: Parameters
    description: str
    notification_allowed: bool
    inline: bool
    is_async: bool
    promise: Promise | None
    """Set for commands only."""
    timeout: float | None
    """Seconds after which the server answers `deadline-exceeded`."""
    ordered: bool = False
    """No later message of its connection is started before it has ended; of notifications."""
    streams: bool = False
    """It yields its result item by item."""


class Service:
    """A set of methods under one name, filled by decorators.

    `Service("notes")` serves its functions as `notes.get`, `notes.add`; `Service()` under their own
    names. A name given in the decorator is taken as it is. `errors` are classes that its handlers
    raise without naming them, in functions that they call.
    """

    def __init__(
        self, name: str = "", *, version: str = "", description: str = "", errors: Any = ()
    ) -> None:
        for option, value in (("name", name), ("version", version), ("description", description)):
            check(option, value, is_text(value), "a text")
        self.name = name
        self.version = version
        self.description = description
        self._methods: dict[str, Method] = {}
        self._declared = [ErrorClasses(errors)]
        self._named: tuple[int, dict[int, type[RpcError] | None]] = (0, {})

    @property
    def errors(self) -> "Errors":
        """The classes of its errors, by code: those declared, and those that its handlers name."""
        return Errors(self)

    def _error_class(self, code: int) -> type[RpcError] | None:
        declared = {table.get(code) for table in self._declared} - {None}
        if declared:
            return declared.pop() if len(declared) == 1 else None
        if self._named[0] != len(self._methods):
            found: dict[int, type[RpcError] | None] = {}
            for method in self:
                for cls in named_errors(method.handler):
                    # Two classes for one code: nobody can tell which one was raised.
                    found[cls.code] = cls if found.get(cls.code, cls) is cls else None
            self._named = len(self._methods), found
        return self._named[1].get(code)

    def __iter__(self) -> Iterator[Method]:
        return iter(self._methods.values())

    def __len__(self) -> int:
        return len(self._methods)

    def __contains__(self, name: object) -> bool:
        return name in self._methods

    def get(self, name: str) -> Method | None:
        """Look up a method by its full name."""
        return self._methods.get(name)

    def include(self, other: "Service") -> None:
        """Serve the methods of another service as well; a name that both have is a `UsageError`."""
        for method in other:
            if method.name in self._methods:
                raise UsageError(f"both services define {method.name}; rename one of them")
            self._methods[method.name] = method
        self._declared += other._declared

    def with_fallback(self, other: "Service") -> "Service":
        """Make a service that has our methods, and those of `other` that we do not define."""
        both = Service(self.name, version=self.version, description=self.description)
        both._methods = {**other._methods, **self._methods}
        both._declared = self._declared
        return both

    @overload
    def query(self, handler: F, /) -> F: ...
    @overload
    def query(
        self,
        *,
        name: str | None = None,
        description: str | None = None,
        notification_allowed: bool = False,
        inline: bool = False,
        ignore_unknown: bool = False,
        timeout: float | None = None,
    ) -> Callable[[F], F]: ...
    def query(
        self,
        handler: Any = None,
        *,
        name: str | None = None,
        description: str | None = None,
        notification_allowed: bool = False,
        inline: bool = False,
        ignore_unknown: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Register a function that changes nothing and may be called again freely.

        `inline` says that it is short and never blocks, so that it may run on the thread that
        reads; `ignore_unknown` takes params that the function does not name, and drops them. An
        `async def` that yields is a stream: its caller takes the items as they come, or the list.
        """

        def register(handler: F) -> F:
            self._add(
                handler,
                Kind.QUERY,
                name=name,
                description=description,
                notification_allowed=notification_allowed,
                inline=inline,
                ignore_unknown=ignore_unknown,
                promise=None,
                timeout=timeout,
            )
            return handler

        return register if handler is None else register(handler)

    @overload
    def command(self, handler: F, /) -> F: ...
    @overload
    def command(
        self,
        *,
        name: str | None = None,
        description: str | None = None,
        notification_allowed: bool = False,
        inline: bool = False,
        ignore_unknown: bool = False,
        retry_safe: bool = False,
        timeout: float | None = None,
    ) -> Callable[[F], F]: ...
    def command(
        self,
        handler: Any = None,
        *,
        name: str | None = None,
        description: str | None = None,
        notification_allowed: bool = False,
        inline: bool = False,
        ignore_unknown: bool = False,
        retry_safe: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Register a function with effects.

        It runs at most once for each idempotency key. `retry_safe` declares that running it again
        does no harm; a parameter annotated `Transaction` makes it transactional.
        """

        check("retry_safe", retry_safe, isinstance(retry_safe, bool), "True or False")

        def register(handler: F) -> F:
            self._add(
                handler,
                Kind.COMMAND,
                name=name,
                description=description,
                notification_allowed=notification_allowed,
                inline=inline,
                ignore_unknown=ignore_unknown,
                promise=Promise.RETRY_SAFE if retry_safe else Promise.AT_MOST_ONCE,
                timeout=timeout,
            )
            return handler

        return register if handler is None else register(handler)

    @overload
    def notification(self, handler: F, /) -> F: ...
    @overload
    def notification(
        self,
        *,
        name: str | None = None,
        description: str | None = None,
        unordered: bool = False,
        inline: bool = False,
        ignore_unknown: bool = False,
        timeout: float | None = None,
    ) -> Callable[[F], F]: ...
    def notification(
        self,
        handler: Any = None,
        *,
        name: str | None = None,
        description: str | None = None,
        unordered: bool = False,
        inline: bool = False,
        ignore_unknown: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Register a function for messages that want no answer.

        It has ended before any later message of the same connection is started, so notifications
        keep their order, and a request sees what those before it did. `unordered` lets it run
        beside others.
        """

        check("unordered", unordered, isinstance(unordered, bool), "True or False")

        def register(handler: F) -> F:
            self._add(
                handler,
                Kind.NOTIFICATION,
                name=name,
                description=description,
                notification_allowed=True,
                inline=inline,
                ignore_unknown=ignore_unknown,
                promise=None,
                timeout=timeout,
                ordered=not unordered,
            )
            return handler

        return register if handler is None else register(handler)

    def run(self, policy: "Policy | None" = None) -> None:
        """Serve this service on stdin and stdout until the peer ends it."""
        from duet_rpc.server.server import Server

        Server(self, policy=policy).run_stdio()

    def _add(
        self,
        handler: Callable[..., Any],
        kind: Kind,
        *,
        name: str | None,
        description: str | None,
        notification_allowed: bool,
        inline: bool,
        ignore_unknown: bool,
        promise: Promise | None,
        timeout: float | None,
        ordered: bool = False,
    ) -> None:
        if not callable(handler):
            raise UsageError(
                f"a {kind.value} is a function, not {handler!r}; give options by name:"
                f" @service.{kind.value}(name=...)"
            )
        own_name = getattr(handler, "__name__", "")
        called = f"{name or own_name or kind.value}: "
        named = name is None or (is_text(name) and name != "")
        check(called + "name", name, named, "a text, or None for the function's own")
        said = description is None or is_text(description)
        check(called + "description", description, said, "a text, or None for the docstring's")
        check(called + "timeout", timeout, is_seconds(timeout), SECONDS)
        for option, value in (
            ("notification_allowed", notification_allowed),
            ("inline", inline),
            ("ignore_unknown", ignore_unknown),
        ):
            check(called + option, value, isinstance(value, bool), "True or False")
        full_name = name or (f"{self.name}.{own_name}" if self.name else own_name)
        if not full_name or own_name == "<lambda>" and name is None:
            raise UsageError(f"a handler without a name needs one: @service.{kind.value}(name=...)")
        if full_name in self._methods:
            raise UsageError(f"{full_name} is registered twice; give one of them another name=")
        flags = _code_flags(handler)
        streams = bool(flags & _CO_ASYNC_GENERATOR)
        parameters = Parameters.of(
            handler,
            full_name,
            takes_key=kind is Kind.COMMAND,
            ignore_unknown=ignore_unknown,
            scope=_caller_scope(),
            beside=(PARTIAL_TOKEN,) if streams else (),
        )
        if parameters.transaction is not None:
            if kind is not Kind.COMMAND:
                raise UsageError(
                    f"{full_name}: only a command is given the transaction of the store; if it"
                    " changes something, register it with @service.command; if it only reads, let"
                    " it open a connection of its own"
                )
            if promise is Promise.RETRY_SAFE:
                raise UsageError(f"{full_name} is transactional, which needs no retry_safe=True")
            promise = Promise.TRANSACTIONAL
        if flags & _CO_GENERATOR:
            raise UsageError(f"{full_name} yields; make it an async def, or return a list")
        if streams:
            if kind is not Kind.QUERY:
                raise UsageError(f"{full_name} yields: only a query streams; return a list instead")
            from duet_rpc.engine.streams import serve_as_stream

            serve_as_stream(parameters)
        is_async = streams or bool(flags & _CO_COROUTINE)
        if is_async and inline:
            raise UsageError(
                f"{full_name}: an async def runs on the event loop anyway; leave out inline=True"
            )
        if inline and timeout is not None:
            raise UsageError(
                f"{full_name} is inline: it runs on the thread that would have to tell of its"
                " timeout; leave out inline=True or timeout="
            )
        if description is None:
            description = _first_paragraph(handler.__doc__)
        self._methods[full_name] = Method(
            name=full_name,
            handler=handler,
            kind=kind,
            parameters=parameters,
            description=description,
            notification_allowed=notification_allowed,
            inline=inline,
            is_async=is_async,
            promise=promise,
            timeout=timeout,
            ordered=ordered,
            streams=streams,
        )


_CO_GENERATOR, _CO_COROUTINE, _CO_ASYNC_GENERATOR = 0x20, 0x80, 0x200


def _code_flags(handler: Any) -> int:
    """Tell what a function is, also behind partials and callable objects, without inspect."""
    while hasattr(handler, "func"):
        handler = handler.func
    if not hasattr(handler, "__code__"):
        handler = type(handler).__call__
    code = getattr(handler, "__code__", None)
    return 0 if code is None else code.co_flags


def _first_paragraph(doc: str | None) -> str:
    lines = (doc or "").strip().split("\n\n")[0].splitlines()
    return " ".join(line.strip() for line in lines)


def _caller_scope() -> dict[str, Any]:
    """Collect the local names where the decorator stands, for hints written as strings."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    return dict(frame.f_locals)


__all__ = ["Context", "Kind", "Method", "Promise", "Service", "Transaction"]
