"""The age of a retry: a retry tells its age, and what a store cannot know is not run again.

Real servers that die between effect and answer, on every store, asked by both clients. An effect
is a line in a file, so that it can be counted whatever was answered.
"""

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from duet_rpc import (
    Client,
    ConnectionLost,
    OutcomeUnknown,
    Retry,
    Server,
    Service,
    blocking,
    testing,
)
from duet_rpc.errors import InProgress
from duet_rpc.ledger import Ledger, MemoryStore
from duet_rpc.ledger.commands import START_TAKES, process_began
from duet_rpc.policy import EDITOR
from tests.ledger.conftest import STORES

pytestmark = pytest.mark.timeout(120)

SERVICE = """
import os, sys
from duet_rpc import Server, Service, Transaction
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

@app.query
def crash() -> None:
    os._exit(9)

@app.command(retry_safe=True)
def again(word: str) -> str:
    return effect(word)

if STORE.startswith(("sqlite:", "postgresql:")):
    @app.command
    def move(word: str, transaction: Transaction) -> str:
        return effect(word)

# The default, or a store that is there after a crash.
Server(app, store=None if STORE == "memory:" else Ledger(open_store(STORE), lease=0.5)).run_stdio()
"""

STALLED = """
import sys, time
from duet_rpc import Server, Service
from duet_rpc.ledger.commands import Commands

app = Service("app")
begin = Commands.begin

def stall(*args):
    begin(*args)
    time.sleep(2)

Commands.begin = stall

@app.command
def once() -> int:
    with open(sys.argv[2], "a") as log:
        log.write("once\\n")
    return 1

Server(app).{where}
"""

RETRY = Retry(attempts=3, first_delay=0.001, jitter=0.0)


class Asker(Protocol):
    """One of the clients, connected to a server that is started again when it dies."""

    def command(self, method: str, word: str, **options: Any) -> Any: ...

    def batch(self, method: str, word: str) -> Any: ...

    def outcome(self, method: str) -> Any: ...

    def call(self, method: str, params: Any) -> Any: ...


class Blocking:
    def __init__(self, client: blocking.Client) -> None:
        self._client = client

    def command(self, method: str, word: str, **options: Any) -> Any:
        return self._client.command(method, {"word": word}, key="k", **options)

    def batch(self, method: str, word: str) -> Any:
        with self._client.batch() as batch:
            item = batch.command(method, {"word": word}, key="k")
        return item.result()

    def outcome(self, method: str) -> Any:
        return self._client.outcome(method, "k").state

    def call(self, method: str, params: Any) -> Any:
        return self._client.call(method, params)


class OnLoop:
    def __init__(self, client: Client, runner: asyncio.Runner) -> None:
        self._client = client
        self._runner = runner

    def _run(self, awaited: Awaitable[Any]) -> Any:
        async def main() -> Any:
            return await awaited

        return self._runner.run(main())

    def command(self, method: str, word: str, **options: Any) -> Any:
        return self._run(self._client.command(method, {"word": word}, key="k", **options))

    def batch(self, method: str, word: str) -> Any:
        async def send() -> Any:
            async with self._client.batch() as batch:
                item = batch.command(method, {"word": word}, key="k")
            return item.result()

        return self._runner.run(send())

    def outcome(self, method: str) -> Any:
        return self._run(self._client.outcome(method, "k")).state

    def call(self, method: str, params: Any) -> Any:
        return self._run(self._client.call(method, params))


@contextmanager
def ask_blocking(*command: str) -> Iterator[Asker]:
    with blocking.Client.spawn(*command, reconnect=True) as client:
        yield Blocking(client)


@contextmanager
def ask_asyncio(*command: str) -> Iterator[Asker]:
    with asyncio.Runner() as runner:
        client = Client.spawn(*command, reconnect=True)
        runner.run(client.__aenter__())
        try:
            yield OnLoop(client, runner)
        finally:
            runner.run(client.__aexit__(None, None, None))


