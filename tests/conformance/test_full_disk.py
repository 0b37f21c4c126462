"""A full disk: commands are refused without effect, and run when there is room again.

In a process of its own, which alone is denied to write, and whose service writes to the store and
nowhere else: a handler's own file would fail too, and that is another error.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import asyncio, json, resource, sqlite3

from duet_rpc import RpcError, Service, testing
from duet_rpc.policy import PRODUCTION

bank = Service("bank")
effects = []

@bank.command
def move(value: str, db: sqlite3.Connection) -> str:
    db.execute("insert into moves values (?)", (value,))
    return value

@bank.command
def once(value: str) -> str:
    effects.append(value)
    return value

@bank.command(retry_safe=True)
async def safe(value: str) -> str:
    effects.append(value)
    return value

@bank.query
def echo(value: str) -> str:
    return value

def moves() -> list:
    with sqlite3.connect("bank.db") as db:
        return [value for (value,) in db.execute("select value from moves")]

async def main() -> None:
    async with testing.connect(bank, policy=PRODUCTION, store="sqlite:///bank.db") as client:
        await client.command("bank.move", {"value": "before"}, key="before")
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, most))
        codes = []
        for method in ("bank.move", "bank.once", "bank.safe"):
            try:
                await client.command(method, {"value": method}, key="full")
            except RpcError as error:
                codes.append(error.code)
        told = {"codes": codes, "query": await client.query("bank.echo", {"value": "goes on"})}
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        told["full"] = [moves(), list(effects)]
        for method in ("bank.move", "bank.once", "bank.safe"):
            await client.command(method, {"value": method}, key="full")
        told["room"] = [moves(), list(effects)]
    print(json.dumps(told))

with sqlite3.connect("bank.db") as db:
    db.execute("create table moves (value text)")
asyncio.run(main())
"""


@pytest.mark.clause("stores-5")
def test_a_disk_that_is_full(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, timeout=55
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {
        "codes": [-32015, -32015, -32015],
        "query": "goes on",
        "full": [["before"], []],
        "room": [["before", "bank.move"], ["bank.once", "bank.safe"]],
    }
