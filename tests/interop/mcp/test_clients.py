"""One table: what a client of MCP may ask for, with every official client as a column.

`make mcp-clients` makes their environments. The clients are unmodified and talk to `duet-rpc mcp`
over stdio; what they talk to is `service.py`.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.interop.mcp.clients import (
    COLUMNS,
    INSPECTORS,
    Column,
    find_command,
    inspect,
    run_client,
    tour,
)

pytestmark = pytest.mark.timeout(120)

DOT = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAABQABpfZFQAAAAABJRU5E"
    "rkJggg=="
)
TOOLS = [
    *("lab_add", "lab_climb", "lab_come_down", "lab_count", "lab_count_effects", "lab_deposit"),
    *("lab_echo", "lab_fail", "lab_hang", "lab_hang_in_thread", "lab_mixed", "lab_picture"),
    *("lab_slow_deposit", "lab_state"),
]
REPORT = {
    "words": 4,
    "longest": "größer",
    "letters": {"a": 1, "e": 1, "g": 1, "l": 1, "r": 2, "s": 1, "ß": 1, "ö": 1},
}


# What each case has to look like.


def check_opening(column: Column, saw: Any) -> None:
    assert saw["version"] == column.revision
    if column.mode == column.revision and saw["server"]["info"] is None:
        return  # pinned, it has not asked who we are
    said = saw["server"]
    if said["info"]["name"] != "lab":
        assert column.mode == column.revision, "only a client that did not ask makes a name up"
        return
    assert said["info"]["version"] == "1.2.3"
    assert said["info"]["title"] == "Laboratory"
    assert said["instructions"] == "Amounts are in cents."
    assert {"tools", "resources", "prompts", "logging"} <= said["capabilities"].keys()


def check_tools(column: Column, saw: Any) -> None:
    tools = {tool["name"]: tool for tool in saw["tools"]}
    names = list(tools)
    assert [name for name in names if name.startswith("lab_")] == TOOLS
    assert names == sorted(names)
    assert all(tool["description"] for tool in saw["tools"])
    assert all(tool["inputSchema"]["type"] == "object" for tool in saw["tools"])
    hints = tools["lab_add"]["annotations"]
    assert (hints["readOnlyHint"], hints["destructiveHint"]) == (True, False)
    hints = tools["lab_deposit"]["annotations"]
    assert (hints["readOnlyHint"], hints["destructiveHint"]) == (False, True)
    assert tools["lab_slow_deposit"]["annotations"]["destructiveHint"] is False
    assert tools["lab_add"]["title"] == "Add two numbers"
    assert "idempotency_key" in tools["lab_deposit"]["inputSchema"]["properties"]
    assert tools["lab_count"]["outputSchema"]["required"] == ["words", "longest", "letters"]


def text_of(saw: Any) -> str:
    assert saw["isError"] is True
    assert "structuredContent" not in saw
    text: str = saw["content"][0]["text"]
    return text


def is_value(value: Any, text: str) -> Callable[[Column, Any], None]:
    def check(column: Column, saw: Any) -> None:
        assert saw["structuredContent"] == value
        assert saw["content"] == [{"type": "text", "text": text}]
        assert not saw.get("isError")

    return check


def check_structured(column: Column, saw: Any) -> None:
    assert saw["structuredContent"] == REPORT
    assert json.loads(saw["content"][0]["text"]) == REPORT


def check_bad_arguments(column: Column, saw: Any) -> None:
    first, *rest = text_of(saw).splitlines()
    assert first.startswith("Invalid arguments: a has to be integer")
    assert rest == ["Nothing was done. Correct the arguments and call the tool again."]


def check_declared_error(column: Column, saw: Any) -> None:
    first, data = text_of(saw).splitlines()
    assert first == "No such account"
    assert json.loads(data) == {"account": "nobody", "known": ["ada"]}


def check_unforeseen_error(column: Column, saw: Any) -> None:
    text = text_of(saw)
    assert text.startswith("Internal error: The tool has failed. Reference: ")
    assert "hunter2" not in json.dumps(saw)


def is_error(code: int, message: str) -> Callable[[Column, Any], None]:
    def check(column: Column, saw: Any) -> None:
        assert "raised" in saw
        assert saw["code"] == code
        assert message in saw["message"]

    return check


def check_picture(column: Column, saw: Any) -> None:
    assert saw["content"] == [{"type": "image", "data": DOT, "mimeType": "image/png"}]
    assert "structuredContent" not in saw


def check_mixed(column: Column, saw: Any) -> None:
    text, image, link = saw["content"]
    assert (text["text"], image["data"]) == ("one dot:", DOT)
    assert (link["type"], link["uri"], link["name"]) == ("resource_link", "lab://readme", "readme")


def check_many(column: Column, saw: Any) -> None:
    assert saw == [f"v{number}" for number in range(50)]


def check_progress(column: Column, saw: Any) -> None:
    assert saw["reports"] == [[step, 4, f"step {step}"] for step in range(1, 5)]
    assert saw["result"] == {"result": "down again"}


def check_cancel(column: Column, saw: Any) -> None:
    assert (saw["began"], saw["ended"]) == ("running", "ended")
    assert saw["after"]["structuredContent"] == {"result": 5}
    server = tour(column).server
    [id] = [
        each["id"]
        for each in server.sent
        if each.get("method") == "tools/call" and each["params"]["name"] == "lab_hang"
    ]
    cancelled = [
        each["params"]["requestId"]
        for each in server.sent
        if each.get("method") == "notifications/cancelled"
    ]
    assert id in cancelled
    assert not [each for each in server.said if each.get("id") == id], "it gets no answer"


def check_repeat(column: Column, saw: Any) -> None:
    assert saw["first"] != "answered"
    assert saw["second"] == saw["third"] == {"name": "hasty", "cents": 5}
    assert saw["effects"] == 1
    assert "used for a call with other arguments" in text_of(saw["other"])


def check_resources(column: Column, saw: Any) -> None:
    listed = [(each["uri"], each["name"], each["mimeType"]) for each in saw["resources"]]
    assert listed == [("lab://dot", "dot", "image/png"), ("lab://readme", "readme", "text/plain")]


def check_templates(column: Column, saw: Any) -> None:
    listed = [each["uriTemplate"] for each in saw["resourceTemplates"]]
    assert listed == ["lab://accounts/{name}", "lab://squares/{number}"]


def check_read(column: Column, saw: Any) -> None:
    readme, dot, account, square = [each["contents"][0] for each in saw]
    assert readme == {"uri": "lab://readme", "mimeType": "text/plain", "text": "A laboratory.\n"}
    assert dot == {"uri": "lab://dot", "mimeType": "image/png", "blob": DOT}
    assert json.loads(account["text"]) == {"name": "ada", "cents": 100}
    assert square["text"] == "144"


def check_read_missing(column: Column, saw: Any) -> None:
    assert "raised" in saw
    assert "Resource not found" in saw["message"]
    assert saw["data"] == {"uri": "lab://nothing"}
    # On the wire: one of the clients gives the old code the number of the new one.
    said = [each["error"]["code"] for each in tour(column).server.said if "error" in each]
    assert (-32002 in said) is not column.is_modern


def check_prompts(column: Column, saw: Any) -> None:
    review, talk = saw["prompts"]
    code, strict = review["arguments"]
    assert (review["name"], talk["name"]) == ("review", "talk")
    assert code == {"name": "code", "description": "What to review", "required": True}
    assert (strict["name"], strict["required"]) == ("strict", False)


def check_prompt(column: Column, saw: Any) -> None:
    review, talk = saw
    [message] = review["messages"]
    assert message["content"]["text"] == "Review this strictly: x = 1"
    first, second = talk["messages"]
    assert (first["role"], first["content"]["text"]) == ("user", "Let us talk about tea.")
    assert (second["role"], second["content"]["data"]) == ("assistant", DOT)


def check_gone(column: Column, saw: Any) -> None:
    """A method that the newest revision does not have: some clients do not even send it."""
    if column.is_modern:
        assert "raised" in saw
        assert saw.get("code") in (-32601, "METHOD_NOT_SUPPORTED_BY_PROTOCOL_VERSION", None)
    else:
        assert saw == {}


CASES: dict[str, Callable[[Column, Any], None]] = {
    "opening": check_opening,
    "tools": check_tools,
    "call": is_value({"result": 5}, "5"),
    "defaults": is_value({"result": 3}, "3"),
    "structured": check_structured,
    "bad_arguments": check_bad_arguments,
    "declared_error": check_declared_error,
    "unforeseen_error": check_unforeseen_error,
    "unknown_tool": is_error(-32602, "Unknown tool: lab_nothing"),
    "picture": check_picture,
    "mixed": check_mixed,
    "many": check_many,
    "progress": check_progress,
    "cancel": check_cancel,
    "repeat": check_repeat,
    "resources": check_resources,
    "templates": check_templates,
    "read": check_read,
    "read_missing": check_read_missing,
    "prompts": check_prompts,
    "prompt": check_prompt,
    "prompt_without_argument": is_error(-32602, "code has to be string, but nothing came"),
    "set_level": check_gone,
    "ping": check_gone,
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("column", COLUMNS, ids=str)
def test_a_client_sees(column: Column, case: str) -> None:
    CASES[case](column, tour(column).saw[case])


@pytest.mark.parametrize("column", COLUMNS, ids=str)
def test_nothing_but_messages_is_on_stdout(column: Column) -> None:
    for server in tour(column).servers:
        assert server.said
        assert "stray" not in server.stdout
        assert "stray: at import" in server.log
    log = tour(column).server.log
    for place in ("without a newline", "to the first stdout", "to the descriptor", "from a child"):
        assert f"stray: {place}" in log
    assert "stray: in a handler" in log


@pytest.mark.parametrize("column", COLUMNS, ids=str)
def test_each_request_has_one_answer(column: Column) -> None:
    for server in tour(column).servers:
        asked = [each["id"] for each in server.sent if "id" in each]
        answered = [each["id"] for each in server.said if "id" in each]
        cancelled = [
            each["params"]["requestId"]
            for each in server.sent
            if each.get("method") == "notifications/cancelled"
        ]
        assert len(set(asked)) == len(asked)
        assert len(set(answered)) == len(answered)
        assert set(asked) - set(cancelled) <= set(answered) <= set(asked)


@pytest.mark.parametrize("column", COLUMNS, ids=str)
def test_the_server_ends_with_its_input(column: Column) -> None:
    run = tour(column)
    assert run.server.status == 0, run.server.log
    assert run.server.signals == []
    assert run.server.lasted is not None and run.server.lasted < 1
    probes = column.driver == "client2.mjs" and column.is_modern
    assert len(run.servers) == 1 + probes, "one client asks another process first"
    for probed in run.servers[:-1]:
        assert probed.status == 0, probed.log


@pytest.mark.parametrize("column", COLUMNS, ids=str)
def test_the_server_ends_while_tools_run(column: Column) -> None:
    run = run_client(find_command(column.driver), ["leave", column.mode])
    assert run.saw == ["running", "running"]
    assert run.server.status == 0, run.server.log
    assert run.server.signals == []
    assert run.server.lasted is not None and run.server.lasted < 1
    assert run.server.said


# The Inspector sends one request and is gone.


def one(check: Callable[[Column, Any], None]) -> Callable[[Column, Any], None]:
    """Check one of several things that the other clients show at once."""

    def check_one(column: Column, saw: Any) -> None:
        check(column, saw["contents"][0])

    return check_one


def is_dot(column: Column, saw: Any) -> None:
    assert saw == {"uri": "lab://dot", "mimeType": "image/png", "blob": DOT}


def is_review(column: Column, saw: Any) -> None:
    assert saw["messages"][0]["content"]["text"] == "Review this: x"


def call_with(tool: str, **arguments: Any) -> list[str]:
    return ["tools/call", "--tool-name", tool, "--tool-args-json", json.dumps(arguments)]


Inspected = tuple[list[str], int, Callable[[Column, Any], None]]
INSPECTED: dict[str, Inspected] = {
    "tools": (["tools/list", "--strict"], 0, check_tools),
    "call": (call_with("lab_add", a=2, b=3), 0, is_value({"result": 5}, "5")),
    "structured": (call_with("lab_count", text="größer als 1 \U0001f600"), 0, check_structured),
    "bad_arguments": (call_with("lab_add", a=[2]), 5, check_bad_arguments),
    "declared_error": (
        call_with("lab_deposit", account="nobody", cents=5),
        5,
        check_declared_error,
    ),
    "unforeseen_error": (call_with("lab_fail"), 5, check_unforeseen_error),
    "picture": (call_with("lab_picture"), 0, check_picture),
    "mixed": (call_with("lab_mixed"), 0, check_mixed),
    "resources": (["resources/list"], 0, check_resources),
    "templates": (["resources/templates/list"], 0, check_templates),
    "read": (["resources/read", "--uri", "lab://dot"], 0, one(is_dot)),
    "prompts": (["prompts/list"], 0, check_prompts),
    "prompt": (
        ["prompts/get", "--prompt-args", "code=x", "--prompt-name", "review"],
        0,
        is_review,
    ),
}


@pytest.mark.parametrize("case", INSPECTED)
@pytest.mark.parametrize("column", INSPECTORS, ids=str)
def test_the_inspector_sees(column: Column, case: str) -> None:
    options, status, check = INSPECTED[case]
    run = inspect(column, "--method", *options)
    assert run.status == status, run.stderr
    check(column, run.saw["result"])
    for server in run.servers:
        assert server.status == 0, server.log
        assert server.said
        assert "stray" not in server.stdout


def test_the_inspector_finds_no_fault_with_the_schemas() -> None:
    run = inspect(INSPECTORS[0], "--method", "tools/list", "--strict")
    said = [line for line in run.stderr.splitlines() if "ortab" in line]
    assert said == [], "it reports schemas that some host refuses"
