"""Messages: every form of the envelope, ids and params as raw bytes, limits of depth and batch."""

import json
import tracemalloc
from typing import Any

import pytest

from duet_rpc.errors import InvalidRequest, ParseError, RpcError
from duet_rpc.wire.depth import is_json_text
from duet_rpc.wire.messages import (
    Batch,
    Invalid,
    Message,
    Notification,
    Request,
    Response,
    TooLarge,
    decode,
    decode_error,
    encode_batch,
    encode_error,
    encode_notification,
    encode_request,
    error_object,
)


def read(body: bytes, *, depth: int = 64, batch: int = 10) -> Message:
    message = decode(body, depth, batch)
    # A body of several reads comes as a bytearray; nothing may depend on that.
    assert repr(decode(bytearray(body), depth, batch)) == repr(message)
    return message


def fault(body: bytes, *, depth: int = 64) -> tuple[int, str | None, bytes]:
    message = read(body, depth=depth)
    assert type(message) is Invalid
    return message.error.code, message.error.reason, message.id


ENVELOPE = (-32600, "invalid-envelope", b"null")


@pytest.mark.parametrize(
    "id",
    [b"1", b"0", b"-0", b"1.0", b"1e2", b"-1.5E+10", b"9" * 30, b"9" * 5000, b"1e999", b"null"]
    + [b'""', b'"a"', b'"\\u0061"', b'"\\/"', b'"\\""', '"é"'.encode(), b'"\\ud83d\\ude00"'],
)
def test_an_id_stays_the_bytes_that_came(id: bytes) -> None:
    for form in (
        b'{"jsonrpc":"2.0","id":%b,"method":"m"}',
        b' { "jsonrpc" : "2.0" , "id" : %b , "method" : "m" } ',
        b'{"method":"m","id":%b,"jsonrpc":"2.0"}',
    ):
        assert read(form % id) == Request(id, "m", None)


@pytest.mark.parametrize("id", [b"true", b"false", b"[]", b"[1]", b"{}", b'{"a":1}'])
def test_an_id_of_another_type_is_refused(id: bytes) -> None:
    assert fault(b'{"jsonrpc":"2.0","id":%b,"method":"m"}' % id) == (
        -32600,
        "invalid-id-type",
        b"null",
    )


def test_no_id_is_a_notification_and_null_is_an_id() -> None:
    assert read(b'{"jsonrpc":"2.0","method":"m"}') == Notification("m", None)
    assert read(b'{"jsonrpc":"2.0","method":"m","id":null}') == Request(b"null", "m", None)


@pytest.mark.parametrize("params", [b"null", b"[]", b"{}", b"[ ]", b"{\r\n\t }"])
def test_params_that_hold_nothing_are_none(params: bytes) -> None:
    body = b'{"jsonrpc":"2.0","id":1,"method":"m","params":%b}'
    assert read(body % params) == Request(b"1", "m", None)


@pytest.mark.parametrize("params", [b"[1]", b'{"a":1}', b"[null]", b'{"":{}}', b"[[]]", b"[{}]"])
def test_params_stay_the_bytes_that_came(params: bytes) -> None:
    body = b'{"jsonrpc":"2.0","id":1,"method":"m","params": %b }'
    assert read(body % params) == Request(b"1", "m", params)


@pytest.mark.parametrize("params", [b"1", b'"a"', b"true", b"false", b"1.5", b"-1"])
def test_params_of_another_type_are_refused_under_the_id(params: bytes) -> None:
    body = b'{"jsonrpc":"2.0","id":7,"method":"m","params":%b}'
    assert fault(body % params) == (-32600, "invalid-envelope", b"7")


@pytest.mark.parametrize(
    "version", [b"", b'"jsonrpc":"1.0",', b'"jsonrpc":2.0,', b'"jsonrpc":null,', b'"jsonrpc":"2",']
)
def test_the_version_must_be_said(version: bytes) -> None:
    assert fault(b'{%b"id":7,"method":"m"}' % version) == (-32600, "invalid-envelope", b"7")
    assert fault(b'{%b"method":"m"}' % version) == ENVELOPE


def test_a_version_may_be_spelled_with_escapes() -> None:
    assert read(b'{"jsonrpc":"\\u0032.0","id":1,"method":"m"}') == Request(b"1", "m", None)


