"""What a start for agents does not load: a host waits for the tools of each of its servers."""

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {
    *("asyncio", "click", "hashlib", "inspect", "logging", "mcp", "pydantic", "sqlite3", "ssl"),
    *("socket", "urllib.parse"),
}
FILE = """
from duet_rpc import Service

notes = Service("notes")

@notes.query
def count(text: str) -> int:
    return len(text.split())
"""
HELLO = b"""\
{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25",\
"capabilities":{},"clientInfo":{"name":"tests","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
{"jsonrpc":"2.0","id":1,"method":"tools/list"}
{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"notes_count",\
"arguments":{"text":"one two"}}}
"""


def run(source: str, *words: str, given: bytes = b"") -> tuple[bytes, set[str]]:
    """Run a program; return what it says and which heavy modules it has loaded."""
    code = f"import sys\n{source}\nprint(*sorted(sys.modules), sep='\\n', file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code, *words], input=given, capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout, HEAVY & set(done.stderr.decode().splitlines())


@pytest.mark.parametrize(
    "source",
    [
        "import duet_rpc.mcp",
        "from duet_rpc.mcp import *",
        "from duet_rpc.mcp import Image, Mcp, ToolOptions; Mcp(secret='s')",
        # With all that a server of tools needs before it waits for messages.
        "from duet_rpc import Server; from duet_rpc.mcp import Mcp\n"
        "from duet_rpc.server.server import assemble_dispatcher\n"
        f"{FILE}\nassemble_dispatcher(Server(notes, face=Mcp()), None)",
    ],
)
def test_the_face_loads_nothing_heavy(source: str) -> None:
    assert run(source)[1] == set()


@pytest.mark.parametrize(
    ("policy", "waits_by"), [("editor", set()), ("agent", {"asyncio", "socket", "ssl"})]
)
def test_a_file_of_queries_is_served_with_as_little(
    policy: str, waits_by: set[str], tmp_path: Path
) -> None:
    """What begins one call after the other needs no event loop; neither needs a store's digests."""
    (tmp_path / "notes.py").write_text(FILE)
    source = "from duet_rpc.cli import main\ntry: main()\nexcept SystemExit as e: assert not e.code"
    words = ("mcp", str(tmp_path / "notes.py"), "--policy", policy, "--log-level", "error")
    said, loaded = run(source, *words, given=HELLO)
    assert said.count(b"\n") == 3 and b'"structuredContent":{"result":2}' in said
    # The command line itself takes click, and with it inspect.
    assert loaded - {"click", "inspect", "logging"} == waits_by
    assert "logging" not in loaded or policy == "agent", "it comes with asyncio"
