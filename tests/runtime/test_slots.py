"""Whatever becomes of a request, its slot is given back, once: N cancellations, then N at once."""

import asyncio
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from duet_rpc import Service, blocking, testing
from duet_rpc.errors import Cancelled, InternalError
from duet_rpc.policy import AGENT, EDITOR, SPEC, Policy
from tests.runtime.faces import PATIENCE, Peer, Scripted, face_named, failure
from tests.runtime.slots import FACES, Caller, cancel, eventually, request, served, unix_server

Moment = Callable[[Caller, int], list[int]]
"""Sends requests and their cancellations; returns the ids that have to be answered."""

MOMENTS: dict[str, Moment] = {}


def moment(function: Moment) -> Moment:
    MOMENTS[function.__name__] = function
    return function


@moment
def in_one_write(caller: Caller, count: int) -> list[int]:
    ids = caller.ids(count)
    for id in ids:
        caller.send(request(id, "nap", seconds=0.05), cancel(id))
    return ids


@moment
def all_in_one_write(caller: Caller, count: int) -> list[int]:
    """More than there is room for: half of them are cancelled in the queue."""
    ids = caller.ids(2 * count)
    naps = [request(id, "nap", seconds=0.05) for id in ids]
    caller.send(*naps, *map(cancel, ids))
    return ids


@moment
def the_last_first(caller: Caller, count: int) -> list[int]:
    ids = caller.ids(2 * count)
    naps = [request(id, "nap", seconds=0.05) for id in ids]
    caller.send(*naps, *map(cancel, reversed(ids)))
    return ids


@moment
def twice(caller: Caller, count: int) -> list[int]:
    ids = caller.ids(count)
    for id in ids:
        caller.send(request(id, "nap", seconds=0.05), cancel(id), cancel(id))
        caller.send(cancel(id))
    return ids


@moment
def before_it_comes(caller: Caller, count: int) -> list[int]:
    ids = caller.ids(count)
    for id in ids:
        caller.send(cancel(id), request(id, "nap", seconds=0.001), cancel(id))
    return ids


@moment
def right_after(caller: Caller, count: int) -> list[int]:
    ids = caller.ids(count)
    for id in ids:
        caller.send(request(id, "nap", seconds=0.05))
        caller.send(cancel(id))
    return ids


@moment
def a_millisecond_after(caller: Caller, count: int) -> list[int]:
    ids = caller.ids(count)
    for id in ids:
        caller.send(request(id, "nap", seconds=0.05))
        time.sleep(0.001)
        caller.send(cancel(id))
    return ids


@moment
def as_it_ends(caller: Caller, count: int) -> list[int]:
    ids = caller.ids(4 * count)
    for id in ids:
        caller.send(request(id, "nap", seconds=0.002))
        time.sleep(0.001 + id % 8 * 0.0003)
        caller.send(cancel(id))
    return ids


@moment
def although_it_does_not_listen(caller: Caller, count: int) -> list[int]:
    ids = caller.ids(count)
    caller.send(*(request(id, "swallow") for id in ids))
    time.sleep(0.005)
    caller.send(*map(cancel, ids))
    return ids


@moment
def while_it_waits_for_its_peer(caller: Caller, count: int) -> list[int]:
    ids = caller.ids(count)
    asked = len(caller.asked)
    for number, id in enumerate(ids, 1):
        caller.send(request(id, "ask"))
        caller.wait_until_asked(asked + number)
        caller.send(cancel(id), cancel(id))
    answer_calls(caller, asked)
    return ids


@moment
def as_its_peer_answers(caller: Caller, count: int) -> list[int]:
    ids = caller.ids(count)
    asked = len(caller.asked)
    for number, id in enumerate(ids, 1):
        caller.send(request(id, "ask"))
        caller.wait_until_asked(asked + number)
        answer = {"jsonrpc": "2.0", "id": caller.asked[-1], "result": 7}
        caller.send(*([answer, cancel(id)] if id % 2 else [cancel(id), answer]))
    return ids


@moment
def as_its_call_times_out(caller: Caller, count: int) -> list[int]:
    ids = caller.ids(count)
    for id in ids:
        caller.send(request(id, "ask", within=0.003))
        time.sleep(0.002 + id % 4 * 0.001)
        caller.send(cancel(id))
    return ids


@moment
def in_a_batch(caller: Caller, count: int) -> list[int]:
    ids = caller.ids(2 * count)
    caller.send([request(id, "nap", seconds=0.05) for id in ids], *map(cancel, ids))
    return ids


@moment
def by_the_batch_itself(caller: Caller, count: int) -> list[int]:
    ids = caller.ids(count)
    naps = [request(id, "nap", seconds=0.05) for id in ids]
    caller.send([*naps, *map(cancel, ids)])
    return ids


def answer_calls(caller: Caller, first: int) -> None:
    """Answer what handlers asked us: a `def` cannot be stopped, and waits for it."""
    for id in caller.asked[first:]:
        caller.send({"jsonrpc": "2.0", "id": id, "result": 7})


