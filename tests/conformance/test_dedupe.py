"""Commands whose arguments are their key: the same call, again within the window, does nothing."""

import asyncio
import contextlib
import json
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duet_rpc import Context, RpcError, Server, Service, UsageError, testing
from duet_rpc.ledger import Ledger, Store
from duet_rpc.ledger.commands import Commands
from duet_rpc.ledger.fingerprint import fingerprint
from duet_rpc.ledger.states import Claim, Command, Promise
from duet_rpc.policy import AGENT, PRODUCTION
from duet_rpc.server.description import describe, write_method
from duet_rpc.server.openrpc import write_openrpc
from duet_rpc.wire.dialect import LSP
from tests.helpers import Line, notification, refusal, request, result
from tests.ledger.conftest import STORES

pytestmark = pytest.mark.timeout(120)

every_store = pytest.mark.parametrize("kind", STORES, indirect=True)
in_memory = pytest.mark.parametrize("kind", ["memory"], indirect=True)
SHORT = 0.05


class Declined(RpcError):
    code, message = 402, "Declined"


class Desk:
    """Commands without keys, and what they did."""

    def __init__(self) -> None:
        self.effects: list[Any] = []
        self.keys: list[str | None] = []
        self.service = service = Service("desk", errors=Declined)

        def act(ctx: Context, value: Any = None) -> int:
            self.effects.append(value)
            self.keys.append(ctx.idempotency_key)
            if value == "decline":
                raise Declined()
            return len(self.effects)

        service.command(name="desk.once", dedupe="arguments")(act)
        service.command(name="desk.safe", dedupe="arguments", retry_safe=True)(act)
        service.command(name="desk.soon", dedupe="arguments", dedupe_window=SHORT)(act)
        service.command(name="desk.plain")(act)


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def commands(store: Store) -> Iterator[Commands]:
    made = Commands(lambda: Ledger(store, wait=30.0))
    yield made
    made.close()


@pytest.fixture
def line(desk: Desk, commands: Commands) -> Line:
    return Line(PRODUCTION, desk.service, ledger=commands)


def ask(line: Line, method: str, params: Any = None, id: Any = 1) -> bytes:
    (answer,) = line.send(request(f"desk.{method}", {} if params is None else params, id))
    return answer


def pass_time(seconds: float) -> None:
    """Let the clock of a store go on, which no test can set."""
    threading.Event().wait(seconds)


@pytest.mark.clause("dedupe-1")
@every_store
@pytest.mark.parametrize("method", ["once", "safe"])
def test_the_same_call_has_one_effect_and_one_answer(line: Line, desk: Desk, method: str) -> None:
    answers = [ask(line, method, {"value": {"b": 1, "a": 2}}, id) for id in (1, 2)]
    assert [result(answer) for answer in answers] == [1, 1]
    spelled = b'{"jsonrpc":"2.0","id":3,"method":"desk.%b","params":{"value": {"a":2, "b":1}}}'
    (again,) = line.send(spelled % method.encode())
    assert result(again) == 1 and len(desk.effects) == 1
    assert result(ask(line, method, {"value": {"b": 1, "a": 3}})) == 2
    assert result(ask(line, method)) == 3 and result(ask(line, method)) == 3


@pytest.mark.clause("dedupe-1")
@in_memory
def test_a_declared_error_is_the_same_answer(line: Line, desk: Desk) -> None:
    codes = [refusal(ask(line, "once", {"value": "decline"})).code for _ in range(2)]
    assert codes == [402, 402] and len(desk.effects) == 1


@pytest.mark.clause("dedupe-2")
@every_store
def test_after_the_window_it_is_a_new_command(line: Line, desk: Desk) -> None:
    assert result(ask(line, "soon")) == 1
    pass_time(2 * SHORT)
    assert result(ask(line, "soon")) == 2 and len(desk.effects) == 2


@pytest.mark.clause("dedupe-2")
@in_memory
def test_a_window_may_be_longer_than_other_records_live(desk: Desk, store: Store) -> None:
    commands = Commands(lambda: Ledger(store, ttl=SHORT))
    with contextlib.closing(commands):
        line = Line(AGENT, desk.service, ledger=commands)
        assert result(ask(line, "once")) == 1
        pass_time(2 * SHORT)
        assert result(ask(line, "once")) == 1


