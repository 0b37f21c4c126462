"""Framing: every row of the table of faults through a whole connection, bytes for bytes.

Each case is followed by a good frame, and arrives whole, in single bytes and in pairs: the answers
must be the same, and the good frame must always be answered.
"""

import json

import pytest

from duet_rpc.policy import EDITOR, SPEC, replace
from duet_rpc.wire.framing import HeaderFraming
from duet_rpc.wire.framing.line import LineFraming
from tests.conformance.specimen import specimen
from tests.helpers import (
    Line,
    Refusal,
    Wire,
    exchange,
    frame,
    ids,
    refusal,
    request,
    result,
    whole_and_by_byte,
)

CARRIERS = ["stream"]

NEXT_BODY = b'{"jsonrpc":"2.0","id":"next","method":"echo","params":{"value":1}}'
NEXT = frame(NEXT_BODY)
NEXT_ANSWER = b'{"jsonrpc":"2.0","id":"next","result":1}'
BODY = b'{"jsonrpc":"2.0","id":1,"method":"get_data"}'
ANSWER = b'{"jsonrpc":"2.0","id":1,"result":["hello",5]}'
N = len(BODY)

SMALL = replace(EDITOR, max_message_bytes=300, max_header_bytes=200)


def answers_before_the_next(stream: bytes) -> list[bytes]:
    answers = whole_and_by_byte(SMALL, specimen(), stream + NEXT)
    assert answers[-1] == NEXT_ANSWER
    return answers[:-1]


def faults(stream: bytes) -> list[Refusal]:
    return [refusal(answer) for answer in answers_before_the_next(stream)]


def invalid(reason: str) -> list[Refusal]:
    return [Refusal(-32600, "Invalid Request", reason, None)]


MIB = 1024 * 1024
PARSE_ERROR = [Refusal(-32700, "Parse error", None, None)]


# Out.


