"""Commands and their retries, clause by clause: bytes in, bytes out.

What the ledger does with records is proved in tests/ledger; here it is proved that requests reach
it and answers come from it, on every store. Crashes are in `test_commands_across_processes.py`.
"""

import asyncio
import contextlib
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from duet_rpc import (
    CallTimeout,
    Client,
    Context,
    Outcome,
    OutcomeUnknown,
    RpcError,
    Server,
    Service,
    Transaction,
    UsageError,
    testing,
)
from duet_rpc.errors import DeadlineExceeded, InProgress, KeyReused
from duet_rpc.ledger import Ledger, MemoryStore, Store, open_store
from duet_rpc.ledger.commands import Commands
from duet_rpc.policy import DEVELOPMENT, PRODUCTION, SPEC, Policy
from tests.conformance.specimen import specimen
from tests.helpers import Line, data_of, exchange, notification, refusal, request, result
from tests.ledger.conftest import STORES, TRANSACTIONAL

pytestmark = pytest.mark.timeout(120)

every_store = pytest.mark.parametrize("kind", STORES, indirect=True)
in_memory = pytest.mark.parametrize("kind", ["memory"], indirect=True)
transactional = pytest.mark.parametrize("kind", TRANSACTIONAL, indirect=True)
PROMISES = ["once", "safe"]


class Declined(RpcError):
    code, message = 402, "Declined"


class Bank:
    """Commands of every kind, and how often each of their effects happened."""

    def __init__(self) -> None:
        self.effects: list[Any] = []
        self.contexts: list[Context] = []
        self.service = Service("bank", errors=Declined)

        def pay(value: Any = None, ctx: Context | None = None) -> Any:
            assert ctx is not None
            self.contexts.append(ctx)
            self.effects.append(value)
            if value == "decline":
                raise Declined(data={"effects": len(self.effects)})
            if value == "fail":
                raise ValueError("a secret in an exception: hunter2")
            if value == "odd":
                return {"cannot be": object()}
            return value if value != "count" else len(self.effects)

        def once(ctx: Context, value: Any = None) -> Any:
            return pay(value, ctx)

        def safe(ctx: Context, value: Any = None) -> Any:
            return pay(value, ctx)

        self.service.command(name="bank.once")(once)
        self.service.command(name="bank.safe", retry_safe=True)(safe)


@pytest.fixture
def bank() -> Bank:
    return Bank()


@pytest.fixture
def commands(store: Store) -> Iterator[Commands]:
    made = Commands(lambda: Ledger(store, wait=30.0))
    yield made
    made.close()


@pytest.fixture
def line(bank: Bank, commands: Commands) -> Line:
    return Line(PRODUCTION, bank.service, ledger=commands)


def keyed(method: str, value: Any, key: str = "k", id: Any = 1) -> bytes:
    return request(f"bank.{method}", {"value": value, "idempotency_key": key}, id)


def ask(line: Line, *items: bytes) -> bytes:
    (answer,) = line.send(*items)
    return answer


def member(answer: bytes) -> bytes:
    """Cut the outcome out of an answer, as it was spelled."""
    at = min(place for word in (b'"result":', b'"error":') if (place := answer.find(word)) >= 0)
    return answer[at:-1]


# Every result ever sent for one key is the same bytes.


@pytest.mark.clause("commands-14")
@every_store
@pytest.mark.parametrize("method", PROMISES)
@pytest.mark.parametrize("value", ["count", {"b": [1.0, 1e2, "é\n"], "a": None}, "decline"])
def test_a_retry_is_answered_with_the_same_bytes_under_its_own_id(
    line: Line, bank: Bank, method: str, value: Any
) -> None:
    first = ask(line, keyed(method, value, id=1))
    again = ask(line, keyed(method, value, id="other"))
    assert member(first) == member(again)
    assert json.loads(again)["id"] == "other"
    assert len(bank.effects) == 1


@pytest.mark.clause("commands-16")
@every_store
@pytest.mark.parametrize("value", [0, False, None, "", [], {}])
def test_a_falsy_result_is_a_result(line: Line, bank: Bank, value: Any) -> None:
    answers = [result(ask(line, keyed("once", value))) for _ in range(2)]
    assert answers == [value, value] and len(bank.effects) == 1


