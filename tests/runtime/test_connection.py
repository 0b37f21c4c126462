"""The connection: order, queue, limits, cancellation, batches and the way out."""

import gc
import json
import types
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from duet_rpc.context import Context, Transaction
from duet_rpc.engine.failures import RETRY_AFTER_MS
from duet_rpc.engine.queue import Budget
from duet_rpc.engine.results import Decode
from duet_rpc.errors import DeadlineExceeded, InvalidAnswer, RpcError
from duet_rpc.methods.parameters import Parameters
from duet_rpc.policy import AGENT, DEVELOPMENT, EDITOR, SPEC, Policy, replace
from duet_rpc.service import Service
from duet_rpc.wire.dialect import Progress
from duet_rpc.wire.framing import Frame
from duet_rpc.wire.framing.line import LineFraming
from tests.helpers import (
    Line,
    Wire,
    cancel,
    data_of,
    exchange,
    frame,
    ids,
    notification,
    refusal,
    request,
    result,
)


def make() -> Service:
    service = Service()

    @service.query
    def work(ctx: Context, a: Any = None) -> Any:  # the context keeps it off the straight line
        return a

    @service.query(inline=True)
    def quick(a: Any = None) -> Any:
        return a

    @service.query
    async def later(a: Any = None) -> Any:
        return a

    @service.query
    def fail() -> None:
        raise ZeroDivisionError

    @service.query
    def look(ctx: Context) -> bool:
        return ctx.cancelled

    @service.command
    def pay() -> str:
        return "paid"

    @service.command
    def move(tx: Transaction) -> str:
        return "moved"

    @service.query(notification_allowed=True)
    def exit() -> None: ...

    return service


def line(policy: Policy, held: str = "work", **options: Any) -> Line:
    return Line(policy, make(), held=held.split(), **options)


ONE = EDITOR
MANY = AGENT


def test_a_fault_of_ours_is_logged_and_answered() -> None:
    class Broken(Service):
        faults = [ZeroDivisionError("what came")]

        def get(self, name: str) -> Any:
            if self.faults:
                raise self.faults.pop()

    one = Line(ONE, Broken())
    first, second = one.send(request("work", id=1), request("work", id=2))
    assert (refusal(first).code, data_of(first)) == (-32603, {"reference": "ref-1"})
    assert [str(error) for error in one.log.failures] == ["ZeroDivisionError"], "but not its text"
    assert refusal(second).code == -32601
    assert one.connection.idle


# Order and limits.


def test_where_one_may_be_in_flight_the_next_waits_for_its_answer() -> None:
    one = line(ONE)
    assert one.send(request("work", id=1), request("work", id=2), request("quick", id=3)) == []
    assert one.running == [b"1"]
    assert ids(one.release()) == [1]
    assert one.running == [b"2"]
    assert ids(one.release()) == [2, 3]
    assert one.connection.idle


def test_where_several_may_be_in_flight_answers_come_as_they_are_ready() -> None:
    many = line(MANY)
    many.send(*(request("work", id=number) for number in range(1, 5)))
    assert many.running == [b"1", b"2", b"3", b"4"]
    assert ids(many.send(request("quick", id=5))) == [5]
    assert ids(many.release(b"3")) == [3]
    assert ids(many.release_all()) == [1, 2, 4]


def test_the_limit_of_handlers_in_flight_holds() -> None:
    two = line(replace(MANY, max_in_flight=2))
    two.send(*(request("work", id=number) for number in range(1, 6)))
    assert two.running == [b"1", b"2"]
    two.release(b"2")
    assert two.running == [b"1", b"3"]
    assert ids(two.release_all()) == [1, 3, 4, 5]


def test_errors_keep_their_place_in_the_order() -> None:
    one = line(ONE)
    sent = one.send(
        request("work", id=1),
        request("nothing", id=2),
        b"{",
        b"[]",
        b'{"jsonrpc":"2.0","id":5}',
        Wire(b"garbage\r\n\r\n"),
        request("work", id=7),
    )
    assert sent == []
    assert ids(one.release()) == [1, 2, None, None, 5, None]
    assert ids(one.release()) == [7]


def test_errors_do_not_wait_where_order_is_not_promised() -> None:
    many = line(MANY)
    assert ids(many.send(request("work", id=1), request("nothing", id=2), b"{")) == [2, None]


def test_answers_ready_together_share_a_write_where_that_is_allowed() -> None:
    def together(policy: Policy, count: int) -> list[int]:
        requests = b"".join(frame(request("quick", id=number + 1)) for number in range(count))
        sender = line(policy)
        assert len(sender.send(Wire(requests))) == count
        return [data.count(b"Content-Length") for data in sender.host.writes]

    assert together(ONE, 3) == [1, 1, 1]
    assert together(MANY, 3) == [3]
    assert together(MANY, 40) == [16, 16, 8]


def test_an_async_handler_is_answered_like_any_other() -> None:
    for policy in (ONE, MANY):
        assert result(exchange(policy, make(), request("later", [5]))[0]) == 5


# Ids in flight.


def test_an_id_in_flight_cannot_be_used_again() -> None:
    many = line(MANY)
    (answer,) = many.send(request("work", id="x"), request("quick", id="x"))
    assert refusal(answer) == (-32600, "Invalid Request", "duplicate-id", "x")
    many.release()
    assert result(many.send(request("quick", [3], id="x"))[0]) == 3


