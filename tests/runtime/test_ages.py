"""Keys and ages of commands, as both clients send them: what stands on the wire at each try."""

import asyncio
import dataclasses
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from duet_rpc import Client, Context, Progress, Retry, Service, UsageError, command
from duet_rpc.client.batch import BatchItem
from duet_rpc.errors import (
    CallTimeout,
    ConnectFailed,
    ConnectionLost,
    DuetError,
    OutcomeUnknown,
    Overloaded,
    RpcError,
)
from duet_rpc.transports.link import Link
from tests.runtime.faces import Driver, Face, Peer, Scripted

pytestmark = pytest.mark.timeout(120)

THRICE = Retry(attempts=3, first_delay=0.02, max_delay=0.02, jitter=0)


CODES = {
    "overloaded": -32017,
    "shutting-down": -32018,
    "declined": 402,
    "unknown": -32014,
    "key-reused": -32012,
    "invalid-params": -32602,
    "no-such-method": -32601,
}


class Server:
    """Ends each try in the way that it is told, and keeps what came."""

    def __init__(self, *ends: str) -> None:
        self.seen: list[dict[str, Any]] = []
        self.came = threading.Event()
        self._ends = iter(ends)

    def play(self, peer: Peer) -> None:
        while (message := peer.read()) is not None:
            for each in message if isinstance(message, list) else [message]:
                if "id" not in each:
                    continue
                self.seen.append(each["params"])
                self.came.set()
                end = next(self._ends)
                if end == "dies":
                    return
                if end == "answers":
                    peer.answer(each)
                elif end != "hangs":
                    code = CODES[end]
                    peer.say(
                        b'{"jsonrpc":"2.0","id":%d,"error":{"code":%d,"message":"no"}}'
                        % (each["id"], code)
                    )

    @property
    def retries(self) -> list[dict[str, int] | None]:
        """What each try said of its age."""
        return [params.get("_meta", {}).get("retry") for params in self.seen]

    @property
    def keys(self) -> set[str]:
        return {params["idempotency_key"] for params in self.seen}


def opened(face: Face, server: Server, connections: int = 1, **options: Any) -> Driver:
    return face.open(Scripted(*[server.play] * connections), **options)


def test_from_the_second_try_on_a_command_tells_its_age(face: Face) -> None:
    server = Server("dies", "hangs", "answers")
    driver = opened(face, server, 3, retry=THRICE, timeout=0.2)
    driver.do(lambda client: client.command("pay", {"a": 1}, key="k"))
    first, second, third = server.retries
    assert first is None and second is not None and third is not None
    assert (second["attempt"], third["attempt"]) == (2, 3)
    assert 20 <= second["age_ms"] < third["age_ms"] and third["age_ms"] >= 240
    assert server.keys == {"k"} and server.seen[1]["a"] == 1


def test_the_clock_starts_with_the_first_try_that_may_have_had_an_effect(face: Face) -> None:
    server = Server("overloaded", "shutting-down", "answers", "overloaded", "hangs", "answers")
    driver = opened(face, server, retry=THRICE, timeout=0.2)
    for _ in range(2):
        driver.do(lambda client: client.command("pay"))
    *others, last = server.retries
    assert others == [None] * 5
    assert last is not None and last["attempt"] == 3 and 200 <= last["age_ms"]


class Refusing(Scripted):
    """Cannot be reached a few times after its first connection."""

    def __init__(self, refusals: int, *scripts: Callable[[Peer], object]) -> None:
        super().__init__(*scripts)
        self._answers = iter([False, *[True] * refusals])

    def open(self, timeout: float | None = None) -> Link:
        if next(self._answers, False):
            raise ConnectFailed("not yet")
        return super().open(timeout)


def test_a_try_that_was_not_sent_does_not_count(face: Face) -> None:
    server = Server("dies", "answers", "dies", "answers")
    driver = face.open(Refusing(2, server.play, server.play), retry=THRICE)
    with pytest.raises(ConnectionLost):
        driver.call("first", {})
    driver.do(lambda client: client.command("pay"))
    assert server.retries == [None, None]
    driver = face.open(
        Refusing(2, server.play, server.play), retry=msgspec.structs.replace(THRICE, attempts=4)
    )
    driver.do(lambda client: client.command("pay"))
    first, second = server.retries[2:]
    assert first is None and second is not None and second["attempt"] == 2