@pytest.mark.clause("commands-7")
@every_store
@pytest.mark.parametrize("method", PROMISES)
def test_other_params_under_a_used_key_are_refused(line: Line, bank: Bank, method: str) -> None:
    ask(line, keyed(method, 1))
    answer = ask(line, keyed(method, 2))
    assert refusal(answer)[:3] == (-32012, "Idempotency key reused", "idempotency-key-reused")
    assert bank.effects == [1]


@pytest.mark.clause("commands-8")
@in_memory
@pytest.mark.parametrize(
    ("params", "is_same"),
    [
        (b'{"value":{"a":1,"b":2},"idempotency_key":"k"}', True),
        (b'{"idempotency_key":"k","value":{"b":2,"a":1}}', True),
        (b'{"value": {"\\u0061": 1, "b": 2}, "idempotency_key": "k"}', True),
        (b'{"value":{"a":1,"b":2},"_meta":{"idempotency_key":"k","traceparent":"t"}}', True),
        (b'{"value":{"a":1.0,"b":2},"idempotency_key":"k"}', False),
        (b'{"value":{"a":1},"idempotency_key":"k"}', False),
    ],
)
def test_a_retry_is_told_from_another_request_by_its_values(
    line: Line, bank: Bank, params: bytes, is_same: bool
) -> None:
    ask(line, keyed("once", {"a": 1, "b": 2}))
    answer = ask(line, b'{"jsonrpc":"2.0","id":2,"method":"bank.once","params":%b}' % params)
    assert ("result" in json.loads(answer)) is is_same
    assert len(bank.effects) == 1


@pytest.mark.clause("commands-6")
@in_memory
def test_a_key_means_nothing_under_another_method(line: Line, bank: Bank) -> None:
    assert [result(ask(line, keyed(method, "count"))) for method in PROMISES] == [1, 2]


# What the handler raises, by kind.


@pytest.mark.clause("commands-9")
@every_store
def test_an_unforeseen_exception_is_stored_where_an_effect_may_have_happened(
    line: Line, bank: Bank
) -> None:
    answers = [ask(line, keyed("once", "fail", id=id)) for id in (1, 2)]
    assert member(answers[0]) == member(answers[1])
    assert refusal(answers[0])[:2] == (-32603, "Internal error")
    assert len(bank.effects) == 1
    assert data_of(answers[0]) == {"reference": "ref-1"}


@pytest.mark.clause("commands-9")
@every_store
def test_an_unforeseen_exception_is_forgotten_where_running_again_is_safe(
    line: Line, bank: Bank
) -> None:
    codes = [refusal(ask(line, keyed("safe", "fail"))).code for _ in range(2)]
    assert codes == [-32603, -32603] and len(bank.effects) == 2


@pytest.mark.clause("errors-7")
@in_memory
@pytest.mark.parametrize("method", PROMISES)
def test_an_unforeseen_exception_leaks_nothing(line: Line, method: str) -> None:
    answer = ask(line, keyed(method, "fail"))
    for word in (b"hunter2", b"ValueError", b"Traceback", b".py"):
        assert word not in answer
    assert isinstance(line.log.failures[0], ValueError), "the log has it all"


@pytest.mark.clause("commands-17")
@every_store
@pytest.mark.parametrize("method", PROMISES)
def test_a_result_that_cannot_be_sent_is_an_outcome(line: Line, bank: Bank, method: str) -> None:
    answers = [ask(line, keyed(method, "odd", id=id)) for id in (1, 2)]
    assert refusal(answers[0])[:3] == (
        -32016,
        "Result cannot be serialized",
        "result-unserializable",
    )
    assert member(answers[0]) == member(answers[1]) and len(bank.effects) == 1


@pytest.mark.clause("commands-17")
@in_memory
def test_a_result_that_is_too_large_to_keep_is_one_that_cannot_be_sent(
    line: Line, bank: Bank
) -> None:
    large = "x" * (256 * 1024)
    answers = [ask(line, keyed("once", large, id=id)) for id in (1, 2)]
    assert refusal(answers[0]).reason == "result-unserializable"
    assert member(answers[0]) == member(answers[1]) and len(bank.effects) == 1


