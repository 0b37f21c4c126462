"""Official clients drive tasks: the Python SDK 1, and the package `ext-tasks` in both forms."""

from typing import Any

import pytest

from tests.interop.mcp.clients import HERE, MODERN, find_command, find_node, run_client

pytestmark = pytest.mark.timeout(120)
SLOW = {"name": "ada", "cents": 105}


def methods(sent: list[dict[str, Any]]) -> list[str]:
    return [message["method"] for message in sent]


@pytest.mark.clause("tasks-1")
def test_the_python_sdk_creates_polls_lists_and_takes_the_result() -> None:
    python = find_command("sdk1")[0]
    run = run_client([python, str(HERE / "sdk1" / "tasks.py")], [])
    saw = run.saw
    assert saw["capabilities"] == {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
    id = saw["made"]["taskId"]
    assert saw["polled"][-1] == "completed"
    assert saw["result"]["structuredContent"] == SLOW
    assert (saw["again"]["taskId"], saw["again"]["status"]) == (id, "completed")
    assert [each["taskId"] for each in saw["listed"]] == [id]
    assert saw["cancelled"] == -32602


@pytest.mark.clause("tasks-1")
@pytest.mark.parametrize("mode", ["legacy", MODERN])
def test_the_package_for_tasks_calls_a_tool_to_its_end(mode: str) -> None:
    run = run_client([str(find_node()), str(HERE / "node" / "tasks.mjs")], [mode])
    done, failed = run.saw
    assert done["structuredContent"] == SLOW
    # In the first form a tool that failed is a failed task, whose result it does not ask for.
    said = failed["content"][0]["text"] if mode == MODERN else failed["raised"]
    assert said.startswith("No such account")
    asked = methods(run.server.sent)
    assert asked.count("tools/call") == 2
    assert asked.count("tasks/get") >= 2
    assert asked.count("tasks/result") == (mode != MODERN)
