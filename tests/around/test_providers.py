"""What a lifespan or a dependency may be, and which mistakes show where: when they are declared, or
when the service is about to be served."""

import sqlite3
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass
from typing import Annotated, Any, Generic, NewType, TypeVar

import pytest

from duet_rpc import Context, Injected, Server, Service, Transaction
from duet_rpc.around.providers import Provider
from duet_rpc.errors import UsageError
from duet_rpc.policy import SPEC
from tests.helpers import exchange

T = TypeVar("T")


class Pool: ...


class Cache: ...


Address = NewType("Address", str)


class Table(Generic[T]): ...


@dataclass
class Settings:
    url: str


@dataclass
class State:
    pool: Pool


def generator() -> Iterator[Pool]:
    yield Pool()


def long_generator() -> Generator[Pool, None, None]:
    yield Pool()


async def async_generator() -> AsyncIterator[Pool]:
    yield Pool()


@contextmanager
def manager() -> Iterator[Pool]:
    yield Pool()


@asynccontextmanager
async def async_manager() -> AsyncIterator[Pool]:
    yield Pool()


def returns_manager() -> AbstractContextManager[Pool]:
    return manager()


def returns_async_manager() -> AbstractAsyncContextManager[Pool]:
    return async_manager()


class Opener:
    def __call__(self) -> Iterator[Pool]:
        yield Pool()


FORMS: list[Callable[..., Any]] = [
    generator,
    long_generator,
    async_generator,
    manager,
    async_manager,
    returns_manager,
    returns_async_manager,
    Opener(),
]


def declare(function: Any, role: str = "lifespan") -> Provider:
    service = Service()
    getattr(service, role)(function)
    return service.providers[0]


@pytest.mark.parametrize("role", ["lifespan", "dependency"])
@pytest.mark.parametrize("form", FORMS)
def test_the_forms_of_a_provider(form: Callable[..., Any], role: str) -> None:
    provider = declare(form, role)
    assert (provider.provides, provider.form, dict(provider.needs)) == ((Pool,), "manager", {})
    assert provider.is_async == ("async" in provider.name)


def test_a_dependency_may_return_its_value() -> None:
    def pool() -> Pool:
        return Pool()

    async def async_pool() -> Pool:
        return Pool()

    assert not declare(pool, "dependency").is_async
    assert declare(async_pool, "dependency").is_async
    with pytest.raises(UsageError, match="pool: a lifespan is a generator that yields once"):
        declare(pool)


def test_several_types_of_one_provider() -> None:
    def both() -> Iterator[tuple[Pool, Cache]]:
        yield Pool(), Cache()

    def state() -> Iterator[State]:
        yield State(Pool())

    def nothing() -> Iterator[None]:
        yield

    def address() -> Iterator[Address]:
        yield Address("db.example")

    assert declare(address).provides == (Address,)
    assert declare(both).provides == (Pool, Cache)
    assert declare(state).provides == (State,)
    assert declare(nothing).provides == ()


def no_annotation():  # type: ignore[no-untyped-def]
    yield Pool()


def wrong_annotation() -> Pool:  # type: ignore[misc]
    yield Pool()


def plain() -> Iterator[int]:
    yield 1


def general() -> Iterator[dict[str, int]]:
    yield {}


def context() -> Iterator[Context]:
    yield from ()


def transaction() -> Iterator[Transaction]:
    yield from ()


def untyped(size) -> Iterator[Pool]:  # type: ignore[no-untyped-def]
    yield Pool()


def with_default(size=3) -> Iterator[Pool]:  # type: ignore[no-untyped-def]
    yield Pool()


def unknown() -> "Iterator[Missing]":  # type: ignore[name-defined]  # noqa: F821
    yield from ()


def of_a_request(ctx: Context) -> Iterator[Pool]:
    yield Pool()