def test_ids_are_equal_if_they_are_spelled_alike() -> None:
    many = line(MANY)
    many.send(b'{"jsonrpc":"2.0","id":1,"method":"work"}')
    assert many.send(b'{"jsonrpc":"2.0","id":1.0,"method":"quick"}') == [
        b'{"jsonrpc":"2.0","id":1.0,"result":null}'
    ]
    assert many.send(b'{"jsonrpc":"2.0","id":"1","method":"quick"}') == [
        b'{"jsonrpc":"2.0","id":"1","result":null}'
    ]


def test_null_is_never_a_duplicate() -> None:
    many = line(MANY)
    many.send(request("work", id=None), request("work", id=None))
    assert many.running == [b"null", b"null"]
    assert ids(many.release_all()) == [None, None]


def test_where_one_may_be_in_flight_an_id_may_come_twice() -> None:
    one = line(ONE)
    one.send(request("work", [1], id=1), request("work", [2], id=1))
    assert [result(answer) for answer in one.release_all()] == [1, 2]


def test_a_refused_request_does_not_keep_its_id() -> None:
    many = line(MANY)
    assert refusal(many.send(request("nothing", id=1))[0]).code == -32601
    assert result(many.send(request("quick", [1], id=1))[0]) == 1


# Cancellation.


def cancelled(answers: list[bytes], id: Any) -> bool:
    return [refusal(answer) for answer in answers] == [
        (-32800, "Request cancelled", "cancelled", id)
    ]


@pytest.mark.parametrize("policy", [ONE, MANY], ids=["one", "many"])
def test_a_running_request_is_cancelled_once(policy: Policy) -> None:
    sender = line(policy)
    sender.send(request("work", id=1))
    assert cancelled(sender.send(cancel(1)), 1)
    assert [job.id for job in sender.host.cancelled] == [b"1"]
    assert sender.send(cancel(1)) == []
    assert sender.release() == []  # its result comes too late
    assert sender.connection.idle


@pytest.mark.parametrize("limit", [1, 2])
def test_a_queued_request_is_dropped_and_never_started(limit: int) -> None:
    sender = line(replace(MANY, max_in_flight=limit))
    sender.send(*(request("work", id=number) for number in range(1, limit + 2)))
    assert cancelled(sender.send(cancel(limit + 1)), limit + 1)
    assert len(sender.release_all()) == limit
    assert sender.host.cancelled == [] and sender.connection.idle


def test_a_cancellation_after_the_result_is_ignored() -> None:
    many = line(MANY)
    assert ids(many.send(request("quick", id=1), cancel(1))) == [1]


@pytest.mark.parametrize("id", [2, "1", 1.0, None])
def test_a_cancellation_of_an_unknown_id_is_ignored(id: Any) -> None:
    many = line(MANY)
    assert many.send(request("work", id=1), request("work", id=None), cancel(id)) == []
    assert len(many.release_all()) == 2


def test_a_running_handler_sees_that_it_was_cancelled() -> None:
    one = line(ONE, held="look")
    one.send(request("look", id=1))
    (job,) = one.host.open
    one.send(cancel(1))
    assert job.context is not None and job.context.cancelled


def test_the_next_request_waits_until_a_cancelled_handler_has_ended() -> None:
    one = line(ONE)
    one.send(request("work", id=1), request("quick", id=2))
    assert cancelled(one.send(cancel(1)), 1)
    assert ids(one.release()) == [2]


def test_an_id_may_be_used_again_after_its_cancellation() -> None:
    many = line(MANY)
    many.send(request("work", [1], id=1), cancel(1), request("work", [2], id=1))
    assert [json.loads(answer)["result"] for answer in many.release_all()] == [2]


def test_of_two_queued_requests_with_one_id_each_can_be_cancelled() -> None:
    one = line(ONE)
    one.send(request("work", id=0), request("work", id=1), request("work", id=1))
    assert cancelled(one.send(cancel(1)), 1)
    assert cancelled(one.send(cancel(1)), 1)
    assert ids(one.release_all()) == [0]


@pytest.mark.parametrize("params", [None, [], {}, [1], {"token": 1}])
def test_a_cancellation_without_an_id_is_logged(params: Any) -> None:
    one = line(ONE)
    assert one.send(notification("$/cancelRequest", params)) == []
    assert one.log.told() == [("error", "cancellation without an id")]


def test_a_cancellation_sent_as_a_request_is_answered_itself() -> None:
    many = line(MANY)
    answers = many.send(request("work", id=1), request("$/cancelRequest", {"id": 1}, id=2))
    assert ids(answers) == [1, 2]
    assert result(answers[1]) is None


def test_a_command_that_has_begun_goes_on_and_a_transaction_is_rolled_back() -> None:
    many = line(MANY, held="pay move")
    many.send(request("pay", id=1), request("move", id=2))
    assert cancelled(many.send(cancel(1)), 1)
    assert cancelled(many.send(cancel(2)), 2)
    assert [job.id for job in many.host.cancelled] == [b"2"]


def test_a_deadline_is_answered_once_and_a_notification_never() -> None:
    many = line(MANY)
    many.send(request("work", id=1), notification("work"))
    for job in list(many.host.open):
        many.connection.abandon(job, DeadlineExceeded())
        many.connection.abandon(job, DeadlineExceeded())
    (answer,) = many.answers()
    assert refusal(answer) == (-32019, "Deadline exceeded", "deadline-exceeded", 1)
    assert len(many.host.cancelled) == 2
    assert many.release_all() == []


# A full queue.


def full(policy: Policy = ONE, last_words: Iterable[str] = (), **limits: int) -> Line:
    sender = line(replace(policy, **limits), shutdown_methods=frozenset(last_words))
    sender.send(request("work", id=0), request("work", id=1), request("work", id=2))
    return sender


