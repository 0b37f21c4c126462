"""Correlation ids and trace context."""

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from duet_rpc import Context, Service
from duet_rpc.ledger import Ledger, MemoryStore
from duet_rpc.ledger.commands import Commands
from duet_rpc.policy import AGENT, DEVELOPMENT, EDITOR, PRODUCTION, Policy
from duet_rpc.server.logs import Logs
from tests.conformance.specimen import specimen
from tests.helpers import Line, exchange, notification, refusal, request, result

both = pytest.mark.parametrize("policy", [EDITOR, AGENT], ids=lambda policy: policy.name)


@pytest.mark.clause("correlation-1", "correlation-3")
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


@pytest.mark.clause("correlation-2")
@both
def test_every_log_line_has_a_correlation_id_beside_a_connection_id(policy: Policy) -> None:
    line = Line(policy, specimen())
    line.send(
        request("fail", id="a"),
        request("foobar", id=2),
        request("subtract", id=3),
        request("unserializable", id=4),
        b'{"jsonrpc":"1.0","id":5,"method":"echo"}',
        b"garbage",
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


@pytest.mark.clause("correlation-2")
@both
def test_an_unreadable_id_is_not_told_as_one(policy: Policy) -> None:
    line = Line(policy, specimen())
    line.send(b"{")
    assert line.log.lines[0].fields["id"] is None


@pytest.mark.clause("correlation-1")
@both
def test_a_null_id_is_told(policy: Policy) -> None:
    line = Line(policy, specimen())
    line.send(request("foobar", id=None))
    assert line.log.lines[0].fields["id"] == b"null"


@pytest.mark.clause("correlation-1", "correlation-3")
@both
def test_a_message_without_id_gets_one_that_its_handler_can_read(policy: Policy) -> None:
    line = Line(policy, specimen(), held={"whoami"})
    line.send(notification("whoami"), request("echo"))
    job = line.host.open[0]
    assert job.context is not None
    assert job.context.correlation_id == "c1-n1"


@pytest.mark.clause("correlation-5")
@both
def test_trace_context_travels_in_meta(policy: Policy) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    body = request("whoami", {"_meta": {"traceparent": trace, "other": 1}})
    assert result(exchange(policy, specimen(), body)[0]) == ["1", "c1", trace]


@pytest.mark.clause("correlation-6")
@both
@pytest.mark.parametrize("meta", [None, 5, [], {}, {"traceparent": 5}])
def test_meta_that_is_not_ours_is_no_fault(policy: Policy, meta: object) -> None:
    body = request("whoami", {"_meta": meta})
    assert result(exchange(policy, specimen(), body)[0]) == ["1", "c1", None]


# Commands: the same id on every line, in the record, and in the handler's hands.


class Paid:
    """A command that notes the correlation ids it was run under."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.service = Service()
        self.store = MemoryStore()
        self.commands = Commands(lambda: Ledger(self.store))

        @self.service.command
        def pay(ctx: Context, fail: bool = False) -> None:
            self.seen.append(ctx.correlation_id)
            if fail:
                raise ValueError("unforeseen")

    def line(self) -> Line:
        return Line(PRODUCTION, self.service, ledger=self.commands)


@pytest.fixture
def paid() -> Iterator[Paid]:
    paid = Paid()
    yield paid
    paid.commands.close()


@pytest.mark.clause("correlation-4")
def test_a_command_is_recorded_under_the_id_of_the_request_that_ran_it(paid: Paid) -> None:
    line = paid.line()
    for id in ("first", "retry"):
        line.send(request("pay", {"idempotency_key": "k"}, id=id))
    [record] = paid.store.records()
    assert record.correlation_id == "first"
    assert paid.seen == ["first"]


@pytest.mark.clause("correlation-2")
def test_each_line_about_a_failing_command_carries_its_id(paid: Paid) -> None:
    line = paid.line()
    line.send(request("pay", {"idempotency_key": "k", "fail": True}, id="f-1"))
    line.send(request("pay", {"idempotency_key": "k", "wrong": 1}, id="f-2"))
    line.send(request("pay", {}, id="f-3"))
    said = [(entry.fields["correlation_id"], entry.fields["method"]) for entry in line.log.lines]
    assert said[0] == ("f-1", "pay")
    assert {id for id, _ in said} <= {"f-1", "f-2", "f-3"}


@pytest.mark.clause("correlation-4")
def test_what_the_ledger_itself_says_about_a_command_carries_its_id(tmp_path: Path) -> None:
    file = tmp_path / "log"
    logs = Logs(path=str(file))
    store = MemoryStore()
    service = Service()

    @service.command
    def slow() -> str:
        store._records.clear()  # as if somebody else had taken it over and been forgotten
        until = time.monotonic() + 60
        while "lost its lease" not in file.read_text() and time.monotonic() < until:
            time.sleep(0.02)
        return "slow"

    commands = Commands(lambda: Ledger(store, lease=0.6, wait=0.1))
    commands.on_open = logs.adopt
    root = logging.getLogger("duet_rpc")
    before = root.handlers[:], root.level, root.propagate
    try:
        line = Line(PRODUCTION, service, ledger=commands)
        [answer] = line.send(request("slow", {"idempotency_key": "k"}, id="s-1"))
        assert refusal(answer).reason == "outcome-unknown", "its record is gone"
    finally:
        root.handlers[:], root.level, root.propagate = before
        commands.close()
    [said] = [each for each in file.read_text().splitlines() if "lost its lease" in each]
    assert "warn a run of slow lost its lease method=slow correlation_id=s-1" in said


both = pytest.mark.parametrize("policy", [DEVELOPMENT, PRODUCTION], ids=lambda policy: policy.name)


@pytest.mark.clause("correlation-1", "correlation-2")
@both
def test_the_id_is_the_correlation_id(policy: Policy) -> None:
    line = Line(policy, specimen())
    assert result(line.send(request("whoami", id="abc"))[0])[0] == "abc"
    line.send(request("fail", id="abc"))
    assert line.log.lines[-1].fields["correlation_id"] == "abc"


@pytest.mark.clause("correlation-1", "correlation-2")
@both
def test_without_an_id_one_is_made_for_the_log(policy: Policy) -> None:
    line = Line(policy, specimen())
    line.send(notification("foobar"))
    assert line.log.lines[-1].fields["correlation_id"] == "c1-n1"
