"""Many connections on one loop: who they are, their limits, their faults, and how they end."""

import contextlib
import gc
import json
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duet_rpc.errors import ConnectFailed
from duet_rpc.hosts.loop import LoopHost
from duet_rpc.policy import EDITOR, SPEC, replace
from duet_rpc.transports.address import parse_target
from duet_rpc.transports.channel import Channel
from tests.transports import served
from tests.transports.lines import (
    PATIENCE,
    Raw,
    Serving,
    descriptors,
    eventually,
    notification,
    request,
    serving,
)

both = pytest.mark.parametrize("kind", ["unix", "tcp"])


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    served.ran.clear()


def many(server: Serving, count: int) -> Iterator[Raw]:
    """Make connections that are closed with the test."""
    with contextlib.ExitStack() as stack:
        yield from [stack.enter_context(server.connect()) for _ in range(count)]


# Who they are.


def test_the_principal_of_a_unix_connection_is_its_user(tmp_path: Path) -> None:
    with serving("unix", tmp_path) as server, server.connect() as line:
        assert line.call("test.who")["result"][0] == f"uid:{os.getuid()}"


def test_the_principal_on_this_machine_is_local(tmp_path: Path) -> None:
    with serving("tcp", tmp_path) as server, server.connect() as line:
        assert line.call("test.who")["result"][0] == "local"


@both
def test_a_hook_names_the_principal(kind: str, tmp_path: Path) -> None:
    def name(connected: socket.socket) -> str:
        return f"guest of {connected.family.name}"

    with serving(kind, tmp_path, principal=name) as server, server.connect() as line:
        assert line.call("test.who")["result"][0].startswith("guest of AF_")


def test_a_hook_that_raises_refuses(tmp_path: Path) -> None:
    def refuse(connected: socket.socket) -> str:
        raise PermissionError("nobody today")

    with serving("unix", tmp_path, principal=refuse) as server, server.connect() as line:
        assert line.answer() is None
        eventually(lambda: "refused connection_id=unix-" in server.log(), "it is logged")
        assert "nobody today" not in server.log()


@both
def test_connections_have_ids_of_their_own_which_stand_in_the_log(
    kind: str, tmp_path: Path
) -> None:
    with serving(kind, tmp_path) as server:
        ids = [line.call("test.who")["result"][1] for line in many(server, 5)]
        assert len(set(ids)) == 5
        assert all(id.startswith(f"{kind}-") for id in ids)
        for id in ids:
            eventually(lambda id=id: f"disconnected connection_id={id} " in server.log(), id)  # type: ignore[misc]
            assert f"connected connection_id={id} principal=" in server.log()


# Faults.

BAD_HEADER = b"Content-Length: x\r\n\r\n"


@both
def test_a_lost_boundary_is_answered_and_the_connection_closed(kind: str, tmp_path: Path) -> None:
    with serving(kind, tmp_path) as server, server.connect() as other, server.connect() as line:
        line.write(BAD_HEADER + request("test.effect", ["smuggled"], 2))
        answer = line.answer()
        assert (answer["id"], answer["error"]["code"]) == (None, -32600)
        assert line.answer() is None
        assert other.call("test.add", [1, 2])["result"] == 3
    assert served.ran == []


@pytest.mark.parametrize("policy", [EDITOR, SPEC], ids=lambda policy: policy.name)
def test_what_came_before_a_fault_is_answered(policy: Any, tmp_path: Path) -> None:
    with serving("unix", tmp_path, policy=policy) as server, server.connect() as line:
        naps = request("test.nap", [0.2], 1) + request("test.nap", [0.2], 2)
        line.write(naps + BAD_HEADER + request("test.effect", ["smuggled"], 3))
        answers = [line.answer() for _ in range(3)]
        assert sorted(str(answer["id"]) for answer in answers) == ["1", "2", "None"]
        assert line.answer() is None
    assert served.ran == []


@pytest.mark.parametrize("framing", ["lsp", "ndjson", "auto"])
def test_a_web_page_cannot_make_a_browser_call_us(framing: str, tmp_path: Path) -> None:
    body = json.dumps(
        {"jsonrpc": "2.0", "id": 1, "method": "test.effect", "params": ["from a page"]}
    ).encode()
    page = b"\r\nContent-Length: %d\r\n\r\n%b\r\n%b\r\n" % (len(body), body, body)
    post = (
        b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: text/plain\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(page), page)
    )
    with serving("tcp", tmp_path, framing=framing) as server, server.connect() as line:
        line.write(post)
        said = b""
        while data := line.channel.receive():
            said += data
        assert said.count(b'"error"') == 1
        assert b'"result"' not in said
        with server.connect() as other:
            if framing == "lsp":
                assert other.call("test.add", [1, 2])["result"] == 3
    assert served.ran == []


