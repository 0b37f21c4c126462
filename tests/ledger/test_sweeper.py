"""The thread that sweeps: until nothing is left, with rests, and not after it was closed."""

import threading
import time
from typing import Any

import pytest

from duet_rpc.errors import StoreUnavailable
from duet_rpc.ledger import Ledger, MemoryStore
from duet_rpc.ledger.sweeper import MOST_ROWS, REST, SWEEP_ROWS, Sweeper
from duet_rpc.ledger.upkeep import Clocks, Drop, Leave, Shift, Upkeep, after_step, plan_step
from tests.ledger.commands import Handler, command

PATIENCE = 60.0


class Counting(MemoryStore):
    """A store that notes when it is swept, and has as much to drop as a test says."""

    def __init__(self, rows: int = 0, took: float = 0.0) -> None:
        super().__init__()
        self.rows = rows
        self.took = took
        self.steps: list[tuple[float, float]] = []
        self.stepped = threading.Event()
        self.emptied = threading.Event()
        self.sweepers: set[threading.Thread] = set()  # other tests' may still be alive

    def sweep(self, limit: int = 500, **more: Any) -> int:
        self.sweepers.add(threading.current_thread())
        began = time.monotonic()
        threading.Event().wait(self.took)
        dropped = min(self.rows, limit)
        self.rows -= dropped
        self.steps.append((began, time.monotonic()))
        self.stepped.set()
        if not self.rows:
            self.emptied.set()
        return dropped


def start(store: MemoryStore, ttl: float = 86400.0) -> Sweeper:
    sweeper = Sweeper(store, "sweeper", ttl, 7 * 86400.0)
    sweeper.start()
    sweeper.start()
    return sweeper


def test_it_goes_on_until_nothing_is_left() -> None:
    store = Counting(rows=20 * SWEEP_ROWS + 7)
    sweeper = start(store)
    assert store.emptied.wait(PATIENCE)
    sweeper.close()
    assert len(store.steps) <= 21


def test_full_steps_grow_while_they_are_quick_and_no_further() -> None:
    store = Counting(rows=10**9)
    sweeper = Sweeper(store, "sweeper", 86400.0, 86400.0)
    before = store.rows
    sizes = []
    for took in [0.0] * 8 + [0.1] * 8:
        store.took = took
        sweeper.step()
        sizes.append(before - store.rows)
        before = store.rows
    assert sizes[0] == SWEEP_ROWS and max(sizes) == MOST_ROWS
    assert sizes[-1] == SWEEP_ROWS and sorted(sizes[8:], reverse=True) == sizes[8:]


def test_it_takes_a_tenth_of_the_time_at_most() -> None:
    store = Counting(rows=4 * SWEEP_ROWS, took=0.01)
    sweeper = start(store)
    assert store.emptied.wait(PATIENCE)
    sweeper.close()
    for (began, ended), (following, _) in zip(store.steps, store.steps[1:], strict=False):
        assert following - ended >= REST * (ended - began) * 0.99


def test_it_rests_also_where_records_live_for_no_time() -> None:
    store = Counting(took=0.005)
    sweeper = start(store, ttl=0.000_001)
    give_up = time.monotonic() + PATIENCE
    while len(store.steps) < 3 and time.monotonic() < give_up:
        store.stepped.clear()
        store.stepped.wait(PATIENCE)
    sweeper.close()
    for (began, ended), (following, _) in zip(store.steps, store.steps[1:], strict=False):
        assert following - ended >= REST * (ended - began) * 0.99


def test_closing_does_not_wait_for_the_rest() -> None:
    store = Counting(rows=10**9, took=0.01)
    sweeper = start(store)
    assert store.stepped.wait(PATIENCE)
    sweeper.close()
    sweeper.close()
    (thread,) = store.sweepers
    assert not thread.is_alive()


