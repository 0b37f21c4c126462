"""How each dialect spells cancellation and progress, written and read."""

from typing import Any

import msgspec
import pytest

from duet_rpc.errors import UsageError
from duet_rpc.wire.dialect import JSONRPC, LSP, MCP, Dialect, Progress, find_dialect

BOTH = pytest.mark.parametrize("dialect", [JSONRPC, MCP], ids=["jsonrpc", "mcp"])


def reported(dialect: Dialect, *report: Any) -> Any:
    """Write a report and read it, as the two ends do."""
    done, total, message = (*report, None, None)[:3]
    params, _ = dialect.spell_progress(7, done, total, message, None)
    read = dialect.read_progress(msgspec.json.encode(params))
    assert read is not None and read[0] == 7
    return dialect.decode_progress(read[1])


def spelled(dialect: Dialect, *reports: Any) -> list[Any]:
    """Write the reports of one request, one after the other."""
    last, found = None, []
    for report in reports:
        params, last = dialect.spell_progress("t", report, None, None, last)
        found.append(params)
    return found


def test_the_shapes() -> None:
    assert msgspec.json.decode(JSONRPC.encode_cancel(7)) == {"id": 7}
    told = msgspec.json.decode(MCP.encode_cancel(7))
    assert told.pop("requestId") == 7
    assert list(told) == ["reason"]
    params, _ = MCP.spell_progress("t", 3, 10, "third page", None)
    assert params == {"progressToken": "t", "progress": 3, "total": 10, "message": "third page"}
    assert JSONRPC.spell_progress("t", {"any": 1}, None, None, None)[0] == {
        "token": "t",
        "value": {"any": 1},
    }


@BOTH
def test_a_cancellation_is_read_as_it_is_written(dialect: Dialect) -> None:
    assert dialect.read_cancel(dialect.encode_cancel(12)) == b"12"
    raw = b'{"%b":"a\\u00e9","x":1}' % dialect.cancel_id.encode()
    assert dialect.read_cancel(raw) == b'"a\\u00e9"'


@BOTH
@pytest.mark.parametrize("params", [None, b"{}", b"[]", b"[7]", b"null", b'{"ID":7}'])
def test_a_cancellation_that_names_no_request_is_told_apart(
    dialect: Dialect, params: bytes | None
) -> None:
    assert dialect.read_cancel(params) is None


@BOTH
@pytest.mark.parametrize("report", [(3,), (0.5,), (3, 10), (3, 10, "third"), (3, None, "third")])
def test_what_one_end_reports_the_other_end_gets(dialect: Dialect, report: tuple[Any, ...]) -> None:
    assert reported(dialect, *report) == Progress(*report)


@pytest.mark.parametrize(
    ("value", "progress"),
    [
        ({"kind": "begin", "title": "Indexing", "percentage": 0}, Progress(0, 100, "Indexing")),
        (
            {"kind": "begin", "title": "Indexing", "message": "a"},
            Progress(None, None, "Indexing: a"),
        ),
        ({"kind": "report", "percentage": 40, "message": "b"}, Progress(40, 100, "b")),
        ({"kind": "end"}, Progress()),
        ({"done": 1, "total": "ten", "message": 7}, Progress(1)),
        ({"done": 1, "pages": 3}, Progress({"done": 1, "pages": 3})),
        ({"at": 1}, Progress({"at": 1})),
        ([1], Progress([1])),
        (None, Progress()),
    ],
)
def test_reports_of_other_servers(value: Any, progress: Progress) -> None:
    members = {"value": msgspec.Raw(msgspec.json.encode(value))}
    assert JSONRPC.decode_progress(members) == LSP.decode_progress(members) == progress


@BOTH
@pytest.mark.parametrize(
    "params", [None, b"{}", b"[]", b'{"token":"x","progressToken":"x"}', b'{"value":1}']
)
def test_a_report_under_no_token_of_ours_is_none(dialect: Dialect, params: bytes | None) -> None:
    assert dialect.read_progress(params) is None


def test_mcp_reports_grow_or_are_dropped() -> None:
    grown = spelled(MCP, 1, 1, 0.5, 2, float("inf"), 2.5)
    assert [params and params["progress"] for params in grown] == [1, None, None, 2, None, 2.5]
    assert None not in spelled(JSONRPC, 1, 1, 0)


def test_mcp_says_what_is_no_number_in_words() -> None:
    assert spelled(MCP, "reading", {"done": 1}, True, 10**400) == [
        {"progressToken": "t", "progress": 0, "message": "reading"},
        {"progressToken": "t", "progress": 1, "message": '{"done":1}'},
        {"progressToken": "t", "progress": 2, "message": "true"},
        {"progressToken": "t", "progress": 3, "message": "1" + "0" * 400},
    ]


def test_dialects_are_found_by_name() -> None:
    assert [find_dialect(name) for name in ("jsonrpc", "lsp", "mcp")] == [JSONRPC, LSP, MCP]
    assert find_dialect(MCP) is MCP
    for wrong in ("smoke", None, 7):
        with pytest.raises(UsageError, match='"jsonrpc", "lsp", "mcp" or a Dialect'):
            find_dialect(wrong)  # type: ignore[arg-type]
