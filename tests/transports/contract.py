"""One table of calls that mean the same over every transport: bytes in, bodies out.

`EXCHANGES` is for a peer that knows only bytes; `CALLS` for the clients.
"""

import json
from typing import Any, NamedTuple

from tests.transports.lines import frame, notification, request


class Exchange(NamedTuple):
    """What is written, piece by piece, and the answers that come, in any order."""

    name: str
    writes: list[bytes]
    answers: list[bytes]


def _answer(id: str, result: Any) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (id.encode(), _json(result))


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


_TEXT = "grüße, 世界 \U0001f600"
_LARGE = "x" * 3_000_000
_ADD = request("test.add", [1, 2])

EXCHANGES = [
    Exchange("one request", [_ADD], [_answer("1", 3)]),
    Exchange("named params", [request("test.add", {"a": 1, "b": 2})], [_answer("1", 3)]),
    Exchange(
        "ids as they were spelled",
        [
            frame(b'{"jsonrpc":"2.0","id":%b,"method":"test.add","params":[1,2]}' % id)
            for id in (b"1.0", b"1e2", b'"\\u0041"', b"null", b"123456789012345678901234567890")
        ],
        [
            _answer(id, 3)
            for id in ("1.0", "1e2", '"\\u0041"', "null", "123456789012345678901234567890")
        ],
    ),
    Exchange("byte by byte", [bytes([byte]) for byte in _ADD], [_answer("1", 3)]),
    Exchange("two in one write", [_ADD + _ADD], [_answer("1", 3)] * 2),
    Exchange(
        "header and body apart", [_ADD[: _ADD.index(b"{")], _ADD[_ADD.index(b"{") :]],
        [_answer("1", 3)],
    ),
    Exchange("not only ASCII", [request("test.echo", [_TEXT])], [_answer("1", _TEXT)]),
    Exchange("a large body", [request("test.echo", [_LARGE])], [_answer("1", _LARGE)]),
    Exchange(
        "a notification is not answered",
        [notification("test.effect", ["nothing"]), _ADD],
        [_answer("1", 3)],
    ),
    Exchange(
        "many in flight",
        [b"".join(request("test.add", [id, 1], id) for id in range(1, 501))],
        [_answer(str(id), id + 1) for id in range(1, 501)],
    ),
    Exchange(
        "threads and tasks together",
        [
            request("test.nap", [0.01], 1)
            + request("test.echo", [2], 2)
            + request("test.add", [1, 2], 3)
        ],
        [_answer("1", 0.01), _answer("2", 2), _answer("3", 3)],
    ),
    Exchange(
        "a batch",
        [frame(b"[%b,%b]" % (_ADD.partition(b"\r\n\r\n")[2], _ADD.partition(b"\r\n\r\n")[2]))],
        [b"[%b,%b]" % (_answer("1", 3), _answer("1", 3))],
    ),
]  # fmt: skip


class Call(NamedTuple):
    """A call, and its result or the code of its error."""

    method: str
    params: Any
    result: Any = None
    code: int | None = None


CALLS = [
    Call("test.add", [1, 2], 3),
    Call("test.add", {"a": 1, "b": 2}, 3),
    Call("test.echo", {"value": None}, None),
    Call("test.echo", [_TEXT], _TEXT),
    Call("test.echo", [[0, "", False, {}, [], None]], [0, "", False, {}, [], None]),
    Call("test.echo", [_LARGE], _LARGE),
    Call("test.nap", [0.01], 0.01),
    Call("test.fail", [7], code=404),
    Call("test.nothing", None, code=-32601),
    Call("test.add", {"a": 1, "b": "two"}, code=-32602),
    Call("test.ask", ["how much?"], "how much? a lot"),
]