@pytest.mark.parametrize("method", [b"1", b"null", b"[]", b"{}", b"true"])
def test_a_method_is_a_string(method: bytes) -> None:
    assert fault(b'{"jsonrpc":"2.0","id":"x","method":%b}' % method) == (
        -32600,
        "invalid-envelope",
        b'"x"',
    )


def test_neither_a_request_nor_an_answer_is_refused() -> None:
    assert fault(b'{"jsonrpc":"2.0","id":3}') == (-32600, "invalid-envelope", b"3")
    assert fault(b'{"jsonrpc":"2.0"}') == ENVELOPE
    assert fault(b'{"jsonrpc":"2.0","result":1}') == ENVELOPE  # whose?
    assert fault(b"{}") == ENVELOPE


@pytest.mark.parametrize("body", [b"1", b'"a"', b"null", b"true", b"-1.5", b'"[]"', b" 7 "])
def test_json_that_is_no_object_is_an_invalid_request(body: bytes) -> None:
    assert fault(body) == ENVELOPE


def test_unknown_members_are_ignored_and_the_last_of_equal_ones_counts() -> None:
    body = b'{"jsonrpc":"2.0","x":[{"y":"z"}],"id":1,"id":2,"method":"a","method":"b","meta":null}'
    assert read(body) == Request(b"2", "b", None)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b'{"jsonrpc":"2.0","id":1,"method":"m"',
        b'{"jsonrpc":"2.0","id":1,"method":"m"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"m"}{"jsonrpc":"2.0","id":2,"method":"m"}',
        b'{"jsonrpc":"2.0","id":1,"method":"m"} x',
        b'{"jsonrpc":"2.0","id":NaN,"method":"m"}',
        b'{"jsonrpc":"2.0","id":01,"method":"m"}',
        b'{"jsonrpc":"2.0","id":1,"method":"m","x":tru}',
        b'{"jsonrpc":"2.0","id":1,"method":"m","x":[1,]}',
        b'{"jsonrpc":"2.0","id":1,"method":"m","x":"\\q"}',
        b'{"jsonrpc":"2.0","id":1,"method":"m","x":"\x01"}',
        b'{"jsonrpc":"2.0","id":1,"method":"m","x":"\\ud800}',
        b'{"jsonrpc":"2.0","id":1,"method":"m","x":"\\ud800","y":NaN}',
        b'{"jsonrpc":"2.0","id":1,"method":"\xff"}',
        b'{"jsonrpc":"2.0","id":1,"method":"m","x":"\xed\xa0\x80"}',
        b'{"jsonrpc":"2.0","id":1,"method":"m","x":"\xc0\xaf"}',
        b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"m"}',
        b'{"jsonrpc":"2.0","id":1,"method":"m"}\0',
        '{"jsonrpc":"2.0","id":1,"method":"m"}'.encode("utf-16"),
        b"'a'",
        b"[1",
        b"[1,]",
        b"[",
        b"]",
        b"Infinity",
    ],
)
def test_what_is_not_one_json_value_is_a_parse_error(body: bytes) -> None:
    assert fault(body) == (-32700, None, b"null")


def test_a_parse_error_says_what_to_send() -> None:
    message = read(b"{", depth=7)
    assert type(message) is Invalid
    assert message.error.data == {"detail": "send one JSON value in UTF-8, nested at most 7 deep"}


# Answers to calls of ours.


def test_answers_are_responses() -> None:
    assert read(b'{"jsonrpc":"2.0","id":1,"result":null}') == Response(b"1", b"null", None)
    assert read(b'{"jsonrpc":"2.0","id":1,"error":{"code":1}}') == Response(
        b"1", None, b'{"code":1}'
    )
    assert read(b'{"jsonrpc":"2.0","id":null,"error":{}}') == Response(b"null", None, b"{}")


def test_a_result_beside_a_null_error_is_a_result() -> None:
    body = b'{"jsonrpc":"2.0","id":1,"result":5,"error":null}'
    assert read(body) == Response(b"1", b"5", None)
    both = b'{"jsonrpc":"2.0","id":1,"result":5,"error":{}}'
    assert read(both) == Response(b"1", b"5", b"{}")


# Batches.