def test_a_full_queue_stops_reading_and_loses_nothing() -> None:
    sender = full(max_queued=2)
    assert sender.connection.requests.full and sender.connection.wants_data
    assert sender.send(request("work", id=3), cancel(0)) == []
    assert not sender.connection.wants_data
    assert ids(sender.release_all()) == [0, 1, 2, 3]
    assert sender.connection.wants_data


def test_a_queue_that_does_not_move_refuses_what_comes() -> None:
    sender = full(max_queued=2)
    sender.connection.refuse()
    answers = sender.send(request("work", id=3), notification("work"), cancel(1))
    assert refusal(answers[0]) == (-32017, "Overloaded", "overloaded", 3)
    assert data_of(answers[0])["retry_after_ms"] == RETRY_AFTER_MS
    assert cancelled(answers[1:], 1)
    assert sender.connection.requests.stats.refused == 2
    sender.release_all()
    assert not sender.connection.requests.refusing
    assert result(sender.send(request("quick", id=4))[0]) is None


def test_faults_in_a_full_queue_are_answered_at_once() -> None:
    sender = full(max_queued=2)
    sender.connection.refuse()
    assert refusal(sender.send(b"{")[0]).code == -32700


def test_refusing_needs_a_full_queue() -> None:
    sender = line(ONE)
    sender.connection.refuse()
    assert not sender.connection.requests.refusing


def test_queued_bytes_count_as_well() -> None:
    sender = line(replace(ONE, max_queued_bytes=500))
    sender.send(request("work", id=0), request("work", ["x" * 600], id=1))
    assert sender.connection.requests.full
    assert ids(sender.release_all()) == [0, 1]
    assert not sender.connection.requests.full


def test_connections_may_share_one_budget_of_bytes() -> None:
    budget = Budget(300)
    first, second = line(ONE, budget=budget), line(ONE, budget=budget)
    first.send(request("work", id=0), request("work", ["x" * 300], id=1))
    assert budget.used > 300 and first.connection.requests.full
    # What can start at once needs no room.
    assert not second.connection.requests.full
    second.send(request("work", id=5))
    assert second.connection.requests.full
    second.send(request("work", id=6))
    assert second.running == [b"5"]
    first.release_all()
    assert budget.used == 0
    assert ids(second.release_all()) == [5, 6]
    second.send(request("work", id=7), request("work", id=8))
    assert budget.used > 0
    second.connection.close()
    assert budget.used == 0


# Congestion.


def test_while_the_peer_does_not_read_nothing_is_started() -> None:
    one = line(ONE)
    one.connection.congest()
    assert one.send(request("quick", id=1)) == []
    assert not one.connection.wants_data
    one.connection.relieve()
    assert ids(one.answers()) == [1]


def test_congestion_in_the_middle_stops_the_straight_line() -> None:
    one = line(ONE)
    write = one.host.write

    def write_and_congest(data: Frame) -> None:
        write(data)
        one.connection.congest()

    one.host.write = write_and_congest  # type: ignore[method-assign]
    assert ids(one.send(Wire(frame(request("quick", id=1)) + frame(request("quick", id=2))))) == [1]
    one.connection.relieve()
    assert ids(one.answers()) == [2]


# Batches.


def batch(*items: bytes) -> bytes:
    return b"[%b]" % b",".join(items)


@pytest.mark.parametrize("limit", [1, 2, 16])
def test_the_answers_of_a_batch_stand_in_request_order(limit: int) -> None:
    sender = line(replace(MANY, max_in_flight=limit))
    items = [request("work", [n], id=n) for n in range(1, 4)]
    items[1:1] = [b"1", notification("quick"), request("nothing", id="n")]
    assert sender.send(batch(*items)) == []
    while len(sender.host.open) > 1:
        assert sender.release(sender.running[-1]) == []
    (answer,) = sender.release_all()
    assert [item["id"] for item in json.loads(answer)] == [1, None, "n", 2, 3]


def test_items_of_a_batch_run_up_to_the_limit() -> None:
    two = line(replace(MANY, max_in_flight=2))
    two.send(batch(*(request("work", id=n) for n in range(1, 5))))
    assert two.running == [b"1", b"2"]


def test_an_item_of_a_batch_can_be_cancelled() -> None:
    many = line(replace(MANY, max_in_flight=1))
    assert many.send(batch(request("work", id=1), request("work", id=2)), cancel(2)) == []
    (answer,) = many.release_all()
    assert [("result" in item, item["id"]) for item in json.loads(answer)] == [
        (True, 1),
        (False, 2),
    ]


def test_a_batch_of_notifications_and_answers_is_not_answered() -> None:
    many = line(MANY)
    unknown = b'{"jsonrpc":"2.0","id":7,"result":1}'
    assert many.send(batch(notification("quick"), notification("nothing"), unknown)) == []
    assert many.connection.requests.stats.unmatched_answers == 1


def test_a_batch_of_answers_alone_is_no_request_of_the_peer() -> None:
    many = line(MANY)
    assert many.send(batch(b'{"jsonrpc":"2.0","id":7,"result":1}')) == []
    assert many.connection.requests.stats.unmatched_answers == 1


def test_the_same_id_twice_in_a_batch_is_a_duplicate() -> None:
    many = line(MANY)
    many.send(batch(request("work", id=1), request("work", id=1)))
    (answer,) = many.release_all()
    first, second = json.loads(answer)
    assert first["result"] is None and second["error"]["data"]["reason"] == "duplicate-id"


