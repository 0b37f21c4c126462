"""Several addresses: the first that can be reached is called, in the order given."""

import asyncio
from contextlib import ExitStack
from pathlib import Path
from socket import AF_UNIX, socket

import pytest

from duet_rpc import Client, ConnectFailed, Retry, Server, Service, UsageError, blocking
from duet_rpc.transports.link import FirstOpener, SocketOpener


def named(name: str) -> Server:
    service = Service()

    @service.query
    def who() -> str:
        return name

    return Server(service)


class Served:
    """A server on a unix socket, in the running loop."""

    def __init__(self, name: str, path: Path) -> None:
        self.address = f"unix:{path}"
        self._name = name
        self._path = path

    async def __aenter__(self) -> "Served":
        ready = asyncio.Event()
        self._task = asyncio.create_task(
            named(self._name).serve_unix(str(self._path), on_start=lambda _: ready.set())
        )
        await ready.wait()
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


@pytest.mark.clause("client-30")
async def test_the_first_that_can_be_reached_is_called(tmp_path: Path) -> None:
    first, second = Served("first", tmp_path / "a"), Served("second", tmp_path / "b")
    addresses = first.address, second.address
    retry = Retry(attempts=50, first_delay=0.01)
    async with second:
        async with Client.connect(*addresses, retry=retry) as client:
            assert await client.query("who") == "second"
            async with first:
                async with Client.connect(*addresses) as other:
                    assert await other.query("who") == "first"
                assert await client.query("who") == "second", "it stays where it is"
        async with first, Client.connect(*addresses, retry=retry) as client:
            assert await client.query("who") == "first"
            await first.__aexit__()
            assert await client.query("who") == "second", "after a loss the next is called"


@pytest.mark.clause("client-30")
async def test_the_blocking_client_does_the_same(tmp_path: Path) -> None:
    async with Served("second", tmp_path / "b") as second:

        def ask() -> object:
            with blocking.Client.connect(f"unix:{tmp_path}/a", second.address) as client:
                return client.query("who")

        assert await asyncio.to_thread(ask) == "second"


@pytest.mark.clause("client-30")
def test_one_that_does_not_answer_leaves_time_for_the_next(tmp_path: Path) -> None:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket(AF_UNIX)) for _ in range(5)]
        silent, healthy, *callers = sockets
        for listening, name in ((silent, "a"), (healthy, "b")):
            listening.bind(str(tmp_path / name))
            listening.listen(0)
        for caller in callers:  # until there is no room for one more
            caller.setblocking(False)
            caller.connect_ex(str(tmp_path / "a"))
        addresses = f"unix:{tmp_path}/a", f"unix:{tmp_path}/b"
        link = FirstOpener([SocketOpener(address) for address in addresses]).open(0.2)
        stack.callback(link.end)
        assert link.address == addresses[1]


@pytest.mark.clause("client-30")
def test_the_failure_names_each_address(tmp_path: Path) -> None:
    with pytest.raises(ConnectFailed) as failed:
        blocking.Client.connect(f"unix:{tmp_path}/a", f"unix:{tmp_path}/b").open()
    assert f"{tmp_path}/a" in str(failed.value) and f"{tmp_path}/b" in str(failed.value)


def test_there_is_an_address_at_least() -> None:
    with pytest.raises(UsageError, match="address"):
        Client.connect()
    with pytest.raises(UsageError):
        Client.connect("unix:a", "nowhere")