def test_a_query_has_no_age(face: Face) -> None:
    server = Server("overloaded", "answers")
    driver = opened(face, server, retry=THRICE)
    driver.do(lambda client: client.query("get", {"a": 1}))
    assert server.seen == [{"a": 1}, {"a": 1}]


def test_a_command_that_is_sent_again_by_hand_tells_its_age(face: Face) -> None:
    server = Server("dies", "hangs", "answers", "answers")
    driver = opened(face, server, 2, reconnect=True, timeout=0.2)

    def pay(client: Any) -> Any:
        return client.command("pay", {}, key="order-17")

    for failure in (ConnectionLost, CallTimeout):
        with pytest.raises(failure):
            driver.do(pay)
    driver.do(pay)
    driver.do(pay)  # its outcome was known, so this is no retry of ours
    ages = [None if retry is None else retry["attempt"] for retry in server.retries]
    assert ages == [None, 2, 2, None]
    assert server.retries[2] is not None and server.retries[2]["age_ms"] >= 200


def test_a_command_of_another_process_tells_the_age_that_it_is_given(face: Face) -> None:
    server = Server("answers", "hangs", "answers")
    driver = opened(face, server)
    driver.do(lambda client: client.command("pay", {}, key="k", age=300))
    assert server.retries[0] is not None and server.retries[0]["attempt"] == 2
    assert 300_000 <= server.retries[0]["age_ms"] < 400_000
    driver.batch(lambda batch: [batch.command("pay", {}, key="k", age=0.5, timeout=0.05)])
    assert server.retries[1] is not None and server.retries[1]["attempt"] == 2
    assert 500 <= server.retries[1]["age_ms"] < 100_000


def pay(client: Any) -> Any:
    return client.command("pay", {}, key="k")


def one(driver: Driver) -> Exception | None:
    try:
        driver.do(pay)
    except DuetError as error:
        return error
    return None


def in_a_batch(driver: Driver) -> Exception | None:
    (item,) = driver.batch(lambda batch: [batch.command("pay", {}, key="k")])
    return item.error()


WAYS = [one, in_a_batch]
Way = Callable[[Driver], Exception | None]


@pytest.mark.parametrize("end", ["unknown", "key-reused", "invalid-params", "no-such-method"])
@pytest.mark.parametrize("second", WAYS)
def test_what_is_no_outcome_leaves_a_command_in_doubt(face: Face, second: Way, end: str) -> None:
    server = Server("dies", end, "overloaded", "answers", "answers")
    driver = opened(face, server, 2, reconnect=True)
    for way, failure in ((one, ConnectionLost), (second, RpcError), (one, Overloaded)):
        assert isinstance(way(driver), failure)
    assert one(driver) is one(driver) is None
    assert [retry is not None for retry in server.retries] == [False, True, True, True, False]


@pytest.mark.parametrize("end", ["key-reused", "invalid-params", "no-such-method"])
@pytest.mark.parametrize("way", WAYS)
def test_a_first_try_that_was_refused_starts_no_clock(face: Face, way: Way, end: str) -> None:
    server = Server(end, "answers")
    driver = opened(face, server)
    assert isinstance(way(driver), RpcError) and way(driver) is None
    assert server.retries == [None, None]


@pytest.mark.parametrize("way", WAYS)
def test_a_first_try_of_unknown_outcome_starts_the_clock(face: Face, way: Way) -> None:
    server = Server("unknown", "answers")
    driver = opened(face, server)
    assert isinstance(way(driver), OutcomeUnknown) and way(driver) is None
    assert server.retries[0] is None and server.retries[1] is not None


@pytest.mark.parametrize("first", WAYS)
@pytest.mark.parametrize("second", WAYS)
def test_a_batch_knows_what_is_in_doubt_like_a_command(face: Face, first: Way, second: Way) -> None:
    server = Server("dies", "dies", "answers", "answers")
    driver = opened(face, server, 3, reconnect=True)
    assert isinstance(first(driver), ConnectionLost)
    assert isinstance(second(driver), ConnectionLost)
    assert first(driver) is second(driver) is None
    assert [retry and retry["attempt"] for retry in server.retries] == [None, 2, 2, None]


