"""Two services with one code in one process: no client raises the class of the other service."""

import pickle
import textwrap
from collections.abc import Callable
from pathlib import Path
from sys import executable
from typing import Any, Protocol

import pytest

from duet_rpc import Context, RpcError, Service, UsageError, command, query
from tests.runtime.faces import Face

pytestmark = pytest.mark.timeout(120)


class NoteNotFound(RpcError):
    code, message = 404, "Note not found"


class BankError(RpcError):
    """What everything is that goes wrong in the bank."""


class AccountNotFound(BankError):
    code, message = 404, "Account not found"


class AccountClosed(BankError):
    code, message = 410, "Account closed"


def notes_service() -> Service:
    service = Service("notes")

    @service.query
    def get(id: int) -> str:
        raise NoteNotFound(data={"id": id})

    return service


def look_up(id: int) -> int:
    if id == 0:
        raise AccountClosed
    raise AccountNotFound(data={"id": id})


def bank_service(**options: Any) -> Service:
    service = Service("bank", **options)

    @service.query
    def get(id: int) -> int:
        return look_up(id)

    @service.command
    def close(id: int) -> int:
        return look_up(id)

    return service


class Notes(Protocol):
    @query
    def get(self, id: int) -> str: ...


class Bank(Protocol):
    @query
    def get(self, id: int) -> int: ...
    @command
    def close(self, id: int) -> int: ...


SERVER = textwrap.dedent(
    """
    from duet_rpc import RpcError, Service

    app = Service()

    class Missing(RpcError):
        code, message = 404, "missing"

    @app.query(name="notes.get")
    @app.query(name="bank.get")
    def get(id: int) -> str:
        raise Missing(data={"id": id})

    @app.command(name="bank.close")
    def close(id: int) -> str:
        raise Missing(data={"id": id})

    app.run()
    """
)


@pytest.fixture
def server(tmp_path: Path) -> list[str]:
    """A server in another process, which knows nothing of our classes."""
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    return [executable, str(script)]


def raised(driver: Any, act: Callable[[Any], Any]) -> type[RpcError]:
    with pytest.raises(RpcError) as caught:
        driver.do(act)
    assert caught.value.code in (404, 410) and caught.value.from_peer
    twin = pickle.loads(pickle.dumps(caught.value))
    assert (type(twin), twin.data) == (type(caught.value), caught.value.data)
    return type(caught.value)


GET: dict[str, Any] = {"id": 7}


def test_without_classes_an_answer_is_an_rpc_error(face: Face, server: list[str]) -> None:
    driver = face.spawn(*server)
    assert raised(driver, lambda client: client.query("notes.get", GET)) is RpcError
    assert raised(driver, lambda client: client.proxy(Bank, "bank").get(7)) is RpcError


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ([NoteNotFound], NoteNotFound),
        (NoteNotFound, NoteNotFound),
        (BankError, AccountNotFound),
        ((AccountClosed, AccountNotFound), AccountNotFound),
        (AccountClosed, RpcError),
        (notes_service(), NoteNotFound),
        (bank_service(errors=BankError), AccountNotFound),
        ([notes_service(), AccountClosed], NoteNotFound),
        # Who serves both says by a proxy, or for a call, whose error it is.
        ([notes_service(), bank_service(errors=BankError)], RpcError),
    ],
)
def test_a_client_raises_the_classes_that_it_was_given(
    face: Face, server: list[str], errors: Any, expected: type[RpcError]
) -> None:
    driver = face.spawn(*server, errors=errors)
    for act in (
        lambda client: client.call("notes.get", GET),
        lambda client: client.query("notes.get", GET),
        lambda client: client.command("bank.close", GET),
        lambda client: client.proxy(Notes, "notes").get(7),
    ):
        assert raised(driver, act) is expected
    (item,) = driver.batch(lambda batch: [batch.query("notes.get", GET)])
    assert type(item.error()) is expected


def test_a_proxy_raises_the_classes_of_its_interface(face: Face, server: list[str]) -> None:
    driver = face.spawn(*server)
    notes, bank = notes_service(), bank_service(errors=[AccountNotFound])
    acts: list[tuple[Any, type[RpcError]]] = [
        (lambda client: client.proxy(notes).get(7), NoteNotFound),
        (lambda client: client.proxy(bank).get(7), AccountNotFound),
        (lambda client: client.proxy(bank).close(7), AccountNotFound),
        (lambda client: client.proxy(Bank, "bank", errors=BankError).get(7), AccountNotFound),
        (lambda client: client.proxy(Bank, "bank", errors=bank).close(7), AccountNotFound),
        (lambda client: client.proxy(Notes, "notes", errors=notes).get(7), NoteNotFound),
        (lambda client: client.query("bank.get", GET, errors=BankError), AccountNotFound),
        (lambda client: client.call("notes.get", GET, errors=notes), NoteNotFound),
        (lambda client: client.command("bank.close", GET, errors=BankError), AccountNotFound),
    ]
    for act, expected in acts:
        assert raised(driver, act) is expected


def test_a_proxy_comes_before_its_client(face: Face, server: list[str]) -> None:
    driver = face.spawn(*server, errors=NoteNotFound)
    bank = bank_service(errors=BankError)
    assert raised(driver, lambda client: client.proxy(bank).get(7)) is AccountNotFound
    assert raised(driver, lambda client: client.query("bank.get", GET)) is NoteNotFound
    others = Service("bank")
    others.query(name="bank.get")(lambda id: id)
    assert raised(driver, lambda client: client.proxy(others).get(7)) is NoteNotFound


