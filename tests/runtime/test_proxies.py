"""Typed proxies: a Protocol class or the Service itself becomes an object with methods."""

import dataclasses
import operator
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import Annotated, Any, Protocol

import pydantic
import pytest

from duet_rpc import MemoryStore, Name, Retry, Service, Whole, command, notification, query
from duet_rpc.errors import ConnectionLost, InvalidAnswer, InvalidParams, RpcError, UsageError
from tests.runtime.faces import PATIENCE, Face, Peer, Scripted, failure
from tests.transports.lines import eventually


@dataclasses.dataclass
class Account:
    name: str
    balance: int


class NoFunds(RpcError):
    code, message = 4712, "No funds"


class Base(Protocol):
    def ping(self) -> str: ...


class Bank(Base, Protocol):
    @query
    def account(self, name: str) -> Account: ...
    @command
    def pay(self, name: str, amount: int = 1) -> Account: ...
    def raw(self, name: str, *, loud: bool = False) -> Any: ...
    def forget(self, name: str) -> None: ...
    def wrong(self) -> int: ...


class AsyncBank(Protocol):
    @query
    async def account(self, name: str) -> Account: ...
    @command
    def pay(self, name: str, amount: int = 1) -> Awaitable[Account]: ...


def make_service(name: str = "bank") -> tuple[Service, list[Any]]:
    service, seen = Service(name), list[Any]()

    @service.query
    def ping() -> str:
        return "pong"

    @service.query
    def account(name: str) -> Account:
        return Account(name, 100)

    @service.command
    def pay(name: str, amount: int = 1) -> Account:
        seen.append(amount)
        if amount > 100:
            raise NoFunds(data={"short": amount - 100})
        return Account(name, 100 - amount)

    @service.query
    def raw(name: str, loud: bool = False) -> str:
        return name.upper() if loud else name

    @service.query
    def forget(name: str) -> None:
        return None

    @service.query
    def wrong() -> str:
        return "no number"

    return service, seen


def call(face: Face, interface: Any, method: str, *args: Any, name: str = "bank", **kw: Any) -> Any:
    service, _ = make_service(name)
    driver = face.connect(service, store=MemoryStore())
    return driver.do(lambda client: getattr(client.proxy(interface, name), method)(*args, **kw))


def test_results_are_what_the_interface_says(face: Face) -> None:
    assert call(face, Bank, "account", "ann") == Account("ann", 100)
    assert call(face, Bank, "pay", "ann", 30) == Account("ann", 70)
    assert call(face, Bank, "forget", "ann") is None
    assert call(face, Bank, "ping") == "pong", "inherited"
    with pytest.raises(InvalidAnswer):
        call(face, Bank, "wrong")


def test_an_async_interface_is_read_through_its_awaitables(face: Face) -> None:
    assert call(face, AsyncBank, "account", "ann") == Account("ann", 100)
    assert call(face, AsyncBank, "pay", "ann", amount=1) == Account("ann", 99)


def test_defaults_are_the_servers(face: Face) -> None:
    assert call(face, Bank, "pay", "ann") == Account("ann", 99)
    assert call(face, Bank, "raw", "ann", loud=True) == "ANN"


def test_errors_are_the_classes_of_their_codes(face: Face) -> None:
    with pytest.raises(NoFunds) as caught:
        call(face, Bank, "pay", "ann", 150)
    assert caught.value.data == {"short": 50}
    assert caught.value.idempotency_key, "a command was sent under a key"
    with pytest.raises(InvalidParams):
        call(face, Bank, "raw", 5)


def test_a_service_without_a_name(face: Face) -> None:
    assert call(face, Bank, "account", "ann", name="") == Account("ann", 100)


def test_the_service_itself_is_an_interface(face: Face) -> None:
    service, seen = make_service()
    driver = face.connect(service, store=MemoryStore())
    assert driver.do(lambda client: client.proxy(service).account("ann")) == Account("ann", 100)
    assert driver.do(lambda client: client.proxy(service).pay(name="ann", amount=5)).balance == 95
    assert seen == [5]
    assert "bank" in repr(driver.do(lambda client: client.proxy(service)))


@pytest.mark.parametrize(
    ("args", "named", "says"),
    [
        (("a", 1, 2), {}, "takes 2"),
        (("a",), {"name": "b"}, "twice"),
        (("a",), {"colour": "red"}, "no parameter colour"),
    ],
)
def test_wrong_arguments_are_type_errors(face: Face, args: Any, named: Any, says: str) -> None:
    service, seen = make_service()
    driver = face.connect(service, store=MemoryStore())
    with pytest.raises(TypeError, match=says):
        driver.do(lambda client: client.proxy(Bank, "bank").pay(*args, **named))
    assert seen == []


def test_what_is_no_interface(face: Face) -> None:
    driver = face.connect(make_service()[0])

    class Empty(Protocol):
        pass

    with pytest.raises(UsageError, match="no methods"):
        driver.do(lambda client: client.proxy(Empty))
    with pytest.raises(AttributeError, match="no method nope"):
        driver.do(lambda client: client.proxy(Bank, "bank").nope)


def test_kinds_decide_what_is_sent_again(face: Face) -> None:
    seen: list[Any] = []

    def dies(peer: Peer) -> None:
        seen.append(peer.request())

    def answers(peer: Peer) -> None:
        while (request := peer.read()) is not None:
            seen.append(request)
            peer.answer(request, b'{"name":"ann","balance":1}')

    for method, tries in (("account", 2), ("pay", 2), ("raw", 1)):
        seen.clear()
        driver = face.open(Scripted(dies, answers), retry=Retry(first_delay=0.01))
        invoke = operator.methodcaller(method, "ann")
        pending = driver.start(lambda client: invoke(client.proxy(Bank)))  # noqa: B023
        if tries == 1:
            assert isinstance(failure(pending), ConnectionLost)
        else:
            assert pending.result(PATIENCE) == Account("ann", 1)
        keys = {request["params"].get("idempotency_key") for request in seen}
        assert len(seen) == tries and len(keys) == 1
        assert (None in keys) == (method != "pay")
        driver.close()


