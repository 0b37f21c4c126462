"""Threads that share one blocking client, and the one that is interrupted."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from duet_rpc import Progress, Service, testing
from duet_rpc.blocking import Client
from duet_rpc.client.interrupts import Turnstile
from duet_rpc.engine.connection import Connection
from duet_rpc.errors import CallTimeout, ConnectionLost
from tests.runtime.faces import PATIENCE, Peer, Scripted, framed

pytestmark = pytest.mark.usefixtures("rpc_no_leaks")


def make_service() -> Service:
    service = Service()

    @service.query
    async def echo(value: Any, seconds: float = 0.0) -> Any:
        import asyncio

        await asyncio.sleep(seconds)
        return value

    return service


def interrupt() -> None:
    """Do what Ctrl-C does."""
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


def in_threads(count: int, work: Any) -> None:
    """Run work(number) in so many threads; fail with the first that failed."""
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=[number]) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "a thread waits for ever"
    if failures:
        raise failures[0]


def test_sixteen_threads_with_random_timeouts() -> None:
    timeouts, answers = [0] * 16, [0] * 16
    with testing.connect_blocking(make_service()) as client:

        def work(number: int) -> None:
            chance = random.Random(number)
            for step in range(60):
                value = [number, step]
                late = chance.random() < 0.2
                seconds = 30.0 if late else chance.choice([0.0, 0.0, 0.002, 0.01])
                timeout = chance.choice([0.001, 0.005, 0.02]) if late else PATIENCE
                try:
                    found = client.call(
                        "echo", {"value": value, "seconds": seconds}, timeout=timeout
                    )
                    assert found == value and not late
                    answers[number] += 1
                except CallTimeout:
                    assert late
                    timeouts[number] += 1

        in_threads(16, work)
        stats = client.stats
        assert stats.pending == 0 and stats.timeouts == sum(timeouts)
        assert sum(answers) + sum(timeouts) == 16 * 60 == stats.calls
        assert client._shared.lead.leader is None and not client._shared.lead.waiting


def test_the_lead_is_passed_on_when_the_leader_times_out() -> None:
    def script(peer: Peer) -> None:
        messages = [peer.request() for _ in range(4)]
        assert {"leader", "$/cancelRequest"} < {message["method"] for message in messages}
        for message in messages:
            if message["method"] == "follower":
                time.sleep(0.1)
                peer.answer(message, b'"fine"')
        peer.read_all()

    with Client(Scripted(script)) as client:
        outcomes: dict[int, Any] = {}

        def work(number: int) -> None:
            if number == 0:
                with pytest.raises(CallTimeout):
                    client.call("leader", timeout=0.5)
            else:
                time.sleep(0.1)
                outcomes[number] = client.call("follower", timeout=None)

        in_threads(3, work)
        assert outcomes == {1: "fine", 2: "fine"}


def test_an_offer_to_lead_that_comes_too_late_is_passed_on() -> None:
    """The one who is asked to lead next is just giving up: somebody else must lead."""
    answer = threading.Event()

    def script(peer: Peer) -> None:
        while True:
            request = peer.read()
            if request is None:
                return
            if request["method"] == "wait" and answer.wait(PATIENCE):
                peer.answer(request, b'"fine"')

    for _ in range(20):
        answer.clear()
        with Client(Scripted(script)) as client:

            def work(number: int) -> None:
                if number == 0:
                    assert client.call("wait", timeout=None) == "fine"
                else:
                    with pytest.raises(CallTimeout):
                        client.call("never", timeout=0.02)

            threads = threading.Thread(target=in_threads, args=[6, work])
            threads.start()
            time.sleep(0.03)
            answer.set()
            threads.join(PATIENCE)
            assert not threads.is_alive()
            assert client.stats.pending == 0


def test_closing_wakes_everybody() -> None:
    with testing.connect_blocking(make_service()) as client:
        begun = threading.Barrier(9)

        def work(number: int) -> None:
            begun.wait(PATIENCE)
            if number == 8:
                time.sleep(0.2)
                client.close()
                return
            with pytest.raises(ConnectionLost, match="closed"):
                client.call("echo", {"value": 1, "seconds": 100}, timeout=None)

        in_threads(9, work)
        assert client.stats.pending == 0


def test_closing_sends_nothing_although_the_turn_of_a_call_has_come() -> None:
    seen: list[str] = []
    answered = threading.Event()

    def script(peer: Peer) -> None:
        peer.answer(peer.request())
        answered.set()
        seen.extend(message["method"] for message in peer.read_all())

    server = Scripted(script)
    with Client(server, allow_concurrent_requests=False) as client:
        usual = client._usual
        replies = [client.request(name, None, usual) for name in ("first", "second")]
        assert answered.wait(PATIENCE)
    assert replies[0].result() is None
    with pytest.raises(ConnectionLost, match="closed"):
        replies[1].result()
    server.join()
    assert seen == []


def test_whoever_is_passed_the_lead_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one whose call another thread has sent, and that runs as soon as its gate is open."""
    open_gate = Turnstile.open

    def open_and_switch(gate: Turnstile) -> None:
        open_gate(gate)
        time.sleep(0.001)  # stands for a switch of threads right there

    monkeypatch.setattr(Turnstile, "open", open_and_switch)
    with testing.connect_blocking(make_service(), timeout=None) as client:

        def work(number: int) -> None:
            for value in range(30):
                assert client.call("echo", {"value": value}) == value

        in_threads(6, work)


