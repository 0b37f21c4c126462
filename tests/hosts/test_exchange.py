"""`ExchangeHost`: each body of an endpoint is answered by itself, and by its end."""

import asyncio
import json
import threading
from collections.abc import Callable

import pytest

from duet_rpc import Service
from duet_rpc.context import Origin
from duet_rpc.engine.dispatch import Dispatcher
from duet_rpc.errors import Cancelled, ShuttingDown
from duet_rpc.hosts.exchange import ExchangeHost
from duet_rpc.hosts.workers import Workers
from duet_rpc.policy import SPEC, replace

ORIGIN = Origin(connection_id="x1", transport="memory", can_be_called=False)


def request(method: str, id: int = 1) -> dict[str, object]:
    return {"jsonrpc": "2.0", "method": method, "id": id}


def code_of(answer: bytes | None) -> int:
    assert answer is not None
    return int(json.loads(answer)["error"]["code"])


class Running:
    """A service whose handlers go on until they are told to end."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.may_end = threading.Event()
        self.service = Service()
        self.service.query(self.wait_in_thread)
        self.service.query(self.wait_in_task)
        self.service.command(self.change)
        loop = asyncio.get_running_loop()
        self._begin: Callable[[], object] = lambda: loop.call_soon_threadsafe(self.begun.set)

    def wait_in_thread(self) -> None:
        self._begin()
        self.may_end.wait()

    async def wait_in_task(self) -> None:
        self._begin()
        await asyncio.Event().wait()

    def change(self) -> None:
        self._begin()
        self.may_end.wait()


@pytest.mark.parametrize("method", ["wait_in_thread", "wait_in_task", "change"])
@pytest.mark.parametrize("in_batch", [False, True])
async def test_what_runs_is_answered_when_the_host_is_closed(method: str, in_batch: bool) -> None:
    running, workers = Running(), Workers()
    host = ExchangeHost(Dispatcher(running.service, SPEC), workers=workers)
    body = json.dumps([request(method)] if in_batch else request(method)).encode()
    answering = asyncio.create_task(host.answer(body, ORIGIN))
    await running.begun.wait()
    host.close()
    answer = await answering
    if in_batch:
        assert answer is not None
        answer = json.dumps(json.loads(answer)[0]).encode()
    assert code_of(answer) == Cancelled.code
    running.may_end.set()
    workers.close()


async def test_what_waits_is_refused_when_the_host_is_closed_and_so_is_what_comes() -> None:
    running, workers = Running(), Workers()
    dispatcher = Dispatcher(running.service, replace(SPEC, max_in_flight=1))
    host = ExchangeHost(dispatcher, workers=workers)
    body = json.dumps(request("wait_in_task")).encode()
    first = asyncio.create_task(host.answer(body, ORIGIN))
    await running.begun.wait()
    second = asyncio.create_task(host.answer(body, ORIGIN))
    await asyncio.sleep(0)  # a turn, in which it is taken
    host.close()
    assert code_of(await first) == Cancelled.code
    assert code_of(await second) == ShuttingDown.code
    assert code_of(await host.answer(body, ORIGIN)) == ShuttingDown.code
    workers.close()
