"""The logic of the ledger on threads: it never suspends, except where a thread is given back."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from duet_rpc.engine.steps import drive
from duet_rpc.ledger import MemoryStore
from duet_rpc.ledger.group import Group
from duet_rpc.ledger.inflight import SingleFlight
from duet_rpc.ledger.waits import Wait, Waits, YieldingWaits, do
from tests.ledger.commands import command

GROUP = Group(MemoryStore().commit)


async def suspending() -> bytes:
    return b"ended"


SUSPENDING: Callable[[], Any] = suspending
BLOCKING: Callable[[], Any] = lambda: b"ended"  # noqa: E731


def test_what_blocks_runs_to_its_end_in_one_go() -> None:
    waits = Waits(GROUP)
    assert drive(waits.call(divmod, 7, 2)) == (3, 1)
    for ends in BLOCKING, SUSPENDING:
        assert drive(waits.end(ends)) == b"ended"


def test_what_suspends_cannot_be_driven() -> None:
    coroutine = asyncio.sleep(0)
    with pytest.raises(AssertionError, match="suspended"):
        drive(coroutine)
    coroutine.close()


async def test_what_is_awaitable_is_waited_for() -> None:
    for ends in BLOCKING, SUSPENDING:
        assert await do(ends()) == b"ended"


def test_a_thread_is_given_back_until_an_execution_is_settled() -> None:
    executions = SingleFlight()
    execution = executions.join(command(), "one")
    assert executions.join(command(), "another") is execution
    joining = YieldingWaits(GROUP).join(execution, 5.0)
    wait = joining.send(None)
    assert isinstance(wait, Wait) and wait.execution is execution and wait.seconds == 5.0
    execution.settle(b"1")
    with pytest.raises(StopIteration) as ended:
        joining.send(None)
    assert ended.value.value is True and executions.get(execution.identity) is None