@pytest.mark.parametrize("framing", ["lsp", "ndjson"])
def test_closing_ends_although_the_server_never_stops_talking(framing: str) -> None:
    said = b"1\n" if framing == "ndjson" else b"Content-Length: 1\r\n\r\n1"

    def script(peer: Peer) -> None:
        peer.socket.recv(1000)
        try:
            while True:
                peer.socket.sendall(said * 10_000)
        except OSError:
            pass  # the client is gone

    server = Scripted(script)
    client = Client(server, framing=framing)  # type: ignore[arg-type]
    with client:
        client.notify("hello")
        time.sleep(0.1)  # for its buffers to fill
    server.join()
    assert client.stats.faults < 400_000  # without a bound there are millions


def test_losing_the_connection_wakes_everybody() -> None:
    def script(peer: Peer) -> None:
        for _ in range(8):
            peer.request()

    with Client(Scripted(script)) as client:

        def work(number: int) -> None:
            with pytest.raises(ConnectionLost, match="the script is over"):
                client.call("wait", timeout=None)

        in_threads(8, work)
        assert client.stats.pending == 0


def test_a_call_out_of_the_news_of_another() -> None:
    def script(peer: Peer) -> None:
        request = peer.request()
        token = request["params"]["_meta"]["progressToken"]
        peer.say(b'{"jsonrpc":"2.0","method":"$/progress","params":{"token":%d,"value":1}}' % token)
        peer.answer(peer.request(), b'"inner"')
        peer.answer(request, b'"outer"')
        peer.read_all()

    inner: list[Any] = []
    with Client(Scripted(script)) as client:
        result = client.call(
            "outer",
            {"a": 1},
            timeout=PATIENCE,
            on_progress=lambda value: inner.append(client.call("inner", timeout=PATIENCE)),
        )
        assert result == "outer" and inner == ["inner"]


def test_progress_is_reported_by_the_thread_of_its_call_before_the_call_returns() -> None:
    # Of two threads one reads for both, and what it reads at once is progress and its answer.
    rounds, steps = 50, range(5)
    leads = threading.Event()

    def script(peer: Peer) -> None:
        leader = peer.request()
        leads.set()
        for _ in range(rounds):
            request = peer.request()
            token = request["params"]["_meta"]["progressToken"]
            message = b'{"jsonrpc":"2.0","method":"$/progress","params":{"token":%d,"value":%d}}'
            progress = b"".join(framed(message % (token, step)) for step in steps)
            answer = framed(b'{"jsonrpc":"2.0","id":%d,"result":1}' % request["id"])
            peer.write(progress + answer)
        peer.answer(leader)
        peer.read_all()

    with Client(Scripted(script)) as client:

        def work(number: int) -> None:
            if number == 0:
                client.call("leader", timeout=PATIENCE)
                return
            assert leads.wait(PATIENCE)
            for _ in range(rounds):
                seen: list[tuple[Any, Any]] = []

                def report(value: Any, seen: list[tuple[Any, Any]] = seen) -> None:
                    seen.append((threading.current_thread(), value))

                assert client.call("work", {}, timeout=PATIENCE, on_progress=report) == 1
                assert seen == [(threading.current_thread(), Progress(step)) for step in steps]

        in_threads(2, work)


def test_an_interrupt_ends_the_wait_and_nothing_else() -> None:
    cancelled: list[Any] = []

    def script(peer: Peer) -> None:
        request = peer.request()
        time.sleep(0.5)
        interrupt()
        cancel = peer.request()
        cancelled.append((cancel["method"], cancel["params"]["id"] == request["id"]))
        peer.answer(peer.request(), b'"fine"')
        peer.read_all()

    server = Scripted(script)
    with Client(server) as client:
        with pytest.raises(KeyboardInterrupt):
            client.call("wait", timeout=PATIENCE)
            time.sleep(PATIENCE)  # in case it comes late
        assert client.stats.pending == 0 and client.stats.cancelled == 1
        assert client.call("next", timeout=PATIENCE) == "fine"
    server.join()
    assert cancelled == [("$/cancelRequest", True)]


