"""Trying again: queries, commands under one key, new connections, children that crash."""

import sys
import textwrap
import threading
import time
import types
from pathlib import Path
from typing import Any

import pytest

from duet_rpc import MemoryStore, Retry, Service
from duet_rpc.errors import (
    CallTimeout,
    ConnectFailed,
    ConnectionLost,
    DeadlineExceeded,
    MethodNotFound,
    Overloaded,
    TransportError,
    UsageError,
)
from duet_rpc.testing import ManualClock
from duet_rpc.transports import restarts
from tests.runtime.faces import PATIENCE, Face, Peer, Scripted, failure

QUICK = Retry(attempts=3, first_delay=0.01, jitter=0.5)


def dies(peer: Peer) -> None:
    peer.request()


def answering(seen: list[Any], result: bytes = b'"fine"') -> Any:
    def script(peer: Peer) -> None:
        while (request := peer.read()) is not None:
            seen.append(request)
            peer.answer(request, result)

    return script


def test_a_query_survives_lost_connections(face: Face) -> None:
    seen: list[Any] = []
    driver = face.open(Scripted(dies, dies, answering(seen)), retry=QUICK)
    assert driver.do(lambda client: client.query("get", [1])) == "fine"
    assert driver.stats.connects == 3 and len(seen) == 1
    driver.close()


def test_a_query_is_not_tried_for_ever(face: Face) -> None:
    driver = face.open(Scripted(dies, dies, dies, answering([])), retry=QUICK)
    with pytest.raises(ConnectionLost):
        driver.do(lambda client: client.query("get"))
    assert driver.stats.connects == 3
    driver.close()


def test_a_plain_call_is_sent_once(face: Face) -> None:
    seen: list[Any] = []
    driver = face.open(Scripted(dies, answering(seen)), retry=QUICK)
    with pytest.raises(TransportError):
        driver.call("get")
    assert seen == []
    assert driver.call("get") == "fine", "the next one finds a new connection"
    driver.close()


def test_a_command_keeps_its_key_over_all_tries(face: Face) -> None:
    seen: list[Any] = []

    def dies_late(peer: Peer) -> None:
        seen.append(peer.request())

    driver = face.open(Scripted(dies_late, dies_late, answering(seen)), retry=QUICK)
    assert driver.do(lambda client: client.command("pay", {"amount": 5})) == "fine"
    keys = {request["params"]["idempotency_key"] for request in seen}
    assert len(seen) == 3 and len(keys) == 1 and len(keys.pop()) >= 32
    assert [request["params"]["amount"] for request in seen] == [5, 5, 5]
    driver.do(lambda client: client.command("pay", {"amount": 5}))
    assert seen[-1]["params"]["idempotency_key"] not in {
        request["params"]["idempotency_key"] for request in seen[:-1]
    }
    driver.close()


def test_a_command_that_fails_tells_its_key(face: Face) -> None:
    driver = face.open(Scripted(dies))
    with pytest.raises(ConnectionLost) as caught:
        driver.do(lambda client: client.command("pay", {"amount": 5}, key="mine"))
    assert caught.value.idempotency_key == "mine"
    driver.close()


def test_a_command_that_was_sent_does_not_end_as_one_that_was_not(face: Face) -> None:
    driver = face.open(Scripted(dies), retry=QUICK)  # and nobody listens any more
    with pytest.raises(ConnectionLost) as caught:
        driver.do(lambda client: client.command("pay", {"amount": 5}, key="mine"))
    assert isinstance(caught.value.__cause__, ConnectFailed)
    assert caught.value.idempotency_key == "mine"
    with pytest.raises(ConnectFailed) as never_sent:
        driver.do(lambda client: client.command("pay", {"amount": 5}))
    assert never_sent.value.__cause__ is None
    driver.close()


def test_a_refusal_after_a_try_without_answer_is_not_the_whole_truth(face: Face) -> None:
    def ignores_then_refuses(peer: Peer) -> None:
        peer.request()
        while (request := peer.read()) is not None:
            if "id" in request:
                error = b'{"code":-32017,"message":"Overloaded"}'
                peer.say(b'{"jsonrpc":"2.0","id":%d,"error":%b}' % (request["id"], error))

    driver = face.open(Scripted(ignores_then_refuses))
    with pytest.raises(CallTimeout) as caught:
        driver.do(lambda client: client.command("pay", {"amount": 5}, timeout=0.2, retry=QUICK))
    assert isinstance(caught.value.__cause__, Overloaded)
    driver.close()


