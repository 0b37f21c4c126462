"""`duet-rpc mcp check`: the table, the JSON, the exit codes."""

from pathlib import Path

import pytest

from tests.cli.shell import on_terminal, run

GOOD = '''
from duet_rpc import Service
from duet_rpc.mcp import ToolOptions

notes = Service("notes")

@notes.query
def find(word: str) -> list[str]:
    """Find notes with a word in them."""
    return []

@notes.command(tool=ToolOptions(destructive=False), dedupe="arguments")
def add(text: str) -> int:
    """Add a note."""
    return 1
'''
WARNED = (
    GOOD
    + """
@notes.command(timeout=400)
def clear() -> None:
    pass
"""
)
BROKEN = (
    WARNED
    + '''
@notes.query(tool=ToolOptions(input_schema={"type": "object", "anyOf": []}))
def look_for_a_note_with_a_name_that_is_long_and_goes_on() -> None:
    """Look."""
'''
)
STORE = ("--store", "sqlite:///commands.db")


def check(folder: Path, source: str, *words: str) -> tuple[int, str, str]:
    (folder / "notes.py").write_text(source)
    ran = run("mcp", "check", "notes.py", *words, cwd=folder)
    return ran.code, ran.out, ran.err


@pytest.mark.clause("hosts-2")
def test_what_is_fine_is_said_to_be(tmp_path: Path) -> None:
    code, out, err = check(tmp_path, GOOD, *STORE, "--strict")
    assert (code, err) == (0, "") and out.startswith("notes: ") and "0 errors, 0 warnings" in out
    assert "size of results" in out
    assert not (tmp_path / "commands.db").exists(), "a check leaves nothing behind"


@pytest.mark.clause("hosts-2")
def test_warnings_fail_only_when_strict(tmp_path: Path) -> None:
    assert check(tmp_path, GOOD)[0] == 0
    code, out, _ = check(tmp_path, GOOD, "--strict")
    assert code == 1 and "memory only" in out
    code, out, _ = check(tmp_path, WARNED, *STORE)
    assert code == 0 and "0 errors, 5 warnings" in out
    for rule in ("hints", "repetition", "description", "timeout-zed", "timeout-codex"):
        assert f"warning  {rule} " in out


@pytest.mark.clause("hosts-2")
def test_what_would_break_fails(tmp_path: Path) -> None:
    code, out, _ = check(tmp_path, BROKEN, *STORE)
    assert code == 1 and "error    input-root" in out and "error    full-name" in out
    assert all(len(line) <= 80 for line in out.splitlines()), out


def test_the_table_fits_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "notes.py").write_text(BROKEN)
    ran = on_terminal("mcp", "check", "notes.py", cwd=tmp_path, NO_COLOR="1")
    assert ran.code == 1 and all(len(line) <= 80 for line in ran.out.splitlines()), ran
    assert "\x1b[31m" in on_terminal("mcp", "check", "notes.py", cwd=tmp_path).out


def test_programs_read_json(tmp_path: Path) -> None:
    (tmp_path / "notes.py").write_text(BROKEN)
    ran = run("mcp", "check", "notes.py", "--json", "--name", "n", *STORE, cwd=tmp_path)
    said = ran.json
    assert ran.code == 1 and said["server"] == "n" and "notes_find" in said["tools"]
    assert (said["errors"], said["warnings"]) == (2, 5)
    first = said["findings"][0]
    assert first == {
        "rule": "full-name",
        "severity": "error",
        "tool": "notes_look_for_a_note_with_a_name_that_is_long_and_goes_on",
        "hosts": first["hosts"],
        "problem": first["problem"],
        "advice": first["advice"],
    }
    assert "66 characters" in first["problem"]


def test_a_server_that_would_not_start_is_an_error(tmp_path: Path) -> None:
    twice = GOOD + '\nnotes.query(name="notes_add")(lambda: None)\n'
    code, out, _ = check(tmp_path, twice)
    assert (
        code == 1 and "start" in out and "would both be the tool notes_add" in " ".join(out.split())
    )
    kept = GOOD.replace("def add(text: str)", "def add(text: str, db: sqlite3.Connection)")
    code, out, _ = check(tmp_path, "import sqlite3\n" + kept)
    assert code == 1 and "--store" in out
    assert check(tmp_path, "import sqlite3\n" + kept, *STORE, "--strict")[0] == 0


def test_a_file_that_prints_does_not_spoil_the_json(tmp_path: Path) -> None:
    (tmp_path / "notes.py").write_text("print('hello')\n" + GOOD)
    ran = run("mcp", "check", "notes.py", "--json", *STORE, cwd=tmp_path)
    assert ran.json["findings"] == [] and "hello" in ran.err


def test_a_file_that_is_not_there_is_a_wrong_use(tmp_path: Path) -> None:
    ran = run("mcp", "check", "gone.py", cwd=tmp_path)
    assert ran.code == 2 and "there is no file gone.py" in ran.err


@pytest.mark.parametrize("place", ["", ".", ".."])
def test_a_folder_or_nothing_is_a_wrong_use(tmp_path: Path, place: str) -> None:
    ran = run("mcp", place, cwd=tmp_path)
    assert ran.code == 2 and f"there is no file {place or repr(place)}" in ran.err


def test_the_usage_of_serving_is_what_a_person_types(tmp_path: Path) -> None:
    ran = run("mcp", "gone.py", cwd=tmp_path)
    assert ran.code == 2 and ran.err.startswith("Usage: duet-rpc mcp [OPTIONS] FILE[:OBJECT]\n")
    shown = run("mcp", "gone.py", "--help", cwd=tmp_path)
    assert shown.code == 0 and shown.out.startswith("Usage: duet-rpc mcp [OPTIONS] FILE")
