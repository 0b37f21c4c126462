"""Tasks in both forms and on every store: created, polled, cancelled, found from elsewhere."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from duet_rpc import Context, RpcError, Service, Transaction
from duet_rpc.mcp import Mcp, ToolOptions
from duet_rpc.policy import AGENT, replace
from tests.ledger.conftest import STORES, TRANSACTIONAL
from tests.mcp.conversation import DECLARED, EXTENSION
from tests.mcp.line import MODERN
from tests.mcp.task_client import FORMS, HANDSHAKE, Wire, serving, spawn

forms = pytest.mark.parametrize("revision", FORMS)
stores = pytest.mark.parametrize("kind", STORES, indirect=True)
transactional = pytest.mark.parametrize("kind", TRANSACTIONAL, indirect=True)
on_sqlite = pytest.mark.parametrize("kind", ["sqlite"], indirect=True)


class Refused(RpcError):
    code, message = 4001, "Refused"


class Bench:
    """A service whose commands wait for the test."""

    def __init__(self, *, is_transactional: bool = False) -> None:
        self.gate = asyncio.Event()
        self.began = asyncio.Event()
        self.runs: list[Any] = []
        self.contexts: list[Context] = []
        self.service = service = Service("t")
        options = ToolOptions(task="required")

        @service.query
        def look() -> int:
            return 1

        @service.command
        async def act(n: int, ctx: Context) -> int:
            return await self._work(n, ctx)

        @service.command(retry_safe=True)
        async def act_again(n: int, ctx: Context) -> int:
            return await self._work(n, ctx)

        if is_transactional:

            @service.command
            def pay(n: int, db: Transaction) -> int:
                db.execute(f"INSERT INTO payments VALUES ({n})")
                return n

            @service.command
            def pay_slowly(n: int, db: Transaction, ctx: Context) -> int:
                db.execute(f"INSERT INTO payments VALUES ({n})")
                self.runs.append(n)
                self.contexts.append(ctx)
                loop.call_soon_threadsafe(self.began.set)
                asyncio.run_coroutine_threadsafe(self.gate.wait(), loop).result()
                return n

        loop = asyncio.get_running_loop()

        @service.command(tool=options)
        def only_task() -> str:
            return "done"

        @service.command(tool=ToolOptions(task="forbidden"))
        def never_task() -> str:
            return "done"

        @service.command
        def note(text: str) -> int:
            return len(text)

        @service.command(errors=Refused)
        def refuse() -> int:
            raise Refused(data={"why": "so"})

        @service.command(retry_safe=True)
        def fail() -> int:
            self.runs.append("fail")
            raise ValueError("not for the client")

        @service.command(retry_safe=True)
        async def ask(ctx: Context) -> str:
            await ctx.elicit(Form, "Who?")
            return "never"

    async def _work(self, n: int, ctx: Context) -> int:
        self.runs.append(n)
        self.contexts.append(ctx)
        self.began.set()
        await self.gate.wait()
        return n


class Form:
    name: str


@asynccontextmanager
async def opened(
    revision: str, path: Path, url: str, **options: Any
) -> AsyncIterator[tuple[Bench, Wire, Any]]:
    """Serve a bench, and open one connection to it."""
    bench = Bench(is_transactional=options.pop("is_transactional", False))
    async with AsyncExitStack() as stack:
        connect = await stack.enter_async_context(serving(bench.service, path, url, **options))
        wire = await stack.enter_async_context(connect(revision))
        try:
            yield bench, wire, connect
        finally:
            bench.gate.set()


@pytest.fixture
def payments(url: str) -> Iterator[Any]:
    """A table in the database of the store; the fixture counts its rows."""
    if url.startswith("sqlite"):
        import sqlite3

        def run(query: str) -> Any:
            with sqlite3.connect(url.removeprefix("sqlite:///"), timeout=10) as db:
                rows = db.execute(query).fetchall()
            db.close()
            return rows
    else:
        import psycopg

        def run(query: str) -> Any:
            with psycopg.connect(url, autocommit=True) as db:
                cursor = db.execute(query)
                return cursor.fetchall() if cursor.description else []

    run("DROP TABLE IF EXISTS payments")
    run("CREATE TABLE payments (n integer)")
    yield lambda: [row[0] for row in run("SELECT n FROM payments")]
    run("DROP TABLE payments")


# From the creation to the result.


@forms
@stores
@pytest.mark.clause("tasks-1")
@pytest.mark.clause("tasks-3")
async def test_a_task_is_created_polled_and_gives_its_result(
    revision: str, url: str, tmp_path: Path
) -> None:
    async with opened(revision, tmp_path, url) as (bench, wire, _):
        task = await wire.create("act", n=3)
        assert task["status"] == "working"
        assert task["ttlMs" if wire.is_modern else "ttl"] == 86_400_000
        await bench.began.wait()
        polled = await wire.get(task["taskId"])
        assert (polled["status"], polled["createdAt"]) == ("working", task["createdAt"])
        bench.gate.set()
        result = await wire.result(task["taskId"])
        assert result["structuredContent"] == {"result": 3}
        ended = await wire.get(task["taskId"])
        assert ended["status"] == "completed"
        assert ended["createdAt"] == task["createdAt"] <= ended["lastUpdatedAt"]
        assert bench.runs == [3]


@on_sqlite
@pytest.mark.clause("tasks-4")
async def test_the_result_of_a_task_names_it(url: str, tmp_path: Path) -> None:
    async with opened(HANDSHAKE, tmp_path, url) as (_, wire, _):
        task = await wire.create("refuse")
        result = await wire.result(task["taskId"])
        related = result["_meta"]["io.modelcontextprotocol/related-task"]
        assert related == {"taskId": task["taskId"]}
        assert result["_meta"]["duet-rpc/error"]["code"] == 4001


@on_sqlite
@pytest.mark.clause("tasks-4")
async def test_those_who_wait_for_results_hold_no_slot(url: str, tmp_path: Path) -> None:
    async with opened(HANDSHAKE, tmp_path, url) as (bench, wire, _):
        task = await wire.create("act", n=3)
        count = AGENT.max_in_flight * 2
        waiting = [wire.start("tasks/result", {"taskId": task["taskId"]})[1] for _ in range(count)]
        assert (await wire.get(task["taskId"]))["status"] == "working"
        bench.gate.set()
        for each in waiting:
            assert (await each)["result"]["structuredContent"] == {"result": 3}


@on_sqlite
async def test_waiting_for_a_result_can_be_cancelled(url: str, tmp_path: Path) -> None:
    async with opened(HANDSHAKE, tmp_path, url) as (bench, wire, _):
        task = await wire.create("act", n=3)
        id, answer = wire.start("tasks/result", {"taskId": task["taskId"]})
        wire.send(
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}
        )
        await bench.began.wait()
        bench.gate.set()
        assert (await wire.wait(task["taskId"]))["status"] == "completed"
        assert not answer.done()


# Keys.


@forms
@stores
@pytest.mark.clause("tasks-2")
async def test_the_same_key_is_the_same_task(revision: str, url: str, tmp_path: Path) -> None:
    async with opened(revision, tmp_path, url) as (bench, wire, connect):
        task = await wire.create("act", n=3, idempotency_key="k")
        async with connect(revision) as other:
            again = await other.create("act", n=3, idempotency_key="k")
        assert (again["taskId"], again["createdAt"]) == (task["taskId"], task["createdAt"])
        bench.gate.set()
        await wire.result(task["taskId"])
        later = await wire.create("act", n=3, idempotency_key="k")
        assert (later["taskId"], later["status"]) == (task["taskId"], "completed")
        assert bench.runs == [3]


@forms
@stores
@pytest.mark.clause("tasks-2")
async def test_a_key_that_was_used_with_other_arguments_is_refused(
    revision: str, url: str, tmp_path: Path
) -> None:
    async with opened(revision, tmp_path, url) as (bench, wire, _):
        bench.gate.set()
        await wire.create("act", n=3, idempotency_key="k")
        refused = (await wire.call("act", n=4, idempotency_key="k"))["result"]
        assert refused["isError"] and "was used" in refused["content"][0]["text"]
        plain = {"name": "t_act", "arguments": {"n": 1, "idempotency_key": "plain"}}
        await wire.ask("tools/call", plain, declared=False)
        refused = (await wire.call("act", n=4, idempotency_key="plain"))["result"]
        assert refused["isError"] and "was used" in refused["content"][0]["text"]
        assert bench.runs == [3, 1]


@forms
@stores
@pytest.mark.clause("tasks-2")
async def test_every_way_to_call_sees_the_outcome_of_a_task(
    revision: str, url: str, tmp_path: Path
) -> None:
    async with opened(revision, tmp_path, url) as (bench, wire, _):
        bench.gate.set()
        arguments = {"n": 3, "idempotency_key": "k"}
        task = await wire.create("act", **arguments)
        await wire.result(task["taskId"])
        plain = {"name": "t_act", "arguments": arguments}
        called = await wire.ask("tools/call", plain, declared=False)
        assert called["result"]["structuredContent"] == {"result": 3}
        asked = {"name": "outcome", "arguments": {"tool": "t_act", "idempotency_key": "k"}}
        outcome = await wire.ask("tools/call", asked, declared=False)
        assert outcome["result"]["structuredContent"] == {"state": "done", "result": 3}
        assert bench.runs == [3]


@forms
@on_sqlite
async def test_a_task_of_a_call_that_was_made_before_has_ended(
    revision: str, url: str, tmp_path: Path
) -> None:
    async with opened(revision, tmp_path, url) as (bench, wire, _):
        bench.gate.set()
        plain = {"name": "t_act", "arguments": {"n": 3, "idempotency_key": "k"}}
        await wire.ask("tools/call", plain, declared=False)
        task = await wire.create("act", n=3, idempotency_key="k")
        assert task["status"] == "completed"
        assert (await wire.result(task["taskId"]))["structuredContent"] == {"result": 3}
        assert bench.runs == [3]


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
async def test_a_retry_that_a_new_store_cannot_know_is_no_task(url: str, tmp_path: Path) -> None:
    async with opened(MODERN, tmp_path, url) as (bench, wire, _):
        params = {
            "name": "t_act",
            "arguments": {"n": 3, "idempotency_key": "k"},
            "_meta": {**DECLARED, "retry": {"attempt": 2, "age_ms": 3_600_000}},
        }
        answer = await wire.ask("tools/call", params)
        assert answer["result"]["isError"]
        assert "No one can know" in answer["result"]["content"][0]["text"]
        assert bench.runs == []


# Cancelling.


@forms
@stores
@pytest.mark.clause("tasks-5")
async def test_what_has_not_begun_is_cancelled_for_ever(
    revision: str, url: str, tmp_path: Path
) -> None:
    async with opened(revision, tmp_path, url) as (bench, wire, connect):
        slots = AGENT.max_in_flight
        busy = [await wire.create("act", n=n) for n in range(slots)]
        task = await wire.create("act", n=99, idempotency_key="k")
        cancelled = await wire.cancel(task["taskId"])
        assert cancelled["status"] == "cancelled"
        bench.gate.set()
        for each in busy:
            await wire.result(each["taskId"])
        async with connect(revision) as other:
            assert (await other.get(task["taskId"]))["status"] == "cancelled"
            again = await other.create("act", n=99, idempotency_key="k")
            assert (again["taskId"], again["status"]) == (task["taskId"], "cancelled")
        assert 99 not in bench.runs


@forms
@transactional
@pytest.mark.clause("tasks-5")
async def test_a_transaction_is_rolled_back(
    revision: str, url: str, tmp_path: Path, payments: Any
) -> None:
    async with opened(revision, tmp_path, url, is_transactional=True) as (bench, wire, _):
        task = await wire.create("pay_slowly", n=3)
        await bench.began.wait()
        cancelling = asyncio.ensure_future(wire.cancel(task["taskId"]))
        while not bench.contexts[0].cancelled:  # noqa: ASYNC110  a thread sets it
            await asyncio.sleep(0.01)
        bench.gate.set()
        shown = await cancelling
        if shown["status"] == "working":  # the thread has taken its time
            shown = await wire.wait(task["taskId"])
        assert shown["status"] == "cancelled"
        assert payments() == []
        assert bench.runs == [3]


@forms
@stores
@pytest.mark.clause("tasks-6")
@pytest.mark.parametrize("tool", ["act", "act_again"])
async def test_a_command_that_has_begun_is_told_and_goes_on(
    revision: str, url: str, tmp_path: Path, tool: str
) -> None:
    async with opened(revision, tmp_path, url) as (bench, wire, _):
        task = await wire.create(tool, n=3)
        await bench.began.wait()
        shown = await wire.cancel(task["taskId"])
        assert shown["status"] == "working"
        assert "goes on" in shown["statusMessage"]
        assert bench.contexts[0].cancelled
        assert "goes on" in (await wire.get(task["taskId"]))["statusMessage"]
        bench.gate.set()
        ended = await wire.wait(task["taskId"])
        assert ended["status"] == "completed"
        assert bench.runs == [3]


@forms
@on_sqlite
@pytest.mark.clause("tasks-5")
async def test_cancelling_what_has_ended(revision: str, url: str, tmp_path: Path) -> None:
    async with opened(revision, tmp_path, url) as (bench, wire, _):
        bench.gate.set()
        task = await wire.create("act", n=3)
        await wire.result(task["taskId"])
        answer = await wire.ask("tasks/cancel", {"taskId": task["taskId"]})
        if wire.is_modern:
            assert answer["result"] == {"resultType": "complete"}
        else:
            assert answer["error"]["code"] == -32602
        assert (await wire.get(task["taskId"]))["status"] == "completed"


# Whose task, and which.


@forms
@on_sqlite
@pytest.mark.clause("tasks-7")
@pytest.mark.parametrize(
    "id", ["", "x", "WyJ0LmFjdCIsImsiXQ", "WyJ0LmFjdCIsImsiXQ==", "é", "a" * 9000]
)
async def test_an_unknown_task(revision: str, url: str, tmp_path: Path, id: str) -> None:
    async with opened(revision, tmp_path, url) as (_, wire, _):
        more = ["tasks/update"] if wire.is_modern else ["tasks/result"]
        for method in ["tasks/get", "tasks/cancel", *more]:
            answer = await wire.ask(method, {"taskId": id})
            assert answer["error"]["code"] == -32602, method


@forms
@stores
@pytest.mark.clause("tasks-7")
async def test_the_task_of_another_is_unknown(revision: str, url: str, tmp_path: Path) -> None:
    names = iter(["ada", "bob"])
    async with opened(revision, tmp_path, url, principal=lambda _: next(names)) as (
        bench,
        ada,
        connect,
    ):
        task = await ada.create("act", n=3, idempotency_key="k")
        async with connect(revision) as bob:
            for method in ("tasks/get", "tasks/cancel"):
                answer = await bob.ask(method, {"taskId": task["taskId"]})
                assert answer["error"]["code"] == -32602
            own = await bob.create("act", n=4, idempotency_key="k")
            assert own["taskId"] == task["taskId"]
            bench.gate.set()
            assert (await bob.result(own["taskId"]))["structuredContent"] == {"result": 4}
        assert (await ada.result(task["taskId"]))["structuredContent"] == {"result": 3}


# Failures.


@forms
@stores
@pytest.mark.clause("tasks-8")
async def test_a_tool_that_fails(revision: str, url: str, tmp_path: Path) -> None:
    async with opened(revision, tmp_path, url) as (_, wire, _):
        task = await wire.create("refuse")
        ended = await wire.wait(task["taskId"])
        assert ended["status"] == ("completed" if wire.is_modern else "failed")
        result = await wire.result(task["taskId"])
        assert result["isError"] and "Refused" in result["content"][0]["text"]


@forms
@stores
@pytest.mark.clause("tasks-8")
async def test_a_failure_that_no_one_foresaw_ends_the_task_for_good(
    revision: str, url: str, tmp_path: Path
) -> None:
    async with opened(revision, tmp_path, url) as (bench, wire, _):
        task = await wire.create("fail")
        ended = await wire.wait(task["taskId"])
        assert ended["status"] == "failed"
        if wire.is_modern:
            assert ended["error"]["code"] == -32603
        assert await wire.get(task["taskId"]) == ended
        assert "not for the client" not in str(ended)
        assert bench.runs == ["fail"]


@forms
@on_sqlite
@pytest.mark.clause("tasks-10")
async def test_inside_a_task_no_one_can_be_asked(revision: str, url: str, tmp_path: Path) -> None:
    async with opened(revision, tmp_path, url) as (_, wire, _):
        task = await wire.create("ask")
        assert (await wire.wait(task["taskId"]))["status"] == "failed"


@forms
@on_sqlite
@pytest.mark.clause("tasks-1")
async def test_arguments_that_do_not_fit_make_no_task(
    revision: str, url: str, tmp_path: Path
) -> None:
    async with opened(revision, tmp_path, url) as (_, wire, _):
        refused = (await wire.call("act", n="three"))["result"]
        assert refused["isError"] and "has to be integer" in refused["content"][0]["text"]
        no_key = (await wire.call("refuse", idempotency_key="k" * 400))["result"]
        assert no_key["isError"]
        huge = (await wire.call("note", text="x" * 300_000))["result"]
        assert huge["isError"] and "262144 bytes at most" in huge["content"][0]["text"]
        unknown = await wire.call("nothing")
        assert unknown["error"]["code"] == -32602


# Which tools.


@on_sqlite
@pytest.mark.clause("tasks-9")
async def test_what_tools_say_of_tasks(url: str, tmp_path: Path) -> None:
    async with opened(HANDSHAKE, tmp_path, url) as (_, wire, connect):
        listed = (await wire.ask("tools/list"))["result"]["tools"]
        said = {tool["name"]: tool.get("execution") for tool in listed}
        assert said["t_act"] == {"taskSupport": "optional"}
        assert said["t_only_task"] == {"taskSupport": "required"}
        assert said["t_look"] is said["t_never_task"] is said["outcome"] is None
        capabilities = await wire.open()
        assert capabilities["tasks"]["requests"] == {"tools": {"call": {}}}
        async with connect(MODERN) as modern:
            listed = (await modern.ask("tools/list"))["result"]["tools"]
            assert not any("execution" in tool for tool in listed)
            capabilities = await modern.open()
            assert capabilities["extensions"] == {EXTENSION: {}}
            assert "tasks" not in capabilities


@forms
@on_sqlite
@pytest.mark.clause("tasks-9")
async def test_a_tool_that_has_to_be_a_task(revision: str, url: str, tmp_path: Path) -> None:
    async with opened(revision, tmp_path, url) as (_, wire, _):
        plain = {"name": "t_only_task", "arguments": {}}
        answer = await wire.ask("tools/call", plain, declared=False)
        if wire.is_modern:
            assert answer["error"]["code"] == -32021
            needed = answer["error"]["data"]["requiredCapabilities"]
            assert needed == {"extensions": {EXTENSION: {}}}
        else:
            assert answer["error"]["code"] == -32601
        task = await wire.create("only_task")
        assert (await wire.result(task["taskId"]))["structuredContent"] == {"result": "done"}


@forms
@on_sqlite
@pytest.mark.clause("tasks-9")
@pytest.mark.parametrize("tool", ["never_task", "look"])
async def test_a_tool_that_is_no_task(revision: str, url: str, tmp_path: Path, tool: str) -> None:
    async with opened(revision, tmp_path, url) as (_, wire, _):
        answer = await wire.call(tool)
        if wire.is_modern:
            assert "taskId" not in answer["result"] and "content" in answer["result"]
        else:
            assert answer["error"]["code"] == -32601


@on_sqlite
@pytest.mark.clause("tasks-9")
async def test_a_task_that_is_no_object(url: str, tmp_path: Path) -> None:
    async with opened(HANDSHAKE, tmp_path, url) as (_, wire, _):
        params = {"name": "t_only_task", "task": 7}
        assert (await wire.ask("tools/call", params))["error"]["code"] == -32602


@on_sqlite
@pytest.mark.clause("tasks-9")
async def test_who_has_not_declared_tasks_is_told_nothing_of_them(url: str, tmp_path: Path) -> None:
    async with opened(MODERN, tmp_path, url) as (bench, wire, _):
        task = await wire.create("act", n=3)
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            answer = await wire.ask(method, {"taskId": task["taskId"]}, declared=False)
            assert answer["error"]["code"] == -32021
        bench.gate.set()
        plain = {"name": "t_act", "arguments": {"n": 3}, "task": {}}
        called = await wire.ask("tools/call", plain, declared=False)
        assert called["result"]["structuredContent"] == {"result": 3}


@on_sqlite
@pytest.mark.clause("tasks-9")
async def test_earlier_revisions_know_no_tasks(url: str, tmp_path: Path) -> None:
    async with opened("2025-06-18", tmp_path, url) as (bench, wire, _):
        bench.gate.set()
        capabilities = await wire.open()
        assert "tasks" not in capabilities
        plain = {"name": "t_act", "arguments": {"n": 3}, "task": {}}
        called = await wire.ask("tools/call", plain)
        assert called["result"]["structuredContent"] == {"result": 3}
        assert (await wire.ask("tasks/get", {"taskId": "x"}))["error"]["code"] == -32601


@on_sqlite
async def test_updates_are_acknowledged(url: str, tmp_path: Path) -> None:
    async with opened(MODERN, tmp_path, url) as (bench, wire, _):
        task = await wire.create("act", n=3)
        params = {"taskId": task["taskId"], "inputResponses": {"who": {"action": "decline"}}}
        assert (await wire.ask("tasks/update", params))["result"] == {"resultType": "complete"}
        bench.gate.set()


# A life of its own.


@forms
@stores
@pytest.mark.clause("tasks-3")
async def test_a_task_outlives_its_connection(revision: str, url: str, tmp_path: Path) -> None:
    async with opened(revision, tmp_path, url) as (bench, wire, connect):
        async with connect(revision) as first:
            task = await first.create("act", n=3)
            await bench.began.wait()
        assert (await wire.get(task["taskId"]))["status"] == "working"
        bench.gate.set()
        assert (await wire.result(task["taskId"]))["structuredContent"] == {"result": 3}
        assert bench.runs == [3]


@pytest.mark.parametrize("kind", ["memory", "sqlite"], indirect=True)
async def test_tasks_have_limits_of_their_own(url: str, tmp_path: Path) -> None:
    policy = replace(AGENT, max_in_flight=2, max_queued=2)
    async with opened(MODERN, tmp_path, url, policy=policy) as (bench, wire, _):
        tasks = [await wire.create("act", n=n) for n in range(4)]
        refused = (await wire.call("act", n=5))["result"]
        assert refused["isError"] and "Nothing was done" in refused["content"][0]["text"]
        bench.gate.set()
        for n, each in enumerate(tasks):
            assert (await wire.result(each["taskId"]))["structuredContent"] == {"result": n}
        assert sorted(bench.runs) == [0, 1, 2, 3]


# Lists.


@stores
@pytest.mark.clause("tasks-12")
async def test_the_tasks_of_a_principal_are_listed_in_pages(url: str, tmp_path: Path) -> None:
    names = iter(["a*[b", "a*", "a*[b"])
    face = Mcp(page_size=2)
    async with opened(HANDSHAKE, tmp_path, url, face=face, principal=lambda _: next(names)) as (
        bench,
        wire,
        connect,
    ):
        assert (await wire.ask("tasks/list"))["result"] == {"tasks": []}
        made = [await wire.create("act", n=n) for n in range(4)] + [await wire.create("refuse")]
        await wire.wait(made[4]["taskId"])
        async with connect(HANDSHAKE) as other:
            await other.create("act", n=9)
        found: list[Any] = []
        page = (await wire.ask("tasks/list"))["result"]
        while True:
            found += page["tasks"]
            assert len(page["tasks"]) <= 2
            if "nextCursor" not in page:
                break
            page = (await wire.ask("tasks/list", {"cursor": page["nextCursor"]}))["result"]
        assert [each["taskId"] for each in found] == [each["taskId"] for each in made]
        assert [each["status"] for each in found] == ["working"] * 4 + ["failed"]
        bench.gate.set()


@on_sqlite
@pytest.mark.clause("tasks-12")
@pytest.mark.parametrize("cursor", ["", "x", "from-4", "after-", "after-nan-x", "after-inf-x"])
async def test_a_cursor_that_is_not_ours(url: str, tmp_path: Path, cursor: str) -> None:
    async with opened(HANDSHAKE, tmp_path, url) as (_, wire, _):
        assert (await wire.ask("tasks/list", {"cursor": cursor}))["error"]["code"] == -32602


# Where there is no event loop.


@pytest.mark.clause("tasks-9")
async def test_a_server_without_a_loop_has_no_tasks(tmp_path: Path) -> None:
    file = tmp_path / "service.py"
    file.write_text(
        "from duet_rpc import Service\n"
        "from duet_rpc.mcp import ToolOptions\n"
        't = Service("t")\n'
        '@t.command(tool=ToolOptions(task="required"))\n'
        "def act() -> int:\n"
        "    return 1\n"
    )
    command = [sys.executable, "-m", "duet_rpc", "mcp", str(file), "--policy", "editor"]
    for revision in FORMS:
        async with spawn(command, revision) as (wire, _):
            capabilities = await wire.open()
            assert not {"tasks", "extensions"} & capabilities.keys()
            called = await wire.call("act")
            assert called["result"]["structuredContent"] == {"result": 1}
            answer = await wire.ask("tasks/get", {"taskId": "x"})
            assert answer["error"]["code"] == -32601