def test_lines_are_served_too(tmp_path: Path) -> None:
    with serving("tcp", tmp_path, framing="ndjson") as server, server.connect() as line:
        line.write(b'{"jsonrpc":"2.0","id":1,"method":"test.add","params":[1,2]}\n{"bad"\n')
        line.write(b'  \n{"jsonrpc":"2.0","id":2,"method":"test.add","params":[1,3]}\n')
        said = b""
        while said.count(b"\n") < 3:
            said += line.channel.receive()
        answers = [json.loads(text) for text in said.splitlines()]
        assert [answer.get("result") for answer in answers] == [3, None, 4]


def test_a_frame_that_takes_too_long_ends_the_connection(tmp_path: Path) -> None:
    policy = replace(SPEC, read_timeout=0.2)
    with serving("tcp", tmp_path, policy=policy) as server, server.connect() as line:
        assert line.call("test.add", [1, 2])["result"] == 3
        line.write(b"Content-Length: 100\r\n\r\n{")
        assert line.answer() is None
        assert "a frame took too long" in server.log()


@both
def test_a_peer_that_is_gone_hurts_nobody(kind: str, tmp_path: Path) -> None:
    with serving(kind, tmp_path) as server, server.connect() as line:
        for _ in range(20):
            with server.connect() as rude:
                rude.write(request("test.echo", ["x" * 500_000]) + request("test.nap", [0.01]))
                with socket.socket(fileno=os.dup(rude.channel.read_fd)) as same:
                    if kind == "tcp":
                        same.setsockopt(
                            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                        )
        assert line.call("test.add", [1, 2])["result"] == 3
        # One that is gone before we come to it is not let in.
        eventually(lambda: _left(server) == 20, "all of them leave")
        assert " error " not in server.log()


def _left(server: Serving) -> int:
    log = server.log()
    return log.count(" disconnected ") + log.count(" refused ")


# Ends.


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Have nothing collected meanwhile: what is gone then went by itself."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize("framing", ["lsp", "ndjson"])
def test_a_peer_that_vanishes_leaves_no_part_of_a_message_behind(
    framing: str, tmp_path: Path
) -> None:
    part = b"x" * 3_000_000
    header = b"Content-Length: 9000000\r\n\r\n" if framing == "lsp" else b'"'
    with serving("unix", tmp_path, framing=framing) as server:
        with server.connect() as line:
            line.write(header + part)
        eventually(lambda: " disconnected " in server.log(), "the server sees that it is gone")
        gone = [each for each in gc.get_objects() if type(each) is LoopHost and each.closed]
        assert gone, "it is there until the collector comes"
        assert not any(host.connection.framing.partial for host in gone)


@pytest.mark.usefixtures("no_collections")
def test_a_peer_that_vanishes_leaves_no_answer_behind(tmp_path: Path) -> None:
    with serving("unix", tmp_path) as server:
        with server.connect() as line:
            line.write(request("test.echo", ["y" * 3_000_000]))
            assert select.select([line.channel.read_fd], [], [], PATIENCE)[0], "an answer comes"
        eventually(lambda: " disconnected " in server.log(), "the server sees that it is gone")
        gone = [each for each in gc.get_objects() if type(each) is LoopHost and each.closed]
        assert gone and not any(host.outbox.size for host in gone)


@both
@pytest.mark.parametrize("word", ["shutdown", "exit"])
def test_words_of_the_end_end_their_own_connection_alone(
    kind: str, word: str, tmp_path: Path
) -> None:
    with serving(kind, tmp_path) as server, server.connect() as other, server.connect() as line:
        line.write(request("test.nap", [0.1], 1) + request(word, None, 2))
        line.write(request("test.effect", ["too late"], 3))
        answers = {}
        while (answer := line.answer()) is not None:
            answers[answer["id"]] = answer
        assert answers[1]["result"] == 0.1
        expected = {"message": "Closing this connection"} if word == "shutdown" else None
        assert answers[2]["result"] == expected
        assert answers.get(3, {}).get("error", {}).get("code", -32018) == -32018
        assert other.call("test.add", [1, 2])["result"] == 3
        with server.connect() as another:
            assert another.call("test.add", [1, 2])["result"] == 3
    assert served.ran == []


