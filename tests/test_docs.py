"""The documentation is run: its Python, its links; and what no file of the tree may hold.

Every ``python`` block of a page runs, in order, in one namespace, as a reader would type them. One
that begins with the name of a file (``# sums.py``) is saved under it and run as a program. No block
can be exempt: a snippet that cannot run is not shown. Other languages are not run here; what the
how-tos show for an editor is run by the interop tests.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parent.parent
RUNNABLE = sorted([*ROOT.glob("README.md"), *ROOT.glob("docs/**/*.md")])
FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,}|~{3,})(?P<info>.*)$")
LINK = re.compile(
    r"!?\[[^\]]*\]\(\s*<?(?P<inline>[^)\s>]+)|^\[[^\]]+\]:\s*<?(?P<reference>[^\s>]+)"
)


def page_id(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


class Block(NamedTuple):
    info: str
    line: int  # of its first line of code
    text: str


def fenced(page: str) -> Iterator[tuple[int, str, Block | None]]:
    """Yield the lines of a page with their numbers; a fenced block comes as one, at its end."""
    opened: re.Match[str] | None = None
    start = 0
    inside: list[str] = []
    for number, line in enumerate(page.splitlines(), 1):
        fence = FENCE.match(line)
        if opened is None:
            if fence is None:
                yield number, line, None
            else:
                opened, start, inside = fence, number + 1, []
        elif fence and fence["ticks"].startswith(opened["ticks"]) and not fence["info"].strip():
            text = "\n".join(line.removeprefix(opened["indent"]) for line in inside)
            yield number, "", Block(opened["info"].strip(), start, text + "\n")
            opened = None
        else:
            inside.append(line)
    assert opened is None, f"the block that begins on line {start - 1} is never closed"


def python_blocks(page: str) -> list[Block]:
    blocks = [block for _, _, block in fenced(page) if block is not None]
    for block in blocks:
        if re.match(r"\{?\.?(py|pycon|python3?)\b", block.info, re.IGNORECASE):
            assert block.info == "python", (
                f"line {block.line - 1}: write ```python, not ```{block.info}: every block is run"
            )
    return [block for block in blocks if block.info == "python"]


# Runs in a process of its own. A block may end with SystemExit, as a server does when its input is
# at its end. Line numbers are those of the page. The last line tells that no block was left out.
RUNNER = """
import re, subprocess, sys
page, done, *blocks = sys.argv[1:]
for block in blocks:
    line, _, text = block.partition(":")
    if named := re.match(r"# (\\w+\\.py)\\n", text):
        with open(named[1], "w", encoding="utf-8") as file:
            file.write(text)
        subprocess.run([sys.executable, named[1]], check=True)
        continue
    try:
        exec(compile("\\n" * (int(line) - 1) + text, page, "exec"), globals())
    except SystemExit as end:
        if end.code:
            raise
open(done, "x").close()
"""


def run(page: Path, blocks: list[Block], directory: Path) -> None:
    done = directory / "every-block-has-run"
    workplace = directory / "workplace"
    workplace.mkdir()
    finished = subprocess.run(
        [sys.executable, "-c", RUNNER, str(page), str(done)]
        + [f"{block.line}:{block.text}" for block in blocks],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=workplace,
        timeout=50,
    )
    assert finished.returncode == 0, finished.stderr
    assert done.exists(), f"a block ended the process, the rest was not run\n{finished.stderr}"


@pytest.mark.parametrize("page", RUNNABLE, ids=page_id)
def test_every_python_block_runs(page: Path, tmp_path: Path) -> None:
    if blocks := python_blocks(page.read_text("utf-8")):
        run(page, blocks, tmp_path)


def tree() -> list[Path]:
    """Every file that git tracks or would add."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        names = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("which files belong to the project (use git, in a checkout)")
    paths = {ROOT / name.decode() for name in names.split(b"\0") if name}
    return sorted(path for path in paths if path.is_file())


def broken_links(page: Path) -> list[str]:
    broken = []
    for number, line, _ in fenced(page.read_text("utf-8")):
        for link in LINK.finditer(re.sub(r"`[^`]*`", "", line)):
            goal = unquote(link["inline"] or link["reference"]).partition("#")[0]
            if goal and not re.match(r"[a-z][a-z0-9+.-]*:", goal):
                if not (page.parent / goal).exists():
                    broken.append(f"{page.name}:{number} links to {goal}")
    return broken