@pytest.mark.clause("errors-9")
@in_memory
def test_an_error_whose_data_cannot_be_encoded_is_still_that_error(store: Store) -> None:
    service = Service()

    @service.command
    def odd() -> None:
        raise Declined(data=object())

    commands = Commands(lambda: Ledger(store))
    line = Line(PRODUCTION, service, ledger=commands)
    answers = [ask(line, request("odd", {"idempotency_key": "k"}, id)) for id in (1, 2)]
    assert refusal(answers[0])[:2] == (402, "Declined")
    assert member(answers[0]) == member(answers[1])
    commands.close()


# The key.


@pytest.mark.clause("commands-1")
@in_memory
@pytest.mark.parametrize("key", ["", "x" * 256, "a\nb", "a\x00", 7, None])
@pytest.mark.parametrize("in_meta", [False, True])
def test_a_key_that_is_none_is_refused_and_runs_nothing(
    line: Line, bank: Bank, key: Any, in_meta: bool
) -> None:
    named = {"idempotency_key": key}
    answer = ask(line, request("bank.once", {"_meta": named} if in_meta else named))
    assert refusal(answer)[:3] == (-32602, "Invalid params", "idempotency-key-invalid")
    assert data_of(answer)["param"] == "idempotency_key" and "received" in data_of(answer)
    assert bank.effects == []


@pytest.mark.clause("commands-3")
@in_memory
def test_a_missing_key_is_refused_and_runs_nothing(line: Line, bank: Bank) -> None:
    answer = ask(line, request("bank.once", {"value": 1}))
    assert refusal(answer)[:3] == (-32602, "Invalid params", "idempotency-key-missing")
    assert bank.effects == []


@pytest.mark.clause("commands-1")
@every_store
@pytest.mark.parametrize("key", ["x" * 255, "ключ 🗝", 'with spaces: and "signs" \'%_*'])
def test_every_printable_key_works_on_every_store(line: Line, bank: Bank, key: str) -> None:
    assert [result(ask(line, keyed("once", "count", key))) for _ in range(2)] == [1, 1]


@pytest.mark.clause("commands-1")
@in_memory
def test_a_key_in_meta_is_the_same_key(line: Line, bank: Bank) -> None:
    ask(line, keyed("once", "count"))
    in_meta = {"value": "count", "_meta": {"idempotency_key": "k"}}
    assert result(ask(line, request("bank.once", in_meta))) == 1
    assert [context.idempotency_key for context in bank.contexts] == ["k"]


@pytest.mark.clause("commands-2")
@in_memory
def test_two_different_keys_are_refused_and_run_nothing(line: Line, bank: Bank) -> None:
    both = {"idempotency_key": "a", "_meta": {"idempotency_key": "b"}}
    answer = ask(line, request("bank.once", both))
    assert refusal(answer)[:3] == (-32602, "Invalid params", "idempotency-key-invalid")
    assert data_of(answer)["received"] == "two different keys"
    assert bank.effects == []


@pytest.mark.clause("commands-29")
@in_memory
@pytest.mark.parametrize("age", [None, 7, {}, {"attempt": 1, "age_ms": 5}, {"attempt": 2}])
def test_a_retry_whose_age_cannot_be_read_is_refused_and_runs_nothing(
    line: Line, bank: Bank, age: Any
) -> None:
    params = {"idempotency_key": "k", "_meta": {"retry": age}}
    answer = ask(line, request("bank.once", params))
    assert refusal(answer)[:2] == (-32602, "Invalid params")
    assert data_of(answer)["param"] == "_meta.retry"
    assert bank.effects == []


@pytest.mark.clause("commands-4")
@in_memory
def test_without_a_key_each_request_is_a_command_of_its_own(bank: Bank, commands: Commands) -> None:
    line = Line(DEVELOPMENT, bank.service, ledger=commands)
    answers = [ask(line, request("bank.once", {"value": "count"})) for _ in range(2)]
    assert [result(answer) for answer in answers] == [1, 2]


# Refusals before the start are never stored, and messages without id.


@pytest.mark.clause("commands-18", "errors-12")
@every_store
def test_a_refusal_before_the_start_is_not_stored(line: Line, bank: Bank) -> None:
    bad = request("bank.once", {"wrong": 1, "idempotency_key": "k"})
    assert refusal(ask(line, bad)).code == -32602
    assert result(ask(line, keyed("once", "count"))) == 1


