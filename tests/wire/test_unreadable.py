"""Whose answer a message is that cannot be read: its two ends tell, and nothing inside does."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duet_rpc.wire.unreadable import Glimpse, glimpse

LONG = "x" * 2000


def ends(message: Any, size: int = 256) -> Glimpse | None:
    """Look at a message of which only the ends are there."""
    body = json.dumps(message).encode() if not isinstance(message, bytes) else message
    return glimpse(body[:size], body[-size:])


def answer(id: bytes | None) -> Glimpse:
    return Glimpse(is_array=False, is_request=False, is_answer=True, id=id)


@pytest.mark.parametrize(
    "members",
    [
        ("jsonrpc", "id", "result"),
        ("id", "jsonrpc", "result"),
        ("jsonrpc", "result", "id"),  # gopls
        ("result", "jsonrpc", "id"),  # MCP's TypeScript SDK
        ("result", "id", "jsonrpc"),
        ("jsonrpc", "error", "id"),
        ("id", "error"),
        ("result", "id"),
    ],
)
@pytest.mark.parametrize("indent", [None, 2])
def test_the_id_is_found_wherever_it_stands(members: tuple[str, ...], indent: int | None) -> None:
    values = {"jsonrpc": "2.0", "id": 17, "result": [LONG], "error": {"data": [LONG]}}
    body = json.dumps({name: values[name] for name in members}, indent=indent).encode()
    assert ends(body) == answer(b"17")


@pytest.mark.parametrize(
    "inside",
    [
        '"id":5',
        ',"id":5}',
        '","id":5}',
        '\\","id":5}',
        '\\\\","id":5}',
        '"},"id":5}',
        '{"id":5}',
        '","jsonrpc":"2.0","id":5}',
        '","method":"m"}',
    ],
)
@pytest.mark.parametrize("where", ["text", "name", "object", "list"])
def test_what_a_result_holds_is_not_mistaken_for_the_envelope(inside: str, where: str) -> None:
    hidden: Any = {
        "text": inside,
        "name": {inside: 1},
        "object": {"id": 5, "method": inside},
        "list": [[{"id": 5}, inside]],
    }[where]
    for result in (hidden, [hidden, LONG], [LONG, hidden], [hidden, LONG, hidden]):
        assert ends({"jsonrpc": "2.0", "result": result, "id": 17}) == answer(b"17")
        assert ends({"jsonrpc": "2.0", "id": 17, "result": result}) == answer(b"17")
        found = ends({"jsonrpc": "2.0", "result": result})
        assert found == answer(None), "an envelope without an id has none"


json_values = st.recursive(
    st.one_of(st.integers(), st.text(), st.sampled_from(['"id":5}', ',"id":5}', '","id":5}'])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(["id", "method", "result", "jsonrpc", "a"]), inner),
    ),
    max_leaves=12,
)


@given(json_values, st.booleans(), st.integers(1, 10**6), st.integers(20, 300))
def test_nothing_inside_is_ever_taken_for_the_id(
    result: Any, is_first: bool, id: int, size: int
) -> None:
    message = {"id": id, "result": result} if is_first else {"result": result, "id": id}
    found = ends(message, size)
    assert found is not None and not found.is_request
    assert found.id in (None, b"%d" % id)


@pytest.mark.parametrize(
    "message",
    [
        {"jsonrpc": "2.0", "id": 1, "method": "m", "params": [LONG]},
        {"method": "m", "params": [LONG], "jsonrpc": "2.0", "id": 1},
        {"params": [LONG], "jsonrpc": "2.0", "id": 1},
        {"more": LONG, "method": "m", "id": 1},
        {"jsonrpc": "2.0", "method": "m", "params": {"result": LONG}},
        [{"jsonrpc": "2.0", "id": 1, "method": "m"}, LONG],
    ],
)
def test_a_request_is_known_as_one(message: Any) -> None:
    found = ends(message)
    assert found is not None and found.is_request and not found.is_answer


def test_an_id_alone_does_not_make_an_answer() -> None:
    for message in ({"jsonrpc": "2.0", "id": 3, "more": LONG}, b'{"jsonrpc":"2.0","id":3,'):
        found = ends(message)
        assert found is not None and (found.is_request, found.is_answer) == (False, False)
        assert found.id == b"3"


def test_ids_that_are_none_of_ours() -> None:
    for id in ('"3"', "null", "3.0", "-3", "true"):
        found = glimpse(b'{"id":%b,"result":1}' % id.encode())
        assert found is not None and found.id is not None and not found.id.isdigit()
    twice = [b'{"id":1,"id":2,"result":1}', b'{"id":1,"result":"%b","id":2}' % LONG.encode()]
    assert [found and found.id for found in map(ends, twice)] == [b"", b""]
    assert glimpse(b'{"result":1,"id":12') == answer(None), "it may have been cut"


@pytest.mark.parametrize("line", [b"", b"Listening on port 80", b"[INFO] up", b"17", b'"{"', b"[]"])
def test_what_a_program_prints_is_no_message(line: bytes) -> None:
    assert glimpse(line, line) is None


def test_arrays() -> None:
    items = [{"jsonrpc": "2.0", "result": LONG, "id": n} for n in (3, 4)]
    assert ends(items) == Glimpse(is_array=True, is_request=False, is_answer=True, id=b"4")
    items = [{"jsonrpc": "2.0", "id": n, "result": LONG} for n in (3, 4)]
    assert ends(items) == Glimpse(is_array=True, is_request=False, is_answer=True, id=b"3")
