"""`testing.serve` and `testing.serve_in_thread`: real sockets, for the length of a block."""

import asyncio
from collections.abc import AsyncIterator, Generator
from pathlib import Path

import pytest

from duet_rpc import Client, ConnectFailed, Server, Service, Tcp, Unix, blocking, testing
from duet_rpc.policy import EDITOR


def make_service(seen: list[str], fails: str = "") -> Service:
    service = Service()

    @service.lifespan
    def note() -> Generator[None, None, None]:
        if fails == "at the start":
            raise ValueError(fails)
        seen.append("started")
        yield
        seen.append("ended")
        if fails == "at the end":
            raise ValueError(fails)

    @service.query
    async def count(n: int) -> AsyncIterator[int]:
        for number in range(n):
            yield number

    return service


def endpoint(kind: str, tmp_path: Path) -> Unix | Tcp | None:
    if kind == "unix":
        return Unix(str(tmp_path / "s"))
    return Tcp("127.0.0.1", 0) if kind == "tcp" else None


KINDS = pytest.mark.parametrize("kind", ["unix", "tcp", "any"])


@KINDS
async def test_a_server_in_a_task(kind: str, tmp_path: Path) -> None:
    seen: list[str] = []
    server = Server(make_service(seen), policy=EDITOR)
    async with testing.serve(server, endpoint(kind, tmp_path)) as address:
        assert address.startswith("unix:" if kind == "unix" else "tcp://127.0.0.1:")
        async with Client.connect(address) as one, Client.connect(address) as other:
            assert await one.query("count", {"n": 2}) == [0, 1]
            assert [item async for item in other.stream("count", {"n": 2})] == [0, 1]
        assert seen == ["started"]
    assert seen == ["started", "ended"]
    with pytest.raises(ConnectFailed):
        await Client.connect(address).open()


@KINDS
def test_a_server_in_a_thread(kind: str, tmp_path: Path, rpc_no_leaks: None) -> None:
    seen: list[str] = []
    with testing.serve_in_thread(make_service(seen), endpoint(kind, tmp_path)) as address:
        with blocking.Client.connect(address) as client:
            assert client.query("count", {"n": 2}) == [0, 1]
    assert seen == ["started", "ended"]


@pytest.mark.parametrize("fails", ["at the start", "at the end"])
async def test_what_a_lifespan_raises_is_raised(fails: str) -> None:
    service = make_service([], fails)
    with pytest.raises(Exception, match="lifespan|at the") as caught:
        async with testing.serve(service):
            assert fails == "at the end"
    chain = [str(caught.value), str(caught.value.__cause__)]
    assert any(fails in text for text in chain)
    with pytest.raises(Exception, match="lifespan|at the"):
        await asyncio.to_thread(enter, service)


def enter(service: Service) -> None:
    with testing.serve_in_thread(service):
        pass


async def test_an_exception_in_the_block_ends_the_server() -> None:
    seen: list[str] = []
    with pytest.raises(KeyError):
        async with testing.serve(make_service(seen)):
            raise KeyError
    assert seen == ["started", "ended"]
