"""The examples that `make demo` does not play run too."""

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_the_outbox_sends_one_mail_for_three_tries() -> None:
    run = subprocess.run(
        [sys.executable, str(EXAMPLES / "outbox.py")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert run.stdout.splitlines() == ["order 1"] * 3 + ["mail: Order 1: one lamp"]
