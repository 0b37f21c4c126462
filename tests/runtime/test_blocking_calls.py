"""Calls of the blocking client that were started without waiting: waited for, and cancelled."""

import threading
from typing import Any

import pytest

from duet_rpc import CallTimeout, ConnectionLost, Service, UsageError, blocking
from duet_rpc.errors import Cancelled
from duet_rpc.testing import connect_blocking
from tests.runtime.faces import PATIENCE, Peer, Scripted, failure

pytestmark = pytest.mark.usefixtures("rpc_no_leaks")


class Served:
    """A service whose handler runs until it is cancelled."""

    def __init__(self) -> None:
        self.service = Service()
        self.begun = threading.Semaphore(0)
        self.cancelled = threading.Semaphore(0)
        self.service.query(self.hang)
        self.service.query(self.double)

    async def hang(self) -> None:
        import asyncio

        self.begun.release()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            self.cancelled.release()
            raise

    def double(self, number: int) -> int:
        return 2 * number


def in_thread(action: Any) -> Any:
    """Do something in a thread; give what comes of it."""
    from concurrent.futures import Future

    pending: Future[Any] = Future()

    def run() -> None:
        try:
            pending.set_result(action())
        except BaseException as error:
            pending.set_exception(error)

    threading.Thread(target=run, name="test caller").start()
    return pending


def test_a_started_call_gives_its_result_as_often_as_it_is_asked() -> None:
    with connect_blocking(Served().service) as client:
        calls = [client.start("double", [number]) for number in range(50)]
        assert [call.result() for call in reversed(calls)] == [98 - 2 * n for n in range(50)]
        assert calls[3].result() == 6
        assert not calls[3].cancel()
        assert calls[3].result() == 6
        assert client.start("double", [4], returns=float).result() == 8.0


def test_a_started_call_that_nobody_waits_for_does_no_harm() -> None:
    with connect_blocking(Served().service) as client:
        client.start("double", [1])
        assert client.call("double", [2]) == 4
        assert client.stats.pending == 0


@pytest.mark.parametrize("others", [0, 3])
def test_a_call_is_cancelled_from_another_thread(others: int) -> None:
    served = Served()
    with connect_blocking(served.service) as client:
        # The first that waits reads for all; so each of them is the reader once.
        calls = [client.start("hang") for _ in range(others + 1)]
        waiting = [in_thread(call.result) for call in calls]
        for _ in calls:
            assert served.begun.acquire(timeout=PATIENCE)
        for call, pending in zip(calls, waiting, strict=True):
            assert call.cancel()
            assert isinstance(failure(pending), Cancelled)
            assert served.cancelled.acquire(timeout=PATIENCE), "the server is told"
            assert client.call("double", [2]) == 4
        assert client.stats.cancelled == others + 1


def test_a_call_is_cancelled_before_anybody_waits() -> None:
    served = Served()
    with connect_blocking(served.service) as client:
        call = client.start("hang")
        assert served.begun.acquire(timeout=PATIENCE)
        assert call.cancel()
        assert not call.cancel()
        for _ in range(2):
            with pytest.raises(Cancelled):
                call.result()
        assert served.cancelled.acquire(timeout=PATIENCE)


def test_several_threads_wait_for_one_call() -> None:
    served = Served()
    with connect_blocking(served.service) as client:
        call = client.start("hang")
        waiting = [in_thread(call.result) for _ in range(3)]
        assert served.begun.acquire(timeout=PATIENCE)
        call.cancel()
        assert [type(failure(pending)) for pending in waiting] == [Cancelled] * 3


def test_its_time_starts_with_the_call() -> None:
    def script(peer: Peer) -> None:
        request = peer.request()
        assert peer.request()["method"] == "other"
        peer.answer({"id": request["id"] + 1})
        cancelled = peer.request()
        assert cancelled["method"] == "$/cancelRequest"
        peer.read_all()

    server = Scripted(script)
    with blocking.Client(server) as client:
        call = client.start("slow", timeout=0.1)
        client.call("other")
        threading.Event().wait(0.2)
        with pytest.raises(CallTimeout):
            call.result()
    server.join()


def test_a_lost_connection_ends_it() -> None:
    server = Scripted(lambda peer: peer.request())
    with blocking.Client(server) as client:
        call = client.start("anything")
        with pytest.raises(ConnectionLost):
            call.result()
        assert not call.cancel()
    server.join()


def test_options_that_cannot_work_are_refused() -> None:
    with connect_blocking(Served().service) as client:
        with pytest.raises(UsageError):
            client.start("double", [1], timeout=-1)
