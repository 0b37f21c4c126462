"""A store that stops answering under a server: commands are refused, queries are answered."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from duet_rpc import Client
from duet_rpc.errors import RpcError, StoreUnavailable
from duet_rpc.retry import Retry
from tests.ledger.servers import Postgres, Valkey

pytestmark = pytest.mark.timeout(180)
HANGS = 60.0

SERVICE = """
import os, sys
from duet_rpc import Server, Service, Transaction
from duet_rpc.policy import AGENT

app = Service()

def effect(name):
    with open("effects", "a") as file:
        file.write(name + "\\n")

@app.query
async def ping() -> str:
    return "pong"

@app.query
def pong() -> str:
    return "ping"

@app.command
def once(name: str) -> str:
    effect(name)
    return name

@app.command
async def once_async(name: str) -> str:
    effect(name)
    return name

@app.command(retry_safe=True)
def safe(name: str) -> str:
    effect(name)
    return name
"""
MOVES = """
@app.command
def move(name: str, db: Transaction) -> str:
    db.execute("SELECT 1")
    effect(name)
    return name

@app.command
async def move_async(name: str, db: Transaction) -> str:
    await db.execute("SELECT 1")
    effect(name)
    return name
"""
RUN = """
server = Server(app, policy=AGENT, store=sys.argv[1])
if len(sys.argv) > 2:
    server.run_unix(sys.argv[2], on_start=lambda address: print("ready", flush=True))
else:
    server.run_stdio()
"""
METHODS = {
    "postgres": ["once", "once_async", "safe", "move", "move_async"],
    "valkey": ["once", "once_async", "safe"],
}


@pytest.fixture
def server(kind: str, url: str, request: pytest.FixtureRequest) -> Iterator[Postgres | Valkey]:
    server: Postgres | Valkey = request.getfixturevalue(f"{kind}_server")
    yield server
    server.thaw()


@asynccontextmanager
async def served(kind: str, url: str, where: str, directory: Path) -> AsyncIterator[Client]:
    """Serve the service in a process of its own, on pipes or on a socket."""
    script = directory / "service.py"
    script.write_text(SERVICE + (MOVES if kind == "postgres" else "") + RUN)
    command = [sys.executable, str(script), url]
    if where == "stdio":
        async with Client.spawn(*command, cwd=str(directory)) as client:
            yield client
        return
    path = f"/tmp/duet-{os.getpid()}.sock"
    process = await asyncio.create_subprocess_exec(
        *command, path, cwd=directory, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        async with Client.connect(f"unix:{path}") as client:
            yield client
    finally:
        process.terminate()
        await process.communicate()


async def refusal(client: Client, method: str, key: str) -> RpcError:
    with pytest.raises(RpcError) as refused:
        await client.command(method, {"name": key}, key=key, timeout=HANGS)
    return refused.value


@pytest.mark.parametrize("kind", ["postgres", "valkey"], indirect=True)
@pytest.mark.parametrize("where", ["stdio", "unix"])
async def test_commands_are_refused_and_queries_answered_while_a_store_is_frozen(
    server: Postgres | Valkey, kind: str, where: str, tmp_path: Path
) -> None:
    methods = METHODS[kind]
    async with served(kind, server.url, where, tmp_path) as client:
        for method in methods:
            assert await client.command(method, {"name": method}, key="before") == method
        server.freeze()
        # As many as there are slots, then more: the second wave meets what the first found out.
        for wave in range(2):
            keys = [f"{wave}-{number}" for number in range(16 + 16 * wave)]
            sent = [
                asyncio.create_task(refusal(client, methods[n % len(methods)], key))
                for n, key in enumerate(keys)
            ]
            async with asyncio.timeout(HANGS):
                assert await client.query("ping", timeout=HANGS) == "pong"
                assert await client.query("pong", timeout=HANGS) == "ping"
                refusals = await asyncio.gather(*sent)
            assert {type(each) for each in refusals} == {StoreUnavailable}
        server.thaw()
        retry = Retry(attempts=100)
        for number in range(16):
            key, method = f"0-{number}", methods[number % len(methods)]
            done = client.command(method, {"name": key}, key=key, timeout=HANGS, retry=retry)
            assert await done == key
    effects = (tmp_path / "effects").read_text().split()
    assert sorted(effects) == sorted([*methods, *(f"0-{number}" for number in range(16))])