@pytest.mark.parametrize(
    ("function", "advice"),
    [
        (7, "a lifespan is a function, not 7: write @service.lifespan alone"),
        (no_annotation, "say by its annotation what it provides: -> Iterator[Pool]"),
        (wrong_annotation, "wrong_annotation yields, so it is annotated Iterator[...]"),
        (plain, "plain provides int: parameters are injected by their type"),
        (general, "provide a class, or a NewType, that says what is meant"),
        (context, "context provides Context: parameters are injected by their type"),
        (transaction, "transaction provides Transaction"),
        (unknown, "the hint 'Missing' is not known where the function stands; import"),
        (of_a_request, "a lifespan runs before there is a request, so it has no Context"),
    ],
)
def test_a_mistake_shows_at_declaration(function: Any, advice: str) -> None:
    with pytest.raises(UsageError) as caught:
        declare(function)
    assert advice in str(caught.value)


@pytest.mark.parametrize("function", [untyped, with_default])
def test_a_parameter_without_a_type_is_refused(function: Any) -> None:
    with pytest.raises(UsageError, match="parameter size has no type to be injected by"):
        declare(function, "dependency")


def test_two_providers_of_one_type_are_refused() -> None:
    service, other = Service(), Service()
    service.lifespan(generator)
    with pytest.raises(UsageError, match="generator and manager both provide Pool"):
        service.dependency(manager)
    other.lifespan(manager)
    with pytest.raises(UsageError, match="generator and manager both provide Pool"):
        service.include(other)


def test_a_service_that_is_included_twice_provides_once() -> None:
    common, one, two, app = Service(), Service("one"), Service("two"), Service()
    common.lifespan(generator)
    one.include(common)
    two.include(common)
    app.include(one)
    app.include(two)
    assert len(app.providers) == 1


# What only the whole service shows.


def served(*providers: Callable[..., Any], role: str = "lifespan") -> Service:
    service = Service("s")
    for provider in providers:
        getattr(service, role)(provider)
    return service


def refusal(service: Service, **options: Any) -> str:
    with pytest.raises(UsageError) as caught:
        Server(service, **options)
    return str(caught.value)


def served_alone(handler: Callable[..., Any]) -> Service:
    service = served()
    service.query(handler)
    return service


@pytest.mark.clause("dependencies-2")
def test_a_type_that_nothing_provides_is_refused_at_the_start() -> None:
    service = served()

    @service.query
    def get(pool: Pool) -> None: ...

    said = refusal(service)
    assert "s.get: nothing provides Pool for pool, which JSON cannot carry" in said
    assert "@service.lifespan or @service.dependency (-> Iterator[Pool])" in said

    @service.query
    def configured(settings: Injected[Settings]) -> None: ...

    said = refusal(served_alone(configured))
    assert "s.configured: nothing provides Settings for settings: declare it" in said


def test_the_provider_may_be_declared_after_the_handler_and_in_another_service() -> None:
    notes, app = Service("notes"), Service()

    @notes.query
    def get(pool: Pool) -> None: ...

    app.include(notes)
    app.lifespan(generator)
    Server(app)


def test_generic_types_are_told_apart_by_their_arguments() -> None:
    def numbers() -> Iterator[Table[int]]:
        yield Table()

    service = served(numbers)

    @service.query
    def right(table: Table[int]) -> None: ...

    Server(service)

    @service.query
    def wrong(table: Table[str]) -> None: ...

    assert "s.wrong: nothing provides" in refusal(service)


@pytest.mark.clause("dependencies-3")
def test_a_type_that_json_can_carry_has_to_be_marked() -> None:
    def settings() -> Iterator[Settings]:
        yield Settings("x")

    service = served(settings)

    @service.query
    def marked(settings: Injected[Settings]) -> None: ...

    Server(service)
    method = service.get("s.marked")
    assert method is not None and method.parameters.listed == ()

    @service.query
    def bare(settings: Settings) -> None: ...

    said = refusal(service)
    assert "s.bare: settings could come from the caller or from settings" in said
    assert "write settings: Injected[Settings]" in said


