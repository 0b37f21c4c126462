"""One table: what a request over HTTP is answered with, on each host that serves it."""

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import Struct

from tests.http.served import HOSTS, Raw, call, request


class Case(Struct):
    """A request and its answer."""

    name: str
    sent: bytes
    status: int
    result: Any = None
    code: int | None = None
    """Of the error of JSON-RPC."""
    headers: dict[str, str] = {}
    only: str = ""
    """The host that it is about; for the other the framework has its own answer."""


ADD = call("shop.add", [1, 2])
PREFLIGHT = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
BIG = call("shop.echo", ["x" * 200_000])

CASES = [
    Case("a call", request(ADD), 200, result=3, headers={"content-type": "application/json"}),
    Case("a call that takes a thread", request(call("shop.echo", ["ö"])), 200, result="ö"),
    Case("an error of the service", request(call("shop.fail")), 200, code=7001),
    Case("an unknown method", request(call("shop.none")), 200, code=-32601),
    Case("params that do not fit", request(call("shop.add", [1, "2"])), 200, code=-32602),
    Case("a notification", request(call("shop.add", [1, 2], id=None)), 204),
    Case("no JSON", request(b"{"), 400, code=-32700),
    Case("two values", request(b"{}{}"), 400, code=-32700),
    Case("an empty body", request(b""), 400, code=-32700),
    Case("no envelope", request({"id": 1}), 200, code=-32600),
    Case("no envelope and no id", request({}), 400, code=-32600),
    Case("an empty batch", request([]), 400, code=-32600),
    Case("a batch that is too large", request([ADD] * 51), 400, code=-32600),
    Case("a batch of notifications", request([call("shop.add", [1, 2], id=None)]), 204),
    Case("a type with a charset", request(ADD, kind="Application/JSON; charset=UTF-8"), 200, 3),
    Case("an old type", request(ADD, kind="application/json-rpc"), 200, 3),
    Case("another charset", request(ADD, kind="application/json; charset=latin-1"), 415),
    Case("a text", request(ADD, kind="text/plain"), 415),
    Case("a form", request(ADD, kind="application/x-www-form-urlencoded"), 415),
    Case("no type", request(ADD, kind=None), 415),
    Case("a compressed body", request(ADD, headers={"Content-Encoding": "gzip"}), 415),
    Case("GET", request(method="GET", length=None), 405, headers={"allow": "POST, OPTIONS"}),
    Case("PUT", request(ADD, method="PUT"), 405),
    Case("DELETE", request(method="DELETE", length=None), 405),
    Case("OPTIONS", request(method="OPTIONS", length=None), 204),
    Case("another path", request(ADD, path="/other"), 404),
    Case("a query string", request(ADD, path="/?x=1"), 200, 3),
    Case("an escaped path", request(ADD, path="/%6fther"), 404),
    Case("another host", request(ADD, host="evil.example"), 421),
    Case("a host with a port", request(ADD, host="LocalHost:1234"), 200, 3),
    Case("no host", request(ADD, host=""), 400, only="listener"),
    Case("no host, HTTP/1.0", request(ADD, host="", version="1.0"), 200, 3),
    Case("two hosts", request(ADD, headers={"host": "127.0.0.1"}), 400),
    Case("a page of another site", request(ADD, headers={"Origin": "https://evil.example"}), 403),
    Case("a page without an origin", request(ADD, headers={"Origin": "null"}), 403),
    Case(
        "a page of an allowed site",
        request(ADD, headers={"Origin": "https://app.example"}),
        200,
        result=3,
        headers={"access-control-allow-origin": "https://app.example", "vary": "Origin"},
    ),
    Case("a page of our own", request(ADD, headers={"Origin": "http://localhost"}), 200, 3),
    Case(
        "a preflight",
        request(method="OPTIONS", length=None, headers=PREFLIGHT),
        204,
        headers={"access-control-allow-methods": "POST"},
    ),
    Case(
        "a preflight of another site",
        request(method="OPTIONS", length=None, headers={**PREFLIGHT, "Origin": "https://x"}),
        403,
    ),
    Case("a body that is too large", request(BIG), 413, code=-32600),
    Case(
        "chunks",
        request(kind="application/json", length=None, headers={"Transfer-Encoding": "chunked"})
        + b"10\r\n"
        + (body := request(ADD).partition(b"\r\n\r\n")[2])[:16]
        + b"\r\n%x;note=1\r\n" % (len(body) - 16)
        + body[16:]
        + b"\r\n0\r\n\r\n",
        200,
        result=3,
    ),
    Case(
        "chunks that are too large",
        request(length=None, headers={"Transfer-Encoding": "chunked"})
        + b"".join(b"4000\r\n%b\r\n" % (b"x" * 0x4000) for _ in range(10))
        + b"0\r\n\r\n",
        413,
        code=-32600,
    ),
    Case("a key in a header", request(call("shop.buy", {"thing": "tea"})), 200, result=1),
    Case(
        "a key for a batch",
        request([call("shop.buy", {"thing": "tea"})], headers={"Idempotency-Key": "k"}),
        400,
        code=-32600,
    ),
    Case("two lengths", request(ADD, headers={"Content-Length": "5"}), 400),
    Case("a length and chunks", request(ADD, headers={"Transfer-Encoding": "chunked"}), 400),
    Case("a length with a sign", request(ADD, length="+70"), 400),
    Case("a space before a colon", request(ADD, headers={"X-A ": "1"}), 400),
    Case("a folded line", request(ADD, headers={"X-A": "1\r\n 2"}), 400),
    Case("a NUL", request(ADD, headers={"X-A": "a\0b"}), 400),
    Case("another coding", request(ADD, length=None, headers={"Transfer-Encoding": "gzip"}), 400),
    Case("no HTTP", b"hello\r\n\r\n", 400),
    Case("another protocol", b'{"jsonrpc":"2.0","id":1,"method":"shop.add"}\r\n\r\n', 400),
    Case(
        "headers that are too large",
        request(ADD, headers={"X-A": "a" * 9000}),
        431,
        only="listener",
    ),
]


