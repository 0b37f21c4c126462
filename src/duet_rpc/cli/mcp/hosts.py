"""What each host has to be configured with so that it starts a server: the file, the key, the form.

A host starts servers in a working directory of its own, often `/`, and with hardly any environment.
So everything is said in full: absolute paths, also of the interpreter, and each variable.
"""

import json
import shlex
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from duet_rpc.startup import pattern


class Entry(Struct, frozen=True, kw_only=True):
    """One server, as a host has to start it."""

    name: str
    command: list[str]
    env: dict[str, str] = {}

    def as_members(self, **first: str) -> dict[str, Any]:
        """Give what nearly every host calls by the same names."""
        members: dict[str, Any] = {**first, "command": self.command[0], "args": self.command[1:]}
        return members | ({"env": self.env} if self.env else {})


class HostForm(Struct, frozen=True, kw_only=True):
    """One host: how its configuration is written, and where that belongs."""

    title: str
    write: Callable[[Entry], str]
    place: tuple[str, ...]
    """Lines for a person: where to put what is printed."""


def _write_json(key: str, **first: str) -> Callable[[Entry], str]:
    def write(entry: Entry) -> str:
        document = {key: {entry.name: entry.as_members(**first)}}
        return json.dumps(document, indent=2, ensure_ascii=False)

    return write


def _write_toml(entry: Entry) -> str:
    lines = [
        f"[mcp_servers.{_toml_key(entry.name)}]",
        f"command = {_toml_text(entry.command[0])}",
        f"args = [{', '.join(map(_toml_text, entry.command[1:]))}]",
    ]
    if entry.env:
        lines += ["", f"[mcp_servers.{_toml_key(entry.name)}.env]"]
        lines += [f"{_toml_key(name)} = {_toml_text(value)}" for name, value in entry.env.items()]
    return "\n".join(lines)


def _toml_text(text: str) -> str:
    # The basic strings of TOML are those of JSON, but that DEL is escaped too.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_key(name: str) -> str:
    return name if pattern(r"[A-Za-z0-9_-]+").fullmatch(name) else _toml_text(name)


def _write_claude(entry: Entry) -> str:
    """Write the command that registers it: the name comes first, for -e takes all that follows."""
    words = ["claude", "mcp", "add", entry.name]
    for name, value in entry.env.items():
        words += ["-e", f"{name}={value}"]
    return shlex.join([*words, "--", *entry.command])


HOSTS: dict[str, HostForm] = {
    "claude-code": HostForm(
        title="Claude Code",
        write=_write_claude,
        place=(
            "Run this line in your project. With --scope user before -- it holds for all of them,",
            "with --scope project it is written to .mcp.json, to be shared.",
        ),
    ),
    "claude-desktop": HostForm(
        title="Claude Desktop",
        write=_write_json("mcpServers"),
        place=(
            "Add this to claude_desktop_config.json, under mcpServers, and restart the app.",
            "macOS: ~/Library/Application Support/Claude/   Windows: %APPDATA%\\Claude\\",
        ),
    ),
    "vscode": HostForm(
        title="VS Code",
        write=_write_json("servers", type="stdio"),
        place=("Add this to .vscode/mcp.json in your project, under servers.",),
    ),
    "cursor": HostForm(
        title="Cursor",
        write=_write_json("mcpServers"),
        place=(
            "Add this to .cursor/mcp.json in your project, or to ~/.cursor/mcp.json for all of",
            "them, under mcpServers.",
        ),
    ),
    "zed": HostForm(
        title="Zed",
        write=_write_json("context_servers"),
        place=("Add this to settings.json (zed: open settings), under context_servers.",),
    ),
    "codex": HostForm(
        title="Codex",
        write=_write_toml,
        place=("Append this to ~/.codex/config.toml, or to .codex/config.toml in your project.",),
    ),
    "gemini": HostForm(
        title="Gemini CLI",
        write=_write_json("mcpServers"),
        place=(
            "Add this to ~/.gemini/settings.json, or to .gemini/settings.json in your project,",
            "under mcpServers.",
        ),
    ),
}
"""The hosts by the names that the command line knows them by."""
