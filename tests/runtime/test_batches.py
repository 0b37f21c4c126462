"""Batches: order, an outcome for each item, and servers that take fewer or none."""

import threading
import time
from typing import Any

import pytest

from duet_rpc import Client, MemoryStore, Service, blocking
from duet_rpc.errors import (
    CallTimeout,
    ConnectionLost,
    InternalError,
    InvalidAnswer,
    InvalidParams,
    MethodNotFound,
    UsageError,
)
from duet_rpc.policy import AGENT, EDITOR, PRODUCTION, SPEC, replace
from tests.runtime.faces import PATIENCE, Face, Peer, Scripted


def make_service() -> tuple[Service, list[Any]]:
    service, seen = Service(), list[Any]()

    @service.query(notification_allowed=True)
    def note(value: int) -> int:
        seen.append(value)
        return value * 10

    @service.query
    async def slow(value: int) -> int:
        import asyncio

        await asyncio.sleep(0.01 * (5 - value))
        return value

    @service.command
    def pay(amount: int) -> int:
        seen.append(("paid", amount))
        return amount

    return service, seen


def test_results_come_in_the_order_of_the_calls(face: Face) -> None:
    service, _ = make_service()
    driver = face.connect(service)
    items = driver.batch(lambda batch: [batch.call("slow", [n]) for n in range(5)])
    assert [item.result() for item in items] == [0, 1, 2, 3, 4]
    assert [item.error() for item in items] == [None] * 5
    assert driver.stats.pending == 0


def test_each_item_has_its_own_outcome(face: Face) -> None:
    service, seen = make_service()
    driver = face.connect(service)
    items = driver.batch(
        lambda batch: [
            batch.call("note", [1]),
            batch.call("nope"),
            batch.notify("note", [2]),
            batch.call("note", ["text"]),
            batch.call("note", [3], returns=str),
            batch.query("note", [4]),
        ]
    )
    assert items[0].result() == 10
    assert isinstance(items[1].error(), MethodNotFound)
    with pytest.raises(MethodNotFound):
        items[1].result()
    assert items[2].result() is None
    assert isinstance(items[3].error(), InvalidParams)
    assert isinstance(items[4].error(), InvalidAnswer)
    assert items[5].result() == 40
    assert sorted(seen) == [1, 2, 3, 4]


def test_only_notifications_wait_for_nothing(face: Face) -> None:
    service, seen = make_service()
    driver = face.connect(service)
    items = driver.batch(lambda batch: [batch.notify("note", [n]) for n in range(3)])
    assert [item.result() for item in items] == [None] * 3
    assert driver.call("note", [9]) == 90
    until = time.monotonic() + PATIENCE
    while len(seen) < 4 and time.monotonic() < until:
        time.sleep(0.005)
    assert sorted(seen) == [0, 1, 2, 9]


def test_an_empty_batch_sends_nothing(face: Face) -> None:
    service, _ = make_service()
    driver = face.connect(service)
    assert driver.batch(lambda batch: []) == []
    assert driver.call("note", [1]) == 10


@pytest.mark.parametrize(("limit", "count"), [(3, 10), (3, 3), (3, 4), (1, 5), (50, 120)])
def test_a_batch_is_split_for_a_server_that_takes_fewer(face: Face, limit: int, count: int) -> None:
    service, _ = make_service()
    driver = face.connect(service, policy=replace(SPEC, max_batch=limit))
    for _ in range(2):  # the second time it knows
        items = driver.batch(lambda batch: [batch.call("note", [n]) for n in range(count)])
        assert [item.result() for item in items] == [n * 10 for n in range(count)]
    assert driver.stats.pending == 0


def test_a_batch_is_sent_singly_to_a_server_that_takes_none(face: Face) -> None:
    service, seen = make_service()
    driver = face.connect(service, policy=EDITOR)
    for _ in range(2):
        items = driver.batch(
            lambda batch: [
                batch.call("note", [1]),
                batch.notify("note", [2]),
                batch.call("nope"),
                batch.call("note", [3]),
            ]
        )
        assert [items[0].result(), items[1].result(), items[3].result()] == [10, None, 30]
        assert isinstance(items[2].error(), MethodNotFound)
    assert seen == [1, 2, 3, 1, 2, 3], "nothing of what was refused has run"
    assert driver.stats.pending == 0


