"""An interrupt (Ctrl-C) at every single moment of a blocking call, one after the other.

Python looks for signals when a function of ours begins, after each call of another and when a loop
goes back. A trace function raises there what the handler of a signal would: each round one moment
later, until a call has no more of them. `test_blocking_threads` does the same by real signals.
"""

import dis
import os
import sys
import threading
from types import FrameType
from typing import Any

import pytest

import duet_rpc
from duet_rpc import Service, testing
from duet_rpc.client.interrupts import hold
from duet_rpc.errors import ConnectionLost
from tests.runtime.faces import PATIENCE

pytestmark = pytest.mark.usefixtures("rpc_no_leaks")
OURS = os.path.dirname(duet_rpc.__file__)
LOOKS = {
    dis.opmap[name] for name in ("CALL", "CALL_FUNCTION_EX", "JUMP_BACKWARD") if name in dis.opmap
}
MOMENTS = 200
"""More than a call has; how many there are differs where other threads call too."""


class Interrupt:
    """Interrupts this thread at the moment of this number, if it comes to that."""

    def __init__(self, moment: int) -> None:
        self._left = moment
        self._before: dict[FrameType, int] = {}

    def __enter__(self) -> None:
        sys.settrace(self._trace)

    def __exit__(self, *exception: object) -> None:
        sys.settrace(None)
        self._before.clear()

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            self._pass()
        elif event == "opcode":
            if self._before.get(frame) in LOOKS:
                self._pass()
            self._before[frame] = frame.f_code.co_code[frame.f_lasti]
        return self._trace

    def _pass(self) -> None:
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt


def make_service() -> Service:
    service = Service()

    @service.query
    def echo(value: Any) -> Any:
        return value

    return service


@pytest.mark.parametrize("others", [0, 3])
def test_an_interrupt_at_every_moment_of_a_call_leaves_nobody_waiting(others: int) -> None:
    failures: list[BaseException] = []
    over = threading.Event()
    with testing.connect_blocking(make_service(), timeout=None, reconnect=True) as client:

        def call_on() -> None:
            while not over.is_set():
                try:
                    assert client.call("echo", [1]) == 1
                except ConnectionLost:
                    pass  # the one whose thread was interrupted is given up
                except BaseException as error:
                    failures.append(error)

        threads = [threading.Thread(target=call_on, daemon=True) for _ in range(others)]
        for thread in threads:
            thread.start()
        interrupted = 0
        for moment in range(1, MOMENTS):
            try:
                with Interrupt(moment):
                    client.call("echo", [2])
            except KeyboardInterrupt:
                interrupted += 1
            except ConnectionLost:
                pass
            assert client.call("echo", [3], timeout=PATIENCE) == 3
        over.set()
        for thread in threads:
            thread.join(PATIENCE)
        assert not any(thread.is_alive() for thread in threads), "a call hangs"
        assert not failures
        assert 40 < interrupted < MOMENTS - 10, "every moment of a call has had its interrupt"
        assert client.stats.pending == 0
        assert client._shared.lead.leader is None and not client._shared.lead.waiting


def test_an_interrupt_at_every_moment_of_holding_a_lock_leaves_it_free() -> None:
    lock, interrupted = threading.RLock(), 0
    for moment in range(1, 30):
        try:
            with Interrupt(moment):
                hold(lock, None, list)
        except KeyboardInterrupt:
            interrupted += 1
        free: list[bool] = []

        def take(free: list[bool] = free) -> None:
            with lock:
                free.append(True)

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        thread.join(PATIENCE)
        assert free, "no other thread can have it"
    assert 3 < interrupted < 20, "every moment has had its interrupt"
