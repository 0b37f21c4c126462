"""The deadline of a `def` is told by the sequential daemon too, and the order stays."""

from pathlib import Path

import pytest

from tests.daemon.process import request, serve

SERVICE = """
import os, time

service = Service()
begun = []

def wait_for(until: str) -> str:
    while not os.path.exists(until):
        time.sleep(0.01)
    return "let go"

@service.query(timeout=0.2)
def hold(until: str) -> str:
    return wait_for(until)

@service.command(timeout=0.2)
def pay(until: str) -> str:
    begun.append(until)
    return wait_for(until)

@service.query(timeout=60)
def quick(text: str) -> str:
    return text

@service.query
def echo(text: str) -> str:
    return text

@service.query
def count() -> int:
    return len(begun)
"""


@pytest.mark.parametrize("method", ["hold", "pay"])
def test_the_deadline_of_a_def_is_told_while_it_runs(tmp_path: Path, method: str) -> None:
    gate = tmp_path / "gate"
    with serve(tmp_path, SERVICE) as daemon:
        daemon.send(request(method, [str(gate)], id="late"))
        error = daemon.error("late")
        assert (error["code"], error["data"]["reason"]) == (-32019, "deadline-exceeded")
        gate.touch()
        assert daemon.call("echo", ["next"]) == "next"
        assert len(daemon.messages) == 2, "answered once"
        daemon.close_input()
        assert daemon.wait() == 0


def test_a_command_after_its_deadline_is_found_by_its_key(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    params = {"until": str(gate), "idempotency_key": "k"}
    with serve(tmp_path, SERVICE) as daemon:
        daemon.send(request("pay", params, id="late"))
        assert daemon.error("late")["code"] == -32019
        gate.touch()
        assert daemon.call("pay", params) == "let go"
        assert daemon.call("count") == 1


def test_answers_keep_the_order_of_their_requests(tmp_path: Path) -> None:
    methods = ["quick", "echo"] * 20
    with serve(tmp_path, SERVICE) as daemon:
        wire = [request(method, [str(id)], id=id) for id, method in enumerate(methods)]
        daemon.send(b"".join(wire))
        assert daemon.result(len(methods) - 1) == str(len(methods) - 1)
        assert [message["id"] for message in daemon.messages] == list(range(len(methods)))