def test_a_cancellation_may_stand_in_a_batch() -> None:
    many = line(MANY)
    many.send(request("work", id=1))
    assert cancelled(many.send(batch(cancel(1))), 1)


def test_an_overfull_batch_is_answered_item_by_item() -> None:
    sender = full(max_batch=5, max_queued=3)
    assert sender.send(batch(request("work", id=8), request("work", id=9))) == []
    batch_answer = sender.release_all()[-1]
    items = json.loads(batch_answer)
    assert [item["id"] for item in items] == [8, 9]
    assert items[1]["error"]["data"]["reason"] == "overloaded"


# Notifications.


def test_a_notification_that_fails_is_logged_under_one_correlation_id() -> None:
    many = line(MANY)
    assert many.send(notification("fail")) == []
    assert many.log.told() == [("error", "handler failed"), ("error", "notification failed")]
    assert {entry.fields["correlation_id"] for entry in many.log.lines} == {"c1-n1"}
    assert {entry.fields["connection_id"] for entry in many.log.lines} == {"c1"}


def test_an_unknown_notification_is_a_warning_and_bad_params_an_error() -> None:
    many = line(MANY)
    assert many.send(notification("nothing"), notification("work", [1, 2])) == []
    assert many.log.told() == [("warn", "Method not found"), ("error", "Invalid params")]


def test_a_refused_notification_is_answered_where_the_policy_says_so() -> None:
    assert refusal(exchange(DEVELOPMENT, make(), notification("pay"))[0]) == (
        -32600,
        "Invalid Request",
        "command-requires-id",
        None,
    )
    silent = Line(replace(DEVELOPMENT, answers_refused_notifications=False), make())
    assert silent.send(notification("pay")) == []
    assert silent.log.told() == [("error", "Invalid Request")]


# Faults in the stream.


def test_a_fault_is_answered_and_logged() -> None:
    one = line(ONE)
    assert refusal(one.send(Wire(b"Content-Length: x\r\n\r\n"))[0]).reason == (
        "invalid-content-length"
    )
    (entry,) = one.log.lines
    assert (entry.severity, entry.text, entry.fields["reason"]) == (
        "warn",
        "bad frame",
        "invalid-content-length",
    )
    assert one.connection.requests.stats.faults == 1


def test_the_tail_of_a_broken_body_is_part_of_its_fault() -> None:
    one = line(ONE)
    cut = frame(b'{"jsonrpc":"2.0","id":1,"method":"quick"}')
    shortened = Wire(cut.replace(b"Content-Length: 41", b"Content-Length: 20"))
    answers = one.send(shortened, request("quick", id=2))
    assert [json.loads(answer)["id"] for answer in answers] == [None, 2]
    assert refusal(answers[0]).code == -32700


def test_the_tail_of_a_broken_body_smuggles_nothing_into_a_socket() -> None:
    sender = line(MANY, closes_on_lost_boundary=True)
    answers = sender.send(Wire(frame(b"{xx") + b"stray"), request("quick", id=2))
    assert [refusal(answer).code for answer in answers] == [-32700]
    assert sender.connection.broken


def test_stray_bytes_after_a_good_body_are_a_fault_of_their_own() -> None:
    for policy in (ONE, MANY):
        answers = exchange(policy, make(), request("quick", id=1), Wire(b"stray\r\n\r\n"))
        assert [json.loads(answer)["id"] for answer in answers] == [1, None]


def test_the_end_inside_a_frame_is_a_fault() -> None:
    one = line(ONE)
    one.send(Wire(b"Content-Length: 10\r\n\r\n{"))
    assert refusal(one.end()[0]) == (-32700, "Parse error", None, None)
    assert line(ONE).end() == []


def test_a_socket_is_closed_when_the_boundary_is_lost() -> None:
    sender = line(MANY, closes_on_lost_boundary=True)
    answers = sender.send(
        Wire(frame(request("quick", id=1)) + b"garbage\r\n\r\n" + frame(request("quick", id=2)))
    )
    assert ids(answers) == [1, None]
    assert sender.connection.broken and not sender.connection.wants_data
    assert sender.connection.idle


def test_a_refused_body_does_not_lose_the_boundary() -> None:
    sender = line(MANY, closes_on_lost_boundary=True)
    wrong = Wire(b"Content-Type: text/html\r\nContent-Length: 2\r\n\r\n{}")
    assert ids(sender.send(wrong, request("quick", id=2))) == [None, 2]
    assert not sender.connection.broken


def test_lines_work_like_frames() -> None:
    sender = line(ONE, framing=LineFraming())
    assert ids(sender.send(request("quick", id=1), Wire(b"{\n"), request("quick", id=2))) == [
        1,
        None,
        2,
    ]


def test_a_large_body_may_come_in_many_reads() -> None:
    one = line(ONE)
    body = request("quick", ["x" * 200_000], id=1)
    wire = frame(body)
    for at in range(0, len(wire), 64 * 1024):
        one.send(Wire(wire[at : at + 64 * 1024]))
    assert one.framing.partial is False
    written = b"".join(one.host.writes)
    assert written.endswith(b'"result":"%b"}' % (b"x" * 200_000))


@pytest.mark.parametrize("behind", [False, True])
def test_what_a_large_answer_was_made_of_is_kept_while_the_answer_is_on_its_way(
    behind: bool,
) -> None:
    service = Service()

    @service.query
    def size(value: Any) -> int:
        return len(value)

    one = Line(ONE, service)
    one.host.behind = behind
    (answer,) = one.send(request("size", {"value": "x" * 200_000}, id=1))
    assert result(answer) == 200_000
    assert (one.connection.dispatcher.spent is not None) is behind


