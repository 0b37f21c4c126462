"""BATCH: batch requests as the agent hosts send them, clause by clause, under AGENT."""

import json
from typing import Any

from duet_rpc.policy import AGENT
from duet_rpc.service import Service
from tests.helpers import Line, exchange, notification, refusal, request


def make() -> Service:
    service = Service()

    @service.query(name="sum")
    def total(*numbers: int) -> int:
        return sum(numbers)

    @service.query
    def notify_hello(number: int) -> None: ...

    @service.query
    def subt(a: int, b: int) -> int:
        return a - b

    @service.query
    async def slow(value: Any = None) -> Any:
        return value

    return service


def test_the_example_of_the_decision() -> None:
    sent = b"""[
        { "jsonrpc": "2.0", "method": "sum", "params": [1, 2, 3], "id": 1 },
        { "jsonrpc": "2.0", "method": "notify_hello", "params": [7] },
        { "jsonrpc": "2.0", "method": "subt", "params": [42, 23], "id": 2 }
    ]"""
    (answer,) = exchange(AGENT, make(), sent)
    assert json.loads(answer) == [
        {"jsonrpc": "2.0", "result": 6, "id": 1},
        {"jsonrpc": "2.0", "result": 19, "id": 2},
    ]


def test_notifications_get_no_response() -> None:
    batch = b"[%b,%b]" % (notification("notify_hello", [7]), notification("foobar"))
    assert exchange(AGENT, make(), batch) == []


def test_items_run_in_parallel_and_are_gathered() -> None:
    line = Line(AGENT, make(), held={"slow"})
    batch = b"[%b]" % b",".join(request("slow", [n], id=n) for n in range(10))
    assert line.send(batch) == []
    assert len(line.running) == 10
    assert line.release(b"9") == []
    (answer,) = line.release_all()
    # The order is not promised by the decision; the contract promises that of the requests.
    assert [item["id"] for item in json.loads(answer)] == list(range(10))


def test_clients_correlate_by_id() -> None:
    batch = b"[%b,%b]" % (request("sum", [1], id="b"), request("sum", [2], id="a"))
    (answer,) = exchange(AGENT, make(), batch)
    assert {item["id"]: item["result"] for item in json.loads(answer)} == {"b": 1, "a": 2}


def test_an_empty_array_is_invalid_with_the_standard_error() -> None:
    (answer,) = exchange(AGENT, make(), b"[]")
    assert refusal(answer)[:2] == (-32600, "Invalid Request")
    assert json.loads(answer)["id"] is None


def test_the_size_of_a_batch_is_limited_to_fifty() -> None:
    def batch(size: int) -> bytes:
        return b"[%b]" % b",".join(request("sum", [n], id=n) for n in range(size))

    assert len(json.loads(exchange(AGENT, make(), batch(50))[0])) == 50
    (answer,) = exchange(AGENT, make(), batch(51))
    assert refusal(answer) == (-32600, "Invalid Request", "batch-too-large", None)
    assert json.loads(answer)["error"]["data"]["limit"] == 50


def test_an_invalid_item_does_not_harm_its_neighbours() -> None:
    batch = b"[%b,1,%b]" % (request("sum", [1], id=1), request("sum", [2], id=2))
    first, bad, second = json.loads(exchange(AGENT, make(), batch)[0])
    assert (first["result"], second["result"]) == (1, 2)
    assert bad["error"]["code"] == -32600 and bad["id"] is None
