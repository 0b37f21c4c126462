"""Notifications are never answered and never end anything."""

import pytest

from duet_rpc import Context, Service
from duet_rpc.errors import UsageError
from duet_rpc.policy import AGENT, DEVELOPMENT, EDITOR, PRODUCTION, SPEC, Policy
from tests.conformance.specimen import specimen
from tests.helpers import Line, data_of, exchange, notification, refusal, request, result

ALL = [SPEC, EDITOR, AGENT, DEVELOPMENT, PRODUCTION]
STRICT = [DEVELOPMENT, PRODUCTION]
LENIENT = [SPEC, EDITOR, AGENT]


def name(policy: Policy) -> str:
    return policy.name


every_preset = pytest.mark.parametrize("policy", ALL, ids=name)
strict = pytest.mark.parametrize("policy", STRICT, ids=name)
lenient = pytest.mark.parametrize("policy", LENIENT, ids=name)


@pytest.mark.clause("notifications-1")
@every_preset
def test_a_notification_is_run_and_not_answered(policy: Policy) -> None:
    line = Line(policy, specimen())
    assert line.send(notification("touch", [7]), notification("touch", {"value": 8})) == []
    assert result(line.send(request("seen"))[0]) == [7, 8]


@pytest.mark.clause("notifications-2")
@every_preset
def test_an_unknown_method_is_logged_at_warn(policy: Policy) -> None:
    line = Line(policy, specimen())
    assert line.send(notification("foobar")) == []
    (entry,) = line.log.lines
    assert (entry.severity, entry.fields["method"]) == ("warn", "foobar")


@pytest.mark.clause("notifications-2")
@every_preset
def test_bad_params_are_logged_at_error(policy: Policy) -> None:
    line = Line(policy, specimen())
    assert line.send(notification("touch", [1, 2])) == []
    (entry,) = line.log.lines
    assert (entry.severity, entry.text, entry.fields["method"]) == (
        "error",
        "Invalid params",
        "touch",
    )


@pytest.mark.clause("notifications-2")
@lenient
@pytest.mark.parametrize("method", ["fail", "gone", "unserializable"])
def test_a_failing_handler_is_logged_at_error(policy: Policy, method: str) -> None:
    line = Line(policy, specimen())
    assert line.send(notification(method)) == []
    if policy is not EDITOR or method != "unserializable":
        assert line.log.lines and {entry.severity for entry in line.log.lines} == {"error"}
    assert result(line.send(request("echo", [1]))[0]) == 1


@pytest.mark.clause("notifications-3")
@lenient
def test_commands_and_queries_take_notifications(policy: Policy) -> None:
    line = Line(policy, specimen())
    sent = [notification("pay", [3]), notification("notify_hello", [4]), notification("fire", [5])]
    assert line.send(*sent) == []
    assert result(line.send(request("seen"))[0]) == [3, 4, 5]


@pytest.mark.clause("notifications-4")
@strict
@pytest.mark.parametrize("method", ["pay", "fire"])
def test_a_command_without_id_is_an_invalid_request(policy: Policy, method: str) -> None:
    line = Line(policy, specimen())
    (answer,) = line.send(notification(method, {"idempotency_key": "k"}))
    assert refusal(answer) == (-32600, "Invalid Request", "command-requires-id", None)
    assert result(line.send(request("seen"))[0]) == []


@pytest.mark.clause("notifications-5")
@strict
def test_a_command_with_a_null_id_is_refused_likewise(policy: Policy) -> None:
    line = Line(policy, specimen())
    (answer,) = line.send(request("pay", {"idempotency_key": "k"}, id=None))
    assert refusal(answer) == (-32600, "Invalid Request", "command-requires-id", None)
    assert result(line.send(request("seen"))[0]) == []


@pytest.mark.clause("notifications-4")
@strict
def test_a_query_that_does_not_allow_it_takes_no_notification(policy: Policy) -> None:
    line = Line(policy, specimen())
    (answer,) = line.send(notification("notify_hello", [4]))
    assert refusal(answer) == (-32600, "Invalid Request", "notification-not-allowed", None)
    assert result(line.send(request("seen"))[0]) == []


@pytest.mark.clause("notifications-5")
@strict
def test_a_query_with_a_null_id_is_a_request(policy: Policy) -> None:
    assert exchange(policy, specimen(), request("get_data", id=None)) == [
        b'{"jsonrpc":"2.0","id":null,"result":["hello",5]}'
    ]


@pytest.mark.clause("notifications-6")
@every_preset
def test_a_notification_waits_its_turn(policy: Policy) -> None:
    line = Line(policy, specimen(), held={"hold"})
    held = [request("hold", id=n) for n in range(policy.max_in_flight)]
    line.send(*held, notification("touch", [7]))
    assert line.running == [b"%d" % n for n in range(policy.max_in_flight)]
    line.release_all()
    assert result(line.send(request("seen"))[0]) == [7]


@pytest.mark.clause("notifications-4")
@strict
def test_a_command_with_an_id_runs(policy: Policy) -> None:
    assert (
        result(exchange(policy, specimen(), request("pay", {"idempotency_key": "k"}, id=0))[0]) == 1
    )


# Notifications that keep their order.


def ordered() -> Service:
    service, seen = Service(), list[int]()

    @service.notification
    def change(number: int) -> None:
        seen.append(number)

    @service.notification(unordered=True)
    async def hint(number: int) -> None:
        seen.append(number)

    @service.query
    def look(ctx: Context) -> list[int]:
        return list(seen)

    return service


@pytest.mark.carriers("stream", "message link")
@pytest.mark.clause("notifications-8")
@every_preset
def test_nothing_later_is_started_before_an_ordered_notification_has_ended(policy: Policy) -> None:
    line = Line(policy, ordered(), held={"change"})
    assert line.send(notification("change", [1]), request("look", id=1)) == []
    assert line.send(notification("change", [2]), request("look", id=2)) == []
    assert line.running == [None]
    assert [result(answer) for answer in line.release()] == [[1]]
    assert [result(answer) for answer in line.release()] == [[1, 2]]


@pytest.mark.carriers("stream", "message link")
@pytest.mark.clause("notifications-8")
def test_an_ordered_notification_runs_beside_requests_that_began_before_it() -> None:
    line = Line(AGENT, ordered(), held={"look", "change"})
    line.send(request("look", id=1), notification("change", [1]), request("look", id=2))
    assert line.running == [b"1", None]
    assert result(line.release(b"1")[0]) == []
    line.release()
    assert line.running == [b"2"]


@pytest.mark.clause("notifications-8")
def test_one_that_is_unordered_holds_nothing_back() -> None:
    line = Line(AGENT, ordered(), held={"hint"})
    assert result(line.send(notification("hint", [1]), request("look", id=1))[0]) == []
    assert line.running == [None]


@pytest.mark.clause("notifications-8")
@every_preset
def test_a_notification_is_not_called_with_an_id(policy: Policy) -> None:
    (answer,) = exchange(policy, ordered(), request("change", [1]))
    assert refusal(answer).code == -32601
    assert "send it without an id" in data_of(answer)["detail"]


@pytest.mark.clause("notifications-8")
def test_names_of_the_protocol_may_be_served_but_not_its_cancellation() -> None:
    service = Service()

    @service.notification(name="$/setTrace")
    def set_trace(value: str) -> None: ...

    assert exchange(EDITOR, service, notification("$/setTrace", ["off"])) == []
    service.notification(name="$/cancelRequest")(set_trace)
    with pytest.raises(UsageError, match="cannot be served"):
        exchange(EDITOR, service, notification("$/setTrace", ["off"]))
