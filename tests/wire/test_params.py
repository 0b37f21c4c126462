"""What travels beside params: one function puts it in, others take it out, and nothing is lost."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from duet_rpc.errors import InvalidParams, UsageError
from duet_rpc.wire.params import (
    NO_META,
    Meta,
    RetryAge,
    add_metadata,
    find_key,
    read_key,
    read_meta,
    read_retry,
)

RETRY = RetryAge(2, 350)


def added(params: str | None, **beside: Any) -> Any:
    """Add metadata, and read what came of it as a parser that refuses repeated names."""
    encoded = add_metadata(None if params is None else params.encode(), **beside)
    assert encoded is not None
    return json.loads(encoded, object_pairs_hook=once_each)


def once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({name for name, _ in pairs}) == len(pairs), f"a name stands twice in {pairs}"
    return dict(pairs)


@pytest.mark.parametrize("none", [None, "{}", "null"])
def test_without_params_metadata_stands_alone(none: str | None) -> None:
    assert added(none, key="k") == {"idempotency_key": "k"}
    assert added(none, progress_token=7) == {"_meta": {"progressToken": 7}}
    assert added(none, key="k", retry=RETRY, trace_parent="t") == {
        "idempotency_key": "k",
        "_meta": {"traceparent": "t", "retry": {"attempt": 2, "age_ms": 350}},
    }


def test_nothing_to_add_leaves_the_params_as_they_are() -> None:
    assert add_metadata(None) is None
    assert add_metadata(b"[1, 2]") == b"[1, 2]"


def test_plain_params_keep_their_spelling() -> None:
    encoded = add_metadata(b'{"a": 1.0, "b":1e2}', key="k")
    assert encoded == b'{"idempotency_key":"k","a": 1.0, "b":1e2}'


def test_a_meta_that_is_there_is_merged_with() -> None:
    params = '{"_meta": {"traceparent": "t", "theirs": 1.0}, "a": 1}'
    assert added(params, progress_token=7, retry=RETRY) == {
        "a": 1,
        "_meta": {
            "traceparent": "t",
            "theirs": 1.0,
            "progressToken": 7,
            "retry": {"attempt": 2, "age_ms": 350},
        },
    }
    assert added(params, key="k")["_meta"] == {"traceparent": "t", "theirs": 1.0}


@pytest.mark.parametrize("spelled", ['"_meta"', '"\\u005fmeta"'])
def test_a_meta_is_found_however_it_is_spelled(spelled: str) -> None:
    assert added(f'{{{spelled}: {{"x": 1}}}}', progress_token=7) == {
        "_meta": {"x": 1, "progressToken": 7}
    }


def test_metadata_added_in_two_steps_is_metadata_added_at_once() -> None:
    with_key = add_metadata(b'{"a":1}', key="k", retry=RETRY)
    assert with_key is not None
    assert added(with_key.decode(), progress_token=7) == added(
        '{"a":1}', key="k", retry=RETRY, progress_token=7
    )


@pytest.mark.parametrize(
    "params",
    [
        '{"idempotency_key": "mine"}',
        '{"idempotency\\u005fkey": "mine"}',
        '{"_meta": {"idempotency_key": "mine"}}',
        '{"idempotency_key": "mine", "_meta": {"idempotency_key": "mine"}}',
        '{"idempotency_key": null, "_meta": {"idempotency_key": "mine"}}',
    ],
)
def test_a_key_in_the_params_is_found_and_one_that_differs_is_refused(params: str) -> None:
    assert find_key(params.encode()) == "mine"
    assert added(params, key="mine")["idempotency_key"] == "mine"
    with pytest.raises(UsageError, match="two idempotency keys.*'other' and 'mine'"):
        add_metadata(params.encode(), key="other")


def test_two_keys_in_the_params_are_refused() -> None:
    params = b'{"idempotency_key": "a", "_meta": {"idempotency_key": "b"}}'
    with pytest.raises(UsageError, match="'a' and 'b'"):
        find_key(params)
    with pytest.raises(UsageError, match="'a' and 'b'"):
        add_metadata(params, key="a")


def test_a_key_is_text() -> None:
    for params in (b'{"idempotency_key": 7}', b'{"_meta": {"idempotency_key": [7]}}'):
        with pytest.raises(UsageError, match="is text"):
            find_key(params)


@pytest.mark.parametrize(
    "params", [None, b"[1]", b"{}", b'{"a":"idempotency_key"}', b'{"a":{"idempotency_key":"no"}}']
)
def test_what_only_looks_like_a_key_is_none(params: bytes | None) -> None:
    assert find_key(params) is None


def test_null_is_no_key() -> None:
    assert find_key(b'{"idempotency_key": null}') is None
    assert added('{"idempotency_key": null, "a": 1}', key="k") == {"idempotency_key": "k", "a": 1}


def test_params_by_position_have_no_room() -> None:
    with pytest.raises(UsageError, match="an idempotency key needs named params"):
        add_metadata(b"[1]", key="k")
    with pytest.raises(UsageError, match=r"_meta.progressToken needs named params"):
        add_metadata(b"[1]", progress_token=7)


def test_a_meta_that_is_no_object_cannot_be_added_to() -> None:
    assert added('{"_meta": 5}', key="k") == {"idempotency_key": "k", "_meta": 5}
    with pytest.raises(UsageError, match="_meta has to be a JSON object"):
        add_metadata(b'{"_meta": 5}', progress_token=7)


@pytest.mark.parametrize("name", ["progressToken", "traceparent", "retry"])
def test_what_the_params_say_already_is_not_overruled(name: str) -> None:
    ours: Any = {"progressToken": 7, "traceparent": "t", "retry": RETRY}
    argument = {"progressToken": "progress_token", "traceparent": "trace_parent"}.get(name, name)
    with pytest.raises(UsageError, match=f"_meta.{name} already"):
        add_metadata(b'{"_meta": {"%b": "theirs"}}' % name.encode(), **{argument: ours[name]})


NAMES = st.sampled_from(["_meta", "idempotency_key", "progressToken", "retry", "a", 'q"\\'])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


@given(
    st.dictionaries(NAMES.filter(lambda name: "key" not in name), JSON, max_size=4),
    st.one_of(st.none(), st.text(min_size=1, max_size=5)),
    st.one_of(st.none(), st.integers(1, 99)),
    st.booleans(),
)
def test_whatever_is_added_is_read_again_and_the_rest_stays(
    params: dict[str, Any], key: str | None, token: int | None, is_retry: bool
) -> None:
    retry = RETRY if is_retry else None
    try:
        encoded = add_metadata(
            json.dumps(params).encode(), key=key, progress_token=token, retry=retry
        )
    except UsageError:
        assert isinstance(params.get("_meta", 0), dict) or token is not None or is_retry
        return
    assert encoded is not None
    read = json.loads(encoded, object_pairs_hook=once_each)
    meta = read_meta(Raw(json.dumps(read["_meta"]).encode()) if "_meta" in read else UNSET)
    if key is not None and key.isprintable():
        beside = Raw(json.dumps(read["idempotency_key"]).encode())
        assert read_key(beside, meta, "pay", required=True) == key
    if is_retry:
        assert read_retry(meta) == RETRY
    if token is not None:
        assert read["_meta"]["progressToken"] == token
    for name in ("a", 'q"\\', "retry", "progressToken"):
        assert read.get(name, UNSET) == params.get(name, UNSET)


# Taking out.


def test_a_key_beside_the_params_and_in_meta_is_one_if_they_are_equal() -> None:
    meta = Meta(idempotency_key=Raw(b'"k"'))
    assert read_key(Raw(b'"k"'), meta, "pay", required=True) == "k"
    assert read_key(UNSET, meta, "pay", required=True) == "k"
    assert read_key(UNSET, NO_META, "pay", required=False) is None


@pytest.mark.parametrize("other", [b'"b"', b"7", b"null", b'"%b"' % (b"x" * 9999)])
def test_two_different_keys_are_refused(other: bytes) -> None:
    for beside, inside in ((b'"a"', other), (other, b'"a"')):
        with pytest.raises(InvalidParams) as caught:
            read_key(Raw(beside), Meta(idempotency_key=Raw(inside)), "pay", required=False)
        assert caught.value.reason == "idempotency-key-invalid"
        assert caught.value.data["received"] == "two different keys"
        assert "send one" in caught.value.data["detail"]


def test_the_age_of_a_retry_is_read() -> None:
    meta = read_meta(Raw(b'{"retry": {"attempt": 3, "age_ms": 1500, "later": true}}'))
    retry = read_retry(meta)
    assert retry == RetryAge(3, 1500) and retry.age == 1.5
    assert read_retry(NO_META) is None


@pytest.mark.parametrize(
    "retry",
    [
        b"null",
        b"true",
        b"2",
        b"[2,350]",
        b"{}",
        b'{"attempt":2}',
        b'{"age_ms":2}',
        b'{"attempt":1,"age_ms":350}',
        b'{"attempt":2,"age_ms":-1}',
        b'{"attempt":"2","age_ms":350}',
        b'{"attempt":2,"age_ms":350.5}',
        b'{"attempt":2,"age_ms":1e999}',
        b'{"attempt":2,"age_ms":%d}' % 2**60,
        b'{"attempt":2,"age_ms":%b}' % (b"9" * 5000),
    ],
)
def test_an_age_that_cannot_be_read_is_refused(retry: bytes) -> None:
    with pytest.raises(InvalidParams) as caught:
        read_retry(read_meta(Raw(b'{"retry":%b}' % retry)))
    assert caught.value.data["param"] == "_meta.retry"
    assert "age_ms: integer of 0 or more" in caught.value.data["expected"]


@pytest.mark.parametrize("space", ["", " ", "\n", " \t\r\n"])
def test_white_space_is_no_member(space: str) -> None:
    assert added(f"{space}{{{space}}}{space}", key="k") == {"idempotency_key": "k"}
    assert added(f"{space}null{space}", key="k") == {"idempotency_key": "k"}
    laid_out = f'{space}{{{space}"a": 1{space}}}{space}'
    assert added(laid_out, key="k", progress_token=7) == {
        "idempotency_key": "k",
        "_meta": {"progressToken": 7},
        "a": 1,
    }
    assert find_key(f'{space}{{{space}"idempotency_key":"in"}}'.encode()) == "in"
    with pytest.raises(UsageError, match="named params"):
        add_metadata(f"{space}[{space}]".encode(), key="k")