@pytest.mark.clause("dedupe-2")
@every_store
def test_it_is_known_to_every_process_and_after_a_restart(desk: Desk, store: Store) -> None:
    for _ in range(2):
        with contextlib.closing(Commands(lambda: Ledger(store))) as commands:
            line = Line(PRODUCTION, desk.service, ledger=commands)
            assert result(ask(line, "once", {"value": 7})) == 1


@pytest.mark.clause("dedupe-3")
@every_store
def test_an_unknown_outcome_protects_after_the_window(
    line: Line, desk: Desk, store: Store, commands: Commands
) -> None:
    digest = fingerprint("desk.soon", b"{}")
    key = f"arguments-{digest.hex()}"
    lost = Command("local", "desk.soon", key, digest, Promise.AT_MOST_ONCE)
    store.commit([Claim(lost, "a process that died", 0.0, 100.0)])
    pass_time(2 * SHORT)
    assert refusal(ask(line, "soon")).reason == "outcome-unknown"
    assert result(ask(line, "soon", {"idempotency_key": "mine"})) == 1
    assert commands.outcome("local", "desk.soon", key) == {"state": "unknown"}


@pytest.mark.clause("dedupe-4")
@in_memory
def test_a_call_with_a_key_keeps_it(line: Line, desk: Desk) -> None:
    keyed = {"value": 1, "idempotency_key": "k"}
    in_meta = {"value": 1, "_meta": {"idempotency_key": "other"}}
    answers = [ask(line, "once", each) for each in ({"value": 1}, keyed, keyed, in_meta)]
    assert [result(answer) for answer in answers] == [1, 2, 2, 3]
    made, *given = desk.keys
    assert given == ["k", "other"] and made is not None and made.startswith("arguments-")
    assert result(ask(line, "once", {"value": 1, "idempotency_key": made})) == 1
    assert refusal(ask(line, "once", {"value": 2, "idempotency_key": made})).code == -32012


@pytest.mark.clause("dedupe-4")
@in_memory
def test_the_made_key_has_the_window_too(line: Line, desk: Desk) -> None:
    ask(line, "soon")
    pass_time(2 * SHORT)
    assert result(ask(line, "soon", {"idempotency_key": desk.keys[0]})) == 2


@pytest.mark.clause("dedupe-5")
@in_memory
def test_where_keys_are_required_these_commands_have_one(line: Line, desk: Desk) -> None:
    assert result(ask(line, "once")) == 1
    assert refusal(ask(line, "plain")).reason == "idempotency-key-missing"
    assert refusal(ask(line, "once", {"idempotency_key": None})).reason == (
        "idempotency-key-invalid"
    )


@pytest.mark.clause("dedupe-6")
@in_memory
def test_a_handler_that_requires_a_key_is_given_it(commands: Commands) -> None:
    service = Service()

    @service.command(dedupe="arguments")
    def act(idempotency_key: str) -> str:
        return idempotency_key

    line = Line(AGENT, service, ledger=commands)
    (answer,) = line.send(request("act"))
    assert result(answer).startswith("arguments-")


@pytest.mark.clause("dedupe-6")
@in_memory
def test_items_of_a_batch_and_notifications_count_alike(desk: Desk, commands: Commands) -> None:
    line = Line(AGENT, desk.service, ledger=commands)
    items = [request("desk.once", {"value": 1}, id) for id in (1, 2)]
    (answers,) = line.send(b"[%b,%b]" % (items[0], items[1]))
    assert [each["result"] for each in json.loads(answers)] == [1, 1]
    assert line.send(notification("desk.once", {"value": 1})) == []
    assert line.send(notification("desk.once", {"value": 2})) == []
    assert result(ask(line, "once", {"value": 2})) == 2 and desk.effects == [1, 2]


