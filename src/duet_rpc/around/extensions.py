"""What a service has beside its methods: lifespans, dependencies, middleware, error mapping.

`Service` inherits the decorators from here. They only keep what they are given; what it means for
each method is decided at the start, by `dependencies` and `middleware`.
"""

import sys
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from duet_rpc.around.offers import ServiceOffers
from duet_rpc.errors import RpcError, UsageError

if TYPE_CHECKING:
    from duet_rpc.around.providers import Provider, Role
    from duet_rpc.hooks import Event

F = TypeVar("F", bound=Callable[..., Any])
E = TypeVar("E", bound=Exception)
V = TypeVar("V", bound="Event")


class Scoped(Struct, frozen=True, eq=False):
    """Something that holds for the methods of one service, also where another includes it."""

    thing: Any
    methods: frozenset[str] | None = None
    """None for all methods of the service that has it."""

    def holds_for(self, method: str) -> bool:
        """Tell whether it holds for a method."""
        return self.methods is None or method in self.methods


class ServiceExtensions(ServiceOffers):
    """The decorators of a service that register no method."""

    def __init__(self) -> None:
        super().__init__()
        self.providers: list[Provider] = []
        """Lifespans and dependencies, in the order in which they were declared."""
        self.middleware: list[Scoped] = []
        """Functions around handlers, the outermost first."""
        self.exception_handlers: list[Scoped] = []
        """Pairs of an exception class and the function that makes an `RpcError` of it."""
        self.listeners: list[tuple[type, Callable[[Any], object]]] = []
        """Pairs of a class of events and the function that is called with them."""

    def lifespan(self, function: F, /) -> F:
        """Register what is open while the service is served: a pool, a cache, a model in memory.

        A generator that yields once, `def` or `async def`: what is before the yield runs before the
        first request is read, what is after it runs after the last handler has ended. A handler is
        given the value that it yields by its type, which the annotation names:
        `async def pool() -> AsyncIterator[Pool]`. Several are started in order, and ended in
        reverse order.
        """
        self._provide(function, "lifespan", dict(sys._getframe(1).f_locals))
        return function

    def dependency(self, function: F, /) -> F:
        """Register what is opened for each request whose handler asks for it, by its type.

        A function that returns the value, or a generator that yields it once; the rest of it runs
        when the handler has ended, before the answer is sent. Its parameters are `Context` or other
        types that the service provides.
        """
        self._provide(function, "dependency", dict(sys._getframe(1).f_locals))
        return function

    def around(self, function: F, /) -> F:
        """Register middleware around the methods of this service.

        A generator `def timing(call)` that yields once, where the handler runs, is around every
        handler; `def timing(call, next)` around those that are `def`, and `async def
        timing(call, next)` around those that are `async def`. `call` is an `Invocation` of
        `duet_rpc.hooks`. The first that is registered is the outermost.
        """
        from duet_rpc.around.middleware import check_around

        check_around(function)
        _register(self.middleware, function)
        return function

    def on(self, kind: type[V], /) -> Callable[[Callable[[V], object]], Callable[[V], object]]:
        """Register a function that is called with each event of a class of `duet_rpc.hooks`."""

        def register(function: Callable[[V], object]) -> Callable[[V], object]:
            self.listeners.append((kind, function))
            return function

        from duet_rpc.around.middleware import check_event

        check_event(kind)
        return register

    def exception_handler(
        self, kind: type[E], /
    ) -> Callable[[Callable[[E], RpcError | None]], Callable[[E], RpcError | None]]:
        """Register the function that makes an `RpcError` of an exception of a library.

        It is called where a handler of this service raises the exception, or one of a subclass;
        None leaves it unforeseen.
        """
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise UsageError(
                f"{kind!r} is no class of exceptions: @service.exception_handler(OSError)"
            )
        if issubclass(kind, RpcError):
            raise UsageError(f"{kind.__name__} is an RpcError, which is answered as it is")

        def register(
            function: Callable[[E], RpcError | None],
        ) -> Callable[[E], RpcError | None]:
            _register(self.exception_handlers, (kind, function))
            return function

        return register

    @property
    def functions(self) -> list[Callable[..., Any]]:
        """All that runs beside the methods, and may raise errors that callers get."""
        return [
            *(provider.open for provider in self.providers),
            *(each.thing for each in self.middleware),
            *(each.thing[1] for each in self.exception_handlers),
        ]

    def _provide(self, function: Any, role: "Role", scope: dict[str, Any]) -> None:
        from duet_rpc.around.providers import read_provider

        self._add_provider(read_provider(function, role, scope))

    def _add_provider(self, provider: "Provider") -> None:
        if provider in self.providers:
            return  # two services that are included may have included the same one
        for kind in provider.provides:
            for other in self.providers:
                if kind in other.provides:
                    raise UsageError(
                        f"{other.name} and {provider.name} both provide {kind.__name__}; parameters"
                        " are injected by their type, so give one of them a class of its own"
                    )
        self.providers.append(provider)

    def _adopt(self, other: "ServiceExtensions", methods: Collection[str]) -> None:
        """Take over what another service has; what is around its methods stays around those."""
        self.adopt_offers(other)
        for provider in other.providers:
            self._add_provider(provider)
        names = frozenset(methods)
        for mine, theirs in (
            (self.middleware, other.middleware),
            (self.exception_handlers, other.exception_handlers),
        ):
            mine += [
                each if each.methods is not None else Scoped(each.thing, names) for each in theirs
            ]
        self.listeners += other.listeners


def _register(things: list[Scoped], thing: Any) -> None:
    """Add a thing of our own: behind others of ours, and around those of included services."""
    own = sum(each.methods is None for each in things)
    things.insert(own, Scoped(thing))