@pytest.mark.clause("framing-2", "framing-3")
def test_an_answer_is_one_header_and_the_body_in_one_write() -> None:
    line = Line(EDITOR, specimen())
    line.send(BODY)
    assert line.host.writes == [b"Content-Length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER)]


@pytest.mark.clause("framing-1")
def test_an_answers_length_counts_bytes_of_utf8() -> None:
    line = Line(EDITOR, specimen())
    line.send(request("echo", ["é€😀"]))
    (written,) = line.host.writes
    header, _, body = written.partition(b"\r\n\r\n")
    assert header == b"Content-Length: %d" % len(body)
    assert "é€😀".encode() in body


@pytest.mark.clause("messages-3")
def test_an_answer_has_no_members_beyond_the_specifications() -> None:
    line = Line(EDITOR, specimen())
    for answer in line.send(BODY, request("nothing"), request("fail"), b"{"):
        assert set(json.loads(answer)) in ({"jsonrpc", "id", "result"}, {"jsonrpc", "id", "error"})


# In: what passes.


@pytest.mark.clause("framing-4", "framing-5")
@pytest.mark.parametrize(
    "header",
    [
        b"Content-Length: %d\r\n\r\n",
        b"content-length: %d\r\n\r\n",
        b"CONTENT-LENGTH:%d\r\n\r\n",
        b"cOnTeNt-LeNgTh:   %d   \r\n\r\n",
        b"Content-Length:\t%d\t\r\n\r\n",
        b"Content-Length: 000%d\r\n\r\n",
        b"X-Unknown: a: b\r\nContent-Length: %d\r\nAnother:\r\n\r\n",
        b"Content-Type: application/vscode-jsonrpc; charset=utf-8\r\nContent-Length: %d\r\n\r\n",
        b"Content-Length: %d\r\nContent-Type: application/vscode-jsonrpc; charset=utf-8\r\n\r\n",
        b"Content-Length: %d\r\ncontent-type: application/vscode-jsonrpc\r\n\r\n",
        b"Content-Length: %d\r\nContent-Type: application/vscode-jsonrpc; charset=utf8\r\n\r\n",
        b"Content-Length: %d\r\nContent-Type: application/vscode-jsonrpc;charset=UTF-8\r\n\r\n",
        b'Content-Length: %d\r\nContent-Type: application/vscode-jsonrpc; charset="utf-8"\r\n\r\n',
        b"Content-Length: %d\r\nContent-Type: APPLICATION/VSCode-JsonRPC; x=1;Charset=Utf8\r\n\r\n",
        b"Content-Length: %d\r\nContent-Type: application/vscode-jsonrpc;charset=utf8; x=1\r\n\r\n",
    ],
)
def test_a_good_header_in_any_form(header: bytes) -> None:
    assert answers_before_the_next(header % N + BODY) == [ANSWER]


@pytest.mark.clause("framing-4")
def test_equal_duplicates_pass() -> None:
    header = b"Content-Length: %d\r\nContent-Length: 0%d\r\n\r\n" % (N, N)
    assert answers_before_the_next(header + BODY) == [ANSWER]


@pytest.mark.clause("framing-7")
def test_frames_back_to_back() -> None:
    assert answers_before_the_next(frame(BODY) * 5) == [ANSWER] * 5
    many = b"".join(frame(request("echo", id=n)) for n in range(50))
    assert ids(answers_before_the_next(many)) == list(range(50))


@pytest.mark.clause("framing-6")
def test_a_frame_cut_at_any_byte() -> None:
    stream = frame(BODY) + NEXT
    for cut in range(len(stream) + 1):
        line = Line(EDITOR, specimen())
        assert line.send(Wire(stream[:cut]), Wire(stream[cut:])) == [ANSWER, NEXT_ANSWER]


@pytest.mark.clause("framing-6")
def test_header_and_body_in_separate_writes() -> None:
    wire = frame(BODY)
    header = wire.index(b"\r\n\r\n") + 4
    line = Line(EDITOR, specimen())
    assert line.send(Wire(wire[:header])) == []
    assert line.send(Wire(wire[header:])) == [ANSWER]


@pytest.mark.clause("framing-8")
def test_whitespace_around_the_json_is_part_of_the_body() -> None:
    body = b" \r\n" + BODY + b"\r\n "
    assert answers_before_the_next(frame(body)) == [ANSWER]


# The table.


@pytest.mark.clause("framing-9")
@pytest.mark.parametrize(
    "kind",
    [b"text/plain", b"application/json", b"", b"application/vscode-jsonrpcx", b"charset=utf-8"],
)
def test_a_wrong_media_type_is_refused_and_its_body_skipped(kind: bytes) -> None:
    stream = b"Content-Type: %b\r\nContent-Length: %d\r\n\r\n%b" % (kind, N, BODY)
    assert faults(stream) == invalid("unsupported-content-type")


@pytest.mark.clause("framing-10")
@pytest.mark.parametrize("charset", [b"utf-16", b"latin-1", b"", b'"utf-7"', b"utf-8x"])
def test_a_wrong_charset_is_refused_and_its_body_skipped(charset: bytes) -> None:
    stream = b"Content-Type: application/vscode-jsonrpc; charset=%b\r\nContent-Length: %d\r\n\r\n%b"
    assert faults(stream % (charset, N, BODY)) == invalid("bad-charset")


@pytest.mark.clause("framing-21")
def test_a_frame_inside_a_skipped_body_does_not_run() -> None:
    inner = frame(BODY)
    stream = b"Content-Type: text/plain\r\nContent-Length: %d\r\n\r\n%b" % (len(inner), inner)
    assert faults(stream) == invalid("unsupported-content-type")


@pytest.mark.clause("framing-11")
@pytest.mark.parametrize(
    "length",
    [b"", b"x", b"-5", b"+5", b"5.0", b"1e3", b"0x10", b"5 5", b"1" * 16, "٥".encode(), b"5,5"],
)
def test_a_length_that_is_no_number_is_refused(length: bytes) -> None:
    assert faults(b"Content-Length: %b\r\n\r\n" % length) == invalid("invalid-content-length")


@pytest.mark.clause("framing-11")
def test_a_missing_length_is_refused() -> None:
    assert faults(b"X-Header: 1\r\n\r\n") == invalid("invalid-content-length")
    assert faults(b"Content-Type: application/vscode-jsonrpc\r\n\r\n") == invalid(
        "invalid-content-length"
    )


@pytest.mark.clause("framing-11")
def test_conflicting_lengths_are_refused() -> None:
    stream = b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n"
    assert faults(stream) == invalid("invalid-content-length")


@pytest.mark.clause("framing-13", "framing-24")
@pytest.mark.parametrize("length", [301, 5000])
def test_an_oversized_body_is_answered_at_once_and_dropped(length: int) -> None:
    line = Line(SMALL, specimen())
    (answer,) = line.send(Wire(b"Content-Length: %d\r\n\r\n" % length))
    assert refusal(answer) == invalid("oversize")[0]
    data = json.loads(answer)["error"]["data"]
    assert (data["limit"], data["length"]) == (300, length)
    assert line.send(Wire(b"x" * (length - 1))) == []
    assert line.send(Wire(b"x" + NEXT)) == [NEXT_ANSWER]


@pytest.mark.clause("framing-21")
def test_a_frame_inside_an_oversized_body_does_not_run() -> None:
    inner = (frame(BODY) + b"\r\n\r\n") * 10
    assert faults(b"Content-Length: %d\r\n\r\n%b" % (len(inner), inner)) == invalid("oversize")


@pytest.mark.clause("framing-8")
def test_a_body_of_exactly_the_limit_is_read() -> None:
    body = BODY + b" " * (300 - N)
    assert answers_before_the_next(frame(body)) == [ANSWER]


@pytest.mark.clause("framing-14")
def test_a_header_section_over_the_limit_is_refused() -> None:
    stream = b"X: %b\r\nContent-Length: %d\r\n\r\n%b" % (b"y" * 300, N, BODY)
    fault, answer = answers_before_the_next(stream)
    assert refusal(fault) == invalid("header-too-large")[0]
    assert answer == ANSWER  # its own length is the next that is found
    assert faults(b"X-Long-%b" % (b"y" * 300)) == invalid("header-too-large")


@pytest.mark.clause("framing-15")
def test_the_end_inside_a_frame_is_a_parse_error() -> None:
    stream = frame(BODY)
    for cut in range(1, len(stream)):
        line = Line(EDITOR, specimen())
        assert line.send(Wire(stream[:cut])) == []
        assert [refusal(answer) for answer in line.end()] == PARSE_ERROR
    assert Line(EDITOR, specimen()).end() == []


@pytest.mark.clause("framing-16")
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        BODY[:-1],
        BODY + BODY,
        BODY + b"x",
        b"\xff",
        BODY.replace(b"get_data", b"\xe9"),
        b'{"jsonrpc":"2.0","id":NaN,"method":"get_data"}',
        b'{"jsonrpc":"2.0","id":1,"method":"get_data","x":Infinity}',
        b"[" * 65 + b"]" * 65,
        b"\xef\xbb\xbf" + BODY,
        BODY + b"\0",
    ],
)
def test_a_body_that_is_not_one_json_value_is_a_parse_error(body: bytes) -> None:
    assert faults(frame(body)) == PARSE_ERROR


