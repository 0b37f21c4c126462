"""Reading goes on while a handler runs: cancellations, answers to our own calls, overload."""

import json
from pathlib import Path
from typing import Any

import pytest

from duet_rpc.hosts.threads import MAX_NESTED
from tests.daemon.process import Process, eventually, frame, notification, request, serve
from tests.daemon.services import ASYNC, SYNC

HOSTS = {
    "threads": (SYNC, "editor"),
    "blocked loop, one at a time": (ASYNC, "editor"),
    "blocked loop, many at a time": (ASYNC, "agent"),
}


def answer(id: Any, result: Any) -> bytes:
    return frame(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}).encode())


@pytest.mark.parametrize("host", HOSTS)
def test_a_queued_request_can_be_cancelled_while_a_handler_blocks(
    tmp_path: Path, host: str
) -> None:
    source, policy = HOSTS[host]
    with serve(tmp_path, source, "--policy", policy) as daemon:
        daemon.send(request("nap", {"seconds": 60}, id="sleeper"))
        daemon.wait_for_log("napping")
        daemon.send(request("echo", ["never"], id="queued"))
        daemon.send(notification("$/cancelRequest", {"id": "queued"}))
        error = daemon.error("queued")
        assert (error["code"], error["message"]) == (-32800, "Request cancelled")
        assert error["data"]["reason"] == "cancelled"
        assert len(daemon.messages) == 1


@pytest.mark.parametrize("host", HOSTS)
def test_a_running_request_can_be_cancelled_while_its_handler_blocks(
    tmp_path: Path, host: str
) -> None:
    source, policy = HOSTS[host]
    gate = tmp_path / "gate"
    with serve(tmp_path, source, "--policy", policy) as daemon:
        daemon.send(request("hold", [str(gate)], id="running"))
        daemon.wait_for_log("holding")
        daemon.send(notification("$/cancelRequest", {"id": "other"}))
        for _ in range(2):
            daemon.send(notification("$/cancelRequest", {"id": "running"}))
        assert daemon.error("running")["code"] == -32800
        gate.touch()
        assert daemon.call("echo", ["next"]) == "next"
        assert len(daemon.messages) == 2, "answered once"


@pytest.mark.parametrize("host", HOSTS)
def test_faults_are_seen_while_a_handler_blocks(tmp_path: Path, host: str) -> None:
    source, policy = HOSTS[host]
    with serve(tmp_path, source, "--policy", policy) as daemon:
        daemon.send(request("hold", [str(tmp_path / "gate")], id=1))
        daemon.wait_for_log("holding")
        daemon.send(frame(b"{") + request("echo", ["next"], id=2))
        daemon.wait_for_log("bad message")
        (tmp_path / "gate").touch()
        assert daemon.result(2) == "next"
        if policy == "editor":  # answers in request order
            assert [message["id"] for message in daemon.messages] == [1, None, 2]


@pytest.mark.parametrize(
    ("host", "method"),
    [
        ("threads", "ask"),
        ("blocked loop, one at a time", "ask"),
        ("blocked loop, many at a time", "ask"),
        ("blocked loop, many at a time", "ask_from_a_thread"),
    ],
)
def test_a_handler_can_call_its_caller(tmp_path: Path, host: str, method: str) -> None:
    source, policy = HOSTS[host]
    with serve(tmp_path, source, "--policy", policy) as daemon:
        daemon.send(request(method, ["double", 21], id="outer"))
        call = daemon.wait_for(lambda message: message.get("method") == "double", "call back")
        assert call["params"] == [21]
        # Other requests are served meanwhile: their caller may need them to answer.
        assert daemon.call("echo", ["meanwhile"]) == "meanwhile"
        daemon.send(answer(call["id"], 42))
        assert daemon.result("outer") == 42


def call_down(daemon: Process, method: str, level: int) -> Any:
    """Call a method that calls back; return the id of its call."""

    def is_call(message: Any) -> bool:
        return bool(message.get("method") == "down" and message["params"] == [level])

    daemon.send(request(method, ["down", level], id=f"level {level}"))
    return daemon.wait_for(is_call, f"call of level {level}")["id"]


def mutual_calls(daemon: Process, method: str, depth: int) -> None:
    """Answer each call back with another call, until `depth`; then all answers run back."""
    waiting = [call_down(daemon, method, level) for level in range(depth)]
    for level in reversed(range(depth)):
        daemon.send(answer(waiting[level], level * 10))
        assert daemon.result(f"level {level}") == level * 10


