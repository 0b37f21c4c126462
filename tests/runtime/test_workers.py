"""Threads for handlers: shared fairly; not held by waiting; what finds none is refused."""

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from duet_rpc.errors import Overloaded
from duet_rpc.hosts.workers import Lane, NoThread, Workers, waiting
from duet_rpc.transports.address import parse_target
from tests.runtime.faces import PATIENCE
from tests.runtime.slots import Caller, caller_of, eventually, request

# The threads by themselves.


class Few(Workers):
    """As few as can be seen through."""

    MAX = 2
    MAX_THREADS = 6


class Held:
    """Work that begins and then waits for the test."""

    def __init__(self, lane: Lane, log: list[str] | None = None, name: str = "") -> None:
        self.began, self.go_on, self.ended = (threading.Event() for _ in range(3))
        self.refused: list[Exception] = []
        self._log, self._name = log, name
        lane.run(self._run, self.refused.append)

    def _run(self) -> None:
        if self._log is not None:
            self._log.append(self._name)
        self.began.set()
        assert self.go_on.wait(PATIENCE)
        self.ended.set()

    def has_begun(self) -> bool:
        return self.began.wait(PATIENCE)

    def end(self) -> None:
        self.go_on.set()
        assert self.ended.wait(PATIENCE)


@pytest.fixture
def few(rpc_no_leaks: None) -> Iterator[Workers]:
    workers = Few()
    yield workers
    workers.close()


def handlers() -> int:
    return sum(thread.name == "duet-rpc handler" for thread in threading.enumerate())


def test_a_thread_is_used_again(few: Workers) -> None:
    lane = few.lane()
    for _ in range(20):
        Held(lane).end()
        eventually(lambda: len(few._idle) == 1, "the thread is idle")
    assert handlers() == 1


def test_a_thread_with_nothing_to_do_ends(few: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Few, "IDLE", 0.01)
    for _ in range(3):
        held = [Held(few.lane()) for _ in range(2)]
        for one in held:
            one.end()
        eventually(lambda: handlers() == 0, "both threads have ended")
    assert few._threads == 0


def test_what_a_handler_worked_on_does_not_stay_with_the_thread(few: Workers) -> None:
    lane, done = few.lane(), threading.Event()
    work = Held(lane)
    work.end()
    before = sys.getrefcount(done)
    lane.run(done.set, print)
    assert done.wait(PATIENCE)
    eventually(lambda: sys.getrefcount(done) <= before, "nothing refers to it")


def test_lanes_have_their_turn_one_after_the_other(
    few: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Few, "MAX", 4)
    one, other, log = few.lane(), few.lane(), list[str]()
    held = [Held(lane) for lane in (one, one, other, other)]
    assert all(work.has_begun() for work in held)
    queued = [Held(one, log, f"one {n}") for n in range(4)]
    queued += [Held(other, log, f"other {n}") for n in range(2)]
    for work in queued:
        work.go_on.set()
    held[0].end()  # and so one thread is left for all that waits
    for work in queued:
        assert work.ended.wait(PATIENCE)
    for work in held[1:]:
        work.end()
    assert log == ["one 0", "other 0", "one 1", "other 1", "one 2", "one 3"]


def test_a_lane_in_which_nothing_computes_has_a_thread_at_once(few: Workers) -> None:
    busy = few.lane()
    held = [Held(busy) for _ in range(5)]
    assert held[0].has_begun() and held[1].has_begun()
    others = [Held(few.lane()) for _ in range(3)]
    assert all(other.has_begun() for other in others)
    assert not held[2].began.is_set(), "its own lane has its share"
    for work in [*others, *held]:
        work.end()


def test_a_thread_that_waits_for_its_peer_is_not_counted(few: Workers) -> None:
    lane, answered = few.lane(), threading.Event()
    waits = [threading.Event() for _ in range(3)]

    def wait_for_peer(began: threading.Event) -> None:
        with waiting():
            began.set()
            answered.wait(PATIENCE)

    for event in waits:
        lane.run(lambda event=event: wait_for_peer(event), print)  # type: ignore[misc]
    assert all(event.wait(PATIENCE) for event in waits)
    computing = [Held(lane) for _ in range(2)]
    assert all(work.has_begun() for work in computing)
    late = Held(lane)
    answered.set()
    for work in [*computing, late]:
        work.end()
    eventually(lambda: few._computing == 0, "all have ended")


def test_what_waits_begins_when_a_thread_begins_to_wait(few: Workers) -> None:
    lane, pause, answered = few.lane(), threading.Event(), threading.Event()

    def wait_for_peer() -> None:
        pause.wait(PATIENCE)
        with waiting():
            answered.wait(PATIENCE)

    lane.run(wait_for_peer, print)
    other = Held(lane)
    queued = Held(lane)
    assert other.has_begun() and not queued.began.is_set()
    pause.set()
    assert queued.has_begun()
    answered.set()
    other.end()
    queued.end()


def test_there_is_a_limit_on_all_threads(few: Workers) -> None:
    held = [Held(few.lane()) for _ in range(6)]
    with pytest.raises(NoThread, match="6 threads"):
        Held(few.lane())
    for work in held:
        work.end()
    eventually(lambda: len(few._idle) == 6, "all threads are idle")
    Held(few.lane()).end()


