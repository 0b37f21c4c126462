"""Commands one at a time beside queries: any mix of messages against a model, and single cases."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duet_rpc import Context, Service
from duet_rpc.engine.dispatch import Job
from duet_rpc.engine.ordered_commands import OrderedRequests, put_in_order
from duet_rpc.engine.requests import Requests
from duet_rpc.kinds import Promise
from duet_rpc.policy import AGENT, SPEC, Policy, replace
from tests.helpers import Chosen, Line, cancel, notification, request, result

service = Service()


@service.query
def look(ctx: Context, value: Any = None) -> Any:
    """Look at something; with a context, so that it is never answered on the fast path."""
    return value


@service.command
def act(ctx: Context, value: Any = None) -> Any:
    """Act; with a context, so that a test can have it wait for its peer."""
    return value


@service.notification
def change() -> None: ...


HELD = ("look", "act", "change")
ORDERED = replace(SPEC, ordered_commands=True)


class Model:
    """What may begin: the first in the order of arrival that has a slot, and the turn."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.pending: list[tuple[str, int]] = []
        self.running: list[tuple[str, int]] = []
        self.started: list[int] = []

    def take(self, method: str, number: int) -> None:
        self.pending.append((method, number))
        self.go_on()

    def go_on(self) -> None:
        while len(self.running) < self.limit:
            is_taken = any(method == "act" for method, _ in self.running)
            each = next((p for p in self.pending if p[0] == "look" or not is_taken), None)
            if each is None:
                return
            self.pending.remove(each)
            self.running.append(each)
            self.started.append(each[1])

    def end(self, number: int) -> None:
        self.running = [each for each in self.running if each[1] != number]
        self.go_on()

    def cancel(self, number: int) -> None:
        self.pending = [each for each in self.pending if each[1] != number]
        self.go_on()


class Run:
    """A connection beside its model; a message has its number as its value and its id."""

    def __init__(self, policy: Policy) -> None:
        self.line = Line(policy, service, held=HELD)
        self.model = Model(policy.max_in_flight)
        self.sent = 0
        self.open: list[int] = []
        """The ids that may be cancelled."""
        self.wanted: list[int] = []
        self.answered: list[int] = []

    def write(self, method: str, form: str) -> bytes:
        self.sent += 1
        number = self.sent
        if form == "notification":
            return notification(method, {"value": number})
        self.open.append(number)
        self.wanted.append(number)
        message = json.loads(request(method, {"value": number}, number))
        if form == "odd":
            message["odd"] = True
        if form == "large":
            message["params"]["value"] = [number, "x" * 2000]
        return json.dumps(message).encode()

    def take(self, messages: list[tuple[str, str]], *, as_batch: bool) -> None:
        first = self.sent + 1
        bodies = [self.write(*each) for each in messages]
        for number, (method, _) in enumerate(messages, first):
            self.model.take(method, number)
        self.note(self.line.send(*([b"[%b]" % b",".join(bodies)] if as_batch else bodies)))

    def release(self, at: int) -> None:
        jobs = self.line.host.open
        job = jobs.pop(at % len(jobs))
        number = number_of(job)
        self.model.end(number)
        self.line.host.run(job)
        self.line._go_on()
        self.note(self.line.answers())

    def cancel(self, at: int) -> None:
        number = self.open.pop(at % len(self.open))
        self.model.cancel(number)
        self.note(self.line.send(cancel(number)))

    def note(self, answers: list[bytes]) -> None:
        for answer in answers:
            read = json.loads(answer)
            self.answered += [each["id"] for each in (read if isinstance(read, list) else [read])]
        self.open = [each for each in self.open if each not in self.answered]

    def check(self) -> None:
        running = [number_of(job) for job in self.line.host.open]
        assert sorted(running) == sorted(number for _, number in self.model.running)
        commands = [job for job in self.line.host.open if job.method.name == "act"]
        assert len(commands) <= 1


def number_of(job: Job) -> int:
    value = job.values.value
    return int(value[0] if isinstance(value, list) else value)


