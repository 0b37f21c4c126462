"""The pages about hosts show what the command prints, but for the paths of a machine."""

import re
from pathlib import Path

import pytest

from duet_rpc.cli.mcp.hosts import HOSTS
from tests.cli.shell import COMMAND, run
from tests.cli.test_documented import ROOT, blocks

PAGES = ROOT / "docs" / "mcp"
NOTES = blocks(ROOT / "docs" / "mcp.md", "python")[0]


@pytest.mark.parametrize("host", HOSTS)
def test_a_page_shows_what_is_printed(host: str, tmp_path: Path) -> None:
    (tmp_path / "notes.py").write_text(NOTES)
    page = PAGES / f"{host}.md"
    (line,) = [each for each in blocks(page, "sh")[0].splitlines() if each]
    ran = run(*line.split()[1:], cwd=tmp_path)
    printed = ran.out.replace(str(tmp_path), "/home/ada").replace(
        str(COMMAND), "/home/ada/.venv/bin/duet-rpc"
    )
    shown = re.findall(r"^```(?:sh|json|toml)\n(.*?)^```$", page.read_text(), re.M | re.S)[1]
    assert shown == printed


def test_the_service_of_the_pages_is_fine(tmp_path: Path) -> None:
    (tmp_path / "notes.py").write_text(NOTES)
    ran = run("mcp", "check", "notes.py", "--strict", cwd=tmp_path)
    assert ran.code == 0, ran
    code = [line for line in NOTES.splitlines() if line and not line.startswith("#")]
    assert len(code) == 8, "as the page says"