def test_a_refusal_for_another_reason_is_the_error_of_each_item(face: Face) -> None:
    def script(peer: Peer) -> None:
        assert len(peer.read()) == 2
        peer.say(b'{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"not today"}}')
        peer.answer(peer.request(), b'"fine"')
        peer.read_all()

    driver = face.open(Scripted(script))
    items = driver.batch(lambda batch: [batch.call("a"), batch.call("b")])
    for item in items:
        assert isinstance(item.error(), InternalError) and "not today" in str(item.error())
    assert driver.call("c", timeout=PATIENCE) == "fine"
    assert driver.stats.pending == 0


def test_an_error_about_a_notification_is_not_about_a_batch(face: Face) -> None:
    def script(peer: Peer) -> None:
        batch = peer.read()
        peer.say(
            b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no",'
            b'"data":{"reason":"notification-not-allowed"}}}'
        )
        for item in batch:
            peer.answer(item, b'"fine"')
        peer.read_all()

    driver = face.open(Scripted(script))
    items = driver.batch(lambda batch: [batch.call("a"), batch.call("b")])
    assert [item.result() for item in items] == ["fine", "fine"]


def test_commands_in_a_batch_have_keys(face: Face) -> None:
    service, seen = make_service()
    policy = replace(AGENT, command_needs_id=True)
    driver = face.connect(service, policy=policy, store=MemoryStore())
    items = driver.batch(
        lambda batch: [
            batch.command("pay", {"amount": 5}, key="k1"),
            batch.command("pay", {"amount": 7}),
            batch.command("pay", {"amount": 7}),
        ]
    )
    assert [item.result() for item in items] == [5, 7, 7]
    again = driver.batch(lambda batch: [batch.command("pay", {"amount": 5}, key="k1")])
    assert again[0].result() == 5
    assert sorted(seen) == [("paid", 5), ("paid", 7), ("paid", 7)]


def test_a_batch_is_sent_when_its_block_ends_well(face: Face) -> None:
    service, seen = make_service()
    driver = face.connect(service)

    def fill(batch: Any) -> Any:
        item = batch.call("note", [1])
        with pytest.raises(UsageError, match="on leaving"):
            item.result()
        with pytest.raises(UsageError, match="on leaving"):
            item.error()
        raise RuntimeError("changed my mind")

    with pytest.raises(RuntimeError, match="changed my mind"):
        driver.batch(fill)
    assert driver.call("note", [2]) == 20
    assert seen == [2]


def test_items_have_their_own_timeouts(face: Face) -> None:
    def script(peer: Peer) -> None:
        first, second = peer.read()
        cancel = peer.request()
        assert cancel["params"] == {"id": first["id"]}
        peer.answer(second, b'"fine"')
        peer.read_all()

    server = Scripted(script)
    driver = face.open(server)
    items = driver.batch(
        lambda batch: [batch.call("a", timeout=0.2), batch.call("b", timeout=PATIENCE)]
    )
    assert isinstance(items[0].error(), CallTimeout)
    assert items[1].result() == "fine"
    driver.close()
    server.join()


def test_one_deadline_for_a_batch_that_is_split(face: Face) -> None:
    def script(peer: Peer) -> None:
        peer.read()
        peer.say(
            b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no",'
            b'"data":{"reason":"batch-too-large","limit":1}}}'
        )
        while peer.read() is not None:
            pass  # and never answers

    driver = face.open(Scripted(script))
    items = driver.batch(lambda batch: [batch.call("a", timeout=0.3) for _ in range(3)])
    assert [type(item.error()) for item in items] == [CallTimeout] * 3
    assert driver.stats.pending == 0


def test_a_loss_is_the_outcome_of_every_item(face: Face) -> None:
    def script(peer: Peer) -> None:
        first, second, _ = peer.read()
        peer.answer(second, b'"fine"')

    driver = face.open(Scripted(script))
    items = driver.batch(lambda batch: [batch.call("x") for _ in range(3)])
    assert items[1].result() == "fine"
    assert isinstance(items[0].error(), ConnectionLost)
    assert isinstance(items[2].error(), ConnectionLost)
    assert items[0].error() is not items[2].error()
    later = driver.batch(lambda batch: [batch.call("x"), batch.notify("y")])
    assert [type(item.error()) for item in later] == [ConnectionLost] * 2
    assert driver.stats.pending == 0


