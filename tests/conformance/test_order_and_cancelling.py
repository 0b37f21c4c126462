"""Order and cancelling: when a request starts, is answered, and is given up."""

import json
from typing import Any

import pytest

from duet_rpc.policy import AGENT, DEVELOPMENT, EDITOR, PRODUCTION, SPEC, Policy
from tests.conformance.specimen import specimen
from tests.helpers import (
    Line,
    Refusal,
    Wire,
    cancel,
    exchange,
    frame,
    ids,
    notification,
    refusal,
    request,
)

ALL = [SPEC, EDITOR, AGENT, DEVELOPMENT, PRODUCTION]
every_preset = pytest.mark.parametrize("policy", ALL, ids=lambda policy: policy.name)
SEVERAL = [SPEC, AGENT, DEVELOPMENT, PRODUCTION]
several_in_flight = pytest.mark.parametrize("policy", SEVERAL, ids=lambda policy: policy.name)


def one(policy: Policy, body: bytes) -> bytes:
    (answer,) = exchange(policy, specimen(), body)
    return answer


# Order.


@pytest.mark.carriers("stream", "message link")
@pytest.mark.clause("order-2", "ids-6")
def test_where_one_may_be_in_flight_answers_come_in_request_order() -> None:
    line = Line(EDITOR, specimen(), held={"hold"})
    sent = [
        request("hold", id=1),
        request("echo", id=2),
        request("nothing", id=3),
        b"{",
        request("hold", id=5),
        b"[]",
        request("gone", id=7),
        request("hold", id=5),
    ]
    answers = line.send(*sent)
    while line.host.open:
        answers += line.release()
    assert ids(answers) == [1, 2, 3, None, 5, None, 7, 5]


@pytest.mark.clause("order-2")
def test_the_next_request_starts_after_the_answer_was_written() -> None:
    line = Line(EDITOR, specimen(), held={"hold"})
    line.send(request("hold", id=1), request("hold", id=2))
    assert line.running == [b"1"] and line.host.writes == []
    line.release()
    assert len(line.host.writes) == 1 and line.running == [b"2"]


@pytest.mark.clause("order-4")
@several_in_flight
def test_elsewhere_answers_come_as_they_are_ready(policy: Policy) -> None:
    line = Line(policy, specimen(), held={"hold"})
    assert ids(line.send(request("hold", id=1), request("echo", id=2))) == [2]
    assert ids(line.release()) == [1]


@pytest.mark.carriers("stream")
@pytest.mark.clause("order-2")
@pytest.mark.carriers("stream")
def test_responses_come_in_request_order_also_when_clients_pipeline() -> None:
    stream = b"".join(
        frame(request(("echo", "foobar", "gone", "subtract", "whoami")[n % 5], id=n))
        for n in range(100)
    )
    assert ids(exchange(EDITOR, specimen(), Wire(stream))) == list(range(100))


# Cancellation.


def cancelled(id: Any) -> Refusal:
    return Refusal(-32800, "Request cancelled", "cancelled", id)


@pytest.mark.carriers("stream", "message link")
@pytest.mark.clause("order-5")
@every_preset
def test_reading_goes_on_while_a_handler_runs(policy: Policy) -> None:
    line = Line(policy, specimen(), held={"hold"})
    line.send(request("hold", id=1))
    assert [refusal(answer) for answer in line.send(cancel(1))] == [cancelled(1)]


@pytest.mark.carriers("stream", "message link")
@pytest.mark.clause("cancelling-1")
@every_preset
@pytest.mark.parametrize("id", [1, "x", 1.5])
def test_a_running_request_is_answered_once(policy: Policy, id: Any) -> None:
    line = Line(policy, specimen(), held={"hold"})
    answers = line.send(request("hold", id=id), cancel(id), cancel(id))
    assert [refusal(answer) for answer in answers] == [cancelled(id)]
    assert [job.id for job in line.host.cancelled] == [json.dumps(id).encode()]
    assert line.release_all() == []


@pytest.mark.clause("cancelling-2")
@every_preset
def test_a_queued_request_is_dropped(policy: Policy) -> None:
    line = Line(policy, specimen(), held={"hold"})
    line.send(*(request("hold", [n], id=n) for n in range(20)))
    answers = line.send(cancel(19), cancel(19))
    assert [refusal(answer) for answer in answers] == [cancelled(19)]
    assert ids(line.release_all()) == list(range(19))


@pytest.mark.clause("cancelling-1")
@every_preset
def test_a_result_that_came_first_is_the_answer(policy: Policy) -> None:
    assert ids(exchange(policy, specimen(), request("echo", id=1), cancel(1))) == [1]


@pytest.mark.clause("cancelling-5")
@every_preset
@pytest.mark.parametrize("id", [7, "1", None, [], {}])
def test_unknown_ids_are_ignored(policy: Policy, id: Any) -> None:
    line = Line(policy, specimen(), held={"hold"})
    assert line.send(request("hold", id=1), cancel(id)) == []
    assert ids(line.release_all()) == [1]


@pytest.mark.clause("cancelling-5")
@every_preset
def test_a_cancellation_without_id_changes_nothing(policy: Policy) -> None:
    line = Line(policy, specimen(), held={"hold"})
    assert line.send(request("hold", id=1), notification("$/cancelRequest")) == []
    assert ids(line.release_all()) == [1]