MESSAGES = st.tuples(
    st.sampled_from(["look", "act", "act"]),
    st.sampled_from(["plain", "plain", "odd", "large", "notification"]),
)
STEPS = st.one_of(
    st.tuples(st.just("send"), st.lists(MESSAGES, min_size=1, max_size=4)),
    st.tuples(st.just("batch"), st.lists(MESSAGES, min_size=1, max_size=4)),
    st.tuples(st.just("release"), st.integers(0, 9)),
    st.tuples(st.just("release"), st.integers(0, 9)),
    st.tuples(st.just("cancel"), st.integers(0, 9)),
)


@pytest.mark.clause("order-13")
@pytest.mark.parametrize("carrier", ["stream", "message link"])
@given(steps=st.lists(STEPS, max_size=25), limit=st.integers(1, 3))
def test_any_mix_begins_as_the_model_says(
    carrier: Any, steps: list[tuple[str, Any]], limit: int
) -> None:
    Chosen.carrier = carrier
    try:
        run = Run(replace(ORDERED, max_in_flight=limit))
    finally:
        Chosen.carrier = "stream"
    for verb, what in steps:
        if verb in ("send", "batch"):
            run.take(what, as_batch=verb == "batch")
        elif verb == "release" and run.line.host.open:
            run.release(what)
        elif verb == "cancel" and run.open:
            run.cancel(what)
        run.check()
    while run.line.host.open:
        run.release(0)
        run.check()
    assert sorted(run.answered) == run.wanted, "each is answered once"
    requests = run.line.connection.requests
    assert run.line.connection.idle and not requests.queue.held and not requests.by_id
    assert isinstance(requests, OrderedRequests) and requests.turn.holder is None
    run.take([("act", "plain")], as_batch=False)
    run.check()


PAUSES = st.one_of(
    STEPS,
    st.tuples(st.just("pause"), st.integers(0, 9)),
    st.tuples(st.just("resume"), st.integers(0, 9)),
)


@pytest.mark.clause("order-14")
@given(steps=st.lists(PAUSES, max_size=30), limit=st.integers(1, 3))
def test_whoever_waits_for_the_peer_every_request_ends(
    steps: list[tuple[str, Any]], limit: int
) -> None:
    """What may run beside what is compared at every turn: each test is a debug run."""
    run = Run(replace(ORDERED, max_in_flight=limit))
    line, requests = run.line, run.line.connection.requests
    paused: list[Job] = []
    for verb, what in steps:
        jobs = [job for job in line.host.open if job not in paused]
        if verb in ("send", "batch"):
            run.take(what, as_batch=verb == "batch")
        elif verb == "release" and line.host.open:
            at = what % len(line.host.open)
            paused = [job for job in paused if job is not line.host.open[at]]
            run.release(at)
        elif verb == "cancel" and run.open:
            run.cancel(what)
        elif verb == "pause" and jobs:
            job = jobs[what % len(jobs)]
            paused.append(job)
            assert job.context is not None
            requests.pause(job.context)
            line._go_on()
            run.note(line.answers())
        elif verb == "resume" and paused:
            job = paused.pop(what % len(paused))
            assert job.context is not None
            requests.resume(job.context)
    while line.host.open:
        run.release(0)
    assert sorted(run.answered) == run.wanted and line.connection.idle
    assert isinstance(requests, OrderedRequests)
    assert requests.turn.holder is None and not requests.turn.paused


@pytest.mark.clause("order-14")
def test_a_command_that_waits_for_its_peer_lets_the_next_one_begin() -> None:
    line = held_line()
    line.send(*[request("act", {"value": number}, number) for number in range(3)])
    (first,) = line.host.open
    requests = line.connection.requests
    assert first.context is not None
    requests.pause(first.context)
    line.connection.go_on()
    assert ids(line.running) == [0, 1], "the peer may need it for its answer"
    requests.resume(first.context)
    assert [result(each) for each in line.release(b"0")] == [0]
    assert ids(line.running) == [1], "the turn was not its own any more"
    line.release(b"1")
    assert ids(line.running) == [2]


@pytest.mark.clause("order-14")
def test_the_next_ones_go_on_while_it_waits() -> None:
    line = held_line()
    line.send(*[request("act", {"value": number}, number) for number in range(3)])
    (first,) = line.host.open
    requests = line.connection.requests
    assert first.context is not None
    requests.pause(first.context)
    line.connection.go_on()
    line.release(b"1")
    assert ids(line.running) == [0, 2]
    line.release(b"2")
    requests.resume(first.context)
    line.send(request("act", {"value": 3}, 3))
    assert ids(line.running) == [0], "it goes on, and has the turn again"
    line.release(b"0")
    assert ids(line.running) == [3]