def test_a_batch_waits_for_a_server_that_does_not_read(face: Face) -> None:
    go_on = threading.Event()

    def script(peer: Peer) -> None:
        go_on.wait(PATIENCE)
        message = peer.read()
        assert message["method"] == "large"
        batch = peer.read()
        assert [item["method"] for item in batch] == ["a", "b"]
        cancel = peer.request()
        assert cancel["params"] == {"id": batch[0]["id"]}
        peer.answer(batch[1], b'"fine"')
        peer.read_all()

    server = Scripted(script)
    driver = face.open(server)
    large = driver.begin("large", {"text": "x" * 2_000_000}, timeout=PATIENCE)
    until = time.monotonic() + PATIENCE
    while driver.stats.pending < 1 and time.monotonic() < until:
        time.sleep(0.005)
    pending = driver.start(lambda client: _batch(client, [("a", 0.2), ("b", PATIENCE)]))
    while driver.stats.timeouts < 1 and time.monotonic() < until:
        time.sleep(0.005)
    go_on.set()
    items = pending.result(PATIENCE)
    assert isinstance(items[0].error(), CallTimeout)
    assert items[1].result() == "fine"
    driver.close()
    server.join()
    assert isinstance(large.exception(PATIENCE), ConnectionLost)


def _batch(client: Any, calls: list[tuple[str, float]]) -> Any:
    batch = client.batch()
    items = [batch.call(method, timeout=timeout) for method, timeout in calls]
    if hasattr(batch, "__aexit__"):

        async def send() -> Any:
            async with batch:
                pass
            return items

        return send()
    with batch:
        pass
    return items


def test_production_wants_a_key_in_every_item(face: Face, tmp_path: Any) -> None:
    service, _ = make_service()
    driver = face.connect(service, policy=PRODUCTION, store=f"sqlite:///{tmp_path}/commands.db")
    items = driver.batch(
        lambda batch: [batch.call("pay", {"amount": 1}), batch.command("pay", {"amount": 2})]
    )
    assert isinstance(items[0].error(), InvalidParams)
    assert items[1].result() == 2


@pytest.mark.clause("client-20")
@pytest.mark.parametrize("code", [-32600, -32700])
def test_a_server_that_cannot_read_an_array_is_sent_one_by_one(face: Face, code: int) -> None:
    def script(peer: Peer) -> None:
        assert isinstance(peer.read(), list)
        error = b'{"code":%d,"message":"Invalid request"}' % code
        peer.say(b'{"jsonrpc":"2.0","id":null,"error":%b}' % error)
        for _ in range(4):
            peer.answer(peer.request(), b'"one"')

    server = Scripted(script)
    driver = face.open(server)
    for _ in range(2):
        items = driver.batch(lambda batch: [batch.call("a"), batch.query("b")])
        assert [item.result() for item in items] == ["one", "one"]
    server.join()


@pytest.mark.clause("client-20")
def test_after_an_array_without_any_answer_batches_are_sent_one_by_one(face: Face) -> None:
    def script(peer: Peer) -> None:
        assert isinstance(peer.read(), list)
        while "id" not in (request := peer.request()):
            assert request["method"] == "$/cancelRequest"
        peer.answer(request, b'"one"')
        peer.answer(peer.request(), b'"two"')

    server = Scripted(script)
    driver = face.open(server)
    dropped = driver.batch(lambda batch: [batch.call("a", timeout=0.05)])
    assert isinstance(dropped[0].error(), CallTimeout)
    items = driver.batch(lambda batch: [batch.call("b"), batch.call("c")])
    assert [item.result() for item in items] == ["one", "two"]
    server.join()


@pytest.mark.clause("client-20")
async def test_a_batch_can_be_sent_one_by_one() -> None:
    def script(peer: Peer) -> None:
        for _ in range(2):
            peer.answer(peer.request(), b'"one"')

    server = Scripted(script)
    async with Client(server) as client:
        async with client.batch(one_by_one=True) as batch:
            items = [batch.call("a"), batch.call("b")]
        assert [item.result() for item in items] == ["one", "one"]
    server.join()
    server = Scripted(script)
    with blocking.Client(server) as blocked:
        with blocked.batch(one_by_one=True) as batch_here:
            items = [batch_here.call("a"), batch_here.call("b")]
        assert [item.result() for item in items] == ["one", "one"]
    server.join()
