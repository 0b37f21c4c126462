"""`client.on`: the notifications of a server, by both clients; typed, in order, one at a time."""

import asyncio
import threading
from typing import Any

import msgspec
import pytest

from duet_rpc import Client, Context, Service, UsageError, blocking
from duet_rpc.client.listeners import Listeners
from tests.runtime.faces import PATIENCE, Face, Peer, Scripted

DIAGNOSTICS = "textDocument/publishDiagnostics"


class Problem(msgspec.Struct):
    line: int
    text: str


class Lines:
    """A log that keeps what it is given."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, str]] = []
        self.failures: list[str] = []
        self.came = threading.Event()

    def note(self, severity: str, text: str, **fields: Any) -> None:
        self.notes.append((severity, text))
        self.came.set()

    def failure(self, text: str, error: BaseException, **fields: Any) -> str:
        self.failures.append(f"{text}: {error}")
        self.came.set()
        return ""


def notify(method: str, params: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","method":"%b","params":%b}' % (method.encode(), params)


def make(face: Face, server: Scripted, **options: Any) -> Client | blocking.Client:
    kind = Client if face.name == "asyncio" else blocking.Client
    return kind(server, **options)


@pytest.mark.clause("client-29")
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_notifications_are_decoded_and_run_in_order(face: Face, kind: str) -> None:
    heard: list[tuple[str, list[Problem]]] = []
    done = threading.Event()

    def script(peer: Peer) -> None:
        for number in range(200):
            problem = b'{"line":%d,"text":"bad"}' % number
            params = b'{"uri":"a.py","diagnostics":[%b],"version":7}' % problem
            peer.say(notify(DIAGNOSTICS, params))
        peer.read_all()

    client = make(face, Scripted(script))

    def keep(uri: str, diagnostics: list[Problem]) -> None:
        heard.append((uri, diagnostics))
        if len(heard) == 200:
            done.set()

    if kind == "def":

        @client.on(DIAGNOSTICS)
        def publish(uri: str, diagnostics: list[Problem]) -> None:
            keep(uri, diagnostics)

    else:

        @client.on(DIAGNOSTICS)
        async def publish_async(uri: str, diagnostics: list[Problem]) -> None:
            keep(uri, diagnostics)

    face.enter(client)
    assert done.wait(PATIENCE)
    assert heard == [("a.py", [Problem(number, "bad")]) for number in range(200)]


@pytest.mark.clause("client-29")
def test_a_function_may_call_the_server_and_others_wait_for_it(face: Face) -> None:
    heard: list[Any] = []
    done = threading.Event()

    def script(peer: Peer) -> None:
        peer.say(notify("changed", b'{"number":1}'))
        peer.say(notify("changed", b'{"number":2}'))
        for _ in range(2):
            peer.answer(peer.request(), b'"fetched"')
        peer.read_all()

    client = make(face, Scripted(script))
    caller: Any = client
    if face.name == "asyncio":

        @client.on("changed")
        async def changed(number: int) -> None:
            heard.append(number)
            heard.append(await caller.call("fetch", {"number": number}))
            if len(heard) == 4:
                done.set()

    else:

        @client.on("changed")
        def changed_here(number: int) -> None:
            heard.append(number)
            heard.append(caller.call("fetch", {"number": number}))
            if len(heard) == 4:
                done.set()

    face.enter(client)
    assert done.wait(PATIENCE)
    assert heard == [1, "fetched", 2, "fetched"]


@pytest.mark.clause("client-29")
def test_a_function_can_be_given_while_connected(face: Face) -> None:
    heard = threading.Event()

    def script(peer: Peer) -> None:
        peer.answer(peer.request())
        peer.say(notify("$/logTrace", b'{"message":"hello"}'))
        peer.read_all()

    client = make(face, Scripted(script))
    driver = face.enter(client)

    def register(_: Any) -> None:
        @client.on("$/logTrace")
        def trace(message: str) -> None:
            assert message == "hello"
            heard.set()

    driver.do(register)
    driver.call("trace")
    assert heard.wait(PATIENCE)


@pytest.mark.clause("client-29")
def test_params_that_do_not_fit_and_functions_that_fail_are_logged(face: Face) -> None:
    heard = threading.Event()

    def script(peer: Peer) -> None:
        peer.say(notify("changed", b'{"number":"one"}'))
        peer.say(notify("changed", b'{"number":0}'))
        peer.say(notify("changed", b'{"number":1}'))
        peer.read_all()

    log = Lines()
    client = make(face, Scripted(script), log=log)

    @client.on("changed")
    def changed(number: int) -> None:
        if number == 0:
            raise ValueError("nothing")
        heard.set()

    face.enter(client)
    assert heard.wait(PATIENCE)
    assert log.notes == [("error", "a notification was refused")]
    assert log.failures == ["a function given to client.on failed: nothing"]


@pytest.mark.clause("client-29")
def test_what_waits_is_bounded(face: Face) -> None:
    from duet_rpc.policy import SPEC, replace

    gate, ended = threading.Event(), threading.Event()
    heard: list[int] = []

    def script(peer: Peer) -> None:
        peer.say(notify("changed", b'{"number":1}'))
        peer.say(notify("changed", b'{"number":2}'))
        peer.say(notify("changed", b'{"number":3,"text":"%b"}' % (b"x" * 2000)))
        peer.read_all()

    log = Lines()
    client = make(face, Scripted(script), log=log, policy=replace(SPEC, max_queued_bytes=1000))

    if face.name == "asyncio":

        @client.on("changed")
        async def changed(number: int) -> None:
            await asyncio.to_thread(gate.wait, PATIENCE)
            heard.append(number)
            if number == 2:
                ended.set()

    else:

        @client.on("changed")
        def changed_here(number: int) -> None:
            gate.wait(PATIENCE)
            heard.append(number)
            if number == 2:
                ended.set()

    face.enter(client)
    assert log.came.wait(PATIENCE)
    gate.set()
    assert ended.wait(PATIENCE)
    assert heard == [1, 2] and log.notes[0][0] == "error" and "dropped" in log.notes[0][1]


@pytest.mark.clause("client-29")
def test_notifications_without_params_take_room_too(face: Face) -> None:
    from duet_rpc.policy import SPEC, replace

    gate = threading.Event()

    def script(peer: Peer) -> None:
        for _ in range(100):
            peer.say(b'{"jsonrpc":"2.0","method":"changed"}')
        peer.read_all()

    log = Lines()
    client = make(face, Scripted(script), log=log, policy=replace(SPEC, max_queued_bytes=1000))

    if face.name == "asyncio":

        @client.on("changed")
        async def changed() -> None:
            await asyncio.to_thread(gate.wait, PATIENCE)

    else:

        @client.on("changed")
        def changed_here() -> None:
            gate.wait(PATIENCE)

    face.enter(client)
    assert log.came.wait(PATIENCE)
    assert "dropped" in log.notes[0][1]
    gate.set()


@pytest.mark.clause("client-29")
@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(3)])
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_what_is_no_exception_stops_no_later_notification(
    face: Face, error: BaseException, kind: str
) -> None:
    heard = threading.Event()

    def script(peer: Peer) -> None:
        peer.say(notify("changed", b'{"number":0}'))
        peer.say(notify("changed", b'{"number":1}'))
        peer.read_all()

    log = Lines()
    client = make(face, Scripted(script), log=log)

    def take(number: int) -> None:
        if number == 0:
            raise error
        heard.set()

    if kind == "def":
        client.on("changed")(take)
    else:

        @client.on("changed")
        async def changed(number: int) -> None:
            take(number)

    face.enter(client)
    assert heard.wait(PATIENCE)
    assert log.failures == [f"a function given to client.on failed: {error}"]


@pytest.mark.clause("client-29")
def test_a_notification_that_nothing_can_run_waits_for_the_next() -> None:
    heard: list[int] = []
    has_thread: list[bool] = []

    def start() -> None:
        if not has_thread:
            raise RuntimeError("can't start new thread")
        while listeners.run_next() is not False:
            pass

    log = Lines()
    listeners = Listeners(log, 1000, start)

    def changed(number: int) -> None:
        heard.append(number)

    listeners.add("changed", changed, {})
    assert listeners.take("changed", b'{"number":1}')
    assert len(log.failures) == 1
    has_thread.append(True)
    assert listeners.take("changed", b'{"number":2}')
    assert heard == [1, 2]


def test_a_client_with_functions_still_serves_and_refuses_what_it_does_not_know(face: Face) -> None:
    mine = Service()

    @mine.query
    def name() -> str:
        return "ada"

    answers: list[Any] = []

    def script(peer: Peer) -> None:
        end = peer.request()
        peer.say(b'{"jsonrpc":"2.0","id":1,"method":"name"}')
        answers.append(peer.request())
        peer.say(b'{"jsonrpc":"2.0","id":2,"method":"changed"}')
        answers.append(peer.request())
        peer.answer(end)

    server = Scripted(script)
    client = make(face, server, service=mine)

    @client.on("changed")
    def changed() -> None:
        raise AssertionError("it is a request, not a notification")

    with pytest.raises(UsageError, match="served by service="):
        client.on("name")
    driver = face.enter(client)
    driver.call("end")
    server.join()
    assert answers[0]["result"] == "ada" and answers[1]["error"]["code"] == -32601


def test_one_function_for_each_method_and_no_context(face: Face) -> None:
    client = make(face, Scripted())

    @client.on("changed")
    def changed() -> None: ...

    with pytest.raises(UsageError, match="twice"):
        client.on("changed")(changed)
    with pytest.raises(UsageError, match="method"):
        client.on("")

    def with_context(ctx: Context) -> None: ...

    with pytest.raises(UsageError, match="no Context"):
        client.on("other")(with_context)