Ask = Callable[..., AbstractContextManager[Asker]]
every_client = pytest.mark.parametrize("ask", [ask_blocking, ask_asyncio])
every_store = pytest.mark.parametrize("kind", STORES, indirect=True)


class Place:
    """A server on one store, and the effects that it had."""

    def __init__(self, directory: Path, url: str, ask: Ask) -> None:
        self._log = directory / "effects"
        script = directory / "service.py"
        script.write_text(SERVICE)
        self._command = [sys.executable, str(script), str(self._log), url]
        self._ask = ask

    def client(self) -> AbstractContextManager[Asker]:
        """Start a server and connect a client that knows nothing of those before it."""
        return self._ask(*self._command)

    @property
    def effects(self) -> list[str]:
        """What happened."""
        return self._log.read_text().split() if self._log.exists() else []


@pytest.fixture
def place(url: str, tmp_path: Path, ask: Ask) -> Place:
    return Place(tmp_path, url, ask)


@pytest.mark.clause("commands-32")
@every_store
@every_client
@pytest.mark.parametrize("method", ["app.once", "app.once_on_loop"])
def test_at_most_once_holds_over_a_crash_though_the_client_retries(
    place: Place, method: str
) -> None:
    with place.client() as client:
        with pytest.raises(OutcomeUnknown):
            client.command(method, "die", retry=RETRY)
        assert place.effects == ["die"]
        # It was recorded, so it is the same for everyone, however they ask.
        with pytest.raises(OutcomeUnknown):
            client.command(method, "die")
        assert client.outcome(method) == "unknown"
    assert place.effects == ["die"]


@pytest.mark.clause("commands-35")
@every_store
@every_client
def test_a_client_that_gave_up_is_told_the_truth_when_it_asks(place: Place) -> None:
    with place.client() as client:
        with pytest.raises(ConnectionLost):
            client.command("app.once", "die")
        # Of a record that was lost with the server, or whose lease is not over yet.
        assert client.outcome("app.once") in ("unknown", "running")
        with pytest.raises(OutcomeUnknown):
            client.command("app.once", "die")
    assert place.effects == ["die"]


@pytest.mark.clause("commands-32")
@every_store
@every_client
@pytest.mark.parametrize("first", ["command", "batch"])
@pytest.mark.parametrize("second", ["command", "batch"])
def test_at_most_once_holds_over_every_crash_after_it(
    place: Place, first: str, second: str
) -> None:
    """A server that has said `outcome-unknown` forgets that too if its store is its memory."""
    with place.client() as client:
        with pytest.raises(ConnectionLost):
            getattr(client, first)("app.once", "die")
        for way in (second, first):
            with pytest.raises((OutcomeUnknown, InProgress)):
                getattr(client, way)("app.once", "die")
            with pytest.raises(ConnectionLost):
                client.call("app.crash", None)
        assert client.outcome("app.once") in ("unknown", "running")
    assert place.effects == ["die"]


@pytest.mark.clause("commands-32")
@every_store
@every_client
@pytest.mark.parametrize("more", [0.0, 30.0])
def test_another_process_tells_the_age_too(place: Place, kind: str, more: float) -> None:
    first_sent = time.monotonic()
    with place.client() as client, pytest.raises(ConnectionLost):
        client.command("app.once", "die")
    with place.client() as client:
        asked = {"method": "app.once", "idempotency_key": "k"}
        state = client.call("rpc.outcome", asked)["state"]
        assert state in (("none",) if kind == "memory" else ("running", "unknown"))
        if kind == "memory":
            age = time.monotonic() - first_sent + more
            told = client.call("rpc.outcome", {**asked, "age_ms": int(age * 1000) + 1})
            assert told == {"state": "unknown"}
        with pytest.raises(OutcomeUnknown):
            client.command("app.once", "die", age=time.monotonic() - first_sent + more)
    assert place.effects == ["die"]


@pytest.mark.clause("commands-32")
@every_store
@every_client
def test_a_retry_safe_command_runs_again(place: Place) -> None:
    with place.client() as client:
        assert client.command("app.again", "die", retry=RETRY) == "die"
    assert place.effects == ["die", "die"]


