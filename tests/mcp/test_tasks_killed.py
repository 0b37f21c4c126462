"""`kill -9` in the middle of a task: what becomes of it is known, or done, by the next process."""

import asyncio
import sqlite3
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.ledger.conftest import SHARED, TRANSACTIONAL
from tests.mcp.line import MODERN
from tests.mcp.task_client import FORMS, HANDSHAKE, Wire, spawn

forms = pytest.mark.parametrize("revision", FORMS)
stores = pytest.mark.parametrize("kind", SHARED, indirect=True)
transactional = pytest.mark.parametrize("kind", TRANSACTIONAL, indirect=True)
pytestmark = [pytest.mark.timeout(120), pytest.mark.clause("tasks-11")]

SERVICE = '''
import time
from pathlib import Path

from duet_rpc import Service, Transaction

service = Service("t")
HERE = Path(__file__).parent


def work(n: int) -> int:
    """Take long, until the test lets those that come later go on."""
    with open(HERE / "runs", "a") as file:
        file.write(f"{n} ")
    while not (HERE / "go").exists():
        time.sleep(0.01)
    return n


@service.command
def act(n: int) -> int:
    return work(n)


@service.command(retry_safe=True)
def act_again(n: int) -> int:
    return work(n)
'''
PAYING = """

@service.command
def pay(n: int, db: Transaction) -> int:
    db.execute(f"INSERT INTO effects VALUES ({n})")
    return work(n)
"""
SERVING = """
import sys

from duet_rpc import Server
from duet_rpc.ledger import Ledger, open_store
from duet_rpc.mcp import Mcp
from duet_rpc.policy import AGENT
from service import service

ledger = Ledger(open_store(sys.argv[1]), lease=1.0)
Server(service, policy=AGENT, face=Mcp(), store=ledger).run_stdio(framing="ndjson")
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "service.py").write_text(SERVICE)
    (tmp_path / "serving.py").write_text(SERVING)
    (tmp_path / "runs").touch()
    return tmp_path


def impatient(files: Path, url: str) -> list[str]:
    """A server whose leases are short."""
    return [sys.executable, str(files / "serving.py"), url]


def usual(files: Path, url: str) -> list[str]:
    """The server that hosts start."""
    file = str(files / "service.py")
    return [sys.executable, "-m", "duet_rpc", "mcp", file, "--store", url]


async def begin_and_kill(command: list[str], files: Path, revision: str, tool: str) -> Any:
    """Create a task; kill the server in the middle of its command. Return the task."""
    async with spawn(command, revision) as (wire, process):
        task = await wire.create(tool, n=7, idempotency_key="k")
        await wait_for_run(files)
        assert (await wire.get(task["taskId"]))["status"] == "working"
        process.kill()
        await process.wait()
    (files / "go").touch()
    return task


async def wait_for_run(files: Path) -> None:
    """Wait until a command has begun, in another process."""
    while not (files / "runs").read_text():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def check_found(wire: Wire, task: Any) -> None:
    """The same key is the same task as before."""
    again = await wire.create("act", n=7, idempotency_key="k")
    assert (again["taskId"], again["createdAt"]) == (task["taskId"], task["createdAt"])


@forms
@stores
async def test_what_runs_at_most_once_is_known_to_be_unknown(
    revision: str, url: str, files: Path
) -> None:
    command = impatient(files, url)
    task = await begin_and_kill(command, files, revision, "act")
    async with spawn(command, revision) as (wire, _):
        await check_found(wire, task)
        ended = await wire.wait(task["taskId"])
        assert ended["status"] == "failed"
        assert "No one can know" in ended["statusMessage"]
        if wire.is_modern:
            assert ended["error"]["code"] == -32603
            assert ended["error"]["data"]["reason"] == "outcome-unknown"
        else:
            result = await wire.result(task["taskId"])
            assert result["isError"] and "No one can know" in result["content"][0]["text"]
        assert await wire.get(task["taskId"]) == ended
    assert (files / "runs").read_text() == "7 "


@forms
@stores
async def test_what_is_retry_safe_is_begun_again_by_whoever_asks(
    revision: str, url: str, files: Path
) -> None:
    command = impatient(files, url)
    task = await begin_and_kill(command, files, revision, "act_again")
    async with spawn(command, revision) as (wire, _):
        result = await wire.result(task["taskId"])
        assert result["structuredContent"] == {"result": 7}
        ended = await wire.get(task["taskId"])
        assert (ended["status"], ended["createdAt"]) == ("completed", task["createdAt"])
    assert (files / "runs").read_text() == "7 7 "


@forms
@transactional
async def test_a_transaction_has_its_effect_once(
    revision: str, kind: str, url: str, files: Path
) -> None:
    with (files / "service.py").open("a") as file:
        file.write(PAYING)
    ask_database(kind, url, "DROP TABLE IF EXISTS effects")
    ask_database(kind, url, "CREATE TABLE effects (n integer)")
    command = usual(files, url)
    task = await begin_and_kill(command, files, revision, "pay")
    async with spawn(command, revision) as (wire, _):
        result = await wire.result(task["taskId"])
        assert result["structuredContent"] == {"result": 7}
    assert (files / "runs").read_text() == "7 7 "
    assert ask_database(kind, url, "SELECT n FROM effects") == [(7,)]


@transactional
@pytest.mark.parametrize("tool", ["act_again", "pay"])
async def test_a_server_that_ends_leaves_its_tasks_to_the_next(
    kind: str, url: str, files: Path, tool: str
) -> None:
    with (files / "service.py").open("a") as file:
        file.write(PAYING)
    ask_database(kind, url, "DROP TABLE IF EXISTS effects")
    ask_database(kind, url, "CREATE TABLE effects (n integer)")
    command = impatient(files, url)
    async with spawn(command, MODERN) as (wire, process):
        task = await wire.create(tool, n=7, idempotency_key="k")
        await wait_for_run(files)
        process.stdin.close()
        await process.wait()
    (files / "go").touch()
    async with spawn(command, MODERN) as (wire, _):
        assert (await wire.result(task["taskId"]))["structuredContent"] == {"result": 7}
    effects = [(7,)] if tool == "pay" else []
    assert ask_database(kind, url, "SELECT n FROM effects") == effects


@forms
@stores
async def test_two_processes_that_ask_begin_it_once(revision: str, url: str, files: Path) -> None:
    command = impatient(files, url)
    task = await begin_and_kill(command, files, revision, "act_again")
    async with spawn(command, revision) as (one, _), spawn(command, revision) as (two, _):
        results = await asyncio.gather(*(wire.result(task["taskId"]) for wire in (one, two)))
        assert [each["structuredContent"] for each in results] == [{"result": 7}] * 2
    assert (files / "runs").read_text() == "7 7 "


@stores
async def test_what_was_cancelled_stays_so_after_the_end_of_the_process(
    url: str, files: Path
) -> None:
    command = impatient(files, url)
    async with spawn(command, MODERN) as (wire, process):
        task = await wire.create("act_again", n=7, idempotency_key="k")
        await wait_for_run(files)
        process.kill()
        await process.wait()
    async with spawn(command, HANDSHAKE) as (wire, _):
        while (shown := await wire.cancel(task["taskId"]))["status"] == "working":
            assert "goes on" in shown["statusMessage"]  # as far as one can know
            await asyncio.sleep(0.1)
        assert shown["status"] == "cancelled"
    (files / "go").touch()
    async with spawn(command, MODERN) as (wire, _):
        assert (await wire.get(task["taskId"]))["status"] == "cancelled"
        again = await wire.create("act_again", n=7, idempotency_key="k")
        assert (again["taskId"], again["status"]) == (task["taskId"], "cancelled")
    assert (files / "runs").read_text() == "7 "


def ask_database(kind: str, url: str, query: str) -> list[Any]:
    """Ask the database of the store."""
    if kind == "sqlite":
        with sqlite3.connect(url.removeprefix("sqlite:///"), timeout=10) as db:
            rows = db.execute(query).fetchall()
        db.close()
        return rows
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(query)
        return cursor.fetchall() if cursor.description else []
