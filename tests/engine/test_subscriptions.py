"""Subscriptions without a host: what is sent, kept and dropped, in any interleaving."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from duet_rpc.engine.inflow import SubscriptionInflow
from duet_rpc.engine.slots import Slots
from duet_rpc.engine.subscriptions import MAX_UNSENT, MAX_UNSENT_BYTES, Outflow, Subscriptions
from duet_rpc.errors import InvalidRequest, Lagged, ShuttingDown
from duet_rpc.kinds import WhenSlow
from duet_rpc.wire.subscriptions import (
    SubscriptionRequest,
    encode_subscribed,
    encode_subscription_end,
    encode_subscription_item,
    encode_subscription_more,
    read_subscribed,
    read_subscription_end,
    read_subscription_item,
    read_subscription_more,
)


def test_what_is_written_is_read() -> None:
    assert read_subscribed(encode_subscribed(b'"a"')) == b'"a"'
    item = encode_subscription_item(b"7", 3, b'{"x":1}')
    assert read_subscription_item(item) == (b"7", 3, Raw(b'{"x":1}'))
    assert read_subscription_more(encode_subscription_more(b"7", 2)) == (b"7", 2)
    assert read_subscription_end(encode_subscription_end(b"7", b"")) == (b"7", None)
    ended = encode_subscription_end(b"7", b'"error":{"code":1}')
    assert read_subscription_end(ended) == (b"7", b'{"code":1}')
    assert read_subscription_end(b'{"subscription":7,"error":null}') == (b"7", None)


@pytest.mark.parametrize(
    "raw", [None, b"[]", b"7", b"{}", b'{"stream":1,"seq":1,"value":1}', b'{"seq":1}', b"\xff"]
)
def test_what_is_no_message_of_a_subscription(raw: bytes | None) -> None:
    assert read_subscribed(raw) is None
    assert read_subscription_item(raw) is None
    assert read_subscription_more(raw) is None
    assert read_subscription_end(raw) is None


class FakeLine:
    """A connection that can stop reading, and what went over it."""

    def __init__(self) -> None:
        self.behind = False
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.cancelled: list[Any] = []

    def send_notification(self, method: str, params: bytes) -> None:
        self.sent.append((method, json.loads(params)))

    def cancel(self, job: Any) -> None:
        self.cancelled.append(job)

    @property
    def numbers(self) -> list[int]:
        return [params["seq"] for method, params in self.sent if method == "$/item"]

    @property
    def ends(self) -> list[Any]:
        return [params for method, params in self.sent if method == "$/end"]


class OneJob:
    """A request for a subscription."""

    def __init__(self, when_slow: WhenSlow) -> None:
        self.method = SimpleNamespace(when_slow=when_slow)
        self.context = SimpleNamespace(cancelled=False)


def opened(
    when_slow: WhenSlow, window: int | None = None, after: int = 0
) -> tuple[FakeLine, Subscriptions, Outflow]:
    line = FakeLine()
    table = Subscriptions(line, 1024, lambda: None)
    return line, table, table.open(SubscriptionRequest(OneJob(when_slow), window, after))


def test_a_reader_that_lags_ends_it() -> None:
    line, table, flow = opened("lagged")
    flow.put(b"1")
    line.behind = True
    for _ in range(MAX_UNSENT):
        flow.put(b"2")
    with pytest.raises(Lagged):
        flow.put(b"3")
    assert not flow.unsent and not flow.size, "nothing is kept for a reader that is gone"
    table.finish(flow.job, b'"error":{"code":-32020,"message":"m"}')
    assert line.numbers == [1] and line.ends[0]["error"]["code"] == -32020


def test_bytes_count_as_well_and_one_item_may_be_larger() -> None:
    line, _, flow = opened("lagged")
    line.behind = True
    flow.put(b"x" * 5 * MAX_UNSENT_BYTES)
    with pytest.raises(Lagged):
        flow.put(b"1")
    line, _, flow = opened("drop-oldest")
    line.behind = True
    for _ in range(10):
        flow.put(b"x" * (MAX_UNSENT_BYTES // 2))
    assert [seq for seq, _ in flow.unsent] == [9, 10]
    line, _, flow = opened("wait")
    line.behind = True
    flow.put(b"x" * MAX_UNSENT_BYTES)
    assert flow.is_full


def test_the_limit_is_that_of_handlers_that_have_not_ended() -> None:
    line = FakeLine()
    table = Subscriptions(line, 1, lambda: None)
    flow = table.open(SubscriptionRequest(OneJob("wait"), None, 0))
    table.unsubscribe(encode_subscribed(flow.id))
    with pytest.raises(InvalidRequest):
        table.open(SubscriptionRequest(OneJob("wait"), None, 0))
    assert line.cancelled == [flow.job] and flow.job.context.cancelled
    table.finish(flow.job, b'"result":null')
    table.finish(flow.job, b'"result":null')
    assert table.open(SubscriptionRequest(OneJob("wait"), None, 0)).id != flow.id
    assert line.ends == [{"subscription": 1}], "told once"


def test_each_has_its_turn() -> None:
    line = FakeLine()
    table = Subscriptions(line, 10, lambda: None)
    flows = [table.open(SubscriptionRequest(OneJob("wait"), None, 0)) for _ in range(3)]
    line.behind = True
    for flow in flows:
        for _ in range(3):
            flow.put(b"0")
    line.behind = False
    table.pump()
    assert [params["subscription"] for _, params in line.sent] == [1, 2, 3] * 3


STEP = st.sampled_from(["put", "put", "put", "stop", "go", "grant", "end", "unsubscribe"])


@given(
    st.lists(STEP, max_size=200),
    st.sampled_from(["drop-oldest", "wait", "lagged"]),
    st.none() | st.integers(1, 5),
    st.integers(0, 3),
)
def test_any_interleaving(
    steps: list[str], when_slow: WhenSlow, window: int | None, after: int
) -> None:
    line, table, flow = opened(when_slow, window, after)
    reader = SubscriptionInflow(10_000, after)
    granted, made = window, 0
    for step in steps:
        if step == "put" and not flow.is_over:
            made += 1
            flow.put(b"%d" % made)
        elif step == "stop":
            line.behind = True
        elif step == "go":
            line.behind = False
            table.pump()
        elif step == "grant":
            table.grant(encode_subscription_more(flow.id, 2))
            granted = None if granted is None else granted + 2
        elif step == "end":
            table.end_all(ShuttingDown())
        elif step == "unsubscribe":
            table.unsubscribe(encode_subscribed(flow.id))
        if not (line.behind or flow.is_over) and (granted is None or granted > len(line.numbers)):
            assert not flow.unsent, "what can be sent is sent"
    table.finish(flow.job, b'"result":null')
    numbers = line.numbers
    assert numbers == list(range(after + 1, after + 1 + len(numbers))), "fewer than the limit"
    assert granted is None or len(numbers) <= granted
    assert len(line.ends) == 1 and line.sent[-1][0] == "$/end"
    for _, params in line.sent[:-1]:
        reader.take_item(params["seq"], Raw(json.dumps(params["value"]).encode()))
    assert [json.loads(bytes(reader.take())) for _ in numbers] == [each - after for each in numbers]
    assert reader.missed == 0 and not reader.ended


@given(st.lists(st.integers(1, 30), min_size=1, max_size=30))
def test_the_reader_counts_what_is_left_out(numbers: list[int]) -> None:
    reader, last = SubscriptionInflow(100), 0
    for number in numbers:
        reader.take_item(number, Raw(b"0"))
        if number <= last:
            assert reader.ended
            break
        last = number
    assert reader.missed == last - len(reader.items)


class OneContext:
    """Of a handler that goes on."""

    is_over = False


def test_slots_are_given_up_for_good_however_many() -> None:
    slots = Slots(2, 1)
    contexts: list[Any] = [OneContext() for _ in range(5)]
    for ctx in contexts:
        slots.running += 1
        slots.detach(ctx)
    assert slots.running == 0 and slots.without_slot == 5
    one: Any = OneContext()
    other: Any = OneContext()
    slots.running += 2
    slots.pause(one)
    slots.pause(other)
    assert slots.running == 1 and slots.without_slot == 6, "those that wait are limited as before"
    slots.pause(contexts[0])
    slots.resume(contexts[0])
    assert slots.running == 1, "one without a slot may wait for its peer as well"
    slots.resume(other)
    slots.resume(one)
    assert slots.running == 2
    for ctx in contexts:
        slots.end(ctx)
        slots.running -= 1
    assert slots.running == 2 and not slots.paused