def test_what_waits_is_refused_if_there_is_no_thread_when_it_needs_one(few: Workers) -> None:
    others = [Held(few.lane()) for _ in range(5)]
    lane, pause, answered = few.lane(), threading.Event(), threading.Event()

    def wait_for_peer() -> None:
        pause.wait(PATIENCE)
        with waiting():
            answered.wait(PATIENCE)

    lane.run(wait_for_peer, print)
    queued = [Held(lane) for _ in range(2)]
    pause.set()
    eventually(lambda: all(work.refused for work in queued), "both are refused")
    assert isinstance(queued[0].refused[0], NoThread)
    answered.set()
    for work in others:
        work.end()
    eventually(lambda: few._computing == 0, "all have ended")
    assert not any(work.began.is_set() for work in queued)


def test_after_the_end_nothing_is_taken(few: Workers) -> None:
    lane = few.lane()
    running = [Held(lane) for _ in range(2)]
    assert all(work.has_begun() for work in running)
    dropped = Held(lane)
    few.close()
    few.close()
    with pytest.raises(NoThread):
        Held(lane)
    for work in running:
        work.end()
    eventually(lambda: handlers() == 0, "the threads have ended")
    assert not dropped.began.is_set()


# A server with many peers.


class Crowded:
    """A server in a process of its own, and what connects to it."""

    def __init__(self, process: "subprocess.Popen[bytes]", address: str) -> None:
        self.process = process
        self._address = address
        self._stack = contextlib.ExitStack()

    def connect(self) -> Caller:
        channel = parse_target(self._address).connect(PATIENCE)
        self._stack.callback(channel.close)
        return caller_of(channel.read_fd, channel.write_fd)

    def close(self) -> None:
        self._stack.close()


@contextlib.contextmanager
def crowded(kind: str, tmp_path: Path) -> Iterator[Crowded]:
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.runtime.crowded", kind, str(tmp_path / "s")],
            stdout=subprocess.PIPE,
            stderr=log,
        )
    with process:
        assert process.stdout is not None
        address = f"unix:{tmp_path / 's'}"
        if kind == "tcp":
            address = process.stdout.readline().decode().strip()
        eventually(lambda: "listening" in (tmp_path / "log").read_text(), "it listens")
        server = Crowded(process, address)
        try:
            yield server
        finally:
            server.close()
            process.kill()


def answer(caller: Caller, method: str, **params: Any) -> Any:
    (id,) = caller.ids(1)
    caller.send(request(id, method, **params))
    return caller.collect([id])[0]


def result(caller: Caller, method: str, **params: Any) -> Any:
    found = answer(caller, method, **params)
    assert "result" in found, found
    return found["result"]


def wait_until(caller: Caller, method: str, holds: Callable[[Any], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not holds(value := result(caller, method)):
        assert time.monotonic() < until, f"{method} says {value}"
        time.sleep(0.01)


def test_the_calls_of_three_hundred_peers_whose_handlers_wait_are_served(tmp_path: Path) -> None:
    with crowded("unix", tmp_path) as server:
        peers = [server.connect() for _ in range(300)]
        asking = [peer.ids(1)[0] for peer in peers]
        for peer, id in zip(peers, asking, strict=True):
            peer.send(request(id, "ask"))
        for peer in peers:
            peer.wait_until_asked(1)
        for number, peer in enumerate(peers):  # all handlers wait, each for a peer that now calls
            assert result(peer, "echo", value=number) == number
        for number, (peer, id) in enumerate(zip(peers, asking, strict=True)):
            peer.send({"jsonrpc": "2.0", "id": peer.asked[0], "result": number})
            assert peer.collect([id])[0]["result"] == number


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_slow_handlers_of_some_peers_do_not_delay_another(kind: str, tmp_path: Path) -> None:
    with crowded(kind, tmp_path) as server:
        slow = [server.connect() for _ in range(20)]
        held = [peer.ids(16) for peer in slow]
        for peer, ids in zip(slow, held, strict=True):
            peer.send(*(request(id, "hold") for id in ids))
        other = server.connect()
        wait_until(other, "held", lambda begun: begun >= Workers.MAX)
        for number in range(50):
            assert result(other, "echo", value=number) == number
        assert result(other, "threads") <= Workers.MAX + 20 + 5
        ids = other.ids(40)
        other.send(*(request(id, "echo", value=id) for id in ids))
        assert [found["result"] for found in other.collect(ids)] == ids
        result(other, "release")
        for peer, ids in zip(slow, held, strict=True):
            assert all(found["result"] == "open" for found in peer.collect(ids))


@pytest.mark.parametrize("method", ["echo", "note"])
@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_a_handler_needs_no_descriptor(kind: str, method: str, tmp_path: Path) -> None:
    with crowded(kind, tmp_path) as server:
        peer = server.connect()
        assert result(peer, "take_descriptors") > 0
        assert result(peer, method, value=7) == 7  # the first that needs a thread
        result(peer, "give_descriptors")


@pytest.mark.parametrize("method", ["echo", "note"])
@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_what_has_no_thread_is_refused_and_may_be_sent_again(
    kind: str, method: str, tmp_path: Path
) -> None:
    with crowded(kind, tmp_path) as server:
        peer = server.connect()
        result(peer, "take_memory")
        for _ in range(20):  # more than there are slots
            refused = answer(peer, method, value=7)["error"]
            assert refused["code"] == Overloaded.code, refused
            assert refused["data"]["retry_after_ms"] > 0
        result(peer, "give_memory")
        assert result(peer, method, value=7) == 7
