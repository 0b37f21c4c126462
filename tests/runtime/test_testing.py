"""What `duet_rpc.testing` offers to the tests of others."""

import asyncio
import functools
import logging
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from duet_rpc import Client, Context, Service, testing
from duet_rpc.errors import (
    CallTimeout,
    ConnectFailed,
    ConnectionLost,
    InternalError,
    MethodNotFound,
    UsageError,
)
from duet_rpc.policy import EDITOR, PRODUCTION
from duet_rpc.testing import Faults, JumpingLoop, ManualClock, Way, Wire, connect, run
from tests.helpers import Recorder

pytestmark = pytest.mark.usefixtures("rpc_no_leaks")


def make_service() -> Service:
    service = Service()

    @service.query(inline=True)
    def add(a: int, b: int) -> int:
        return a + b

    @service.query
    def slow(seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    @service.query
    async def wait(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    @service.query
    async def log(ctx: Context) -> None:
        ctx.logger.warning("noted")

    return service


SERVICE = make_service()


def now() -> float:
    return asyncio.get_running_loop().time()


# Connecting.


async def test_connect_joins_a_client_and_a_server() -> None:
    async with connect(SERVICE) as client:
        assert isinstance(client, Client)
        assert await client.call("add", {"a": 1, "b": 2}) == 3
        assert "add" in [method["name"] for method in await client.call("listMethods")]


async def test_connect_takes_a_policy_for_each_end() -> None:
    async with connect(SERVICE, policy=EDITOR, client_policy=EDITOR) as client:
        async with client.batch() as batch:
            items = [batch.call("add", [1, 2]), batch.call("add", [3, 4])]
        assert [item.result() for item in items] == [3, 7]
    with pytest.raises(UsageError, match="durable"):
        async with connect(SERVICE, policy=PRODUCTION):
            pass


async def test_a_handlers_log_goes_to_logging(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        async with connect(SERVICE) as client:
            await client.call("log")
    assert "noted" in caplog.text


async def test_the_fixture_connects(rpc_connect: testing.Connect) -> None:
    async with rpc_connect(SERVICE) as client:
        assert await client.call("add", [1, 2]) == 3


def test_the_fixture_makes_blocking_clients(rpc_client: testing.MakeClient) -> None:
    one, other = rpc_client(SERVICE), rpc_client(SERVICE, framing="ndjson")
    assert one.call("add", [1, 2]) + other.call("add", [3, 4]) == 10


def test_clients_are_closed_before_leaks_are_looked_for(tmp_path: Path) -> None:
    # In a run of its own: here every test looks for leaks, and does so first.
    (tmp_path / "test_it.py").write_text("""
from duet_rpc import Service

service = Service()

@service.query
def one() -> int:
    return 1

def test_it(rpc_client, rpc_no_leaks):
    assert rpc_client(service).call("one") == 1
""")
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"]
    finished = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=50)
    assert finished.returncode == 0, finished.stdout


def test_the_fixture_runs_on_the_clock_that_jumps(rpc_run: testing.RunOnClock) -> None:
    async def story() -> float:
        await asyncio.sleep(3600)
        return now()

    assert rpc_run(story()) == 3600


# Time.


def test_time_jumps_to_the_next_timer() -> None:
    async def story() -> list[float]:
        seen: list[float] = []

        async def at(seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append(now())

        await asyncio.gather(*map(at, [86400, 5, 0.25, 5]))
        return seen

    begun = time.monotonic()
    assert run(story()) == [0.25, 5, 5, 86400]
    assert time.monotonic() - begun < 30


def test_time_does_not_jump_past_what_is_on_its_way() -> None:
    async def story() -> None:
        async with connect(SERVICE) as client:
            for _ in range(100):
                assert await client.call("add", [1, 2], timeout=0.001) == 3
            assert now() == 0

    run(story())


def test_time_waits_a_moment_for_threads() -> None:
    async def story() -> None:
        async with connect(SERVICE, timeout=5) as client:
            assert await client.call("slow", [0.005]) == 0.005
            assert await client.call("slow", [0.005]) == 0.005
            assert now() < 5

    run(story())


def test_what_can_never_happen_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duet_rpc.testing.clock.PATIENCE", 0.01)

    async def story() -> None:
        await asyncio.get_running_loop().create_future()

    loop = JumpingLoop()
    try:
        with pytest.raises(RuntimeError, match="nothing will ever wake one"):
            loop.run_until_complete(story())
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
    finally:
        loop.close()


def test_executors_run_at_once() -> None:
    async def story() -> None:
        assert await asyncio.to_thread(lambda: 5) == 5
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 / 0)

    run(story())


def test_a_manual_clock_goes_on_when_it_is_told_to() -> None:
    clock = ManualClock(100.0)
    assert clock() == 100.0
    clock.advance(0.5)
    assert clock() == clock.now == 100.5
    with pytest.raises(ValueError, match="back"):
        clock.advance(-1)


# Wires.


def on_a_wire(story: Any, **options: Any) -> None:
    async def live() -> None:
        wire = Wire()
        async with connect(SERVICE, wire=wire, **options) as client:
            await story(client, wire)

    run(live())


@pytest.mark.parametrize("framing", ["lsp", "ndjson"])
def test_a_wire_passes_everything_on(framing: str) -> None:
    async def story(client: Client, wire: Wire) -> None:
        calls = [client.start("add", [n, 1]) for n in range(100)]
        assert await asyncio.gather(*calls) == [n + 1 for n in range(100)]
        assert wire.to_server.messages == wire.to_client.messages == 100

    on_a_wire(story, framing=framing)


def test_a_wire_drops() -> None:
    async def story(client: Client, wire: Wire) -> None:
        wire.to_client.rule = lambda frame: []
        with pytest.raises(CallTimeout):
            await client.call("add", [1, 2])

    on_a_wire(story)


def test_a_wire_delays_and_reorders() -> None:
    async def story(client: Client, wire: Wire) -> None:
        delays = iter([3.0, 1.0, 2.0])
        wire.to_client.rule = lambda frame: [(next(delays), frame)]
        order: list[int] = []

        def note(number: int, call: Any) -> None:
            order.append(number)

        calls = [client.start("add", [n, 0]) for n in range(3)]
        for number, call in enumerate(calls):
            call.add_done_callback(functools.partial(note, number))
        await asyncio.gather(*calls)
        await asyncio.sleep(0)
        assert order == [1, 2, 0] and now() == 3.0

    on_a_wire(story)


def test_a_wire_repeats() -> None:
    async def story(client: Client, wire: Wire) -> None:
        wire.to_client.rule = lambda frame: [(0.0, frame), (0.0, frame)]
        assert await client.call("add", [1, 2]) == 3
        await asyncio.sleep(1)
        assert client.stats.unmatched_answers == 1

    on_a_wire(story)


def test_a_wire_stops_and_goes_on() -> None:
    async def story(client: Client, wire: Wire) -> None:
        wire.to_server.stop()
        call = client.start("add", [1, 2])
        await asyncio.sleep(5)
        assert not call.done()
        wire.to_server.resume()
        assert await call == 3

    on_a_wire(story)


@pytest.mark.parametrize("after", [0, 1, 20, 50])
def test_a_wire_is_cut_after_so_many_bytes(after: int) -> None:
    async def story(client: Client, wire: Wire) -> None:
        assert await client.call("add", [1, 2]) == 3
        before = wire.to_client.delivered
        wire.to_client.cut(after)
        with pytest.raises(ConnectionLost):
            await client.call("add", [1, 2])
        assert wire.to_client.delivered == before + after

    on_a_wire(story)


def test_a_wire_garbles_and_injects() -> None:
    async def story(client: Client, wire: Wire) -> None:
        body = b'{"jsonrpc":"2.0","id":77,"result":1}'
        wire.to_client.inject(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        assert await client.call("add", [1, 2]) == 3
        assert client.stats.unmatched_answers == 1
        wire.to_client.rule = lambda frame: [(0.0, b"Content-Length: zero\r\n\r\n" + frame)]
        with pytest.raises(ConnectionLost, match="no frame"):
            await client.call("add", [1, 2])

    on_a_wire(story)


def test_a_way_without_a_connection_does_nothing() -> None:
    way = Way()
    way.stop()
    way.resume()
    way.inject(b"x")
    way.cut()
    assert way.delivered == 0


def test_faults_are_the_same_for_the_same_seed() -> None:
    def deliveries(seed: int) -> list[Any]:
        rule = Faults(seed=seed, drop=0.2, duplicate=0.2, garbage=0.2, delay=(0.0, 1.0))
        return [list(rule(b"frame %d" % number)) for number in range(50)]

    assert deliveries(1) == deliveries(1) != deliveries(2)
    flat = [len(found) for found in deliveries(1)]
    assert {0, 1, 2} == set(flat)


async def test_a_server_that_refuses_connections() -> None:
    wire = Wire()
    async with connect(SERVICE, wire=wire, reconnect=True) as client:
        server: Any = client._opener
        server.refuses = True
        wire.to_client.cut()
        with pytest.raises(ConnectionLost):
            await client.call("add", [1, 2])
        with pytest.raises(ConnectFailed):
            await client.call("add", [1, 2])
        server.refuses = False
        assert await client.call("add", [1, 2]) == 3
        with pytest.raises(MethodNotFound):
            await client.call("nope")


def failing() -> Service:
    service = Service()

    @service.query
    def fail() -> None:
        raise ZeroDivisionError("of my own")

    return service


def test_the_log_of_the_server_leads_to_what_failed(
    rpc_client: testing.MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(InternalError) as caught:
        rpc_client(failing()).call("fail")
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("duet_rpc", "ERROR")
    assert f"reference={caught.value.data['reference']}" in record.getMessage()
    assert "method=fail" in record.getMessage()
    assert "ZeroDivisionError: of my own" in caplog.text and "in fail" in caplog.text


async def test_the_log_of_the_server_has_a_level(caplog: pytest.LogCaptureFixture) -> None:
    async with connect(SERVICE) as client:
        await client.notify("nothing")
        await client.call("add", [1, 2])
        caplog.set_level(logging.ERROR, "duet_rpc")
        await client.notify("nothing")
        await client.call("add", [1, 2])
    assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_a_server_log_takes_the_place_of_logging(caplog: pytest.LogCaptureFixture) -> None:
    log = Recorder()
    async with connect(failing(), server_log=log) as client:
        with pytest.raises(InternalError) as caught:
            await client.call("fail")
    assert caught.value.data == {"reference": "ref-1"}
    assert [type(error) for error in log.failures] == [ZeroDivisionError]
    assert not caplog.records


def test_the_plugin_is_there_wherever_we_are_installed() -> None:
    from importlib.metadata import entry_points

    names = {entry.name: entry.value for entry in entry_points(group="pytest11")}
    assert names["duet_rpc"] == "duet_rpc.testing.plugin"
