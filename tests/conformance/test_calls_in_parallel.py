"""Calls in parallel: many on one connection, matched by id, each of which ends.

Both clients are held to it, over the real thing: a connection, and a server on its other end.
"""

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from duet_rpc import Service
from duet_rpc.errors import CallTimeout, ConnectionLost
from tests.runtime.faces import PATIENCE, Face, Peer, Scripted, face_named, failure

SHORT = 0.3


@pytest.fixture(params=["asyncio", "blocking"])
def face(request: pytest.FixtureRequest, rpc_no_leaks: None) -> Iterator[Face]:
    with face_named(request.param) as found:
        yield found


def make_service() -> Service:
    service = Service()

    @service.query
    async def wait(seconds: float, name: str) -> str:
        await asyncio.sleep(seconds)
        return name

    return service


# One connection.


@pytest.mark.clause("client-1")
def test_pending_requests_are_kept_by_id(face: Face) -> None:
    seen = threading.Event()

    def script(peer: Peer) -> None:
        requests = [peer.request() for _ in range(3)]
        seen.wait(PATIENCE)
        for request in requests:
            peer.answer(request)

    server = Scripted(script)
    driver = face.open(server)
    calls = [driver.begin("x") for _ in range(3)]
    until = time.monotonic() + PATIENCE
    while driver.stats.pending < 3 and time.monotonic() < until:
        time.sleep(0.002)
    assert driver.stats.pending == 3
    seen.set()
    for call in calls:
        call.result(PATIENCE)
    assert driver.stats.pending == 0
    server.join()


@pytest.mark.clause("client-1")
def test_one_reader_hands_out_all_answers(face: Face) -> None:
    """No call waits for another to read: the first asked is answered last, and all in one piece."""

    def script(peer: Peer) -> None:
        requests = [peer.request() for _ in range(6)]
        answers = b""
        for request in reversed(requests):
            body = b'{"jsonrpc":"2.0","id":%d,"result":%d}' % (request["id"], request["id"])
            answers += b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        peer.write(answers)
        peer.read_all()

    driver = face.open(Scripted(script))
    calls = [driver.begin("x", timeout=PATIENCE) for _ in range(6)]
    assert sorted(call.result(PATIENCE) for call in calls) == [1, 2, 3, 4, 5, 6]


@pytest.mark.clause("client-2")
def test_a_request_is_registered_before_it_is_written() -> None:
    """Registered after the write, a quick answer would be missed."""
    from duet_rpc.engine.calls import Calls
    from duet_rpc.engine.dispatch import Dispatcher
    from duet_rpc.engine.outgoing import Outgoing
    from duet_rpc.policy import SPEC
    from duet_rpc.service import Service
    from duet_rpc.wire.framing import Framing, HeaderFraming

    class Writer:
        def write(self, data: Any) -> None:
            raise AssertionError("no answer is sent")

        def write_own(self, data: Any) -> None:
            registered.append(dict(calls.open))

    class Calling:
        dispatcher = Dispatcher(Service(), SPEC)
        framing: Framing = HeaderFraming()
        outgoing = Outgoing(Writer(), join=1, one_by_one=False)
        requests: Any = None

    class Line:
        behind = False

    class Waiter:
        decode = None

        def settle(self, result: Any, error: Exception | None) -> None:
            pass

        def progress(self, value: Any) -> None:
            pass

    registered: list[Any] = []
    calls, waiter = Calls(Calling(), Line()), Waiter()
    id = calls.send("method", None, waiter)
    Calling.outgoing.flush()
    assert registered == [{id: waiter}]
    ids = calls.send_batch([("a", None, waiter), ("b", None, waiter)], lambda error: None)
    Calling.outgoing.flush()
    assert set(ids) < registered[1].keys()


@pytest.mark.clause("client-6")
def test_each_request_has_its_own_timeout(face: Face) -> None:
    driver = face.connect(make_service())
    calls = [
        driver.begin("wait", {"seconds": 60, "name": "never"}, timeout=SHORT * (1 + step))
        for step in range(3)
    ]
    patient = driver.begin("wait", {"seconds": SHORT * 5, "name": "patient"}, timeout=PATIENCE)
    for step, call in enumerate(calls):
        error = failure(call)
        assert isinstance(error, CallTimeout) and f"{SHORT * (1 + step):g} s" in str(error)
    assert patient.result(PATIENCE) == "patient"


@pytest.mark.clause("client-4")
def test_the_end_of_the_connection_rejects_all_pending_requests(face: Face) -> None:
    driver = face.open(Scripted(lambda peer: [peer.request() for _ in range(4)]))
    calls = [driver.begin("x", timeout=None) for _ in range(4)]
    assert {type(failure(call)) for call in calls} == {ConnectionLost}
    assert driver.stats.pending == 0


@pytest.mark.clause("client-9")
def test_the_optional_mutex_sends_one_request_at_a_time(face: Face) -> None:
    running, most = [0], [0]
    service = Service()

    @service.query
    async def work() -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        await asyncio.sleep(0.02)
        running[0] -= 1

    driver = face.connect(service, allow_concurrent_requests=False)
    for call in [driver.begin("work") for _ in range(8)]:
        call.result(PATIENCE)
    assert most == [1]
    other = face.connect(service)
    for call in [other.begin("work") for _ in range(8)]:
        call.result(PATIENCE)
    assert most[0] > 1


# The acceptance criteria.


@pytest.mark.clause("client-1")
@pytest.mark.parametrize("count", [4, 40])
def test_parallel_requests_to_one_server_all_complete(face: Face, count: int) -> None:
    driver = face.connect(make_service())
    calls = [
        driver.begin("wait", {"seconds": 0.1, "name": str(number)}, timeout=PATIENCE)
        for number in range(count)
    ]
    assert [call.result(PATIENCE) for call in calls] == [str(number) for number in range(count)]
    assert driver.stats.timeouts == 0


@pytest.mark.clause("client-6")
def test_one_that_times_out_does_not_affect_the_others(face: Face) -> None:
    driver = face.connect(make_service())
    others = [
        driver.begin("wait", {"seconds": 2 * SHORT, "name": str(number)}, timeout=PATIENCE)
        for number in range(4)
    ]
    late = driver.begin("wait", {"seconds": 60, "name": "late"}, timeout=SHORT)
    assert isinstance(failure(late), CallTimeout)
    assert [call.result(PATIENCE) for call in others] == ["0", "1", "2", "3"]


@pytest.mark.clause("client-1")
def test_a_response_is_matched_to_its_request_by_id(face: Face) -> None:
    driver = face.connect(make_service())
    pauses = [0.3, 0.0, 0.2, 0.1, 0.0, 0.15]
    calls = [
        driver.begin("wait", {"seconds": pause, "name": f"call {number}"}, timeout=PATIENCE)
        for number, pause in enumerate(pauses)
    ]
    assert [call.result(PATIENCE) for call in calls] == [f"call {n}" for n in range(6)]
