"""Contract, section 7: a retry tells its age, and what a store cannot know is not run again.

Real servers that die between effect and answer, on every store, asked by both clients. An effect
is a line in a file, so that it can be counted whatever was answered.
"""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from duet_rpc import Client, ConnectionLost, OutcomeUnknown, Server, Service, blocking, testing
from duet_rpc.commands import START_TAKES, STARTING
from duet_rpc.ledger import Ledger, MemoryStore
from duet_rpc.policy import EDITOR
from tests.ledger.conftest import STORES

pytestmark = pytest.mark.timeout(120)

SERVICE = """
import os, sys
from duet_rpc import Server, Service
from duet_rpc.ledger import Ledger, open_store

LOG, STORE = sys.argv[1:3]
app = Service("app")

def effect(word: str) -> str:
    is_first = not os.path.exists(LOG)
    with open(LOG, "a") as log:
        log.write(word + "\\n")
    if word == "die" and is_first:
        os._exit(9)
    return word

@app.command
def once(word: str) -> str:
    return effect(word)

@app.command
async def once_on_loop(word: str) -> str:
    return effect(word)

@app.command(retry_safe=True)
def again(word: str) -> str:
    return effect(word)

# The default, or a store that is there after a crash.
Server(app, store=None if STORE == "memory:" else Ledger(open_store(STORE), lease=0.5)).run_stdio()
"""

Ask = Callable[[list[str], str, dict[str, Any]], Any]


def ask_blocking(command: list[str], method: str, params: dict[str, Any]) -> Any:
    with blocking.Client.spawn(*command) as client:
        if method == "outcome":
            return client.call("rpc.outcome", params)
        return client.command(method, params, key="k")


def ask_asyncio(command: list[str], method: str, params: dict[str, Any]) -> Any:
    async def main() -> Any:
        async with Client.spawn(*command) as client:
            if method == "outcome":
                return await client.call("rpc.outcome", params)
            return await client.command(method, params, key="k")

    return asyncio.run(main())


every_client = pytest.mark.parametrize("ask", [ask_blocking, ask_asyncio])
every_store = pytest.mark.parametrize("kind", STORES, indirect=True)


def aged(word: str, age_ms: int) -> dict[str, Any]:
    """Params as our clients send them from the second try on."""
    return {"word": word, "_meta": {"retry": {"attempt": 2, "age_ms": age_ms}}}


class Place:
    """A server on one store, started for each call, and the effects that it had."""

    def __init__(self, directory: Path, url: str, ask: Ask) -> None:
        self._log = directory / "effects"
        script = directory / "service.py"
        script.write_text(SERVICE)
        self._command = [sys.executable, str(script), str(self._log), url]
        self._ask = ask

    def call(self, method: str, params: dict[str, Any]) -> Any:
        """Start a server and call it."""
        return self._ask(self._command, method, params)

    def outcome(self, method: str, **more: Any) -> Any:
        """Ask a server what became of the command."""
        return self.call("outcome", {"method": method, "idempotency_key": "k", **more})["state"]

    @property
    def effects(self) -> list[str]:
        """What happened."""
        return self._log.read_text().split() if self._log.exists() else []


@pytest.fixture
def place(url: str, tmp_path: Path, ask: Ask) -> Place:
    return Place(tmp_path, url, ask)


@every_store
@every_client
@pytest.mark.parametrize(
    "method, age_ms", [("app.once", 0), ("app.once", 80), ("app.once_on_loop", 30_000)]
)
def test_at_most_once_holds_over_a_crash_on_every_store(
    place: Place, kind: str, method: str, age_ms: int
) -> None:
    with pytest.raises(ConnectionLost):
        place.call(method, {"word": "die"})
    assert place.effects == ["die"]
    with pytest.raises(OutcomeUnknown):
        place.call(method, aged("die", age_ms))
    assert place.effects == ["die"]
    expected = "none" if kind == "memory" else "unknown"
    assert place.outcome(method) == expected, "memory does not know, unless it is told the age"
    assert place.outcome(method, age_ms=age_ms or 1) == "unknown"


@every_store
@every_client
def test_a_retry_safe_command_runs_again(place: Place) -> None:
    with pytest.raises(ConnectionLost):
        place.call("app.again", {"word": "die"})
    assert place.call("app.again", aged("die", 80)) == "die"
    assert place.effects == ["die", "die"]


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
@every_client
def test_a_client_that_does_not_tell_is_served_as_ever(place: Place) -> None:
    with pytest.raises(ConnectionLost):
        place.call("app.once", {"word": "die"})
    assert place.call("app.once", {"word": "die"}) == "die"
    assert place.effects == ["die", "die"]