def test_an_interrupt_while_other_threads_wait() -> None:
    def script(peer: Peer) -> None:
        requests = [peer.request(), peer.request()]
        time.sleep(0.5)
        interrupt()
        assert peer.request()["method"] == "$/cancelRequest"
        for request in requests:
            if request["method"] == "other":
                peer.answer(request, b'"fine"')
        peer.read_all()

    server = Scripted(script)
    with Client(server) as client:
        found: list[Any] = []
        other = threading.Thread(target=lambda: found.append(client.call("other", timeout=None)))
        with pytest.raises(KeyboardInterrupt):
            other.start()
            client.call("wait", timeout=PATIENCE)
            time.sleep(PATIENCE)
        other.join(PATIENCE)
        assert found == ["fine"] and client.stats.pending == 0
    server.join()


def test_an_interrupt_inside_the_reading_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def script(peer: Peer) -> None:
        peer.answer(peer.request())
        peer.read_all()

    with Client(Scripted(script)) as client:
        host = client._host
        assert host is not None

        def interrupted(connection: Connection, data: bytes) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(Connection, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.call("x", timeout=PATIENCE)
        with pytest.raises(ConnectionLost, match="interrupted"):
            client.call("y")
        assert (client.stats.pending, client.stats.lost) == (0, 1)


def test_ctrl_c_ends_a_script_at_once() -> None:
    program = textwrap.dedent(
        """
        import sys
        from duet_rpc.blocking import Client

        server = "import sys; sys.stdin.buffer.read()"
        with Client.spawn(sys.executable, "-c", server) as client:
            print("waiting", flush=True)
            try:
                client.call("forever", timeout=None)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
        """
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as script:
        assert script.stdout is not None
        assert script.stdout.readline() == "waiting\n"
        time.sleep(0.3)
        os.kill(script.pid, signal.SIGINT)
        assert script.stdout.readline() == "interrupted\n"
        assert script.wait(PATIENCE) == 0


def test_a_script_needs_neither_a_loop_nor_a_thread() -> None:
    program = textwrap.dedent(
        """
        import sys, threading
        from duet_rpc.blocking import Client

        with Client.connect(sys.argv[1]) as client:
            assert client.call("echo", {"value": 5}) == 5
            assert threading.active_count() == 1, threading.enumerate()
            assert "asyncio" not in sys.modules
        """
    )
    import asyncio
    import socket
    import tempfile

    from duet_rpc.policy import SPEC
    from duet_rpc.testing.memory import MemoryServer, loop_in_thread

    with tempfile.TemporaryDirectory() as directory, loop_in_thread() as loop:
        path = f"{directory}/socket"
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(path)
        listening.listen()

        async def make() -> MemoryServer:
            return MemoryServer(make_service(), SPEC, None, "lsp", None, None)

        async def close() -> None:
            server.close()

        server = asyncio.run_coroutine_threadsafe(make(), loop).result(PATIENCE)
        script = subprocess.Popen([sys.executable, "-c", program, f"unix:{path}"])
        connected, _ = listening.accept()
        loop.call_soon_threadsafe(server._serve, connected)
        assert script.wait(PATIENCE) == 0
        listening.close()
        asyncio.run_coroutine_threadsafe(close(), loop).result(PATIENCE)


STORM = """
import random, signal, sys, threading, time
from duet_rpc.blocking import Client
from duet_rpc.errors import ConnectionLost

client = Client.connect(sys.argv[1], timeout=None, reconnect=True)
client.open()
over = False
failures = []

def others():
    while not over:
        try:
            assert client.call("add", [1, 2]) == 3
        except ConnectionLost:
            pass
        except BaseException as error:
            failures.append(error)

threads = [threading.Thread(target=others, daemon=True) for _ in range(int(sys.argv[2]))]
for thread in threads:
    thread.start()
signal.signal(signal.SIGALRM, signal.default_int_handler)
for _ in range(300):
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, 0.01))
        until = time.monotonic() + 1  # Python may lose an interrupt: in a callback of a weakref
        while time.monotonic() < until:
            assert client.call("add", [1, 2]) == 3
    except KeyboardInterrupt:
        pass
over = True
for thread in threads:
    thread.join(20)
assert not any(thread.is_alive() for thread in threads), "a call hangs"
assert not failures, failures
assert client.call("add", [1, 2]) == 3
shared = client._shared
assert shared.lead.leader is None and not shared.lead.waiting and not shared._handed_in
client.close()
"""

SUMS = """
import sys
from duet_rpc import Server, Service

service = Service()

@service.query(inline=True)
def add(a: int, b: int) -> int:
    return a + b

Server(service).run_unix(sys.argv[1], on_start=lambda address: print(address, flush=True))
"""


@pytest.mark.parametrize("others", [3, 12])
def test_an_interrupt_at_any_moment_leaves_nobody_waiting(tmp_path: Path, others: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SUMS, str(tmp_path / "sums")], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        try:
            address = server.stdout.readline().strip()
            command = [sys.executable, "-X", "faulthandler", "-c", STORM, address, str(others)]
            subprocess.run(command, check=True, timeout=2 * PATIENCE)
        finally:
            server.terminate()
