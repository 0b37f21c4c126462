"""Policies: one engine, named policies. Each cell of the table is seen at work."""

import json
from typing import Any

import pytest

from duet_rpc.errors import UsageError
from duet_rpc.policy import AGENT, DEVELOPMENT, EDITOR, PRESETS, PRODUCTION, SPEC, Policy, replace
from duet_rpc.server.server import Server
from tests.conformance.specimen import specimen
from tests.helpers import Line, exchange, notification, refusal, request, result

MIB = 1024 * 1024
ALL = [SPEC, EDITOR, AGENT, DEVELOPMENT, PRODUCTION]
every_preset = pytest.mark.parametrize("policy", ALL, ids=lambda policy: policy.name)

BATCH = {"spec": 100, "editor": 0, "agent": 50, "development": 50, "production": 50}


@pytest.mark.clause("policies-2")
@every_preset
def test_batch_limit(policy: Policy) -> None:
    limit = BATCH[policy.name]
    one = request("echo", ["x"], id=1)
    for count in (limit, limit + 1):
        batch = b"[%b]" % b",".join(request("echo", [n], id=n) for n in range(count))
        (answer,) = exchange(policy, specimen(), batch)
        if limit == 0:
            assert refusal(answer).reason == "batch-not-supported"
        elif count > limit:
            assert refusal(answer).reason == "batch-too-large"
        else:
            assert len(json.loads(answer)) == limit
    assert result(exchange(policy, specimen(), one)[0]) == "x"


@pytest.mark.clause("policies-2")
@every_preset
def test_handlers_in_flight(policy: Policy) -> None:
    line = Line(policy, specimen(), held={"hold"})
    line.send(*(request("hold", id=n) for n in range(20)))
    assert len(line.running) == (1 if policy is EDITOR else 16)


@pytest.mark.clause("policies-2")
@every_preset
def test_notifications_of_any_method_or_declared_only(policy: Policy) -> None:
    line = Line(policy, specimen())
    answers = line.send(notification("echo", ["x"]), notification("touch", [5]))
    declared_only = policy in (DEVELOPMENT, PRODUCTION)
    assert len(answers) == declared_only
    assert result(line.send(request("seen"))[0]) == [5]


@pytest.mark.clause("policies-2")
@every_preset
def test_a_refused_message_without_id_is_logged_or_answered(policy: Policy) -> None:
    line = Line(policy, specimen())
    answers = line.send(notification("pay"))
    if policy in (DEVELOPMENT, PRODUCTION):
        assert [refusal(answer).reason for answer in answers] == ["command-requires-id"]
        assert line.log.told() == [("error", "Invalid Request")]
    else:
        assert answers == [] and line.log.lines == []


@pytest.mark.clause("policies-2")
@every_preset
def test_a_command_needs_an_id_or_not(policy: Policy) -> None:
    params = {"idempotency_key": "k"}
    (answer,) = exchange(policy, specimen(), request("pay", params, id=None))
    if policy in (DEVELOPMENT, PRODUCTION):
        assert refusal(answer) == (-32600, "Invalid Request", "command-requires-id", None)
    else:
        assert result(answer) == 1


@pytest.mark.clause("policies-2")
@every_preset
def test_an_idempotency_key_is_required_or_optional(policy: Policy) -> None:
    (answer,) = exchange(policy, specimen(), request("pay", {"amount": 3}))
    if policy is PRODUCTION:
        assert refusal(answer) == (-32602, "Invalid params", "idempotency-key-missing", 1)
    else:
        assert result(answer) == 3
    with_key = request("pay", {"amount": 3, "idempotency_key": "k"})
    assert result(exchange(policy, specimen(), with_key)[0]) == 3


@pytest.mark.clause("policies-3")
@every_preset
def test_the_limits_of_every_preset(policy: Policy) -> None:
    assert policy.max_message_bytes == 10 * MIB
    assert policy.max_header_bytes == 8 * 1024
    assert policy.read_timeout == 30.0
    assert policy.max_depth == 64
    assert policy.max_queued == 256
    assert policy.max_queued_bytes == 32 * MIB
    assert policy.max_output_bytes == MIB
    assert policy.max_subscriptions == 1024


@pytest.mark.clause("policies-4")
def test_a_limit_can_be_replaced() -> None:
    small = replace(EDITOR, max_message_bytes=60)
    answers = exchange(small, specimen(), request("echo"), request("echo", ["x" * 50], id=2))
    assert "result" in json.loads(answers[0])
    assert refusal(answers[1]).reason == "oversize"


@pytest.mark.carriers("stream", "message link")
@pytest.mark.clause("policies-3", "order-6")
def test_two_hundred_and_fifty_six_requests_may_wait() -> None:
    line = Line(EDITOR, specimen(), held={"hold"})
    line.send(*(request("hold", id=n) for n in range(258)))
    assert not line.connection.wants_data  # the one beyond waits unread
    assert [json.loads(answer)["id"] for answer in line.release_all()] == list(range(258))


@pytest.mark.carriers("stream", "message link")
@pytest.mark.clause("policies-3", "order-6")
def test_queued_bodies_are_limited_by_their_bytes() -> None:
    line = Line(replace(EDITOR, max_queued_bytes=1000), specimen(), held={"hold"})
    line.send(request("hold", id=0), request("hold", ["x" * 1000], id=1), request("hold", id=2))
    assert not line.connection.wants_data
    assert [json.loads(answer)["id"] for answer in line.release_all()] == [0, 1, 2]


@pytest.mark.clause("policies-5")
@pytest.mark.parametrize(
    "changes",
    [
        {"key_required": True},
        {"max_batch": -1},
        {"max_queued": -1},
        {"max_message_bytes": 0},
        {"read_timeout": -1.0},
    ],
)
def test_a_policy_that_makes_no_sense_cannot_be_built(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        replace(SPEC, **changes)


@pytest.mark.clause("policies-6")
def test_a_required_key_without_a_durable_store_refuses_to_start() -> None:
    with pytest.raises(UsageError, match="durable store"):
        Server(specimen(), policy=PRODUCTION)


@pytest.mark.clause("policies-1", "policies-2")
def test_there_are_five_presets() -> None:
    assert list(PRESETS.values()) == ALL


@pytest.mark.clause("policies-9")
@every_preset
def test_no_preset_orders_commands(policy: Policy) -> None:
    assert not policy.ordered_commands
    assert replace(policy, ordered_commands=True).ordered_commands
