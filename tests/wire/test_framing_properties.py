"""Framing, for any input: what must hold whatever arrives, and however it is cut into reads."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duet_rpc.wire.framing import (
    MAX_HEADER_LINES,
    Event,
    Fault,
    Framing,
    HeaderFraming,
)
from duet_rpc.wire.framing.auto import AutoFraming
from duet_rpc.wire.framing.line import LineFraming

# Small limits, so that what is drawn comes near them and over them.
MAX_MESSAGE = 60
MAX_HEADER = 160


def headers() -> HeaderFraming:
    return HeaderFraming(max_message_bytes=MAX_MESSAGE, max_header_bytes=MAX_HEADER)


def roomy_headers() -> HeaderFraming:
    return HeaderFraming()


def lines() -> LineFraming:
    return LineFraming(max_message_bytes=MAX_MESSAGE)


def auto() -> AutoFraming:
    return AutoFraming(max_message_bytes=MAX_MESSAGE, max_header_bytes=MAX_HEADER)


# A slow machine is no fault of the code.
any_speed = settings(max_examples=100, deadline=None)

Make = Callable[[], Framing]
every_framing = pytest.mark.parametrize("make", [headers, roomy_headers, lines, auto])

GOOD_BODY = b'{"jsonrpc":"2.0","id":7,"method":"m"}'
GOOD = HeaderFraming.encode(GOOD_BODY)


def seen(events: list[Event]) -> list[object]:
    return [
        (event.error.code, event.error.data, event.boundary_lost, event.stray)
        if isinstance(event, Fault)
        else bytes(event)
        for event in events
    ]


def cut(wire: bytes, places: list[int]) -> list[bytes]:
    """Cut at these places; places beyond the end count from the start again."""
    at = sorted(place % (len(wire) + 1) for place in places)
    return [wire[start:stop] for start, stop in zip([0, *at], [*at, len(wire)], strict=True)]


# -- streams ---------------------------------------------------------------------------------------

bodies = st.binary(max_size=MAX_MESSAGE)
names = st.sampled_from(
    [b"Content-Length", b"content-LENGTH", b"Content-Type", b"X", b"X-Content-Length"]
)
values = st.one_of(
    st.integers(min_value=0, max_value=2 * MAX_MESSAGE).map(lambda number: b"%d" % number),
    st.sampled_from(
        [
            b"",
            b"-1",
            b"abc",
            b"007",
            b"999999999999999",
            b"9" * 16,
            b"text/plain",
            b"application/vscode-jsonrpc",
            b"application/vscode-jsonrpc; charset=latin-1",
            b"Content-Length: 3",
            b"a" * MAX_HEADER,
        ]
    ),
    st.binary(max_size=20),
)
line_ends = st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n", b"", b"\r", b"\r\r\n"])
header_lines = st.builds(
    lambda name, space, value, end: name + b":" + space + value + end,
    names,
    st.sampled_from([b"", b" ", b" \t "]),
    values,
    line_ends,
)
sections = st.builds(
    lambda head, end: head + end,
    st.one_of(
        st.lists(header_lines, max_size=4).map(b"".join),
        st.builds(lambda line, count: line * count, header_lines, st.integers(30, 35)),
    ),
    line_ends,
)
pieces = st.one_of(
    bodies.map(HeaderFraming.encode),
    bodies.map(lambda body: HeaderFraming.encode(body).lower()),
    bodies.map(LineFraming.encode),
    st.builds(lambda head, body: head + body, sections, bodies),
    st.binary(max_size=40),
    st.sampled_from(
        [
            GOOD,
            GOOD + b"\n",
            GOOD[:-1],
            GOOD[:10],
            GOOD[15:],
            b"Content-Length:",
            b"Content-Len",
            b"\r\n",
            b" ",
            b"{}\n",
            b"hello\n",
            b"x" * (MAX_MESSAGE + 5),
            HeaderFraming.encode(b"x" * (MAX_MESSAGE + 5)),
            b"a" * (MAX_HEADER - 5),
            b"X: " + b"a" * (MAX_HEADER - 10),
        ]
    ),
)
streams = st.lists(pieces, max_size=8).map(b"".join)
places = st.lists(st.integers(min_value=0, max_value=10_000), max_size=12)


# -- properties ------------------------------------------------------------------------------------


@every_framing
@any_speed
@given(wire=streams, places=places)
def test_any_cut_of_any_stream_gives_the_same_events(
    make: Make, wire: bytes, places: list[int]
) -> None:
    whole, parts, by_byte = make(), make(), make()
    events = whole.feed(wire)
    in_parts = [event for part in cut(wire, places) for event in parts.feed(part)]
    in_bytes = [event for at in range(len(wire)) for event in by_byte.feed(wire[at : at + 1])]
    assert seen(in_parts) == seen(events)
    assert seen(in_bytes) == seen(events)
    assert whole.partial == parts.partial == by_byte.partial
    assert (whole.end() is None) == (parts.end() is None) == (by_byte.end() is None)


@any_speed
@given(
    garbage=st.one_of(st.binary(max_size=400), streams).filter(
        lambda garbage: b"content-" not in garbage.lower()
    ),
    places=places,
)
def test_a_good_frame_after_any_garbage_comes_out(garbage: bytes, places: list[int]) -> None:
    for between in (b"\r\n\r\n", b"\n", b""):
        framing = headers()
        wire = garbage + between + GOOD
        events = [event for part in cut(wire, places) for event in framing.feed(part)]
        assert events[-1] == GOOD_BODY
        assert not framing.partial


@any_speed
@given(wire=streams, places=places)
def test_a_good_frame_after_a_frame_that_took_too_long_comes_out(
    wire: bytes, places: list[int]
) -> None:
    framing = headers()
    framing.feed(wire)
    framing.expire()
    events = [event for part in cut(GOOD, places) for event in framing.feed(part)]
    assert events == [GOOD_BODY]


@any_speed
@given(messages=st.lists(st.binary(max_size=300), max_size=20), places=places)
def test_what_is_encoded_with_headers_comes_back(messages: list[bytes], places: list[int]) -> None:
    framing = HeaderFraming()
    wire = b"".join(map(HeaderFraming.encode, messages))
    assert [event for part in cut(wire, places) for event in framing.feed(part)] == messages
    assert not framing.partial
    assert framing.end() is None


texts = st.binary(min_size=1, max_size=300).filter(
    lambda text: b"\n" not in text and text == text.strip(b" \t\r")
)


@any_speed
@given(messages=st.lists(texts, max_size=20), places=places)
def test_what_is_encoded_as_lines_comes_back(messages: list[bytes], places: list[int]) -> None:
    framing = LineFraming()
    wire = b"".join(map(LineFraming.encode, messages))
    assert [event for part in cut(wire, places) for event in framing.feed(part)] == messages
    assert not framing.partial
    assert framing.end() is None


@any_speed
@given(before=st.lists(bodies, max_size=3), size=st.integers(MAX_MESSAGE + 1, 500), places=places)
def test_no_frame_inside_an_oversize_body_comes_out(
    before: list[bytes], size: int, places: list[int]
) -> None:
    inside = (GOOD * 20)[:size]
    wire = b"".join(map(HeaderFraming.encode, [*before, inside])) + GOOD
    framing = headers()
    events = seen([event for part in cut(wire, places) for event in framing.feed(part)])
    assert events[: len(before)] == before
    assert events[len(before) + 1 :] == [GOOD_BODY]


actions = st.lists(
    st.one_of(
        pieces.map(lambda piece: ("feed", piece)),
        st.just(("expire", b"")),
        st.integers(min_value=0, max_value=70_000).map(lambda size: ("feed", b"x" * size)),
    ),
    max_size=20,
)


@every_framing
@any_speed
@given(actions=actions, claim=st.integers(0, 200_000))
def test_no_order_of_calls_raises_or_hoards(
    make: Make, actions: list[tuple[str, bytes]], claim: int
) -> None:
    framing = make()
    framing.feed(b"Content-Length: %d\r\n\r\n" % claim)
    for action, data in actions:
        was_partial = framing.partial
        if action == "feed":
            framing.feed(data)
        else:
            assert framing.expire() == was_partial
            assert not framing.partial
        if isinstance(framing, HeaderFraming):
            assert len(framing._held) < max(framing._max_header_bytes, 16)
            assert len(framing._body) < max(framing._max_message_bytes, 1)
        elif isinstance(framing, LineFraming):
            assert len(framing._line) <= MAX_MESSAGE + 1


@any_speed
@given(count=st.integers(1, 2 * MAX_HEADER_LINES), places=places)
def test_header_lines_are_counted(count: int, places: list[int]) -> None:
    wire = b"X:1\r\n" * (count - 1) + GOOD
    framing = HeaderFraming()
    events = seen([event for part in cut(wire, places) for event in framing.feed(part)])
    assert events[-1] == GOOD_BODY
    assert len(events) == (1 if count <= MAX_HEADER_LINES else 2)
