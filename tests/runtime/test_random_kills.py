"""Ten thousand calls to a real child that is killed now and then: none pending, none crossed."""

import asyncio
import collections
import gc
import random
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from duet_rpc import Client, blocking
from duet_rpc.errors import CallTimeout, ConnectionLost
from duet_rpc.transports.child import Child
from duet_rpc.transports.link import Link
from duet_rpc.transports.restarts import ChildOpener

CALLS = 10_000
CALLERS = 50
KILLS = 6
PATIENCE = 60.0

SERVER = """
import asyncio
from duet_rpc import Service
from duet_rpc.policy import SPEC

service = Service()

@service.query
async def echo(number: int, seconds: float) -> int:
    if seconds:
        await asyncio.sleep(seconds)
    return number

service.run(SPEC)
"""


class Killable(ChildOpener):
    """Knows the process that it has started last."""

    def open(self, timeout: float | None = None) -> Link:
        link = super().open(timeout)
        self.child: Child = link.loss.__self__  # type: ignore[attr-defined]
        return link


class Plan:
    """What each call does, and what may become of it."""

    def __init__(self, opener: Killable) -> None:
        self.opener = opener
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.kill_at = {CALLS * (kill + 1) // (KILLS + 1) for kill in range(KILLS)}
        self.sizes: list[int] = []
        self._done = 0
        self._lock = threading.Lock()

    def options(self, number: int) -> tuple[dict[str, Any], float]:
        """Choose how long the answer takes, and how long it is waited for."""
        chance = random.Random(number)
        if chance.random() < 0.05:
            return {"number": number, "seconds": 0.2}, chance.uniform(0.001, 0.1)
        return {"number": number, "seconds": 0.0}, PATIENCE

    def done(self, number: int, found: Any) -> None:
        """Note the end of a call, and kill the child where the plan says so."""
        if isinstance(found, Exception):
            assert isinstance(found, (CallTimeout, ConnectionLost)), repr(found)
            self.outcomes[type(found).__name__] += 1
        else:
            assert found == number, f"call {number} got the answer to {found}"
            self.outcomes["answered"] += 1
        with self._lock:
            self._done += 1
            done = self._done
        if done in self.kill_at:
            self.opener.child.kill()
        if done % (CALLS // 5) == 0:
            gc.collect()
            self.sizes.append(len(gc.get_objects()))

    def check(self, stats: Any) -> None:
        """See that everything ended well, and that nothing has grown."""
        assert sum(self.outcomes.values()) == CALLS
        assert stats.pending == 0
        assert 2 < stats.connects <= KILLS + 1
        assert self.outcomes["answered"] > CALLS / 2
        assert self.outcomes["CallTimeout"] > 100
        assert stats.timeouts == self.outcomes["CallTimeout"]
        assert stats.lost == self.outcomes["ConnectionLost"]
        # What a call leaves behind would be there thousands of times.
        growth = self.sizes[-1] - self.sizes[0]
        assert growth < CALLS / 10, f"{growth} more objects: {self.sizes}"


@pytest.fixture
def opener(tmp_path: Path) -> Killable:
    script = tmp_path / "server.py"
    script.write_text(textwrap.dedent(SERVER))
    return Killable([sys.executable, str(script)], restarts=1000)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("rpc_no_leaks")
async def test_ten_thousand_calls_in_one_loop(opener: Killable) -> None:
    plan = Plan(opener)
    numbers = iter(range(CALLS))

    async def caller(client: Client) -> None:
        for number in numbers:
            params, timeout = plan.options(number)
            try:
                found = await client.call("echo", params, timeout=timeout)
            except Exception as error:
                found = error
            plan.done(number, found)

    async with Client(opener, reconnect=True) as client:
        await asyncio.gather(*(caller(client) for _ in range(CALLERS)))
        plan.check(client.stats)
        assert client.stats.late_answers > 0, "late answers were counted"


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("rpc_no_leaks")
def test_ten_thousand_calls_in_sixteen_threads(opener: Killable) -> None:
    plan = Plan(opener)
    numbers, lock = iter(range(CALLS)), threading.Lock()
    failures: list[BaseException] = []

    def caller(client: blocking.Client) -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None or failures:
                return
            params, timeout = plan.options(number)
            found: Any
            try:
                found = client.call("echo", params, timeout=timeout)
            except Exception as error:
                found = error
            try:
                plan.done(number, found)
            except BaseException as error:
                failures.append(error)

    with blocking.Client(opener, reconnect=True) as client:
        threads = [threading.Thread(target=caller, args=[client]) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(250)
            assert not thread.is_alive(), "a call waits for ever"
        if failures:
            raise failures[0]
        plan.check(client.stats)
        assert client.stats.late_answers > 0, "late answers were counted"
