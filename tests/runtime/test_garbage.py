"""What a call leaves behind when it fails: nothing.

An exception holds the frames that it came through, and they hold what they have a name for. If that
leads back to the exception, only the collector can free it; and if anything on the way is kept out
of the collector's sight, nothing can. So each case here is run thousands of times and may not grow,
and once with the collector switched off, where the error has to be gone as soon as its last user.
"""

import asyncio
import gc
import json
import time
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from duet_rpc import Client, Retry, Service, command, query
from duet_rpc.errors import DuetError
from duet_rpc.policy import AGENT
from duet_rpc.transports.link import Link
from tests.runtime.faces import PATIENCE, AsyncDriver, Driver, Face, Peer, Scripted

pytestmark = pytest.mark.timeout(180)

MANY = 1000
LARGE = "y" * 10_000
AT_ONCE = Retry(attempts=3, first_delay=0, max_delay=0)

Act = Callable[[Any], Any]


def play(peer: Peer) -> None:
    """Answer whatever comes, by the name of its method."""
    while (message := peer.read()) is not None:
        if isinstance(message, list):
            answers = [found for each in message if (found := answer_to(each)) is not None]
            peer.say(json.dumps(answers).encode())
        elif (answer := answer_to(message)) is not None:
            peer.say(json.dumps(answer).encode())


def answer_to(message: dict[str, Any]) -> dict[str, Any] | None:
    errors = {
        "missing": {"code": -32601, "message": "Method not found"},
        "declined": {"code": 402, "message": "Declined", "data": LARGE},
        "busy": {"code": -32017, "message": "Overloaded", "data": {"reason": "overloaded"}},
    }
    method = message["method"]
    if method in errors:
        return {"jsonrpc": "2.0", "id": message["id"], "error": errors[method]}
    if method == "text":
        return {"jsonrpc": "2.0", "id": message["id"], "result": LARGE}
    return None  # the cancellations, and what is never answered


class Shop:
    @query
    def declined(self, text: str) -> int: ...  # type: ignore[empty-body]

    @command
    def busy(self) -> int: ...  # type: ignore[empty-body]


class Wary(msgspec.Struct):
    text: str

    def __post_init__(self) -> None:
        raise RuntimeError("a type's own check")


REFUSED_BY_TYPE = "a result that its type refuses"
CALLS: dict[str, Act] = {
    "an error": lambda client: client.call("missing", {"x": LARGE}),
    "an error with data": lambda client: client.call("declined", {"x": LARGE}),
    "a timeout": lambda client: client.call("hangs", {"x": LARGE}, timeout=0),
    "a timeout of its own": lambda client: client.call("hangs", {"x": LARGE}, timeout=0.001),
    "a result of another type": lambda client: client.call("text", returns=int),
    REFUSED_BY_TYPE: lambda client: client.call("text", returns=Wary),
    "a query": lambda client: client.query("declined", {"x": LARGE}),
    "a query that is tried again": lambda client: client.query("busy", {}, retry=AT_ONCE),
    "a command": lambda client: client.command("declined", {"x": LARGE}),
    "a command that is tried again": lambda client: client.command("busy", {}, retry=AT_ONCE),
    "timeouts and tries": lambda client: client.command("hangs", {}, retry=AT_ONCE, timeout=0),
    "a proxy's query": lambda client: client.proxy(Shop).declined(LARGE),
    "a proxy's command": lambda client: client.proxy(Shop).busy(),
    "news that cannot be asked for": lambda client: client.call("text", [1], on_progress=print),
}


def fill(batch: Any) -> list[Any]:
    return [
        batch.call("text", {"x": LARGE}),
        batch.call("missing"),
        batch.command("declined", {"x": LARGE}),
        batch.call("hangs", timeout=0.002),
    ]


