"""A large decode runs without the collector, and leaves it as it was."""

import gc
from collections.abc import Iterator

import pytest

from duet_rpc.collector import decode_large


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
    gc.enable()
    gc.freeze()
    frozen = gc.get_freeze_count()
    assert decode_large(lambda body: gc.isenabled(), b"") is True
    assert gc.get_freeze_count() >= frozen > 0
