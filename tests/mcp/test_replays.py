"""The last round of a question, sent a hundred times, by a host that repeats itself or by others.

Real servers, spoken to in lines. What was answered once is answered in the same bytes, together and
one after the other, before and after the process was killed, and there is one effect.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import UNSET, Raw, Struct, UnsetType

from tests.mcp.line import MODERN, PREFIX
from tests.mcp.test_dialogue import HANDSHAKE, accept

OFTEN = 100
CAN: dict[str, Any] = {"elicitation": {}}
META = {PREFIX + "protocolVersion": MODERN, PREFIX + "clientCapabilities": CAN}
KINDS = ["book_move", "book_count"]
"""A transactional command, and one that may run again."""
FILE = """
import sqlite3
from dataclasses import dataclass
from duet_rpc import Context, Service, Transaction
from duet_rpc.mcp import Mcp

@dataclass
class Who:
    name: str

book, face = Service("book"), Mcp(secret={secret!r})

@book.command
def move(cents: int, ctx: Context, db: Transaction) -> str:
    who = ctx.elicit(Who, "Who moves it?", key="who").result()
    db.execute("INSERT INTO effects VALUES (?, ?)", (who.name, cents))
    return f"{{cents}} by {{who.name}}"

@book.command(retry_safe=True)
def count(cents: int, ctx: Context) -> str:
    who = ctx.elicit(Who, "Who counts it?", key="who").result()
    with open({log!r}, "a") as log:
        log.write(f"{{who.name}} {{cents}}\\n")
    return f"{{cents}} by {{who.name}}"
"""


class Line(Struct):
    """One message, its result as it came."""

    id: Any = None
    method: str = ""
    result: Raw | UnsetType = UNSET
    error: dict[str, Any] | UnsetType = UNSET


class Desk:
    """A folder with a store, and one process after the other that serves it."""

    def __init__(self, folder: Path, secret: str = "shared") -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.secret = secret

    def start(self, revision: str) -> None:
        """Start a server; the one before has been killed."""
        text = FILE.format(secret=self.secret, log=str(self._folder / "log"))
        (self._folder / "book.py").write_text(text)
        command = [sys.executable, "-m", "duet_rpc", "mcp", str(self._folder / "book.py")]
        self._process = subprocess.Popen(
            [*command, "--store", f"sqlite:///{self._folder / 'book.db'}", "--log-level", "error"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        if revision != MODERN:
            opening = {"protocolVersion": revision, "capabilities": CAN}
            self.say(id="hello", method="initialize", params=opening)
            assert self.read().id == "hello"

    def kill(self) -> None:
        """End the server in the middle of whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def say(self, *, times: int = 1, **message: Any) -> None:
        """Send a message, or the same one several times in one write."""
        assert self._process is not None and self._process.stdin is not None
        line = json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
        self._process.stdin.write(line * times)
        self._process.stdin.flush()

    def read(self) -> Line:
        """Read the next message."""
        assert self._process is not None and self._process.stdout is not None
        return msgspec.json.decode(self._process.stdout.readline(), type=Line)

    def ask(self, params: dict[str, Any], id: Any) -> bytes:
        """Call a tool, and nothing beside."""
        self.say(id=id, method="tools/call", params=params)
        return self.result(self.read(), id)

    @staticmethod
    def result(line: Line, id: Any) -> bytes:
        """Give the bytes of a result."""
        assert line.id == id and line.result is not UNSET, line
        return bytes(line.result)

    def effects(self) -> list[tuple[str, int]]:
        """Tell what was done, by commands of both kinds."""
        import sqlite3

        connection = sqlite3.connect(self._folder / "book.db")
        found = connection.execute("SELECT name, cents FROM effects").fetchall()
        connection.close()
        log = self._folder / "log"
        lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
        return found + [(name, int(cents)) for name, cents in lines]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    import sqlite3

    connection = sqlite3.connect(tmp_path / "book.db")
    connection.execute("CREATE TABLE effects (name text, cents integer)")
    connection.close()
    desk = Desk(tmp_path)
    yield desk
    desk.kill()


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"name": tool, "arguments": {"cents": 5, **arguments}}