@pytest.mark.parametrize("first", WAYS)
def test_an_item_of_a_batch_is_as_old_as_when_it_is_sent(face: Face, first: Way) -> None:
    server = Server("dies", "answers", "answers")
    driver = opened(face, server, 2, reconnect=True)
    assert isinstance(first(driver), ConnectionLost)

    def fill(batch: Any) -> list[BatchItem[Any]]:
        items = [batch.command("pay", {}, key="k"), batch.command("pay", {}, key="z", age=1)]
        time.sleep(0.1)
        return items

    assert [item.error() for item in driver.batch(fill)] == [None, None]
    _, known, told = server.retries
    assert known is not None and known["age_ms"] >= 100
    assert told is not None and told["age_ms"] >= 1100


@pytest.mark.parametrize("limit", [1, 2])
def test_a_batch_that_is_sent_in_parts_tells_the_ages_of_its_items(face: Face, limit: int) -> None:
    """Sent again in parts it is no retry, but what was lost with one part is one in the next."""
    server = Server("dies", "answers", "answers", "answers")
    reason = "batch-not-supported" if limit == 1 else "batch-too-large"

    def refuse(peer: Peer) -> None:
        while isinstance(message := peer.read(), list) and len(message) > limit:
            data = b'{"reason":"%b","limit":%d}' % (reason.encode(), limit)
            peer.say(
                b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no","data":%b}}'
                % data
            )
        asked = message if isinstance(message, list) else [message]
        server.seen += [each["params"] for each in asked]

    driver = face.open(Scripted(refuse, server.play, server.play), reconnect=True)
    keys = ["k", "z", "k", "z"]
    items = driver.batch(lambda batch: [batch.command("pay", {}, key=key) for key in keys])
    assert isinstance(items[0].error(), ConnectionLost)
    assert server.retries[0] is None
    again = driver.batch(lambda batch: [batch.command("pay", {}, key="k")])
    assert len(again) == 1 and server.retries[-1] is not None
    if limit == 2:  # the second part was sent after the first was lost
        assert server.retries[:2] == [None, None] and server.retries[2] is not None


def test_a_batch_that_is_given_up_leaves_its_commands_in_doubt() -> None:
    server = Server("hangs", "answers")

    async def main() -> None:
        async with Client(Scripted(server.play)) as client:
            batch = client.batch()
            batch.command("pay", {}, key="k")
            sent = asyncio.ensure_future(batch.__aexit__(None))
            assert await asyncio.to_thread(server.came.wait, 30)
            sent.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sent
            await client.command("pay", {}, key="k")

    asyncio.run(main())
    assert server.retries[0] is None and server.retries[1] is not None


@pytest.mark.parametrize("age", [-1, math.nan, "5m", True])
def test_an_age_is_a_number_of_seconds(face: Face, age: Any) -> None:
    server = Server()
    driver = opened(face, server)
    with pytest.raises(UsageError, match="age"):
        driver.do(lambda client: client.command("pay", {}, key="k", age=age))
    with pytest.raises(UsageError, match="key"):
        driver.do(lambda client: client.command("pay", {}, age=5))
    assert server.seen == []


# One key.


class Payment(msgspec.Struct):
    amount: int
    idempotency_key: str | None = None


@dataclasses.dataclass
class Order:
    amount: int
    idempotency_key: str


GIVEN: list[tuple[Any, str | None]] = [
    ({"idempotency_key": "mine"}, None),
    ({"idempotency_key": "mine"}, "mine"),
    ({"_meta": {"idempotency_key": "mine"}}, None),
    ({"_meta": {"idempotency_key": "mine", "traceparent": "t"}}, "mine"),
    (Payment(5, "mine"), None),
    (Payment(5), "mine"),
    (Order(5, "mine"), "mine"),
    ({"idempotency_key": None}, "mine"),
    (None, "mine"),
]


def shop() -> Service:
    service = Service()

    @service.command
    def pay(ctx: Context, amount: int = 0) -> str | None:
        if amount < 0:
            raise Overloaded(data={"amount": amount})
        return ctx.idempotency_key

    return service