@pytest.mark.parametrize(("source", "policy"), [(SYNC, "editor"), (ASYNC, "editor")])
def test_fifty_calls_inside_one_another(tmp_path: Path, source: str, policy: str) -> None:
    with serve(tmp_path, source, "--policy", policy) as daemon:
        mutual_calls(daemon, "ask", 50)
        assert daemon.call("echo", ["after"]) == "after"


def test_calls_inside_one_another_have_a_limit_and_it_does_no_harm(tmp_path: Path) -> None:
    with serve(tmp_path, SYNC) as daemon:
        ids = [call_down(daemon, "ask", level) for level in range(100)]
        daemon.send(request("ask", ["down", 100], id="one too many"))
        assert daemon.error("one too many")["code"] == -32603
        for id in reversed(ids):
            daemon.send(answer(id, 1))
        assert daemon.result("level 0") == 1


@pytest.mark.parametrize("host", HOSTS)
def test_a_full_queue_that_does_not_move_refuses(tmp_path: Path, host: str) -> None:
    source, policy = HOSTS[host]
    gate = tmp_path / "gate"
    with serve(tmp_path, source, "--policy", policy) as daemon:
        daemon.send(request("hold", [str(gate)], id="holder"))
        daemon.wait_for_log("holding")
        daemon.send(b"".join(request("echo", [str(id)], id=id) for id in range(300)))
        refused = daemon.wait_for(lambda message: "error" in message, "refusal")
        assert refused["error"]["code"] == -32017
        assert refused["error"]["data"]["reason"] == "overloaded"
        assert refused["error"]["data"]["retry_after_ms"] > 0
        gate.touch()
        answers = {id: daemon.answer(id) for id in range(300)}
        served = [id for id, found in answers.items() if "result" in found]
        assert served == list(range(len(served))), "those that came first"
        assert len(served) >= 256


def test_answers_come_in_request_order_one_at_a_time(tmp_path: Path) -> None:
    with serve(tmp_path, SYNC) as daemon:
        daemon.send(request("nap", {"seconds": 0.3}, id=0))
        daemon.send(b"".join(request("echo", [str(id)], id=id) for id in range(1, 100)))
        daemon.answer(99)
        assert [message["id"] for message in daemon.messages] == list(range(100))


def test_a_thread_of_a_handler_may_notify_and_call(tmp_path: Path) -> None:
    source = """
import threading

service = Service()

@service.query
def delegate(ctx: Context) -> int:
    got = []
    def work() -> None:
        ctx.notify("progress", {"percent": 50})
        got.append(ctx.call("double", [4]).result())
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return got[0]
"""
    with serve(tmp_path, source) as daemon:
        daemon.send(request("delegate", id=1))
        call = daemon.wait_for(lambda message: message.get("method") == "double", "call")
        assert daemon.messages[0]["method"] == "progress"
        daemon.send(answer(call["id"], 8))
        assert daemon.result(1) == 8


def test_a_call_that_would_wait_too_deep_fails_in_its_handler_and_is_no_refusal(
    tmp_path: Path,
) -> None:
    source = """
service = Service()

@service.query
def wait(ctx: Context) -> int:
    return ctx.call("more").result()

@service.command(retry_safe=True)
def pay(ctx: Context) -> int:
    return ctx.call("more").result()
"""
    pay = {"idempotency_key": "k"}
    with serve(tmp_path, source, "--policy", "editor") as daemon:
        for id in range(MAX_NESTED):
            daemon.send(request("wait", id=id))
        calls = [message["id"] for message in _calls(daemon, MAX_NESTED)]
        daemon.send(request("pay", pay, id="deep"))
        assert daemon.error("deep")["code"] == -32603
        eventually(lambda: "too many calls wait for one another" in daemon.log, "the log line")
        for id in calls:
            daemon.send(answer(id, 1))
        assert daemon.result(0) == 1
        daemon.send(request("pay", pay, id="again"))
        last = _calls(daemon, MAX_NESTED + 1)[-1]
        daemon.send(answer(last["id"], 2))
        assert daemon.result("again") == 2


def _calls(daemon: Process, count: int) -> list[Any]:
    """Wait until the daemon has made so many calls."""

    def made() -> list[Any]:
        return [message for message in daemon.messages if message.get("method") == "more"]

    eventually(lambda: len(made()) >= count, "calls of the daemon")
    return made()
