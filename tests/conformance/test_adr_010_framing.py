"""ADR-010: RPC I/O framing and stdout discipline, clause by clause.

The stdout clauses need a process and are proved with the daemon; the full table of faults is in
`test_section_2_framing.py`.
"""

import json

import pytest

from duet_rpc.policy import EDITOR
from tests.conformance.specimen import specimen
from tests.helpers import Line, Wire, exchange, frame, ids, refusal, request, result

MIB = 1024 * 1024
BODY = b'{"jsonrpc":"2.0","id":1,"method":"get_data"}'
TYPE = b"Content-Type: application/vscode-jsonrpc; charset=utf-8\r\n"


def after(stream: bytes) -> list[bytes]:
    """Let a stream and a good frame arrive; return the answers, of which the last is the good."""
    answers = exchange(EDITOR, specimen(), Wire(stream + frame(request("echo", id="next"))))
    assert json.loads(answers[-1])["id"] == "next"
    return answers[:-1]


def test_transport_is_a_length_a_blank_line_and_json() -> None:
    line = Line(EDITOR, specimen())
    line.send(Wire(b"Content-Length: 44\r\n\r\n" + BODY))
    assert line.host.writes == [
        b'Content-Length: 45\r\n\r\n{"jsonrpc":"2.0","id":1,"result":["hello",5]}'
    ]


def test_encoding_is_utf8_only() -> None:
    assert result(exchange(EDITOR, specimen(), request("echo", ["€"]))[0]) == "€"
    for encoding in ("utf-16", "utf-32", "latin-1"):
        body = '{"jsonrpc":"2.0","id":1,"method":"echo","params":["é"]}'.encode(encoding)
        assert refusal(after(frame(body))[0]).code == -32700


def test_content_length_is_required() -> None:
    assert refusal(after(TYPE + b"\r\n")[0]).code == -32600


def test_content_length_counts_bytes_and_not_characters() -> None:
    body = '{"jsonrpc":"2.0","id":1,"method":"echo","params":["é€😀"]}'.encode()
    assert result(after(frame(body))[0]) == "é€😀"
    characters = len(body.decode())
    wrong = b"Content-Length: %d\r\n\r\n%b" % (characters, body)
    assert refusal(after(wrong)[0]).code == -32700


def test_content_type_is_optional() -> None:
    assert result(after(TYPE + frame(BODY))[0]) == ["hello", 5]
    assert result(after(frame(BODY))[0]) == ["hello", 5]


@pytest.mark.parametrize("charset", [b"utf-8", b"UTF-8", b"Utf-8"])
def test_charset_is_case_insensitive_and_order_not_significant(charset: bytes) -> None:
    for parameters in (b"; charset=%b; a=b", b"; a=b; charset=%b"):
        kind = b"Content-Type: application/vscode-jsonrpc" + parameters % charset + b"\r\n"
        assert result(after(kind + frame(BODY))[0]) == ["hello", 5]


def test_wrong_media_type_is_an_error() -> None:
    wrong = b"Content-Type: application/json; charset=utf-8\r\n" + frame(BODY)
    assert [refusal(answer)[:3] for answer in after(wrong)] == [
        (-32600, "Invalid Request", "unsupported-content-type")
    ]


def test_wrong_charset_is_an_error() -> None:
    wrong = TYPE.replace(b"utf-8", b"utf-16") + frame(BODY)
    assert [refusal(answer)[:3] for answer in after(wrong)] == [
        (-32600, "Invalid Request", "bad-charset")
    ]


def test_unknown_headers_are_ignored() -> None:
    assert result(after(b"X-Anything: at all\r\n" + frame(BODY))[0]) == ["hello", 5]


def test_header_names_are_case_insensitive() -> None:
    assert result(after(frame(BODY).replace(b"Content-Length", b"CONTENT-length"))[0]) == [
        "hello",
        5,
    ]


def test_a_request_of_ten_megabytes_is_taken_and_one_byte_more_is_not() -> None:
    largest = BODY + b" " * (10 * MIB - len(BODY))
    assert result(after(frame(largest))[0]) == ["hello", 5]
    assert [refusal(answer) for answer in after(frame(largest + b" "))] == [
        (-32600, "Invalid Request", "oversize", None)
    ]


def test_an_oversized_payload_is_refused_before_it_comes() -> None:
    line = Line(EDITOR, specimen())
    (answer,) = line.send(Wire(b"Content-Length: 10485761\r\n\r\n"))
    assert refusal(answer) == (-32600, "Invalid Request", "oversize", None)


def test_on_timeout_the_part_is_discarded_and_the_connection_stays_open() -> None:
    line = Line(EDITOR, specimen())
    for _ in range(3):  # consecutive timeouts do not end anything
        assert line.send(Wire(frame(BODY)[:-5])) == []
        assert line.framing.expire()
    assert ids(line.send(Wire(frame(BODY)))) == [1]


def test_fewer_bytes_than_the_length_are_a_parse_error() -> None:
    line = Line(EDITOR, specimen())
    line.send(Wire(frame(BODY)[:-1]))
    assert [refusal(answer) for answer in line.end()] == [(-32700, "Parse error", None, None)]


def test_more_bytes_than_the_length_are_a_parse_error() -> None:
    excess = frame(BODY).replace(b"44", b"43")
    assert [refusal(answer) for answer in after(excess)] == [(-32700, "Parse error", None, None)]


def test_partial_payloads_are_not_parsed() -> None:
    two = BODY + BODY
    assert [refusal(answer).code for answer in after(frame(two))] == [-32700]


def test_frames_are_processed_in_arrival_order() -> None:
    stream = b"".join(frame(request("echo", id=n)) for n in range(50))
    assert ids(after(stream)) == list(range(50))


def test_an_answers_header_fits_into_a_hundred_bytes() -> None:
    # jsonrpc.el of Emacs 28 looks no further.
    line = Line(EDITOR, specimen())
    line.send(request("echo", ["x" * MIB]), b"{")
    for written in line.host.writes:
        assert written.index(b"\r\n\r\n") < 100
