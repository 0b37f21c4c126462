"""vscode-jsonrpc on Node drives the daemon, through the code that docs/vscode.md shows."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.interop.clients import (
    HERE,
    NODE_PACKAGES,
    ROOT,
    Tapped,
    many_files,
    needed,
    snippets,
)

NODE = HERE / "node"
LIBRARY = NODE / "node_modules" / "vscode-jsonrpc"
ENDED_WELL = {"code": 0, "signal": None}


class Node:
    """A fresh Node, and the daemon that it starts."""

    def __init__(self, directory: Path) -> None:
        self.program = needed("node")
        if not LIBRARY.is_dir():
            pytest.skip(NODE_PACKAGES)
        self.tapped = Tapped(directory)
        self.how_to = directory / "how-to"
        self.how_to.mkdir()
        for block in re.split(r"(?m)^(?=// [\w-]+\.js$)", snippets("vscode.md", "javascript"))[1:]:
            name = block.splitlines()[0].removeprefix("// ")
            (self.how_to / name).write_text(block, "utf-8")

    def see(self, scenario: str, **environment: str) -> Any:
        """Run a scenario; return what it saw."""
        places = os.pathsep.join([str(LIBRARY.parent), str(NODE / "stubs")])
        client = self.tapped.run(
            [self.program, str(NODE / "scenarios.js"), str(self.how_to), scenario],
            environment={"NODE_PATH": places, **environment},
        )
        return self.tapped.saw(client)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture
def haystack(tmp_path: Path) -> str:
    folder = tmp_path / "haystack"
    folder.mkdir()
    (folder / "one.txt").write_text("hay\nneedle\n")
    (folder / "two.txt").write_text("needle, hay, needle\n")
    return str(folder)


def test_requests_are_answered(node: Node) -> None:
    saw = node.see("requests")
    assert saw["named"] == {"lines": 2, "words": 3, "characters": 13}
    assert saw["positional"] == ["a", "b", "C"]
    assert saw["beyondAscii"] == ["😀", "ü", "naïve"]
    assert saw["noParams"] == {"version": "1.0"}
    assert saw["handshake"]["serverInfo"] == {"name": "text", "version": "1.0"}
    assert saw["ended"] == ENDED_WELL
    answers = node.tapped.check()
    assert answers[0]["id"] == 0, "its first id is zero"


def test_errors_arrive_with_code_message_and_data(node: Node) -> None:
    saw = node.see("errors")
    own = {"code": 1001, "message": "Buffer is not open", "data": {"name": "notes", "open": []}}
    assert saw["own"] == own
    received = {"param": "text", "expected": "string", "received": "integer"}
    assert saw["params"] == {"code": -32602, "message": "Invalid params", "data": received}
    assert saw["nullParams"]["code"] == -32602
    assert saw["method"]["code"] == -32601
    assert saw["after"]["words"] == 2
    assert saw["ended"] == ENDED_WELL
    node.tapped.check()


@pytest.mark.parametrize("policy", ["editor", "agent"])
def test_a_thousand_concurrent_requests_are_answered(node: Node, policy: str) -> None:
    saw = node.see("concurrent", OPTIONS=f"--policy {policy}")
    assert saw["results"] == list(range(1000))
    if policy == "editor":
        assert saw["order"] == list(range(1000))
    assert saw["ended"] == ENDED_WELL
    assert len(node.tapped.check()) == 1001


@pytest.mark.parametrize("policy", ["editor", "agent"])
def test_running_and_queued_requests_can_be_cancelled(
    node: Node, tmp_path: Path, policy: str
) -> None:
    saw = node.see("cancel", OPTIONS=f"--policy {policy}", HAYSTACK=many_files(tmp_path))
    cancelled = {"code": -32800, "message": "Request cancelled", "data": {"reason": "cancelled"}}
    assert saw["running"] == cancelled
    # Where several requests run at once this one does not queue, and its result may be first.
    assert saw["queued"] == cancelled or policy == "agent"
    assert saw["behind"]["words"] == 2
    assert saw["late"]["words"] == 1
    assert saw["after"]["words"] == 3
    assert saw["ended"] == ENDED_WELL
    node.tapped.check()


@pytest.mark.parametrize("policy", ["editor", "agent"])
def test_both_sides_call_and_notify_each_other(node: Node, policy: str) -> None:
    saw = node.see("both_ways", OPTIONS=f"--policy {policy}")
    problem = {"line": 2, "message": "spaces at the end of the line"}
    assert saw["notified"] == [{"name": "notes", "problems": [problem]}]
    assert saw["unhandled"] == []
    assert saw["opened"] == ["notes"]
    assert saw["filled"] == "Ada4, Grace5, Ada4"
    assert saw["refused"]["code"] == 1002
    assert saw["refused"]["data"] == {"field": "age", "code": 4711}
    assert saw["ended"] == ENDED_WELL
    node.tapped.check()


def test_a_request_that_the_client_does_not_know_is_refused(node: Node) -> None:
    saw = node.see("unhandled")
    assert saw["refused"]["code"] == 1002
    assert saw["refused"]["data"] == {"field": "name", "code": -32601}
    assert saw["ended"] == ENDED_WELL
    node.tapped.check()


def test_progress_arrives_before_the_result(node: Node, haystack: str) -> None:
    saw = node.see("progress", HAYSTACK=haystack)
    assert saw["steps"] == [{"done": 1, "of": 2, "found": 1}, {"done": 2, "of": 2, "found": 2}]
    assert [(match["file"], match["line"]) for match in saw["matches"]] == [
        ("one.txt", 2),
        ("two.txt", 1),
    ]
    assert saw["ended"] == ENDED_WELL
    node.tapped.check()


def test_header_and_body_may_come_in_two_writes(node: Node) -> None:
    saw = node.see("two_writes")
    assert saw["words"] == [1, 2, 3]
    assert saw["writes"] == ["header", "body"] * 4
    assert saw["ended"] == ENDED_WELL
    node.tapped.check()


@pytest.mark.parametrize("scenario", ["end_of_input", "killed_by_term"])
def test_the_daemon_ends_well_without_shutdown(node: Node, scenario: str) -> None:
    saw = node.see(scenario)
    assert saw["count"]["words"] == 1
    assert saw["ended"] == ENDED_WELL
    node.tapped.check()


def test_exit_may_follow_shutdown(node: Node) -> None:
    saw = node.see("exit")
    assert saw["answer"] == {"message": "Shutting down gracefully"}
    assert saw["ended"] == ENDED_WELL
    node.tapped.check()


def test_a_daemon_that_cannot_start_is_told(node: Node) -> None:
    saw = node.see("cannot_start")
    assert saw["refused"].keys() != {"unexpected"}
    assert saw["ended"] == {"code": 2, "signal": None}
    assert "nothing.py" in saw["log"]
    assert node.tapped.status == 2


def test_the_daemon_without_a_service_has_its_own_methods(node: Node) -> None:
    saw = node.see("builtin")
    assert saw["handshake"]["serverInfo"]["name"] == "duet-rpc"
    assert saw["handshake"]["protocolVersion"] == "2.0"
    assert {"initialize", "listMethods", "shutdown", "version"} <= set(saw["methods"])
    assert saw["level"] == {"level": "warn", "success": True}
    assert saw["wrong"]["code"] == -32602
    assert saw["wrong"]["data"]["accepted"] == ["debug", "info", "warn", "error"]
    assert saw["openrpc"].startswith("1.")
    assert saw["ended"] == ENDED_WELL
    node.tapped.check()


def test_the_extension_of_the_how_to_works(node: Node, haystack: str) -> None:
    saw = node.see("extension", HAYSTACK=haystack)
    assert saw["messages"] == ["2 lines, 3 words"]
    assert [found["message"] for found in saw["problems"]["notes"]] == [
        "spaces at the end of the line"
    ]
    assert saw["filled"] == "Dear Ada"
    assert saw["errors"] == ["The editor gave no value (1002)"]
    assert len(saw["matches"]) == 2
    assert saw["progress"][:2] == ["1 of 2 files", "2 of 2 files"]
    assert "started" in saw["output"]
    manifest = json.loads(snippets("vscode.md", "json"))
    assert {entry["command"] for entry in manifest["contributes"]["commands"]} <= set(
        saw["commands"]
    )
    wanted = json.loads((NODE / "package.json").read_text())["dependencies"]["vscode-jsonrpc"]
    assert manifest["dependencies"]["vscode-jsonrpc"] == wanted
    node.tapped.check()


def test_the_conversation_can_be_traced(node: Node) -> None:
    saw = node.see("trace")
    assert "Sending request 'text.count" in saw["log"]
    assert "Received response 'text.count" in saw["log"]
    assert saw["ended"] == ENDED_WELL
    node.tapped.check()


def test_the_how_to_names_the_version_that_is_tested() -> None:
    tested = json.loads((LIBRARY / "package.json").read_text()) if LIBRARY.is_dir() else {}
    wanted = json.loads((NODE / "package.json").read_text())["dependencies"]["vscode-jsonrpc"]
    assert f"vscode-jsonrpc {wanted}" in (ROOT / "docs" / "vscode.md").read_text("utf-8")
    assert tested.get("version", wanted) == wanted