@pytest.mark.clause("commands-33")
@pytest.mark.parametrize("kind", ["memory"], indirect=True)
@every_client
def test_a_client_that_does_not_tell_is_served_as_ever(place: Place) -> None:
    with place.client() as client, pytest.raises(ConnectionLost):
        client.command("app.once", "die")
    with place.client() as client:
        assert client.command("app.once", "die") == "die"
    assert place.effects == ["die", "die"]


@pytest.mark.clause("commands-32")
@pytest.mark.parametrize("kind", STORES[1:], indirect=True)
@every_client
def test_an_outcome_is_replayed_by_another_server(place: Place) -> None:
    with place.client() as client:
        assert client.command("app.once", "live") == "live"
    with place.client() as client:
        assert client.command("app.once", "live", age=30.0) == "live"
    assert place.effects == ["live"]


# A server that has just started, for which a retry may have waited


@pytest.mark.clause("commands-32")
@pytest.mark.parametrize("kind", ["sqlite", "postgres"], indirect=True)
@every_client
def test_a_transaction_that_a_crash_rolled_back_is_run_however_young_the_store(
    place: Place,
) -> None:
    with place.client() as client:
        assert client.outcome("app.move") == "none", "the store is there before the first try"
        assert client.command("app.move", "die", retry=RETRY) == "die"
        assert client.outcome("app.move") == "done"
    assert place.effects == ["die", "die"]


@pytest.mark.clause("commands-32")
@pytest.mark.parametrize("kind", STORES[1:], indirect=True)
@every_client
def test_a_try_that_never_came_is_run_if_a_server_before_this_one_made_the_store(
    place: Place,
) -> None:
    with place.client() as client:
        assert client.command("app.again", "before") == "before"
    with place.client() as client:
        assert client.command("app.once", "live", age=0.001) == "live"
    assert place.effects == ["before", "live"]


@pytest.mark.clause("commands-32")
@every_store
@every_client
def test_a_store_that_this_process_made_knows_nothing_of_what_waited_for_it(place: Place) -> None:
    with place.client() as client, pytest.raises(OutcomeUnknown):
        client.command("app.once", "live", age=0.001)
    assert not place.effects


@pytest.mark.clause("commands-32")
@every_client
def test_nor_does_memory_that_was_made_before_the_server(tmp_path: Path, ask: Ask) -> None:
    place = Place(tmp_path, "memory://", ask)
    with place.client() as client, pytest.raises(OutcomeUnknown):
        client.command("app.once", "live", age=0.001)
    assert not place.effects


# On a server that lives, without processes


@pytest.fixture
def counted() -> tuple[Service, list[int]]:
    service, runs = Service("app"), []

    @service.command
    def once() -> int:
        runs.append(1)
        return len(runs)

    return service, runs


@pytest.mark.clause("commands-32")
async def test_a_first_try_that_never_came_is_run_by_a_server_that_was_there(
    counted: tuple[Service, list[int]],
) -> None:
    store = MemoryStore(since=0.0)
    async with testing.connect(counted[0], store=store) as client:
        assert await client.command("app.once", key="a", age=5.0) == 1
        assert await client.command("app.once", key="a", age=9.0) == 1
    assert len(counted[1]) == 1


@pytest.mark.clause("commands-32")
async def test_what_was_sent_before_the_server_began_or_too_long_ago_is_unknown(
    counted: tuple[Service, list[int]],
) -> None:
    ledger = Ledger(MemoryStore(), ttl=1000.0)
    async with testing.connect(counted[0], store=ledger) as client:
        for age_ms in (60_000, 1_000_000):
            with pytest.raises(OutcomeUnknown):
                await client.command("app.once", key=f"{age_ms}", age=age_ms / 1000)
            # A later retry, and one that does not tell, are told the same; so is who asks.
            with pytest.raises(OutcomeUnknown):
                await client.command("app.once", key=f"{age_ms}")
            outcome = await client.outcome("app.once", f"{age_ms}")
            assert outcome.state == "unknown"
        known = {"method": "app.once", "idempotency_key": "never seen"}
        assert await client.call("rpc.outcome", known) == {"state": "none"}
        assert await client.call("rpc.outcome", {**known, "age_ms": 0}) == {"state": "none"}
        assert await client.call("rpc.outcome", {**known, "age_ms": 60_000}) == {"state": "unknown"}
    assert counted[1] == []


