"""Lifespans and dependencies where a program serves in its own loop: tests, and `Server.serve`."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from duet_rpc import Client, Context, RpcError, Server, Service, Unix, blocking, testing
from duet_rpc.errors import InternalError, UsageError
from duet_rpc.policy import SPEC


class Pool:
    def __init__(self, name: str = "real") -> None:
        self.name = name


class Cache: ...


class Session:
    def __init__(self, pool: Pool) -> None:
        self.pool = pool


class Closed(RpcError):
    code, message = 7, "Closed"


def make_service(said: list[str]) -> Service:
    service = Service()

    @service.lifespan
    async def pool() -> AsyncIterator[Pool]:
        said.append("pool opens")
        yield Pool()
        await asyncio.sleep(0)
        said.append("pool closes")

    @service.lifespan
    def cache(pool: Pool) -> Iterator[Cache]:
        said.append(f"cache of {pool.name} opens")
        yield Cache()
        said.append("cache closes")

    @service.dependency
    def session(pool: Pool) -> Iterator[Session]:
        said.append("session opens")
        yield Session(pool)
        said.append("session closes")

    @service.query
    def name(pool: Pool, cache: Cache) -> str:
        assert isinstance(cache, Cache)
        return pool.name

    @service.query(inline=True)
    def name_inline(pool: Pool) -> str:
        return pool.name

    @service.query
    async def name_of_session(session: Session) -> str:
        return session.pool.name

    return service


OPENED = ["pool opens", "cache of real opens"]
CLOSED = ["cache closes", "pool closes"]


@pytest.mark.clause("lifespan-1")
async def test_lifespans_run_for_as_long_as_a_test_is_connected() -> None:
    said: list[str] = []
    async with testing.connect(make_service(said)) as client:
        assert said == OPENED
        assert await client.query("name") == await client.query("name_inline") == "real"
        assert said == OPENED, "no one asked for a session"
        assert await client.query("name_of_session") == "real"
    assert said == [*OPENED, "session opens", "session closes", *CLOSED]


@pytest.mark.clause("lifespan-1")
def test_lifespans_run_for_a_blocking_test_too() -> None:
    said: list[str] = []
    with testing.connect_blocking(make_service(said)) as client:
        assert client.query("name_of_session") == "real"
    assert said == [*OPENED, "session opens", "session closes", *CLOSED]


@pytest.mark.clause("lifespan-1")
async def test_lifespans_run_while_a_server_serves(tmp_path: Path) -> None:
    said: list[str] = []
    server = Server(make_service(said), policy=SPEC)
    started: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    endpoint = Unix(tmp_path / "s")
    serving = asyncio.create_task(server.serve(endpoint, on_start=started.set_result))
    async with Client.connect(await started) as client:
        assert said == OPENED
        assert await client.query("name") == "real"
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert said == [*OPENED, *CLOSED]


@pytest.mark.clause("dependencies-6")
async def test_what_is_overridden_is_not_opened() -> None:
    said: list[str] = []
    override = {Pool: Pool("fake"), Cache: Cache()}
    async with testing.connect(make_service(said), override=override) as client:
        assert await client.query("name") == "fake"
        assert await client.query("name_of_session") == "fake"
    assert said == ["session opens", "session closes"]
    override = {Session: Session(Pool("fake"))}
    async with testing.connect(make_service(said := []), override=override) as client:
        assert await client.query("name_of_session") == "fake"
    assert said == [*OPENED, *CLOSED]


@pytest.mark.clause("dependencies-6")
def test_a_blocking_test_overrides_too() -> None:
    said: list[str] = []
    override = {Pool: Pool("fake")}
    with testing.connect_blocking(make_service(said), override=override) as client:
        assert client.query("name") == "fake"
    assert said == ["cache of fake opens", "cache closes"]


async def test_one_of_two_values_of_a_lifespan_may_be_overridden() -> None:
    service = Service()

    @service.lifespan
    def both() -> Iterator[tuple[Pool, Cache]]:
        yield Pool(), Cache()

    @service.query
    def name(pool: Pool, cache: Cache) -> str:
        return f"{pool.name} {type(cache).__name__}"

    async with testing.connect(service, override={Pool: Pool("fake")}) as client:
        assert await client.query("name") == "fake Cache"


async def test_a_tuple_has_a_value_for_each_type() -> None:
    service = Service()

    @service.lifespan
    def both() -> Iterator[tuple[Pool, Cache]]:
        yield (Pool(),)  # type: ignore[misc]

    with pytest.raises(ValueError, match="shorter"):
        async with testing.connect(service):
            raise AssertionError("it is not served")


def failing_service(said: list[str]) -> Service:
    service = make_service(said)

    class Broker: ...

    @service.lifespan
    async def broker() -> AsyncIterator[Broker]:
        raise ConnectionRefusedError("no broker")
        yield Broker()

    return service


@pytest.mark.clause("lifespan-2")
async def test_a_lifespan_that_fails_to_start_raises_out_of_connect_and_serve(
    tmp_path: Path,
) -> None:
    said: list[str] = []
    with pytest.raises(ConnectionRefusedError, match="no broker") as caught:
        async with testing.connect(failing_service(said)):
            raise AssertionError("it is not served")
    assert caught.value.__notes__ == ["the lifespan broker failed to start; nothing is served"]
    assert said == OPENED, "those before it see the error at their yield"
    with pytest.raises(ConnectionRefusedError):
        await Server(failing_service(said)).serve(Unix(tmp_path / "s"))
    assert not (tmp_path / "s").exists()
    with pytest.raises(ConnectionRefusedError):
        with testing.connect_blocking(failing_service(said)):
            raise AssertionError("it is not served")


async def test_a_lifespan_that_fails_to_end_fails_the_test() -> None:
    service, said = Service(), list[str]()

    @service.lifespan
    def outer() -> Iterator[None]:
        try:
            yield
        finally:
            said.append("outer ends")

    @service.lifespan
    def inner() -> Iterator[None]:
        yield
        raise OSError("cannot flush")

    with pytest.raises(OSError, match="cannot flush"):
        async with testing.connect(service):
            pass
    assert said == ["outer ends"]
    with pytest.raises(OSError, match="cannot flush"):
        with testing.connect_blocking(service):
            pass


@pytest.mark.clause("lifespan-3")
async def test_handlers_have_ended_before_lifespans_do() -> None:
    service, said, asleep = Service(), list[str](), asyncio.Event()

    @service.lifespan
    async def pool() -> AsyncIterator[Pool]:
        yield Pool()
        said.append("closed")

    @service.query
    async def sleep(pool: Pool) -> None:
        asleep.set()
        try:
            await asyncio.sleep(600)
        finally:
            said.append(f"uses the {pool.name} one")

    async with testing.connect(service) as client:
        call = client.start("sleep")
        await asleep.wait()
    assert said == ["uses the real one", "closed"]
    assert call.done()


@pytest.mark.parametrize("connect", [Client.connect, blocking.Client.connect])
@pytest.mark.clause("lifespan-5")
def test_a_client_refuses_a_service_with_a_lifespan(connect: Any) -> None:
    with pytest.raises(UsageError, match="pool: a client runs no lifespan"):
        connect("unix:nowhere", service=make_service([]))


def test_every_start_has_values_of_its_own() -> None:
    service, made = Service(), list[Pool]()

    @service.lifespan
    def pool() -> Iterator[Pool]:
        made.append(Pool(str(len(made))))
        yield made[-1]

    @service.query
    def name(pool: Pool) -> str:
        return pool.name

    with testing.connect_blocking(service) as first, testing.connect_blocking(service) as second:
        assert (first.query("name"), second.query("name")) == ("0", "1")


# Dependencies.


@pytest.mark.clause("dependencies-5")
async def test_an_exception_that_a_dependency_catches_stands() -> None:
    service = Service()

    @service.dependency
    def session() -> Iterator[Session]:
        try:
            yield Session(Pool())
        except Closed:
            pass

    @service.query
    def use(session: Session) -> None:
        raise Closed()

    @service.query
    async def use_async(session: Session) -> None:
        raise Closed()

    async with testing.connect(service, errors=[Closed]) as client:
        for method in ("use", "use_async"):
            with pytest.raises(Closed):
                await client.query(method)


@pytest.mark.clause("dependencies-5")
@pytest.mark.parametrize("fails", ["handler", "opening", "closing"])
@pytest.mark.parametrize("kind", ["def", "async def"])
async def test_what_a_dependency_catches_is_seen_by_those_around_it(fails: str, kind: str) -> None:
    service, said = Service(), list[str]()

    class Careless:
        pass

    class Failing:
        pass

    @service.dependency
    def session() -> Iterator[Session]:
        try:
            yield Session(Pool())
            said.append("commit")
        except Closed:
            said.append("roll back")
            raise

    if kind == "def":

        @service.dependency
        def careless(session: Session) -> Iterator[Careless]:
            try:
                yield Careless()
            except Closed:
                said.append("catch")

    else:

        @service.dependency
        async def careless_async(session: Session) -> AsyncIterator[Careless]:
            try:
                yield Careless()
            except Closed:
                said.append("catch")

    @service.dependency
    def failing(careless: Careless) -> Iterator[Failing]:
        if fails == "opening":
            raise Closed()
        yield Failing()
        if fails == "closing":
            raise Closed()

    @service.query
    async def use(failing: Failing) -> str:
        if fails == "handler":
            raise Closed()
        return "a result"

    async with testing.connect(service, errors=[Closed]) as client:
        with pytest.raises(Closed):
            await client.query("use")
    assert said == ["catch", "roll back"]


@pytest.mark.clause("dependencies-5")
@pytest.mark.parametrize(("error", "raised"), [(Closed(), Closed), (OSError(), InternalError)])
async def test_a_dependency_that_fails_to_open_or_to_close_fails_the_request(
    error: Exception, raised: type[RpcError]
) -> None:
    service, ran = Service(), list[str]()

    @service.dependency
    def late() -> Iterator[Session]:
        yield Session(Pool())
        raise error

    @service.dependency
    def early() -> Pool:
        raise error

    @service.query
    def closes(session: Session) -> str:
        ran.append("closes")
        return "a result"

    @service.query
    def opens(pool: Pool) -> str:
        ran.append("opens")
        return "a result"

    async with testing.connect(service, errors=[Closed]) as client:
        for method in ("closes", "opens"):
            with pytest.raises(raised):
                await client.query(method)
    assert ran == ["closes"]


async def test_a_dependency_is_opened_once_for_a_request() -> None:
    service, opened = Service(), list[str]()

    class Users:
        def __init__(self, session: Session) -> None:
            self.session = session

    class Orders(Users): ...

    @service.dependency
    def users(session: Session) -> Users:
        return Users(session)

    @service.dependency
    async def orders(session: Session) -> Orders:
        return Orders(session)

    @service.dependency
    def session(ctx: Context) -> Session:
        opened.append(ctx.method)
        return Session(Pool())

    @service.query
    async def same(users: Users, orders: Orders, session: Session) -> bool:
        return users.session is orders.session is session

    async with testing.connect(service) as client:
        assert await client.query("same")
        assert opened == ["same"]
        assert await client.query("same")
        assert opened == ["same", "same"]


@pytest.mark.clause("dependencies-7")
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_dependency_closes_inside_the_transaction(is_async: bool, tmp_path: Path) -> None:
    service = Service()
    file = tmp_path / "s.db"
    seen: list[Any] = []

    def count() -> int:
        with sqlite3.connect(file) as db:
            return int(db.execute("select count(*) from notes").fetchone()[0])

    with sqlite3.connect(file) as db:
        db.execute("create table notes (text)")

    @service.dependency
    def session() -> Iterator[Session]:
        yield Session(Pool())
        seen.append(count())
        if len(seen) == 1:
            raise OSError("cannot close")

    def add(db: sqlite3.Connection, session: Session) -> None:
        db.execute("insert into notes values ('milk')")

    async def add_async(db: sqlite3.Connection, session: Session) -> None:
        add(db, session)

    service.command(name="add")(add_async if is_async else add)
    async with testing.connect(service, store=f"sqlite:///{file}") as client:
        with pytest.raises(InternalError):
            await client.command("add", key="one")
        assert (seen, count()) == ([0], 0), "nothing was committed, and nothing is"
        await client.command("add", key="one")
        assert (seen, count()) == ([0, 0], 1)
        await client.command("add", key="one")
        assert (seen, count()) == ([0, 0], 1), "a recorded outcome opens nothing"
