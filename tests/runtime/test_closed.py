"""`closed()`: when a connection is over, and why, on either client."""

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from duet_rpc import CallTimeout, Client, ConnectionEnd, ConnectionLost, UsageError, blocking
from tests.runtime.faces import PATIENCE, Driver, Face, Peer, Scripted, failure

CLIENTS: dict[str, Any] = {"asyncio": Client, "blocking": blocking.Client}

SERVER = """
import os, sys
from duet_rpc import Service

app = Service()

@app.query
def pid() -> int:
    return os.getpid()

@app.query
def leave(status: int) -> None:
    print("no licence", "left for today", sep="\\n", file=sys.stderr, flush=True)
    os._exit(status)

app.run()
"""


def wait_closed(driver: Driver) -> ConnectionEnd:
    end: ConnectionEnd = driver.start(lambda client: client.closed()).result(PATIENCE)
    return end


@pytest.mark.clause("client-31")
def test_a_server_that_exits_is_told_with_its_status_and_last_words(face: Face) -> None:
    driver = face.spawn(sys.executable, "-c", SERVER)
    assert driver.call("pid")
    waiting = [driver.start(lambda client: client.closed()) for _ in range(2)]
    lost = failure(driver.begin("leave", {"status": 3}))
    assert isinstance(lost, ConnectionLost)
    end = waiting[0].result(PATIENCE)
    assert waiting[1].result(PATIENCE) == end == wait_closed(driver), "at once, and again"
    assert (end.reason, end.exit_code, end.connection_id) == ("exited", 3, "client-1")
    assert "exited with status 3" in end.message
    assert end.stderr_tail.splitlines()[-2:] == ["no licence", "left for today"]
    assert str(end) == f"{end.message}\n{end.stderr_tail}"


@pytest.mark.clause("client-31")
def test_a_server_that_is_killed_is_noticed_although_no_call_waits(face: Face) -> None:
    driver = face.spawn(sys.executable, "-c", SERVER)
    pid = driver.call("pid")
    closed = driver.start(lambda client: client.closed())
    os.kill(pid, signal.SIGKILL)
    end = closed.result(PATIENCE)
    assert (end.reason, end.exit_code) == ("exited", -signal.SIGKILL)
    assert "SIGKILL" in end.message
    with pytest.raises(ConnectionLost):
        driver.call("pid")


@pytest.mark.clause("client-31")
def test_the_status_is_told_of_a_server_that_takes_its_time_to_exit(face: Face) -> None:
    program = "import os, sys; os.close(1); sys.stdin.buffer.read(); sys.exit(3)"
    driver = face.spawn(sys.executable, "-c", program)
    assert "still runs" in str(failure(driver.begin("pid")))
    end = wait_closed(driver)
    assert (end.reason, end.exit_code) == ("exited", 3)
    assert "exited with status 3" in end.message


@pytest.mark.clause("client-31")
def test_a_server_that_has_to_be_stopped_is_told_as_such(face: Face) -> None:
    driver = face.spawn(sys.executable, "-c", "import os, time; os.close(1); time.sleep(600)")
    end = wait_closed(driver)
    assert (end.reason, end.exit_code) == ("exited", -signal.SIGTERM)
    assert "did not end by itself" in end.message


@pytest.mark.clause("client-31")
def test_a_socket_that_is_cut_is_lost(face: Face, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{tmp_path}/socket")
        listener.listen()
        driver = face.enter(CLIENTS[face.name].connect(f"unix:{tmp_path}/socket"))
        closed = driver.start(lambda client: client.closed())
        connected, _ = listener.accept()
        connected.close()
    end = closed.result(PATIENCE)
    assert (end.reason, end.exit_code, end.stderr_tail) == ("lost", None, "")
    assert f"{tmp_path}/socket" in end.message


@pytest.mark.clause("client-31")
def test_what_is_no_frame_is_told_as_the_cause(face: Face) -> None:
    def babble(peer: Peer) -> None:
        peer.write(b"x" * 100_000)
        peer.read_all()

    server = Scripted(babble, is_network=True)
    end = wait_closed(face.open(server))
    assert end.reason == "lost" and "no frame" in end.message
    server.join()


@pytest.mark.clause("client-31")
def test_a_client_that_is_closed_tells_so_and_how_its_server_ended(face: Face) -> None:
    driver = face.spawn(sys.executable, "-c", SERVER)
    assert driver.call("pid")
    closed = driver.start(lambda client: client.closed())
    driver.close()
    end = closed.result(PATIENCE)
    assert (end.reason, end.message, end.exit_code) == ("closed", "the client was closed", 0)
    assert wait_closed(driver) == end


@pytest.mark.clause("client-31")
def test_with_reconnect_it_speaks_of_the_connection_that_is_there(face: Face) -> None:
    def answer_one(peer: Peer) -> None:
        peer.answer(peer.request())

    def answer_all(peer: Peer) -> None:
        peer.answer(peer.request())
        peer.read_all()

    server = Scripted(answer_one, answer_all)
    driver = face.open(server, reconnect=True)
    first = driver.start(lambda client: client.closed())
    driver.call("ping")
    lost = first.result(PATIENCE)
    assert (lost.reason, lost.connection_id) == ("lost", "client-1")
    assert wait_closed(driver) == lost, "of the last one, while there is none"
    driver.call("ping")
    second = driver.start(lambda client: client.closed())
    driver.close()
    end = second.result(PATIENCE)
    assert end.connection_id == "client-2"
    assert wait_closed(driver) == end
    server.join()


@pytest.mark.clause("client-31")
def test_a_client_that_was_never_connected_has_no_end(face: Face) -> None:
    client = CLIENTS[face.name].connect("unix:nowhere")
    with pytest.raises(UsageError, match="has not been connected"):
        if face.name == "asyncio":
            asyncio.run(client.closed())
        else:
            client.closed()


@pytest.mark.clause("client-31")
def test_one_who_waits_no_longer_disturbs_nobody(face: Face) -> None:
    driver = face.spawn(sys.executable, "-c", SERVER)
    other = driver.start(lambda client: client.closed())

    def wait_briefly(client: Any) -> Any:
        if face.name == "asyncio":
            return asyncio.wait_for(client.closed(), 0.01)
        return client.closed(timeout=0.01)

    error = failure(driver.start(wait_briefly))
    assert isinstance(error, TimeoutError)
    if face.name == "blocking":
        assert isinstance(error, CallTimeout) and "not over after 0.01 s" in str(error)
    assert driver.call("pid")
    driver.close()
    assert other.result(PATIENCE).reason == "closed"


@pytest.mark.clause("client-31")
def test_waiting_for_the_end_is_no_call() -> None:
    with blocking.Client.spawn(sys.executable, "-c", SERVER) as client:
        client.call("pid")
        before = client.stats
        with pytest.raises(CallTimeout, match="the connection is not over after"):
            client.closed(0.01)
        assert client.stats == before


@pytest.mark.clause("client-34")
def test_the_process_of_a_spawned_server_is_known(face: Face) -> None:
    driver = face.spawn(sys.executable, "-c", SERVER)
    pid = driver.do(lambda client: client.pid)
    assert pid is not None and pid == driver.call("pid")
    driver.close()
    assert driver.do(lambda client: client.pid) is None
    assert wait_closed(driver).pid == pid


def test_a_server_that_was_not_started_has_no_process(face: Face) -> None:
    driver = face.open(Scripted(lambda peer: peer.read_all()))
    assert driver.do(lambda client: client.pid) is None
    driver.close()
    assert wait_closed(driver).pid is None