def test_an_error_that_lets_the_command_run_on_outlives_the_server(face: Face) -> None:
    def is_late(peer: Peer) -> None:
        error = b'{"code":-32019,"message":"Deadline exceeded"}'
        request = peer.request()
        peer.say(b'{"jsonrpc":"2.0","id":%d,"error":%b}' % (request["id"], error))

    driver = face.open(Scripted(is_late), retry=QUICK)
    with pytest.raises((DeadlineExceeded, ConnectionLost)) as caught:
        driver.do(lambda client: client.command("pay", {"amount": 5}))
    assert isinstance(caught.value.__cause__, ConnectFailed)
    driver.close()


def test_a_command_happens_once_whatever_is_lost(face: Face) -> None:
    service, paid = Service(), list[int]()

    @service.command
    def pay(amount: int) -> int:
        paid.append(amount)
        return len(paid)

    driver = face.connect(service, store=MemoryStore(), retry=QUICK)
    first = driver.do(lambda client: client.command("pay", {"amount": 5}, key="k"))
    again = driver.do(lambda client: client.command("pay", {"amount": 5}, key="k"))
    assert first == again == 1 and paid == [5]
    found = driver.do(lambda client: client.outcome("pay", "k"))
    assert found.state == "done" and found.result() == 1 and found.error() is None
    unheard = driver.do(lambda client: client.outcome("pay", "unknown"))
    assert unheard.state == "none"
    with pytest.raises(UsageError, match="its state is 'none'"):
        unheard.result()


@pytest.mark.parametrize("params", [[1], (1, 2)])
def test_a_commands_params_are_named(face: Face, params: Any) -> None:
    driver = face.connect(Service())
    with pytest.raises(UsageError, match="named"):
        driver.do(lambda client: client.command("pay", params))


def test_only_errors_that_can_pass_are_tried_again(face: Face) -> None:
    service, tries = Service(), list[str]()

    @service.query
    def moody(mood: str) -> str:
        tries.append(mood)
        if tries.count(mood) < 3 or mood == "never":
            raise {"overloaded": Overloaded, "late": DeadlineExceeded}.get(mood, MethodNotFound)()
        return "fine"

    driver = face.connect(service, retry=QUICK)
    assert driver.do(lambda client: client.query("moody", ["overloaded"])) == "fine"
    assert driver.do(lambda client: client.query("moody", ["late"])) == "fine"
    with pytest.raises(MethodNotFound):
        driver.do(lambda client: client.query("moody", ["never"]))
    assert (tries.count("overloaded"), tries.count("never")) == (3, 1)


def test_a_retry_of_one_query(face: Face) -> None:
    seen: list[Any] = []

    def ignores_then_answers(peer: Peer) -> None:
        peer.request()
        assert peer.request()["method"] == "$/cancelRequest"
        answering(seen)(peer)

    driver = face.open(Scripted(ignores_then_answers))
    assert driver.do(lambda client: client.query("get", timeout=0.2, retry=QUICK)) == "fine"
    assert driver.stats.connects == 1
    driver.close()


def test_without_reconnect_a_lost_connection_stays_lost(face: Face) -> None:
    driver = face.open(Scripted(dies, answering([])), retry=QUICK, reconnect=False)
    for _ in range(2):
        with pytest.raises(ConnectionLost):
            driver.do(lambda client: client.query("get"))
    assert driver.stats.connects == 1
    driver.close()


def test_reconnect_without_retry(face: Face) -> None:
    driver = face.open(Scripted(dies, answering([])), reconnect=True)
    with pytest.raises(ConnectionLost):
        driver.call("get")
    assert driver.call("get") == "fine"
    items = driver.batch(lambda batch: [batch.notify("note")])
    assert items[0].error() is None
    driver.close()


def test_connecting_anew_can_fail(face: Face) -> None:
    driver = face.open(Scripted(dies), reconnect=True)
    with pytest.raises(ConnectionLost):
        driver.call("get")
    with pytest.raises(ConnectFailed):
        driver.call("get")
    with pytest.raises(ConnectFailed):
        driver.do(lambda client: client.notify("note"))
    driver.close()


def test_many_who_lost_the_same_connection_open_one(face: Face) -> None:
    def dies_after(peer: Peer) -> None:
        for _ in range(10):
            peer.request()

    driver = face.open(Scripted(dies_after, answering([])), retry=QUICK)
    calls = [driver.start(lambda client: client.query("get")) for _ in range(10)]
    assert [call.result(PATIENCE) for call in calls] == ["fine"] * 10
    assert driver.stats.connects == 2
    driver.close()


class SlowOpener(Scripted):
    """Takes its time to connect, after the first time."""

    def __init__(self, *scripts: Any) -> None:
        super().__init__(*scripts)
        self.opened = 0
        self.gate = threading.Event()

    def open(self, timeout: float | None = None) -> Any:
        self.opened += 1
        if self.opened > 1:
            if not self.gate.wait(PATIENCE if timeout is None else timeout):
                raise ConnectFailed("nobody answered in time")
        return super().open(timeout)