@pytest.mark.clause("commands-18")
@in_memory
@pytest.mark.parametrize("policy", [DEVELOPMENT, PRODUCTION], ids=lambda policy: policy.name)
def test_a_command_without_id_is_refused_and_its_key_stays_free(
    bank: Bank, commands: Commands, policy: Policy
) -> None:
    line = Line(policy, bank.service, ledger=commands)
    params = {"value": "count", "idempotency_key": "k"}
    for body in (notification("bank.once", params), request("bank.once", params, None)):
        assert refusal(ask(line, body)).reason == "command-requires-id"
    assert result(ask(line, keyed("once", "count"))) == 1


@pytest.mark.clause("commands-14")
@in_memory
def test_where_commands_may_be_notifications_a_key_still_counts(
    bank: Bank, commands: Commands
) -> None:
    line = Line(SPEC, bank.service, ledger=commands)
    assert line.send(notification("bank.once", {"value": "count", "idempotency_key": "k"})) == []
    assert result(ask(line, keyed("once", "count"))) == 1
    assert len(bank.effects) == 1


@pytest.mark.clause("batches-6")
@every_store
def test_the_items_of_a_batch_are_commands_like_any_other(line: Line, bank: Bank) -> None:
    items = [keyed("once", "count", id=1), keyed("once", "count", "other", id=2)]
    again = [keyed("once", "count", id=3), keyed("once", 5, id=4)]
    (answers,) = line.send(b"[%b]" % b",".join(items))
    assert [each["result"] for each in json.loads(answers)] == [1, 2]
    (answers,) = line.send(b"[%b]" % b",".join(again))
    same, reused = json.loads(answers)
    assert same["result"] == 1 and reused["error"]["code"] == -32012


# Duplicates, scopes, outcomes: through a client and a server.


@pytest.mark.clause("commands-25")
@every_store
@pytest.mark.parametrize("is_async", [False, True])
async def test_fifty_duplicates_at_once_are_one_run(store: Store, is_async: bool) -> None:
    service = Service()
    runs: list[int] = []

    if is_async:

        @service.command
        async def slow() -> int:
            runs.append(1)
            await asyncio.sleep(0.2)
            return len(runs)
    else:

        @service.command(name="slow")
        def slow_in_thread() -> int:
            runs.append(1)
            time.sleep(0.2)
            return len(runs)

    async with testing.connect(service, policy=DEVELOPMENT, store=store) as client:
        calls = [client.command("slow", key="k", timeout=90) for _ in range(50)]
        assert await asyncio.gather(*calls) == [1] * 50
    assert len(runs) == 1


@pytest.mark.clause("commands-21")
@every_store
async def test_what_became_of_a_command_can_be_asked_for(store: Store, bank: Bank) -> None:
    gate, begun = asyncio.Event(), asyncio.Event()

    @bank.service.command
    async def wait() -> str:
        begun.set()
        await gate.wait()
        return "waited"

    async with testing.connect(bank.service, policy=DEVELOPMENT, store=store) as client:
        assert await client.outcome("bank.wait", "k") == Outcome("none")
        running = asyncio.ensure_future(client.command("bank.wait", key="k"))
        await asyncio.wait_for(begun.wait(), 60)
        assert await client.outcome("bank.wait", "k") == Outcome("running")
        gate.set()
        assert await running == "waited"
        waited = await client.outcome("bank.wait", "k", returns=str)
        assert waited.state == "done" and waited.result() == "waited"
        with pytest.raises(Declined):
            await client.command("bank.once", {"value": "decline"}, key="k")
        told = await client.outcome("bank.once", "k")
        assert told.state == "done" and isinstance(told.error(), Declined)
        with pytest.raises(Declined):
            told.result()


@pytest.mark.clause("commands-6")
@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
async def test_two_principals_have_a_key_each(url: str, bank: Bank, tmp_path: Path) -> None:
    names = iter(["ada", "ben", "ada"])
    server = Server(bank.service, policy=PRODUCTION, store=url)
    ready = asyncio.Event()
    serving = asyncio.create_task(
        server.serve_unix(
            str(tmp_path / "s"),
            principal=lambda socket: next(names),
            on_start=lambda address: ready.set(),
        )
    )
    try:
        await asyncio.wait_for(ready.wait(), 60)
        answers = []
        for _ in range(3):
            async with Client.connect(f"unix:{tmp_path}/s") as client:
                answers.append(await client.command("bank.once", {"value": "count"}, key="k"))
                assert (await client.outcome("bank.once", "k")).result() == answers[-1]
        assert answers == [1, 2, 1]
        assert [context.principal for context in bank.contexts] == ["ada", "ben"]
    finally:
        serving.cancel()
        await asyncio.wait([serving])
        server.close()


