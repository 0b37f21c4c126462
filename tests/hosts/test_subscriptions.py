"""Subscriptions on every host that has a loop: what goes over the wire, and every way to end."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.table import (
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
from tests.transports.lines import PATIENCE, frame, notification, request

WITHOUT = (ONE_AT_A_TIME, BLOCKING, BLOCKING_PIPES)
"""The first serves no `async def`; in a blocking client no generator can go on."""


def subscribe(line: Line, method: str = "watch", id: Any = 1, **params: Any) -> int:
    """Subscribe, and return the name of the subscription."""
    line.write(request(method, params, id=id))
    answer = line.answer()
    assert answer["id"] == id and list(answer["result"]) == ["subscription"]
    name: int = answer["result"]["subscription"]
    return name


def take(line: Line, name: int, first: int, last: int) -> None:
    """Read these items, which must be the next messages."""
    for seq in range(first, last + 1):
        message = line.answer()
        expected = {"subscription": name, "seq": seq, "value": seq - 1}
        assert (message["method"], message["params"]) == ("$/item", expected)


def end(line: Line, name: int) -> Any:
    """Read the end, which must be the next message; return its error."""
    message = line.answer()
    assert message["method"] == "$/end" and "id" not in message
    assert message["params"].pop("subscription") == name
    return message["params"].get("error")


def unsubscribe(name: int) -> bytes:
    return notification("$/unsubscribe", {"subscription": name})


@over(EVERY, without=WITHOUT)
@pytest.mark.clause("subscriptions-1")
@pytest.mark.parametrize("dialect", ["jsonrpc", "lsp", "mcp"])
def test_it_is_answered_at_once_and_items_follow(host: Host, dialect: str, tmp_path: Path) -> None:
    with host.serve(tmp_path, dialect=dialect) as line:
        first = subscribe(line, n=3)
        take(line, first, 1, 3)
        assert end(line, first) is None
        second = subscribe(line, id="a", n=3)
        assert second != first
        take(line, second, 1, 3)
        assert end(line, second) is None
        assert line.call("add", [1, 2])["result"] == 3
        assert "refused" not in line.log


@over(EVERY, without=WITHOUT)
@pytest.mark.clause("subscriptions-2")
def test_the_numbers_go_on_after_a_given_one(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        name = subscribe(line, n=5, resume_after=3)
        take(line, name, 4, 5)
        assert end(line, name) is None
        answer = line.call("watch", {"n": 1, "resume_after": -1})
        assert answer["error"]["code"] == -32602
        assert answer["error"]["data"]["param"] == "resume_after"
        answer = line.call("flood_wait", {"n": 1, "resume_after": 1})
        assert answer["error"]["code"] == -32602, "this one does not take it"


@over(EVERY, without=WITHOUT)
@pytest.mark.clause("subscriptions-3")
@pytest.mark.parametrize("policy", ["spec", "editor"])
def test_it_ends_when_it_is_unsubscribed_from_at_any_moment(
    host: Host, policy: str, tmp_path: Path
) -> None:
    with host.serve(tmp_path, preset=policy) as line:
        for count, taken in enumerate((0, 1, 3), 1):
            name = subscribe(line, id=taken + 1, n=3, then="wait")
            take(line, name, 1, taken)
            line.write(unsubscribe(name) + unsubscribe(name))
            message = line.answer()
            while message["method"] == "$/item":
                message = line.answer()
            assert message["params"] == {"subscription": name}
            line.wait_for_log("watch ended", count)
            line.write(unsubscribe(name) + unsubscribe(1000) + notification("$/unsubscribe", [1]))
        assert line.call("add", [1, 2])["result"] == 3
        assert "refused" not in line.log


@over(EVERY, without=WITHOUT)
@pytest.mark.clause("subscriptions-3")
def test_unsubscribing_in_the_same_write_as_the_request(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        line.write(request("watch", {"n": 3, "then": "wait"}, id=1) + unsubscribe(1))
        assert line.answer()["result"] == {"subscription": 1}
        take(line, 1, 1, 3)
        line.write(unsubscribe(1))
        assert end(line, 1) is None


@over(EVERY, without=WITHOUT)
@pytest.mark.clause("subscriptions-4")
def test_a_request_that_is_cancelled_in_time_is_none(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        cancel = notification("$/cancelRequest", {"id": 7})
        line.write(request("watch", {"n": 3, "then": "wait"}, id=7) + cancel)
        assert line.answer()["error"]["code"] == -32800
        name = subscribe(line, id=7, n=3, then="wait")
        line.write(cancel)  # it has been answered: its id names nothing any more
        take(line, name, 1, 3)
        assert line.call("add", [1, 2])["result"] == 3
        line.write(unsubscribe(name))
        assert end(line, name) is None


@over(EVERY, without=WITHOUT)
@pytest.mark.clause("subscriptions-5")
def test_an_error_of_the_handler_is_that_of_the_end(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        name = subscribe(line, n=2, then="refuse")
        take(line, name, 1, 2)
        error = end(line, name)
        assert (error["code"], error["data"]) == (403, {"after": 2})
        name = subscribe(line, n=1, then="fail")
        take(line, name, 1, 1)
        error = end(line, name)
        assert error["code"] == -32603 and list(error["data"]) == ["reference"]
        assert "of the subscription" not in json.dumps(error)
        line.wait_for_log(error["data"]["reference"])


@over(EVERY, without=WITHOUT)
@pytest.mark.clause("subscriptions-6")
def test_it_has_no_slot_while_it_goes_on(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path, max_in_flight=1, max_queued=2) as line:
        names = [subscribe(line, id=id, n=0, then="wait") for id in range(1, 21)]
        assert line.call("add", [1, 2])["result"] == 3
        line.write(b"".join(map(unsubscribe, names)))
        assert [end(line, name) for name in names] == [None] * 20
        assert line.call("add", [1, 2])["result"] == 3


@over(EVERY, without=WITHOUT)
@pytest.mark.clause("subscriptions-6")
def test_what_waits_for_its_slot_goes_on_at_once(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path, max_in_flight=1) as line:
        watch = [request("watch", {"n": 0, "then": "wait"}, id=id) for id in range(3)]
        line.write(b"".join(watch) + request("add", [1, 2], id=7))
        assert [line.answer()["id"] for _ in range(4)] == [0, 1, 2, 7]


@over([host for host in EVERY if host.kind in ("daemon", "listener")], without=WITHOUT)
@pytest.mark.clause("subscriptions-3")
def test_it_ends_while_a_handler_blocks_the_loop(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        name, until = subscribe(line, n=0, then="wait"), tmp_path / "until"
        line.write(request("hold_async", [str(until)], id=2))
        line.wait_for_log("holding")
        line.write(unsubscribe(name))
        assert end(line, name) is None
        assert "watch ended" not in line.log
        until.touch()
        assert line.answer()["result"] == "let go"
        line.wait_for_log("watch ended")


@over(EVERY, without=WITHOUT)
@pytest.mark.clause("subscriptions-7")
def test_there_is_a_limit_for_each_connection(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path, max_subscriptions=3) as line:
        names = [subscribe(line, id=id, n=0, then="wait") for id in range(3)]
        error = line.call("watch", {"n": 1})["error"]
        assert error["code"] == -32600
        assert error["data"]["reason"] == "too-many-subscriptions" and error["data"]["limit"] == 3
        line.write(unsubscribe(names[0]))
        assert end(line, names[0]) is None
        line.wait_for_log("watch ended")
        assert line.call("add", [1, 2])["result"] == 3
        name = subscribe(line, n=1)
        take(line, name, 1, 1)


@over(EVERY, without=WITHOUT)
@pytest.mark.clause("subscriptions-8")
def test_a_subscriber_that_offers_a_window_gets_no_more(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        name = subscribe(line, n=5, _meta={"stream": {"window": 2}})
        take(line, name, 1, 2)
        assert line.call("add", [1, 2])["result"] == 3, "and no further item before that"
        line.write(notification("$/more", {"subscription": name, "items": 1}))
        take(line, name, 3, 3)
        line.write(notification("$/more", {"subscription": name, "items": 50}))
        take(line, name, 4, 5)
        assert end(line, name) is None, "and not before the items"
        line.write(notification("$/more", {"subscription": name, "items": 50}))
        assert line.call("add", [1, 2])["result"] == 3, "a late grant is no fault"
        assert "refused" not in line.log


SLOW = (*WITHOUT, MESSAGE_LINK)  # whose carrier, in these tests, waits until we read


@over(EVERY, without=SLOW)
@pytest.mark.clause("subscriptions-9")
def test_a_slow_reader_ends_it_as_lagged(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        name = subscribe(line, "flood_lagged", n=3000)
        ended = line.wait_for_log("flood ended at")
        made = int(ended.rpartition(" ")[2])
        assert made < 1000, "a few buffers, and a MiB"
        message, seq = line.answer(), 0
        while message["method"] == "$/item":
            seq += 1
            assert message["params"]["seq"] == seq
            message = line.answer()
        error = message["params"]["error"]
        assert message["params"]["subscription"] == name and seq < made
        assert (error["code"], error["data"]["reason"]) == (-32020, "lagged")
        assert line.call("add", [1, 2])["result"] == 3


@over(EVERY, without=SLOW)
@pytest.mark.clause("subscriptions-9")
def test_a_slow_reader_misses_the_oldest_and_sees_it(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        name = subscribe(line, "flood_drop", n=1000)
        line.wait_for_log("flood ended at 1000")
        numbers = []
        message = line.answer()
        while message["method"] == "$/item":
            numbers.append(message["params"]["seq"])
            message = line.answer()
        assert message["params"] == {"subscription": name}
        assert numbers == sorted(set(numbers)) and numbers[-1] == 1000
        # Reading the answer may make room in the middle of it: there is one gap at least.
        assert len(numbers) < 1000, "the newest are there, and others are left out"


@over(EVERY, without=SLOW)
@pytest.mark.clause("subscriptions-9")
def test_a_slow_reader_makes_it_wait(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        name = subscribe(line, "flood_wait", n=1000)
        line.wait_for_log("flood begins")
        numbers = []
        message = line.answer()
        while message["method"] == "$/item":
            numbers.append(message["params"]["seq"])
            message = line.answer()
        assert message["params"] == {"subscription": name}
        assert numbers == list(range(1, 1001))


@over(EVERY, without=SLOW)
@pytest.mark.clause("subscriptions-9")
def test_one_that_waits_can_be_unsubscribed_from(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        name = subscribe(line, "flood_wait", n=100_000)
        line.wait_for_log("flood begins")
        line.write(unsubscribe(name))
        ended = line.wait_for_log("flood ended at")
        assert int(ended.rpartition(" ")[2]) < 1000
        message = line.answer()
        while message["method"] == "$/item":
            message = line.answer()
        assert message["params"] == {"subscription": name}


@over(EVERY, without=WITHOUT)
@pytest.mark.clause("subscriptions-10")
def test_a_subscriber_that_goes_away_ends_it(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        for id in range(1, 4):
            name = subscribe(line, id=id, n=2, then="wait")
            take(line, name, 1, 2)
        line.channel.close()
        line.wait_for_log("watch ended", 3)
        assert "handler failed" not in line.log


@over([host for host in EVERY if host.kind in ("daemon", "listener")], without=WITHOUT)
@pytest.mark.clause("subscriptions-10")
def test_a_subscriber_that_can_say_nothing_more_ends_it(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        name = subscribe(line, n=1, then="wait")
        take(line, name, 1, 1)
        line.close_writing()
        assert end(line, name)["code"] == -32800
        assert line.answer() is None
        line.wait_for_log("watch ended")


@over([host for host in EVERY if host.kind in ("daemon", "listener")], without=WITHOUT)
@pytest.mark.clause("subscriptions-10")
def test_a_server_that_shuts_down_ends_it(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        name = subscribe(line, n=2, then="wait")
        take(line, name, 1, 2)
        line.process.send_signal(signal.SIGTERM)
        error = end(line, name)
        assert (error["code"], error["data"]["reason"]) == (-32018, "shutting-down")
        assert line.answer() is None
        assert line.process.wait(PATIENCE) == 0
        line.wait_for_log("watch ended")


@over([host for host in EVERY if host.kind in ("daemon", "listener")], without=WITHOUT)
@pytest.mark.clause("subscriptions-10")
def test_the_shutdown_of_a_connection_ends_it(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        name = subscribe(line, n=0, then="wait")
        line.write(request("shutdown", id="end"))
        messages = []
        while (message := line.answer()) is not None:
            messages.append(message)
        ends = [each["params"] for each in messages if each.get("method") == "$/end"]
        assert [each["subscription"] for each in ends] == [name]
        assert ends[0]["error"]["data"]["reason"] == "shutting-down"
        assert any(each.get("id") == "end" for each in messages)
        line.wait_for_log("watch ended")


@over(EVERY, without=WITHOUT)
@pytest.mark.clause("subscriptions-11")
def test_in_a_batch_items_come_after_the_answers(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        until = tmp_path / "until"
        watch = {"jsonrpc": "2.0", "id": 1, "method": "watch", "params": {"n": 2}}
        hold = {"jsonrpc": "2.0", "id": 2, "method": "hold", "params": [str(until)]}
        line.write(frame(json.dumps([watch, hold]).encode()))
        line.wait_for_log("watch begins")
        line.wait_for_log("holding")
        assert line.call("add", [1, 2], id="x")["result"] == 3, "nothing comes before it"
        until.touch()
        answers: Any = line.answer()
        assert [answer["id"] for answer in answers] == [1, 2]
        name = answers[0]["result"]["subscription"]
        take(line, name, 1, 2)
        assert end(line, name) is None


@over(EVERY, without=WITHOUT)
@pytest.mark.clause("subscriptions-11")
def test_it_needs_an_id(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        line.write(notification("watch", {"n": 2}))
        line.wait_for_log("notification-not-allowed")
        assert line.call("add", [1, 2])["result"] == 3
        assert "watch begins" not in line.log


@over([EXCHANGE, BLOCKING, BLOCKING_PIPES])
@pytest.mark.clause("subscriptions-11")
def test_where_nothing_can_follow_an_answer_there_is_none(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        error = line.call("watch", {"n": 1})["error"]
        assert error["code"] == -32601
        assert error["data"]["detail"] == (
            "watch is a subscription, which needs a connection that stays open"
        )
        assert "watch begins" not in line.log


@over(EVERY, without=WITHOUT)
@pytest.mark.clause("subscriptions-12")
def test_a_dependency_is_open_until_the_end(host: Host, tmp_path: Path) -> None:
    def told() -> list[str]:
        return [each.removesuffix(" watch_visit") for each in steps(line)]

    with host.serve(tmp_path) as line:
        name = subscribe(line, "watch_visit", n=1)
        take(line, name, 1, 1)
        assert line.call("add", [1, 2])["result"] == 3
        assert told() == ["open", "open inner", "use"]
        line.write(unsubscribe(name))
        assert end(line, name) is None
        line.wait_for_log("close watch_visit")
        assert told()[3] == "use ends" and told()[-1] == "close"
        name = subscribe(line, "watch_visit", n=0, fails="permission")
        assert end(line, name)["code"] == 403, "as its exception handler says"
