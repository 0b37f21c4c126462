"""Neovim's own vim.lsp.rpc drives the daemon, through the module that docs/neovim.md shows."""

from pathlib import Path
from typing import Any

import pytest

from tests.interop.clients import HERE, Tapped, many_files, needed, snippets

ENDED_WELL = {"status": 0, "signal": 0}


class Neovim:
    """A fresh Neovim, and the daemon that it starts."""

    def __init__(self, directory: Path) -> None:
        self.program = needed("nvim")
        self.tapped = Tapped(directory)
        self.how_to = directory / "text_tools.lua"
        self.how_to.write_text(snippets("neovim.md", "lua"), "utf-8")

    def see(self, scenario: str, **environment: str) -> Any:
        """Run a scenario; return what it saw."""
        script = HERE / "neovim" / "scenarios.lua"
        client = self.tapped.run(
            [self.program, "--clean", "--headless", "-c", f"luafile {script}"],
            environment={"SCENARIO": scenario, "HOW_TO": str(self.how_to), **environment},
        )
        return self.tapped.saw(client)


@pytest.fixture
def neovim(tmp_path: Path) -> Neovim:
    return Neovim(tmp_path)


def test_requests_are_answered(neovim: Neovim) -> None:
    saw = neovim.see("requests")
    assert saw["named"] == {"lines": 2, "words": 3, "characters": 13}
    assert saw["positional"] == ["a", "b", "C"]
    assert saw["beyond_ascii"] == ["😀", "ü", "naïve"]
    assert saw["no_params"] == {"version": "1.0"}
    assert saw["handshake"]["serverInfo"] == {"name": "text", "version": "1.0"}
    assert saw["ended"] == ENDED_WELL
    assert saw["problems"] == 0
    answers = neovim.tapped.check()
    assert answers[3]["result"] == answers[4]["result"] == []
    assert b'"params":[]' in neovim.tapped.sent[3], "Neovim says an empty table as an array"


def test_errors_arrive_with_code_message_and_data(neovim: Neovim) -> None:
    saw = neovim.see("errors")
    assert saw["own"]["code"] == 1001
    assert saw["own"]["message"] == "Buffer is not open"
    assert saw["own"]["data"]["name"] == "notes"
    assert saw["params"]["code"] == -32602
    assert saw["params"]["data"]["param"] == "text"
    assert saw["method"]["code"] == -32601
    assert saw["after"]["words"] == 2
    assert saw["ended"] == ENDED_WELL
    assert saw["problems"] == 0
    neovim.tapped.check()


def test_notifications_go_both_ways(neovim: Neovim) -> None:
    saw = neovim.see("notifications")
    assert saw["opened"] == ["notes"]
    problem = {"line": 2, "message": "spaces at the end of the line"}
    assert saw["notified"] == [["text.problems", {"name": "notes", "problems": [problem]}]]
    assert saw["ended"] == ENDED_WELL
    answers = [message for message in neovim.tapped.check() if "id" in message]
    assert len(answers) == 2, "notifications are not answered, whatever is wrong with them"


def test_a_hundred_pipelined_requests_are_answered_in_order(neovim: Neovim) -> None:
    saw = neovim.see("pipelined")
    assert saw["order"] == list(range(1, 101))
    assert saw["ended"] == ENDED_WELL
    assert saw["problems"] == 0
    neovim.tapped.check()


def test_the_daemon_asks_neovim_while_neovim_waits(neovim: Neovim) -> None:
    saw = neovim.see("asked")
    assert saw["filled"] == "Dear Ada, dear Grace, dear Ada"
    assert saw["broken"]["code"] == 1002
    assert saw["broken"]["data"] == {"field": "name", "code": -32603}
    assert saw["ended"] == ENDED_WELL
    neovim.tapped.check()


def test_running_and_queued_requests_can_be_cancelled(neovim: Neovim, tmp_path: Path) -> None:
    saw = neovim.see("cancel", HAYSTACK=many_files(tmp_path))
    assert saw["after"]["words"] == 2
    assert saw["called"] is False, "Neovim keeps cancelled requests to itself"
    assert not any(message.startswith("Found") for message in saw["messages"])
    assert saw["ended"] == ENDED_WELL
    assert saw["problems"] == 0
    codes = [answer["error"]["code"] for answer in neovim.tapped.check() if "error" in answer]
    assert codes == [-32800, -32800]


def test_a_forced_stop_is_a_good_end(neovim: Neovim) -> None:
    saw = neovim.see("forced")
    assert saw["named"]["words"] == 1
    assert saw["ended"] == ENDED_WELL
    neovim.tapped.check()
    assert "SIGTERM" in neovim.tapped.log


def test_a_daemon_that_cannot_start_is_told(neovim: Neovim) -> None:
    assert neovim.see("cannot_start")["ended"] == {"status": 2, "signal": 0}
    assert "nothing.py" in neovim.tapped.log


def test_the_daemon_ends_when_neovim_does(neovim: Neovim) -> None:
    assert neovim.see("leave")["named"]["words"] == 1
    neovim.tapped.check()


def test_the_how_to_works(neovim: Neovim, tmp_path: Path) -> None:
    haystack = tmp_path / "haystack"
    haystack.mkdir()
    (haystack / "one.txt").write_text("hay\nneedle\n")
    (haystack / "two.txt").write_text("needle, hay, needle\n")
    saw = neovim.see("how_to", HAYSTACK=str(haystack))
    assert saw["diagnostic"] == [0, "spaces at the end of the line"]
    assert saw["line"] == "Dear Ada"
    assert "Searched 2 of 2 files" in saw["messages"]
    assert "Found 2 lines" in saw["messages"]
    assert saw["ended"] == ENDED_WELL
    assert saw["problems"] == 0
    neovim.tapped.check()