@pytest.mark.clause("commands-6")
@in_memory
async def test_a_principal_in_the_params_is_only_a_param(line: Line, bank: Bank) -> None:
    params = {"value": 1, "idempotency_key": "k", "_meta": {"principal": "root"}}
    ask(line, request("bank.once", params))
    assert [context.principal for context in bank.contexts] == ["local"]


# The caller's cancellation and deadline.


@pytest.mark.clause("commands-20", "cancelling-4")
@every_store
async def test_cancelling_the_caller_does_not_end_a_command_that_has_begun(store: Store) -> None:
    service = Service()
    gate, begun = asyncio.Event(), asyncio.Event()
    runs: list[int] = []

    @service.command
    async def slow() -> str:
        runs.append(1)
        begun.set()
        await gate.wait()
        return "done all the same"

    await asyncio.to_thread(store.counts)  # a store that is older than the first try knows of it
    async with testing.connect(service, policy=DEVELOPMENT, store=store) as client:
        with pytest.raises(CallTimeout):
            await client.command("slow", key="k", timeout=0.05)
        waiting = asyncio.ensure_future(client.command("slow", key="k"))
        await asyncio.wait_for(begun.wait(), 60)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert await client.query("listMethods"), "the server lives on"
        gate.set()
        assert await client.command("slow", key="k") == "done all the same"
    assert len(runs) == 1


@pytest.mark.clause("commands-20")
@in_memory
@pytest.mark.parametrize("is_async", [False, True])
async def test_the_deadline_of_a_command_ends_the_waiting_alone(
    store: Store, is_async: bool
) -> None:
    service = Service()
    runs: list[int] = []
    gate, gate_for_threads = asyncio.Event(), threading.Event()

    if is_async:

        @service.command(timeout=0.1)
        async def slow() -> str:
            runs.append(1)
            await gate.wait()
            return "late"
    else:

        @service.command(name="slow", timeout=0.1)
        def slow_in_thread() -> str:
            runs.append(1)
            gate_for_threads.wait(60)
            return "late"

    async with testing.connect(service, policy=DEVELOPMENT, store=store) as client:
        with pytest.raises(DeadlineExceeded):
            await client.command("slow", key="k")
        with pytest.raises((DeadlineExceeded, InProgress)):
            # A duplicate has no more time than the first; both say the same at the same moment.
            await client.command("slow", key="k")
        gate.set()
        gate_for_threads.set()
        while True:
            with contextlib.suppress(DeadlineExceeded, InProgress):
                assert await client.command("slow", key="k") == "late"
                break
    assert len(runs) == 1


@pytest.mark.clause("commands-25")
@in_memory
async def test_a_duplicate_waits_no_longer_than_the_ledger_says(store: Store) -> None:
    service = Service()
    gate, begun = asyncio.Event(), asyncio.Event()

    @service.command
    async def slow() -> str:
        begun.set()
        await gate.wait()
        return "at last"

    ledger = Ledger(store, wait=0.1)
    async with testing.connect(service, policy=DEVELOPMENT, store=ledger) as client:
        first = asyncio.ensure_future(client.command("slow", key="k"))
        await asyncio.wait_for(begun.wait(), 60)
        with pytest.raises(InProgress) as refused:
            await client.command("slow", key="k")
        assert refused.value.retryable and refused.value.data["retry_after_ms"] > 0
        gate.set()
        assert await first == await client.command("slow", key="k") == "at last"


# Transactional commands.


class Table:
    """A table of effects in the store's own database."""

    def __init__(self, kind: str, url: str) -> None:
        self.insert = f"INSERT INTO effects VALUES ({'?' if kind == 'sqlite' else '%s'})"
        self._connection: Any = (
            sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, timeout=60)
            if kind == "sqlite"
            else psycopg.connect(url, autocommit=True)
        )
        self._connection.execute("CREATE TABLE effects (value text)")

    def values(self) -> list[str]:
        return [value for (value,) in self._connection.execute("SELECT value FROM effects")]

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def table(kind: str, url: str) -> Iterator[Table]:
    made = Table(kind, url)
    yield made
    made.close()


