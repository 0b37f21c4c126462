"""What the tests of real clients share: the installed command behind a tap, and the how-tos' code.

A client starts `duet-rpc` by name, as its user would. On the PATH that it gets, that name is a tap
around the installed command, so that a test sees every byte that the daemon wrote and how it ended.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
HERE = ROOT / "tests" / "interop"
INSTALLED = Path(sys.executable).with_name("duet-rpc")

PATIENCE = 50.0
"""Seconds that a client may take: far more than any needs, for machines with much else to do."""


PROGRAMS = {
    "emacs": "Emacs (install emacs-nox)",
    "nvim": "Neovim (install neovim)",
    "node": "Node (install nodejs and npm)",
}
NODE_PACKAGES = "packages of npm (make node)"


def needed(name: str) -> str:
    """Find a program, or skip the test that needs it, with what to do about that."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(PROGRAMS[name])
    return found


def snippets(page: str, language: str) -> str:
    """Join the blocks in one language of a page in `docs/`, in order, as its reader would."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert blocks, f"docs/{page} has no block of {language}"
    return "\n".join(blocks)


def decode_frames(data: bytes) -> list[dict[str, Any]]:
    """Decode what a daemon wrote, and fail if one byte of it is outside a frame."""
    messages = []
    while data:
        header, _, rest = data.partition(b"\r\n\r\n")
        found = re.fullmatch(rb"Content-Length: ([1-9][0-9]*)", header)
        assert found, f"this is not the header of a frame: {data[:200]!r}"
        size = int(found[1])
        assert len(rest) >= size, f"the last frame is cut: {rest[:200]!r}"
        message = json.loads(rest[:size])
        assert message.keys() <= {"jsonrpc", "id", "result", "error", "method", "params"}
        messages.append(message)
        data = rest[size:]
    return messages


class Tapped:
    """One run of the daemon under a client, and what passed between them."""

    def __init__(self, directory: Path, program: str = str(INSTALLED), name: str = "") -> None:
        """`name` is what the client calls the program, if not by its own name."""
        self.directory = directory
        self.kept = directory / "kept"
        self.kept.mkdir()
        programs = directory / "programs"
        programs.mkdir()
        command = [sys.executable, str(HERE / "tap.py"), str(self.kept), program]
        shim = programs / (name or Path(program).name)
        shim.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        shim.chmod(0o755)
        home = directory / "home"
        home.mkdir()
        self.environment = {
            "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "NO_COLOR": "1",
        }

    def run(
        self, command: list[str], *, stdin: str = "", environment: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a client to its end; it must succeed."""
        client = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**self.environment, **(environment or {})},
            timeout=PATIENCE,
        )
        assert client.returncode == 0, (
            f"{command[0]} failed\n{client.stdout}{client.stderr}\nthe daemon said:\n{self.log}"
        )
        return client

    def saw(self, client: subprocess.CompletedProcess[str]) -> Any:
        """Read what the client says it saw: one line of JSON, after a word that marks it."""
        lines = re.findall(r"^SAW (.*)$", client.stdout, re.MULTILINE)
        assert len(lines) == 1, f"the client said:\n{client.stdout}{client.stderr}"
        return json.loads(lines[0])

    @property
    def log(self) -> str:
        """What the daemon wrote to stderr."""
        kept = self.kept / "stderr"
        return kept.read_text("utf-8", "replace") if kept.exists() else "(it was not started)"

    @property
    def status(self) -> int:
        """How the daemon ended; waits for that, for a client may be gone before it."""
        until = time.monotonic() + PATIENCE
        kept = self.kept / "status"
        while not kept.exists():
            assert time.monotonic() < until, f"the daemon has not ended; it said:\n{self.log}"
            time.sleep(0.02)
        return int(kept.read_text())

    def check(self) -> list[dict[str, Any]]:
        """Check that the daemon ended well and wrote frames only; return what it wrote."""
        assert self.status == 0, self.log
        assert "Traceback" not in self.log
        return decode_frames((self.kept / "stdout").read_bytes())

    @property
    def sent(self) -> list[bytes]:
        """The bodies that the client sent, byte for byte."""
        return re.findall(
            rb"Content-Length: \d+\r\n\r\n(\{.*?\})(?=Content-Length: |\Z)",
            (self.kept / "stdin").read_bytes(),
            re.DOTALL,
        )


def many_files(directory: Path) -> str:
    """Make a folder that a search with pauses does not finish before a test loses patience."""
    haystack = directory / "haystack"
    haystack.mkdir()
    for number in range(1000):
        (haystack / f"{number:04}.txt").write_text("hay\n")
    return str(haystack)