def test_relative_links_lead_to_files() -> None:
    pages = [path for path in tree() if path.suffix == ".md"]
    broken = [fault for page in pages for fault in broken_links(page)]
    assert not broken, "\n".join(broken)


# Where packages come from is the installer's business, and where a checkout lies is its owner's.
# The patterns are written in parts, so that this file does not hold what it looks for.
FORBIDDEN = {
    "the host of a package registry": "|".join(
        a + b
        for a, b in [
            ("py" + r"pi\.", "org"),
            ("python", "hosted"),
            (r"registry\.", "npm" + "js"),
            (r"deb\.", "debian"),
        ]
    ),
    "a path of one machine": "/(?:" + "|".join(["work", "farm", "root"]) + ")/|bash" + "_jobs",
}


def forbidden(text: str) -> Iterator[tuple[int, str]]:
    for what, pattern in FORBIDDEN.items():
        for found in re.finditer(pattern, text):
            yield text.count("\n", 0, found.start()) + 1, what


def test_no_file_names_a_registry_or_a_machine() -> None:
    faults = [
        f"{page_id(path)}:{line} holds {what}"
        for path in tree()
        for line, what in forbidden(path.read_bytes().decode("utf-8", "replace"))
    ]
    assert not faults, "\n".join(faults)


# The checks themselves, tried on pages that break the rules.


def test_blocks_share_a_namespace_and_outlive_an_exit(tmp_path: Path) -> None:
    text = (
        "```python\nx = 1\nraise SystemExit\n```\n\n- item\n\n  ```python\n  assert x == 1\n  ```\n"
    )
    run(tmp_path / "page.md", python_blocks(text), tmp_path)


def test_a_block_that_names_its_file_is_saved_and_run_by_itself(tmp_path: Path) -> None:
    text = "```python\n# one.py\nx = 1\n```\n```python\nimport one\nassert one.x == 1\n```\n"
    run(tmp_path / "page.md", python_blocks(text), tmp_path)
    (tmp_path / "again").mkdir()
    with pytest.raises(AssertionError, match=r"one\.py.*line 2"):
        run(tmp_path, python_blocks("```python\n# one.py\nassert 0\n```\n"), tmp_path / "again")


def test_a_failing_block_is_told_by_its_line_on_the_page(tmp_path: Path) -> None:
    text = "# Title\n\n```sh\nfalse\n```\n\n```python\n\nassert not 'so'\n```\n"
    with pytest.raises(AssertionError, match=r'page\.md", line 9'):
        run(tmp_path / "page.md", python_blocks(text), tmp_path)


def test_a_block_that_ends_the_process_is_found(tmp_path: Path) -> None:
    text = "```python\nimport os\nos._exit(0)\n```\n```python\nassert False\n```\n"
    with pytest.raises(AssertionError, match="the rest was not run"):
        run(tmp_path / "page.md", python_blocks(text), tmp_path)


@pytest.mark.parametrize("info", ["python no-run", "py", "python3", "{.python}", "pycon", "Python"])
def test_no_python_block_is_exempt(info: str) -> None:
    with pytest.raises(AssertionError, match="every block is run"):
        python_blocks(f"```{info}\nx = 1\n```\n")


def test_an_open_block_is_found() -> None:
    with pytest.raises(AssertionError, match="line 2 is never closed"):
        python_blocks("text\n```python\nx = 1\n")


def test_broken_links_are_found_outside_of_code(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "[a](page.md#x) [b](gone.md) ![c](gone.png 'title') [d](https://example.com) [e](#here)\n"
        "`[f](code.md)`\n```\n[g](code.md)\n```\n[h]: gone/too.md\n"
    )
    assert [fault.rpartition(" ")[2] for fault in broken_links(page)] == [
        "gone.md",
        "gone.png",
        "gone/too.md",
    ]


@pytest.mark.parametrize(
    "text", ["https://py" + "pi.org/simple", "cd /ro" + "ot/x", "registry.npm" + "js.com"]
)
def test_registries_and_machines_are_found(text: str) -> None:
    assert [line for line, _ in forbidden(f"\n{text}")] == [2]
