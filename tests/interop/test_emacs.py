"""Emacs' own jsonrpc.el drives the daemon, through the functions that docs/emacs.md shows."""

from pathlib import Path
from typing import Any

import pytest

from tests.interop.clients import HERE, Tapped, needed, snippets

ENDED_WELL = {"status": 0, "changes": ["finished\n"], "died": []}


class Emacs:
    """A fresh Emacs, and the daemon that it starts."""

    def __init__(self, directory: Path) -> None:
        self.program = needed("emacs")
        self.tapped = Tapped(directory)
        self.how_to = directory / "text-tools.el"
        self.how_to.write_text(snippets("emacs.md", "elisp"), "utf-8")

    def see(self, scenario: str, *, stdin: str = "", **environment: str) -> Any:
        """Run a scenario; return what it saw."""
        command = [self.program, "-Q", "--batch", "-l", str(self.how_to)]
        command += ["-l", str(HERE / "emacs" / "scenarios.el"), "-f", f"scenario-{scenario}"]
        return self.tapped.saw(self.tapped.run(command, stdin=stdin, environment=environment))


@pytest.fixture
def emacs(tmp_path: Path) -> Emacs:
    return Emacs(tmp_path)


def test_requests_are_answered(emacs: Emacs) -> None:
    saw = emacs.see("requests")
    assert saw["named"] == {"lines": 2, "words": 3, "characters": 13}
    assert saw["positional"] == ["a", "b", "C"]
    assert saw["beyond-ascii"] == ["😀", "ü", "naïve"]
    assert saw["none-given"] == []
    assert saw["version"] == {"version": "1.0"}
    assert saw["handshake"]["serverInfo"] == {"name": "text", "version": "1.0"}
    assert saw["end"] == ENDED_WELL
    assert len(emacs.tapped.check()) == 7
    assert b'"params":null' in emacs.tapped.sent[3], "Emacs says nil as null"


def test_asynchronous_requests_are_answered(emacs: Emacs) -> None:
    saw = emacs.see("asynchronous")
    assert saw["at-once"] is None
    assert saw["result"] == {"lines": 1, "words": 3, "characters": 5}
    assert saw["failure"]["code"] == -32602
    assert saw["failure"]["data"]["param"] == "text"
    assert saw["end"] == ENDED_WELL
    emacs.tapped.check()


def test_errors_arrive_with_code_message_and_data(emacs: Emacs) -> None:
    saw = emacs.see("errors")
    assert saw["own"]["code"] == 1001
    assert saw["own"]["message"] == "Buffer is not open"
    assert saw["own"]["data"] == {"name": "notes", "open": []}
    assert saw["params"]["code"] == saw["missing"]["code"] == -32602
    assert saw["missing"]["data"] == {"param": "text", "expected": "string", "received": "nothing"}
    assert saw["method"]["code"] == -32601
    assert saw["method"]["message"] == "Method not found"
    assert saw["null-method"]["code"] == -32600
    assert saw["after"]["words"] == 2
    assert saw["end"] == ENDED_WELL
    emacs.tapped.check()


def test_notifications_go_both_ways(emacs: Emacs) -> None:
    saw = emacs.see("notifications")
    assert saw["opened"] == ["notes"]
    problem = {"line": 2, "message": "spaces at the end of the line"}
    assert saw["notified"] == [["text.problems", {"name": "notes", "problems": [problem]}]]
    assert saw["end"] == ENDED_WELL
    answers = [message for message in emacs.tapped.check() if "id" in message]
    assert len(answers) == 2, "notifications are not answered, whatever is wrong with them"
    assert "text.nonsense" in emacs.tapped.log


def test_a_hundred_pipelined_requests_are_answered_in_order(emacs: Emacs) -> None:
    saw = emacs.see("pipelined")
    assert saw["order"] == list(range(100))
    assert saw["failures"] == []
    assert saw["end"] == ENDED_WELL
    emacs.tapped.check()


def test_the_daemon_asks_emacs_while_emacs_waits(emacs: Emacs) -> None:
    saw = emacs.see("asked", stdin="Ada\nGrace\n")
    assert saw["filled"] == "Dear Ada, dear Grace, dear Ada"
    assert saw["unknown"]["code"] == 1002
    assert saw["unknown"]["data"] == {"field": "name", "code": -32601}
    assert saw["broken"]["data"] == {"field": "name", "code": -32603}
    assert saw["after"]["words"] == 1
    assert saw["end"] == ENDED_WELL
    emacs.tapped.check()


def test_shutdown_answers_what_was_asked_before(emacs: Emacs) -> None:
    saw = emacs.see("shutdown-with-open-requests")
    assert saw["results"] == 20
    assert saw["end"] == ENDED_WELL
    assert emacs.tapped.check()[-1]["result"] == {"message": "Shutting down gracefully"}


def test_a_daemon_that_cannot_start_is_told(emacs: Emacs) -> None:
    saw = emacs.see("cannot-start")
    assert "message" in saw["refused"]
    assert saw["changes"] == ["exited abnormally with code 2\n"]
    assert emacs.tapped.status == 2


def test_the_daemon_ends_when_emacs_does(emacs: Emacs) -> None:
    assert emacs.see("quit-emacs")["named"]["words"] == 1
    emacs.tapped.check()
    assert "ended why=SIGHUP" in emacs.tapped.log or 'ended why="end of input"' in emacs.tapped.log


def test_the_how_to_works(emacs: Emacs, tmp_path: Path) -> None:
    haystack = tmp_path / "haystack"
    haystack.mkdir()
    (haystack / "one.txt").write_text("hay\nneedle\n")
    (haystack / "two.txt").write_text("needle, hay, needle\n")
    saw = emacs.see("how-to", stdin="Ada\n", HAYSTACK=str(haystack))
    messages = saw["messages"]
    assert messages[0] == "2 lines, 3 words, 14 characters"
    assert messages[1] == 'Buffer is not open (1001): (:name "notes" :open [])'
    assert "notes: 1 problems" in messages
    assert '[(:line 1 :message "spaces at the end of the line")]' in messages
    assert "Dear Ada" in messages
    assert "Searched 2 of 2 files" in messages
    assert messages[-2:] == ["Found 2 lines", "Not a regular expression"]
    assert "started" in saw["log"] and "[stderr]" in saw["events"]
    assert saw["end"] == ENDED_WELL
    emacs.tapped.check()
