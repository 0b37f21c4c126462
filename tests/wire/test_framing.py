"""Framing, case by case: bytes in, bodies and faults out.

Every case is fed whole, byte by byte, cut in two at every position, and with a good frame behind:
none of that may change what comes out.
"""

import tracemalloc
from collections.abc import Callable
from typing import Literal, NamedTuple

import msgspec
import pytest

from duet_rpc.errors import InvalidRequest, ParseError
from duet_rpc.wire.framing import (
    MAX_HEADER_BYTES,
    MAX_HEADER_LINES,
    MAX_MESSAGE_BYTES,
    Event,
    Fault,
    Framing,
    HeaderFraming,
    framing,
    join_frame,
)
from duet_rpc.wire.framing.auto import AutoFraming
from duet_rpc.wire.framing.line import LineFraming

KIB = 1024
BODY = b'{"jsonrpc":"2.0","id":1,"method":"version"}'
NEXT = b'{"jsonrpc":"2.0","id":2,"method":"version"}'
GOOD = HeaderFraming.encode(NEXT)


class Bad(NamedTuple):
    """A fault, reduced to what a host acts on."""

    reason: str
    boundary_lost: bool = True
    stray: bool = False


NO_HEADER = Bad("invalid-content-length")
STRAY = Bad("invalid-content-length", stray=True)
TOO_LARGE = Bad("header-too-large")
OVERSIZE = Bad("oversize", boundary_lost=False)
WRONG_TYPE = Bad("unsupported-content-type", boundary_lost=False)
WRONG_CHARSET = Bad("bad-charset", boundary_lost=False)

Seen = list[bytes | Bad]
Make = Callable[[], Framing]


def seen(events: list[Event]) -> Seen:
    return [
        Bad(event.error.reason or "", event.boundary_lost, event.stray)
        if isinstance(event, Fault)
        else bytes(event)
        for event in events
    ]


def feed(framing: Framing, *pieces: bytes) -> Seen:
    return [event for piece in pieces for event in seen(framing.feed(piece))]


def by_byte(wire: bytes) -> list[bytes]:
    return [wire[at : at + 1] for at in range(len(wire))]


def check(wire: bytes, expected: Seen, make: Make = HeaderFraming, tail: bytes = GOOD) -> None:
    """Expect these events of the wire, however it is cut; and the next good frame after them."""
    for data, events in ((wire, expected), (wire + tail, [*expected, NEXT])):
        assert feed(make(), data) == events
        assert feed(make(), *by_byte(data)) == events
        for cut in range(1, len(data)):
            assert feed(make(), data[:cut], data[cut:]) == events, f"cut at {cut}"


def header(*lines: bytes) -> bytes:
    return b"\r\n".join(lines) + b"\r\n\r\n"