@pytest.mark.clause("asking-4")
@pytest.mark.parametrize("key", [{}, {"idempotency_key": "k"}], ids=["no key", "a key"])
@pytest.mark.parametrize("tool", KINDS)
def test_the_last_round_with_a_state(tool: str, key: dict[str, str], desk: Desk) -> None:
    """The key of a command travels in its state, also where the caller has given none."""
    desk.start(MODERN)
    params = {**call(tool, **key), "_meta": META}
    first = msgspec.json.decode(desk.ask(params, 0))
    assert first["resultType"] == "input_required" and not desk.effects()
    last = {**params, "requestState": first["requestState"]}
    last["inputResponses"] = {"who": accept(name="Ada")}
    desk.kill()  # the state is good for whoever has the same secret

    desk.start(MODERN)
    for id in range(OFTEN):
        desk.say(id=id, method="tools/call", params=last)
    lines = [desk.read() for _ in range(OFTEN)]
    together = [desk.result(line, line.id) for line in lines]
    assert sorted(line.id for line in lines) == list(range(OFTEN))
    one_by_one = [desk.ask(last, id) for id in range(OFTEN)]
    desk.kill()
    desk.start(MODERN)
    later = [desk.ask(last, id) for id in range(OFTEN)]
    assert desk.effects() == [("Ada", 5)]
    assert len({*together, *one_by_one, *later}) == 1
    assert b"5 by Ada" in later[0]

    desk.kill()
    desk.secret = "another"
    desk.start(MODERN)
    desk.say(id=1, method="tools/call", params=last)
    refusal = desk.read()
    assert refusal.error is not UNSET and refusal.error["code"] == -32602
    assert len(desk.effects()) == 1


@pytest.mark.clause("asking-4")
@pytest.mark.parametrize("tool", KINDS)
def test_the_answer_of_the_user_where_there_is_a_handshake(tool: str, desk: Desk) -> None:
    """There the last round is the client's answer; and a host may repeat the whole call."""
    desk.start(HANDSHAKE)
    params = call(tool, idempotency_key="k")
    desk.say(id="first", method="tools/call", params=params)
    question = desk.read()
    assert question.method == "elicitation/create" and not desk.effects()
    desk.say(id=question.id, result=accept(name="Ada"), times=OFTEN)
    first = desk.result(desk.read(), "first")
    assert desk.effects() == [("Ada", 5)]

    for id in range(OFTEN):
        desk.say(id=id, method="tools/call", params=params)
    lines = [desk.read() for _ in range(OFTEN)]
    together = [desk.result(line, line.id) for line in lines]
    desk.say(id=question.id, result=accept(name="Bob"), times=OFTEN)  # it is known no more
    one_by_one = [desk.ask(params, id) for id in range(OFTEN)]
    desk.kill()
    desk.start(HANDSHAKE)
    desk.say(id=question.id, result=accept(name="Bob"), times=OFTEN)
    later = [desk.ask(params, id) for id in range(OFTEN)]
    assert desk.effects() == [("Ada", 5)]
    assert {*together, *one_by_one, *later} == {first}


@pytest.mark.clause("asking-1", "asking-4")
@pytest.mark.parametrize("tool", KINDS)
def test_first_rounds_at_once_are_each_asked(tool: str, desk: Desk) -> None:
    desk.start(MODERN)
    params = {**call(tool, idempotency_key="k"), "_meta": META}
    for id in range(OFTEN):
        desk.say(id=id, method="tools/call", params=params)
    lines = [desk.read() for _ in range(OFTEN)]
    firsts = [msgspec.json.decode(desk.result(line, line.id)) for line in lines]
    assert {first["resultType"] for first in firsts} == {"input_required"}
    lasts = [{**params, "requestState": first["requestState"]} for first in firsts]
    for id, last in enumerate(lasts):
        last["inputResponses"] = {"who": accept(name=f"user-{id}")}
        desk.say(id=id, method="tools/call", params=last)
    lines = [desk.read() for _ in range(OFTEN)]
    assert len({desk.result(line, line.id) for line in lines}) == 1
    assert len(desk.effects()) == 1


@pytest.mark.clause("asking-4")
@pytest.mark.parametrize("tool", KINDS)
def test_calls_that_all_wait_for_their_user(tool: str, desk: Desk) -> None:
    """Each may ask, for none of them has run yet; the first answer decides for all."""
    desk.start(HANDSHAKE)
    params = call(tool, idempotency_key="k")
    for id in range(OFTEN):
        desk.say(id=f"call-{id}", method="tools/call", params=params)
    results: dict[Any, bytes] = {}
    asked = 0
    while len(results) < OFTEN:
        line = desk.read()
        if line.method:
            asked += 1
            desk.say(id=line.id, result=accept(name=f"user-{asked}"))
        else:
            results[line.id] = desk.result(line, line.id)
    assert asked >= 1
    assert len(desk.effects()) == 1
    assert len(set(results.values())) == 1
