"""`duet-rpc commands`: the operator's view of a store, on each kind of store."""

import re
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from duet_rpc.cli.commands.records import say_span
from duet_rpc.ledger import Identity, Promise, SqliteStore, State, Store, open_store
from tests.cli.records import claim, finish
from tests.cli.shell import Ran, Terminal, on_terminal, run
from tests.daemon.process import eventually

pytestmark = pytest.mark.timeout(180)

NAMES = ["unknown", "of-another", "running", "again", "done", "failed"]


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """A store with a command in each state."""
    opened = open_store(url)
    claim(opened, "unknown", lease=0.001)
    claim(opened, "of-another", principal="uid:7", lease=0.001)
    claim(opened, "running")
    claim(opened, "again", method="mail.set", promise=Promise.RETRY_SAFE, lease=0.001)
    finish(opened, "done", b'"result":{"left":70}')
    finish(opened, "failed", b'"error":{"code":2002,"message":"Insufficient funds"}')
    eventually(lambda: opened.counts().unknown == 2, "leases end")
    yield opened
    opened.close()


def state_of(store: Store, key: str, method: str = "bank.transfer") -> State | None:
    record = store.look(Identity("local", method, key))
    return None if record is None else record.state


on_each_store = pytest.mark.parametrize("kind", ["sqlite", "postgres", "valkey"], indirect=True)
on_sqlite = pytest.mark.parametrize("kind", ["sqlite"], indirect=True)


@on_each_store
def test_an_operators_day(store: Store, url: str) -> None:
    ran = run("commands", "list", "--store", url)
    assert (ran.code, ran.err) == (0, ""), ran
    counts = ran.json["counts"]
    assert (counts["unknown"], counts["running"], counts["done"]) == (2, 2, 2)
    assert counts["oldest_unknown"].endswith("Z")
    assert [each["key"] for each in ran.json["commands"]] == NAMES

    ran = run("commands", "show", "bank.transfer", "unknown", "--store", url)
    assert (ran.code, ran.json["state"], ran.json["promise"]) == (0, "unknown", "at-most-once")

    resolve = ("commands", "resolve", "bank.transfer", "unknown", "--result", "70", "--store", url)
    ran = run(*resolve)
    assert (ran.code, ran.json["outcome"]) == (0, {"result": 70}), ran
    record = store.look(Identity("local", "bank.transfer", "unknown"))
    assert record is not None and record.outcome == b'"result":70'
    again = run(*resolve)
    assert (again.code, again.out) == (1, ""), again
    assert "is not unknown: it is done, and its outcome is 70" in again.err, again

    ran = run("commands", "forget", "bank.transfer", "done", "--yes", "--store", url)
    forgotten = {"principal": "local", "method": "bank.transfer", "key": "done"}
    assert (ran.code, ran.json) == (0, {"forgotten": forgotten}), ran
    assert state_of(store, "done") is None

    ran = run("commands", "sweep", "--store", url)
    assert (ran.code, ran.json) == (0, {"dropped": 0}), ran


@on_sqlite
def test_the_environment_names_the_store(store: Store, url: str) -> None:
    ran = run("commands", "list", DUET_RPC_STORE=url)
    assert ran.code == 0 and len(ran.json["commands"]) == len(NAMES), ran
    ran = run("commands", "list")
    assert ran.code == 2 and "--store" in ran.err, ran


@on_sqlite
@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (["--state", "unknown"], ["unknown", "of-another"]),
        (["--state", "done"], ["done", "failed"]),
        (["--method", "mail.set"], ["again"]),
        (["--principal", "uid:7"], ["of-another"]),
        (["--principal", "uid:7", "--state", "done"], []),
        (["--limit", "3"], ["unknown", "of-another", "running"]),
        (["--method", "bank.transfer", "--limit", "4"], [*NAMES[:3], "done"]),
    ],
)
def test_filters(words: list[str], keys: list[str], store: Store, url: str) -> None:
    ran = run("commands", "list", *words, "--store", url)
    assert [each["key"] for each in ran.json["commands"]] == keys, ran


@on_sqlite
def test_a_table_for_people(store: Store, url: str) -> None:
    ran = on_terminal("commands", "list", "--store", url, "--no-color")
    assert ran.code == 0, ran
    header, *rows = ran.out.splitlines()
    assert header.split() == ["state", "method", "key", "principal", "age", "outcome"]
    assert re.fullmatch(
        r"unknown  bank.transfer  unknown     local      \S.* +cut off; resolve it", rows[0]
    )
    assert rows[4].endswith('{"left":70}') and rows[5].endswith("error 2002: Insufficient funds")
    assert re.fullmatch(
        r"In the store: 2 unknown \(the oldest for .*\), 2 running \(.*\), 2 done\.", rows[-1]
    )
    coloured = on_terminal("commands", "list", "--store", url).out
    assert "\x1b[31m2 unknown" in coloured
    short = on_terminal("commands", "list", "--limit", "1", "--store", url, "--no-color").out
    assert "... and more; --limit 10" in short


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-5, "a moment"),
        (0.9, "a moment"),
        (1, "1 second"),
        (119, "119 seconds"),
        (120, "2 minutes"),
        (7199, "119 minutes"),
        (7200, "2 hours"),
        (172799, "47 hours"),
        (5.5 * 86400, "5 days"),
    ],
)
def test_times_in_words(seconds: float, words: str) -> None:
    assert say_span(seconds) == words


