"""How long a client may take, how many there may be, and how a server ends."""

import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from duet_rpc import Server, Service, UsageError, blocking, testing
from duet_rpc.errors import PermissionDenied
from duet_rpc.http import BearerTokens, Http, Principal
from duet_rpc.http.credentials import digest_token
from duet_rpc.policy import replace
from tests.http.served import (
    HOSTS,
    POLICY,
    Answered,
    Raw,
    asgi,
    call,
    listener,
    make_service,
    request,
)

QUICK = replace(POLICY, read_timeout=0.3)
ADD = request(call("shop.add", {"a": 1, "b": 2}))
HEAD, _, BODY = ADD.partition(b"\r\n\r\n")


def nothing(connection: Raw) -> None:
    pass


def half_a_head(connection: Raw) -> None:
    connection.send(HEAD[:40])


def half_a_body(connection: Raw) -> None:
    connection.send(HEAD + b"\r\n\r\n" + BODY[:10])


def half_a_body_later(connection: Raw) -> None:
    connection.send(ADD)
    connection.read()
    half_a_body(connection)


def half_a_chunk(connection: Raw) -> None:
    head = request(length=None, headers={"Transfer-Encoding": "chunked"})
    connection.send(head + b"10\r\n12345")


@pytest.mark.parametrize(
    ("begin", "status"),
    [
        (nothing, None),
        (half_a_head, None),
        (half_a_body, 408),
        (half_a_body_later, 408),
        (half_a_chunk, 408),
    ],
)
def test_a_client_that_stops_in_the_middle_is_closed(
    begin: Callable[[Raw], None], status: int | None
) -> None:
    with listener(QUICK) as url, Raw(url) as connection, Raw(url) as other:
        begin(connection)
        other.send(ADD)
        assert other.read().value["result"] == 3
        said = connection.wait_for_end()
    assert said[:12] == (b"" if status is None else b"HTTP/1.1 %d" % status)


def test_what_drips_in_moves_no_deadline() -> None:
    with listener(QUICK) as url, Raw(url) as connection:
        ended = False
        for byte in HEAD:
            try:
                connection.send(bytes([byte]))
            except (BrokenPipeError, ConnectionResetError):
                ended = True
                break
            time.sleep(0.02)
    assert ended, "a head of 100 bytes takes two seconds so"


def test_a_body_that_stops_is_answered_under_asgi_too() -> None:
    with asgi(QUICK) as url, Raw(url) as connection:
        half_a_body(connection)
        assert connection.read().status == 408


def test_an_idle_connection_is_closed() -> None:
    with listener(idle_timeout=0.2) as url, Raw(url) as connection:
        connection.send(ADD)
        connection.read()
        assert connection.wait_for_end() == b""


def test_a_client_may_ask_for_the_end_of_its_connection() -> None:
    with listener() as url:
        for sent in (
            request(call("shop.echo", [1]), headers={"Connection": "close"}),
            request(call("shop.echo", [1]), version="1.0"),
        ):
            with Raw(url) as connection:
                connection.send(sent)
                assert connection.read().has_ended
                assert connection.wait_for_end() == b""
        with Raw(url) as connection:
            kept = request(
                call("shop.echo", [1]), version="1.0", headers={"Connection": "keep-alive"}
            )
            for _ in range(2):
                connection.send(kept)
                assert connection.read().headers["connection"] == "keep-alive"


def test_too_many_connections_are_told_to_come_later() -> None:
    with listener(max_connections=2) as url, Raw(url) as one, Raw(url) as two:
        for connection in (one, two):
            connection.send(ADD)
            connection.read()
        with Raw(url) as third:
            answer = third.read()
    assert (answer.status, answer.value["error"]["data"]["reason"]) == (503, "overloaded")
    assert answer.headers["retry-after"] == "1"


def test_a_flood_of_requests_that_no_one_reads_stops_being_read() -> None:
    big = replace(POLICY, max_output_bytes=10_000)
    answered = request(call("shop.echo", {"value": "x" * 5_000}))
    with listener(big) as url, Raw(url) as connection, Raw(url) as other:
        connection._socket.settimeout(1.0)
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < 400_000_000:
                sent += connection._socket.send(answered * 10)
        other.send(ADD)
        assert other.read().value["result"] == 3


def test_a_server_that_ends_answers_what_it_has_taken() -> None:
    with testing.serve_in_thread(
        Server(make_service(), policy=POLICY), Http("127.0.0.1", 0)
    ) as url:
        busy = Raw(url)
        idle = Raw(url)
        busy.send(request(call("shop.echo", {"value": 1})))
        first = busy.read()
        busy.send(request(call("shop.nap", {"seconds": 0.3})))
        parts = urlsplit(url)
        time.sleep(0.1)
    with busy, idle:
        answer = busy.read()
        assert idle.wait_for_end() == b""
    assert (first.status, answer.value["result"]) == (200, "rested")
    assert answer.has_ended
    with pytest.raises(OSError):
        socket.create_connection((str(parts.hostname), parts.port or 0), 1.0)


FORKING = """
import sys
from duet_rpc import Server
from duet_rpc.http import Http
from tests.http.served import POLICY, make_service

Server(make_service(), policy=POLICY).run(
    Http("127.0.0.1", 0), on_start=lambda url: print(url, flush=True)
)
"""