def test_in_tests_the_client_knows_the_errors_of_its_service(face: Face) -> None:
    assert raised(face.connect(notes_service()), lambda c: c.query("notes.get", GET)) is (
        NoteNotFound
    )
    bank = bank_service(errors=BankError)
    driver = face.connect(bank)
    assert raised(driver, lambda client: client.query("bank.get", GET)) is AccountNotFound
    assert raised(driver, lambda client: client.query("bank.get", {"id": 0})) is AccountClosed
    # Its handlers do not name them: the function that they call does.
    undeclared = face.connect(bank_service())
    assert raised(undeclared, lambda client: client.query("bank.get", GET)) is AccountNotFound


@pytest.mark.clause("errors-14")
def test_a_method_declares_what_it_raises_unseen(face: Face) -> None:
    service = Service()

    def look(id: int, how: Callable[[int], int]) -> int:
        return how(id)

    looks = {"up": look_up}

    @service.query(errors=[AccountNotFound])
    def get(id: int) -> int:
        return look(id, looks["up"])

    @service.query
    def find(id: int) -> int:
        return look(id, looks["up"])

    driver = face.connect(service)
    # A code means the same in all of a service.
    assert raised(driver, lambda client: client.query("get", GET)) is AccountNotFound
    assert raised(driver, lambda client: client.query("find", GET)) is AccountNotFound
    assert raised(driver, lambda client: client.query("get", {"id": 0})) is RpcError


@pytest.mark.clause("errors-15")
def test_two_classes_of_one_code_are_refused_when_their_service_is_served(face: Face) -> None:
    service = Service("mixed")

    @service.query
    def get(id: int) -> None:
        raise AccountNotFound if id else NoteNotFound

    with pytest.raises(UsageError, match=r"mixed name AccountNotFound and NoteNotFound.*404"):
        face.connect(service)


@pytest.mark.clause("errors-15")
def test_a_class_that_is_declared_is_the_one_of_its_code(face: Face) -> None:
    service = Service(errors=NoteNotFound)

    @service.query
    def get(id: int) -> None:
        known = (AccountNotFound, AccountClosed)  # of another service
        raise NoteNotFound(data={"id": id, "others": len(known)})

    assert raised(face.connect(service), lambda client: client.query("get", GET)) is NoteNotFound


@pytest.mark.clause("errors-15")
def test_what_a_handler_only_catches_is_not_its_own(face: Face) -> None:
    service = Service()

    @service.query
    def get(id: int) -> int:
        try:
            return looks["up"](id)
        except (AccountNotFound, AccountClosed):
            raise NoteNotFound(data={"id": id}) from None

    looks = {"up": look_up}
    assert raised(face.connect(service), lambda client: client.query("get", GET)) is NoteNotFound


def test_a_service_has_the_errors_of_those_that_it_includes(face: Face) -> None:
    both = Service()
    both.include(bank_service(errors=BankError))
    assert raised(face.connect(both), lambda client: client.query("bank.get", GET)) is (
        AccountNotFound
    )


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_handler_that_calls_back_gets_the_errors_of_its_own_side(face: Face, kind: str) -> None:
    """The server's handler knows its service's classes, the client's handler its client's."""
    seen: list[type] = []
    server = Service(errors=NoteNotFound)

    def note(error: BaseException) -> str:
        seen.append(type(error))
        return type(error).__name__

    if kind == "def":

        @server.query
        def ask(ctx: Context) -> str:
            try:
                ctx.call("fail").result()
            except RpcError as error:
                return note(error)
            return "nothing"

    else:

        @server.query(name="ask")
        async def ask_later(ctx: Context) -> str:
            try:
                await ctx.call("fail")
            except RpcError as error:
                return note(error)
            return "nothing"

    @server.query(name="break")
    def break_(id: int) -> None:
        raise RpcError("the server's", code=404)

    client_service = Service()

    @client_service.query
    def fail() -> None:
        raise RpcError("the client's", code=404)

    @client_service.query
    def relay(ctx: Context) -> str:
        try:
            ctx.call("break", {"id": 1}).result()
        except RpcError as error:
            return note(error)
        return "nothing"

    @server.query
    async def through(ctx: Context) -> Any:
        return await ctx.call("relay")

    driver = face.connect(server, service=client_service, errors=AccountNotFound)
    assert driver.call("ask") == "NoteNotFound"
    assert driver.call("through") == "AccountNotFound"
    assert seen == [NoteNotFound, AccountNotFound]


@pytest.mark.parametrize("errors", ["NoteNotFound", 404, [ValueError], [NoteNotFound, BankError]])
def test_errors_that_cannot_work_are_refused_where_they_are_given(face: Face, errors: Any) -> None:
    with pytest.raises(UsageError, match="errors:"):
        face.connect(Service(), errors=errors)
    with pytest.raises(UsageError, match="errors:"):
        Service(errors=errors)
    driver = face.connect(notes_service())
    with pytest.raises(UsageError, match="errors:"):
        driver.do(lambda client: client.query("notes.get", GET, errors=errors))
    with pytest.raises(UsageError, match="errors:"):
        driver.do(lambda client: client.proxy(Notes, errors=errors))
