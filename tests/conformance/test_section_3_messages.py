"""Contract, section 3: messages, ids, order, duplicates, answers and cancellation."""

import json
from typing import Any

import pytest

from duet_rpc.policy import AGENT, DEVELOPMENT, EDITOR, PRODUCTION, SPEC, Policy
from tests.conformance.specimen import specimen
from tests.helpers import (
    Line,
    Refusal,
    cancel,
    exchange,
    ids,
    notification,
    refusal,
    request,
    result,
)

ALL = [SPEC, EDITOR, AGENT, DEVELOPMENT, PRODUCTION]
every_preset = pytest.mark.parametrize("policy", ALL, ids=lambda policy: policy.name)
SEVERAL = [SPEC, AGENT, DEVELOPMENT, PRODUCTION]
several_in_flight = pytest.mark.parametrize("policy", SEVERAL, ids=lambda policy: policy.name)


def one(policy: Policy, body: bytes) -> bytes:
    (answer,) = exchange(policy, specimen(), body)
    return answer


# The envelope.


@every_preset
@pytest.mark.parametrize("version", [b"", b'"jsonrpc":"1.0",', b'"jsonrpc":2,', b'"jsonrpc":null,'])
def test_the_version_is_checked_and_the_id_given_back(policy: Policy, version: bytes) -> None:
    body = b'{%b"id":"x","method":"get_data"}' % version
    assert refusal(one(policy, body)) == (-32600, "Invalid Request", "invalid-envelope", "x")
    assert refusal(one(policy, body.replace(b'"id":"x",', b""))).id is None


@every_preset
@pytest.mark.parametrize("method", [b"1", b"null", b"{}", b"[]", b"true"])
def test_a_method_is_a_string(policy: Policy, method: bytes) -> None:
    body = b'{"jsonrpc":"2.0","id":7,"method":%b}' % method
    assert refusal(one(policy, body)) == (-32600, "Invalid Request", "invalid-envelope", 7)


@every_preset
def test_unknown_members_are_ignored(policy: Policy) -> None:
    body = b'{"auth":[1,{"a":2}],"jsonrpc":"2.0","id":1,"method":"get_data","x":null}'
    assert result(one(policy, body)) == ["hello", 5]


@every_preset
@pytest.mark.parametrize("params", [b"", b',"params":null', b',"params":[]', b',"params":{}'])
def test_no_params_in_four_spellings(policy: Policy, params: bytes) -> None:
    for method, expected in ((b"get_data", ["hello", 5]), (b"sum", 0), (b"echo", None)):
        body = b'{"jsonrpc":"2.0","id":1,"method":"%b"%b}' % (method, params)
        assert result(one(policy, body)) == expected


@every_preset
@pytest.mark.parametrize("params", [b"1", b'"a"', b"true", b"false", b"-1.5"])
def test_params_of_another_type_are_refused(policy: Policy, params: bytes) -> None:
    body = b'{"jsonrpc":"2.0","id":7,"method":"get_data","params":%b}' % params
    assert refusal(one(policy, body)) == (-32600, "Invalid Request", "invalid-envelope", 7)


# Ids.

SPELLINGS = [
    b"0",
    b"-0",
    b"1",
    b"-1",
    b"1.0",
    b"1.10",
    b"1e2",
    b"1E+2",
    b"1E400",
    b"0.1",
    b"9" * 30,
    b"9007199254740993",
    b"18446744073709551617",
    b"9" * 5000,
    b"null",
    b'""',
    b'"0"',
    b'"a b"',
    b'"\\u0061"',
    b'"\\n\\t\\"\\\\\\/"',
    b'"\\ud83d\\ude00"',
    '"é€😀"'.encode(),
    b'"\x7f"',
    b'"' + b"x" * 1000 + b'"',
]


@every_preset
@pytest.mark.parametrize("id", SPELLINGS, ids=lambda id: id[:20].decode())
def test_an_id_is_echoed_exactly_as_it_was_spelled(policy: Policy, id: bytes) -> None:
    for method, rest in (
        (b"get_data", b'"result":["hello",5]'),
        (b"nothing", b'"error":{"code":-32601,'),
        (b"subtract", b'"error":{"code":-32602,'),
        (b"gone", b'"error":{"code":410,'),
        (b"whoami", b'"result":['),
    ):
        body = b'{"jsonrpc":"2.0","id": %b ,"method":"%b"}' % (id, method)
        assert one(policy, body).startswith(b'{"jsonrpc":"2.0","id":%b,%b' % (id, rest))


@every_preset
@pytest.mark.parametrize("id", [b"true", b"false", b"{}", b"[]", b'{"a":1}', b"[1]"])
def test_an_id_of_another_type_is_refused(policy: Policy, id: bytes) -> None:
    body = b'{"jsonrpc":"2.0","id":%b,"method":"get_data"}' % id
    assert refusal(one(policy, body)) == (-32600, "Invalid Request", "invalid-id-type", None)


