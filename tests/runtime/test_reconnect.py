"""Real sockets: a server that goes away and comes back, and clients that find it again."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duet_rpc import Client, Retry, Server, Service, blocking
from duet_rpc.errors import ConnectFailed, ConnectionLost, UsageError
from duet_rpc.policy import SPEC
from duet_rpc.testing.memory import loop_in_thread
from duet_rpc.transports.link import SocketOpener
from tests.runtime.faces import PATIENCE, Face, failure


def make_service() -> Service:
    service = Service()

    @service.query
    async def wait(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    return service


@contextlib.contextmanager
def serving(target: str) -> Iterator[str]:
    """Serve in the loop of a thread; gives the address."""
    with loop_in_thread() as loop:
        started, addresses = threading.Event(), list[str]()

        def on_start(address: str) -> None:
            addresses.append(str(address))
            started.set()

        ended = threading.Event()

        async def serve() -> None:
            try:
                await listen()
            finally:
                ended.set()

        async def listen() -> None:
            server = Server(make_service(), policy=SPEC)
            if target.startswith("unix:"):
                await server.serve_unix(target.removeprefix("unix:"), on_start=on_start, drain=0.1)
            else:
                port = int(target.rpartition(":")[2])
                await server.serve_tcp("127.0.0.1", port, on_start=on_start, drain=0.1)

        serving = asyncio.run_coroutine_threadsafe(serve(), loop)
        assert started.wait(PATIENCE), serving.exception(1)
        try:
            yield addresses[0]
        finally:
            serving.cancel()
            assert ended.wait(PATIENCE)


@pytest.fixture(params=["unix", "tcp"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"unix:{tmp_path}/socket" if request.param == "unix" else "tcp://127.0.0.1:0"


def test_a_client_finds_a_server_that_has_come_back(face: Face, target: str) -> None:
    retry = Retry(attempts=200, first_delay=0.05, max_delay=0.1, total=PATIENCE)
    with serving(target) as address:
        driver = face.open(SocketOpener(address), retry=retry)
        assert driver.call("wait", [0]) == 0
        open_call = driver.begin("wait", [100], timeout=None)
        until = time.monotonic() + PATIENCE
        while driver.stats.pending < 1 and time.monotonic() < until:
            time.sleep(0.005)
    assert isinstance(failure(open_call), ConnectionLost)
    with pytest.raises(ConnectFailed):
        driver.call("wait", [0])
    waiting = driver.start(lambda client: client.query("wait", [0]))
    with serving(address):
        assert waiting.result(PATIENCE) == 0
        assert driver.call("wait", [0]) == 0
        assert driver.stats.connects == 2
        driver.close()


def test_a_client_connects_by_address(target: str, rpc_no_leaks: None) -> None:
    with serving(target) as address:
        with blocking.Client.connect(address) as client:
            assert client.call("wait", [0]) == 0

        async def story() -> Any:
            async with Client.connect(address) as other:
                return await asyncio.gather(*(other.call("wait", [0.01]) for _ in range(50)))

        assert asyncio.run(story()) == [0.01] * 50


SENDINGS = {
    "a call": lambda client: client.call("wait", {"seconds": 0}),
    "a notification": lambda client: client.notify("wait", {"seconds": 0}),
    "a query": lambda client: client.query("wait", {"seconds": 0}),
}


@pytest.mark.parametrize("sending", SENDINGS)
async def test_what_is_sent_before_the_first_connection_says_how_to_make_one(sending: str) -> None:
    opener = SocketOpener("unix:/nowhere")
    with pytest.raises(UsageError, match="not connected; use `async with`"):
        await SENDINGS[sending](Client(opener, reconnect=True))
    with pytest.raises(UsageError, match="not connected; use `with`"):
        SENDINGS[sending](blocking.Client(opener, reconnect=True))


@pytest.mark.parametrize("sending", SENDINGS)
def test_what_is_sent_after_the_end_fails_with_it(sending: str, face: Face) -> None:
    driver = face.connect(make_service(), reconnect=True)
    driver.close()
    for _ in range(2):
        with pytest.raises(ConnectionLost, match="the client was closed"):
            driver.do(SENDINGS[sending])
    assert driver.stats.connects == 1