@pytest.mark.parametrize("kind", STORES[1:], indirect=True)
@every_client
def test_an_outcome_is_replayed_and_a_first_try_that_was_lost_is_run(place: Place) -> None:
    assert place.call("app.once", {"word": "live"}) == "live"
    assert place.call("app.once", aged("live", 80)) == "live"
    assert place.effects == ["live"]


# On a server that lives, without processes


@pytest.fixture
def counted() -> tuple[Service, list[int]]:
    service, runs = Service("app"), []

    @service.command
    def once() -> int:
        runs.append(1)
        return len(runs)

    return service, runs


def meta(age_ms: int) -> dict[str, Any]:
    return {"_meta": {"retry": {"attempt": 2, "age_ms": age_ms}}}


async def test_a_first_try_that_never_came_is_run_by_a_server_that_was_there(
    counted: tuple[Service, list[int]],
) -> None:
    store = MemoryStore(since=0.0)
    async with testing.connect(counted[0], store=store) as client:
        assert await client.command("app.once", meta(5_000), key="a") == 1
        assert await client.command("app.once", meta(9_000), key="a") == 1
    assert len(counted[1]) == 1


async def test_what_was_sent_before_the_server_began_or_too_long_ago_is_unknown(
    counted: tuple[Service, list[int]],
) -> None:
    ledger = Ledger(MemoryStore(), ttl=1000.0)
    async with testing.connect(counted[0], store=ledger) as client:
        for age_ms in (60_000, 1_000_000):
            with pytest.raises(OutcomeUnknown):
                await client.command("app.once", meta(age_ms), key=f"{age_ms}")
            # A later retry, and one that does not tell, are told the same; so is who asks.
            with pytest.raises(OutcomeUnknown):
                await client.command("app.once", key=f"{age_ms}")
            outcome = await client.outcome("app.once", f"{age_ms}")
            assert outcome == {"state": "unknown"}
        known = {"method": "app.once", "idempotency_key": "never seen"}
        assert await client.call("rpc.outcome", known) == {"state": "none"}
        assert await client.call("rpc.outcome", {**known, "age_ms": 0}) == {"state": "none"}
        assert await client.call("rpc.outcome", {**known, "age_ms": 60_000}) == {"state": "unknown"}
    assert counted[1] == []


async def test_waiting_for_its_turn_makes_no_retry_look_younger() -> None:
    """The store began between the first try and the retry, which then waits for its turn."""
    service, runs = Service("app"), []
    started, go_on = asyncio.Event(), asyncio.Event()

    @service.command
    async def hold() -> None:
        started.set()
        await go_on.wait()

    @service.command
    def once() -> None:
        runs.append(1)

    store = MemoryStore()
    began = store.since(1.0)[0]
    async with testing.connect(service, store=store, policy=EDITOR) as client:
        held = asyncio.ensure_future(client.command("app.hold", key="held"))
        await started.wait()
        # When it is read, it is a little older than the store. It then waits for longer than that.
        age = store.since(1.0)[1] - began + 0.2
        queued = asyncio.ensure_future(
            client.command("app.once", meta(int(age * 1000)), key="queued")
        )
        await asyncio.sleep(0.5)
        go_on.set()
        await held
        with pytest.raises(OutcomeUnknown):
            await queued
    assert not runs


def test_what_is_read_while_a_server_starts_may_have_waited_for_it() -> None:
    server = Server(Service("app"))
    commands = server.commands
    now = commands.now()
    assert commands.first_sent(2.0, now) == pytest.approx(now - 2.0)
    commands.begin()
    now = commands.now()
    assert commands.first_sent(2.0, now) == pytest.approx(now - 2.0 - START_TAKES)
    assert commands.first_sent(2.0, now + 2 * STARTING) == pytest.approx(now + 2 * STARTING - 2.0)
    server.close()


async def test_a_server_without_a_store_remembers_from_its_start(
    counted: tuple[Service, list[int]],
) -> None:
    """Not from its first key: a try that was lost on its way is run, also if it is the first."""
    async with testing.connect(counted[0]) as client:
        await asyncio.sleep(0.05)
        assert await client.command("app.once", meta(10), key="a") == 1
