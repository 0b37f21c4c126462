"""Contract, section 8: correlation ids and trace context."""

import pytest

from duet_rpc.policy import AGENT, EDITOR, Policy
from tests.conformance.specimen import specimen
from tests.helpers import Line, Wire, exchange, notification, request, result

both = pytest.mark.parametrize("policy", [EDITOR, AGENT], ids=lambda policy: policy.name)


@both
@pytest.mark.parametrize(
    ("id", "said"),
    [
        (b"7", "7"),
        (b"1.0", "1.0"),
        (b"-0", "-0"),
        (b'"a"', "a"),
        (b'"\\u0061\\n"', "a\n"),
        (b"null", "null"),
        (b"9" * 30, "9" * 30),
    ],
)
def test_a_handler_reads_the_requests_id(policy: Policy, id: bytes, said: str) -> None:
    body = b'{"jsonrpc":"2.0","id":%b,"method":"whoami"}' % id
    (answer,) = exchange(policy, specimen(), body)
    assert result(answer) == [said, "c1", None]


@both
def test_every_log_line_has_a_correlation_id_beside_a_connection_id(policy: Policy) -> None:
    line = Line(policy, specimen())
    line.send(
        request("fail", id="a"),
        request("foobar", id=2),
        request("subtract", id=3),
        request("unserializable", id=4),
        b'{"jsonrpc":"1.0","id":5,"method":"echo"}',
        Wire(b"garbage\r\n\r\n"),
        b"{",
        notification("foobar"),
        notification("fail"),
        notification("$/cancelRequest"),
        b'{"jsonrpc":"2.0","id":6,"result":1}',
    )
    assert {entry.fields["connection_id"] for entry in line.log.lines} == {"c1"}
    said = [entry.fields["correlation_id"] for entry in line.log.lines]
    assert said[:5] == ["a", "2", "3", "4", "5"]
    assert all(isinstance(correlation, str) and correlation for correlation in said)
    generated = said[5:-1]
    assert len(generated) == 6
    # One message has one: the notification that failed has two lines.
    assert len(set(generated)) == 5 and not set(generated) & set(said[:5])


@both
def test_an_unreadable_id_is_not_told_as_one(policy: Policy) -> None:
    line = Line(policy, specimen())
    line.send(b"{")
    assert line.log.lines[0].fields["id"] is None


@both
def test_a_null_id_is_told(policy: Policy) -> None:
    line = Line(policy, specimen())
    line.send(request("foobar", id=None))
    assert line.log.lines[0].fields["id"] == b"null"


@both
def test_a_message_without_id_gets_one_that_its_handler_can_read(policy: Policy) -> None:
    line = Line(policy, specimen(), held={"whoami"})
    line.send(notification("whoami"), request("echo"))
    job = line.host.open[0]
    assert job.context is not None
    assert job.context.correlation_id == "c1-n1"


@both
def test_trace_context_travels_in_meta(policy: Policy) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    body = request("whoami", {"_meta": {"traceparent": trace, "other": 1}})
    assert result(exchange(policy, specimen(), body)[0]) == ["1", "c1", trace]


@both
@pytest.mark.parametrize("meta", [None, 5, [], {}, {"traceparent": 5}])
def test_meta_that_is_not_ours_is_no_fault(policy: Policy, meta: object) -> None:
    body = request("whoami", {"_meta": meta})
    assert result(exchange(policy, specimen(), body)[0]) == ["1", "c1", None]
