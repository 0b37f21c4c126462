"""Streams on every host: those on a loop send items as they are granted, the others the list."""

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.table import (
    ANSWERING,
    BLOCKING,
    BLOCKING_PIPES,
    EVERY,
    EXCHANGE,
    MESSAGE_LINK,
    ONE_AT_A_TIME,
    Host,
    Line,
    over,
    steps,
)
from tests.transports.lines import PATIENCE, notification, request

LISTING = (ONE_AT_A_TIME, BLOCKING, BLOCKING_PIPES)
"""The first serves no `async def`; a blocking client runs each of them in a loop of its own."""


def asking(window: int, **params: Any) -> dict[str, Any]:
    return {"_meta": {"stream": {"window": window}}, **params}


def more(id: Any, items: int) -> bytes:
    return notification("$/more", {"stream": id, "items": items})


def take(line: Line, id: Any, first: int, last: int) -> None:
    """Read these items, which must be the next messages."""
    for seq in range(first, last + 1):
        message = line.answer()
        expected = {"stream": id, "seq": seq, "value": seq - 1}
        assert (message["method"], message["params"]) == ("$/item", expected)


@over(ANSWERING, without=[ONE_AT_A_TIME])
def test_a_caller_that_asks_for_no_stream_gets_the_list(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        assert line.call("stream", {"n": 3})["result"] == [0, 1, 2]
        assert line.call("stream", [0])["result"] == []
        assert line.call("stream", {"n": 3, "fail_at": 1})["error"]["code"] == -32603
        for asks in ({"window": 0}, {"window": "1"}, 7, {}, {"window": None}):
            params = {"n": 2, "_meta": {"stream": asks}}
            assert line.call("stream", params)["result"] == [0, 1]


@over([EXCHANGE, BLOCKING, BLOCKING_PIPES])
def test_hosts_without_streams_give_the_list(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        assert line.call("stream", asking(1, n=3))["result"] == [0, 1, 2]


@over(EVERY, without=LISTING)
def test_mcp_gets_the_list(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path, dialect="mcp") as line:
        assert line.call("stream", asking(1, n=3))["result"] == [0, 1, 2]


@over(EVERY, without=LISTING)
def test_items_come_as_they_are_granted(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        line.write(request("stream", asking(2, n=10), id="a"))
        take(line, "a", 1, 2)
        assert line.call("add", [1, 2])["result"] == 3, "and no further item before that"
        line.write(more("other", 5) + more("a", 3))
        take(line, "a", 3, 5)
        line.write(more("a", 1) + more("a", 100))
        take(line, "a", 6, 10)
        assert line.answer() == {"jsonrpc": "2.0", "id": "a", "result": {"items": 10}}
        line.write(more("a", 1))
        assert line.call("add", [1, 2])["result"] == 3, "a late grant is no fault"
        assert "refused" not in line.log


@over(EVERY, without=LISTING)
def test_an_error_in_the_middle_is_the_answer(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        line.write(request("stream", asking(9, n=5, fail_at=3), id=1))
        take(line, 1, 1, 3)
        assert line.answer()["error"]["code"] == -32603
        line.write(request("stream", asking(9, n=0), id=1))
        assert line.answer()["result"] == {"items": 0}


@over(EVERY, without=LISTING)
@pytest.mark.parametrize("policy", ["spec", "editor"])
def test_a_stream_is_cancelled_wherever_it_is(host: Host, policy: str, tmp_path: Path) -> None:
    with host.serve(tmp_path, preset=policy) as line:
        for taken in (0, 1, 2, 5):
            line.write(request("stream", asking(max(1, taken), n=100), id=taken + 1))
            take(line, taken + 1, 1, taken)
            line.write(notification("$/cancelRequest", {"id": taken + 1}))
            message = line.answer()
            while "method" in message:
                message = line.answer()
            assert message["error"]["code"] == -32800
        assert line.call("add", [1, 2])["result"] == 3


@over(EVERY, without=LISTING)
def test_more_streams_than_slots(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path, max_in_flight=1) as line:
        for id in range(1, 9):
            line.write(request("stream", asking(1, n=2), id=id))
            take(line, id, 1, 1)
        for id in range(1, 9):
            line.write(more(id, 5))
            take(line, id, 2, 2)
            assert line.answer()["result"] == {"items": 2}


@over(EVERY, without=[*LISTING, MESSAGE_LINK])  # whose carrier, in these tests, waits until we read
def test_a_reader_that_does_not_read_stops_the_generator(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        line.write(request("stream_large", asking(1024, n=1000), id=1))
        line.wait_for_log("large stream begins")
        line.write(notification("$/cancelRequest", {"id": 1}))
        ended = line.wait_for_log("large stream ended at")
        assert int(ended.rpartition(" ")[2]) < 500
        message = line.answer()
        count = 0
        while "method" in message:
            count += 1
            assert message["params"]["seq"] == count
            message = line.answer()
        assert message["error"]["code"] == -32800


@over(EVERY, without=LISTING)
def test_a_caller_that_goes_away_ends_its_streams(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        line.write(request("stream", asking(3, n=10), id=1))
        take(line, 1, 1, 3)
        line.channel.close()
        line.wait_for_log("stream ended at 2")


@over([host for host in EVERY if host.kind in ("daemon", "listener")], without=LISTING)
def test_a_server_that_shuts_down_ends_its_streams(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        line.write(request("stream", asking(3, n=10), id=1))
        take(line, 1, 1, 3)
        line.process.send_signal(signal.SIGTERM)
        while line.answer() is not None:
            pass
        assert line.process.wait(PATIENCE) == 0
        line.wait_for_log("stream ended at 2")


@over(EVERY, without=LISTING)
def test_partial_results_of_lsp(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path, dialect="lsp") as line:
        line.write(request("stream", {"n": 3, "partialResultToken": "t"}, id=1))
        for number in range(3):
            message = line.answer()
            assert message["method"] == "$/progress"
            assert message["params"] == {"token": "t", "value": [number]}
        assert line.answer()["result"] == []
        assert line.call("stream", {"n": 3})["result"] == [0, 1, 2]


@pytest.mark.clause("streams-5")
@over(EVERY, without=LISTING)
def test_what_is_no_token_asks_for_no_partial_results(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path, dialect="lsp") as line:
        for token in (None, True, 1.5, [1], {"a": 1}):
            answer = line.call("stream", {"n": 3, "partialResultToken": token})
            assert answer["result"] == [0, 1, 2]


@over(EVERY, without=LISTING)
def test_partial_results_of_handlers_that_take_params_in_other_ways(
    host: Host, tmp_path: Path
) -> None:
    with host.serve(tmp_path, dialect="lsp") as line:
        line.write(request("stream_whole", {"n": 1, "partialResultToken": 7}, id=1))
        assert line.answer()["params"] == {"token": 7, "value": [0]}
        assert line.answer()["result"] == []
        assert line.call("stream_whole", {"n": 2})["result"] == [0, 1]
        params = {"n": 1, "partialResultToken": "mine"}
        assert line.call("stream_token", params)["result"] == ["mine 0"]


OPEN = ["open", "open inner"]
CLOSE = ["close inner", "done", "close"]


def told(line: Line, before: int) -> list[str]:
    """List what a dependency and the stream inside it have said since then."""
    return [each.removesuffix(" stream_visit") for each in steps(line)[before:]]


@over(EVERY, without=LISTING)
@pytest.mark.clause("dependencies-10")
def test_a_dependency_is_open_while_its_handler_yields(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        line.write(request("stream_visit", asking(2, n=3), id="a"))
        take(line, "a", 1, 2)
        assert line.call("add", [1, 2])["result"] == 3
        assert told(line, 0) == [*OPEN, "use", "use"], "it stays open while no item is granted"
        line.write(more("a", 5))
        take(line, "a", 3, 3)
        assert line.answer()["result"] == {"items": 3}
        # It is closed before the answer leaves.
        assert told(line, 0) == [*OPEN, "use", "use", "use", "use ends", *CLOSE]


@over(EVERY, without=[ONE_AT_A_TIME])
@pytest.mark.clause("dependencies-10")
def test_a_dependency_of_a_list_of_items(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        assert line.call("stream_visit", {"n": 2})["result"] == [0, 1]
        assert told(line, 0) == [*OPEN, "use", "use", "use ends", *CLOSE]


@over(EVERY, without=LISTING)
@pytest.mark.clause("dependencies-10")
def test_a_dependency_sees_how_its_stream_ended(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        for id, (fails, code) in enumerate((("permission", 403), ("lookup", 404)), 1):
            before = len(steps(line))
            line.write(request("stream_visit", asking(9, n=1, fails=fails), id=id))
            take(line, id, 1, 1)
            assert line.answer()["error"]["code"] == code
            said = [each for each in told(line, before) if "inner" not in each]
            assert said[:4] == ["open", "use", "use", "use ends"] and said[-1] == "close"
            assert said[4].startswith("saw ")
        before = len(steps(line))
        line.write(request("stream_visit", asking(1, n=5), id=9))
        take(line, 9, 1, 1)
        line.write(notification("$/cancelRequest", {"id": 9}))
        assert line.answer()["error"]["code"] == -32800
        line.wait_for_log("close stream_visit", 3)
        assert told(line, before) == [*OPEN, "use", "use ends", "close"]