@pytest.mark.parametrize(
    "body",
    [
        request("quick", {"b": 1}, id=1),
        request("quick", {"idempotency_key": "k"}, id=1),
        request("quick", [1, 2], id=1),
        request("no such", id=1),
        request("fails", id=1),
        request("fails", {"b": 1}, id=1),
        request("refuses", [1], id=1),
        request("pays", {}, id=1),
        notification("fails"),
        batch(request("fails", id=1), request("no such", id=2)),
        b'{"jsonrpc":"2.0","id":{},"method":"quick"}',
        b"{",
    ],
)
def test_a_refused_request_is_gone_when_it_is_answered(body: bytes) -> None:
    """An error that stands in a frame of its own traceback keeps the whole message, for long."""
    service = make()

    @service.query
    def fails(a: Any = None) -> Any:
        raise ValueError

    @service.query
    def refuses(ctx: Context, a: Any = None) -> Any:
        raise RpcError("no", code=5)

    @service.command
    def pays(a: Any = None) -> Any: ...

    gc.freeze()  # what all the other tests have made: each collection would look at it
    one = Line(replace(MANY, command_needs_id=True, key_required=True), service)
    for _ in range(2):  # the first makes what is made once
        one.send(body)
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        answers = one.send(body)
        gc.collect()
        kept = [type(thing) for thing in gc.garbage]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        gc.unfreeze()
    assert len(answers) == (0 if body == notification("fails") else 1)
    assert types.FrameType not in kept and types.TracebackType not in kept


def test_a_large_request_that_was_read_behind_is_not_kept() -> None:
    service = Service()

    @service.query
    def size(value: Any) -> int:
        read_meanwhile(sender, b"")
        return len(value)

    sender = Line(ONE, service)
    put_down(sender)
    (answer,) = sender.send(request("size", {"value": "x" * 200_000}, id=1))
    assert result(answer) == 200_000
    assert sender.connection.dispatcher.spent is None


def test_a_large_request_that_goes_the_long_way_is_not_kept() -> None:
    one = line(ONE)
    deep = b"[" * 70 + b"]" * 70
    body = b'{"a":"%b","_meta":%b}' % (b"x" * 70_000, deep)
    (answer,) = one.send(b'{"jsonrpc":"2.0","id":1,"method":"quick","params":%b}' % body)
    assert json.loads(answer)["error"]["code"] == -32700
    assert one.connection.dispatcher.spent is None


def test_large_params_are_prepared_for_their_own_method_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = Service()
    for name in ("first", "second", "third"):
        service.query(name=name)(lambda value: len(value))
    prepared: list[Parameters] = []
    shallow = Parameters.shallow

    def prepare(parameters: Parameters) -> Any:
        prepared.append(parameters)
        return shallow(parameters)

    monkeypatch.setattr(Parameters, "shallow", prepare)
    one = Line(ONE, service)
    for id in (1, 2):
        (answer,) = one.send(request("second", {"value": "x" * 70_000}, id=id))
        assert result(answer) == 70_000
    second = service.get("second")
    assert second is not None and prepared == [second.parameters]


@pytest.mark.parametrize("depth", [1, 8, 9, 40, 62, 63])
def test_large_params_may_nest_as_deep_as_others(depth: int) -> None:
    service = Service()

    @service.query
    def echo(value: Any) -> Any:
        return value

    one = Line(ONE, service)
    for text in ("x", "x" * 70_000):
        value = b"[" * depth + json.dumps(text).encode() + b"]" * depth
        body = b'{"jsonrpc":"2.0","id":1,"method":"echo","params":{"value":%b}}' % value
        (answer,) = one.send(body)
        if depth + 2 <= 64:
            assert answer == b'{"jsonrpc":"2.0","id":1,"result":%b}' % value
        else:
            assert json.loads(answer)["error"]["code"] == -32700


# The connection is lent while a handler runs inline.


def test_while_the_connection_is_lent_nothing_starts_but_cancellations_get_through() -> None:
    one = line(ONE)
    one.send(request("work", id=1))
    one.connection.handover.lend()
    assert one.send(request("quick", id=2), b"{") == []
    assert cancelled(one.send(cancel(1)), 1)
    assert cancelled(one.send(cancel(2)), 2)
    one.connection.handover.take_back()
    assert ids(one.release()) == [None]


def read_meanwhile(sender: Line, data: bytes) -> None:
    """Do what a second thread does while the first is in a handler: take the token and read."""
    connection = sender.connection
    assert connection.handover.take_over()
    connection.receive(data)


def put_down(sender: Line) -> None:
    """Let the reader have the connection back when it asks."""

    def reclaim() -> None:
        sender.connection.handover.take_back()

    sender.host.reclaim = reclaim  # type: ignore[method-assign]


def test_a_handler_that_was_cancelled_meanwhile_is_not_answered_twice() -> None:
    service = Service()

    @service.command
    def slow() -> str:
        read_meanwhile(sender, frame(cancel(1)) + frame(request("quick", id=2)))
        return "done"

    @service.query
    def quick() -> str:
        return "quick"

    sender = Line(ONE, service)
    put_down(sender)
    answers = sender.send(request("slow", id=1))
    assert cancelled(answers[:1], 1)
    assert [result(answer) for answer in answers[1:]] == ["quick"]