def test_a_child_that_a_handler_forks_answers_no_one() -> None:
    command = [sys.executable, "-c", FORKING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        try:
            with Raw(url) as connection:
                for name in ("fork", "fork_inline", "fork_async", "fork_and_await"):
                    for message in (call(f"shop.{name}"), [call(f"shop.{name}")]):
                        connection.send(request(message))
                        answer = connection.read().value
                        [found] = answer if isinstance(answer, list) else [answer]
                        assert found["result"] > 0, "the child's is 0"
                connection.send(ADD)
                assert connection.read().value["result"] == 3
        finally:
            process.terminate()


# Who calls.

TOKENS = {"alice": digest_token("secret"), "bob": digest_token("other")}


@pytest.mark.parametrize("host", list(HOSTS))
def test_a_token_says_who_calls(host: str) -> None:
    tokens = BearerTokens(TOKENS, {"alice": ["bank:write"]})
    with HOSTS[host](authenticate=tokens) as url, Raw(url) as connection:
        for header, status in [
            ({}, 401),
            ({"Authorization": "Bearer wrong"}, 401),
            ({"Authorization": "Basic c2VjcmV0"}, 401),
            ({"Authorization": "Bearer "}, 401),
        ]:
            with Raw(url) as each:
                each.send(request(call("shop.who"), headers=header))
                answer = each.read()
                assert (answer.status, answer.headers["www-authenticate"]) == (status, "Bearer")
                assert answer.value["error"]["data"]["reason"] == "unauthenticated"
        connection.send(request(call("shop.who"), headers={"Authorization": "bearer secret"}))
        assert connection.read().value["result"] == ["token:alice", ["bank:write"], "http", False]


@pytest.mark.parametrize("host", list(HOSTS))
def test_who_calls_is_part_of_a_command(host: str) -> None:
    with HOSTS[host](authenticate=BearerTokens(TOKENS)) as url, Raw(url) as connection:
        results = []
        for token in ("secret", "secret", "other"):
            headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": "k"}
            connection.send(request(call("shop.buy", {"thing": "tea"}), headers=headers))
            results.append(connection.read().value["result"])
    assert results == [1, 1, 2]


@pytest.mark.parametrize("host", list(HOSTS))
def test_a_token_that_has_expired_is_none(host: str) -> None:
    until = time.time() + 0.5

    def authenticate(token: str) -> Principal | None:
        return Principal("jwt:me", expires=until)

    with HOSTS[host](authenticate=authenticate) as url, Raw(url) as connection:
        sent = request(call("shop.who"), headers={"Authorization": "Bearer any"})
        connection.send(sent)
        assert connection.read().status == 200
        while time.time() < until:
            time.sleep(0.05)
        connection.send(sent)
        assert connection.read().status == 401


def test_tokens_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"# who may call\nalice {TOKENS['alice']} bank:read bank:write\n\n")
    found = BearerTokens.read(file)("secret")
    assert found == Principal("token:alice", frozenset({"bank:read", "bank:write"}))
    assert BearerTokens.read(file)("other") is None
    for text in ("alice\n", "alice 12\n", f"a {TOKENS['bob']}\na {TOKENS['bob']}\n"):
        file.write_text(text)
        with pytest.raises(UsageError):
            BearerTokens.read(file)
    with pytest.raises(UsageError, match="No such file"):
        BearerTokens.read(tmp_path / "none")


def test_without_credentials_only_this_machine_is_served() -> None:
    with pytest.raises(UsageError, match="allow_remote"):
        Http("0.0.0.0", 0).listen()
    with Http("0.0.0.0", 0, authenticate=BearerTokens(TOKENS)).listen():
        pass


@pytest.mark.parametrize(
    "wrong",
    [
        {"path": "rpc"},
        {"path": "/rpc?x"},
        {"allowed_hosts": "example.com"},
        {"allowed_origins": ["example.com"]},
        {"allowed_origins": ["https://example.com/"]},
        {"authenticate": "token"},
        {"idle_timeout": 0},
    ],
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Http("127.0.0.1", 0, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("host", list(HOSTS))
def test_a_method_asks_what_its_caller_may_do(host: str) -> None:
    tokens = BearerTokens(TOKENS, {"alice": ["bank:read", "bank:write"], "bob": ["bank:read"]})
    pay = call("shop.pay", {"cents": "no number"}, id=2)
    with HOSTS[host](authenticate=tokens) as url, Raw(url) as connection:

        def ask(token: str, message: object) -> Answered:
            headers = {"Authorization": f"Bearer {token}"}
            connection.send(request(message, headers=headers))
            return connection.read()

        refused = ask("other", pay)  # its params are not looked at
        assert (refused.status, refused.value["error"]["code"]) == (403, -32009)
        assert refused.value["error"]["data"] == {
            "reason": "permission-denied",
            "scopes": ["bank:write"],
        }
        assert ask("other", call("shop.balance")).value["result"] == 100
        assert ask("secret", call("shop.pay", {"cents": 5})).value["result"] == 5
        both = ask("other", [call("shop.balance"), call("shop.pay", {"cents": 5}, id=2)])
        assert both.status == 200
        assert [item.get("result") for item in both.value] == [100, None]
        openrpc = ask("secret", call("rpc.discover")).value["result"]
        scopes = {each["name"]: each.get("x-scopes") for each in openrpc["methods"]}
        assert (scopes["shop.pay"], scopes["shop.add"]) == (["bank:write"], None)


async def test_who_is_on_this_machine_may_do_everything() -> None:
    async with testing.connect(make_service()) as client:
        assert await client.call("shop.balance") == 100
    with (
        testing.serve_in_thread(make_service()) as address,
        blocking.Client.connect(address) as client_of_tcp,
    ):
        with pytest.raises(PermissionDenied):  # no one there has shown credentials
            client_of_tcp.call("shop.balance")


def test_scopes_are_a_list() -> None:
    service = Service()
    with pytest.raises(UsageError, match="scopes"):
        service.query(scopes="bank:read")(lambda: None)
