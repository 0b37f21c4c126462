"""Memory follows what is being worked on, not what the peer sends or leaves unread."""

import os
import threading
from pathlib import Path

import pytest

from tests.daemon.process import Process, eventually, request, serve
from tests.daemon.services import ASYNC, SYNC

MIB = 1024 * 1024
HOSTS = {"threads": (SYNC, "editor"), "loop": (ASYNC, "agent")}
BIG = """
@service.query
def big(size: int) -> str:
    return "x" * size

@service.query
def length(text: str) -> int:
    return len(text)
"""


def feed(daemon: Process, data: bytes) -> threading.Thread:
    """Send from a thread of its own: the daemon may not read it all."""

    def send() -> None:
        try:
            daemon.send(data)
        except (OSError, ValueError):
            pass  # the test is over

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("host", HOSTS)
def test_a_flood_of_requests(tmp_path: Path, host: str) -> None:
    source, policy = HOSTS[host]
    count = 50_000 if host == "threads" else 20_000
    with serve(tmp_path, source, "--policy", policy) as daemon:
        daemon.call("echo", ["warm"])
        before = daemon.memory()
        feed(daemon, b"".join(request("echo", ["abc"], id=id) for id in range(10, 10 + count)))
        eventually(lambda: len(daemon.messages) == 1 + count, "all answers")
        assert all("result" in message for message in daemon.messages)
        assert daemon.memory() - before < 32 * MIB


ANSWER = b'"jsonrpc":'


@pytest.mark.parametrize("host", HOSTS)
def test_a_peer_that_does_not_read(tmp_path: Path, host: str) -> None:
    source, policy = HOSTS[host]
    read, write = os.pipe()
    try:
        with serve(tmp_path, source + BIG, "--policy", policy, stdout=write) as daemon:
            os.close(write)
            daemon.send(request("big", [1000], id="first"))
            wire = b""
            while b'"first"' not in wire:
                wire += os.read(read, 1 << 16)
            before = daemon.memory()
            # 200 MB of answers, none of which is read.
            feed(daemon, b"".join(request("big", [200_000], id=id) for id in range(1000)))
            still = [daemon.memory()]
            for _ in range(20):
                still.append(settled(daemon))
                if still[-1] == still[-2]:
                    break
            assert daemon.memory() - before < 32 * MIB
            answers, end = 0, b""
            while answers < 1000:  # then it reads, and each is answered
                data = end + os.read(read, 1 << 20)
                assert len(data) > len(end), "it has ended too early"
                answers += data.count(ANSWER)
                end = data[-(len(ANSWER) - 1) :]
            assert daemon.memory() - before < 32 * MIB
    finally:
        os.close(read)


def settled(daemon: Process) -> int:
    """Wait for a moment; return the most memory that was used so far."""
    threading.Event().wait(0.1)
    return daemon.memory()


@pytest.mark.parametrize("host", HOSTS)
def test_large_requests_that_have_to_wait(tmp_path: Path, host: str) -> None:
    source, policy = HOSTS[host]
    gate = tmp_path / "gate"
    with serve(tmp_path, source + BIG, "--policy", policy) as daemon:
        daemon.call("length", ["warm"])
        daemon.send(request("hold", [str(gate)], id="holder"))
        daemon.wait_for_log("holding")
        before = daemon.memory()
        body = "x" * MIB
        # 160 MB: far more than may wait, so the rest is refused and dropped.
        feed(daemon, b"".join(request("length", [body], id=id) for id in range(160)))
        daemon.wait_for(lambda message: message.get("id") == 159, "the last one's refusal")
        assert daemon.error(159)["code"] == -32017
        # All of it together: what waits, what is on its way in, and what the allocator keeps.
        assert daemon.memory() - before < 32 * MIB
        gate.touch()
        assert daemon.result(0) == MIB


def test_an_oversized_frame_costs_nothing() -> None:
    with Process("rpc") as daemon:
        daemon.call("version")
        before = daemon.memory()
        size = 11_000_000
        daemon.send(b"Content-Length: %d\r\n\r\n" % size)
        for _ in range(size // 100_000):
            daemon.send(b"x" * 100_000)
        daemon.send(request("version", id="after"))
        daemon.result("after")
        assert daemon.memory() - before < MIB
