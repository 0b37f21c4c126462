"""What a language server tells while it works: partial results, and progress of its own work."""

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from duet_rpc import Client, Context, Progress, Service, UsageError, testing
from duet_rpc.errors import CallTimeout
from duet_rpc.lsp import LanguageServer, Location, Position, Range, TextDocument, WorkDone
from duet_rpc.policy import AGENT, EDITOR, Policy

URI = "file:///a.txt"
ABOUT = {"textDocument": {"uri": URI}}
REFERENCES = "textDocument/references"
POLICIES = pytest.mark.parametrize("policy", [EDITOR, AGENT], ids=["editor", "agent"])


class Screen:
    """The client's end: what it is asked to show."""

    def __init__(self, refuses: bool = False, waits: asyncio.Event | None = None) -> None:
        self.shown: asyncio.Queue[Any] = asyncio.Queue()
        self.service = service = Service()

        @service.query(name="window/workDoneProgress/create")
        async def create(token: str) -> None:
            if refuses:
                raise ValueError("no room")
            self.shown.put_nowait(("create", token))
            if waits is not None:
                await waits.wait()

        @service.notification(name="$/progress")
        async def progress(token: Any, value: Any) -> None:
            self.shown.put_nowait((token, value))

    async def read(self, count: int) -> list[Any]:
        return [await asyncio.wait_for(self.shown.get(), 20) for _ in range(count)]


@asynccontextmanager
async def session(
    server: LanguageServer,
    screen: Screen | None = None,
    *,
    capabilities: Any = None,
    policy: Policy = EDITOR,
) -> AsyncIterator[Client]:
    service = Service() if screen is None else screen.service
    async with testing.connect(
        server.make_service(), policy=policy, service=service, dialect="lsp"
    ) as client:
        if capabilities is None:
            capabilities = {"window": {"workDoneProgress": True}}
        await client.call("initialize", {"capabilities": capabilities})
        opened = {"uri": URI, "languageId": "text", "version": 1, "text": "one two three"}
        await client.notify("textDocument/didOpen", {"textDocument": opened})
        yield client


def word(number: int) -> Range:
    return Range(Position(0, number), Position(0, number + 1))


WIRE = [
    {
        "uri": URI,
        "range": {"start": {"line": 0, "character": n}, "end": {"line": 0, "character": n + 1}},
    }
    for n in range(3)
]


def make_server(closed: Callable[[], object] = lambda: None) -> LanguageServer:
    """Make a server with generators of both kinds."""
    server = LanguageServer("words")

    @server.references
    def references(document: TextDocument) -> Iterator[Range]:
        try:
            for number in range(3):
                yield word(number)
        finally:
            closed()

    @server.definition
    async def definition(document: TextDocument) -> AsyncIterator[Range | Location]:
        try:
            for number in range(3):
                yield word(number)
        finally:
            closed()

    @server.feature("words/all")
    def list_words(params: dict[str, Any]) -> Iterator[int]:
        yield from params["numbers"]

    return server


@pytest.mark.clause("lsp-9")
@POLICIES
@pytest.mark.parametrize("method", [REFERENCES, "textDocument/definition"])
async def test_a_generator_sends_partial_results(method: str, policy: Policy) -> None:
    screen = Screen()
    closed: list[None] = []
    server = make_server(lambda: closed.append(None))
    async with session(server, screen, policy=policy) as client:
        assert await client.call(method, ABOUT) == WIRE
        assert await client.call(method, {**ABOUT, "partialResultToken": "p"}) == []
        assert await screen.read(3) == [("p", [item]) for item in WIRE]
        assert len(closed) == 2


@POLICIES
async def test_a_client_takes_them_as_a_stream(policy: Policy) -> None:
    async with session(make_server(), policy=policy) as client:
        for method in (REFERENCES, "textDocument/definition"):
            found = [each async for each in client.stream(method, ABOUT, returns=Location)]
            assert found == [Location(URI, word(number)) for number in range(3)]
        numbers = [n async for n in client.stream("words/all", {"numbers": [1, 2]}, returns=int)]
        assert numbers == [1, 2]


@pytest.mark.clause("lsp-9")
@POLICIES
async def test_a_generator_that_is_cancelled_is_closed(policy: Policy) -> None:
    server = LanguageServer("words")
    closed = threading.Semaphore(0)
    go_on = threading.Event()
    screen = Screen()

    @server.references
    def references(ctx: Context) -> Iterator[Range]:
        try:
            yield word(0)
            while not ctx.cancelled:
                go_on.wait(0.01)
            yield word(1)
            yield word(2)
        finally:
            closed.release()

    async with session(server, screen, policy=policy) as client:
        with pytest.raises(CallTimeout):
            await client.call(REFERENCES, {"partialResultToken": "p"}, timeout=0.2)
        assert await asyncio.to_thread(closed.acquire, timeout=20)
        assert await screen.read(1) == [("p", [WIRE[0]["range"]])]
        assert await client.call("shutdown") is None
        assert screen.shown.empty()


