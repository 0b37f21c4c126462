r"""Lone surrogates: `"\ud83d"` is JSON, and is read and written though msgspec refuses it."""

import json
from decimal import Decimal
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw, Struct, UnsetType

from duet_rpc.wire import surrogates

TEXTS = [
    rb'"\ud83d"',
    rb'"\udc00"',
    rb'"\uD83D\uDe00"',
    rb'"\ude00\ud83d"',
    rb'"\ud83d\ud83d\ude00"',
    rb'"\ud83d\ude00\ude00"',
    rb'"\\ud83d\ud83d"',
    rb'"\\\ud83d"',
    rb'"\ud83d\\ude00"',
    rb'"\ud83d\n\"\\\/"',
    rb'{"\ud83d":{"\ude00":["\ud83d",1,1.5,true,null]}}',
    rb'{"\ud83d":1,"\uD83D":2}',
    '["é\\ud83d€"]'.encode(),
    rb'"~0123456789abcdef~d83d\ud83d"',
]


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_read_is_what_python_reads(text: bytes) -> None:
    assert surrogates.decode(text) == json.loads(text)


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_written_is_read_again(text: bytes) -> None:
    value = json.loads(text)
    assert json.loads(surrogates.encode_value(value)) == value


@given(st.recursive(st.text(st.characters()), lambda inner: st.lists(inner, max_size=3)))
def test_any_text_comes_back(value: Any) -> None:
    written = surrogates.encode_value(value)
    decoder = msgspec.json.Decoder[Any]()
    # Two halves that stand together are one character wherever they are read.
    assert surrogates.decode_value(decoder, written) == json.loads(json.dumps(value))


@pytest.mark.parametrize("text", TEXTS)
def test_a_masked_text_is_given_back_as_it_was_spelled(text: bytes) -> None:
    masked = surrogates.mask(text)
    if masked is not None:
        assert bytes(msgspec.json.decode(masked.text, type=Raw)) == masked.text
        assert masked.unmask(masked.text) == text


@pytest.mark.parametrize("text", [rb'"\ud83d\ude00"', rb'"\\ud83d"', rb'"\u0041"', b'"a"', b""])
def test_a_text_without_any_is_not_touched(text: bytes) -> None:
    assert surrogates.mask(text) is None


@pytest.mark.parametrize(
    "text",
    [
        rb'"\ud83d',
        rb"\ud83d",
        rb'["\ud83d",NaN]',
        rb'["\ud83d",Infinity]',
        rb'["\ud83d",]',
        rb'["\ud83d"] 1',
        rb'["\ud83d",01]',
        rb'"\ud83d\ud83"',
        rb'"\ud83d\q"',
        b'["\\ud83d","\x01"]',
        b'["\\ud83d","\n"]',
        rb'{"\ud83d"}',
    ],
)
def test_what_is_not_json_is_refused_as_without_them(text: bytes) -> None:
    with pytest.raises(msgspec.DecodeError) as refused:
        surrogates.decode(text)
    assert not isinstance(refused.value, msgspec.ValidationError)


def test_numbers_are_judged_as_without_them() -> None:
    for number in (b"1e999", b"9" * 5000):
        with pytest.raises(msgspec.ValidationError, match="out of range"):
            surrogates.decode(rb'["\ud83d",%b]' % number)
    assert surrogates.decode(rb'["\ud83d",%b]' % (b"9" * 30)) == ["\ud83d", int("9" * 30)]


class Inner(Struct):
    raw: Raw = Raw(b"null")
    exact: Decimal | None = None
    whatever: Any = None


class Outer(Struct, kw_only=True):
    text: str
    key: Raw | UnsetType = UNSET
    inner: Inner | None = None
    many: list[Inner] = []
    places: tuple[str, Raw] | None = None
    counts: dict[str, int] = {}
    numbers: dict[int, str] = {}
    closed: Literal["a"] | None = None


def test_a_type_gets_what_it_would_get_from_other_text() -> None:
    text = rb"""{"text":"\ud83d","key": ["\uD83D", 1.0],"\ud83d":1,
        "inner":{"raw": {"a":"\ud83d","b":1.0},"exact":0.12345678901234567890123,
                 "whatever":[0.5,"\ud83d"],"\ude00":{}},
        "many":[{"exact":"1.5"},{"raw":1e2}],"places":["\udc00",-0],"counts":{"\ud83d":3},
        "numbers":{"1":"\ud83d"}}"""
    outer = surrogates.decode(text, Outer)
    assert outer.text == "\ud83d" and bytes(outer.key) == rb'["\uD83D", 1.0]'
    assert bytes(outer.inner.raw) == rb'{"a":"\ud83d","b":1.0}'
    assert outer.inner.exact == Decimal("0.12345678901234567890123")
    assert outer.inner.whatever == [0.5, "\ud83d"]
    assert outer.many[0].exact == Decimal("1.5") and bytes(outer.many[1].raw) == b"1e2"
    assert outer.places[0] == "\udc00" and bytes(outer.places[1]) == b"-0"
    assert (outer.counts, outer.numbers) == ({"\ud83d": 3}, {1: "\ud83d"})


@pytest.mark.parametrize("hint", [int, Decimal, Literal["a", "\ufffd"], bytes, dict[int, str]])
def test_a_type_without_room_for_one_refuses_it(hint: Any) -> None:
    text = rb'{"\ud83d":"a"}' if hint == dict[int, str] else rb'"\ud83d"'
    with pytest.raises(msgspec.ValidationError):
        surrogates.decode(text, hint)


class Tagged(Struct, tag=True):
    text: str


class Other(Struct, tag=True):
    text: str


def test_names_that_no_type_has_are_passed_over() -> None:
    for text in (rb'{"type":"Tagged","text":"a","\ud83d":1}', rb'{"\ud83d":1,"text":"a"}'):
        assert surrogates.decode(text, Tagged) == Tagged("a")
    text = rb'{"type":"Other","text":"\ud83d","x\ud83d":1}'
    assert surrogates.decode(text, Tagged | Other) == Other("\ud83d")


def test_values_that_are_json_already_are_written_as_they_are() -> None:
    value = {"a": "\ud83d", "raw": [Raw(b"1.0"), Raw(rb'"\uD83D"')], "nan": float("nan"), 1: 2}
    written = rb'{"a":"\ud83d","raw":[1.0,"\uD83D"],"nan":null,"1":2}'
    assert surrogates.encode_value(value) == written


def test_what_json_cannot_carry_is_refused_as_without_them() -> None:
    with pytest.raises(TypeError, match="Encoding objects of type object is unsupported"):
        surrogates.encode_value(["\ud83d", object()])


def test_a_layout_keeps_the_spelling() -> None:
    assert surrogates.layout(rb'{"\uD83D":[1.0]}', -1) == rb'{"\uD83D":[1.0]}'
    assert surrogates.layout(b'{"a":1}', 2) == b'{\n  "a": 1\n}'
