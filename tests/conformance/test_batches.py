"""Batches: limits, order, and each item by itself."""

import json
from typing import Any

import pytest

from duet_rpc.policy import AGENT, DEVELOPMENT, EDITOR, PRODUCTION, SPEC, Policy, replace
from tests.conformance.specimen import specimen
from tests.helpers import Line, cancel, data_of, exchange, notification, refusal, request, result

WITH = [SPEC, AGENT, DEVELOPMENT, PRODUCTION, replace(EDITOR, max_batch=50)]
with_batches = pytest.mark.parametrize("policy", WITH, ids=lambda policy: policy.name)


def batch(*items: bytes) -> bytes:
    return b"[%b]" % b",".join(items)


def items(policy: Policy, *sent: bytes) -> list[Any]:
    (answer,) = exchange(policy, specimen(), batch(*sent))
    found: list[Any] = json.loads(answer)
    return found


@pytest.mark.clause("batches-1")
@pytest.mark.parametrize(
    "body", [b"[]", b"[1]", batch(request("echo")), batch(notification("echo")), b" [ ] "]
)
def test_a_policy_without_batch_refuses_each_with_one_error(body: bytes) -> None:
    (answer,) = exchange(EDITOR, specimen(), body)
    assert refusal(answer) == (-32600, "Batch requests not supported", "batch-not-supported", None)


@pytest.mark.clause("batches-2")
@with_batches
@pytest.mark.parametrize("body", [b"[]", b"[ ]", b"\r\n[\t]"])
def test_an_empty_batch_is_one_error(policy: Policy, body: bytes) -> None:
    (answer,) = exchange(policy, specimen(), body)
    assert refusal(answer) == (-32600, "Invalid Request", "invalid-envelope", None)


@pytest.mark.clause("batches-3")
@with_batches
def test_too_many_items_are_refused_before_any_runs(policy: Policy) -> None:
    line = Line(policy, specimen())
    (answer,) = line.send(batch(*[notification("touch", [1])] * (policy.max_batch + 1)))
    assert refusal(answer) == (-32600, "Invalid Request", "batch-too-large", None)
    assert data_of(answer)["limit"] == policy.max_batch
    assert result(line.send(request("seen"))[0]) == []


@pytest.mark.clause("batches-3")
@with_batches
def test_as_many_items_as_the_limit_run(policy: Policy) -> None:
    sent = [request("echo", [n], id=n) for n in range(policy.max_batch)]
    answers = items(policy, *sent)
    assert [(item["id"], item["result"]) for item in answers] == [
        (n, n) for n in range(policy.max_batch)
    ]


@pytest.mark.clause("batches-4")
@with_batches
def test_answers_stand_in_request_order_in_one_array(policy: Policy) -> None:
    line = Line(policy, specimen(), held={"hold"})
    assert line.send(batch(*(request("hold", [n], id=n) for n in range(4)))) == []
    answers: list[bytes] = []
    while line.host.open:
        answers += line.release(line.running[-1])  # the last first
    (answer,) = answers
    assert [item["result"] for item in json.loads(answer)] == [0, 1, 2, 3]


@pytest.mark.clause("batches-5")
def test_items_run_together_up_to_the_limit() -> None:
    for limit in (1, 3):
        line = Line(replace(AGENT, max_in_flight=limit), specimen(), held={"hold"})
        line.send(batch(*(request("hold", id=n) for n in range(5))))
        assert len(line.running) == limit


@pytest.mark.clause("batches-6")
@with_batches
@pytest.mark.parametrize("bad", [b"1", b"null", b'"a"', b"[]", b"{}", b"[[]]", b'{"id":true}'])
def test_an_invalid_item_yields_its_own_error(policy: Policy, bad: bytes) -> None:
    first, second, third = items(policy, request("echo", ["a"], id=1), bad, request("echo", id=3))
    assert (first["result"], third["result"]) == ("a", None)
    assert (second["error"]["code"], second["id"]) == (-32600, None)


