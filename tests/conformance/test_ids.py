"""Ids: echoed as they were spelled, refused, in flight and used again."""

import pytest

from duet_rpc.policy import AGENT, DEVELOPMENT, EDITOR, PRODUCTION, SPEC, Policy
from tests.conformance.specimen import specimen
from tests.helpers import (
    Line,
    exchange,
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


@pytest.mark.clause("ids-1")
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


@pytest.mark.clause("ids-2")
@every_preset
@pytest.mark.parametrize("id", [b"true", b"false", b"{}", b"[]", b'{"a":1}', b"[1]"])
def test_an_id_of_another_type_is_refused(policy: Policy, id: bytes) -> None:
    body = b'{"jsonrpc":"2.0","id":%b,"method":"get_data"}' % id
    assert refusal(one(policy, body)) == (-32600, "Invalid Request", "invalid-id-type", None)


@pytest.mark.clause("ids-3")
@every_preset
def test_a_null_id_is_a_request_and_an_absent_one_a_notification(policy: Policy) -> None:
    assert one(policy, request("get_data", id=None)) == (
        b'{"jsonrpc":"2.0","id":null,"result":["hello",5]}'
    )
    assert exchange(policy, specimen(), notification("touch")) == []


# Duplicates.


@pytest.mark.carriers("stream", "message link")
@pytest.mark.clause("ids-4", "ids-6")
@several_in_flight
def test_an_id_in_flight_is_refused_a_second_time(policy: Policy) -> None:
    line = Line(policy, specimen(), held={"hold"})
    (answer,) = line.send(request("hold", id=5), request("hold", id=5))
    assert refusal(answer) == (-32600, "Invalid Request", "duplicate-id", 5)
    assert ids(line.release_all()) == [5]
    assert ids(line.send(request("echo", id=5))) == [5]


@pytest.mark.carriers("stream", "message link")
@pytest.mark.clause("ids-4")
@several_in_flight
def test_queued_ids_are_in_flight_too(policy: Policy) -> None:
    line = Line(policy, specimen(), held={"hold"})
    line.send(*(request("hold", id=n) for n in range(20)))
    assert refusal(line.send(request("hold", id=19))[0]).reason == "duplicate-id"


@pytest.mark.clause("ids-5")
@several_in_flight
def test_null_ids_are_never_duplicates(policy: Policy) -> None:
    line = Line(policy, specimen(), held={"hold"})
    assert line.send(request("hold", id=None), request("hold", id=None)) == []
    assert ids(line.release_all()) == [None, None]


@pytest.mark.clause("ids-5")
def test_another_connection_has_ids_of_its_own() -> None:
    service = specimen()
    first, second = (Line(AGENT, service, held={"hold"}) for _ in "ab")
    assert first.send(request("hold", id=1)) == second.send(request("hold", id=1)) == []