@pytest.mark.clause("commands-34")
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
        queued = asyncio.ensure_future(client.command("app.once", key="queued", age=age))
        await asyncio.sleep(0.5)
        go_on.set()
        await held
        with pytest.raises(OutcomeUnknown):
            await queued
    assert not runs


@pytest.mark.clause("commands-34")
def test_what_is_read_while_a_server_starts_may_have_waited_for_it() -> None:
    server = Server(Service("app"))
    commands = server.commands
    now = commands.now()
    assert commands.first_sent(2.0, now) == pytest.approx(now - 2.0)
    commands.begin()
    now = commands.now()
    waited = max(process_began(), now - START_TAKES)
    assert commands.first_sent(0.001, now) == pytest.approx(waited)
    assert commands.first_sent(2 * START_TAKES, now) == pytest.approx(now - 2 * START_TAKES)
    assert commands.first_sent(0.001, now + 60) == pytest.approx(waited)  # a busy machine
    commands.caught_up()
    later = commands.now() + 0.001
    assert commands.first_sent(0.001, now) == pytest.approx(waited)  # read before that
    assert commands.first_sent(0.001, later) == pytest.approx(later - 0.001)
    server.close()


@pytest.mark.clause("commands-34")
@pytest.mark.parametrize("where", ["run_stdio()", "run_unix(sys.argv[1])"])
def test_however_long_a_busy_machine_takes_from_the_start_to_the_first_read(
    where: str, tmp_path: Path
) -> None:
    """A server that stands still after its start, while a retry waits in its pipe or its socket."""
    script, log = tmp_path / "service.py", tmp_path / "effects"
    script.write_text(STALLED.format(where=where))
    address = tmp_path / "s"
    arguments = [sys.executable, str(script), str(address), str(log)]
    with contextlib.ExitStack() as stack:
        if where.startswith("run_unix"):
            process = stack.enter_context(subprocess.Popen(arguments))
            stack.callback(process.terminate)
            until = time.monotonic() + 30
            while not address.exists() and time.monotonic() < until:
                time.sleep(0.01)
            client = stack.enter_context(blocking.Client.connect(f"unix:{address}"))
        else:
            client = stack.enter_context(blocking.Client.spawn(*arguments))
        with pytest.raises(OutcomeUnknown):
            client.command("app.once", key="k", age=0.001)
        # A server that was there knows that the first try of this one never came.
        assert client.command("app.once", key="another", age=0.001) == 1
    assert log.read_text() == "once\n"


@pytest.mark.clause("commands-32")
async def test_a_server_without_a_store_remembers_from_its_start(
    counted: tuple[Service, list[int]],
) -> None:
    """Not from its first key: a try that was lost on its way is run, also if it is the first."""
    async with testing.connect(counted[0]) as client:
        await asyncio.sleep(0.05)
        assert await client.command("app.once", key="a", age=0.01) == 1


@pytest.mark.clause("commands-32")
async def test_an_age_of_zero_says_that_no_try_before_can_have_had_an_effect() -> None:
    service = Service("app")

    @service.command
    def once() -> int:
        return 1

    async with testing.connect(service, store=Ledger(MemoryStore())) as client:
        params = {"idempotency_key": "a", "_meta": {"retry": {"attempt": 2, "age_ms": 0}}}
        assert await client.call("app.once", params) == 1
        params = {"idempotency_key": "b", "_meta": {"retry": {"attempt": 2, "age_ms": 60_000}}}
        with pytest.raises(OutcomeUnknown):
            await client.call("app.once", params)
