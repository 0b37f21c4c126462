"""Two ends that speak MCP's dialect: cancellation and progress, in both directions."""

import json
import threading
import time
from typing import Any

import pytest

from duet_rpc import Context, Progress, Service
from duet_rpc.errors import CallTimeout, RpcError, UsageError
from duet_rpc.policy import EDITOR, SPEC, Policy, replace
from duet_rpc.wire.dialect import MCP
from tests.helpers import Line
from tests.runtime.faces import PATIENCE, Driver, Face, Peer, Scripted
from tests.transports.lines import eventually

POLICIES = pytest.mark.parametrize("policy", [SPEC, EDITOR], ids=["spec", "editor"])


class Work:
    """A service whose handlers report progress, or wait until they are cancelled."""

    def __init__(self) -> None:
        self.service = service = Service()
        self.begun = threading.Semaphore(0)
        self.stopped = threading.Semaphore(0)

        @service.query
        async def report(ctx: Context) -> str:
            ctx.progress(1)
            ctx.progress(2, total=3, message="nearly")
            return "reported"

        @service.query
        def wait(ctx: Context) -> None:
            self.begun.release()
            while not ctx.cancelled:
                time.sleep(0.01)
            self.stopped.release()

        @service.query(inline=True)
        def add(a: int, b: int) -> int:
            return a + b


def settled(driver: Driver) -> bool:
    return driver.stats.pending == 0


@POLICIES
@pytest.mark.parametrize("dialect", ["jsonrpc", "lsp", "mcp"])
def test_progress_reaches_the_caller(face: Face, policy: Policy, dialect: str) -> None:
    got: list[Any] = []
    driver = face.connect(Work().service, policy=policy, dialect=dialect)
    assert driver.call("report", on_progress=got.append) == "reported"
    assert got == [Progress(1), Progress(2, 3, "nearly")]


@POLICIES
def test_a_cancelled_call_stops_the_handler_and_is_not_answered(face: Face, policy: Policy) -> None:
    work = Work()
    driver = face.connect(work.service, policy=policy, dialect="mcp", timeout=PATIENCE)
    with pytest.raises(CallTimeout):
        driver.call("wait", timeout=0.2)
    assert work.begun.acquire(timeout=PATIENCE)
    assert work.stopped.acquire(timeout=PATIENCE)
    assert driver.call("add", [1, 2]) == 3  # its slot is free
    assert settled(driver)
    assert driver.stats.unmatched_answers == 0


def test_a_client_cancels_and_is_cancelled_in_mcps_words(face: Face) -> None:
    work = Work()
    seen: list[Any] = []

    def script(peer: Peer) -> None:
        asked = peer.request()
        cancelled = peer.request()
        seen.append((asked["id"], cancelled))
        peer.say(b'{"jsonrpc":"2.0","id":"theirs","method":"wait"}')
        assert work.begun.acquire(timeout=PATIENCE)
        peer.say(
            b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"theirs"}}'
        )
        assert work.stopped.acquire(timeout=PATIENCE)
        peer.say(b'{"jsonrpc":"2.0","id":"last","method":"add","params":[1,2]}')
        seen.append(peer.read())  # no answer to "theirs" before it

    scripted = Scripted(script)
    driver = face.open(scripted, service=work.service, dialect="mcp")
    with pytest.raises(CallTimeout):
        driver.call("slow", timeout=0.2)
    eventually(lambda: len(seen) == 2, "the script has ended")
    id, cancelled = seen[0]
    assert cancelled["method"] == "notifications/cancelled"
    assert cancelled["params"]["requestId"] == id
    assert seen[1] == {"jsonrpc": "2.0", "id": "last", "result": 3}


# By hand: a request that is cancelled leaves nothing on the wire, wherever it is.


def held(policy: Policy) -> Line:
    service = Service()

    @service.query
    async def work() -> str:
        return "done"

    @service.query
    async def quick() -> str:
        return "quick"

    return Line(policy, service, held=["work"], dialect=MCP)


def body(method: str, id: int | None = None, **params: Any) -> bytes:
    message = {"jsonrpc": "2.0", "method": method, "params": params}
    return json.dumps(message if id is None else {**message, "id": id}).encode()


def cancel(id: int) -> bytes:
    return body("notifications/cancelled", requestId=id, reason="user pressed stop")


@POLICIES
def test_one_that_runs_is_over_at_once(policy: Policy) -> None:
    line = held(policy)
    assert line.send(body("work", 1), cancel(1)) == []
    assert [job.id for job in line.host.cancelled] == [b"1"]
    assert line.release_all() == []
    assert line.connection.idle
    assert len(line.send(body("quick", 1))) == 1


def test_one_that_is_queued_never_begins() -> None:
    line = held(EDITOR)
    assert line.send(body("work", 1), body("work", 2), cancel(2)) == []
    assert ("warn", "Request cancelled") in line.log.told()
    [answer] = line.release_all()
    assert json.loads(answer)["id"] == 1
    assert line.connection.idle


@POLICIES
def test_one_of_a_batch_is_left_out(policy: Policy) -> None:
    policy = replace(policy, max_batch=4)
    line = held(policy)
    assert line.send(b"[%b,%b]" % (body("work", 1), body("work", 2)), cancel(1)) == []
    [answers] = line.release_all()
    assert [answer["id"] for answer in json.loads(answers)] == [2]
    assert line.send(b"[%b]" % body("work", 3), cancel(3)) == []
    assert line.release_all() == []
    assert line.connection.idle


def test_the_level_of_the_log_is_set_by_mcps_name(face: Face) -> None:
    driver = face.connect(Service(), dialect="mcp")
    assert driver.call("logging/setLevel", {"level": "notice"}) == {}
    for method, params in (("logging/setLevel", {"level": "warn"}), ("setLogLevel", ["info"])):
        with pytest.raises(RpcError):
            driver.call(method, params)


@pytest.mark.parametrize("wrong", ["smoke", None, 5])
def test_a_dialect_that_is_none_is_refused(face: Face, wrong: Any) -> None:
    with pytest.raises(UsageError, match="dialect is"):
        face.open(Scripted(), dialect=wrong)
