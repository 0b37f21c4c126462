"""Slots: who counts against the concurrency limit, and who does not while it waits for its peer."""

from typing import Any

from duet_rpc.context import Context, Origin
from duet_rpc.engine.slots import Slots


def context() -> Context:
    peer: Any = None
    return Context(peer, "work", "1", Origin(connection_id="c1", transport="memory"))


def running(slots: Slots, count: int) -> list[Context]:
    slots.running += count
    return [context() for _ in range(count)]


def test_a_handler_that_waits_for_its_peer_gives_up_one_slot() -> None:
    slots = Slots(2, max_paused=10)
    first, _ = running(slots, 2)
    slots.pause(first)
    slots.pause(first)  # for a second answer
    assert slots.running == 1
    slots.resume(first)
    assert slots.running == 1, "one answer is still missing"
    slots.resume(first)
    assert slots.running == 2 and not slots.paused


def test_beyond_the_bound_a_paused_handler_keeps_its_slot() -> None:
    slots = Slots(3, max_paused=1)
    first, second, _ = running(slots, 3)
    slots.pause(first)
    slots.pause(second)
    assert (slots.running, slots.without_slot) == (2, 1)
    slots.resume(second)
    slots.resume(first)
    assert slots.running == 3


def test_a_handler_that_ends_while_a_part_of_it_waits_takes_its_slot_back() -> None:
    slots = Slots(1, max_paused=10)
    (only,) = running(slots, 1)
    slots.pause(only)
    slots.end(only)
    assert slots.running == 1 and not slots.paused
    slots.resume(only)  # the part that waited goes on, and finds it ended
    assert slots.running == 1


def test_what_has_ended_is_not_paused() -> None:
    slots = Slots(1, max_paused=10)
    (only,) = running(slots, 1)
    only.is_over = True
    slots.pause(only)
    assert slots.running == 1 and not slots.paused
