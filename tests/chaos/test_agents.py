"""Tools that are called again and again while their server is killed: one effect for each key.

A thousand calls and eight kills in `make check`, of which `make test` has the transactional ones on
SQLite; in CI, and where one likes, ten thousand and fifty:

    DUET_RPC_CHAOS_CALLS=10000 DUET_RPC_CHAOS_SEEDS=7 pytest tests/chaos/test_agents.py -rP
"""

import os
import sqlite3
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from tests.chaos.agent import Agent, Errand
from tests.chaos.cluster import ROOT
from tests.ledger.servers import Postgres

CALLS = int(os.environ.get("DUET_RPC_CHAOS_CALLS") or (10_000 if os.environ.get("CI") else 1_000))
KILLS = max(8, CALLS // 200)
SEEDS = [int(seed) for seed in os.environ.get("DUET_RPC_CHAOS_SEEDS", "1").split(",")]
LEASE = 1.0
DUET_RPC = Path(sys.executable).parent / "duet-rpc"

pytestmark = pytest.mark.timeout(120 + CALLS // 10)
stores = pytest.mark.parametrize(
    "kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.long)]
)


def find_url(kind: str, folder: Path, request: pytest.FixtureRequest) -> str:
    if kind == "sqlite":
        return f"sqlite:///{folder / 'commands.db'}"
    server: Postgres = request.getfixturevalue("postgres_server")
    server.empty()
    return server.url


def connect(url: str) -> Any:
    if url.startswith("sqlite:///"):
        return sqlite3.connect(url.removeprefix("sqlite:///"), timeout=60.0)
    return psycopg.connect(url)


def make_errands(*tools: str) -> list[Errand]:
    """Make errands for these tools in turn, in both eras."""
    return [
        Errand(f"key-{number}", tools[number % len(tools)], number, number // 2 % 2 == 0)
        for number in range(CALLS)
    ]


def read_run(result: bytes) -> str:
    return str(msgspec.json.decode(result)["structuredContent"]["run"])


@pytest.mark.clause("tools-7", "commands-10", "commands-14")
@pytest.mark.parametrize("seed", SEEDS)
@stores
async def test_a_transactional_tool_has_one_effect_for_each_key(
    kind: str, seed: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = find_url(kind, tmp_path, request)
    with connect(url) as connection:
        connection.execute("CREATE TABLE effects (key text, run text)")
    connection.close()
    command = [str(DUET_RPC), "mcp", f"{ROOT / 'tests/chaos/till.py'}:book", "--store", url]
    agent = Agent(command, tmp_path / "log", dict(os.environ), seed)
    errands = make_errands("book_move")
    await agent.run(errands, KILLS)

    with connect(url) as connection:
        effects = connection.execute("SELECT key, run FROM effects").fetchall()
        if kind == "sqlite":
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
    print(kind, "seed", seed, dict(agent.counts), f"{len(effects)} effects of {CALLS} keys")
    assert agent.counts["kills"] == KILLS
    assert agent.counts["lost"] > CALLS // 10
    assert len(effects) == CALLS
    assert {key for key, _ in effects} == {errand.key for errand in errands}
    runs = dict(effects)
    for errand in errands:
        assert not errand.is_unknown, errand.key
        assert len(set(errand.results)) == 1, errand.results
        assert read_run(errand.results[0]) == runs[errand.key]


@pytest.mark.clause("commands-12", "commands-13", "commands-14")
@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
@stores
async def test_other_tools_keep_what_they_promise(
    kind: str, seed: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = find_url(kind, tmp_path, request)
    told = tmp_path / "effects"
    env = {**os.environ, "TILL_EFFECTS": str(told), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.chaos.till", url, str(LEASE)]
    agent = Agent(command, tmp_path / "log", env, seed)
    errands = make_errands("till_once", "till_again")
    await agent.run(errands, KILLS)

    runs: defaultdict[str, list[str]] = defaultdict(list)
    for line in told.read_text().splitlines():
        key, run = line.split()
        runs[key].append(run)
    ends = Counter(
        (errand.tool, "unknown" if errand.is_unknown else "done", len(runs[errand.key]))
        for errand in errands
    )
    print(kind, "seed", seed, dict(agent.counts), "how often they ran:", dict(ends))
    assert agent.counts["kills"] == KILLS
    assert agent.counts["lost"] > CALLS // 10
    for errand in errands:
        assert len(set(errand.results)) == 1, errand.results
        ran = runs[errand.key]
        if errand.is_unknown:
            assert errand.tool == "till_once", "the other may run again"
        else:
            assert read_run(errand.results[0]) in ran
        assert errand.tool == "till_again" or len(ran) <= 1, f"{errand.key} had two effects"
