"""Type checkers over what users see: `make types`.

mypy reads the code itself (`make check`). Here pyright reads it too; both read, in strict mode, the
examples and every Python block of the documentation, as a reader would have them in a file; and
pyright says how much of the public interface has a type at all.

    python -m tests.check_types            everything
    python -m tests.check_types PAGE...    only these pages
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.test_docs import ROOT, RUNNABLE, python_blocks

COMPLETENESS = 0.99
"""The least share of public names that has a known type."""
PYTHON = "3.11"
_RUN = {
    **os.environ,
    # Without these it would look for a newer version of itself, and keep things in the home folder.
    "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1",
    "PYRIGHT_PYTHON_CACHE_DIR": str(ROOT / ".venv" / "pyright"),
    # It asks the `python` that it finds where packages are.
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
}


def run(*command: str, cwd: Path = ROOT) -> bool:
    """Run a checker; show what it says if it has found something."""
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=cwd, env=_RUN, capture_output=True, text=True
    )
    if done.returncode:
        sys.stdout.write(done.stdout + done.stderr)
    return done.returncode == 0


def write_page(page: Path, folder: Path) -> None:
    """Write the blocks of a page as one module, each at the line that it has on the page.

    A block that names its file becomes a module of its own, which the others can import.
    """
    folder.mkdir(parents=True)
    lines: list[str] = []
    for block in python_blocks(page.read_text("utf-8")):
        if named := re.match(r"# (\w+\.py)\n", block.text):
            (folder / named[1]).write_text(block.text, "utf-8")
            continue
        lines += [""] * (block.line - 1 - len(lines))
        lines += block.text.splitlines()
    module = re.sub(r"\W", "_", page.stem).lower()
    (folder / f"page_{module}.py").write_text("\n".join(lines) + "\n", "utf-8")


def check_pages(pages: Sequence[Path]) -> bool:
    """Check the snippets of each page by both checkers, in strict mode."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        settings = {
            "typeCheckingMode": "strict",
            "pythonVersion": PYTHON,
            # A page shows what it explains: a result that is not looked at, a function that is not
            # called. Each of its blocks imports what it needs.
            "reportUnusedVariable": False,
            "reportUnusedFunction": False,
            "reportDuplicateImport": False,
        }
        roots: list[dict[str, object]] = []
        sound = True
        for page in pages:
            if not python_blocks(page.read_text("utf-8")):
                continue
            name = page.relative_to(ROOT).with_suffix("").as_posix().replace("/", "-")
            write_page(page, folder / name)
            roots.append({"root": name})
            # Each page by itself: two of them may both have a `notes.py`.
            options = ["--strict", "--python-version", PYTHON, "--no-error-summary"]
            sound &= run("mypy", *options, ".", cwd=folder / name)
        config = {**settings, "executionEnvironments": roots}
        (folder / "pyrightconfig.json").write_text(json.dumps(config))
        return run("pyright", cwd=folder) and sound


def check_completeness() -> bool:
    """Check that nearly every public name has a type that is known without guessing."""
    command = ["pyright", "--verifytypes", "duet_rpc", "--ignoreexternal", "--outputjson"]
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, env=_RUN, capture_output=True, text=True
    )
    report = json.loads(done.stdout)["typeCompleteness"]
    score = report["completenessScore"]
    sys.stdout.write(f"public names with a known type: {score:.1%}\n")
    if score >= COMPLETENESS:
        return True
    for symbol in report["symbols"]:
        if not symbol["isTypeKnown"] and symbol["isExported"]:
            said = "; ".join(fault["message"].split("\n")[0] for fault in symbol["diagnostics"])
            sys.stdout.write(f"  {symbol['name']}: {said}\n")
    return False


def main() -> int:
    """Check what the command line names, or everything."""
    named = [Path(name).resolve() for name in sys.argv[1:]]
    sound = check_pages(named or RUNNABLE)
    if not named:
        sound &= run("pyright")
        sound &= check_completeness()
    return 0 if sound else 1


if __name__ == "__main__":
    raise SystemExit(main())
