"""The rows of a store stay level however many commands come.

A few seconds in `make check`, a minute in CI, as long as one likes by hand (see `soak.py`):

    DUET_RPC_SOAK_SECONDS=600 pytest tests/chaos/test_soak.py
"""

import os
from pathlib import Path

import pytest

from tests.chaos.soak import Soaked, soak_postgres, soak_sqlite
from tests.ledger.servers import Postgres

SECONDS = float(os.environ.get("DUET_RPC_SOAK_SECONDS") or (60 if os.environ.get("CI") else 8))
IS_LONG = SECONDS >= 60
RETENTION = SECONDS / 10 if IS_LONG else 1.0
RATE = 2000.0 if IS_LONG else 200.0
ALLOWED = 1.2 if IS_LONG else 2.0
"""A retention of seconds is no longer than what a busy machine makes a sweep wait."""

pytestmark = [pytest.mark.timeout(SECONDS + 120), pytest.mark.long]


def check(soaked: Soaked) -> None:
    print(soaked)
    assert soaked.commands > 2 * soaked.peak_window, "a run shorter than what it keeps"
    assert soaked.peak_rows > 0
    assert soaked.ratio <= ALLOWED


def test_an_sqlite_file_stays_level(tmp_path: Path) -> None:
    # In a long run at its own rate, because every commit waits for the disk.
    rate = 0.0 if IS_LONG else RATE
    check(soak_sqlite(tmp_path / "soak.db", seconds=SECONDS, rate=rate, retention=RETENTION))


def test_a_postgres_table_stays_level(postgres_server: Postgres) -> None:
    postgres_server.empty()
    check(soak_postgres(postgres_server, seconds=SECONDS, rate=RATE, retention=RETENTION))