def memory_of(action: Callable[[], object]) -> tuple[int, int]:
    """Return what memory an action leaves in use, and the most that it had in use."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()


def left_by(action: Callable[[], object]) -> int:
    return memory_of(action)[0]


def peak_of(action: Callable[[], object]) -> int:
    return memory_of(action)[1]


# -- what is accepted ------------------------------------------------------------------------------

N = b"%d" % len(BODY)
ZEROS = N.rjust(15, b"0")

ACCEPTED = {
    "as we write it": header(b"Content-Length: " + N),
    "lower case": header(b"content-length: " + N),
    "upper case": header(b"CONTENT-LENGTH: " + N),
    "mixed case": header(b"cOnTeNt-LeNgTh: " + N),
    "no space": header(b"Content-Length:" + N),
    "blanks around the value": header(b"Content-Length: \t  " + N + b" \t "),
    "leading zeros": header(b"Content-Length: 000" + N),
    "fifteen digits": header(b"Content-Length: " + ZEROS),
    "equal duplicates": header(b"Content-Length: " + N, b"content-length: " + N),
    "numerically equal duplicates": header(b"Content-Length: " + N, b"Content-Length: 0" + N),
    "unknown header before": header(b"X-Trace: 1", b"Content-Length: " + N),
    "unknown header after": header(b"Content-Length: " + N, b"X-Trace: 1"),
    "unknown header without value": header(b"X:", b"Content-Length: " + N),
    "unknown header of any bytes": header(b"X: \xff\x00: \r \xc3", b"Content-Length: " + N),
    "similar name": header(b"X-Content-Length: 7", b"Content-Length: " + N),
    "name of all token characters": header(b"!#$%&'*+-.^_`|~09azAZ: 1", b"Content-Length: " + N),
    "content type first": header(
        b"Content-Type: application/vscode-jsonrpc", b"Content-Length:" + N
    ),
    "content type last": header(
        b"Content-Length: " + N, b"content-type:application/vscode-jsonrpc"
    ),
    "content type twice": header(
        b"Content-Type: application/vscode-jsonrpc",
        b"Content-Type: application/vscode-jsonrpc; charset=utf8",
        b"Content-Length: " + N,
    ),
    "blank lines before": b"\r\n\n \t\r\n" + header(b"Content-Length: " + N),
    "as many lines as allowed": header(
        *[b"X: 1"] * (MAX_HEADER_LINES - 1), b"Content-Length: " + N
    ),
    "longer than what is remembered": header(b"X: " + b"1" * 200, b"Content-Length: " + N),
}


@pytest.mark.parametrize("section", ACCEPTED.values(), ids=ACCEPTED)
def test_a_header_is_accepted(section: bytes) -> None:
    check(section + BODY, [BODY])


@pytest.mark.parametrize("section", ACCEPTED.values(), ids=ACCEPTED)
def test_an_accepted_header_is_accepted_again(section: bytes) -> None:
    """The second time it may be recognised instead of read."""
    check((section + BODY) * 2, [BODY, BODY])


@pytest.mark.parametrize(
    "parameters",
    [
        b"",
        b";",
        b"; charset=utf-8",
        b";charset=utf8",
        b"; Charset=UTF-8",
        b'; charset="utf-8"',
        b'; charset="UTF8"',
        b" ; charset = utf-8 ",
        b"; version=1; charset=utf-8",
        b"; charset=utf-8; version=1",
        b"; version=1",
    ],
)
@pytest.mark.parametrize(
    "media_type", [b"application/vscode-jsonrpc", b"Application/VSCode-JsonRpc"]
)
def test_a_content_type_is_accepted(media_type: bytes, parameters: bytes) -> None:
    section = header(b"Content-Type: " + media_type + parameters, b"Content-Length: " + N)
    check(section + BODY, [BODY])


@pytest.mark.parametrize("size", [0, 1, 9, 10, 99, 100, 999, 1000, 9999, 10000])
def test_a_body_may_have_any_size(size: int) -> None:
    body = b"x" * size
    wire = HeaderFraming.encode(body)
    assert feed(HeaderFraming(), wire * 3 + GOOD) == [body, body, body, NEXT]
    assert feed(HeaderFraming(), *by_byte(wire * 2 + GOOD)) == [body, body, NEXT]
    assert feed(HeaderFraming(), wire[:-1], wire[-1:] + GOOD) == [body, NEXT] or not size


def test_an_empty_body_comes_with_its_header() -> None:
    check(b"Content-Length: 0\r\n\r\n", [b""])


def test_a_length_counts_bytes_not_characters() -> None:
    body = '{"text":"naïve ☃ 🎻"}'.encode()
    check(HeaderFraming.encode(body), [body])


def test_a_body_may_hold_the_text_of_a_frame() -> None:
    check(HeaderFraming.encode(GOOD + GOOD), [GOOD + GOOD])


def test_blanks_between_frames_mean_nothing() -> None:
    wire = b"\n" + HeaderFraming.encode(BODY) + b"\r\n \t" + HeaderFraming.encode(BODY) + b"\n"
    check(wire, [BODY, BODY])


def test_a_section_may_fill_the_limit() -> None:
    section = header(b"Content-Length: " + N, b"X: ")
    section = header(b"Content-Length: " + N, b"X: " + b"a" * (MAX_HEADER_BYTES - len(section)))
    assert len(section) == MAX_HEADER_BYTES
    assert feed(HeaderFraming(), section + BODY + GOOD) == [BODY, NEXT]
    assert feed(HeaderFraming(), *by_byte(section + BODY + GOOD)) == [BODY, NEXT]
    for cut in range(len(section) - 8, len(section) + 2):
        assert feed(HeaderFraming(), section[:cut], section[cut:] + BODY) == [BODY]


# -- the table of faults, row by row ---------------------------------------------------------------

REFUSED: dict[str, tuple[bytes, Seen]] = {
    # A frame that is not wanted: its body is skipped, whatever stands in it.
    "json media type": (
        header(b"Content-Type: application/json", b"Content-Length: " + N) + BODY,
        [WRONG_TYPE],
    ),
    "empty media type": (header(b"Content-Type:", b"Content-Length: " + N) + BODY, [WRONG_TYPE]),
    "media type after the length": (
        header(b"Content-Length: " + N, b"content-TYPE: text/plain; charset=utf-8") + BODY,
        [WRONG_TYPE],
    ),
    "second media type wrong": (
        header(
            b"Content-Type: application/vscode-jsonrpc",
            b"Content-Type: text/plain",
            b"Content-Length: " + N,
        )
        + BODY,
        [WRONG_TYPE],
    ),
    "wrong media type of a body with a frame in it": (
        header(b"Content-Type: text/plain", b"Content-Length: %d" % len(GOOD)) + GOOD,
        [WRONG_TYPE],
    ),
    "wrong media type of an empty body": (
        header(b"Content-Type: text/plain", b"Content-Length: 0"),
        [WRONG_TYPE],
    ),
    "latin-1": (
        header(b"Content-Type: application/vscode-jsonrpc; charset=latin-1", b"Content-Length:" + N)
        + BODY,
        [WRONG_CHARSET],
    ),
    "empty charset": (
        header(b"Content-Type: application/vscode-jsonrpc; charset=", b"Content-Length: " + N)
        + BODY,
        [WRONG_CHARSET],
    ),
    "second charset wrong": (
        header(
            b"Content-Type: application/vscode-jsonrpc; charset=utf-8; charset=ascii",
            b"Content-Length: " + N,
        )
        + BODY,
        [WRONG_CHARSET],
    ),
    # No usable length: resynchronise.
    "length missing": (header(b"X-Trace: 1") + BODY, [NO_HEADER]),
    "only a content type": (
        header(b"Content-Type: application/vscode-jsonrpc") + BODY,
        [NO_HEADER],
    ),
    "length conflicting": (
        header(b"Content-Length: " + N, b"Content-Length: 7") + BODY,
        [NO_HEADER],
    ),
    "length negative": (header(b"Content-Length: -5") + BODY, [NO_HEADER]),
    "length with a plus": (header(b"Content-Length: +5") + BODY, [NO_HEADER]),
    "length with a fraction": (header(b"Content-Length: 5.0") + BODY, [NO_HEADER]),
    "length with an exponent": (header(b"Content-Length: 1e3") + BODY, [NO_HEADER]),
    "length hexadecimal": (header(b"Content-Length: 0x10") + BODY, [NO_HEADER]),
    "length with an underscore": (header(b"Content-Length: 1_0") + BODY, [NO_HEADER]),
    "length in other digits": (header("Content-Length: ٤٣".encode()) + BODY, [NO_HEADER]),
    "length empty": (header(b"Content-Length:") + BODY, [NO_HEADER]),
    "length a word": (header(b"Content-Length: abc") + BODY, [NO_HEADER]),
    "length a list": (header(b"Content-Length: 5, 5") + BODY, [NO_HEADER]),
    "length of sixteen digits": (header(b"Content-Length: " + b"1" * 16) + BODY, [NO_HEADER]),
    "length with a stray CR": (header(b"Content-Length: " + N + b"\r") + BODY, [NO_HEADER]),
    "blank before the colon": (header(b"Content-Length : " + N) + BODY, [NO_HEADER]),
    "folded line": (header(b"X: 1", b" Content-Length2: 5") + BODY, [NO_HEADER]),
    "no name": (header(b": 5") + BODY, [NO_HEADER]),
    "lines end with LF": (b"Content-Length: " + N + b"\n\n" + BODY, [NO_HEADER]),
    "one line ends with LF": (b"X: 1\nX: 2\r\n\r\n" + BODY, [NO_HEADER]),
    "no blank line": (b"Content-Length: " + N + b"\r\n" + BODY, [NO_HEADER]),
    "half a blank line": (b"Content-Length: " + N + b"\r\n\r" + BODY, [NO_HEADER]),
    "two bad headers": (
        header(b"Content-Length: a") + BODY + header(b"Content-Length: b") + BODY,
        [NO_HEADER, NO_HEADER],
    ),
    # Bytes that start no header: one answer for the run.
    "a word": (b"hello", []),
    "a line": (b"hello\n", [NO_HEADER]),
    "JSON without header": (BODY + b"\n", [NO_HEADER]),
    "many lines": (b"Traceback (most recent call last):\n  File\n\nError: no\n" * 5, [NO_HEADER]),
    "binary": (bytes(range(256)), [NO_HEADER]),
    "a byte order mark": (b"\xef\xbb\xbf", [NO_HEADER]),
    "a line that looks like a header": (b"WARNING: disk is full\n", [NO_HEADER]),
    "the beginning of the name, again and again": (
        b"?ContentContent-LenContent-Length",
        [NO_HEADER],
    ),
    # Stray bytes behind a complete body.
    "body longer than its length": (
        b"Content-Length: 5\r\n\r\n" + BODY,
        [BODY[:5], STRAY],
    ),
    "stray bytes behind blanks": (
        HeaderFraming.encode(BODY) + b"\r\n \t}\n",
        [BODY, STRAY],
    ),
    "stray bytes that look like a header": (
        HeaderFraming.encode(BODY) + b"note: this\n",
        [BODY, STRAY],
    ),
    "a bad header behind a body": (
        HeaderFraming.encode(BODY) + header(b"Content-Length: abc"),
        [BODY, NO_HEADER],
    ),
    "a bad header with a type behind a body": (
        HeaderFraming.encode(BODY) + header(b"Content-Type: application/vscode-jsonrpc"),
        [BODY, NO_HEADER],
    ),
    "stray bytes behind a skipped body": (
        header(b"Content-Type: text/plain", b"Content-Length: 2") + b"{}}\n",
        [WRONG_TYPE, NO_HEADER],
    ),
    "stray bytes, a bad header, stray bytes": (
        HeaderFraming.encode(BODY) + b"}" + header(b"Content-Length: -1") + b"}",
        [BODY, STRAY, NO_HEADER],
    ),
    "stray bytes, a header over the limit": (
        HeaderFraming.encode(BODY) + b"}Content-Length: ".ljust(MAX_HEADER_BYTES + 1, b"1"),
        [BODY, STRAY, TOO_LARGE],
    ),
    # Too many lines.
    "too many header lines": (
        header(b"Content-Length: " + N, *[b"X: 1"] * MAX_HEADER_LINES) + BODY,
        [TOO_LARGE],
    ),
}


@pytest.mark.parametrize(("wire", "expected"), REFUSED.values(), ids=REFUSED)
def test_a_fault_is_told_and_the_next_frame_is_read(wire: bytes, expected: Seen) -> None:
    if expected:
        check(wire, expected)
    else:  # "hello" might still become the name of a header
        assert feed(HeaderFraming(), wire) == []
        check(wire + b"\n", [NO_HEADER])


GLUED: dict[str, tuple[bytes, Seen]] = {
    "to a word": (b"hello", [NO_HEADER]),
    "to what looks like a header": (b"WARNING: disk is full", [NO_HEADER]),
    "to a header that was cut": (b"Content-Length: 5", [NO_HEADER]),
    "to the name alone": (b"Content-Length:", [NO_HEADER]),
    "to the name, many times": (b"Content-Length:" * 9, [NO_HEADER]),
    "to the beginning of the name": (b"Content-", [NO_HEADER]),
    "to a good header and a bad one": (b"X: 1\r\nContent-Length: 5", [NO_HEADER]),
    "to a body that is longer than its length": (b"Content-Length: 1\r\n\r\n12", [b"1", STRAY]),
    "to a bad header's body": (b"Content-Length: x\r\n\r\nContent-Type", [NO_HEADER]),
}


@pytest.mark.parametrize(("wire", "expected"), GLUED.values(), ids=GLUED)
def test_a_good_frame_is_found_in_the_middle_of_a_line(wire: bytes, expected: Seen) -> None:
    check(wire + GOOD, [*expected, NEXT])


def test_a_resynchronised_frame_may_use_any_spelling() -> None:
    check(b"garbage?\ncOnTent-lEngth:\t" + N + b"\r\nX: 1\r\n\r\n" + BODY, [NO_HEADER, BODY])


def test_every_line_of_a_conflicting_section_is_dropped_with_it() -> None:
    """A section that says two things must not run as either."""
    body = HeaderFraming.encode(BODY)
    wire = header(b"Content-Length: 7", b"Content-Length: %d" % len(body)) + BODY
    check(wire, [NO_HEADER])


LONG = {
    "one long value": b"X: " + b"a" * MAX_HEADER_BYTES,
    "one long name": b"a" * (MAX_HEADER_BYTES + 3),
    "a length first": b"Content-Length: 5\r\nX: " + b"a" * MAX_HEADER_BYTES,
}


@pytest.mark.parametrize("start", LONG.values(), ids=LONG)
@pytest.mark.parametrize("end", [b"", b"\r\n\r\n" + BODY], ids=["never ended", "ended late"])
def test_a_header_section_over_the_limit_is_refused_at_the_limit(start: bytes, end: bytes) -> None:
    assert feed(HeaderFraming(), start[:MAX_HEADER_BYTES]) == [TOO_LARGE]
    assert feed(HeaderFraming(), start[: MAX_HEADER_BYTES - 1]) == []
    wire = start + end + GOOD
    assert feed(HeaderFraming(), wire) == [TOO_LARGE, NEXT]
    assert feed(HeaderFraming(), *by_byte(wire)) == [TOO_LARGE, NEXT]


@pytest.mark.parametrize("overlap", range(40))
def test_the_next_frame_is_found_where_the_header_limit_cuts_it(overlap: int) -> None:
    limit = 200
    wire = b"X: ".ljust(limit - overlap, b"a") + GOOD
    expected: Seen = [NO_HEADER if overlap >= len(GOOD) - len(NEXT) else TOO_LARGE, NEXT]

    def make() -> HeaderFraming:
        return HeaderFraming(max_header_bytes=limit)

    check(wire, expected, make)


def test_the_faults_say_what_to_do() -> None:
    def error_of(wire: bytes) -> InvalidRequest:
        (event,) = HeaderFraming(max_message_bytes=100, max_header_bytes=500).feed(wire)
        assert isinstance(event, Fault) and isinstance(event.error, InvalidRequest)
        assert event.error.code == -32600
        return event.error

    secret = b"hunter2"
    oversize = error_of(b"Content-Length: 101\r\n\r\n" + secret)
    assert oversize.data == {
        "reason": "oversize",
        "detail": "send less at once",
        "limit": 100,
        "length": 101,
    }
    too_large = error_of(b"X: " + secret * 100)
    assert (too_large.data["limit"], too_large.data["line_limit"]) == (500, MAX_HEADER_LINES)
    assert "CR LF" in error_of(b"Content-Length: 5\n\n" + secret).data["detail"]
    assert "missing" in error_of(header(b"X: 1")).data["detail"]
    assert (
        "different" in error_of(header(b"Content-Length: 5", b"Content-Length: 6")).data["detail"]
    )
    assert "digits" in error_of(header(b"Content-Length: " + secret)).data["detail"]
    assert "colon" in error_of(secret + b" \n").data["detail"]
    assert "vscode" in error_of(header(b"Content-Type: a", b"Content-Length: 1")).data["detail"]
    for wire in (secret + b" \n", header(b"Content-Length: " + secret), b"X: " + secret * 100):
        assert secret.decode() not in str(error_of(wire).data)


# -- oversize --------------------------------------------------------------------------------------


def small() -> HeaderFraming:
    return HeaderFraming(max_message_bytes=100)


def test_a_message_of_the_limit_is_accepted() -> None:
    check(HeaderFraming.encode(b"x" * 100), [b"x" * 100], small)


def test_an_oversize_message_is_refused_and_skipped() -> None:
    check(HeaderFraming.encode(b"x" * 101), [OVERSIZE], small)


def test_an_oversize_message_is_refused_as_soon_as_its_header_is_complete() -> None:
    framing = small()
    assert feed(framing, b"Content-Length: 999999999999999\r\n\r") == []
    assert feed(framing, b"\n") == [OVERSIZE]
    assert framing.partial


@pytest.mark.parametrize("size", [101, 256, 257, 1_000])
@pytest.mark.parametrize("name", ["lsp", "ndjson"])
def test_a_framing_that_keeps_ends_tells_how_a_dropped_message_began_and_ended(
    name: Literal["lsp", "ndjson"], size: int
) -> None:
    body = (b'{"id":7,' + b"x" * size)[: size - 8] + b',"id":7}'
    maker = framing(name, max_message_bytes=100)
    data = maker.encode(body) + maker.encode(b"{}")
    for step in (len(data), 1, 7):
        for kind in (name, "auto"):
            cut = framing(kind, max_message_bytes=100, keeps_ends=True)
            events = [e for at in range(0, len(data), step) for e in cut.feed(data[at : at + step])]
            fault, begun, ended, good = events
            head = body[:256] if name == "lsp" else body[:100]
            assert isinstance(fault, Fault) and fault.error.reason == "oversize"
            assert begun == msgspec.structs.replace(fault, dropped=True, head=head)
            assert ended == msgspec.structs.replace(begun, tail=body[-256:])
            assert good == b"{}"


def test_what_is_told_of_a_dropped_message_does_not_wait_for_its_end() -> None:
    cut = framing("lsp", max_message_bytes=100, keeps_ends=True)
    fault, begun = cut.feed(b"Content-Length: 999999\r\n\r\n" + b"x" * 300)
    assert isinstance(fault, Fault) and isinstance(begun, Fault)
    assert (fault.dropped, begun.dropped, begun.tail) == (False, True, b"")
    assert cut.expire(), "and a frame that is given up has no end"
    assert cut.feed(b"y" * 999_699 + HeaderFraming.encode(b"{}")) == [b"{}"]


def test_a_frame_inside_an_oversize_body_does_not_run() -> None:
    check(HeaderFraming.encode(b"\r\n\r\n" + GOOD * 2), [OVERSIZE], small)


def test_an_oversize_message_of_the_wrong_type_gets_one_answer() -> None:
    check(header(b"Content-Type: a", b"Content-Length: 101") + b"x" * 101, [OVERSIZE], small)


def test_what_one_framing_learned_does_not_lift_the_limit_of_another() -> None:
    wire = HeaderFraming.encode(b"x" * 101)
    assert feed(HeaderFraming(), wire * 2) == [b"x" * 101] * 2
    assert feed(small(), wire * 2) == [OVERSIZE] * 2
    assert feed(HeaderFraming(max_header_bytes=10), wire)[0] == TOO_LARGE


def test_what_is_learned_is_bounded() -> None:
    framing = HeaderFraming()
    name = b"content-length"
    for spelling in range(10_000):
        spelled = bytes(
            byte ^ 32 if byte != 45 and spelling >> place & 1 else byte
            for place, byte in enumerate(name)
        )
        assert feed(framing, header(spelled + b":2") + b"{}") == [b"{}"]
    assert len(framing._known) <= 4096


# -- end of input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wire", [b"C", b"X: 1\r\n", b"Content-Length: 5\r\n\r\n", b"Content-Length: 5\r\n\r\n1234"]
)
def test_the_end_of_input_inside_a_frame_is_a_parse_error(wire: bytes) -> None:
    framing = HeaderFraming()
    assert feed(framing, GOOD, wire) == [NEXT]
    fault = framing.end()
    assert fault is not None
    assert isinstance(fault.error, ParseError)
    assert not fault.stray


@pytest.mark.parametrize(
    "wire", [b"", b"\r\n", GOOD, GOOD + b"\n", b"garbage?", b"garbage?Content-Len"]
)
def test_the_end_of_input_between_frames_is_no_fault(wire: bytes) -> None:
    framing = HeaderFraming()
    framing.feed(wire)
    assert framing.end() is None


def test_the_end_of_input_inside_a_body_that_was_refused_is_no_second_fault() -> None:
    framing = small()
    assert feed(framing, b"Content-Length: 101\r\n\r\nxxx") == [OVERSIZE]
    assert framing.end() is None


# -- frames that take too long ---------------------------------------------------------------------


def expired(wire: bytes, framing: Framing | None = None) -> Framing:
    """Return a framing that gave up on a frame after these bytes."""
    framing = framing or HeaderFraming()
    framing.feed(wire)
    assert framing.partial
    assert framing.expire()
    assert not framing.partial
    assert not framing.expire()
    assert framing.end() is None
    return framing


PART = b"Content-Length: 30\r\n\r\n" + b"x" * 10
REST = b"y" * 20
NEW_FRAMES = {
    "length": GOOD,
    "any case": GOOD.replace(b"Content-Length", b"CONTENT-lENGTH"),
    "type first": b"Content-Type: application/vscode-jsonrpc\r\n" + GOOD,
}


@pytest.mark.parametrize("new", NEW_FRAMES.values(), ids=NEW_FRAMES)
@pytest.mark.parametrize("skipped", [False, True], ids=["body kept", "body skipped"])
def test_a_new_frame_may_follow_a_frame_that_was_given_up(new: bytes, skipped: bool) -> None:
    for cut in range(len(new)):
        framing = expired(PART, HeaderFraming(max_message_bytes=20 if skipped else 1000))
        expected: Seen = [OVERSIZE] if skipped else [NEXT]
        assert feed(framing, new[:cut], new[cut:]) == expected


@pytest.mark.parametrize(
    "rest",
    [
        REST,
        b"Content-Length".ljust(20, b"y"),
        b"Content-Type".ljust(20, b"y"),
        b"https://example.org/",
        b"yyContent-Length: 1\r\n",
        b"\r\nContent-Length: 10"[:20],
    ],
)
def test_the_rest_of_a_frame_that_was_given_up_is_dropped(rest: bytes) -> None:
    wire = rest[:20] + GOOD
    for cut in range(len(wire)):
        assert feed(expired(PART), wire[:cut], wire[cut:]) == [NEXT]
    assert feed(expired(PART), *by_byte(wire)) == [NEXT]


def test_no_more_than_the_missing_bytes_are_dropped() -> None:
    assert feed(expired(PART), REST + b"?" + GOOD) == [NO_HEADER, NEXT]


def test_what_follows_a_frame_that_was_given_up_does_not_follow_a_body() -> None:
    framing = HeaderFraming()
    feed(framing, HeaderFraming.encode(b"x" * 30) * 2)
    assert feed(expired(PART, framing), REST + b"}") == [NO_HEADER]


def test_the_rest_may_be_shorter_than_the_beginning_of_a_header() -> None:
    for rest, expected in ((b"Con", [NEXT]), (b"Con?", [NO_HEADER, NEXT]), (b"yyy", [NEXT])):
        part = b"Content-Length: 30\r\n\r\n" + b"x" * 27
        for cut in range(len(rest)):
            assert feed(expired(part), rest[:cut], rest[cut:] + b"\n" + GOOD) == expected


def test_a_frame_can_be_given_up_any_number_of_times() -> None:
    framing = HeaderFraming()
    expired(PART, framing)
    expired(b"y" * 5, framing)
    expired(b"y" * 5, framing)
    assert feed(framing, GOOD) == [NEXT]
    for _ in range(3):
        expired(PART, framing)
    assert feed(framing, REST + GOOD) == [NEXT]


def test_a_possible_header_that_was_given_up_counts_as_rest() -> None:
    framing = expired(b"Conte", expired(PART))
    assert feed(framing, b"y" * 15 + GOOD) == [NEXT]
    framing = expired(b"Content-Length", expired(PART[:-10] + b"x" * 25))
    assert feed(framing, b": 1\r\n\r\n" + GOOD) == [NEXT]


@pytest.mark.parametrize("part", [b"C", b"Content-Length: 5\r\n", b"X: 1\r\nContent-Le"])
def test_a_header_that_was_given_up_is_dropped_without_an_answer(part: bytes) -> None:
    assert feed(expired(part), b"ngth: 5\r\n\r\n{}?\n" + GOOD) == [NEXT]
    assert feed(expired(part), GOOD) == [NEXT]


def test_a_large_body_that_was_given_up_is_not_kept() -> None:
    framing = HeaderFraming()

    def give_up() -> None:
        framing.feed(b"Content-Length: 9000000\r\n\r\n" + b"x" * 1_000_000)
        assert framing.expire()

    assert left_by(give_up) < 10 * KIB
    assert feed(framing, b"y" * 8_000_000 + GOOD) == [NEXT]


def test_between_frames_there_is_nothing_to_give_up() -> None:
    framing = HeaderFraming()
    for wire in (b"", GOOD, b"\r\n", b"garbage?", b"more\n", b"Content-Len"):
        framing.feed(wire)
        assert not framing.partial
        assert not framing.expire()
    assert feed(framing, b"gth: 2\r\n\r\n{}") == [b"{}"]


# -- the clock of the host -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wire",
    [
        GOOD,
        b"X: 1\r\n" + GOOD,
        b"Content-Length: 00000000000012\r\n\r\n" + b"x" * 12,
        header(b"Content-Type: a", b"Content-Length: 12") + b"x" * 12,
    ],
)
def test_a_frame_is_partial_from_its_first_byte_to_its_last(wire: bytes) -> None:
    framing = HeaderFraming()
    framing.feed(GOOD)
    before = framing.started
    framing.feed(wire[:1])
    during = framing.started
    assert during != before
    for byte in by_byte(wire[1:]):
        assert framing.partial
        assert framing.started == during, "further bytes must not extend the clock"
        framing.feed(byte)
    assert not framing.partial
    framing.feed(b" \r\n")
    assert not framing.partial
    assert framing.started == during


def test_a_frame_that_begins_in_the_same_read_is_another_one() -> None:
    framing = HeaderFraming()
    numbers = [framing.started]
    for wire in (
        GOOD[:30],
        GOOD[30:] + GOOD[:30],
        GOOD[30:] + GOOD * 3 + GOOD[:5],
        GOOD[5:] + b"?",
    ):
        framing.feed(wire)
        numbers.append(framing.started)
    assert len(set(numbers[:4])) == 4
    framing.feed(GOOD[:20])
    assert framing.partial
    assert framing.started not in numbers


def test_the_rest_of_a_frame_that_was_given_up_has_a_clock_of_its_own() -> None:
    framing = HeaderFraming()
    framing.feed(PART)
    first = framing.started
    framing.expire()
    framing.feed(b"Conte")
    second = framing.started
    assert framing.partial
    assert second != first
    framing.feed(b"nt")
    assert framing.started == second
    framing.feed(b"?")
    assert framing.started == second
    assert framing.partial


# -- large bodies ----------------------------------------------------------------------------------

LARGE = bytes(range(256)) * 1024  # 256 KiB


@pytest.mark.parametrize("size", [999, 9999, 50_000, 64 * KIB, 1_000_000])
def test_a_large_body_comes_out_whole(size: int) -> None:
    wire = HeaderFraming.encode(LARGE) + GOOD
    reads = [wire[at : at + size] for at in range(0, len(wire), size)]
    assert feed(HeaderFraming(), *reads) == [LARGE, NEXT]


def test_a_large_body_can_end_with_a_read() -> None:
    framing = HeaderFraming()
    wire = HeaderFraming.encode(LARGE)
    assert feed(framing, wire[: -len(LARGE)]) == []
    assert feed(framing, LARGE) == [LARGE]
    assert not framing.partial
    assert feed(framing, GOOD) == [NEXT]


def test_a_claim_costs_no_memory() -> None:
    def claim() -> None:
        claimed = [HeaderFraming() for _ in range(10)]
        for one in claimed:
            one.feed(b"Content-Length: %d\r\n\r\n{" % MAX_MESSAGE_BYTES)

    assert peak_of(claim) < 10 * 2 * KIB


def test_a_large_body_is_kept_once() -> None:
    chunk = b"x" * 64 * KIB
    framing = HeaderFraming()
    framing.feed(b"Content-Length: %d\r\n\r\n" % MAX_MESSAGE_BYTES)
    events: list[Event] = []

    def receive() -> None:
        for _ in range(MAX_MESSAGE_BYTES // len(chunk)):
            events.extend(framing.feed(chunk))

    assert peak_of(receive) < MAX_MESSAGE_BYTES * 1.3
    assert [len(event) for event in seen(events)] == [MAX_MESSAGE_BYTES]


ENDLESS = {
    "header without end": (HeaderFraming, b"X-", b"a"),
    "header lines without end": (HeaderFraming, b"", b"X: 1\r\n"),
    "garbage": (HeaderFraming, b"?", b"garbage\n"),
    "the name, never complete": (HeaderFraming, b"?", b"Content-Length"),
    "oversize body": (HeaderFraming, b"Content-Length: 999999999999999\r\n\r\n", GOOD),
    "blanks": (HeaderFraming, b"", b" \r\n\t"),
    "line without end": (lambda: LineFraming(max_message_bytes=9999), b"{", b"a"),
    "blanks without a line": (lambda: LineFraming(max_message_bytes=9999), b"", b" "),
    "blank lines": (LineFraming, b"", b" \r\n"),
}


@pytest.mark.parametrize(("make", "start", "more"), ENDLESS.values(), ids=ENDLESS)
def test_endless_input_costs_no_memory(make: Make, start: bytes, more: bytes) -> None:
    chunk = more * (4 * KIB // len(more))
    framing = make()
    framing.feed(start)

    def flood() -> None:
        for _ in range(100):
            framing.feed(chunk)
            framing.feed(more[:1])

    assert peak_of(flood) < 100 * KIB


# -- lines -----------------------------------------------------------------------------------------

LINE = LineFraming.encode(NEXT)


def check_lines(wire: bytes, expected: Seen, make: Make = LineFraming) -> None:
    check(wire, expected, make, tail=LINE)


def tiny() -> LineFraming:
    return LineFraming(max_message_bytes=50)


LINES: dict[str, tuple[bytes, Seen]] = {
    "as we write it": (BODY + b"\n", [BODY]),
    "CR LF": (BODY + b"\r\n", [BODY]),
    "blanks around": (b" \t" + BODY + b" \t\r\r\n", [BODY]),
    "blank lines": (b"\n\r\n \t\n" + BODY + b"\n\n\n", [BODY]),
    "two": (BODY + b"\n" + NEXT + b"\n", [BODY, NEXT]),
    "not JSON": (b"hello\n\x00\xff\n", [b"hello", b"\x00\xff"]),
    "as long as the limit": (b"x" * 50 + b"\n", [b"x" * 50]),
    "as long as the limit, with CR LF": (b"x" * 50 + b"\r\n", [b"x" * 50]),
    "as long as the limit, after blanks": (b" " * 9 + b"x" * 50 + b"\n", [b"x" * 50]),
    "blanks over the limit": (b" " * 200 + b"\n", []),
    "one over the limit": (b"x" * 51 + b"\n", [OVERSIZE]),
    "one over the limit, with CR LF": (b"x" * 51 + b"\r\n", [OVERSIZE]),
    "one over the limit, by a blank": (b"x" * 50 + b" \n", [OVERSIZE]),
    "over the limit, by two CR": (b"x" * 50 + b"\r\r\n", [OVERSIZE]),
    "oversize, with braces": (b"x" * 60 + b'{"id":1}{}\n', [OVERSIZE]),
    "two oversize": (b"x" * 99 + b"\n\n" + b"y" * 99 + b"\n", [OVERSIZE, OVERSIZE]),
}


@pytest.mark.parametrize(("wire", "expected"), LINES.values(), ids=LINES)
def test_lines_are_cut(wire: bytes, expected: Seen) -> None:
    check_lines(wire, expected, tiny)


def test_an_oversize_line_is_refused_as_soon_as_it_is_too_long() -> None:
    framing = tiny()
    assert feed(framing, b"x" * 50) == []
    assert feed(framing, b"x") == [OVERSIZE]
    assert not framing.partial
    assert feed(framing, b"x" * 500) == []
    assert framing.end() is None
    assert feed(framing, b"\n" + LINE) == [NEXT]


def test_the_refusal_of_a_line_says_the_limit() -> None:
    (fault,) = tiny().feed(b"x" * 51)
    assert isinstance(fault, Fault)
    assert fault.error.data == {"reason": "oversize", "detail": "send less at once", "limit": 50}


def test_a_large_line_is_handed_over_in_one_piece() -> None:
    framing = LineFraming()
    wire = LARGE.replace(b"\n", b"") + b"\n"
    events = [
        event for at in range(0, len(wire), 9999) for event in framing.feed(wire[at : at + 9999])
    ]
    assert seen(events) == [LARGE.replace(b"\n", b"").strip()]


def test_the_end_of_input_inside_a_line_is_a_parse_error() -> None:
    framing = LineFraming()
    framing.feed(LINE + BODY)
    fault = framing.end()
    assert fault is not None and isinstance(fault.error, ParseError)


@pytest.mark.parametrize("wire", [b"", LINE, LINE + b" \t\r"])
def test_the_end_of_input_between_lines_is_no_fault(wire: bytes) -> None:
    framing = LineFraming()
    framing.feed(wire)
    assert framing.end() is None


def test_a_line_that_was_given_up_is_dropped_to_its_end() -> None:
    framing = expired(b'{"id":', LineFraming())
    assert feed(framing, b'{"id":2}}\n' + LINE) == [NEXT]
    framing = expired(b'{"id":', LineFraming())
    assert feed(framing, *by_byte(b'{"id":2}}\n' + LINE)) == [NEXT]


def test_between_lines_there_is_nothing_to_give_up() -> None:
    framing = LineFraming()
    for wire in (b"", LINE, b" \t", b"\r\n"):
        framing.feed(wire)
        assert not framing.partial
        assert not framing.expire()
    assert feed(framing, LINE) == [NEXT]


def test_a_line_is_partial_from_its_first_byte_to_its_last() -> None:
    framing = LineFraming()
    framing.feed(LINE + b" ")
    before = framing.started
    assert not framing.partial
    framing.feed(LINE[:1])
    during = framing.started
    assert during != before
    for byte in by_byte(LINE[1:]):
        assert framing.partial
        assert framing.started == during
        framing.feed(byte)
    assert not framing.partial


# -- choosing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b'{"id":1}', b"[]"])
@pytest.mark.parametrize("blanks", [b"", b"\r\n \t"])
def test_json_as_the_first_byte_means_lines(blanks: bytes, body: bytes) -> None:
    check(blanks + body + b"\n", [body], AutoFraming, tail=LINE)


@pytest.mark.parametrize("blanks", [b"", b"\r\n \t"])
def test_anything_else_as_the_first_byte_means_headers(blanks: bytes) -> None:
    check(blanks + HeaderFraming.encode(BODY), [BODY], AutoFraming)
    check(blanks + b"garbage?", [NO_HEADER], AutoFraming)


def test_the_choice_is_made_once() -> None:
    assert feed(AutoFraming(), GOOD, LINE) == [NEXT, STRAY]
    assert feed(AutoFraming(), LINE, b"hello\n") == [NEXT, b"hello"]


def test_the_peer_is_answered_in_the_framing_it_uses() -> None:
    framing = AutoFraming()
    assert framing.encode(b"{}") == b"Content-Length: 2\r\n\r\n{}"
    framing.feed(b" \n")
    assert framing.encode(b"{}") == b"Content-Length: 2\r\n\r\n{}"
    framing.feed(b"{")
    assert framing.encode(b"{}") == b"{}\n"
    headers = AutoFraming()
    headers.feed(b"C")
    assert headers.encode(b"{}") == b"Content-Length: 2\r\n\r\n{}"


def test_the_chosen_framing_does_everything_else() -> None:
    framing = AutoFraming()
    assert not framing.partial
    assert framing.end() is None
    assert not framing.expire()
    before = framing.started
    framing.feed(b"Content-Length: 70000\r\n\r\n")
    assert framing.started != before
    assert framing.partial
    assert framing.end() is not None
    assert framing.expire()
    assert feed(framing, GOOD) == [NEXT]


def test_the_limits_hold_for_both_choices() -> None:
    def limited() -> Framing:
        return framing("auto", max_message_bytes=5, max_header_bytes=30)

    assert feed(limited(), b"{    }\n") == [OVERSIZE]
    assert feed(limited(), b"Content-Length: 6\r\n\r\n") == [OVERSIZE]
    assert feed(limited(), b"X: " + b"a" * 30) == [TOO_LARGE]


def test_the_limits_are_generous_by_default() -> None:
    assert MAX_MESSAGE_BYTES == 10 * 1024 * 1024
    assert MAX_HEADER_BYTES == 8 * 1024
    assert MAX_HEADER_LINES == 32
    for make in (HeaderFraming, AutoFraming):
        assert feed(make(), b"Content-Length: 10485760\r\n\r\n") == []
        assert feed(make(), b"Content-Length: 10485761\r\n\r\n") == [OVERSIZE]
    assert feed(LineFraming(), b"x" * 10485760) == []
    assert feed(LineFraming(), b"x" * 10485761) == [OVERSIZE]


def test_a_framing_has_a_name() -> None:
    assert isinstance(framing("lsp"), HeaderFraming)
    assert isinstance(framing("ndjson"), LineFraming)
    assert isinstance(framing("auto"), AutoFraming)


def test_a_frame_is_written_in_one_way() -> None:
    assert HeaderFraming.encode(b"") == b"Content-Length: 0\r\n\r\n"
    assert HeaderFraming.encode("ü".encode()) == b"Content-Length: 2\r\n\r\n\xc3\xbc"
    assert LineFraming.encode(b"{}") == b"{}\n"


# Large bodies out.


@pytest.mark.parametrize("size", [10, 2_000, 65_535, 65_536, 200_000])
@pytest.mark.parametrize("form", [HeaderFraming, LineFraming, AutoFraming])
def test_what_is_written_is_the_frame_also_in_parts(form: type[Framing], size: int) -> None:
    framing, body = form(), (bytes(range(32, 127)) * (size // 95 + 1))[:size]
    assert join_frame(framing.frame(body)) == framing.encode(body)
    large = body * (65_536 // size + 1)
    assert join_frame(framing.frame_around(b"[", large, b"]")) == framing.encode(
        b"[" + large + b"]"
    )


def test_a_large_body_is_not_copied_to_be_framed() -> None:
    body = b"x" * 9_000_000
    tracemalloc.start()
    frames = [form.frame(body) for form in (HeaderFraming, LineFraming)]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200_000
    assert [len(join_frame(frame)) - len(body) for frame in frames] == [27, 1]


@pytest.mark.parametrize("form", [HeaderFraming, LineFraming, AutoFraming])
def test_a_large_body_is_told_while_it_comes(form: type[Framing]) -> None:
    framing = form()
    data = framing.encode(b"[" + b" " * 200_000 + b"]")
    if form is AutoFraming:
        data = LineFraming.encode(b"[" + b" " * 200_000 + b"]")
    assert not framing.bulk
    framing.feed(data[:100_000])
    assert framing.bulk
    assert len(framing.feed(data[100_000:])) == 1
    assert not framing.bulk
    framing.feed(form().encode(BODY)[:-1])
    assert not framing.bulk


def test_a_refused_body_is_no_reason_to_read_more_at_once() -> None:
    framing = HeaderFraming(max_message_bytes=100_000)
    framing.feed(b"Content-Length: 200000\r\n\r\n" + b"x" * 1_000)
    assert framing.partial and not framing.bulk


@pytest.mark.parametrize("piece", [1_000, 65_536, 262_144, 400_000, 600_000])
@pytest.mark.parametrize("form", [HeaderFraming, LineFraming])
def test_a_large_body_comes_out_as_it_was_however_it_is_cut(
    form: type[Framing], piece: int
) -> None:
    framing = form()
    body = b"".join(b"%d," % number for number in range(150_000))
    data = framing.encode(body) + framing.encode(BODY)
    events = [
        bytes(event) if isinstance(event, bytearray) else event
        for at in range(0, len(data), piece)
        for event in framing.feed(data[at : at + piece])
    ]
    assert events == [body, BODY]
    assert not framing.partial


def test_a_large_body_takes_little_more_than_its_own_memory() -> None:
    framing = HeaderFraming()
    data = framing.encode(b"x" * 9_000_000)
    tracemalloc.start()
    for at in range(0, len(data), 100_000):
        framing.feed(data[at : at + 100_000])
        held, _ = tracemalloc.get_traced_memory()
        assert held < 2 * at + 500_000  # by what came, not by what is to come
        if len(data) - at > 200_000:
            most = held
    tracemalloc.stop()
    assert most < 9_500_000