def typed(bank: Bank) -> int:
    """Checked by mypy: a proxy is what its interface says."""
    return bank.account("ann").balance


async def typed_async(bank: AsyncBank) -> int:
    return (await bank.account("ann")).balance + (await bank.pay("ann")).balance


def test_proxies_are_typed() -> None:
    from duet_rpc import Client, blocking

    def sync(client: blocking.Client) -> int:
        return typed(client.proxy(Bank, "bank"))

    async def asynchronous(client: Client) -> int:
        return await typed_async(client.proxy(AsyncBank, "bank"))

    assert callable(sync) and callable(asynchronous)


class Search(pydantic.BaseModel):
    text: str
    max_items: int = pydantic.Field(default=3, alias="maxItems")


class Mail(Protocol):
    @query
    def find(self, sender: Annotated[str, Name("from")], max_items: int = 3) -> list[Any]: ...
    @query
    def search(self, params: Whole[Search]) -> Search: ...
    @command
    def keep(self, search: Search) -> Search: ...


def mail_service() -> Service:
    service = Service("mail", rename="camel")

    @service.query
    def find(sender: Annotated[str, Name("from")], max_items: int = 3) -> list[Any]:
        return [sender, max_items]

    @service.query
    def search(params: Whole[Search]) -> Search:
        return params

    @service.command
    def keep(search: Search) -> Search:
        return search

    return service


@pytest.mark.clause("params-1", "params-2")
@pytest.mark.parametrize("interface", [Mail, mail_service()], ids=["protocol", "service"])
def test_a_proxy_uses_the_names_on_the_wire(face: Face, interface: Any) -> None:
    driver = face.connect(mail_service())
    wanted = Search(text="a", maxItems=7)

    def proxy(client: Any) -> Any:
        return client.proxy(interface, "mail", rename="camel")

    assert driver.do(lambda client: proxy(client).find("ann", max_items=2)) == ["ann", 2]
    assert driver.do(lambda client: proxy(client).find(sender="ann")) == ["ann", 3]
    assert driver.do(lambda client: proxy(client).search(wanted)) == wanted
    assert driver.do(lambda client: proxy(client).search(params=wanted)) == wanted
    assert driver.do(lambda client: proxy(client).keep(wanted)) == wanted
    assert driver.do(lambda client: client.call("mail.search", wanted, returns=Search)) == wanted
    with pytest.raises(TypeError, match="has no parameter maxItems"):
        driver.do(lambda client: proxy(client).find("ann", maxItems=2))


def test_a_result_that_does_not_fit_a_model_is_no_answer(face: Face) -> None:
    driver = face.connect(mail_service())
    ask = {"from": "secret"}
    with pytest.raises(InvalidAnswer, match="a type's own check refused it") as caught:
        driver.do(lambda client: client.call("mail.find", ask, returns=Search))
    assert "secret" not in str(caught.value) and "pydantic" not in str(caught.value)


class Feed(Protocol):
    @query
    def count(self, n: int) -> AsyncIterator[Account]: ...
    @query(name="feed/total")
    async def total(self, *numbers: int) -> int: ...
    @notification(name="feed/rung")
    async def ring(self, times: int) -> None: ...


class BlockingFeed(Protocol):
    @query
    def count(self, n: int) -> Iterator[Account]: ...
    @query(name="feed/total")
    def total(self, *numbers: int) -> int: ...
    @notification(name="feed/rung")
    def ring(self, times: int) -> None: ...


@pytest.mark.clause("client-32")
@pytest.mark.parametrize("by", ["protocol", "service"])
def test_a_method_that_returns_an_iterator_is_a_stream(face: Face, by: str) -> None:
    service, rung = Service("feed"), list[int]()

    @service.query
    async def count(n: int) -> AsyncIterator[Account]:
        for number in range(n):
            yield Account("a", number)
        raise NoFunds()

    @service.query(name="feed/total")
    def total(*numbers: int) -> int:
        return sum(numbers)

    @service.notification(name="feed/rung")
    def ring(times: int) -> None:
        rung.append(times)

    interface: Any = Feed if face.name == "asyncio" else BlockingFeed
    driver = face.connect(service)

    def proxy(client: Any) -> Any:
        return client.proxy(service if by == "service" else interface, "feed")

    async def take_async(items: Any) -> list[Any]:
        found: list[Any] = []
        try:
            async for item in items:
                found.append(item)
        except NoFunds as error:
            found.append(error.code)
        return found

    def take(client: Any) -> Any:
        items = proxy(client).count(n=2)
        if hasattr(items, "__anext__"):
            return take_async(items)
        found: list[Any] = []
        try:
            for item in items:
                found.append(item)
        except NoFunds as error:
            found.append(error.code)
        return found

    assert driver.do(take) == [Account("a", 0), Account("a", 1), 4712]
    attribute = "feed/total" if by == "service" else "total"
    assert driver.do(lambda client: getattr(proxy(client), attribute)(1, 2, 3)) == 6
    assert driver.do(lambda client: getattr(proxy(client), attribute)()) == 0
    if by == "protocol":
        driver.do(lambda client: proxy(client).ring(3))
        eventually(lambda: rung == [3], "it has rung")


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="the whole name of a method"):
        query(name="")