@both
def test_words_of_the_end_are_described_as_what_they_do_here(kind: str, tmp_path: Path) -> None:
    with serving(kind, tmp_path) as server, server.connect() as line:
        listed = {m["name"]: m["description"] for m in line.call("listMethods")["result"]}
        document = line.call("rpc.discover", id=2)["result"]
        assert document["info"]["title"] == served.service.name
    discovered = {m["name"]: m["description"] for m in document["methods"] if m["name"] in listed}
    for told in (listed, discovered):
        assert "this connection" in told["shutdown"] and "the server goes on" in told["shutdown"]
        assert told["exit"].startswith("Close this connection")


@both
def test_a_server_that_has_ended_has_closed_its_log(
    kind: str, tmp_path: Path, rpc_no_leaks: None
) -> None:
    with serving(kind, tmp_path) as server, server.connect() as line:
        assert line.call("test.add", [1, 2])["result"] == 3


@both
def test_a_notification_ends_the_connection_too(kind: str, tmp_path: Path) -> None:
    with serving(kind, tmp_path) as server, server.connect() as line:
        line.write(request("test.echo", [1], 1) + notification("exit"))
        assert line.answer()["result"] == 1
        assert line.answer() is None


@both
def test_the_end_of_a_server_finishes_what_it_has_read(kind: str, tmp_path: Path) -> None:
    with serving(kind, tmp_path, drain=PATIENCE) as server:
        with server.connect() as busy, server.connect() as idle:
            assert idle.call("test.add", [1, 2])["result"] == 3
            busy.write(request("test.wait", None, 1) + request("test.add", [1, 2], 2))
            assert busy.answer()["id"] == 2
            server.end()
            assert idle.answer() is None

            def is_closed() -> bool:
                try:
                    parse_target(server.address).connect(PATIENCE).close()
                except ConnectFailed:
                    return True
                return False

            eventually(is_closed, "nobody new gets in")
            served.gate.set()
            assert busy.answer() == {"jsonrpc": "2.0", "id": 1, "result": "open"}
            assert busy.answer() is None
    if kind == "unix":
        assert not os.path.exists(server.address.removeprefix("unix:"))


def test_the_end_of_a_server_refuses_what_has_not_begun(tmp_path: Path) -> None:
    with serving("unix", tmp_path, policy=EDITOR, drain=0.4) as server:
        with server.connect() as line:
            line.write(
                request("test.wait", None, 1)
                + request("test.effect", ["no"], 2)
                + request("test.effect", ["no"], 3)
            )
            eventually(served.waiting.is_set, "what was written together is read")
            server.end()
            assert [line.answer()["error"]["code"] for _ in range(2)] == [-32018, -32018]
            assert line.answer() is None
    assert served.ran == []


def test_a_server_that_ended_leaves_nothing_behind(tmp_path: Path) -> None:
    def live() -> None:
        with serving("tcp", tmp_path) as server:
            for line in many(server, 10):
                assert line.call("test.add", [1, 2])["result"] == 3

    live()
    before = descriptors()
    live()
    assert len(descriptors()) <= len(before) + 1  # its log


# Limits.


@both
def test_one_connection_too_many_is_told_so(kind: str, tmp_path: Path) -> None:
    with serving(kind, tmp_path, max_connections=2) as server:
        with server.connect() as first, server.connect() as second:
            for line in (first, second):
                assert line.call("test.add", [1, 2])["result"] == 3
            with server.connect() as third:
                third.write(request("test.effect", ["refused"], 1))
                answer = third.answer()
                assert (answer["id"], answer["error"]["code"]) == (None, -32017)
                assert answer["error"]["data"]["retry_after_ms"] > 0
                assert third.answer() is None
            assert second.call("test.add", [1, 2])["result"] == 3
            first.channel.close()

            def gets_in() -> bool:
                with server.connect() as fourth:
                    return "result" in fourth.call("test.add", [1, 2])

            eventually(gets_in, "there is room again")
        assert "too many connections limit=2" in server.log()
    assert served.ran == []


