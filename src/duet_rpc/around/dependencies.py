"""What a service provides, joined to the methods that ask for it, when it is about to be served.

`Dependencies` reads a whole service once and raises a `UsageError` for whatever cannot work: a type
that nothing provides, one that could come from a caller as well, a `def` that would have to await.
`bind` then gives each method that asks for something an adapter of its own. Every other method
stays the object that it was, so that it costs nothing.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from copy import copy
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from duet_rpc.around.exceptions import find_handlers, map_exceptions
from duet_rpc.around.injection import injected_type
from duet_rpc.context import Context, transaction_type
from duet_rpc.engine.steps import drive
from duet_rpc.errors import UsageError
from duet_rpc.methods.wording import type_name
from duet_rpc.service import Method, Service

if TYPE_CHECKING:
    from duet_rpc.around.providers import Provider
    from duet_rpc.methods.parameters import Parameters


class StoreReader(Protocol):
    """Gives queries a connection to the store, as a context manager."""

    def open(self) -> Any:
        """Lend one to a `def`."""
        ...

    def open_async(self) -> Any:
        """Lend one to an `async def`: an asynchronous context manager."""
        ...


def bind_alone(service: Service) -> Service:
    """Bind a service that no server serves: a client's, to which its server may call back."""
    dependencies = Dependencies(service)
    if dependencies.lifespans:
        name = dependencies.lifespans[0].name
        raise UsageError(
            f"{name}: a client runs no lifespan; open what its handlers need in the program itself,"
            " and register functions that hold it"
        )
    return dependencies.bind(service, {})


