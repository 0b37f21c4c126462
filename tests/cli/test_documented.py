"""What the documentation says about the command line: each line of it is run, or at least parsed.

In docs/cli.md every line of every `sh` block runs, in order, beside the service that the page
shows; a comment at its end says what it prints or how it ends. Lines of other pages name servers
and files that are not there, so the command line's own parser reads them.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from duet_rpc.cli.main import duet_rpc
from duet_rpc.ledger import SqliteStore
from tests.cli.records import claim
from tests.cli.shell import PATIENCE, run, shell_environment
from tests.daemon.process import eventually

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "cli.md"
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r" +# (?:prints (?P<prints>.*)|exit code (?P<code>\d+))$")
SERVE = """
from duet_rpc import Server
from notes import notes

Server(notes).run_unix("notes.sock", on_start=lambda address: open("listens", "w").close())
"""


def blocks(page: Path, language: str) -> list[str]:
    return [text for found, text in BLOCK.findall(page.read_text("utf-8")) if found == language]


def lines(page: Path) -> list[str]:
    """List the commands of a page; a line that ends with a backslash goes on."""
    joined = "".join(blocks(page, "sh")).replace("\\\n", " ")
    return [line for line in joined.splitlines() if line and not line.startswith("#")]


@pytest.fixture
def beside_the_service(tmp_path: Path) -> Iterator[Path]:
    """A directory as the reader of the page has it: the service, served, and a store in use."""
    (tmp_path / "notes.py").write_text(blocks(PAGE, "python")[0])
    (tmp_path / "serve.py").write_text(SERVE)
    (tmp_path / "calls.jsonl").write_text('{"method": "notes.get", "params": {"id": 0}}\n')
    store = SqliteStore(tmp_path / "notes.db")
    for key in ("order-18", "order-19"):
        claim(store, key, method="notes.add", lease=0.001)
    store.close()
    server = subprocess.Popen([sys.executable, "serve.py"], cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        eventually((tmp_path / "listens").exists, "the service is served")
        yield tmp_path
    finally:
        server.kill()
        server.wait(PATIENCE)


@pytest.mark.timeout(300)
def test_every_line_of_the_page_does_what_it_says(beside_the_service: Path) -> None:
    for line in lines(PAGE):
        said = COMMENT.search(line)
        prints, code = (said["prints"], said["code"]) if said else (None, None)
        ended = subprocess.run(
            ["sh", "-c", COMMENT.sub("", line)],
            cwd=beside_the_service,
            env=shell_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert ended.returncode == int(code or 0), f"{line}\n{ended}"
        if prints is not None:
            assert ended.stdout == f"{prints}\n", f"{line}\n{ended}"


def documented() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for line in lines(page):
            for part in re.split(r" \| ", line):
                if part.startswith("duet-rpc "):
                    yield page.relative_to(ROOT).as_posix(), part


@pytest.mark.parametrize(("page", "line"), list(documented()))
def test_every_line_of_every_page_is_understood(page: str, line: str) -> None:
    words = shlex.split(re.split(r"\s(?:[<>&]|\d>)", line)[0], comments=True)[1:]
    context = duet_rpc.make_context("duet-rpc", words)
    group: click.Command = duet_rpc
    while isinstance(group, click.Group):
        words = [*context._protected_args, *context.args]
        name, command, words = group.resolve_command(context, words)
        assert command is not None, f"{page}: {line}"
        context = command.make_context(name, words, parent=context)
        group = command


def helps() -> Iterator[list[str]]:
    for name in duet_rpc.list_commands(click.Context(duet_rpc)):
        yield [name]
    for name in ("list", "show", "resolve", "forget", "sweep"):
        yield ["commands", name]
    for name in ("check", "config"):
        yield ["mcp", name]


@pytest.mark.parametrize("words", list(helps()), ids=" ".join)
def test_every_command_helps(words: list[str]) -> None:
    ran = run(*words, "--help")
    assert (ran.code, ran.err) == (0, "") and f"Usage: duet-rpc {words[0]}" in ran.out, ran


def test_the_first_help_names_every_command() -> None:
    ran = run("--help")
    assert ran.code == 0, ran
    for name in duet_rpc.list_commands(click.Context(duet_rpc)):
        assert re.search(rf"^  {name} ", ran.out, re.MULTILINE), name