def test_a_flood_of_refused_connections_fills_neither_log_nor_table(tmp_path: Path) -> None:
    with serving("tcp", tmp_path, max_connections=1) as server, server.connect() as line:
        assert line.call("test.add", [1, 2])["result"] == 3
        for refused in many(server, 200):
            assert refused.answer()["error"]["code"] == -32017
        assert line.call("test.add", [1, 2])["result"] == 3
        assert server.log().count("too many connections") <= 8


def test_a_flood_does_not_starve_the_others(tmp_path: Path) -> None:
    policy = replace(SPEC, max_output_bytes=1 << 30)
    with serving("unix", tmp_path, policy=policy) as server:
        with server.connect() as flood, server.connect() as line:
            count = 20_000
            data = b"".join(request("test.add", [1, 2], id) for id in range(1, count + 1))
            view, sent = memoryview(data), 0
            answered = 0
            while sent < len(data):
                sent += flood.channel.send(view[sent : sent + 65536])
                assert line.call("test.add", [answered, 1])["result"] == answered + 1
                answered += 1
            assert answered >= 10
            for _ in range(count):
                assert flood.answer()["result"] == 3


def test_a_peer_that_does_not_read_holds_up_nobody(tmp_path: Path) -> None:
    with serving("unix", tmp_path) as server:
        with server.connect() as deaf, server.connect() as line:
            data = b"".join(request("test.echo", ["x" * 1_000_000], id) for id in range(20))
            writer = threading.Thread(target=deaf.write, args=(data,))
            writer.start()
            for _ in range(20):
                assert line.call("test.add", [1, 2])["result"] == 3
                time.sleep(0.01)
            assert writer.is_alive(), "the server reads no more than it can keep"
            for _ in range(20):
                assert len(deaf.answer()["result"]) == 1_000_000
            writer.join()


def test_the_connections_of_a_server_share_one_budget_of_waiting_bytes(tmp_path: Path) -> None:
    policy = replace(SPEC, max_in_flight=1)
    body = "x" * 300_000
    with serving("unix", tmp_path, policy=policy, max_queued_bytes=500_000) as server:
        with server.connect() as greedy, server.connect() as busy, server.connect() as idle:
            for line in (greedy, busy):
                line.write(request("test.wait", None, 1))
            greedy.write(request("test.echo", [body], 2) + request("test.echo", [body], 3))
            # There is no room left to wait in: not for itself, nor for another.
            for line in (greedy, busy):
                answer = line.call("test.echo", ["small"], 4)
                assert (answer["id"], answer["error"]["code"]) == (4, -32017)
            assert idle.call("test.echo", ["at once"])["result"] == "at once"
            greedy.channel.close()
            served.gate.set()
            assert busy.answer() == {"jsonrpc": "2.0", "id": 1, "result": "open"}
            assert busy.call("test.echo", ["again"], 4)["result"] == "again"


def test_a_thousand_idle_connections_are_served(tmp_path: Path) -> None:
    with serving("unix", tmp_path, max_connections=1000) as server:
        with contextlib.ExitStack() as stack:
            lines = [stack.enter_context(server.connect()) for _ in range(1000)]
            for line in lines[::50]:
                assert line.call("test.add", [1, 2])["result"] == 3
            eventually(lambda: server.log().count(" connected ") == 1000, "all are connected")
        eventually(lambda: server.log().count(" disconnected ") == 1000, "all have left")


def test_a_process_without_descriptors_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = [OSError(24, "Too many open files")] * 2
    accept = socket.socket.accept

    def accept_or_fail(self: socket.socket) -> Any:
        if fails and self.family == socket.AF_UNIX:
            raise fails.pop()
        return accept(self)

    with serving("unix", tmp_path) as server:
        monkeypatch.setattr(socket.socket, "accept", accept_or_fail)
        with server.connect() as line:
            assert line.call("test.add", [1, 2])["result"] == 3
        assert server.log().count("no connection can be taken") == 2


def test_a_socket_is_a_channel_that_owns_it() -> None:
    before = descriptors()
    ours, theirs = socket.socketpair()
    channel = Channel.over(ours)
    with theirs:
        assert channel.send(b"hello") == 5
        assert theirs.recv(5) == b"hello"
        channel.close()
        assert theirs.recv(1) == b""
    assert ours.fileno() == -1
    assert descriptors() == before
