"""The rule that CI skips nothing (see conftest.py), tried on sessions of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

SKIPPING = {
    "a mark": "import pytest\n@pytest.mark.skip(reason='no editor')\ndef test_it(): pass\n",
    "a call": "import pytest\ndef test_it(): pytest.skip('no editor')\n",
    "a module": "import pytest\npytest.skip('no editor', allow_module_level=True)\n",
    "an xfail": "import pytest\n@pytest.mark.xfail(reason='no editor')\ndef test_it(): assert 0\n",
}


PARALLEL = ("-p", "xdist", "-n", "2")


def session(
    directory: Path, source: str, *options: str, **environ: str
) -> subprocess.CompletedProcess[str]:
    test = directory / "test_sample.py"
    test.write_text(source + "\ndef test_other(): pass\n")
    inherited = {k: v for k, v in os.environ.items() if k not in ("CI", "DUET_RPC_NO_SKIPS")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(directory)]
        + ["-p", "tests.conftest", "-p", "no:cacheprovider", *options, str(test)],
        env=inherited | environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # for a quick start
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
    )


@pytest.mark.parametrize("options", [(), PARALLEL], ids=["alone", "in parallel"])
@pytest.mark.parametrize("kind", SKIPPING)
def test_a_skip_fails_the_session_in_ci(
    kind: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    finished = session(tmp_path, SKIPPING[kind], *options, CI="true")
    assert finished.returncode == pytest.ExitCode.TESTS_FAILED, finished.stdout
    assert "no test may skip here" in finished.stdout
    assert "no editor" in finished.stdout.partition("no test may skip here")[2]


def test_a_skip_is_allowed_elsewhere(tmp_path: Path) -> None:
    assert session(tmp_path, SKIPPING["a mark"]).returncode == pytest.ExitCode.OK


def test_the_variable_of_ours_overrides_ci(tmp_path: Path) -> None:
    waived = session(tmp_path, SKIPPING["a mark"], CI="true", DUET_RPC_NO_SKIPS="0")
    assert waived.returncode == pytest.ExitCode.OK
    asked = session(tmp_path, SKIPPING["a mark"], DUET_RPC_NO_SKIPS="1")
    assert asked.returncode == pytest.ExitCode.TESTS_FAILED


def test_a_session_without_skips_passes(tmp_path: Path) -> None:
    assert session(tmp_path, "", CI="true").returncode == pytest.ExitCode.OK


@pytest.mark.parametrize("options", [(), PARALLEL], ids=["alone", "in parallel"])
@pytest.mark.parametrize("kind", ["a mark", "a module"])
def test_the_last_line_says_what_was_not_tested(
    kind: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    finished = session(tmp_path, SKIPPING[kind], *options, "-m", "not long")
    assert finished.returncode != pytest.ExitCode.TESTS_FAILED, finished.stdout
    last = finished.stdout.splitlines()[-1]
    assert last == "Not tested here: no editor, long runs (make check)"


def test_where_all_was_tested_nothing_more_is_said(tmp_path: Path) -> None:
    assert "Not tested here" not in session(tmp_path, "").stdout
