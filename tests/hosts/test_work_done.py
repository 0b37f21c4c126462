"""Work done progress of LSP on every host: begin, reports, and the end ahead of the answer."""

from pathlib import Path
from typing import Any

import pytest

from tests.hosts.table import EVERY, Host, Line, over
from tests.transports.lines import notification, request

pytestmark = pytest.mark.clause("lsp-8")


def take(line: Line) -> list[dict[str, Any]]:
    """Read what is reported under the token up to the end, which must be the next messages."""
    values: list[dict[str, Any]] = []
    while not values or values[-1]["kind"] != "end":
        message = line.answer()
        assert message["method"] == "$/progress" and message["params"]["token"] == "t"
        values.append(message["params"]["value"])
    return values


REPORTED = [
    {"kind": "begin", "title": "Report progress", "percentage": 25},
    {"kind": "report", "message": "nearly: half of it"},
    {"kind": "report", "percentage": 75},
    {"kind": "report", "percentage": 75, "message": "back"},
    {"kind": "end"},
]


@over(EVERY)
def test_it_ends_before_the_result_and_the_error(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path, dialect="lsp") as line:
        for end in ("return", "fail"):
            line.write(request("report_then", {"end": end, "workDoneToken": "t"}, id=end))
            assert take(line) == REPORTED
            answer = line.answer()
            assert answer["id"] == end
            assert ("error" in answer) == (end == "fail")


@over(EVERY)
def test_it_ends_before_the_answer_to_a_cancelled_request(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path, dialect="lsp") as line:
        line.write(request("report_then", {"end": "wait", "workDoneToken": "t"}, id=1))
        for expected in REPORTED[:-1]:
            assert line.answer()["params"] == {"token": "t", "value": expected}
        line.write(notification("$/cancelRequest", {"id": 1}))
        assert take(line) == [{"kind": "end"}]
        assert line.answer()["error"]["code"] == -32800
        assert line.call("add", [1, 2])["result"] == 3, "and nothing is reported after that"


@over(EVERY)
def test_who_wants_none_gets_none(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path, dialect="lsp") as line:
        for token in ({}, *({"workDoneToken": none} for none in (None, [7], True, 1.5))):
            assert line.call("report_then", {"end": "return", **token})["result"] == "return"
        params = {"end": "return", "workDoneToken": "t", "_meta": {"progressToken": "exact"}}
        line.write(request("report_then", params, id=1))
        values = [line.answer()["params"] for _ in range(4)]
        assert values[0] == {"token": "exact", "value": {"done": 1, "total": 4}}
        assert line.answer()["result"] == "return"
        # A method that reports nothing takes the tokens all the same.
        tokens = {"workDoneToken": 1, "partialResultToken": 2}
        assert line.call("add", {"a": 1, "b": 2, **tokens})["result"] == 3
        assert line.call("add", {"a": 1, "b": 2, "c": 3})["error"]["code"] == -32602


@over(EVERY)
def test_other_dialects_know_no_such_param(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        refused = line.call("report_then", {"end": "return", "workDoneToken": "t"})
        assert refused["error"]["data"]["param"] == "workDoneToken"