class Dependencies:
    """The lifespans of a service, and how each of its methods is given what it asks for."""

    def __init__(
        self,
        service: Service,
        *,
        override: Mapping[Any, Any] | None = None,
        reader: StoreReader | None = None,
    ) -> None:
        self._override = dict(override or {})
        self._reader = reader
        self._providers = {
            kind: provider for provider in service.providers for kind in provider.provides
        }
        for kind in self._override:
            if kind not in self._providers:
                raise UsageError(
                    f"override: nothing in the service provides {_name(kind)}; give a type that a"
                    " @service.lifespan or @service.dependency is annotated with"
                )
        self.lifespans: list[Provider] = self._order_lifespans(service)
        """Those that are to be started, in order."""
        self._plans = {method.name: self._plan(method) for method in service if method.asks}
        for method in service:
            self._check_ambiguity(method)

    @property
    def needs_loop(self) -> bool:
        """Whether a lifespan needs an event loop."""
        return any(provider.is_async for provider in self.lifespans)

    def make_values(self) -> dict[Any, Any]:
        """Make what lifespans add their values to, by type; one for each time it is served."""
        return dict(self._override)

    def bind(self, service: Service, values: dict[Any, Any]) -> Service:
        """Make a service whose methods are given what they ask for; lifespans fill the values."""
        bound = []
        for method in service:
            handlers = find_handlers(method, service)
            if not handlers and method.name not in self._plans:
                continue
            parameters = copy(method.parameters)
            if method.name in self._plans:
                self._bind_parameters(method, parameters, values)
            if handlers:
                map_exceptions(method, parameters, handlers)
            bound.append(replace(method, parameters=parameters))
        return service.with_methods(bound)

    # Reading the service.

    def _order_lifespans(self, service: Service) -> "list[Provider]":
        started: list[Provider] = []
        known = set(self._override)
        for provider in service.providers:
            if provider.role != "lifespan":
                continue
            if provider.provides and known.issuperset(provider.provides):
                continue  # a test gives all of it
            for name, kind in provider.needs.items():
                if kind not in known:
                    raise UsageError(
                        f"{provider.name}: nothing before it provides {_name(kind)} for {name}; a"
                        " lifespan is given what lifespans that are declared above it yield"
                    )
            known.update(provider.provides)
            started.append(provider)
        return started

    def _plan(self, method: Method) -> "list[Provider]":
        """List the dependencies that are opened for a method, in order."""
        plan: list[Provider] = []
        for name, kind in method.parameters.injected.items():
            if kind not in self._providers:
                is_foreign = injected_type(kind) is not None
                raise UsageError(
                    f"{method.name}: nothing provides {_name(kind)} for {name}"
                    f"{', which JSON cannot carry' if is_foreign else ''}: declare it with"
                    f" @service.lifespan or @service.dependency (-> Iterator[{_name(kind)}]); what"
                    " callers send is a dataclass, a msgspec.Struct, plain types, or Any for"
                    " whatever comes"
                )
            self._add_to(plan, kind, [])
        for provider in plan:
            if provider.is_async and not method.is_async:
                raise UsageError(
                    f"{method.name} is a def, which cannot wait for {provider.name}: make it an"
                    f" async def, or {provider.name} a def"
                )
        return plan

    def _add_to(self, plan: "list[Provider]", kind: Any, path: "list[Provider]") -> None:
        provider = self._providers[kind]
        if kind in self._override or provider.role == "lifespan" or provider in plan:
            return
        if provider in path:
            circle = " -> ".join(each.name for each in (*path, provider))
            raise UsageError(f"dependencies need each other: {circle}")
        for name, needed in provider.needs.items():
            if needed is Context:
                continue
            if needed not in self._providers:
                raise UsageError(
                    f"{provider.name}: nothing provides {_name(needed)} for {name}: declare it"
                    " with @service.lifespan or @service.dependency"
                )
            self._add_to(plan, needed, [*path, provider])
        plan.append(provider)

    def _check_ambiguity(self, method: Method) -> None:
        """Refuse a parameter that a caller could send although the service provides its type."""
        parameters = method.parameters
        for parameter in parameters.listed:
            if parameter.hint in self._providers:
                kind = _name(parameter.hint)
                raise UsageError(
                    f"{method.name}: {parameter.name} could come from the caller or from"
                    f" {self._providers[parameter.hint].name}, which provides {kind}: write"
                    f" {parameter.name}: Injected[{kind}] for the latter, and give what callers"
                    " send a class of its own"
                )
        if parameters.connection in map(transaction_type, self._providers):
            name = parameters.transaction
            raise UsageError(
                f"{method.name}: {name} could be the store's or the one that the service provides:"
                f" write {name}: Injected[{parameters.connection}] for the latter, and provide it"
                " by a class of its own where a method needs the store's"
            )

    # Binding.

    def _bind_parameters(
        self, method: Method, parameters: "Parameters", values: dict[Any, Any]
    ) -> None:
        plan, source = self._plans[method.name], parameters.source
        reads = method.reads_store
        if not plan and not reads:
            parameters.call = source.compile("p, ctx, tx", given=values)
            parameters.call_message = source.compile("m", params="m.params", given=values)
            return
        if any(Context in provider.needs.values() for provider in plan):
            parameters.context = parameters.context or "ctx"  # so that one is made
        call = source.compile("p, ctx, tx, given")
        lend = self._lend_to(method) if reads else None
        run = _open_around(call, plan, values, lend, is_async=method.is_async)
        if method.is_async:
            parameters.call = run
            return
        parameters.call = lambda p, ctx, tx: drive(run(p, ctx, tx))
        parameters.call_message = lambda m: drive(run(m.params, None, None))

    def _lend_to(self, method: Method) -> Callable[[], Any]:
        if self._reader is None:
            raise UsageError(
                f"{method.name}: {method.parameters.transaction} is a connection to the store, and"
                " there is none: give it with store= of Server"
            )
        return self._reader.open_async if method.is_async else self._reader.open


def _open_around(
    call: Callable[..., Any],
    plan: "Sequence[Provider]",
    values: Mapping[Any, Any],
    lend: Callable[[], Any] | None,
    *,
    is_async: bool,
) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Make what opens dependencies, calls the handler, and closes them in reverse order.

    It suspends only if something in it is async. Every dependency sees the exception of the
    handler, and of those that were opened after it, and may raise another.
    """

    async def run(params: Any, ctx: Context | None, tx: Any) -> Any:
        given = dict(values)
        async with AsyncExitStack() as stack:
            if lend is not None and is_async:
                tx = await stack.enter_async_context(lend())
            elif lend is not None:
                tx = stack.enter_context(lend())
            for provider in plan:
                await provider.enter(stack, given, ctx)
            result = call(params, ctx, tx, given)
            return await result if is_async else result

    return run


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", None) or type_name(kind)