def test_the_deadline_covers_connecting(face: Face) -> None:
    opener = SlowOpener(dies, answering([]), answering([]))
    driver = face.open(opener, reconnect=True)
    with pytest.raises(ConnectionLost):
        driver.call("get")
    begun = time.monotonic()
    with pytest.raises((CallTimeout, ConnectFailed)):
        driver.call("get", timeout=0.3)
    assert time.monotonic() - begun < 20
    opener.gate.set()
    assert driver.call("get", timeout=PATIENCE) == "fine"
    driver.close()


def test_closing_while_connecting_leaves_nothing(face: Face) -> None:
    opener = SlowOpener(dies, answering([]))
    driver = face.open(opener, reconnect=True)
    with pytest.raises(ConnectionLost):
        driver.call("get")
    call = driver.begin("get", timeout=PATIENCE)
    until = time.monotonic() + PATIENCE
    while opener.opened < 2 and time.monotonic() < until:
        time.sleep(0.005)
    closing = threading.Thread(target=driver.close)
    closing.start()
    time.sleep(0.05)
    opener.gate.set()
    closing.join(PATIENCE)
    assert not closing.is_alive()
    assert isinstance(failure(call), (ConnectionLost, UsageError))
    opener.join()  # its end of the connection saw the close


# Children.


def crashing(tmp_path: Path, times: int) -> list[str]:
    """Make a server that dies at its first request, so many times, and then serves."""
    script = tmp_path / "server.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import os, pathlib, sys
            from duet_rpc import Service

            service = Service()
            count = pathlib.Path({str(tmp_path / "count")!r})

            @service.query
            def get() -> str:
                crashes = len(count.read_text()) if count.exists() else 0
                if crashes < {times}:
                    count.write_text("x" * (crashes + 1))
                    print("crashing", file=sys.stderr, flush=True)
                    os._exit(7)
                return "fine"

            service.run()
            """
        )
    )
    return [sys.executable, str(script)]


def test_a_child_that_crashes_is_started_again(face: Face, tmp_path: Path) -> None:
    driver = face.spawn(*crashing(tmp_path, 2), retry=QUICK)
    assert driver.do(lambda client: client.query("get", timeout=PATIENCE)) == "fine"
    assert driver.stats.connects == 3
    driver.close()


def test_a_child_that_always_crashes_is_given_up(face: Face, tmp_path: Path) -> None:
    patient = Retry(attempts=10, first_delay=0.01)
    driver = face.spawn(*crashing(tmp_path, 100), restarts=2, retry=patient)
    with pytest.raises(ConnectionLost, match="exited with status 7") as caught:
        driver.do(lambda client: client.query("get", timeout=PATIENCE))
    assert isinstance(caught.value.__cause__, ConnectFailed)
    assert "started 3 times within a minute" in str(caught.value.__cause__)
    assert driver.stats.connects == 3
    driver.close()


def test_the_limit_of_restarts_is_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    monkeypatch.setattr(restarts, "time", types.SimpleNamespace(monotonic=clock))
    opener = restarts.ChildOpener(["/bin/cat"], restarts=1)
    opened = [opener.open(), opener.open()]
    try:
        clock.advance(59)
        with pytest.raises(ConnectFailed, match="within a minute"):
            opener.open()
        clock.advance(2)
        opened.append(opener.open())
    finally:
        for link in opened:
            link.end()


# The value.


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": 0},
        {"attempts": "3"},
        {"attempts": 1.5},
        {"attempts": True},
        {"first_delay": "1"},
        {"max_delay": None},
        {"total": float("nan")},
        {"jitter": "0"},
        {"first_delay": -1.0},
        {"max_delay": -1.0},
        {"total": 0.0},
        {"jitter": 1.5},
        {"jitter": -0.1},
    ],
)
def test_a_retry_that_makes_no_sense_cannot_be_made(wrong: Any) -> None:
    (name,) = wrong
    with pytest.raises(UsageError, match=f"^{name} is .*; give .*(number|seconds|share)"):
        Retry(**wrong)


def test_the_first_value_of_a_retry_is_how_often() -> None:
    assert Retry(3) == Retry(attempts=3)


def test_delays_double_up_to_the_most_and_are_shortened_at_random() -> None:
    assert list(Retry(attempts=6, first_delay=1, max_delay=5, jitter=0).delays()) == [1, 2, 4, 5, 5]
    assert list(Retry(attempts=1).delays()) == []
    for delay in Retry(attempts=50, first_delay=2, max_delay=2, jitter=0.5).delays():
        assert 1 <= delay <= 2