def use_every_slot(caller: Caller, limit: int) -> None:
    """Have as many requests answered as there are slots; none can end before all have begun."""
    for _ in range(2):
        ids = caller.ids(limit)
        caller.send(*(request(id, "meet", number=limit) for id in ids))
        for answer in caller.collect(ids):
            assert answer.get("result") == limit, answer


def moments_of(policy: Policy) -> dict[str, Moment]:
    """Leave out the batches where none is taken."""
    return {name: do for name, do in MOMENTS.items() if policy.max_batch or "batch" not in name}


@pytest.mark.parametrize(
    ("face", "policy"),
    [
        pytest.param(face, policy, id=f"{face}-{policy.name}")
        for face in FACES
        for policy in (EDITOR, AGENT, SPEC)
        if face != "sequential" or policy is EDITOR
    ],
)
def test_a_cancelled_request_gives_its_slot_back(face: str, policy: Policy, tmp_path: Path) -> None:
    """One server for all moments: a slot that any of them loses is missing right after it."""
    limit = policy.max_in_flight
    with served(face, policy, tmp_path) as caller:
        for name, cancelled in moments_of(policy).items():
            print(name)  # shown with a failure
            ids = cancelled(caller, max(limit, 3))
            for answer in caller.collect(ids):
                assert "result" in answer or answer["error"]["code"] == Cancelled.code, answer
            use_every_slot(caller, limit)


@pytest.mark.parametrize("face", ["stdio", "unix", "memory", "asyncio client"])
def test_a_handler_that_waits_for_several_answers_makes_room_for_one(
    face: str, tmp_path: Path
) -> None:
    with served(face, EDITOR, tmp_path) as caller:
        asking, *crowd = caller.ids(6)
        caller.send(request(asking, "ask_at_once", count=3))
        caller.wait_until_asked(3)
        caller.send(*(request(id, "crowd") for id in crowd))
        assert [answer["result"] for answer in caller.collect(crowd)] == [1] * 5
        answer_calls(caller, 0)
        assert caller.collect([asking])[0]["result"] == [7] * 3
        use_every_slot(caller, 1)


class BrokenLog:
    """A log that fails, as one on a full disk may."""

    def note(self, severity: str, text: str, **fields: Any) -> None: ...

    def failure(self, text: str, error: BaseException, **fields: Any) -> str:
        raise OSError(28, "No space left on device")


def make_failing() -> Service:
    service = Service()

    @service.query
    async def fail() -> None:
        raise SystemExit

    @service.query
    def fail_in_thread() -> None:
        raise KeyboardInterrupt

    @service.query
    async def cancel_everything() -> None:
        """Cancel all tasks, as an application may at its end: also those that have not begun."""
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            if task.get_coro().__qualname__.startswith("LoopRunner."):  # type: ignore[union-attr]
                task.cancel()

    @service.query
    async def nap() -> None:
        await asyncio.sleep(PATIENCE)

    @service.query
    async def ready() -> str:
        return "ready"

    return service


@pytest.mark.parametrize("face", ["asyncio", "blocking"])
@pytest.mark.parametrize("method", ["fail", "fail_in_thread"])
def test_a_handler_whose_failure_cannot_even_be_logged_gives_its_slot_back(
    method: str, face: str
) -> None:
    with face_named(face) as found:
        client = found.connect(make_failing(), policy=EDITOR, server_log=BrokenLog())
        for _ in range(3):
            assert isinstance(failure(client.begin(method)), InternalError)
        assert client.call("ready") == "ready"


@pytest.mark.parametrize("method", ["fail", "fail_in_thread"])
def test_so_do_the_handlers_of_a_blocking_client(method: str) -> None:
    def script(peer: Peer) -> None:
        for id in range(3):
            peer.say(json.dumps(request(id, method)).encode())
            assert peer.request()["error"]["code"] == InternalError.code
        peer.say(json.dumps(request(3, "ready")).encode())
        assert peer.request()["result"] == "ready"

    server = Scripted(script)
    with blocking.Client(server, service=make_failing(), policy=EDITOR, log=BrokenLog()):
        server.join()


async def test_tasks_that_others_cancel_are_answered_and_give_their_slots_back() -> None:
    async with testing.connect(make_failing(), policy=AGENT) as client:
        naps = [asyncio.ensure_future(client.query("nap")) for _ in range(15)]
        over = asyncio.ensure_future(client.query("cancel_everything"))
        for ended in await asyncio.gather(*naps, return_exceptions=True):
            assert isinstance(ended, InternalError)
        await over
        for _ in range(20):
            assert await client.query("ready") == "ready"


def test_a_socket_server_keeps_no_connection_whose_client_left(tmp_path: Path) -> None:
    with unix_server(AGENT, tmp_path) as (process, connect), connect() as staying:

        def leave(count: int) -> None:
            for _ in range(count):
                with connect() as caller:
                    caller.collect(all_in_one_write(caller, 4))

        def descriptors() -> int:
            return len(os.listdir(f"/proc/{process.pid}/fd"))

        use_every_slot(staying, AGENT.max_in_flight)
        before = descriptors()
        leave(60)
        eventually(lambda: descriptors() <= before, "sixty connections are closed")