def test_ages_in_a_table(tmp_path: Path) -> None:
    # Half an hour or half a day more than is said: time enough for a slow machine.
    ages = {"3 hours": 3.5 * 3600, "30 hours": 30.5 * 3600, "5 days": 5.5 * 86400}
    for age, seconds in ages.items():
        past = SqliteStore(tmp_path / "c.db", clock=lambda: time.time() - seconds)  # noqa: B023
        claim(past, age, lease=1.0)
        past.close()
    ran = run("commands", "list", "--format", "pretty", "--store", f"sqlite:///{tmp_path}/c.db")
    for age in ages:
        assert re.search(rf"^unknown .* {age} +local +{age} ", ran.out, re.MULTILINE), ran
    assert "3 unknown (the oldest for 5 days)" in ran.out, ran


@on_sqlite
def test_a_page_for_people(store: Store, url: str) -> None:
    ran = on_terminal("commands", "show", "bank.transfer", "unknown", "--store", url, "--no-color")
    assert ran.code == 0 and "at most once: it is never run again by itself" in ran.out, ran
    assert "duet-rpc commands resolve bank.transfer unknown --store URL --result JSON" in ran.out, (
        ran
    )
    words = ("show", "bank.transfer", "of-another", "--principal", "uid:7")
    ran = on_terminal("commands", *words, "--store", url, "--no-color")
    assert "resolve bank.transfer of-another --principal uid:7 --store URL --result" in ran.out, ran
    ran = on_terminal("commands", "show", "bank.transfer", "failed", "--store", url, "--no-color")
    assert '"message": "Insufficient funds"' in ran.out, ran


@on_sqlite
def test_an_outcome_with_half_a_character(store: Store, url: str) -> None:
    finish(store, "one", rb'"result":"\ud83d"')
    finish(store, "two", rb'"error":{"code":7,"message":"\ud83d"}')
    ran = run("commands", "list", "--store", url, "--format", "pretty")
    assert ran.code == 0 and r'"\ud83d"' in ran.out and r"error 7: \ud83d" in ran.out, ran
    ran = run("commands", "show", "bank.transfer", "one", "--store", url, "--format", "pretty")
    assert ran.code == 0 and r'"result": "\ud83d"' in ran.out, ran
    ran = run("commands", "show", "bank.transfer", "one", "--store", url, "--format", "json")
    assert ran.jsons[0]["outcome"] == {"result": "\ud83d"}, ran


@on_sqlite
def test_a_command_that_is_not_there(store: Store, url: str) -> None:
    ran = run("commands", "show", "bank.transfer", "gone", "--store", url)
    assert (ran.code, ran.out) == (1, "") and "there is no command" in ran.err, ran
    ran = run("commands", "show", "bank.transfer", "of-another", "--store", url)
    assert ran.code == 1 and "--principal uid:7" in ran.err, ran
    for action in (["resolve", "--result", "1"], ["forget", "--yes"]):
        ran = run("commands", *action, "bank.transfer", "gone", "--store", url)
        assert (ran.code, ran.out) == (1, "") and "there is no command" in ran.err, ran


@on_sqlite
def test_resolving_with_an_error(store: Store, url: str) -> None:
    words = ("commands", "resolve", "bank.transfer", "unknown", "--error", "502", "Not sent")
    ran = run(*words, "--data", '{"try": "never"}', "--store", url)
    error = {"code": 502, "message": "Not sent", "data": {"try": "never"}}
    assert (ran.code, ran.json["outcome"]) == (0, {"error": error}), ran
    record = store.look(Identity("local", "bank.transfer", "unknown"))
    assert record is not None and record.outcome is not None
    assert record.outcome.startswith(b'"error":{"code":502,'), record


@on_sqlite
@pytest.mark.parametrize(
    ("method", "key", "why"),
    [
        ("bank.transfer", "running", "it runs; its server has"),
        ("bank.transfer", "done", 'it is done, and its outcome is {"left":70}'),
        ("mail.set", "again", "it is safe to run again, and the next retry does so"),
    ],
)
def test_what_is_not_unknown_is_not_resolved(
    method: str, key: str, why: str, store: Store, url: str
) -> None:
    before = state_of(store, key, method)
    ran = run("commands", "resolve", method, key, "--result", "1", "--store", url)
    assert (ran.code, ran.out) == (1, ""), ran
    assert f"{method} {key} is not unknown: {why}" in ran.err, ran
    assert "Nothing was changed." in ran.err and state_of(store, key, method) is before


