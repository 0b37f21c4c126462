"""`shutdown` and `exit`: what follows them in the stream, and the moment after the answer."""

from pathlib import Path

import pytest

from tests.daemon.process import Process, frames, notification, request, serve
from tests.daemon.services import ASYNC, SYNC
from tests.daemon.test_ends import GOODBYE

HOSTS = {"threads": (SYNC, "editor"), "loop": (ASYNC, "agent")}


@pytest.mark.parametrize("host", HOSTS)
def test_what_follows_shutdown_is_refused_and_what_precedes_it_is_not(
    tmp_path: Path, host: str
) -> None:
    source, policy = HOSTS[host]
    with serve(tmp_path, source, "--policy", policy) as daemon:
        daemon.send(
            request("echo", ["before"], id=1)
            + request("shutdown", id="end")
            + request("echo", ["after"], id=2)
            + notification("echo", ["after"])
        )
        assert daemon.wait() == 0
        assert daemon.result(1) == "before"
        assert daemon.answer("end") == GOODBYE
        error = daemon.error(2)
        assert (error["code"], error["message"]) == (-32018, "Shutting down")
        assert error["data"]["reason"] == "shutting-down"
        assert len(frames(daemon.wire)) == 3


@pytest.mark.parametrize("host", HOSTS)
def test_a_request_sent_after_the_answer_to_shutdown_is_refused(tmp_path: Path, host: str) -> None:
    source, policy = HOSTS[host]
    for _ in range(20):  # we may be too late for the moment that it stays, on a loaded machine
        with serve(tmp_path, source, "--policy", policy) as daemon:
            daemon.send(request("shutdown", id="end"))
            assert daemon.answer("end") == GOODBYE
            try:
                daemon.send(request("echo", ["late"], id=1))
            except BrokenPipeError:
                continue
            assert daemon.wait() == 0
            if len(daemon.messages) == 2:
                assert daemon.error(1)["code"] == -32018
                return
    raise AssertionError("the daemon was never there any more")


@pytest.mark.parametrize("host", HOSTS)
def test_exit_cuts_the_lingering_short(tmp_path: Path, host: str) -> None:
    source, policy = HOSTS[host]
    with serve(tmp_path, source, "--policy", policy) as daemon:
        daemon.send(request("shutdown", id="end") + notification("exit"))
        assert daemon.wait() == 0
        assert daemon.messages == [GOODBYE]


@pytest.mark.parametrize("host", HOSTS)
def test_exit_alone_ends_the_daemon(tmp_path: Path, host: str) -> None:
    source, policy = HOSTS[host]
    with serve(tmp_path, source, "--policy", policy) as daemon:
        daemon.send(request("echo", ["a"], id=1) + notification("exit"))
        assert daemon.wait() == 0
        assert daemon.result(1) == "a"


def test_shutdown_twice_is_answered_twice() -> None:
    with Process("rpc") as daemon:
        daemon.send(request("shutdown", id="end") + request("shutdown", id="again"))
        assert daemon.wait() == 0
        assert daemon.answer("end") == GOODBYE
        assert daemon.result("again") == GOODBYE["result"]


def test_a_service_may_have_a_shutdown_of_its_own(tmp_path: Path) -> None:
    source = """
service = Service()

@service.query
def shutdown() -> str:
    return "the lights are out"
"""
    with serve(tmp_path, source) as daemon:
        assert daemon.call("shutdown") == "the lights are out"
        assert daemon.call("version")
        daemon.close_input()
        assert daemon.wait() == 0
