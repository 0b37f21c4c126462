"""Functions that provide what handlers are injected: read at registration, opened when needed.

A provider is a generator that yields once, a function that returns a context manager, or, for
dependencies alone, a function that returns the value. Its return annotation says which type it
provides; `tuple[Pool, Cache]` provides both.
"""

from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from functools import partial
from typing import Any, Literal, get_args, get_origin, get_type_hints

from msgspec import Struct

from duet_rpc.around.injection import is_own_class
from duet_rpc.context import Context, transaction_type
from duet_rpc.errors import UsageError

Role = Literal["lifespan", "dependency"]

_YIELDS = (Iterator, Generator, Iterable, AsyncIterator, AsyncGenerator, AsyncIterable)
_MANAGERS = (AbstractContextManager, AbstractAsyncContextManager)
CO_COROUTINE, CO_GENERATOR, CO_ASYNC_GENERATOR = 0x80, 0x20, 0x200


class Provider(Struct, frozen=True, eq=False, kw_only=True):
    """One function that provides values of its types."""

    name: str
    role: Role
    open: Callable[..., Any]
    """Called with what it needs; gives a context manager, or the value or a coroutine of it."""
    form: Literal["manager", "value"]
    is_async: bool
    provides: tuple[Any, ...]
    is_tuple: bool
    needs: Mapping[str, Any]
    """Its parameters, and the types that they are given by."""

    async def enter(
        self, stack: AsyncExitStack, given: dict[Any, Any], ctx: Context | None = None
    ) -> None:
        """Open it, have it closed with the stack, and add what it provides to what is given.

        Suspends only if it is async. An exception that it catches stands: there is no value in its
        place, and what was opened before it has to see it as well.
        """
        opened = self.open(
            **{name: ctx if kind is Context else given[kind] for name, kind in self.needs.items()}
        )
        if self.form == "value":
            value = await opened if self.is_async else opened
        elif self.is_async:
            value = await opened.__aenter__()
            stack.push_async_exit(partial(_close_async, opened))
        else:
            value = opened.__enter__()
            stack.push(partial(_close, opened))
        values = value if self.is_tuple else (value,) * len(self.provides)
        for kind, each in zip(self.provides, values, strict=True):
            # What a test gives in its place stays.
            given.setdefault(kind, each)


def _close(opened: Any, *raised: Any) -> None:
    opened.__exit__(*raised)


async def _close_async(opened: Any, *raised: Any) -> None:
    await opened.__aexit__(*raised)


def read_provider(function: Any, role: Role, scope: Mapping[str, Any]) -> Provider:
    """Read a function's signature; raise `UsageError` for one that cannot work."""
    if not callable(function):
        raise UsageError(f"a {role} is a function, not {function!r}: write @service.{role} alone")
    name = getattr(function, "__name__", repr(function))
    hints = _read_hints(function, name, scope)
    flags = code_flags(function)
    if not flags & (CO_GENERATOR | CO_ASYNC_GENERATOR) and hasattr(function, "__wrapped__"):
        # Behind @contextmanager is the generator itself.
        if code_flags(function.__wrapped__) & (CO_GENERATOR | CO_ASYNC_GENERATOR):
            function, flags = function.__wrapped__, code_flags(function.__wrapped__)
    if "return" not in hints:
        raise UsageError(
            f"{name}: say by its annotation what it provides: -> Iterator[Pool], or"
            " AsyncIterator[Pool] for an async def; Iterator[None] for nothing"
        )
    returned = hints.pop("return")
    origin = get_origin(returned)
    first = (*get_args(returned), None)[0]
    form: Literal["manager", "value"] = "manager"
    if flags & (CO_GENERATOR | CO_ASYNC_GENERATOR):
        if origin not in _YIELDS:
            raise UsageError(
                f"{name} yields, so it is annotated Iterator[...] or AsyncIterator[...]"
            )
        is_async = bool(flags & CO_ASYNC_GENERATOR)
        make: Any = asynccontextmanager if is_async else contextmanager
        opener, provided = make(function), first
    elif origin in _MANAGERS and not flags & CO_COROUTINE:
        opener, provided = function, first
        is_async = origin is AbstractAsyncContextManager
    elif role == "lifespan":
        raise UsageError(
            f"{name}: a lifespan is a generator that yields once, or returns a context manager"
            " (annotated AbstractContextManager[Pool] or AbstractAsyncContextManager[Pool])"
        )
    else:
        opener, provided, form = function, returned, "value"
        is_async = bool(flags & CO_COROUTINE)
    is_tuple = get_origin(provided) is tuple
    kinds = get_args(provided) if is_tuple else (provided,)
    kinds = tuple(kind for kind in kinds if kind not in (None, type(None)) or is_tuple)
    for kind in kinds:
        _check_provided(name, kind)
    return Provider(
        name=name,
        role=role,
        open=opener,
        form=form,
        is_async=is_async,
        provides=kinds,
        is_tuple=is_tuple,
        needs=_read_needs(function, name, role, hints),
    )


def code_flags(function: Any) -> int:
    """Tell what a function is, also behind partials and callable objects."""
    while hasattr(function, "func"):
        function = function.func
    if not hasattr(function, "__code__"):
        function = type(function).__call__
    return getattr(getattr(function, "__code__", None), "co_flags", 0)


def _read_hints(function: Any, name: str, scope: Mapping[str, Any]) -> dict[str, Any]:
    target = function
    while hasattr(target, "func"):
        target = target.func
    if not hasattr(target, "__code__") and not isinstance(target, type):
        target = type(target).__call__
    try:
        return get_type_hints(target, localns=dict(scope))
    except NameError as error:
        raise UsageError(
            f"{name}: the hint {error.name!r} is not known where the function stands;"
            " import or define it above"
        ) from None


def _check_provided(name: str, kind: Any) -> None:
    says_what = is_own_class(kind) or hasattr(kind, "__supertype__")  # a NewType
    if kind is Context or transaction_type(kind) == "" or not says_what:
        raise UsageError(
            f"{name} provides {_type_text(kind)}: parameters are injected by their type, so provide"
            " a class, or a NewType, that says what is meant"
        )


def _read_needs(function: Any, name: str, role: Role, hints: Mapping[str, Any]) -> dict[str, Any]:
    import inspect

    needs = {}
    for parameter in inspect.signature(function).parameters.values():
        kind = hints.get(parameter.name)
        if kind is None or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise UsageError(
                f"{name}: parameter {parameter.name} has no type to be injected by; annotate it"
                " with a type that the service provides"
            )
        if kind is Context and role == "lifespan":
            raise UsageError(
                f"{name}: a lifespan runs before there is a request, so it has no Context; a"
                " @service.dependency has one"
            )
        needs[parameter.name] = kind
    return needs


def _type_text(kind: Any) -> str:
    return getattr(kind, "__qualname__", None) or str(kind)