async def test_an_item_that_cannot_be_written_is_an_error() -> None:
    server = LanguageServer("words")

    @server.references
    def references() -> Iterator[Any]:
        yield word(0)
        yield object()

    async with session(server) as client:
        for params in ({}, {"partialResultToken": "p"}):
            with pytest.raises(Exception, match="reference"):
                await client.call(REFERENCES, params)


def test_what_is_one_value_is_not_yielded() -> None:
    server = LanguageServer("words")
    with pytest.raises(UsageError, match="yields"):

        @server.rename
        async def rename(new_name: str) -> AsyncIterator[str]:
            yield new_name

    with pytest.raises(UsageError, match="yields"):

        @server.on_change
        async def check(document: TextDocument) -> AsyncIterator[str]:
            yield document.text


@pytest.mark.clause("lsp-8")
@POLICIES
async def test_a_handler_reports_under_the_token_of_its_request(policy: Policy) -> None:
    server = LanguageServer("words")

    @server.feature("workspace/executeCommand")(commands=["x"], work_done_progress=True)
    def execute(command: str, ctx: Context) -> str:
        """Count all words. And more."""
        ctx.progress(1, 2, "half")
        return command

    screen = Screen()
    got: list[Progress] = []
    async with session(server, screen, policy=policy) as client:
        params = {"command": "x", "workDoneToken": 7000}
        assert await client.call("workspace/executeCommand", params) == "x"
        begin = {"kind": "begin", "title": "Count all words", "percentage": 50, "message": "half"}
        assert await screen.read(2) == [(7000, begin), (7000, {"kind": "end"})]
        await client.call("workspace/executeCommand", {"command": "x"}, on_progress=got.append)
        assert got == [Progress(1, 2, "half")], "our own client asks for exact values"


# Work outside of requests.

BEGIN = {"kind": "begin", "title": "Index", "cancellable": True, "message": "slowly"}


@pytest.mark.clause("lsp-10")
async def test_work_of_the_servers_own_is_shown() -> None:
    server, screen = LanguageServer("words"), Screen()

    @server.feature("words/none")
    def nothing() -> None: ...

    async with session(server, screen) as client:
        async with server.work_done("Index", message="slowly", cancellable=True) as work:
            [(_, token), begun] = await screen.read(2)
            assert begun == (token, BEGIN)
            work.report(1, 3, "a.txt")
            assert not work.cancelled
            await client.notify("window/workDoneProgress/cancel", {"token": "another"})
            await client.notify("window/workDoneProgress/cancel", {"token": token})
            await client.call("words/none")
            assert work.cancelled
        report = {"kind": "report", "percentage": 33, "message": "a.txt"}
        assert await screen.read(2) == [(token, report), (token, {"kind": "end"})]
        work.report(2, 3)
        work.end()
        async with server.work_done("More"):
            pass
        created, *others = await screen.read(3)
        assert created[1] != token, "each piece of work has a token of its own"
        assert [value["kind"] for _, value in others] == ["begin", "end"]


@pytest.mark.clause("lsp-10")
async def test_work_in_a_thread_is_shown() -> None:
    server, screen = LanguageServer("words"), Screen()

    def index() -> None:
        with server.work_done("Index", message="slowly", cancellable=True) as work:
            work.report(message="a.txt")
            work.end("all of it")

    async with session(server, screen):
        await asyncio.to_thread(index)
        (_, token), *others = await screen.read(4)
        kinds = [
            BEGIN,
            {"kind": "report", "message": "a.txt"},
            {"kind": "end", "message": "all of it"},
        ]
        assert others == [(token, value) for value in kinds]


@pytest.mark.clause("lsp-10")
@pytest.mark.parametrize("case", ["no client", "cannot", "refuses", "is gone"])
async def test_who_cannot_show_it_is_told_nothing(case: str) -> None:
    server, screen = LanguageServer("words"), Screen(refuses=case == "refuses")

    def work_in_a_thread() -> None:
        with server.work_done("Index") as work:
            work.report(1, 2)

    async def work() -> None:
        async with server.work_done("Index") as work:
            work.report(1, 2)
        await asyncio.to_thread(work_in_a_thread)

    if case != "no client":
        async with session(server, screen, capabilities={} if case == "cannot" else None):
            if case != "is gone":
                await work()
        assert server.peer is not None and not server.peer.is_connected
    await work()
    assert screen.shown.empty()


@pytest.mark.clause("lsp-10")
async def test_nothing_is_kept_of_work_that_is_cancelled_before_it_begins() -> None:
    server, screen = LanguageServer("words"), Screen(waits=asyncio.Event())
    made: list[weakref.ref[WorkDone]] = []

    async def index() -> None:
        work = server.work_done("Index")
        made.append(weakref.ref(work))
        async with work:
            raise AssertionError("the client has not answered yet")

    async with session(server, screen):
        task = asyncio.create_task(index())
        await screen.read(1)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        del task
        gc.collect()
        assert made[0]() is None