def test_a_batch_is_its_messages_in_order() -> None:
    body = b' [ {"jsonrpc":"2.0","id":1,"method":"a"} , {"jsonrpc":"2.0","method":"b"}, 1, [] ] '
    batch = read(body)
    assert type(batch) is Batch
    assert batch.items[:2] == [Request(b"1", "a", None), Notification("b", None)]
    assert [type(item) for item in batch.items[2:]] == [Invalid, Invalid]
    assert read(b"[]") == Batch([])


def test_a_batch_beyond_the_limit_is_not_read() -> None:
    item = b'{"jsonrpc":"2.0","method":"a"}'
    assert type(read(b"[" + b",".join([item] * 10) + b"]")) is Batch
    assert read(b"[" + b",".join([item] * 11) + b"]") == TooLarge()
    # Commas inside of items and strings are none of the batch's.
    assert type(read(b'[[1,2,3,4,5,6,7,8,9,0,1],"a,b,c,d,e,f,g,h,i,j,k,l,m"]')) is Batch


def test_where_batches_are_refused_none_is_read() -> None:
    assert decode(b"[1]", 64, 0) == TooLarge()
    assert decode(b"[]", 64, 0) == Batch([])


def test_a_broken_batch_is_a_parse_error_however_long() -> None:
    assert fault(b"[" + b"1," * 20 + b"]") == (-32700, None, b"null")
    assert fault(b"[" + b"1," * 20) == (-32700, None, b"null")


# Depth.


def nested(depth: int, *, form: bytes = b"[]") -> bytes:
    """Write a request nested so deep, the envelope and the params included."""
    if form == b"[]":
        inner = b"[" * (depth - 1) + b"]" * (depth - 1)
    else:
        inner = b'{"a":' * (depth - 2) + b"{}" + b"}" * (depth - 2)
    return b'{"jsonrpc":"2.0","id":1,"method":"m","params":%b}' % inner


@pytest.mark.parametrize("form", [b"[]", b"{}"])
@pytest.mark.parametrize("limit", [3, 8, 64])
def test_nesting_up_to_the_limit_is_read(form: bytes, limit: int) -> None:
    assert type(read(nested(limit, form=form), depth=limit)) is Request
    assert fault(nested(limit + 1, form=form), depth=limit) == (-32700, None, b"null")


def test_brackets_in_strings_are_not_nesting() -> None:
    for text in ("[" * 200, '\\"[' * 200, "\\\\" * 9 + "[" * 99, '"' + "[" * 99, "]" * 99, '[","'):
        body = json.dumps(
            {"jsonrpc": "2.0", "id": 1, "method": "m", "params": [text, [text], text]}
        )
        assert type(read(body.encode(), depth=4)) is Request


def test_depth_is_measured_across_chunks() -> None:
    # Strings with brackets that no pair of quotes cuts short, across the borders of chunks.
    item = '["a[",[1],"]b",{"[":"{"}],'
    many = item * 20_000
    shallow = f'{{"jsonrpc":"2.0","id":1,"method":"m","params":[{many}1]}}'.encode()
    assert type(decode(shallow, 4, 0)) is Request
    assert type(decode(shallow, 3, 0)) is Invalid
    deep = f'{{"jsonrpc":"2.0","id":1,"method":"m","params":[{many}[[[1]]]]}}'.encode()
    assert type(decode(deep, 5, 0)) is Request
    assert type(decode(deep, 4, 0)) is Invalid