@on_sqlite
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "either --result JSON or --error CODE MESSAGE"),
        (["--result", "1", "--error", "1", "x"], "either --result JSON or --error CODE MESSAGE"),
        (["--result", "{"], "--result is not JSON"),
        (["--result", ""], "--result is not JSON: it is empty"),
        (["--result", "1", "--data", "1"], "--data belongs to --error"),
        (["--error", "x", "y"], "'x' is not a valid"),
        (["--error", "1"], "requires 2 arguments"),
        (["--error", "1", "x", "--data", "{"], "--data is not JSON"),
    ],
)
def test_an_outcome_that_cannot_be_understood(
    words: list[str], said: str, store: Store, url: str
) -> None:
    ran = run("commands", "resolve", "bank.transfer", "unknown", "--store", url, *words)
    assert (ran.code, ran.out) == (2, "") and said in ran.err, ran
    assert state_of(store, "unknown") is State.UNKNOWN


@on_sqlite
def test_forgetting_asks_first(store: Store, url: str) -> None:
    def asked(answer: str) -> Ran:
        words = ("commands", "forget", "bank.transfer", "unknown", "--store", url)
        with Terminal(*words, "--no-color") as terminal:
            terminal.wait_for("A retry would run it again. [y/N]:")
            terminal.type(answer)
            return terminal.end()

    for answer in ("n\n", "\n", "\x04"):
        ran = asked(answer)
        assert ran.code == 1 and "nothing was changed" in ran.out, ran
        assert state_of(store, "unknown") is State.UNKNOWN
    ran = asked("y\n")
    assert ran.code == 0 and "bank.transfer unknown is forgotten" in ran.out, ran
    assert state_of(store, "unknown") is None


@on_sqlite
def test_nobody_is_there_to_ask(store: Store, url: str) -> None:
    ran = run("commands", "forget", "bank.transfer", "unknown", "--store", url, stdin="y\n")
    assert (ran.code, ran.out) == (2, "") and "--yes" in ran.err, ran
    assert state_of(store, "unknown") is State.UNKNOWN


@on_sqlite
def test_a_live_run_is_not_forgotten(store: Store, url: str) -> None:
    ran = run("commands", "forget", "bank.transfer", "running", "--yes", "--store", url)
    assert (ran.code, ran.out) == (1, "") and "it runs" in ran.err, ran
    assert state_of(store, "running") is State.RUNNING


@on_sqlite
def test_sweeping(store: Store, url: str) -> None:
    for number in range(3):
        finish(store, f"old-{number}", b'"result":1', ttl=0.001)
    ran = run("commands", "sweep", "--format", "pretty", "--store", url)
    assert (ran.code, ran.out) == (0, "dropped 3 records\n"), ran
    assert run("commands", "sweep", "--store", url).json == {"dropped": 0}


# Stores that cannot be used.


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    for words in (["list"], ["show", "a", "b"], ["sweep"]):
        ran = run("commands", *words, "--store", "sqlite:///no.db", cwd=tmp_path)
        assert (ran.code, ran.out) == (3, "") and "there is no file no.db" in ran.err, ran
    assert list(tmp_path.iterdir()) == []


def test_a_database_that_is_no_store_is_not_made_one(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.db") as database:
        database.execute("CREATE TABLE accounts (name)")
    database.close()
    before = (tmp_path / "other.db").read_bytes()
    (tmp_path / "empty.db").touch()
    for name in ("other.db", "empty.db"):
        ran = run("commands", "list", "--store", f"sqlite:///{name}", cwd=tmp_path)
        assert (ran.code, ran.out) == (3, "") and "holds no commands" in ran.err, ran
    assert (tmp_path / "other.db").read_bytes() == before
    assert (tmp_path / "empty.db").stat().st_size == 0


def test_a_file_with_a_strange_name(tmp_path: Path) -> None:
    opened = SqliteStore(tmp_path / "a b?#%.db")
    claim(opened, "k")
    opened.close()
    ran = run("commands", "list", "--store", "sqlite:///a%20b%3F%23%25.db", cwd=tmp_path)
    assert ran.code == 0 and len(ran.json["commands"]) == 1, ran


@pytest.mark.parametrize(
    ("url", "code", "said"),
    [
        ("sqlite:///text.db", 3, "file is not a database"),
        ("sqlite:///folder", 3, "cannot use the store"),
        ("postgresql://u:secret@127.0.0.1:1/x", 3, "127.0.0.1"),
        ("redis://:secret@127.0.0.1:1/0", 3, "127.0.0.1:1"),
        ("memory:", 2, "in the process of its server"),
        ("commands.db", 2, "write sqlite:///commands.db"),
        ("mysql://x", 2, "no store for mysql"),
        ("sqlite://commands.db", 2, "write sqlite:///relative/path"),
        ("redis://127.0.0.1:port", 2, "redis"),
        ("", 2, "store"),
    ],
)
def test_a_store_that_cannot_be_opened(url: str, code: int, said: str, tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("this is no database, whatever its name says\n" * 100)
    (tmp_path / "folder").mkdir()
    ran = run("commands", "list", "--store", url, cwd=tmp_path)
    assert (ran.code, ran.out) == (code, ""), ran
    assert said in ran.err and "secret" not in ran.err and "Traceback" not in ran.err, ran
