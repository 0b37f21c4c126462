"""Text tools for an editor: what its buffers hold, and a search through the files around them.

    duet-rpc serve examples/editor_daemon.py

It shows what an editor asks of a daemon: quick answers about text, notifications both ways (`open`
is told of a buffer and tells back what is wrong with it), a question back to the editor (`fill`),
and slow work that reports progress and can be cancelled (`search`). `docs/` tells how Emacs,
VS Code and Neovim talk to it.
"""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from duet_rpc import Context, RpcError, Service

tools = Service("text", version="1.0", description="Text tools for an editor")

LONG_LINE = 100

buffers: dict[str, str] = {}
"""What the editor has open, by name."""


@dataclass(frozen=True)
class Count:
    lines: int
    words: int
    characters: int


@dataclass(frozen=True)
class Problem:
    line: int
    message: str


@dataclass(frozen=True)
class Match:
    file: str
    line: int
    text: str


class NotOpen(RpcError):
    """The editor asks about a buffer that it has not opened."""

    code, message = 1001, "Buffer is not open"


class NoAnswer(RpcError):
    """The editor was asked for a value and gave none."""

    code, message = 1002, "The editor gave no value"


class BadPattern(RpcError):
    """A regular expression that cannot be read."""

    code, message = 1003, "Not a regular expression"


@tools.query
def count(text: str) -> Count:
    """Count the lines, words and characters of a text."""
    return Count(len(text.splitlines()), len(text.split()), len(text))


@tools.query
def sort(lines: list[str], *, reverse: bool = False, unique: bool = False) -> list[str]:
    """Sort lines, and drop repeated ones if asked to."""
    return sorted(set(lines) if unique else lines, key=str.casefold, reverse=reverse)


@tools.command(notification_allowed=True)
def open(name: str, text: str, ctx: Context) -> None:
    """Take note of a buffer, and tell the editor what is wrong with it (`text.problems`)."""
    buffers[name] = text
    ctx.notify("text.problems", {"name": name, "problems": list(problems(text))})


@tools.command(notification_allowed=True)
def close(name: str) -> None:
    """Forget a buffer."""
    buffers.pop(name, None)


@tools.query
def opened() -> list[str]:
    """List the buffers that are open."""
    return sorted(buffers)


@tools.query
def check(name: str) -> list[Problem]:
    """Say what is wrong with an open buffer."""
    if name not in buffers:
        raise NotOpen(data={"name": name, "open": sorted(buffers)})
    return list(problems(buffers[name]))


@tools.query
def fill(template: str, ctx: Context) -> str:
    """Fill in a template: each `{field}` is asked of the editor (`editor.ask`)."""
    values: dict[str, str] = {}
    for field in re.findall(r"\{(\w+)\}", template):
        if field in values:
            continue
        try:
            values[field] = ctx.call("editor.ask", {"field": field}, returns=str).result()
        except RpcError as error:
            raise NoAnswer(data={"field": field, "code": error.code}) from error
    return re.sub(r"\{(\w+)\}", lambda found: values[found[1]], template)


@tools.query
def search(
    pattern: str,
    directory: str,
    ctx: Context,
    *,
    token: int | str | None = None,
    pause: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0,
) -> list[Match]:
    """Search the files of a directory for a regular expression.

    With a `token`, progress is told after each file (`$/progress`). `pause` is a rest after each
    file, in seconds, for a search that should leave the disk to others.
    """
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise BadPattern(data={"pattern": pattern, "position": error.pos}) from error
    found: list[Match] = []
    files = sorted(path for path in Path(directory).rglob("*") if path.is_file())
    for done, path in enumerate(files, 1):
        if ctx.cancelled:  # nobody waits for the result any more
            return []
        lines = path.read_text("utf-8", "replace").splitlines()
        found += [
            Match(path.relative_to(directory).as_posix(), number, line)
            for number, line in enumerate(lines, 1)
            if wanted.search(line)
        ]
        if token is not None:
            progress = {"done": done, "of": len(files), "found": len(found)}
            ctx.notify("$/progress", {"token": token, "value": progress})
        time.sleep(pause)
    return found


def problems(text: str) -> Iterator[Problem]:
    """Yield what is wrong with a text."""
    for number, line in enumerate(text.splitlines(), 1):
        if line != line.rstrip():
            yield Problem(number, "spaces at the end of the line")
        if len(line) > LONG_LINE:
            yield Problem(number, f"longer than {LONG_LINE} characters")


if __name__ == "__main__":
    tools.run()
