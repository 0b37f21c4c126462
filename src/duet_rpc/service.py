"""A named set of typed functions, ready to be called by name. It knows nothing of serving.

Everything that can be prepared is prepared when a function is registered: its parameter decoder,
the adapter that calls it, its description. Mistakes show there too, as a `UsageError` that says
what to do, and not when the first request comes.
"""

import enum
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

import msgspec

from duet_rpc.around.extensions import ServiceExtensions
from duet_rpc.collector import pause_collector
from duet_rpc.context import Context, Transaction
from duet_rpc.errors import (
    ErrorClasses,
    RpcError,
    UsageError,
    find_shared_codes,
    list_classes,
    pick_base,
)
from duet_rpc.kinds import DEDUPE_WINDOW, Dedupe, Promise, WhenSlow
from duet_rpc.methods.names import Rename, find_rule
from duet_rpc.options import SECONDS, check, is_number, is_seconds, is_text

if TYPE_CHECKING:
    from duet_rpc.methods.parameters import Parameters
    from duet_rpc.methods.tool_options import ToolOptions
    from duet_rpc.policy import Policy

F = TypeVar("F", bound=Callable[..., Any])
DeclaredErrors: TypeAlias = type[RpcError] | Iterable[type[RpcError]]
"""What a method is declared to raise: classes, or an abstract base class for all below it."""


class Errors:
    """The classes of a service's errors, as they are when somebody asks."""

    def __init__(self, service: "Service") -> None:
        self._service = service

    def get(self, code: int) -> type[RpcError] | None:
        """Find the one class for a code; None if there is none, or more than one."""
        return self._service._error_class(code)

    def __iter__(self) -> Iterator[type[RpcError]]:
        """Name one class for each code."""
        service = self._service
        declared = [cls for table in service._declared for cls in table.classes]
        found = [cls for classes in service._find_errors().values() for cls in classes]
        by_code: dict[int, type[RpcError]] = {}
        for cls in (*declared, *found):
            by_code.setdefault(cls.code, cls)
        return iter(by_code.values())


class Kind(enum.Enum):
    """What calling a method means."""

    QUERY = "query"
    """It changes nothing."""
    COMMAND = "command"
    """It has effects."""
    NOTIFICATION = "notification"
    """It tells something, and is never answered."""
    SUBSCRIPTION = "subscription"
    """It is answered at once, and then sends items until it ends."""


class Method(msgspec.Struct, frozen=True, kw_only=True):
    """A handler with its name, its rules and its prepared parameter decoder.

    It has more than fifteen fields because each thing that a decorator can say is one of them.
    """

    name: str
    handler: Callable[..., Any]
    kind: Kind
    parameters: "Parameters"
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
    when_slow: WhenSlow | None = None
    """What it does with a subscriber that is too slow; of subscriptions."""
    errors: tuple[type[RpcError], ...] = ()
    """The classes that it is declared to raise."""
    scopes: frozenset[str] = frozenset()
    """What a caller has to be allowed to."""
    dedupe_window: float | None = None
    """Seconds after its end in which a call with the same arguments repeats it; None if only a
    key tells. Of commands."""
    tool: Any = None
    """`ToolOptions`: how it appears among the tools of an agent, where that is said."""

    @property
    def reads_store(self) -> bool:
        """Whether it is no command and is given a connection to the store, to read."""
        return self.kind is not Kind.COMMAND and self.parameters.transaction is not None

    @property
    def asks(self) -> bool:
        """Whether it is given something that no caller sends and no ledger gives."""
        return bool(self.parameters.injected) or self.reads_store

    def list_errors(self) -> list[type[RpcError]]:
        """List the classes that it raises: those declared, and those found in its code."""
        from duet_rpc.methods.raised import find_errors  # here: a cold start does not ask

        declared = {cls.code for cls in self.errors}
        return [*self.errors, *(c for c in find_errors(self.handler) if c.code not in declared)]