@every_preset
def test_a_null_id_is_a_request_and_an_absent_one_a_notification(policy: Policy) -> None:
    assert one(policy, request("get_data", id=None)) == (
        b'{"jsonrpc":"2.0","id":null,"result":["hello",5]}'
    )
    assert exchange(policy, specimen(), notification("touch")) == []


# Duplicates and order.


@several_in_flight
def test_an_id_in_flight_is_refused_a_second_time(policy: Policy) -> None:
    line = Line(policy, specimen(), held={"hold"})
    (answer,) = line.send(request("hold", id=5), request("hold", id=5))
    assert refusal(answer) == (-32600, "Invalid Request", "duplicate-id", 5)
    assert ids(line.release_all()) == [5]
    assert ids(line.send(request("echo", id=5))) == [5]


@several_in_flight
def test_queued_ids_are_in_flight_too(policy: Policy) -> None:
    line = Line(policy, specimen(), held={"hold"})
    line.send(*(request("hold", id=n) for n in range(20)))
    assert refusal(line.send(request("hold", id=19))[0]).reason == "duplicate-id"


@several_in_flight
def test_null_ids_are_never_duplicates(policy: Policy) -> None:
    line = Line(policy, specimen(), held={"hold"})
    assert line.send(request("hold", id=None), request("hold", id=None)) == []
    assert ids(line.release_all()) == [None, None]


def test_another_connection_has_ids_of_its_own() -> None:
    service = specimen()
    first, second = (Line(AGENT, service, held={"hold"}) for _ in "ab")
    assert first.send(request("hold", id=1)) == second.send(request("hold", id=1)) == []


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


def test_the_next_request_starts_after_the_answer_was_written() -> None:
    line = Line(EDITOR, specimen(), held={"hold"})
    line.send(request("hold", id=1), request("hold", id=2))
    assert line.running == [b"1"] and line.host.writes == []
    line.release()
    assert len(line.host.writes) == 1 and line.running == [b"2"]


@several_in_flight
def test_elsewhere_answers_come_as_they_are_ready(policy: Policy) -> None:
    line = Line(policy, specimen(), held={"hold"})
    assert ids(line.send(request("hold", id=1), request("echo", id=2))) == [2]
    assert ids(line.release()) == [1]


# Answers.


@every_preset
@pytest.mark.parametrize("id", [b"1", b'"x"', b"null", b"9" * 5000])
@pytest.mark.parametrize("member", [b'"result":1', b'"error":{"code":1,"message":"m"}'])
def test_an_answer_to_no_call_is_dropped_and_counted(
    policy: Policy, id: bytes, member: bytes
) -> None:
    line = Line(policy, specimen())
    assert line.send(b'{"jsonrpc":"2.0","id":%b,%b}' % (id, member)) == []
    assert line.connection.unmatched_answers == 1


# No handshake.


@every_preset
def test_every_method_is_callable_at_once(policy: Policy) -> None:
    assert result(one(policy, request("subtract", [42, 23]))) == 19


# Cancellation.


def cancelled(id: Any) -> Refusal:
    return Refusal(-32800, "Request cancelled", "cancelled", id)


@every_preset
def test_reading_goes_on_while_a_handler_runs(policy: Policy) -> None:
    line = Line(policy, specimen(), held={"hold"})
    line.send(request("hold", id=1))
    assert [refusal(answer) for answer in line.send(cancel(1))] == [cancelled(1)]


@every_preset
@pytest.mark.parametrize("id", [1, "x", 1.5])
def test_a_running_request_is_answered_once(policy: Policy, id: Any) -> None:
    line = Line(policy, specimen(), held={"hold"})
    answers = line.send(request("hold", id=id), cancel(id), cancel(id))
    assert [refusal(answer) for answer in answers] == [cancelled(id)]
    assert [job.id for job in line.host.cancelled] == [json.dumps(id).encode()]
    assert line.release_all() == []


@every_preset
def test_a_queued_request_is_dropped(policy: Policy) -> None:
    line = Line(policy, specimen(), held={"hold"})
    line.send(*(request("hold", [n], id=n) for n in range(20)))
    answers = line.send(cancel(19), cancel(19))
    assert [refusal(answer) for answer in answers] == [cancelled(19)]
    assert ids(line.release_all()) == list(range(19))


@every_preset
def test_a_result_that_came_first_is_the_answer(policy: Policy) -> None:
    assert ids(exchange(policy, specimen(), request("echo", id=1), cancel(1))) == [1]


@every_preset
@pytest.mark.parametrize("id", [7, "1", None, [], {}])
def test_unknown_ids_are_ignored(policy: Policy, id: Any) -> None:
    line = Line(policy, specimen(), held={"hold"})
    assert line.send(request("hold", id=1), cancel(id)) == []
    assert ids(line.release_all()) == [1]


@every_preset
def test_a_cancellation_without_id_changes_nothing(policy: Policy) -> None:
    line = Line(policy, specimen(), held={"hold"})
    assert line.send(request("hold", id=1), notification("$/cancelRequest")) == []
    assert ids(line.release_all()) == [1]