@pytest.mark.parametrize("known", [True, False], ids=["answered", "given up"])
def test_a_straight_line_that_was_read_behind_goes_on(known: bool) -> None:
    service = Service()

    @service.query
    def slow() -> str:
        read_meanwhile(sender, frame(request("quick", id=2)))
        return "slow"

    @dataclass
    class Checked:
        number: int

        def __post_init__(self) -> None:
            if not sender.connection.handover.lent and sender.connection.handover.token:
                read_meanwhile(sender, frame(request("quick", id=2)))

    @service.query
    def quick() -> str:
        return "quick"

    @service.query(name="given-up")
    def given_up(of: Checked) -> str:
        return "slow"

    sender = Line(ONE, service)
    put_down(sender)
    # A string with an escape is given up after its params were made.
    odd = b'{"jsonrpc":"2.0","id":"\\u0031","method":"given-up","params":{"of":{"number":1}}}'
    answers = sender.send(request("slow", id=1) if known else odd)
    assert [result(answer) for answer in answers] == ["slow", "quick"]


# Our own calls, as far as the connection is concerned.


class Waiting:
    """Somebody who waits for an answer."""

    decode: Decode | None = bytes

    def __init__(self) -> None:
        self.settled: list[tuple[Any, Exception | None]] = []
        self.news: list[Any] = []

    def settle(self, result: Any, error: Exception | None) -> None:
        raw = self.decode is not None and result is not None
        self.settled.append((bytes(result) if raw else result, error))

    def progress(self, value: Any) -> None:
        self.news.append(value)


def test_an_answer_settles_its_call_also_while_a_handler_runs() -> None:
    one = line(ONE)
    waiter = Waiting()
    one.send(request("work", id=1))
    call = one.connection.calls.send("ask", b"[1]", waiter)
    one.connection.outgoing.flush()
    assert one.answers() == [b'{"jsonrpc":"2.0","id":1,"method":"ask","params":[1]}']
    one.send(b'{"jsonrpc":"2.0","id":%d,"result":[5]}' % call)
    assert waiter.settled == [(b"[5]", None)]
    one.send(b'{"jsonrpc":"2.0","id":%d,"result":[6]}' % call)
    assert len(waiter.settled) == 1 and one.connection.requests.stats.unmatched_answers == 1
    assert ids(one.release()) == [1]


def test_a_result_without_an_id_ends_the_only_call_of_a_handler_and_is_not_answered() -> None:
    one = line(ONE)
    waiter = Waiting()
    one.connection.calls.send("ask", b"[1]", waiter)
    one.connection.outgoing.flush()
    one.answers()
    assert one.send(b'{"jsonrpc":"2.0","result":[5]}') == []
    [(result, error)] = waiter.settled
    assert result is None and isinstance(error, InvalidAnswer)
    assert one.connection.requests.stats.faults == 1
    [refusal] = one.send(b'{"jsonrpc":"2.0","result":[5]}')
    assert json.loads(refusal)["error"]["code"] == -32600, "no one waits, so it is a fault"


def test_an_answer_settles_its_call_while_the_connection_is_lent() -> None:
    one = line(ONE)
    waiter = Waiting()
    call = one.connection.calls.send("ask", None, waiter)
    one.connection.outgoing.flush()
    one.connection.handover.lend()
    one.send(b'{"jsonrpc":"2.0","id":%d,"error":{"code":7,"message":"no"}}' % call)
    ((_, error),) = waiter.settled
    assert isinstance(error, RpcError) and error.code == 7


ODD_ANSWER = b'{"jsonrpc":"2.0","id":%d,"result":%b,"more":1}'
ANSWERS = [b'{"jsonrpc":"2.0","id":%d,"result":%b}', ODD_ANSWER]


@pytest.mark.parametrize("form", ANSWERS, ids=["plain", "odd"])
def test_each_call_gets_its_result_raw_or_as_a_value_as_it_wants(form: bytes) -> None:
    one = line(ONE)
    waiters = [Waiting() for _ in range(8)]
    wants = [None, None, bytes, None, bytes, bytes, bytes, None]
    for waiter, decode in zip(waiters, wants, strict=True):
        waiter.decode = decode
        one.connection.calls.send("ask", None, waiter)
    value = b'{"a":[1,"\xc3\xa4",%b]}' % json.dumps("x" * 70_000).encode()
    results = [b"1", value, value, b'"\xc3\xa4"', b"[ ]", b"null", b"2", b"null"]
    for id, raw in enumerate(results, start=1):
        one.send(form % (id, raw))
    for waiter, raw in zip(waiters, results, strict=True):
        wanted = raw if waiter.decode is not None else json.loads(raw)
        assert waiter.settled == [(wanted, None)]


DEEPEST = b"[" * 62 + b"]" * 62
TOO_DEEP = "the answer nests deeper than 64; to take such answers, set policy="
BAD_VALUES = {
    b"1e400": "the result is not what was asked for: Number out of range",
    b'"\xff"': "the answer is not JSON in UTF-8",
    b"[" * 64 + b"]" * 64: TOO_DEEP,
    b"[" * 2000 + b"]" * 2000: TOO_DEEP,
}


@pytest.mark.parametrize("text", [b"", b"x" * 200, b"x" * 70_000])
def test_a_value_may_nest_deep_but_not_too_deep(text: bytes) -> None:
    one = line(ONE)
    other, good = Waiting(), Waiting()
    other.decode = good.decode = None
    one.connection.calls.send("ask", None, other)
    answer(one, good, b'["%b",%b]' % (text, DEEPEST))
    assert good.settled == [([text.decode(), json.loads(DEEPEST)], None)]
    # An answer that cannot be read ends its own call at once, and no other.
    for value, why in BAD_VALUES.items():
        waiter = Waiting()
        waiter.decode = None
        answer(one, waiter, b'["%b",%b]' % (text, value))
        ended_unread(waiter, why)
    assert other.settled == []