@pytest.mark.parametrize("limit", [6, 8, 64])
@pytest.mark.parametrize("filler", ['"a long text"', '[["a",{"b":1}],{"c":[]}]', '"[", "]]"', "1"])
def test_depth_is_measured_exactly_in_large_bodies(filler: str, limit: int) -> None:
    filling = ",".join([filler] * (200_000 // len(filler)))
    inside = limit - 2
    for nest in ("[" * inside + "]" * inside, '{"a":' * inside + "1" + "}" * inside):
        body = f'{{"jsonrpc":"2.0","id":1,"method":"m","params":[{filling},{nest}]}}'.encode()
        assert type(decode(body, limit, 0)) is Request
        assert type(decode(body, limit - 1, 0)) is Invalid


def test_a_wide_and_shallow_body_is_not_deep() -> None:
    body = b'{"jsonrpc":"2.0","id":1,"method":"m","params":[' + b"[]," * 999 + b"[]]}"
    assert type(read(body, depth=3)) is Request
    assert type(read(body, depth=2)) is Invalid


@pytest.mark.parametrize("body", [b"[" * 5000, b"]" * 5000, b'{"a":' * 5000, b"[]" * 500])
def test_unbalanced_nests_are_parse_errors(body: bytes) -> None:
    assert fault(body) == (-32700, None, b"null")


def test_a_depth_that_only_the_decoder_notices_is_a_parse_error() -> None:
    assert fault(b'{"a":' * 3000 + b"1" + b"}" * 3000, depth=10_000) == (-32700, None, b"null")


def test_the_text_check_stands_alone() -> None:
    assert is_json_text(b"[[[]]]", 3) and is_json_text(b"not json at all", 3)
    assert not is_json_text(b"[[[[]]]] ", 3)
    assert not is_json_text(b"\xff", 3)
    assert is_json_text("é".encode(), 3)


def test_reading_large_nests_takes_little_memory() -> None:
    quoted = b'{"jsonrpc":"2.0","id":1,"method":"m","params":[' + b'"[",[],' * 150_000 + b"1]}"
    listed = b"[" + b"{}," * 350_000 + b"{}]"
    for body in (quoted, listed):
        tracemalloc.start()
        decode(body, 64, 50)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 8 * len(body)


# Out.


def test_answers_hold_the_ids_own_bytes() -> None:
    assert encode_error(b'"\\u0061"', ParseError()) == (
        b'{"jsonrpc":"2.0","id":"\\u0061","error":{"code":-32700,"message":"Parse error"}}'
    )
    assert encode_batch([b"1", b"2"]) == b"[1,2]"


def test_calls_of_ours() -> None:
    assert encode_request(1, "m", None) == b'{"jsonrpc":"2.0","id":1,"method":"m"}'
    assert encode_request(2, 'a"b', b"[1]") == (
        b'{"jsonrpc":"2.0","id":2,"method":"a\\"b","params":[1]}'
    )
    assert encode_notification("m", None) == b'{"jsonrpc":"2.0","method":"m"}'
    assert encode_notification("m", b"{}") == b'{"jsonrpc":"2.0","method":"m","params":{}}'


def test_an_error_carries_its_data_if_there_is_any() -> None:
    assert json.loads(error_object(InvalidRequest.because("oversize", limit=3))) == {
        "code": -32600,
        "message": "Invalid Request",
        "data": {"reason": "oversize", "limit": 3},
    }


def itself() -> list[Any]:
    ring: list[Any] = []
    ring.append(ring)
    return ring


@pytest.mark.parametrize("data", [object(), {"a": {1, object()}}, ["\ud800", object()], itself()])
def test_data_that_cannot_be_written_is_left_out(data: Any) -> None:
    assert json.loads(error_object(RpcError("no", code=5, data=data))) == {
        "code": 5,
        "message": "no",
    }


def test_a_message_that_is_no_text_is_made_one() -> None:
    assert json.loads(error_object(RpcError("\ud800!", code=5)))["message"] == "\ud800!"
    assert json.loads(error_object(RpcError(404, code=5)))["message"] == "404"  # type: ignore[arg-type]


class Broken(RpcError):
    code = 4711

    def __init__(self, message: Any = None) -> None:
        self.message = message

    @property
    def data(self) -> Any:
        raise KeyError("of somebody's own")


class Speechless:
    def __str__(self) -> str:
        raise KeyError("of somebody's own")


def test_an_error_that_fails_itself_is_answered_all_the_same() -> None:
    assert json.loads(error_object(Broken("broken"))) == {"code": 4711, "message": "broken"}
    assert json.loads(error_object(Broken(Speechless())))["message"] == "Internal error"
    told = decode_error(b'{"code":4711,"message":"broken","data":1}')
    assert told is not None and (told.code, told.message, told.data) == (4711, "broken", 1)


def test_the_error_of_an_answer_is_read() -> None:
    error = decode_error(b'{"code":-32601,"message":"Method not found","data":[1],"more":2}')
    assert error is not None
    assert (error.code, error.message, error.data) == (-32601, "Method not found", [1])


@pytest.mark.parametrize(
    "raw", [b"null", b"{}", b'{"code":1}', b'{"code":"1","message":"x"}', b'"text"', b"["]
)
def test_a_malformed_error_is_none(raw: bytes) -> None:
    assert decode_error(raw) is None