@pytest.mark.clause("batches-6")
@with_batches
def test_an_item_that_fails_yields_its_own_error(policy: Policy) -> None:
    sent = [request("foobar", id=1), request("fail", id=2), request("subtract", id=3)]
    codes = [item["error"]["code"] for item in items(policy, *sent, request("gone", id=4))]
    assert codes == [-32601, -32603, -32602, 410]


@pytest.mark.clause("batches-7")
@with_batches
def test_only_notifications_no_answer_at_all(policy: Policy) -> None:
    line = Line(policy, specimen())
    assert line.send(batch(notification("touch", [1]), notification("touch", [2]))) == []
    assert result(line.send(request("seen"))[0]) == [1, 2]


@pytest.mark.clause("batches-7")
@with_batches
def test_notifications_leave_no_gap(policy: Policy) -> None:
    answers = items(policy, notification("touch"), request("echo", id=1), notification("touch"))
    assert [item["id"] for item in answers] == [1]


@pytest.mark.clause("batches-6")
@pytest.mark.parametrize("policy", [DEVELOPMENT, PRODUCTION], ids=lambda policy: policy.name)
def test_every_rule_sees_each_item(policy: Policy) -> None:
    answers = items(policy, notification("pay"), notification("echo"), request("pay", id=None))
    assert [(item["id"], item["error"]["data"]["reason"]) for item in answers] == [
        (None, "command-requires-id"),
        (None, "notification-not-allowed"),
        (None, "command-requires-id"),
    ]


@pytest.mark.clause("batches-6")
@with_batches
def test_every_log_line_sees_each_item(policy: Policy) -> None:
    line = Line(policy, specimen())
    line.send(batch(request("foobar", id=1), notification("foobar"), b"1"))
    assert [entry.severity for entry in line.log.lines] == ["warn", "warn", "warn"]
    assert line.log.lines[0].fields["id"] == b"1"


@pytest.mark.clause("ids-1", "batches-4")
@with_batches
def test_ids_come_back_as_they_were_spelled(policy: Policy) -> None:
    spelled = [b"1.0", b"1e2", b"-0", b"9" * 30, b'"\\u0061"', b"null"]
    bodies = [b'{"jsonrpc":"2.0","id":%b,"method":"echo"}' % id for id in spelled]
    (answer,) = exchange(policy, specimen(), batch(*bodies))
    assert answer == batch(*(b'{"jsonrpc":"2.0","id":%b,"result":null}' % id for id in spelled))


@pytest.mark.carriers("stream", "message link")
@pytest.mark.clause("batches-9")
@with_batches
def test_an_item_can_be_cancelled(policy: Policy) -> None:
    line = Line(policy, specimen(), held={"hold"})
    line.send(batch(request("hold", id=1), request("hold", id=2)))
    line.send(cancel(2))
    (answer,) = line.release_all()
    first, second = json.loads(answer)
    assert first["result"] is None and second["error"]["code"] == -32800


@pytest.mark.clause("batches-4")
@with_batches
def test_batches_and_single_requests_mix(policy: Policy) -> None:
    answers = exchange(
        policy,
        specimen(),
        request("echo", id=1),
        batch(request("echo", id=2)),
        request("echo", id=3),
    )
    assert [type(json.loads(answer)) for answer in answers] == [dict, list, dict]


@pytest.mark.clause("batches-8")
@with_batches
def test_a_broken_batch_is_one_parse_error(policy: Policy) -> None:
    (answer,) = exchange(policy, specimen(), batch(request("echo"))[:-1])
    assert refusal(answer) == (-32700, "Parse error", None, None)


@pytest.mark.clause("batches-1")
def test_a_refused_batch_runs_nothing() -> None:
    body = b'[{"jsonrpc":"2.0","id":1,"method":"pay"},{"jsonrpc":"2.0","id":2,"method":"pay"}]'
    line = Line(EDITOR, specimen())
    (answer,) = line.send(body)
    assert refusal(answer) == (-32600, "Batch requests not supported", "batch-not-supported", None)
    assert result(line.send(request("seen"))[0]) == []
