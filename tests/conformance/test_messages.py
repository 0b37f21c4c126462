"""Messages: the envelope, params, answers to no call; no handshake."""

import pytest

from duet_rpc.policy import AGENT, DEVELOPMENT, EDITOR, PRODUCTION, SPEC, Policy
from tests.conformance.specimen import specimen
from tests.helpers import (
    Line,
    exchange,
    refusal,
    request,
    result,
)

ALL = [SPEC, EDITOR, AGENT, DEVELOPMENT, PRODUCTION]
every_preset = pytest.mark.parametrize("policy", ALL, ids=lambda policy: policy.name)


def one(policy: Policy, body: bytes) -> bytes:
    (answer,) = exchange(policy, specimen(), body)
    return answer


# The envelope.


@pytest.mark.clause("messages-1")
@every_preset
@pytest.mark.parametrize("version", [b"", b'"jsonrpc":"1.0",', b'"jsonrpc":2,', b'"jsonrpc":null,'])
def test_the_version_is_checked_and_the_id_given_back(policy: Policy, version: bytes) -> None:
    body = b'{%b"id":"x","method":"get_data"}' % version
    assert refusal(one(policy, body)) == (-32600, "Invalid Request", "invalid-envelope", "x")
    assert refusal(one(policy, body.replace(b'"id":"x",', b""))).id is None


@pytest.mark.clause("messages-1")
@every_preset
@pytest.mark.parametrize("method", [b"1", b"null", b"{}", b"[]", b"true"])
def test_a_method_is_a_string(policy: Policy, method: bytes) -> None:
    body = b'{"jsonrpc":"2.0","id":7,"method":%b}' % method
    assert refusal(one(policy, body)) == (-32600, "Invalid Request", "invalid-envelope", 7)


@pytest.mark.clause("messages-2")
@every_preset
def test_unknown_members_are_ignored(policy: Policy) -> None:
    body = b'{"auth":[1,{"a":2}],"jsonrpc":"2.0","id":1,"method":"get_data","x":null}'
    assert result(one(policy, body)) == ["hello", 5]


@pytest.mark.clause("messages-4")
@every_preset
@pytest.mark.parametrize("params", [b"", b',"params":null', b',"params":[]', b',"params":{}'])
def test_no_params_in_four_spellings(policy: Policy, params: bytes) -> None:
    for method, expected in ((b"get_data", ["hello", 5]), (b"sum", 0), (b"echo", None)):
        body = b'{"jsonrpc":"2.0","id":1,"method":"%b"%b}' % (method, params)
        assert result(one(policy, body)) == expected


@pytest.mark.clause("messages-4")
@every_preset
@pytest.mark.parametrize("params", [b"1", b'"a"', b"true", b"false", b"-1.5"])
def test_params_of_another_type_are_refused(policy: Policy, params: bytes) -> None:
    body = b'{"jsonrpc":"2.0","id":7,"method":"get_data","params":%b}' % params
    assert refusal(one(policy, body)) == (-32600, "Invalid Request", "invalid-envelope", 7)


# Answers.


@pytest.mark.carriers("stream", "message link")
@pytest.mark.clause("messages-6")
@every_preset
@pytest.mark.parametrize("id", [b"1", b'"x"', b"null", b"9" * 5000])
@pytest.mark.parametrize("member", [b'"result":1', b'"error":{"code":1,"message":"m"}'])
def test_an_answer_to_no_call_is_dropped_and_counted(
    policy: Policy, id: bytes, member: bytes
) -> None:
    line = Line(policy, specimen())
    assert line.send(b'{"jsonrpc":"2.0","id":%b,%b}' % (id, member)) == []
    assert line.connection.requests.stats.unmatched_answers == 1


# No handshake.


@pytest.mark.clause("messages-5")
@every_preset
def test_every_method_is_callable_at_once(policy: Policy) -> None:
    assert result(one(policy, request("subtract", [42, 23]))) == 19
