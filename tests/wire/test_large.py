"""A large decode runs without the collector, and leaves it as it was."""

import gc
import json
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from duet_rpc.wire.large import decode_large


def run_alone(function: Callable[..., None], *args: object) -> None:
    """Run a function of this module in an interpreter that holds nothing else.

    What the collector looks at, and when, depends on all that a process holds; a whole test run
    holds a lot, and its other threads end what was frozen.
    """
    program = f"from {__name__} import {function.__name__} as run; run(*{args!r})"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr


@pytest.fixture(autouse=True)
def collector_as_it_was() -> Iterator[None]:
    enabled = gc.isenabled()
    yield
    gc.unfreeze()
    (gc.enable if enabled else gc.disable)()


def test_nothing_is_collected_while_it_decodes() -> None:
    gc.enable()
    assert decode_large(lambda body: gc.isenabled(), b"") is False
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_the_collector_is_back_after_a_failure() -> None:
    gc.enable()
    with pytest.raises(ZeroDivisionError):
        decode_large(lambda body: 1 / 0, b"")
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    assert decode_large(lambda body: body, b"{}") == b"{}"
    assert not gc.isenabled()


def test_what_the_program_has_frozen_stays_frozen() -> None:
    run_alone(freeze_and_decode)


def freeze_and_decode() -> None:
    gc.enable()
    gc.freeze()
    frozen = gc.get_freeze_count()
    assert decode_large(lambda body: gc.isenabled(), b"") is True
    assert gc.get_freeze_count() >= frozen > 0


class Cycle:
    """Something that only the collector can take apart."""

    def __init__(self) -> None:
        self.itself = self
        self.more = [[] for _ in range(20)]  # type: ignore[var-annotated]


@pytest.mark.parametrize("body", [b"{}", json.dumps([[]] * 3_000).encode()], ids=["few", "many"])
def test_what_ends_in_a_cycle_is_collected_although_large_messages_keep_coming(body: bytes) -> None:
    run_alone(leave_cycles_behind, body)


def leave_cycles_behind(body: bytes) -> None:
    gc.enable()
    there: weakref.WeakSet[Cycle] = weakref.WeakSet()
    most = 0
    for _ in range(1500):
        # It lives on while a message is read, so it is old when it ends.
        cycle = Cycle()
        there.add(cycle)
        decode_large(json.loads, body)
        del cycle
        most = max(most, len(there))
    assert most < 1000, f"{most} of 1500 were there at once"
