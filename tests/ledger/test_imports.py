"""Importing the ledger costs little; a store brings its own driver."""

import subprocess
import sys

import pytest

HEAVY = ("asyncio", "sqlite3", "psycopg", "redis", "concurrent.futures")


def loaded_by(source: str) -> set[str]:
    code = f"import sys\n{source}\nsys.stdout.write(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name for name in HEAVY if name in done.stdout.split()}


def test_the_package_loads_no_database_and_no_event_loop() -> None:
    assert loaded_by("import duet_rpc.ledger") == set()


def test_commands_in_threads_need_no_event_loop() -> None:
    source = (
        "from duet_rpc.ledger import Command, Ledger, Promise, Ran, open_store\n"
        "ledger = Ledger(open_store('memory:'))\n"
        "command = Command('local', 'm', 'k', b'f', Promise.AT_MOST_ONCE)\n"
        "assert ledger.run(command, lambda run: Ran(b'1')) == b'1'\n"
        "ledger.close()"
    )
    assert loaded_by(source) == set()


@pytest.mark.parametrize(
    "name, driver",
    [("SqliteStore", "sqlite3"), ("PostgresStore", "psycopg"), ("RedisStore", "redis")],
)
def test_a_store_brings_its_driver(name: str, driver: str) -> None:
    assert driver in loaded_by(f"from duet_rpc.ledger import {name}")


def test_unknown_names_are_no_attributes() -> None:
    import duet_rpc.ledger

    with pytest.raises(AttributeError):
        duet_rpc.ledger.MysqlStore  # noqa: B018
