"""Chaos: real servers on one store, killed, stopped and cut off, and a history without a flaw.

In CI each store suffers three seeds of 30 seconds; elsewhere one seed of 5, and `make test` is
content with SQLite. Both can be chosen:

    DUET_RPC_CHAOS_SECONDS=60 DUET_RPC_CHAOS_SEEDS=1,2,3,4 pytest tests/chaos
"""

import os
from pathlib import Path

import pytest

from tests.chaos.cluster import Cluster
from tests.chaos.history import check
from tests.chaos.storm import Storm, summary

IN_CI = bool(os.environ.get("CI"))
SECONDS = float(os.environ.get("DUET_RPC_CHAOS_SECONDS") or (30 if IN_CI else 5))
SEEDS = [
    int(seed)
    for seed in (os.environ.get("DUET_RPC_CHAOS_SEEDS") or ("1,2,3" if IN_CI else "1")).split(",")
]
LEASE = 2.0


@pytest.mark.timeout(SECONDS + 400)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "kind",
    [
        "sqlite",
        pytest.param("postgres", marks=pytest.mark.long),
        pytest.param("valkey", marks=pytest.mark.long),
    ],
)
async def test_a_storm_breaks_no_promise(kind: str, seed: int, tmp_path: Path) -> None:
    cluster = Cluster(kind, tmp_path, lease=LEASE, servers=3)
    try:
        await cluster.start()
        storm = Storm(cluster, seed, SECONDS)
        history = await storm.rage()
        print(kind, "seed", seed, summary(history, storm.counts))
        violations = check(history)
        assert not violations, "\n".join(f"{each.law}: {each.what}" for each in violations)
        assert history.calls and history.effects, "a storm in which nothing happened"
        codes = [server.end() for server in cluster.servers]
        assert codes == [0] * len(codes), "a server that ends in good order says so"
    finally:
        cluster.close()