@pytest.fixture(scope="module", params=list(HOSTS))
def served(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    with HOSTS[request.param](allowed_origins=["https://app.example"]) as url:
        yield request.param, url


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_request_is_answered_alike_on_each_host(served: tuple[str, str], case: Case) -> None:
    name, url = served
    if case.only not in ("", name):
        return  # the framework answers by itself
    with Raw(url) as connection:
        connection.send(case.sent)
        answer = connection.read()
    assert answer.status == case.status, answer
    if case.code is not None:
        assert answer.value["error"]["code"] == case.code
    elif case.result is not None:
        assert answer.value["result"] == case.result
    elif case.status == 204:
        assert answer.body == b""
    for header, value in case.headers.items():
        assert answer.headers[header] == value


def test_every_answer_of_a_batch_is_in_it(served: tuple[str, str]) -> None:
    with Raw(served[1]) as connection:
        connection.send(request([ADD, call("shop.fail", id=2), 1]))
        answer = connection.read()
    assert answer.status == 200
    assert [item.get("result", item.get("error", {}).get("code")) for item in answer.value] == [
        3,
        7001,
        -32600,
    ]


def test_a_connection_takes_one_request_after_the_other(served: tuple[str, str]) -> None:
    with Raw(served[1]) as connection:
        for number in range(5):
            connection.send(request(call("shop.add", [number, 1], id=number)))
            assert connection.read().value == {"jsonrpc": "2.0", "id": number, "result": number + 1}


def test_pipelined_requests_are_answered_in_order(served: tuple[str, str]) -> None:
    methods = ["shop.echo", "shop.echo", "shop.add", "shop.echo"]
    params: list[Any] = [["a"], ["b"], [1, 1], ["c"]]
    with Raw(served[1]) as connection:
        sent = [
            request(call(*each, id=n)) for n, each in enumerate(zip(methods, params, strict=True))
        ]
        connection.send(b"".join(sent))
        assert [connection.read().value["result"] for _ in sent] == ["a", "b", 2, "c"]


def test_a_request_comes_in_any_parts(served: tuple[str, str]) -> None:
    whole = request(call("shop.echo", ["parts"]))
    for size in (1, 7, 50):
        with Raw(served[1]) as connection:
            for start in range(0, len(whole), size):
                connection.send(whole[start : start + size])
            assert connection.read().value["result"] == "parts"


def test_the_body_is_asked_for_when_the_head_is_sound(served: tuple[str, str]) -> None:
    head, _, body = request(call("shop.add", [2, 2]), headers={"Expect": "100-continue"}).partition(
        b"\r\n\r\n"
    )
    with Raw(served[1]) as connection:
        connection.send(head + b"\r\n\r\n")
        assert connection.read().status == 100
        connection.send(body)
        assert connection.read().value["result"] == 4


def test_a_key_in_a_header_makes_a_command_repeatable(served: tuple[str, str]) -> None:
    sent = request(
        call("shop.buy", {"thing": "milk"}), headers={"Idempotency-Key": f'"{served[0]}-1"'}
    )
    with Raw(served[1]) as connection:
        connection.send(sent)
        first = connection.read()
        connection.send(sent)
        second = connection.read()
        assert first.value["result"] == second.value["result"]
        other = request(
            call("shop.buy", {"thing": "milk", "idempotency_key": "x"}),
            headers={"Idempotency-Key": "y"},
        )
        connection.send(other)
        assert connection.read().status == 400


def test_credentials_stay_out_of_reach(served: tuple[str, str]) -> None:
    sent = request(call("shop.headers"), headers={"Authorization": "Bearer s", "X-Mine": "1"})
    with Raw(served[1]) as connection:
        connection.send(sent)
        headers = connection.read().value["result"]
    assert headers["x-mine"] == "1"
    assert "authorization" not in headers