@pytest.fixture(scope="module", autouse=True)
def a_small_heap() -> Iterator[None]:
    """Hide from the collector what all the other tests have made: each collection would see it."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@pytest.fixture
def driver(face: Face) -> Iterator[Driver]:
    server = Scripted(play)
    yield face.open(server)
    server.failures.clear()  # the end of the stream


def fail(driver: Driver, act: Act) -> "weakref.ref[BaseException]":
    """Do what fails, look at the error, and forget it."""
    if isinstance(driver, AsyncDriver):

        async def run(client: Any) -> "weakref.ref[BaseException]":
            try:
                await act(client)
            except Exception as error:
                return weakref.ref(error)
            raise AssertionError("it did not fail")

        found: weakref.ref[BaseException] = driver.do(run)
        return found
    try:
        act(driver.client)
    except Exception as error:
        return weakref.ref(error)
    raise AssertionError("it did not fail")


def fail_batch(driver: Driver) -> "list[weakref.ref[BaseException]]":
    items = driver.batch(fill)
    assert [item.error() is None for item in items] == [True, False, False, False]
    found: list[weakref.ref[BaseException]] = []
    for item in items[1:]:
        try:
            item.result()
        except DuetError as error:
            found.append(weakref.ref(error))
        del item
    del items
    return found


def growth(do: Callable[[], object]) -> tuple[int, int]:
    """Do something a hundred times; return how much grows when it is done many times more."""
    for _ in range(100):
        do()
    gc.collect()
    tracemalloc.start()
    try:
        objects, memory = len(gc.get_objects()), tracemalloc.get_traced_memory()[0]
        for _ in range(MANY):
            do()
        gc.collect()
        return len(gc.get_objects()) - objects, tracemalloc.get_traced_memory()[0] - memory
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", CALLS)
def test_calls_that_fail_leave_nothing_behind(driver: Driver, name: str) -> None:
    objects, memory = growth(lambda: fail(driver, CALLS[name]))
    assert objects < MANY // 10, f"{objects} more objects after {MANY}"
    assert memory < 500 * MANY, f"{memory:,} more bytes after {MANY}"


def test_batches_with_errors_and_timeouts_leave_nothing_behind(driver: Driver) -> None:
    objects, memory = growth(lambda: fail_batch(driver))
    assert objects < MANY // 10, f"{objects} more objects after {MANY}"
    assert memory < 500 * MANY, f"{memory:,} more bytes after {MANY}"


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def is_gone(ref: "weakref.ref[BaseException]") -> bool:
    """Wait until nobody has it any more: a thread may be about to let go of it."""
    until = time.monotonic() + PATIENCE / 10
    while ref() is not None and time.monotonic() < until:
        time.sleep(0.001)
    return ref() is None


# A type's own exception keeps its traceback, for whoever has to mend the type.
@pytest.mark.parametrize("name", [name for name in CALLS if name != REFUSED_BY_TYPE])
def test_an_error_needs_no_collector(driver: Driver, no_collector: None, name: str) -> None:
    assert is_gone(fail(driver, CALLS[name]))


def test_the_errors_of_a_batch_need_no_collector(driver: Driver, no_collector: None) -> None:
    assert all(map(is_gone, fail_batch(driver)))


def test_a_lost_connection_is_told_by_an_error_of_its_own_each_time(face: Face) -> None:
    """Raised again and again, one and the same error would collect all the tracebacks."""
    driver = face.open(Scripted(lambda peer: peer.request()), reconnect=False)
    first = fail(driver, lambda client: client.call("hangs"))

    def again() -> None:
        fail(driver, lambda client: client.call("hangs"))
        fail(driver, lambda client: client.notify("hangs"))
        with pytest.raises(DuetError):
            for item in driver.batch(lambda batch: [batch.call("hangs")]):
                item.result()

    objects, memory = growth(again)
    assert objects < MANY // 10 and memory < 500 * MANY
    assert is_gone(first)


def test_a_client_that_was_never_closed_is_collected_with_its_open_calls() -> None:
    """An open call knows its client, and the client its open calls."""
    server, links = Scripted(play), []

    class Opener:
        def open(self, timeout: float | None = None) -> Link:
            links.append(server.open(timeout))
            return links[0]

    async def use() -> "weakref.ref[Client]":
        client = Client(Opener())
        await client.open()
        client.start("hangs")
        await asyncio.sleep(0)
        return weakref.ref(client)

    client = asyncio.run(use())
    links[0].end()
    gc.collect()
    assert client() is None


# Handlers: an error that one of them keeps knows the frames that it was called from, and they know
# its params.


class Task(msgspec.Struct, weakref=True, dict=True):
    name: str


def service_of_keepers(seen: "list[weakref.ref[Any]]") -> Service:
    """Make methods that put their own error into a param, or into what they return."""
    service = Service()

    def keep(task: Task) -> Task:
        seen.append(weakref.ref(task))
        try:
            raise ValueError("kept")
        except ValueError as error:
            task.error = error  # type: ignore[attr-defined]  # no field, so it is not written
        return task

    @service.query(inline=True)
    def inline(task: Task) -> str:
        return keep(task).name

    @service.query
    def threaded(task: Task) -> str:
        return keep(task).name

    @service.query
    async def on_the_loop(task: Task) -> str:
        return keep(task).name

    @service.query(inline=True)
    def in_its_result(task: Task) -> Any:
        return keep(task)

    @service.query(inline=True)
    def fresh() -> Any:
        return keep(Task("x"))

    @service.command
    def pay(task: Task) -> str:
        return keep(task).name

    return service


@pytest.mark.parametrize(
    "method", ["inline", "threaded", "on_the_loop", "in_its_result", "fresh", "pay"]
)
@pytest.mark.parametrize("in_batch", [False, True])
def test_params_that_keep_an_error_are_collected(face: Face, method: str, in_batch: bool) -> None:
    seen: list[weakref.ref[Any]] = []
    driver = face.connect(service_of_keepers(seen), policy=AGENT)
    params = None if method == "fresh" else {"task": {"name": "n"}}
    for _ in range(20):
        if in_batch:
            driver.batch(lambda batch: [batch.call(method, params), batch.call("fresh")])
        else:
            driver.call(method, params)
    assert len(seen) == (40 if in_batch else 20)
    until = time.monotonic() + PATIENCE / 10
    while any(task() is not None for task in seen) and time.monotonic() < until:
        gc.collect()
    assert [task for task in seen if task() is not None] == []