@pytest.mark.parametrize(("params", "key"), GIVEN)
def test_a_key_may_stand_in_the_params(face: Face, params: Any, key: str | None) -> None:
    driver = face.connect(shop())
    assert driver.do(lambda client: client.command("pay", params, key=key)) == "mine"
    (item,) = driver.batch(lambda batch: [batch.command("pay", params, key=key)])
    assert (item.result(), item.key) == ("mine", "mine")
    assert driver.do(lambda client: client.outcome("pay", "mine")).state == "done"


def keyed(params: Any) -> bool:
    encoded = msgspec.to_builtins(params) or {}
    return bool(encoded.get("idempotency_key") or encoded.get("_meta", {}).get("idempotency_key"))


@pytest.mark.parametrize("params", [params for params, _ in GIVEN if keyed(params)])
def test_two_keys_are_refused_before_anything_is_sent(face: Face, params: Any) -> None:
    server = Server()
    driver = opened(face, server)
    with pytest.raises(UsageError, match="two idempotency keys"):
        driver.do(lambda client: client.command("pay", params, key="order-17"))
    with pytest.raises(UsageError, match="two idempotency keys"):
        driver.batch(lambda batch: [batch.command("pay", params, key="order-17")])
    assert server.seen == []


def test_params_by_position_have_no_room_for_a_key(face: Face) -> None:
    server = Server()
    driver = opened(face, server)
    with pytest.raises(UsageError, match="named params"):
        driver.do(lambda client: client.command("pay", [1]))
    with pytest.raises(UsageError, match="named params"):
        driver.batch(lambda batch: [batch.command("pay", [1], key="k")])
    with pytest.raises(UsageError, match="age="):
        driver.do(lambda client: client.command("pay", {"_meta": {"retry": 1}}, key="k"))
    assert server.seen == []


def failures() -> list[tuple[str, Callable[[Any], Any]]]:
    named = {"amount": -1, "idempotency_key": "mine"}
    return [
        ("mine", lambda client: client.command("pay", named)),
        ("mine", lambda client: client.command("pay", {"amount": -1}, key="mine")),
        ("mine", lambda client: client.command("pay", Payment(-1, "mine"))),
    ]


@pytest.mark.parametrize(("key", "act"), failures())
def test_an_error_names_the_key_that_was_used(
    face: Face, key: str, act: Callable[[Any], Any]
) -> None:
    driver = face.connect(shop())
    with pytest.raises(Overloaded) as caught:
        driver.do(act)
    assert caught.value.idempotency_key == key
    (item, other) = driver.batch(
        lambda batch: [
            batch.command("pay", {"amount": -1, "idempotency_key": key}),
            batch.command("pay", {"amount": -1}),
        ]
    )
    errors = [item.error(), other.error()]
    assert all(isinstance(error, DuetError) for error in errors)
    assert [error.idempotency_key for error in errors] == [key, other.key]  # type: ignore[union-attr]


def test_the_items_of_a_batch_that_is_refused_as_a_whole_keep_their_own_keys(face: Face) -> None:
    def refuse(peer: Peer) -> None:
        peer.read()
        peer.say(b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no"}}')
        peer.read_all()

    driver = face.open(Scripted(refuse))
    items = driver.batch(lambda batch: [batch.command("pay", key=key) for key in ("a", "b")])
    assert [getattr(item.error(), "idempotency_key", None) for item in items] == ["a", "b"]


class Shop:
    @command
    def pay(self, amount: int, idempotency_key: str | None = None) -> str: ...  # type: ignore[empty-body]


def test_a_proxy_takes_the_key_as_a_parameter(face: Face) -> None:
    driver = face.connect(shop())
    assert driver.do(lambda client: client.proxy(Shop).pay(1, idempotency_key="mine")) == "mine"
    assert len(driver.do(lambda client: client.proxy(Shop).pay(1))) == 32


# Progress beside what the params hold already.


def test_progress_is_asked_for_beside_a_meta_that_is_there(face: Face) -> None:
    service = Service()

    @service.query
    def walk(ctx: Context) -> str | None:
        ctx.progress("half")
        return ctx.trace_parent

    news: list[Any] = []
    driver = face.connect(service)
    params = {"_meta": {"traceparent": "t"}}
    assert driver.call("walk", params, on_progress=news.append) == "t"
    assert news == [Progress("half")]
    with pytest.raises(UsageError, match="progressToken"):
        driver.call("walk", {"_meta": {"progressToken": "mine"}}, on_progress=news.append)
