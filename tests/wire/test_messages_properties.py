"""Messages: what holds for any bytes."""

import json
from typing import Any

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from duet_rpc.wire.depth import SHALLOW, is_json_text, shallow_json
from duet_rpc.wire.messages import (
    Batch,
    Invalid,
    Notification,
    Request,
    Response,
    TooLarge,
    decode,
    encode_batch,
    encode_error,
    encode_notification,
    encode_request,
)

decode_shallow = msgspec.json.Decoder(shallow_json()).decode

json_values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(-1e9, 1e9), st.text()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=20,
)


def text(value: Any) -> bytes:
    return json.dumps(value).encode()


@given(st.binary(max_size=300), st.integers(1, 8), st.integers(0, 3))
@settings(max_examples=300)
@example(b"[" * 300, 8, 3)
@example(b'{"id":' * 50, 8, 3)
@example(b"\xef\xbb\xbf{}", 8, 3)
def test_no_bytes_make_decode_raise(body: bytes, depth: int, batch: int) -> None:
    message = decode(body, depth, batch)
    assert type(message) in (Request, Notification, Response, Invalid, Batch, TooLarge)
    assert repr(decode(bytearray(body), depth, batch)) == repr(message)


@given(json_values)
@settings(max_examples=200)
def test_any_json_is_a_message_or_an_invalid_request_but_no_parse_error(value: Any) -> None:
    message = decode(text(value), 64, 10)
    if isinstance(message, Invalid):
        assert message.error.code == -32600


@given(st.integers(1, 10**30), st.text(), st.one_of(st.lists(json_values), st.none()))
def test_a_request_comes_back_as_it_was_sent(id: int, method: str, params: Any) -> None:
    raw = None if params is None else text(params)
    expected = raw if params else None  # an empty list is no params
    assert decode(encode_request(id, method, raw), 64, 0) == Request(b"%d" % id, method, expected)
    assert decode(encode_notification(method, raw), 64, 0) == Notification(method, expected)


@given(st.integers(), json_values)
def test_a_result_is_read_as_it_was_sent(id: int, value: Any) -> None:
    answer = b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (text(id), text(value))
    assert decode(answer, 64, 0) == Response(text(id), text(value), None)


@given(st.lists(st.integers(1, 99), min_size=1, max_size=8), st.text())
def test_a_batch_comes_back_as_it_was_sent(ids: list[int], method: str) -> None:
    batch = decode(encode_batch([encode_request(id, method, None) for id in ids]), 64, 8)
    assert batch == Batch([Request(b"%d" % id, method, None) for id in ids])


@given(st.binary(max_size=50))
def test_an_error_answer_is_always_json(body: bytes) -> None:
    message = decode(body, 3, 2)
    if isinstance(message, Invalid):
        assert json.loads(encode_error(message.id, message.error))["error"]["code"] < 0


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    return 0


brackets = st.text(alphabet='[]{}"\\, a')
nested: st.SearchStrategy[Any] = st.recursive(
    brackets,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(brackets, inner, max_size=3)
    ),
    max_leaves=30,
)


@given(nested, st.integers(1, 6))
@settings(max_examples=300)
def test_depth_is_counted_as_a_parser_does(value: Any, limit: int) -> None:
    body = text(value) + b" " * 20
    assert is_json_text(body, limit) == (depth_of(value) <= limit)


@given(json_values)
@settings(max_examples=300)
@example([[[[[[[[1]]]]]]]])
@example([[[[[[[[[]]]]]]]]])
def test_a_shallow_value_is_decoded_as_any_other_and_a_deeper_one_is_refused(value: Any) -> None:
    body = text(value)
    try:
        seen = decode_shallow(body)
    except msgspec.ValidationError:
        assert not is_json_text(body, SHALLOW)
    else:
        assert is_json_text(body, SHALLOW)
        assert repr(seen) == repr(msgspec.json.decode(body))


@given(st.binary(max_size=60))
@settings(max_examples=300)
@example(b"1e400")
@example(b'"\xff"')
@example(b'{"a":1,"a":-0.0}')
@example(b"123456789012345678901234567890")
def test_whatever_bytes_are_no_value_are_no_shallow_value(body: bytes) -> None:
    def outcome(decode: Any) -> str:
        try:
            return repr(decode(body))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return type(error).__name__

    assert outcome(decode_shallow) == outcome(msgspec.json.decode)