@pytest.fixture
def mover(table: Table) -> Service:
    service = Service("bank")
    runs: list[str] = []

    @service.command
    def move(value: str, db: Transaction) -> Any:
        runs.append(value)
        db.execute(table.insert, (value,))
        if value == "decline":
            raise Declined(data={"runs": len(runs)})
        if value == "fail":
            raise ValueError("unforeseen")
        if value == "odd":
            return object()
        return len(runs)

    return service


@pytest.mark.clause("commands-10")
@transactional
def test_effects_and_record_commit_together(
    commands: Commands, mover: Service, table: Table
) -> None:
    line = Line(PRODUCTION, mover, ledger=commands)
    assert [result(ask(line, keyed("move", "a"))) for _ in range(2)] == [1, 1]
    assert refusal(ask(line, keyed("move", "b"))).code == -32012
    assert table.values() == ["a"]


@pytest.mark.clause("commands-15")
@transactional
def test_a_declared_error_undoes_the_effects_and_is_kept(
    commands: Commands, mover: Service, table: Table
) -> None:
    line = Line(PRODUCTION, mover, ledger=commands)
    answers = [ask(line, keyed("move", "decline", id=id)) for id in (1, 2)]
    assert member(answers[0]) == member(answers[1])
    assert refusal(answers[0]).code == 402
    assert table.values() == []


@pytest.mark.clause("commands-9", "commands-17")
@transactional
@pytest.mark.parametrize(("value", "code"), [("fail", -32603), ("odd", -32016)])
def test_what_is_rolled_back_leaves_nothing_behind(
    commands: Commands, mover: Service, table: Table, value: str, code: int
) -> None:
    line = Line(PRODUCTION, mover, ledger=commands)
    assert refusal(ask(line, keyed("move", value))).code == code
    assert table.values() == []
    # Nothing was stored: the key is as good as new, even for something else.
    assert result(ask(line, keyed("move", "a"))) == 2
    assert table.values() == ["a"]


@pytest.mark.clause("commands-4")
@transactional
def test_a_transactional_command_without_a_key_has_its_transaction_all_the_same(
    commands: Commands, mover: Service, table: Table
) -> None:
    line = Line(DEVELOPMENT, mover, ledger=commands)
    answers = [ask(line, request("bank.move", {"value": "a"}, id)) for id in (1, 2)]
    assert [result(answer) for answer in answers] == [1, 2]
    assert refusal(ask(line, request("bank.move", {"value": "fail"}))).code == -32603
    assert table.values() == ["a", "a"]


@pytest.mark.clause("commands-20", "cancelling-4")
@transactional
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_transactional_command_is_rolled_back_with_its_caller(
    store: Store, table: Table, is_async: bool
) -> None:
    service = Service()
    begun, gate = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    runs: list[int] = []

    if is_async:

        @service.command
        async def move(db: Transaction) -> int:
            runs.append(1)
            inserted = db.execute(table.insert, ("a",))
            if hasattr(inserted, "__await__"):
                await inserted
            begun.set()
            if len(runs) == 1:
                await gate.wait()
            return len(runs)
    else:

        @service.command(name="move")
        def move_in_thread(db: Transaction, ctx: Context) -> int:
            runs.append(1)
            db.execute(table.insert, ("a",))
            loop.call_soon_threadsafe(begun.set)
            while len(runs) == 1 and not ctx.cancelled:
                time.sleep(0.01)
            return len(runs)

    store.counts()  # as servers do at their start: it remembers from then on
    async with testing.connect(service, policy=DEVELOPMENT, store=store) as client:
        waiting = asyncio.ensure_future(client.command("move", key="k"))
        await asyncio.wait_for(begun.wait(), 60)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert await client.command("move", key="k", timeout=60) == 2
    assert table.values() == ["a"]


# Records end, and starts are refused.


@pytest.mark.clause("commands-27")
def test_a_record_that_has_expired_is_as_if_it_had_never_been(bank: Bank) -> None:
    now = 1000.0
    store = MemoryStore(clock=lambda: now)
    commands = Commands(lambda: Ledger(store))
    line = Line(PRODUCTION, bank.service, ledger=commands)
    assert result(ask(line, keyed("once", "count"))) == 1
    now += 24 * 3600 - 1
    assert result(ask(line, keyed("once", "count"))) == 1
    now += 2
    assert commands.outcome("local", "bank.once", "k") == {"state": "none"}
    assert commands.ledger.sweep() == 1
    assert result(ask(line, keyed("once", "count"))) == 2
    commands.close()


