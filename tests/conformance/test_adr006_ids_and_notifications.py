"""ADR006: ids, correlation and idempotency keys, clause by clause.

What a key is good for, the one result for all retries, is proved with the ledger.
"""

import pytest

from duet_rpc.policy import DEVELOPMENT, PRODUCTION, Policy
from tests.conformance.specimen import specimen
from tests.helpers import Line, exchange, notification, refusal, request, result

both = pytest.mark.parametrize("policy", [DEVELOPMENT, PRODUCTION], ids=lambda p: p.name)
KEY = {"idempotency_key": "order-17"}


# 1. Commands need an id.


@both
def test_a_command_without_id_fails(policy: Policy) -> None:
    line = Line(policy, specimen())
    (answer,) = line.send(notification("pay", KEY))
    assert refusal(answer) == (-32600, "Invalid Request", "command-requires-id", None)
    assert result(line.send(request("seen"))[0]) == []


@both
def test_a_command_with_an_id_runs(policy: Policy) -> None:
    assert result(exchange(policy, specimen(), request("pay", KEY, id=0))[0]) == 1


@both
def test_marking_a_command_for_notifications_does_not_free_it_from_its_id(policy: Policy) -> None:
    assert refusal(exchange(policy, specimen(), notification("fire", KEY))[0]).reason == (
        "command-requires-id"
    )


# 2. Keys for commands.


def test_in_production_a_key_is_required() -> None:
    line = Line(PRODUCTION, specimen())
    (answer,) = line.send(request("pay", {"amount": 3}))
    assert refusal(answer) == (-32602, "Invalid params", "idempotency-key-missing", 1)
    assert result(line.send(request("seen"))[0]) == []


def test_outside_production_a_key_is_optional() -> None:
    assert result(exchange(DEVELOPMENT, specimen(), request("pay", {"amount": 3}))[0]) == 3


@both
def test_the_key_stands_in_params_and_is_no_parameter_of_the_handler(policy: Policy) -> None:
    answer = exchange(policy, specimen(), request("pay", {"amount": 3, **KEY}))[0]
    assert result(answer) == 3


@both
@pytest.mark.parametrize("key", ["", "x" * 256, "a\tb", 5, None, ["k"], {"k": 1}])
def test_a_key_that_is_no_key_is_refused(policy: Policy, key: object) -> None:
    (answer,) = exchange(policy, specimen(), request("pay", {"idempotency_key": key}))
    assert refusal(answer) == (-32602, "Invalid params", "idempotency-key-invalid", 1)


@both
def test_a_key_may_travel_in_meta(policy: Policy) -> None:
    body = request("pay", {"amount": 3, "_meta": KEY})
    assert result(exchange(policy, specimen(), body)[0]) == 3


# 3. Queries and notifications.


@both
def test_a_query_with_an_id_runs_without_a_key(policy: Policy) -> None:
    assert result(exchange(policy, specimen(), request("echo", [1]))[0]) == 1


@both
def test_a_query_takes_no_notification_by_default(policy: Policy) -> None:
    (answer,) = exchange(policy, specimen(), notification("echo", [1]))
    assert refusal(answer) == (-32600, "Invalid Request", "notification-not-allowed", None)


@both
def test_a_query_marked_for_notifications_takes_them(policy: Policy) -> None:
    line = Line(policy, specimen())
    assert line.send(notification("touch", [1])) == []
    assert result(line.send(request("seen"))[0]) == [1]


# 4. Correlation.


@both
def test_the_id_is_the_correlation_id(policy: Policy) -> None:
    line = Line(policy, specimen())
    assert result(line.send(request("whoami", id="abc"))[0])[0] == "abc"
    line.send(request("fail", id="abc"))
    assert line.log.lines[-1].fields["correlation_id"] == "abc"


@both
def test_without_an_id_one_is_made_for_the_log(policy: Policy) -> None:
    line = Line(policy, specimen())
    line.send(notification("foobar"))
    assert line.log.lines[-1].fields["correlation_id"] == "c1-n1"
