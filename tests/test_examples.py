"""The examples that `make demo` does not play run too."""

import os
import subprocess
import sys
from pathlib import Path

from tests.ledger.conftest import postgres_server
from tests.ledger.servers import Postgres

EXAMPLES = Path(__file__).parent.parent / "examples"

__all__ = ["postgres_server"]


def run(*command: str, **environment: str) -> list[str]:
    """Run a program of the examples; return the lines that it prints."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=EXAMPLES,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_the_outbox_sends_one_mail_for_three_tries() -> None:
    assert run("outbox.py") == ["order 1"] * 3 + ["mail: Order 1: one lamp"]


def test_the_to_do_daemon_follows_its_editor() -> None:
    assert run("todo.py") == [
        "editor: line 3 is now '# TODO: name this'",
        "editor: line 9 is now '# TODO: test this'",
        "editor: line 3 is now 'name = 1'",
        "answer: [9] say TODO",
        "daemon: mark [3]",
        "daemon: mark [3, 9]",
        "daemon: mark [9]",
        "answer: Item(id=1, text='test it', done=False)",
        "answer: Item(id=1, text='test it', done=True)",
        "answer: No such item (5001): {'id': 7, 'items': 1}",
        "ended: exit status 0",
    ]


def test_of_three_servers_one_crashes_and_two_go_on() -> None:
    assert run("three_servers.py") == [
        "sums: 100 answers, 9900 in all",
        "words: 10 in all; a.txt has 6, b.txt has 4",
        "oracle: oracle.ask: no answer within 0.5 s",
        "oracle is gone: exited, status 3, last words ['oracle: the licence has run out']",
        "sums: 42, as before",
        "sums ended: closed, status 0",
        "words ended: closed, status 0",
        "oracle ended: exited, status 3",
    ]


def test_a_payment_outlives_its_server(postgres_server: Postgres) -> None:
    assert run("payments_demo.py", DATABASE_URL=postgres_server.url) == [
        "order 1, sent: payment 1",
        "order 1, sent again: payment 1",
        "order 2, refused: 2400 cents are missing",
        "order 3, its server killed in the middle: the connection is lost",
        "order 3, by the second server: payment 2",
        "ben has 5000 cents, received as [2500, 2500]",
    ]


def test_the_test_suite_of_the_payments_passes(postgres_server: Postgres) -> None:
    command = "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_payments.py"
    assert run(*command, DATABASE_URL=postgres_server.url)[-1].startswith("8 passed")