def answer(one: Line, waiter: Waiting, value: bytes) -> None:
    """Make a call and answer it with a value, which need be no JSON."""
    call = one.connection.calls.send("ask", None, waiter)
    one.send(ANSWERS[0] % (call, value))


def ended_unread(waiter: Waiting, why: str) -> None:
    ((result, error),) = waiter.settled
    assert result is None and isinstance(error, InvalidAnswer)
    assert str(error).startswith(why)


@pytest.mark.parametrize("text", [b"", b"x" * 200, b"x" * 70_000])
@pytest.mark.parametrize("depth", [4, 5])
def test_depth_is_the_policys_also_for_answers(text: bytes, depth: int) -> None:
    one = line(replace(ONE, max_depth=5))
    waiter = Waiting()
    waiter.decode = None
    value = b"[" * depth + b'"%b"' % text + b"]" * depth
    answer(one, waiter, value)
    if depth + 1 <= 5:
        assert waiter.settled == [(json.loads(value), None)]
    else:
        ended_unread(waiter, "the answer nests deeper than 5; to take such answers, set policy=")


def test_progress_reaches_the_call_and_is_not_answered() -> None:
    one = line(ONE)
    waiter = Waiting()
    call = one.connection.calls.send("ask", None, waiter)
    one.send(notification("$/progress", {"token": call, "value": 0.5}))
    assert waiter.news == [Progress(0.5)]
    assert one.log.lines == []


def test_an_answer_without_result_or_error_ends_its_call_and_is_not_answered() -> None:
    one = line(ONE)
    waiter = Waiting()
    call = one.connection.calls.send("ask", None, waiter)
    one.connection.outgoing.flush()
    one.answers()
    assert one.send(b'{"jsonrpc":"2.0","id":%d}' % call) == []
    assert len(waiter.settled) == 1


@pytest.mark.parametrize("id", [b"99", b'"1"', b"null", b"1.0", b"9" * 5000, b"0", b"-1"])
def test_an_answer_to_nothing_is_counted_and_never_answered(id: bytes) -> None:
    for member in (b'"result":1', b'"error":{"code":1,"message":"m"}'):
        one = line(ONE)
        assert one.send(b'{"jsonrpc":"2.0","id":%b,%b}' % (id, member)) == []
        assert one.connection.requests.stats.unmatched_answers == 1
        assert one.log.told() == [("warn", "an answer that no call waits for")]


def test_while_a_call_is_open_a_batch_of_answers_may_be_longer_than_a_batch_of_requests() -> None:
    one = line(replace(MANY, max_batch=1))
    waiters = [Waiting(), Waiting()]
    one.connection.calls.send_batch(
        [("ask", None, waiters[0]), ("ask", None, waiters[1])], lambda error: None
    )
    one.connection.outgoing.flush()
    one.answers()
    answers = b'[{"jsonrpc":"2.0","id":1,"result":1},{"jsonrpc":"2.0","id":2,"result":2}]'
    assert one.send(answers) == []
    assert [waiter.settled for waiter in waiters] == [[(b"1", None)], [(b"2", None)]]
    (answer,) = one.send(batch(request("quick", id=1), request("quick", id=2)))
    assert refusal(answer).reason == "batch-too-large"


def test_a_client_answers_no_faults() -> None:
    client = line(ONE, answers_faults=False)
    assert client.send(b"{", Wire(b"garbage\r\n\r\n")) == []
    several = line(MANY, answers_faults=False)
    (answer,) = several.send(batch(b"1", request("quick", id=2)))
    assert [item["id"] for item in json.loads(answer)] == [2]


# A handler that waits for its peer.


def context_of(one: Line, index: int) -> Context:
    """The context of a handler that is held open."""
    ctx = one.host.open[index].context
    assert ctx is not None
    return ctx


def test_a_handler_that_waits_gives_up_its_place() -> None:
    one = line(ONE)
    one.send(request("work", id=1), request("quick", id=2))
    waiting = context_of(one, 0)
    one.connection.requests.slots.pause(waiting)
    one.connection.go_on()
    assert ids(one.answers()) == [2]
    assert not one.connection.idle
    one.connection.requests.slots.resume(waiting)
    assert ids(one.release()) == [1]
    assert one.connection.idle


def test_not_every_place_can_be_given_up() -> None:
    one = line(replace(ONE, max_queued=1))
    one.send(request("work", id=1))
    first = context_of(one, 0)
    one.connection.requests.slots.pause(first)
    one.connection.go_on()
    one.send(request("work", id=2))
    second = context_of(one, 1)
    one.connection.requests.slots.pause(second)  # one too many: this one keeps its slot
    assert one.send(request("quick", id=3)) == []
    one.connection.requests.slots.resume(first)
    one.connection.requests.slots.resume(second)
    assert ids(one.release_all()) == [1, 2, 3]


def test_a_handler_has_one_slot_to_give_up_for_however_many_answers_it_waits() -> None:
    one = line(ONE)
    one.send(*(request("work", id=id) for id in (1, 2, 3)))
    waiting = context_of(one, 0)
    for _ in range(3):
        one.connection.requests.slots.pause(waiting)
        one.connection.go_on()
    assert one.running == [b"1", b"2"]
    for _ in range(3):
        one.connection.requests.slots.resume(waiting)
    assert ids(one.release(b"2")) == [2]
    assert one.running == [b"1"]
    assert ids(one.release_all()) == [1, 3]
    assert one.connection.idle