class Service(ServiceExtensions):
    """A set of methods under one name, filled by decorators.

    `Service("notes")` serves its functions as `notes.get`, `notes.add`; `Service()` under their own
    names. A name given in the decorator is taken as it is. `errors` are classes that its handlers
    raise beside those that can be found in their code. `rename` is the rule by which parameters
    are named on the wire: `"camel"`, `"pascal"`, `"kebab"` or a function; a `Name` in a hint goes
    before it. `ignore_unknown` drops params that a function does not name, instead of refusing
    them; a method may say otherwise for itself.

    It has more than twenty methods because the decorators are what its users see.
    """

    def __init__(
        self,
        name: str = "",
        *,
        version: str = "",
        description: str = "",
        errors: Any = (),
        rename: Rename | None = None,
        ignore_unknown: bool = False,
    ) -> None:
        for option, value in (("name", name), ("version", version), ("description", description)):
            check(option, value, is_text(value), "a text")
        super().__init__()
        check("ignore_unknown", ignore_unknown, isinstance(ignore_unknown, bool), "True or False")
        self._rule = find_rule(rename)
        self._ignore_unknown = ignore_unknown
        self.name = name
        self.version = version
        self.description = description
        self._methods: dict[str, Method] = {}
        self._declared = [ErrorClasses(errors)]
        self._found: tuple[int, dict[int, set[type[RpcError]]]] = (0, {})

    @property
    def errors(self) -> "Errors":
        """The classes of its errors, by code: those declared, and those that its handlers name."""
        return Errors(self)

    def _error_class(self, code: int) -> type[RpcError] | None:
        declared = {cls for table in self._declared if (cls := table.get(code)) is not None}
        return pick_base(declared) if declared else pick_base(self._find_errors().get(code, ()))

    def _find_errors(self) -> dict[int, set[type[RpcError]]]:
        """Find the classes of each code that handlers raise without declaring it."""
        count = len(self._methods) + len(self.functions)
        if self._found[0] != count:
            from duet_rpc.methods.raised import find_errors  # here: a cold start does not ask

            found: dict[int, set[type[RpcError]]] = {}
            raised = [cls for method in self for cls in method.list_errors()]
            raised += [cls for function in self.functions for cls in find_errors(function)]
            for cls in raised:
                found.setdefault(cls.code, set()).add(cls)
            self._found = count, found
        return self._found[1]

    def check_errors(self) -> None:
        """Refuse handlers that raise two classes of one code: no caller could tell them apart.

        A code that is declared is the declared class's; what else has it is only named.
        """
        for code in find_shared_codes():
            if any(table.get(code) is not None for table in self._declared):
                continue
            classes = self._find_errors().get(code, set())
            if classes and pick_base(classes) is None:
                one, another, *_ = sorted(cls.__name__ for cls in classes)
                raise UsageError(
                    f"handlers of {self.name or 'this service'} name {one} and {another}, which"
                    f" have the same code, {code}; give one of them another code, or declare the"
                    " one that is raised: Service(errors=...)"
                )

    def _declare(self, declared: ErrorClasses) -> None:
        """Take error classes for this service's; two classes of one code are a `UsageError`."""
        for cls in declared.classes:
            for table in self._declared:
                known = table.get(cls.code)
                if known is not None and pick_base({known, cls}) is None:
                    raise UsageError(
                        f"errors: {known.__name__} and {cls.__name__} have the same code,"
                        f" {cls.code}; no caller of this service could tell them apart"
                    )
        self._declared.append(declared)

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
        """Serve the methods of another service as well; a name that both have is a `UsageError`.

        Its lifespans start after those that we have by now, and what it provides is provided to our
        methods too.
        Its middleware and exception handlers stay around its own methods; ours are around all.
        """
        for method in other:
            if method.name in self._methods:
                raise UsageError(f"both services define {method.name}; rename one of them")
        for declared in other._declared:
            self._declare(declared)
        self._methods.update(other._methods)
        self._adopt(other, other._methods)
        other.watchers.append(self.resource_updated)

    def with_fallback(self, other: "Service") -> "Service":
        """Make a service that has our methods, and those of `other` that we do not define."""
        both = Service(self.name, version=self.version, description=self.description)
        both._methods = {**other._methods, **self._methods}
        both._declared = self._declared
        both.watchers = self.watchers
        both._adopt(self, self._methods)
        both._adopt(other, other._methods.keys() - self._methods.keys())
        return both

    @property
    def needs_binding(self) -> bool:
        """Whether something has to be joined to its methods before they are served."""
        methods = [*self, *self.offered]
        return bool(self.providers or self.exception_handlers or any(m.asks for m in methods))

    def with_methods(self, methods: Iterable[Method]) -> "Service":
        """Make a service that has these methods instead of ours of the same names."""
        changed = self.with_fallback(Service())
        changed._methods.update((method.name, method) for method in methods)
        return changed

    def accepting(self, beside: Sequence[str]) -> "Service":
        """Make a service whose methods take these members beside their params, as `_meta` is taken.

        One that drops what it does not know, and has no answer or no context to read them for,
        stays as it is.
        """
        changed = []
        for method in self:
            parameters = method.parameters
            reads = parameters.context is not None and method.kind is not Kind.NOTIFICATION
            if reads or not parameters.ignores_unknown:
                accepting = parameters.accepting(beside)
                changed.append(msgspec.structs.replace(method, parameters=accepting))
        return self.with_methods(changed)

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
        ignore_unknown: bool | None = None,
        timeout: float | None = None,
        errors: DeclaredErrors = (),
        scopes: Iterable[str] = (),
        tool: "ToolOptions | None" = None,
    ) -> Callable[[F], F]: ...
    def query(
        self,
        handler: Any = None,
        *,
        name: str | None = None,
        description: str | None = None,
        notification_allowed: bool = False,
        inline: bool = False,
        ignore_unknown: bool | None = None,
        timeout: float | None = None,
        errors: DeclaredErrors = (),
        scopes: Iterable[str] = (),
        tool: "ToolOptions | None" = None,
    ) -> Any:
        """Register a function that changes nothing and may be called again freely.

        `inline` says that it is short and never blocks, so that it may run on the thread that
        reads; `ignore_unknown` takes params that the function does not name, and drops them;
        `errors` are classes that it raises, beside those that can be found in its code; `scopes`
        are what its caller has to be allowed to. An `async def` that yields is a stream: its caller
        takes the items as they come, or the list.
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
                errors=errors,
                scopes=scopes,
                tool=tool,
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
        ignore_unknown: bool | None = None,
        retry_safe: bool = False,
        dedupe: Dedupe | None = None,
        dedupe_window: float | None = None,
        timeout: float | None = None,
        errors: DeclaredErrors = (),
        scopes: Iterable[str] = (),
        tool: "ToolOptions | None" = None,
    ) -> Callable[[F], F]: ...
    def command(
        self,
        handler: Any = None,
        *,
        name: str | None = None,
        description: str | None = None,
        notification_allowed: bool = False,
        inline: bool = False,
        ignore_unknown: bool | None = None,
        retry_safe: bool = False,
        dedupe: Dedupe | None = None,
        dedupe_window: float | None = None,
        timeout: float | None = None,
        errors: DeclaredErrors = (),
        scopes: Iterable[str] = (),
        tool: "ToolOptions | None" = None,
    ) -> Any:
        """Register a function with effects.

        It runs at most once for each idempotency key. `retry_safe` declares that running it again
        does no harm; a parameter annotated `Transaction` makes it transactional.

        `dedupe="arguments"` is for callers that send no key, as most agents: a call without one has
        the same arguments as its key, so for `dedupe_window` seconds (600) after it ended the same
        call of the same principal does nothing and gets the same answer.
        """

        check("retry_safe", retry_safe, isinstance(retry_safe, bool), "True or False")
        window = _choose_window(dedupe, dedupe_window)

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
                errors=errors,
                scopes=scopes,
                tool=tool,
                dedupe_window=window,
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
        ignore_unknown: bool | None = None,
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
        ignore_unknown: bool | None = None,
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
                errors=(),
                ordered=not unordered,
            )
            return handler

        return register if handler is None else register(handler)

    @overload
    def subscription(self, handler: F, /) -> F: ...
    @overload
    def subscription(
        self,
        *,
        name: str | None = None,
        description: str | None = None,
        when_slow: WhenSlow = "lagged",
        ignore_unknown: bool | None = None,
        errors: DeclaredErrors = (),
        scopes: Iterable[str] = (),
    ) -> Callable[[F], F]: ...
    def subscription(
        self,
        handler: Any = None,
        *,
        name: str | None = None,
        description: str | None = None,
        when_slow: WhenSlow = "lagged",
        ignore_unknown: bool | None = None,
        errors: DeclaredErrors = (),
        scopes: Iterable[str] = (),
    ) -> Any:
        """Register an `async def` that yields, for as long as its caller is subscribed.

        The call is answered at once, and what is yielded is sent as it comes. The function has no
        slot meanwhile, and may wait for as long as it likes. `when_slow` says what happens when the
        subscriber does not keep up: the subscription ends with the error `lagged`, the oldest item
        is dropped (its number is missing then), or the function waits (`"lagged"`,
        `"drop-oldest"`, `"wait"`). With a parameter `resume_after: int = 0` it can go on after the
        item of that number; clients that reconnect send it.
        """

        slow = when_slow in ("lagged", "drop-oldest", "wait")
        check("when_slow", when_slow, slow, '"lagged", "drop-oldest" or "wait"')

        def register(handler: F) -> F:
            self._add(
                handler,
                Kind.SUBSCRIPTION,
                name=name,
                description=description,
                notification_allowed=False,
                inline=False,
                ignore_unknown=ignore_unknown,
                promise=None,
                timeout=None,
                errors=errors,
                scopes=scopes,
                when_slow=when_slow,
            )
            return handler

        return register if handler is None else register(handler)

    def _make_offered(
        self, function: Callable[..., Any], name: str, description: str | None
    ) -> Method:
        offered = Service(rename=self._rule)
        offered.query(name=name, description=description)(function)
        return offered._methods[name]

    def run(self, policy: "Policy | None" = None) -> None:
        """Serve this service on stdin and stdout until the peer ends it."""
        with pause_collector():
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
        ignore_unknown: bool | None,
        promise: Promise | None,
        timeout: float | None,
        errors: DeclaredErrors,
        scopes: Iterable[str] = (),
        ordered: bool = False,
        tool: "ToolOptions | None" = None,
        when_slow: WhenSlow | None = None,
        dedupe_window: float | None = None,
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
        listed = not isinstance(scopes, str) and all(is_text(each) for each in scopes)
        check(called + "scopes", scopes, listed, 'a list of texts: ["bank:write"]')
        if ignore_unknown is None:
            ignore_unknown = self._ignore_unknown
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
        if tool is not None:
            from duet_rpc.methods.tool_options import check_tool  # most services have none

            check_tool(full_name, tool)
        from duet_rpc.methods.parameters import Parameters  # a client has no methods

        flags = _code_flags(handler)
        streams = bool(flags & _CO_ASYNC_GENERATOR)
        parameters = Parameters.of(
            handler,
            full_name,
            takes_key=kind is Kind.COMMAND,
            ignore_unknown=ignore_unknown,
            scope=_caller_scope(),
            rule=_keep_resume(self._rule) if kind is Kind.SUBSCRIPTION else self._rule,
        )
        if parameters.transaction is not None and kind is not Kind.COMMAND:
            if not parameters.connection:
                raise UsageError(
                    f"{full_name}: only a command is given the transaction of the store; if it"
                    " changes something, register it with @service.command; if it only reads,"
                    " annotate the driver's connection: sqlite3.Connection, psycopg.Connection"
                )
        elif parameters.transaction is not None:
            if promise is Promise.RETRY_SAFE:
                raise UsageError(f"{full_name} is transactional, which needs no retry_safe=True")
            promise = Promise.TRANSACTIONAL
        if flags & _CO_GENERATOR:
            raise UsageError(f"{full_name} yields; make it an async def, or return a list")
        if kind is Kind.SUBSCRIPTION:
            if not streams:
                raise UsageError(
                    f"{full_name} does not yield: a subscription is an async generator"
                )
            from duet_rpc.engine.subscriptions import serve_as_subscription

            serve_as_subscription(parameters, full_name)
        elif streams:
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
            description = first_paragraph(handler.__doc__)
        classes = list_classes(errors)
        self._declare(ErrorClasses(classes))
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
            errors=classes,
            scopes=frozenset(scopes),
            streams=streams,
            tool=tool,
            when_slow=when_slow,
            dedupe_window=dedupe_window,
        )


_OFFERS = "duet_rpc.around.offers"
_CO_GENERATOR, _CO_COROUTINE, _CO_ASYNC_GENERATOR = 0x20, 0x80, 0x200


def _code_flags(handler: Any) -> int:
    """Tell what a function is, also behind partials and callable objects, without inspect."""
    while hasattr(handler, "func"):
        handler = handler.func
    if not hasattr(handler, "__code__"):
        handler = type(handler).__call__
    code = getattr(handler, "__code__", None)
    return 0 if code is None else code.co_flags


def _keep_resume(rule: Callable[[str], str]) -> Callable[[str], str]:
    """Make a rule for the names of params that leaves the one alone which clients know."""
    from duet_rpc.wire.subscriptions import RESUME

    return lambda name: name if name == RESUME else rule(name)


def _choose_window(dedupe: Any, window: Any) -> float | None:
    """Say for how long the same arguments are the same command; None if they never are."""
    check("dedupe", dedupe, dedupe in (None, "arguments"), 'None or "arguments"')
    if dedupe is None:
        unused = window is None
        check("dedupe_window", window, unused, 'dedupe="arguments" as well, or leave it out')
        return None
    if window is None:
        return DEDUPE_WINDOW
    sound = is_number(window) and 0 < window < inf
    check("dedupe_window", window, sound, "a number of seconds above 0")
    return float(window)


def first_paragraph(doc: str | None) -> str:
    """Take the first paragraph of a docstring as one line."""
    lines = (doc or "").strip().split("\n\n")[0].splitlines()
    return " ".join(line.strip() for line in lines)


def _caller_scope() -> dict[str, Any]:
    """Collect the local names where the decorator stands, for hints written as strings."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") in (__name__, _OFFERS):
        frame = frame.f_back
    return dict(frame.f_locals)


__all__ = ["Context", "Kind", "Method", "Promise", "Service", "Transaction"]
