"""Debug runs: a slot that is lost, or given back twice, is told at once; elsewhere nothing is."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from duet_rpc import Service, testing
from duet_rpc.context import Context
from duet_rpc.engine.connection import Connection
from duet_rpc.engine.queue import Waiting
from duet_rpc.hosts.debug import connection_class
from duet_rpc.hosts.runner import LoopRunner
from duet_rpc.policy import AGENT, EDITOR
from duet_rpc.wire.messages import Request
from tests.helpers import Line, request
from tests.runtime.faces import PATIENCE


def make_service() -> Service:
    service = Service()

    @service.query
    async def nap() -> None:
        await asyncio.sleep(PATIENCE)

    @service.query
    def work(ctx: Context) -> None:
        """Held open by the test; the context keeps it off the straight line."""

    return service


@pytest.fixture
def violations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which this test's violations are told, and not in that of all tests."""
    file = tmp_path / "violations"
    monkeypatch.setenv("DUET_DEBUG", str(file))
    return file


@pytest.mark.parametrize("value", ["", "0", None])
def test_without_a_debug_run_nothing_is_checked(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DUET_DEBUG")
    if value is not None:
        monkeypatch.setenv("DUET_DEBUG", value)
    assert connection_class() is Connection


async def test_a_task_that_ends_without_its_job_is_told(
    violations: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What was wrong once: a task that is cancelled before its first step finishes nothing.
    monkeypatch.setattr(LoopRunner, "_task_ended", lambda self, job, task: None)
    loop = asyncio.get_running_loop()
    told: asyncio.Future[BaseException] = loop.create_future()
    loop.set_exception_handler(lambda loop, fault: told.set_result(fault["exception"]))
    async with testing.connect(make_service(), policy=EDITOR) as client:
        call = asyncio.ensure_future(client.query("nap"))
        await asyncio.sleep(0)
        call.cancel()
        failure = await asyncio.wait_for(told, PATIENCE)
    assert type(failure) is AssertionError
    assert "1 running + 0 paused, 0 of 1 slots free: the task of nap is done" in str(failure)
    assert await asyncio.to_thread(violations.read_text)


def test_a_slot_that_is_given_back_twice_is_told(violations: Path) -> None:
    one = Line(AGENT, make_service(), held=["work"])
    one.send(request("work", id=1), request("work", id=2))
    job = one.host.open[0]
    one.connection.requests.finish(job, b'"result":1')
    with pytest.raises(AssertionError, match="ends twice"):
        one.connection.requests.finish(job, b'"result":1')
    assert "1 in flight: 1 running + 0 paused, 15 of 16 slots free" in violations.read_text()


@pytest.mark.parametrize("wrong", [-1, 1])
def test_a_wrong_count_is_told_at_the_next_turn(wrong: int, violations: Path) -> None:
    one = Line(AGENT, make_service(), held=["work"])
    one.send(request("work", id=1))
    one.connection.requests.slots.running += wrong
    with pytest.raises(AssertionError, match="a slot is lost, or was given back twice"):
        one.send(request("work", id=2))
    assert violations.exists()


def test_one_more_than_may_run_is_told(violations: Path) -> None:
    one = Line(AGENT, make_service(), held=["work"])
    one.send(request("work", id=1))
    one.connection.requests.slots.max_running = 0
    with pytest.raises(AssertionError, match="one more than may run was started"):
        one.connection.requests.start(Waiting(Request(b"2", "work", None), 0, None))
    assert violations.exists()


def test_a_child_process_tells_in_the_same_file(violations: Path) -> None:
    source = (
        "from duet_rpc.hosts.debug import connection_class, violated\n"
        "assert connection_class().__name__ == 'CheckedConnection'\n"
        "violated('a slot is lost')"
    )
    ran = subprocess.run(
        [sys.executable, "-c", source], env=os.environ, capture_output=True, timeout=PATIENCE
    )
    assert b"AssertionError: a slot is lost" in ran.stderr
    assert violations.read_text().startswith("a slot is lost\n")
