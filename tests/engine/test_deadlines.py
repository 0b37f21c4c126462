"""The clocks of a connection, told the time by hand: late frames, stalled queues, deadlines."""

from math import inf

import pytest

from duet_rpc.context import Context
from duet_rpc.engine.deadlines import STALL, CallClock, ConnectionClocks
from duet_rpc.policy import AGENT, EDITOR, replace
from duet_rpc.service import Service
from tests.helpers import Line, Wire, frame, ids, refusal, request


def make() -> Service:
    service = Service()

    @service.query(timeout=5)
    def short(ctx: Context) -> float | None:
        return ctx.deadline

    @service.query(timeout=50)
    def long(ctx: Context) -> None: ...

    @service.query
    def endless(ctx: Context) -> None: ...

    return service


def serve(**limits: float) -> tuple[Line, ConnectionClocks]:
    policy = replace(EDITOR if limits else AGENT, **limits)
    line = Line(policy, make(), held=["short", "long", "endless"])
    return line, ConnectionClocks(line.connection)


PART = Wire(frame(request("endless", id=1))[:-5])
REST = Wire(frame(request("endless", id=1))[-5:])


def test_a_frame_that_has_begun_has_its_time_once() -> None:
    line, clocks = serve(read_timeout=10)
    line.send(Wire(PART[:-3]))
    clocks.look_at_frame(100)
    assert clocks.due == 110
    line.send(Wire(PART[-3:]))
    clocks.look_at_frame(109)
    assert clocks.due == 110
    clocks.check(109.9)
    assert line.connection.framing.partial
    clocks.check(110)
    assert not line.connection.framing.partial and clocks.due == inf
    assert ("warn", "a frame took too long") in line.log.told()


def test_a_whole_frame_is_not_late() -> None:
    line, clocks = serve(read_timeout=10)
    line.send(PART)
    clocks.look_at_frame(100)
    line.send(REST)
    clocks.look_at_frame(105)
    assert clocks.due == inf
    line.send(PART)
    clocks.look_at_frame(106)
    assert clocks.due == 116


def test_the_end_of_the_input_ends_the_clock_of_a_frame() -> None:
    line, clocks = serve(read_timeout=10)
    line.send(PART)
    clocks.look_at_frame(100)
    clocks.drop_frame()
    assert clocks.due == inf


def fill(line: Line) -> None:
    line.send(*(request("endless", id=id) for id in range(3)))
    assert line.connection.requests.full


def test_a_full_queue_that_does_not_move_is_refused() -> None:
    line, clocks = serve(max_queued=2)
    clocks.look_at_queue(1)
    assert clocks.due == inf
    fill(line)
    clocks.look_at_queue(2)
    clocks.look_at_queue(2 + STALL / 2)
    assert clocks.due == 2 + STALL
    assert line.send(request("endless", id=9)) == []
    clocks.check(2 + STALL)
    assert refusal(line.answers()[0])[:2] == (-32017, "Overloaded")
    clocks.look_at_queue(3)
    assert clocks.due == inf, "it is being refused already"


def test_a_full_queue_that_moves_has_its_time_again() -> None:
    line, clocks = serve(max_queued=2)
    fill(line)
    clocks.look_at_queue(2)
    line.release()
    line.send(request("endless", id=3))
    assert line.connection.requests.full
    clocks.check(2 + STALL)
    assert not line.connection.requests.refusing and clocks.due == inf
    clocks.look_at_queue(3)
    assert clocks.due == 3 + STALL


def test_a_queue_with_room_has_no_clock() -> None:
    line, clocks = serve(max_queued=2)
    fill(line)
    clocks.look_at_queue(2)
    line.release()
    clocks.look_at_queue(2)
    assert clocks.due == inf


def test_a_handler_over_its_time_is_answered_and_no_other() -> None:
    line, clocks = serve()
    line.send(request("long", id=1), request("short", id=2), request("endless", id=3))
    for job in line.host.open:
        clocks.start(job, 100)
    assert clocks.due == 105
    assert line.host.open[1].context is not None and line.host.open[1].context.deadline == 105
    clocks.check(104.9)
    assert line.answers() == []
    clocks.check(105)
    assert ids(line.answers()) == [2]
    assert clocks.due == 150


def test_a_handler_that_has_ended_has_no_deadline() -> None:
    line, clocks = serve()
    line.send(request("short", id=1))
    job = line.host.open[0]
    clocks.start(job, 100)
    clocks.stop(job)
    assert ids(line.release()) == [1]
    clocks.check(105)
    assert line.answers() == [] and clocks.due == inf


@pytest.mark.parametrize(("timeout", "left"), [(None, inf), (3.0, 1.0), (2.0, 0.0), (0.0, -2.0)])
def test_the_clock_of_a_call_starts_with_the_call(timeout: float | None, left: float) -> None:
    assert CallClock(timeout, 10).left(12) == left
