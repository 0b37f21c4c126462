"""Streams without a host: credit, the reading end, and any interleaving of the two."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from duet_rpc.engine.credits import Credits
from duet_rpc.engine.inflow import Inflow
from duet_rpc.errors import ConnectionLost, InvalidAnswer
from duet_rpc.wire.streams import (
    MAX_WINDOW,
    encode_item,
    encode_more,
    read_end,
    read_item,
    read_more,
    read_window,
)


def test_what_is_written_is_read() -> None:
    assert read_item(encode_item(b'"a\\u00e9"', 7, b'{"x":1}')) == (
        b'"a\\u00e9"',
        7,
        Raw(b'{"x":1}'),
    )
    assert read_more(encode_more(7, 32)) == (b"7", 32)
    assert read_window(Raw(b'{"window":5,"x":1}')) == 5
    assert read_window(Raw(b'{"window":99999}')) == MAX_WINDOW
    assert read_end(b'{"items":3}') == 3
    assert read_end(b"[1,[2]]") == [Raw(b"1"), Raw(b"[2]")]


@pytest.mark.parametrize(
    "raw", [None, b"[]", b"7", b"{}", b'{"stream":1}', b'{"stream":1,"items":0}', b'{"items":1}']
)
def test_what_is_no_message_of_a_stream(raw: bytes | None) -> None:
    assert read_item(raw) is None
    assert read_more(raw) is None


@pytest.mark.parametrize("raw", [b"0", b"{}", b'{"window":0}', b'{"window":1.5}', b"null"])
def test_what_is_no_window(raw: bytes) -> None:
    assert read_window(Raw(raw)) is None


@pytest.mark.parametrize("raw", [b"null", b"7", b"{}", b'{"items":"x"}', b'"x"'])
def test_what_is_no_end(raw: bytes) -> None:
    assert read_end(raw) is None


def test_credit_is_found_by_the_raw_id() -> None:
    credits, woken = Credits(), []
    credit = credits.open(b'"a"', 2)
    assert credit is not None
    assert credits.open(b'"a"', 2) is None, "one under an id"
    credit.on_grant = lambda: woken.append(credit.left)
    assert credits.grant(b'{"stream":"a","items":3}')
    assert not credits.grant(b'{"stream":"b","items":3}')
    assert not credits.grant(b'{"stream":"a"}')
    assert woken == [5]
    credits.end()
    assert (woken, credit.over) == ([5, 5], True)
    credits.close(b'"a"')
    assert not credits.grant(b'{"stream":"a","items":3}')
    later = credits.open(b"1", 1)
    assert later is not None and later.over


def test_a_stream_tells_whoever_waits() -> None:
    inflow, told = Inflow(4), []
    inflow.on_change = lambda: told.append(len(inflow.items))
    inflow.take_item(1, Raw(b"1"))
    inflow.settle(b'{"items":1}', None)
    inflow.settle(b'{"items":9}', None)
    inflow.take_item(2, Raw(b"2"))
    assert (told, inflow.ended, inflow.error) == ([1, 1], True, None)
    assert bytes(inflow.take()) == b"1"
    assert inflow.grant() == 0, "nothing more will come"


def test_a_loss_comes_after_the_items() -> None:
    inflow = Inflow(4)
    inflow.take_item(1, Raw(b"1"))
    inflow.settle(None, ConnectionLost("gone"))
    assert len(inflow.items) == 1 and isinstance(inflow.error, ConnectionLost)


@given(
    st.integers(0, 40),
    st.integers(1, 9),
    st.lists(st.sampled_from(["send", "take", "carry", "grant"])),
)
def test_any_interleaving_keeps_numbers_without_gap_and_memory_bounded(
    n: int, window: int, turns: list[str]
) -> None:
    """A server, a reader and the two directions between them, each going on whenever it likes."""
    credits, inflow = Credits(), Inflow(window)
    credit = credits.open(b"1", window)
    assert credit is not None
    sent, forth, back, got = 0, list[Any](), list[bytes](), list[Any]()

    def turn(what: str) -> None:
        nonlocal sent
        if what == "send" and sent <= n and credit.left:
            if sent == n:
                forth.append({"items": n})
            else:
                credit.spend()
                forth.append(encode_item(b"1", sent + 1, b"%d" % sent))
            sent += 1
        elif what == "carry" and forth:
            message = forth.pop(0)
            if isinstance(message, dict):
                inflow.settle(json.dumps(message).encode(), None)
            else:
                item = read_item(message)
                assert item is not None
                inflow.take_item(item[1], item[2])
        elif what == "take" and inflow.items:
            got.append(json.loads(bytes(inflow.take())))
            granted = inflow.grant()
            if granted:
                back.append(encode_more(1, granted))
        elif what == "grant" and back:
            assert credits.grant(back.pop(0))
        assert len(inflow.items) + sum(isinstance(m, bytes) for m in forth) <= window

    for what in turns:
        turn(what)
    while not (inflow.ended and not inflow.items):
        for what in ("send", "carry", "take", "grant"):
            turn(what)
    assert got == list(range(n))
    assert inflow.error is None


@given(st.lists(st.integers(0, 6), max_size=8))
def test_anything_but_the_next_number_ends_the_stream(numbers: list[int]) -> None:
    inflow = Inflow(100)
    for number in numbers:
        inflow.take_item(number, Raw(b"0"))
    in_order = 0
    while in_order < len(numbers) and numbers[in_order] == in_order + 1:
        in_order += 1
    assert len(inflow.items) == in_order
    assert inflow.ended is (in_order < len(numbers))
    assert inflow.ended is isinstance(inflow.error, InvalidAnswer)