@pytest.mark.clause("dedupe-6")
@in_memory
def test_a_retry_that_tells_its_age_is_not_run_where_memory_is_younger(
    line: Line, desk: Desk
) -> None:
    old = {"_meta": {"retry": {"attempt": 2, "age_ms": 3_600_000}}}
    assert refusal(ask(line, "once", old)).reason == "outcome-unknown"
    assert result(ask(line, "safe", old)) == 1


@pytest.mark.clause("dedupe-6")
@in_memory
@pytest.mark.carriers("stream")
def test_what_an_editor_sends_beside_params_does_not_count(desk: Desk, commands: Commands) -> None:
    line = Line(AGENT, desk.service, ledger=commands, dialect=LSP)
    sent = [{"value": 1, "workDoneToken": token} for token in (1, 2)]
    assert [result(ask(line, "once", each)) for each in sent] == [1, 1]


@pytest.mark.clause("dedupe-2")
async def test_calls_at_the_same_time_are_one_command() -> None:
    service, runs, begun, go = Service(), [], asyncio.Event(), asyncio.Event()

    @service.command(dedupe="arguments")
    async def act(value: int) -> int:
        runs.append(value)
        begun.set()
        await go.wait()
        return len(runs)

    async with testing.connect(service) as client:
        calls = [client.start("act", {"value": 1}) for _ in range(3)]
        await begun.wait()
        go.set()
        assert [await call for call in calls] == [1, 1, 1]


@pytest.mark.clause("dedupe-1")
async def test_a_transactional_command_has_its_effect_once(tmp_path: Path) -> None:
    path = tmp_path / "bank.db"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("create table paid (cents integer)")
    service = Service()

    def pay(cents: int, db: sqlite3.Connection) -> int:
        db.execute("insert into paid values (?)", (cents,))
        return int(db.execute("select count(*) from paid").fetchone()[0])

    service.command(name="pay", dedupe="arguments")(pay)
    service.command(name="pay_soon", dedupe="arguments", dedupe_window=SHORT)(pay)
    async with testing.connect(service, policy=PRODUCTION, store=f"sqlite:///{path}") as client:
        first = await client.call("pay", {"cents": 5})
        again = await client.call("pay", {"cents": 5})
        assert (first, again) == (1, 1)
        assert await client.call("pay_soon", {"cents": 5}) == 2
        pass_time(2 * SHORT)
        assert await client.call("pay_soon", {"cents": 5}) == 3


@pytest.mark.clause("dedupe-7")
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"dedupe": "params"}, "dedupe is 'params'"),
        ({"dedupe": True}, "dedupe is True"),
        ({"dedupe_window": 5}, "dedupe_window is 5"),
        ({"dedupe": "arguments", "dedupe_window": 0}, "dedupe_window is 0"),
        ({"dedupe": "arguments", "dedupe_window": -1.0}, "dedupe_window is -1.0"),
        ({"dedupe": "arguments", "dedupe_window": True}, "dedupe_window is True"),
        ({"dedupe": "arguments", "dedupe_window": float("inf")}, "dedupe_window is inf"),
        ({"dedupe": "arguments", "dedupe_window": float("nan")}, "dedupe_window is nan"),
        ({"dedupe": "arguments", "dedupe_window": "10 min"}, "dedupe_window is '10 min'"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(options: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError) as raised:
        Service().command(**options)(lambda: None)
    assert str(raised.value).startswith(named + "; give ")


@pytest.mark.clause("dedupe-7")
def test_its_description_tells_it(desk: Desk) -> None:
    described = {method.name: method for method in describe(desk.service).methods}
    written = write_method(described["desk.soon"])
    assert (written["dedupe"], written["dedupe_window"]) == ("arguments", SHORT)
    assert "dedupe" not in write_method(described["desk.plain"])
    document = {each["name"]: each for each in write_openrpc(describe(desk.service))["methods"]}
    assert document["desk.once"]["x-dedupe"] == {"by": "arguments", "window": 600.0}
    assert "x-dedupe" not in document["desk.plain"]


@pytest.mark.clause("dedupe-5")
def test_a_server_that_requires_keys_still_wants_a_durable_store(desk: Desk) -> None:
    with pytest.raises(UsageError, match="store"):
        Server(desk.service, policy=PRODUCTION)