def test_a_handler_that_ends_while_a_task_of_its_own_waits_gives_its_slot_back_once() -> None:
    one = line(ONE)
    one.send(*(request("work", id=id) for id in (1, 2, 3)))
    waiting = context_of(one, 0)
    one.connection.requests.slots.pause(waiting)
    assert ids(one.release(b"1")) == [1]
    one.connection.requests.slots.resume(waiting)
    one.connection.requests.slots.pause(waiting)
    one.connection.go_on()
    assert one.running == [b"2"]
    one.connection.requests.slots.resume(waiting)
    assert ids(one.release_all()) == [2, 3]
    assert one.connection.idle


# The way out.


def test_on_the_way_out_what_has_not_begun_is_refused() -> None:
    one = line(ONE)
    one.send(request("work", id=1), request("work", id=2), b"{")
    one.connection.refuse_queued()
    answers = one.answers()
    assert refusal(answers[0]) == (-32018, "Shutting down", "shutting-down", 2)
    assert refusal(answers[1]).code == -32700
    assert refusal(one.send(request("quick", id=3))[0]).reason == "shutting-down"
    assert one.send(notification("quick")) == []
    assert ids(one.release()) == [1]
    assert one.connection.idle


def test_on_the_way_out_what_has_arrived_is_refused_too() -> None:
    sender = full(max_queued=2)
    sender.send(request("work", id=3), b"{")
    sender.connection.refuse_queued()
    assert ids(sender.answers()) == [3, None, 1, 2]


def test_last_words_are_served_on_the_way_out() -> None:
    heard: list[str] = []
    one = line(ONE, shutdown_methods=frozenset({"exit"}), on_shutdown_queued=heard.append)
    one.send(request("work", id=1), request("exit", id=2), notification("exit"))
    assert heard == ["exit", "exit"]
    one.send(request("exit", [1], id=3))
    one.connection.refuse_queued()
    answers = one.answers()
    assert result(answers[0]) is None
    assert refusal(answers[1]) == (-32602, "Invalid params", None, 3)
    one.release()
    assert result(one.send(request("exit", id=4))[0]) is None


def test_last_words_have_room_in_a_full_queue() -> None:
    sender = full(max_queued=2, last_words=["exit"])
    sender.connection.refuse()
    assert sender.send(request("exit", id=9)) == []
    assert ids(sender.release_all()) == [0, 1, 2, 9]


def test_spec_answers_nothing_to_nothing() -> None:
    assert exchange(SPEC, make()) == []
    assert line(SPEC).send(Wire(b"")) == []


def test_a_service_without_simple_methods_is_served_too() -> None:
    service = Service()

    @service.command
    def pay() -> str:
        return "paid"

    assert result(exchange(EDITOR, service, request("pay"))[0]) == "paid"


def test_a_notification_that_was_read_behind_is_not_answered() -> None:
    service = Service()

    @service.query
    def slow() -> None:
        read_meanwhile(sender, frame(request("quick", id=2)))

    @service.query
    def quick() -> str:
        return "quick"

    sender = Line(ONE, service)
    put_down(sender)
    assert ids(sender.send(notification("slow"))) == [2]


def test_answers_and_calls_of_ours_go_out_in_their_order() -> None:
    many = line(MANY, held="")
    many.connection.calls.send("first", None, Waiting())
    many.connection.calls.send("second", None, Waiting())
    many.send(request("quick", id="q"))
    many.connection.calls.send("third", None, Waiting())
    many.connection.outgoing.flush()
    written = [json.loads(body) for body in many.sent()]
    assert [message.get("method") or message["id"] for message in written] == [
        "first",
        "second",
        "q",
        "third",
    ]


def test_a_batch_is_refused_as_a_whole() -> None:
    small = replace(MANY, max_batch=2)
    too_many = batch(*(request("quick", id=n) for n in range(3)))
    (answer,) = exchange(small, make(), too_many)
    assert refusal(answer) == (-32600, "Invalid Request", "batch-too-large", None)
    assert data_of(answer)["limit"] == 2
    assert refusal(exchange(small, make(), b"[]")[0]).reason == "invalid-envelope"
    (answer,) = exchange(ONE, make(), batch(request("quick")))
    assert refusal(answer) == (-32600, "Batch requests not supported", "batch-not-supported", None)


@pytest.mark.parametrize(("id", "answers"), [(1, [-32800]), (7, ["slow"])], ids=["it", "another"])
def test_a_request_in_the_straight_line_can_be_cancelled(id: int, answers: list[Any]) -> None:
    service = Service()

    @service.query
    def slow() -> str:
        read_meanwhile(sender, frame(cancel(id)) + frame(cancel(id)))
        return "slow"

    sender = Line(ONE, service)
    put_down(sender)
    found = [json.loads(answer) for answer in sender.send(request("slow", id=1))]
    assert [item["result"] if "result" in item else item["error"]["code"] for item in found] == (
        answers
    )
    # The next one has an answer of its own.
    sender.host.reclaim = lambda: sender.connection.handover.take_back()  # type: ignore[method-assign]
    assert ids(sender.send(request("slow", id=2))) == [2]


def test_a_cancellation_while_a_long_request_is_lent_finds_nothing_in_the_straight_line() -> None:
    one = line(ONE)
    one.send(request("quick", id=1), request("work", id=2))
    one.connection.handover.lend()
    assert one.send(cancel(1)) == []
    one.connection.handover.take_back()
    assert ids(one.release()) == [2]
    assert ids(one.send(request("quick", id=3))) == [3]
