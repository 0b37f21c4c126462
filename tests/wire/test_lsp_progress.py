"""Work done progress: begin first, end once, percentages that never fall."""

import json
from math import inf
from typing import Any

import pytest

from duet_rpc.wire.lsp_progress import WorkDoneReports, describe_progress


def value(params: bytes | None) -> Any:
    assert params is not None
    decoded = json.loads(params)
    assert decoded["token"] == 7
    return decoded["value"]


def test_the_first_report_is_the_begin() -> None:
    work = WorkDoneReports(7, "Index")
    begun = {"kind": "begin", "title": "Index", "percentage": 50, "message": "half"}
    assert value(work.report(describe_progress(1, 2, "half"))) == begun
    assert value(work.report({"percentage": 100})) == {"kind": "report", "percentage": 100}
    assert value(work.end()) == {"kind": "end"}


@pytest.mark.parametrize(
    ("reported", "said"),
    [
        ((1, 3, None), {"percentage": 33}),
        ((5, 4, None), {"percentage": 100}),
        ((-1, 4, None), {"percentage": 0}),
        ((5, 0, "odd"), {"message": "odd"}),
        ((inf, inf, "odd"), {"message": "odd"}),
        ((inf, 5, None), {"percentage": 100}),
        ((5, None, None), {"message": "5"}),
        ((5, None, "files"), {"message": "files"}),
        (("linking", None, None), {"message": "linking"}),
        (({"at": 1}, 5, "so far"), {"message": '{"at":1}: so far'}),
        ((None, None, "so far"), {"message": "so far"}),
        ((None, None, None), {}),
    ],
)
def test_what_is_no_share_is_said_in_words(reported: tuple[Any, ...], said: Any) -> None:
    work = WorkDoneReports(7, "Index")
    work.begin()
    assert value(work.report(describe_progress(*reported))) == {"kind": "report", **said}


def test_a_percentage_never_falls() -> None:
    work = WorkDoneReports(7, "Index")
    shares = [
        value(work.report(describe_progress(done, 10, None)))["percentage"] for done in (2, 5, 3, 6)
    ]
    assert shares == [20, 50, 50, 60]


def test_nothing_comes_after_the_end_and_no_end_without_a_begin() -> None:
    work = WorkDoneReports(7, "Index")
    assert work.end() is None
    assert work.report({}) is None
    work = WorkDoneReports(7, "Index")
    work.begin(cancellable=True)
    assert value(work.end("done")) == {"kind": "end", "message": "done"}
    assert work.end() is None
    assert work.report({}) is None
