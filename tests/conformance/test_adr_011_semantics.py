"""ADR-011: request semantics and concurrency, clause by clause, under EDITOR."""

import json

import pytest

from duet_rpc.policy import EDITOR
from tests.conformance.specimen import specimen
from tests.helpers import Line, Wire, exchange, frame, ids, notification, refusal, request, result


def test_execution_is_sequential() -> None:
    line = Line(EDITOR, specimen(), held={"hold"})
    line.send(request("hold", id=1), request("hold", id=2))
    assert line.running == [b"1"]
    assert ids(line.release()) == [1]
    assert line.running == [b"2"]


def test_each_answer_is_written_before_the_next_request_starts() -> None:
    line = Line(EDITOR, specimen(), held={"hold"})
    line.send(request("echo", id=0), request("hold", id=1))
    assert len(line.host.writes) == 1
    line.send(request("echo", id=2))
    assert len(line.host.writes) == 1


def test_a_batch_is_not_supported() -> None:
    body = b'[{"jsonrpc":"2.0","id":1,"method":"pay"},{"jsonrpc":"2.0","id":2,"method":"pay"}]'
    line = Line(EDITOR, specimen())
    (answer,) = line.send(body)
    assert refusal(answer) == (-32600, "Batch requests not supported", "batch-not-supported", None)
    assert result(line.send(request("seen"))[0]) == []


def test_notifications_are_processed_without_response() -> None:
    line = Line(EDITOR, specimen())
    assert line.send(notification("touch", [5]), notification("pay", [6])) == []
    assert result(line.send(request("seen"))[0]) == [5, 6]


def test_unknown_method_notifications_are_logged_at_warn() -> None:
    line = Line(EDITOR, specimen())
    assert line.send(notification("foobar")) == []
    assert line.log.told() == [("warn", "Method not found")]


@pytest.mark.parametrize("body", [notification("touch", [1, 2]), notification("fail")])
def test_validation_and_internal_errors_of_notifications_are_logged_at_error(body: bytes) -> None:
    line = Line(EDITOR, specimen())
    assert line.send(body) == []
    assert {severity for severity, _ in line.log.told()} == {"error"}


def test_notifications_do_not_end_anything() -> None:
    line = Line(EDITOR, specimen())
    line.send(notification("fail"), notification("foobar"), notification("touch", [1, 2]))
    assert result(line.send(request("echo", ["here"]))[0]) == "here"


@pytest.mark.parametrize(
    "id", [b'"text"', b'""', b"0", b"7", b"-7", b"1.5", b"1.0", b"1e2", b"-0", b"9" * 30, b"null"]
)
def test_request_ids_are_echoed_exactly(id: bytes) -> None:
    body = b'{"jsonrpc":"2.0","id":%b,"method":"echo"}' % id
    assert exchange(EDITOR, specimen(), body) == [b'{"jsonrpc":"2.0","id":%b,"result":null}' % id]


@pytest.mark.parametrize("id", [b"{}", b"[]", b"true", b"false"])
def test_other_ids_are_rejected(id: bytes) -> None:
    body = b'{"jsonrpc":"2.0","id":%b,"method":"echo"}' % id
    (answer,) = exchange(EDITOR, specimen(), body)
    assert refusal(answer) == (-32600, "Invalid Request", "invalid-id-type", None)


def test_responses_come_in_request_order_also_when_clients_pipeline() -> None:
    stream = b"".join(
        frame(request(("echo", "foobar", "gone", "subtract", "whoami")[n % 5], id=n))
        for n in range(100)
    )
    assert ids(exchange(EDITOR, specimen(), Wire(stream))) == list(range(100))


def test_no_handshake_is_required() -> None:
    (answer,) = exchange(EDITOR, specimen(), request("subtract", [3, 1]))
    assert json.loads(answer) == {"jsonrpc": "2.0", "id": 1, "result": 2}