@pytest.mark.clause("order-13")
@pytest.mark.parametrize("cancelled", [1, 2])
def test_one_that_has_the_turn_and_no_slot_may_be_cancelled(cancelled: int) -> None:
    line = held_line()
    line.send(*[request("act", {"value": number}, number) for number in range(4)])
    line.send(notification("change"))
    line.release(b"0")
    assert line.running == [None], "what has to end first is the notification"
    (answer,) = line.send(cancel(cancelled))
    assert json.loads(answer)["error"]["code"] == -32800
    line.release()
    assert ids(line.running) == [3 - cancelled]
    line.release()
    assert ids(line.running) == [3]


@pytest.mark.clause("order-13")
def test_a_notification_in_order_waits_for_no_command() -> None:
    line = held_line()
    line.send(*[request("act", {"value": number}, number) for number in range(2)])
    line.send(notification("change"), request("look", {"value": 2}, 2))
    assert line.running == [b"0", None], "and what comes after it waits for it"
    line.host.run(line.host.open.pop())
    line.connection.go_on()
    assert ids(line.running) == [0, 2]


@pytest.mark.clause("order-14")
def test_it_has_the_turn_again_if_no_one_has_taken_it() -> None:
    line = held_line()
    line.send(request("act", {"value": 0}, 0))
    (first,) = line.host.open
    requests = line.connection.requests
    assert first.context is not None
    requests.pause(first.context)
    requests.resume(first.context)
    line.send(request("act", {"value": 1}, 1))
    assert ids(line.running) == [0]


def held_line(**rules: Any) -> Line:
    return Line(replace(ORDERED, **rules), service, held=HELD)


def ids(jobs: list[bytes | None]) -> list[int]:
    return [int(each) for each in jobs if each is not None]


@pytest.mark.clause("order-13")
def test_a_queue_that_commands_have_filled_stops_the_reading_and_loses_nothing() -> None:
    line = held_line(max_queued=3)
    line.send(*[request("act", {"value": number}, number) for number in range(10)])
    assert not line.connection.wants_data and ids(line.running) == [0]
    answers = []
    while line.running:
        answers += line.release()
    assert [result(each) for each in answers] == list(range(10))
    assert line.connection.wants_data and line.connection.idle


@pytest.mark.clause("order-13")
def test_beyond_that_commands_are_refused_while_queries_run() -> None:
    line = held_line(max_queued=2)
    line.send(*[request("act", {"value": number}, number) for number in range(4)])
    line.refuse()
    (refused,) = line.answers()
    assert json.loads(refused)["error"]["code"] == -32017 and json.loads(refused)["id"] == 3
    line.send(request("look", {"value": 7}, 7))
    line.send(b'{"jsonrpc":"2.0","id":8,"method":"look","odd":1}')
    assert ids(line.running) == [0, 7, 8]
    line.release(b"0")
    assert not line.connection.requests.refusing and ids(line.running) == [7, 8, 1]


@pytest.mark.clause("order-13")
def test_what_is_held_counts_against_the_bytes_that_may_wait() -> None:
    line = held_line(max_queued_bytes=5000)
    for number in range(4):
        line.send(request("act", {"value": "x" * 2000}, number))
    queue = line.connection.requests.queue
    assert queue.full and len(queue.held) == 2 and not line.connection.wants_data
    line.release_all()
    assert not queue.full and queue._bytes == 0 and line.connection.idle


@pytest.mark.clause("order-13")
def test_a_shutdown_answers_what_is_held() -> None:
    line = held_line()
    line.send(*[request("act", {"value": number}, number) for number in range(4)])
    line.connection.refuse_queued()
    refused = [json.loads(each) for each in line.answers()]
    assert [each["id"] for each in refused] == [1, 2, 3]
    assert {each["error"]["code"] for each in refused} == {-32018}
    assert [result(each) for each in line.release()] == [0] and line.connection.idle