@pytest.mark.clause("dependencies-3")
def test_a_connection_of_the_service_is_told_from_the_stores() -> None:
    def connection() -> Iterator[sqlite3.Connection]:
        yield sqlite3.connect(":memory:")

    service = served(connection, role="dependency")

    @service.query
    def marked(db: Injected[sqlite3.Connection]) -> None: ...

    Server(service)

    @service.query
    def bare(db: sqlite3.Connection) -> None: ...

    assert "write db: Injected[sqlite3.Connection]" in refusal(service, store="sqlite:///x.db")


def test_a_def_cannot_wait_for_an_async_dependency() -> None:
    service = served(async_generator, role="dependency")

    @service.query
    async def waits(pool: Pool) -> None: ...

    Server(service)

    @service.query
    def cannot(pool: Pool) -> None: ...

    assert "s.cannot is a def, which cannot wait for async_generator" in refusal(service)


def test_a_lifespan_is_given_what_those_above_it_yield() -> None:
    def cache(pool: Pool) -> Iterator[Cache]:
        yield Cache()

    assert "cache: nothing before it provides Pool for pool" in refusal(served(cache, generator))
    Server(served(generator, cache))


def test_dependencies_that_need_each_other_are_refused() -> None:
    def pool(cache: Cache) -> Pool:
        return Pool()

    def cache(pool: Pool) -> Cache:
        return Cache()

    service = served(pool, cache, role="dependency")

    @service.query
    def get(pool: Pool) -> None: ...

    assert "dependencies need each other: pool -> cache -> pool" in refusal(service)


def test_a_dependency_asks_for_what_is_provided() -> None:
    def cache(pool: Pool) -> Cache:
        return Cache()

    service = served(cache, role="dependency")

    @service.query
    def get(cache: Cache) -> None: ...

    assert "cache: nothing provides Pool for pool" in refusal(service)


def test_only_what_is_provided_can_be_overridden() -> None:
    service = served(generator)
    Server(service, override={Pool: object()})
    assert "override: nothing in the service provides Cache" in refusal(
        service, override={Cache: object()}
    )
    assert "nothing in the service provides Pool" in refusal(Service(), override={Pool: 1})


@pytest.mark.clause("dependencies-1")
def test_injected_parameters_are_no_part_of_the_interface() -> None:
    service = served(generator)

    @service.query
    def get(
        id: int,
        pool: Pool,
        again: Annotated[Pool, "the same"],
        *,
        cache: "Injected[Settings]",
        address: Injected[Address],
    ) -> None: ...

    method = service.get("s.get")
    assert method is not None
    assert [parameter.name for parameter in method.parameters.listed] == ["id"]
    assert method.parameters.injected == {
        "pool": Pool,
        "again": Pool,
        "cache": Settings,
        "address": Address,
    }


@pytest.mark.clause("dependencies-1")
def test_a_caller_cannot_send_what_is_injected() -> None:
    def settings() -> Settings:
        return Settings("ours")

    service = served(settings, role="dependency")

    @service.query
    def url(settings: Injected[Settings]) -> str:
        return settings.url

    ours, theirs = exchange(
        SPEC,
        service,
        b'{"jsonrpc":"2.0","id":1,"method":"s.url"}',
        b'{"jsonrpc":"2.0","id":2,"method":"s.url","params":{"settings":{"url":"theirs"}}}',
    )
    assert b'"result":"ours"' in ours
    assert b'"code":-32602' in theirs


@pytest.mark.clause("dependencies-8")
def test_methods_that_ask_for_nothing_stay_as_they_are() -> None:
    from duet_rpc.around.dependencies import Dependencies

    service = served(generator)

    @service.query
    def plain(a: int) -> int:
        return a

    @service.query
    def asks(a: int, pool: Pool) -> int:
        return a

    dependencies = Dependencies(service)
    bound = dependencies.bind(service, dependencies.make_values())
    assert bound.get("s.plain") is service.get("s.plain")
    assert bound.get("s.asks") is not service.get("s.asks")
