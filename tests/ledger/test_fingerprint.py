"""The fingerprint: the same request in any spelling, and nothing but the same request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.json import encode

from duet_rpc.ledger.fingerprint import fingerprint

SAME = [
    (b'{"a":1,"b":[2,{"c":3,"d":4}]}', b'{ "b" : [2, {"d":4,"c":3}], "a" : 1 }'),
    ('{"a":"é"}'.encode(), b'{"a":"\\u00e9"}'),
    (b'{"a":1}', b'{"a":1,"idempotency_key":"k","_meta":{"traceparent":"00-1"}}'),
    (None, b"{}"),
    (b"null", b"[]"),
    (b'{"idempotency_key":"k"}', None),
    (b"[1.5]", b"[15e-1]"),
    (b"[0.10000000000000000000001]", b"[1.0000000000000000000001e-1]"),
    (b"[1e400]", b"[10e399]"),
]
OTHER = [
    (b'{"a":1}', b'{"a":2}'),
    (b'{"a":1}', b'{"a":1.0}'),
    (b'{"a":null}', b"{}"),
    (b"[1,2]", b"[2,1]"),
    (b'{"a":{"_meta":1}}', b'{"a":{"_meta":2}}'),
    (b"[0]", b"[]"),
    (b"[100000000000000000000000000001]", b"[100000000000000000000000000002]"),
    (b"[12345678901234567890.12]", b"[12345678901234567890.13]"),
    (b"[0.1]", b"[0.10000000000000000000001]"),
    (b"[1e400]", b"[1e401]"),
]


@pytest.mark.parametrize("one, two", SAME)
def test_spelling_does_not_matter(one: bytes | None, two: bytes | None) -> None:
    assert fingerprint("m", one) == fingerprint("m", two)


@pytest.mark.parametrize("one, two", OTHER)
def test_values_do(one: bytes | None, two: bytes | None) -> None:
    assert fingerprint("m", one) != fingerprint("m", two)


def test_the_method_counts() -> None:
    assert fingerprint("m", b"[1]") != fingerprint("n", b"[1]")


def test_volatile_members_are_left_out() -> None:
    one, two = b'{"a":1,"sent_at":"now"}', b'{"a":1,"sent_at":"later"}'
    assert fingerprint("m", one, {"sent_at"}) == fingerprint("m", two, {"sent_at"})
    assert fingerprint("m", one) != fingerprint("m", two)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_the_order_of_members_never_matters(params: dict[str, object]) -> None:
    turned = dict(reversed(params.items()))
    assert fingerprint("m", encode(params)) == fingerprint("m", encode(turned))
