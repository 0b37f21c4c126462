"""What a daemon says about where it is started: an input that has ended, a store that is none."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.shell import run
from tests.daemon.process import Process

SERVICE = """
from duet_rpc import Service
service = Service()

@service.query
async def add(a: int, b: int) -> int:
    return a + b

@service.command
def keep(text: str) -> int:
    return len(text)
"""


@pytest.mark.parametrize("options", [["rpc"], ["rpc", "--policy", "agent"], ["serve", "app.py"]])
def test_the_null_device_is_an_input_that_has_ended(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "app.py").write_text(SERVICE)
    ended = subprocess.run(
        [sys.executable, "-m", "duet_rpc", *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        cwd=tmp_path,
        timeout=50,
    )
    assert (ended.returncode, ended.stdout) == (0, b""), ended.stderr
    assert b"end of input" in ended.stderr


@pytest.mark.parametrize(
    ("store", "why"),
    [
        ("sqlite:///no/such/folder/x.db", "unable to open"),
        ("sqlite:///app.py", "not a database"),
    ],
)
def test_a_file_that_cannot_be_a_store_is_refused_at_the_start(
    tmp_path: Path, store: str, why: str
) -> None:
    (tmp_path / "app.py").write_text(SERVICE)
    ran = run("serve", "app.py", "--store", store, cwd=tmp_path)
    assert (ran.code, why in ran.err) == (2, True), ran


@pytest.mark.parametrize(
    "store, words",
    [(None, 'store=memory remembers="until exit"'), ("sqlite", 'remembers="over restarts"')],
)
def test_the_first_line_says_how_long_commands_are_remembered(
    store: str | None, words: str, tmp_path: Path
) -> None:
    given = [] if store is None else ["--store", f"sqlite:///{tmp_path}/commands.db"]
    path = tmp_path / "service.py"
    path.write_text(
        "from duet_rpc import Service\napp = Service()\n\n@app.command\ndef go(): ...\n"
    )
    with Process("serve", path, *given) as daemon:
        assert words in daemon.wait_for_log("started")
    path.write_text("from duet_rpc import Service\napp = Service()\n\n@app.query\ndef go(): ...\n")
    with Process("serve", path, *given) as daemon:
        assert "remembers" not in daemon.wait_for_log("started")
