"""`@service.around` and `@service.on` as hooks, so that the engine has one kind of middleware.

What is registered on a service is around the methods of that service and of those that it includes.
The server's own methods are not among them: `Server(hooks=[...])` is around those as well.
"""

from collections.abc import Awaitable, Callable
from contextlib import contextmanager
from functools import partial
from typing import Any, get_args

from msgspec import Raw

from duet_rpc.around.providers import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR, code_flags
from duet_rpc.engine.steps import drive
from duet_rpc.errors import UsageError
from duet_rpc.hooks import Event, Hooks, Invocation
from duet_rpc.service import Method, Service

Next = Callable[[Invocation], Any]
Around = Callable[[Invocation, Next], Any]


def make_hooks(service: Service) -> tuple[Hooks, ...]:
    """Make the hooks of what is registered on a service; none if nothing is."""
    hooks: list[Hooks] = [EventListener(*each) for each in service.listeners]
    if service.middleware:
        hooks.append(ServiceMiddleware(service))
    return tuple(hooks)


class EventListener(Hooks):
    """Calls a function with the events of one class."""

    def __init__(self, kind: type, function: Callable[[Any], object]) -> None:
        self._kind = kind
        self._function = function

    def on(self, event: Event) -> None:
        """See `Hooks.on`."""
        if isinstance(event, self._kind):
            self._function(event)


class ServiceMiddleware(Hooks):
    """Runs around each method what is registered around it."""

    def __init__(self, service: Service) -> None:
        self._chains = {
            method.name: [
                _adapt(each.thing, method)
                for each in reversed(service.middleware)
                if each.holds_for(method.name)
            ]
            for method in service
        }

    def around(self, call: Invocation, next: Callable[[Invocation], Raw]) -> Any:
        """See `Hooks.around`."""
        return self._chain(call, next)(call)

    async def around_async(
        self, call: Invocation, next: Callable[[Invocation], Awaitable[Raw]]
    ) -> Any:
        """See `Hooks.around_async`."""
        return await self._chain(call, next)(call)

    def _chain(self, call: Invocation, step: Next) -> Next:
        for around in self._chains[call.method]:
            step = partial(_apply, around, step)
        return step


def check_around(function: Any) -> None:
    """Refuse what cannot be around a handler."""
    if not callable(function):
        raise UsageError(f"middleware is a function, not {function!r}: write @service.around alone")
    flags = code_flags(function)
    name = getattr(function, "__name__", repr(function))
    if flags & CO_ASYNC_GENERATOR:
        raise UsageError(
            f"{name} is an async generator; make it a def that yields once, or an"
            " async def of (call, next)"
        )
    code = getattr(function, "__code__", None)
    wanted = 1 if flags & CO_GENERATOR else 2
    if code is not None and code.co_argcount != wanted + hasattr(function, "__self__"):
        takes = "(call)" if wanted == 1 else "(call, next)"
        raise UsageError(f"{name}: middleware takes {takes}, or (call) if it yields once")


def check_event(kind: Any) -> None:
    """Refuse what is no class of events."""
    if kind not in get_args(Event):
        names = ", ".join(each.__name__ for each in get_args(Event))
        raise UsageError(f"{kind!r} is no class of events; there are {names} in duet_rpc.hooks")


def _adapt(function: Any, method: Method) -> Around:
    """Make middleware of a function; raise `UsageError` if it would leave the method out."""
    flags = code_flags(function)
    if flags & CO_GENERATOR:
        manage = contextmanager(function)
        return partial(_run if method.is_async else _run_inside, manage)
    if bool(flags & CO_COROUTINE) == method.is_async:
        around: Around = function
        return around
    kinds = ("async def", "def") if method.is_async else ("def", "async def")
    raise UsageError(
        f"{function.__name__} is around handlers that are {kinds[1]}, and {method.name} is"
        f" {kinds[0]}: write it as a generator that takes the call and yields once, which is around"
        " both, or as a subclass of duet_rpc.hooks.Hooks"
    )


def _apply(around: Around, next: Next, call: Invocation) -> Any:
    return around(call, next)


def _run_inside(manage: Callable[[Invocation], Any], call: Invocation, next: Next) -> Any:
    return drive(_run(manage, call, next, is_async=False))


async def _run(
    manage: Callable[[Invocation], Any], call: Invocation, next: Next, *, is_async: bool = True
) -> Any:
    """Run what is next inside of a context manager; suspends only if that is async."""
    failure: BaseException | None = None
    try:
        with manage(call):
            try:
                return await next(call) if is_async else next(call)
            except BaseException as error:
                failure = error
                raise
        assert failure is not None, "nothing but an exception leads here"
        raise failure  # middleware that catches it has no result in its place
    finally:
        del failure
