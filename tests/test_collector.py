"""The collector is paused while modules are loaded, and is then as it was."""

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from duet_rpc.collector import pause_collector


@pytest.fixture(autouse=True)
def collector_as_it_was() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.unfreeze()
    yield
    gc.unfreeze()
    (gc.enable if enabled else gc.disable)()


def test_nothing_is_collected_meanwhile() -> None:
    gc.enable()
    with pause_collector():
        assert not gc.isenabled()
        with pause_collector():  # one module loads another
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_it_is_back_after_an_import_that_failed() -> None:
    gc.enable()
    with pytest.raises(ImportError), pause_collector():
        raise ImportError
    assert gc.isenabled()


def test_one_that_is_off_stays_off() -> None:
    gc.disable()
    with pause_collector():
        pass
    assert not gc.isenabled()


class Circle:
    def __init__(self) -> None:
        self.me = self


def test_garbage_that_was_made_meanwhile_is_still_collected() -> None:
    gc.enable()
    with pause_collector():
        gone = weakref.ref(Circle())
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("name", ["Service", "Client", "blocking", "Server"])
def test_loading_leaves_the_collector_on(name: str) -> None:
    program = (
        f"import gc; from duet_rpc import {name}; print(gc.isenabled(), gc.get_freeze_count())"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50
    )
    assert finished.stdout.split() == ["True", "0"]