@pytest.mark.clause("order-13")
def test_shutting_down_without_a_drain_refuses_them_one_after_the_other() -> None:
    line = held_line()
    line.send(*[request("act", {"value": number}, number) for number in range(4)])
    line.close_down()
    answers = [json.loads(each) for each in line.release()]
    assert [each["id"] for each in answers] == [0, 1, 2, 3]
    assert [each["error"]["code"] for each in answers[1:]] == [-32018] * 3


@pytest.mark.clause("order-13")
def test_a_connection_that_closes_begins_nothing_more() -> None:
    line = held_line()
    line.send(*[request("act", {"value": number}, number) for number in range(4)])
    line.connection.close()
    assert len(line.release()) == 1 and not line.running
    assert line.connection.requests.queue._bytes == 0


@pytest.mark.clause("order-13")
def test_a_command_that_is_refused_as_it_starts_passes_its_turn_on() -> None:
    line = held_line()
    line.send(request("act", {"value": 1}, 1))
    line.send(b'{"jsonrpc":"2.0","id":2,"method":"act","params":{"wrong":1}}')
    line.send(b'{"jsonrpc":"2.0","id":3,"method":"act","params":{"value":3}}')
    answers = {json.loads(each)["id"]: each for each in line.release()}
    assert json.loads(answers[2])["error"]["code"] == -32602 and ids(line.running) == [3]


@pytest.mark.clause("order-14")
def test_the_items_of_an_exchange_are_in_order_and_exchanges_are_not() -> None:
    Chosen.carrier = "exchange"
    try:
        line = held_line(max_in_flight=3)
    finally:
        Chosen.carrier = "stream"
    batch = [request(*each) for each in (("act", [1], 1), ("act", [2], 2), ("look", [3], 3))]
    line.send(b"[%b]" % b",".join(batch))
    assert ids(line.running) == [1, 3]
    line.send(request("act", [4], 4))
    assert ids(line.running) == [1, 3, 4]
    assert [result(each) for each in line.release(b"4")] == [4]
    line.release(b"1")
    assert ids(line.running) == [3, 2]
    (answers,) = line.release_all()
    assert [each["result"] for each in json.loads(answers)] == [1, 2, 3]


@pytest.mark.clause("order-14")
def test_what_exchanges_hold_keeps_no_slot_from_others() -> None:
    Chosen.carrier = "exchange"
    try:
        line = held_line(max_queued=2)
    finally:
        Chosen.carrier = "stream"
    line.send(b"[%b]" % b",".join(request("act", [number], number) for number in range(4)))
    assert ids(line.running) == [0]
    for each in (request("look", [4], 4), request("act", [5], 5), request("act", [6], 6)):
        assert line.send(each) == []
    assert ids(line.running) == [0, 4, 5, 6]
    *_, answers = line.release_all()
    codes = [each.get("error", {}).get("code") for each in json.loads(answers)]
    assert codes == [None, None, None, -32017], "beyond the queue it is refused"


@pytest.mark.clause("order-14")
def test_an_exchange_that_is_given_up_begins_nothing_more() -> None:
    Chosen.carrier = "exchange"
    try:
        line = held_line()
    finally:
        Chosen.carrier = "stream"
    batch = b",".join(request("act", [number], number) for number in range(3))
    exchange = line._exchanges.take(b"[%b]" % batch, line.origin, line._deliver)
    exchange.cancel()
    assert not line._exchanges.queue.held
    assert line.release_all() == [] and line._exchanges.idle


@pytest.mark.clause("order-14")
def test_a_shutdown_refuses_what_exchanges_hold() -> None:
    Chosen.carrier = "exchange"
    try:
        line = held_line()
    finally:
        Chosen.carrier = "stream"
    line.send(b"[%b]" % b",".join(request("act", [number], number) for number in range(3)))
    line.close_down()
    (answers,) = line.release_all()
    codes = [each.get("error", {}).get("code") for each in json.loads(answers)]
    assert codes == [None, -32018, -32018]


def test_without_the_rule_nothing_of_it_is_there() -> None:
    assert put_in_order(Requests) is OrderedRequests
    line = Line(AGENT, service, held=HELD)
    assert not isinstance(line.connection.requests, OrderedRequests)
    line.send(*[request("act", [number], number) for number in range(3)])
    assert ids(line.running) == [0, 1, 2]
    assert {method.promise for method in service} == {None, Promise.AT_MOST_ONCE}