@pytest.mark.clause("commands-12")
@in_memory
def test_an_unknown_outcome_is_told_as_such(line: Line, bank: Bank, store: Store) -> None:
    class Died(BaseException):
        pass

    def dies(*_: object) -> bytes:
        raise Died

    failing = Ledger(store)
    command = _command_of(line, keyed("once", 1))
    with pytest.raises(Died):
        failing.run(command, dies)  # type: ignore[arg-type]
    failing.close()
    answer = ask(line, keyed("once", 1))
    assert refusal(answer)[:3] == (-32014, "Outcome unknown", "outcome-unknown")
    outcome = json.loads(ask(line, keyed("once", 1)))["error"]
    assert OutcomeUnknown.code == outcome["code"] and bank.effects == []


def _command_of(line: Line, body: bytes) -> Any:
    """Make the command that a request is to the ledger."""
    from duet_rpc.ledger.commands import _command
    from duet_rpc.wire.messages import Request

    message = json.loads(body)
    params = json.dumps(message["params"]).encode()
    asked = Request(b"1", message["method"], params)
    return _command(line.dispatcher.prepare(asked, line.host.peer, line.origin))


def a_service(make: Callable[[Service], object]) -> Service:
    service = Service()
    make(service)
    return service


def plain(service: Service) -> None:
    @service.command
    def pay() -> None: ...


def with_transaction(service: Service) -> None:
    @service.command
    def move(db: Transaction) -> None: ...


@pytest.mark.clause("policies-6")
@pytest.mark.parametrize("store", [None, "memory:"])
def test_production_refuses_to_start_without_a_durable_store(store: str | None) -> None:
    with pytest.raises(UsageError, match="durable store"):
        Server(a_service(plain), policy=PRODUCTION, store=store)


@pytest.mark.clause("stores-2")
@pytest.mark.parametrize("kind", ["valkey"], indirect=True)
def test_redis_refuses_transactional_commands_at_start(url: str) -> None:
    with pytest.raises(UsageError, match="cannot run transactional commands"):
        Server(a_service(with_transaction), policy=DEVELOPMENT, store=url)
    Server(a_service(plain), policy=PRODUCTION, store=url).close()


@pytest.mark.clause("stores-2")
@pytest.mark.parametrize("store", [None, "memory:"])
def test_without_a_database_transactional_commands_are_refused_at_start(store: str | None) -> None:
    with pytest.raises(UsageError, match="transactional"):
        Server(a_service(with_transaction), policy=DEVELOPMENT, store=store)


@pytest.mark.clause("policies-6")
@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_a_ledger_with_times_of_its_own_is_a_store(url: str) -> None:
    ledger = Ledger(open_store(url), lease=1.0)
    server = Server(a_service(with_transaction), policy=PRODUCTION, store=ledger)
    assert server.commands.ledger is ledger
    server.close()


@pytest.mark.clause("commands-7")
@in_memory
async def test_a_key_that_is_running_with_other_params_is_refused_at_once(store: Store) -> None:
    service = Service()
    gate, begun = asyncio.Event(), asyncio.Event()

    @service.command
    async def slow(value: int) -> int:
        begun.set()
        await gate.wait()
        return value

    async with testing.connect(service, policy=DEVELOPMENT, store=store) as client:
        first = asyncio.ensure_future(client.command("slow", {"value": 1}, key="k"))
        await asyncio.wait_for(begun.wait(), 60)
        with pytest.raises(KeyReused):
            await client.command("slow", {"value": 2}, key="k")
        gate.set()
        assert await first == 1


# Without a ledger.


@pytest.mark.clause("commands-4")
def test_outside_production_a_key_is_optional() -> None:
    assert result(exchange(DEVELOPMENT, specimen(), request("pay", {"amount": 3}))[0]) == 3


@pytest.mark.clause("commands-5")
@pytest.mark.parametrize("policy", [DEVELOPMENT, PRODUCTION], ids=lambda policy: policy.name)
def test_the_key_stands_in_params_and_is_no_parameter_of_the_handler(policy: Policy) -> None:
    answer = exchange(
        policy, specimen(), request("pay", {"amount": 3, "idempotency_key": "order-17"})
    )[0]
    assert result(answer) == 3