@pytest.mark.clause("framing-17")
@pytest.mark.parametrize("missing", [1, 5, N // 2, N - 2])
def test_bytes_beyond_a_length_that_is_too_short_are_one_fault_with_the_body(missing: int) -> None:
    stream = b"Content-Length: %d\r\n\r\n%b" % (N - missing, BODY)
    assert faults(stream) == PARSE_ERROR
    assert faults(stream + b"\r\nmore of it\r\n\r\n") == PARSE_ERROR


@pytest.mark.clause("framing-17")
def test_a_length_that_is_too_long_eats_into_the_next_frame_and_no_further() -> None:
    stream = b"Content-Length: %d\r\n\r\n%b" % (N + 10, BODY)
    assert faults(stream + frame(BODY)) == PARSE_ERROR


@pytest.mark.clause("framing-18")
def test_a_frame_that_takes_too_long_is_dropped_without_an_answer() -> None:
    wire = frame(BODY)
    for cut in range(1, len(wire)):
        for _ in range(3):  # any number of times
            line = Line(EDITOR, specimen())
            assert line.send(Wire(wire[:cut])) == []
            assert line.framing.partial and line.framing.expire()
            assert line.send(Wire(NEXT)) == [NEXT_ANSWER]


@pytest.mark.clause("framing-22")
def test_the_rest_of_a_frame_that_took_too_long_is_dropped() -> None:
    wire = frame(BODY)
    header = wire.index(b"\r\n\r\n") + 4
    for cut in range(header + 1, len(wire)):
        line = Line(EDITOR, specimen())
        line.send(Wire(wire[:cut]))
        assert line.framing.expire()
        assert line.send(Wire(wire[cut:] + NEXT)) == [NEXT_ANSWER]


@pytest.mark.clause("framing-23")
def test_an_idle_connection_never_times_out() -> None:
    line = Line(EDITOR, specimen())
    assert not line.framing.partial and not line.framing.expire()
    line.send(BODY)
    assert not line.framing.partial and not line.framing.expire()


@pytest.mark.clause("framing-12", "framing-19", "framing-20")
@pytest.mark.parametrize(
    "garbage",
    [
        b"hello\r\n\r\n",
        b"hello",
        b"\r\n\r\nhello\r\n\r\n",
        b"{}\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\0\0\0\0",
        b"\xff\xfe\xfd",
        b"Traceback (most recent call last):\n  File\n",
        b"a" * 1000,
        b"Content-Length 5\r\n\r\n",
        b"Content-Length: 5\n\n",
        b": 5\r\n\r\n",
    ],
)
def test_a_run_of_garbage_has_one_answer(garbage: bytes) -> None:
    before = faults(garbage)
    assert len(before) == 1
    assert before[0].code == -32600 and before[0].id is None


@pytest.mark.clause("framing-19")
def test_a_header_in_mid_line_is_found() -> None:
    assert len(faults(b"debug: starting up...")) == 1


@pytest.mark.clause("framing-7")
@pytest.mark.parametrize("blanks", [b"\r\n", b"\n", b"  \r\n\t\r\n", b"\r\n" * 50])
def test_blank_lines_between_frames_are_nothing(blanks: bytes) -> None:
    assert answers_before_the_next(frame(BODY) + blanks) == [ANSWER]


@pytest.mark.clause("sockets-1")
def test_on_a_socket_the_connection_is_closed_instead() -> None:
    line = Line(SPEC, specimen(), closes_on_lost_boundary=True)
    answers = line.send(Wire(frame(BODY) + b"garbage\r\n\r\n" + NEXT))
    assert answers[0] == ANSWER and refusal(answers[1]).code == -32600
    assert len(answers) == 2 and line.connection.broken


# Lines.


def lines(*items: bytes) -> list[bytes]:
    framing = LineFraming(max_message_bytes=300)
    return Line(SMALL, specimen(), framing=framing).send(*(Wire(item) for item in items))


@pytest.mark.clause("framing-26")
def test_one_message_a_line() -> None:
    assert lines(BODY + b"\n" + NEXT_BODY + b"\r\n") == [ANSWER, NEXT_ANSWER]
    assert lines(BODY[:9], BODY[9:], b"\n", b"\n\n") == [ANSWER]


@pytest.mark.clause("framing-27")
def test_lines_have_the_same_limits_and_recovery() -> None:
    for bad, fault in (
        (b"{", PARSE_ERROR[0]),
        (b"\xff", PARSE_ERROR[0]),
        (b"garbage", PARSE_ERROR[0]),
        (b"x" * 301, invalid("oversize")[0]),
    ):
        first, second = lines(bad + b"\n" + NEXT_BODY + b"\n")
        assert refusal(first) == fault
        assert second == NEXT_ANSWER


@pytest.mark.clause("framing-28")
def test_a_line_cut_by_the_end_is_a_parse_error() -> None:
    line = Line(EDITOR, specimen(), framing=LineFraming())
    line.send(Wire(BODY))
    assert [refusal(answer) for answer in line.end()] == PARSE_ERROR


@pytest.mark.clause("framing-26")
def test_answers_are_framed_as_requests_are() -> None:
    line = Line(EDITOR, specimen(), framing=LineFraming())
    line.send(BODY)
    assert line.host.writes == [ANSWER + b"\n"]
    assert result(ANSWER) == ["hello", 5]
    assert HeaderFraming.encode(b"{}") == b"Content-Length: 2\r\n\r\n{}"


# At the limits of EDITOR itself.


def after(stream: bytes) -> list[bytes]:
    """Let a stream and a good frame arrive; return the answers but that to the good one."""
    *answers, last = exchange(EDITOR, specimen(), Wire(stream + NEXT))
    assert last == NEXT_ANSWER
    return answers


@pytest.mark.clause("framing-1", "framing-16")
def test_encoding_is_utf8_only() -> None:
    assert result(exchange(EDITOR, specimen(), request("echo", ["€"]))[0]) == "€"
    for encoding in ("utf-16", "utf-32", "latin-1"):
        body = '{"jsonrpc":"2.0","id":1,"method":"echo","params":["é"]}'.encode(encoding)
        assert refusal(after(frame(body))[0]).code == -32700


@pytest.mark.clause("framing-1")
def test_content_length_counts_bytes_and_not_characters() -> None:
    body = '{"jsonrpc":"2.0","id":1,"method":"echo","params":["é€😀"]}'.encode()
    assert result(after(frame(body))[0]) == "é€😀"
    characters = len(body.decode())
    wrong = b"Content-Length: %d\r\n\r\n%b" % (characters, body)
    assert refusal(after(wrong)[0]).code == -32700


@pytest.mark.clause("framing-8", "framing-13")
def test_a_request_of_ten_megabytes_is_taken_and_one_byte_more_is_not() -> None:
    largest = BODY + b" " * (10 * MIB - len(BODY))
    assert result(after(frame(largest))[0]) == ["hello", 5]
    assert [refusal(answer) for answer in after(frame(largest + b" "))] == [
        (-32600, "Invalid Request", "oversize", None)
    ]


@pytest.mark.clause("framing-3")
def test_an_answers_header_fits_into_a_hundred_bytes() -> None:
    # jsonrpc.el of Emacs 28 looks no further.
    line = Line(EDITOR, specimen())
    line.send(request("echo", ["x" * MIB]), b"{")
    for written in line.host.writes:
        assert written.index(b"\r\n\r\n") < 100