@pytest.mark.parametrize("error", [StoreUnavailable(), ValueError("unforeseen")])
def test_a_fault_does_not_end_it(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    class Faulty(Counting):
        def sweep(self, limit: int = 500, **more: Any) -> int:
            super().sweep(limit, **more)
            if len(self.steps) < 3:
                raise error
            return 0

    store = Faulty()
    sweeper = start(store, ttl=0.1)
    give_up = time.monotonic() + PATIENCE
    while len(store.steps) < 4 and time.monotonic() < give_up:
        store.stepped.clear()
        store.stepped.wait(PATIENCE)
    sweeper.close()
    assert len(store.steps) >= 4 and "command store" in caplog.text


def test_a_ledger_sweeps_with_its_first_command_and_ends_with_it() -> None:
    store = Counting()
    ledger = Ledger(store)
    assert not store.steps
    ledger.run(command(), Handler())
    assert store.stepped.wait(PATIENCE)
    ledger.close()
    (thread,) = store.sweepers
    assert thread.name == "duet-sweep" and not thread.is_alive()


def test_memory_keeps_no_trace_of_what_it_dropped() -> None:
    now = [1000.0]
    store = MemoryStore(clock=lambda: now[0])
    ledger = Ledger(store, ttl=100.0, unknown_ttl=500.0)
    for number in range(1200):
        ledger.run(command(f"k{number}"), Handler())
    now[0] += 100.0
    assert [ledger.sweep() for _ in range(4)] == [500, 500, 200, 0]
    ledger.close()
    assert not store._records and not store._ends and not store._running


# Its decisions, by themselves


def clocks(name: str = "one") -> Clocks:
    return Clocks(name, 30.0, 7000.0, 1000.0)


def test_time_that_both_clocks_saw_is_time_that_passed() -> None:
    mine = clocks()
    mine.last, mine.monotonic = (5000.0, 10.0), 70.0
    assert plan_step(Upkeep(0.0, 5000.0, "one"), mine, 5060.9) == Drop()
    assert plan_step(Upkeep(0.0, 5000.0, "one"), mine, 9060.0) == Shift(9060.0, 4000.0)
    assert plan_step(Upkeep(0.0, 5000.0, "one"), mine, 3000.0) == Drop()


def test_a_new_sweeper_has_seen_nothing_pass() -> None:
    assert plan_step(Upkeep(0.0, 5000.0, "gone"), clocks(), 5500.0) == Shift(5500.0, 500.0)


def test_a_jump_that_another_made_up_for_is_not_made_up_for_again() -> None:
    mine = clocks()
    mine.last, mine.monotonic = (5000.0, 10.0), 70.0
    # The clock jumped by days, another sweeper saw it and swept 40 s ago.
    upkeep = Upkeep(0.0, 900_000.0, "another")
    assert plan_step(upkeep, mine, 900_040.0) == Shift(900_040.0, 40.0)


def test_a_store_is_left_to_the_sweeper_that_is_at_work() -> None:
    assert plan_step(Upkeep(0.0, 5000.0, "another"), clocks(), 5029.0) == Leave()
    assert plan_step(Upkeep(0.0, 5000.0, "one"), clocks(), 5000.5) == Drop()
    assert plan_step(Upkeep(0.0, 5000.0, "another"), clocks(), 4000.0) == Drop(), "set back"


def test_what_was_begun_is_finished_before_anything_is_dropped() -> None:
    mine = clocks()
    upkeep = Upkeep(0.0, 5000.0, "gone")
    step = plan_step(upkeep, mine, 9000.0)
    assert isinstance(step, Shift)
    upkeep = after_step(upkeep, mine, step, 9000.0, full=True)
    mine.confirm()
    other = clocks("two")
    again = plan_step(upkeep, other, 9001.0)
    assert again == step
    upkeep = after_step(upkeep, other, step, 9001.0, full=False)
    assert upkeep == Upkeep(4000.0, 9000.0, "two"), "the gap is not remembered, and counts once"


def test_a_step_that_was_not_committed_was_not_seen() -> None:
    mine = clocks()
    mine.last, mine.monotonic = (5000.0, 10.0), 20.0
    upkeep = Upkeep(0.0, 5000.0, "one")
    step = plan_step(upkeep, mine, 9000.0)
    assert isinstance(step, Shift)
    after_step(upkeep, mine, step, 9000.0, full=False)  # and then the store fails
    mine.monotonic = 30.0
    assert plan_step(upkeep, mine, 9010.0) == Shift(9010.0, 3990.0)
