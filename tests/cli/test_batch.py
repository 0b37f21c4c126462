"""`duet-rpc batch`: many calls from a file."""

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.cli.servers import OnSocket
from tests.cli.shell import Terminal, on_terminal, run
from tests.daemon.process import eventually

pytestmark = pytest.mark.timeout(180)

CALLS: list[dict[str, Any]] = [
    {"method": "add", "params": {"a": 1, "b": 2}},
    {"method": "get", "params": {"id": 4}, "id": "x"},
    {"method": "add", "params": [4, 5]},
    {"method": "echo", "notify": True},
    {"method": "key_of", "key": "k1"},
    {"method": "key_of"},
    {"method": "echo", "params": None, "id": 7, "jsonrpc": "2.0"},
]


def lines(calls: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(call) + "\n" for call in calls)


@pytest.mark.parametrize("form", ["array", "lines"])
@pytest.mark.parametrize("server", ["tcp", "pipes"])
def test_answers_come_in_the_order_of_the_file(
    form: str, server: str, on_tcp: OnSocket, place: Path
) -> None:
    text = json.dumps(CALLS, indent=1) if form == "array" else "\n" + lines(CALLS)
    (place / "calls").write_text(text)
    # The server on pipes has the editor's policy, which takes no batches.
    at = [on_tcp.address, "calls"] if server == "tcp" else ["calls", "--", "python", "sums.py"]
    ran = run("batch", *at, cwd=place)
    assert ran.code == 1 and "1 of 7 calls failed" in ran.err, ran
    first, second, third, fourth, fifth, sixth, seventh = ran.jsons
    assert first == {"method": "add", "result": 3}
    error = {"code": 404, "message": "Note not found", "data": {"id": 4}}
    assert second == {"id": "x", "method": "get", "error": error, "retryable": False}
    assert third == {"method": "add", "result": 9}
    assert fourth == {"method": "echo"}
    assert fifth == {"method": "key_of", "result": "k1"}
    assert re.fullmatch("[0-9a-f]{32}", sixth["result"]), "commands are given a key"
    assert seventh == {"id": 7, "method": "echo", "result": None}


def test_one_by_one_each_call_waits_for_the_one_before_it(place: Path) -> None:
    (place / "session.py").write_text(SESSION)
    calls: list[dict[str, Any]] = [
        {"method": "initialize", "params": {}},
        {"method": "initialized", "notify": True},
        {"method": "shutdown"},
    ]
    command = ["-", "--", "python", "session.py"]
    ran = run("batch", "--one-by-one", *command, cwd=place, stdin=lines(calls))
    assert ran.code == 0, ran
    assert ran.jsons == [
        {"method": "initialize", "result": ["initialize"]},
        {"method": "initialized"},
        {"method": "shutdown", "result": ["initialize", "initialized", "shutdown"]},
    ]


SESSION = """
import json, sys
seen = []
while header := sys.stdin.buffer.readline():
    sys.stdin.buffer.readline()
    message = json.loads(sys.stdin.buffer.read(int(header.split(b":")[1])))
    if not isinstance(message, dict):
        continue  # as many servers do with an array
    seen.append(message["method"])
    if "id" in message:
        answer = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": seen})
        sys.stdout.write(f"Content-Length: {len(answer)}\\r\\n\\r\\n{answer}")
        sys.stdout.flush()
"""


def test_a_command_whose_empty_params_are_laid_out(on_tcp: OnSocket) -> None:
    calls = '{"method": "key_of", "params": { }, "key": "k"}\n{"method": "add", "params": [4]}\n'
    ran = run("batch", on_tcp.address, "-", stdin=calls)
    assert ran.jsons == [{"method": "key_of", "result": "k"}, {"method": "add", "result": 4}], ran


def test_calls_from_stdin(on_tcp: OnSocket) -> None:
    ran = run("batch", on_tcp.address, "-", stdin='{"method": "add", "params": {"a": 1}}')
    assert (ran.code, ran.out, ran.err) == (0, '{"method":"add","result":1}\n', ""), ran
    ran = run("batch", on_tcp.address, "-", stdin='{\n "method": "add",\n "params": [1]\n}\n')
    assert ran.jsons == [{"method": "add", "result": 1}], ran
    ran = run("batch", on_tcp.address, "-", stdin="[]")
    assert (ran.code, ran.out, ran.err) == (0, "", ""), ran


def test_calls_that_hold_half_a_character(on_tcp: OnSocket) -> None:
    calls = [{"method": "echo", "params": {"value": "\ud83d"}, "id": "\ude00"}]
    for text in (json.dumps(calls), lines(calls)):
        ran = run("batch", on_tcp.address, "-", stdin=text)
        assert ran.out == '{"id":"\\ude00","method":"echo","result":"\\ud83d"}\n', ran


def test_more_calls_than_any_server_takes_at_once(on_tcp: OnSocket) -> None:
    calls: list[dict[str, Any]] = [{"method": "add", "params": [n, 1]} for n in range(450)]
    ran = run("batch", on_tcp.address, "-", stdin=lines(calls))
    assert ran.code == 0, ran
    assert [answer["result"] for answer in ran.jsons] == list(range(1, 451))


def test_a_person_sees_a_table(on_tcp: OnSocket, place: Path) -> None:
    (place / "calls").write_text(lines([*CALLS[:2], *CALLS[3:5]]))
    ran = on_terminal("batch", on_tcp.address, "calls", "--no-color", cwd=place)
    assert ran.code == 1, ran
    assert ran.out.splitlines() == [
        "1  add     3",
        '2  get     error 404: Note not found {"id":4}',
        "3  echo    sent",
        '4  key_of  "k1"',
        "duet-rpc: 1 of 4 calls failed",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there are no calls"),
        ("{", "line 1: "),
        ('{"method": "add"}\nnonsense\n', "line 2: "),
        ('[{"method": "add"}, 5]', "the file: Expected `object`, got `int`"),
        ('[{"params": []}]', "missing required field `method`"),
        ('{"method": 5}', "line 1: "),
        ('{"method": "add", "parms": []}', "unknown field `parms`"),
        ('{"method": "add", "params": 5}', "params are a list or an object"),
        ('{"method": "save", "params": [1], "key": "k"}', "needs named params"),
        (
            '{"method": "save", "params": {"idempotency_key": "a"}, "key": "b"}',
            "two idempotency keys, by key= or in its params: 'b' and 'a'",
        ),
        ('{"method": "save", "since": "5m"}', "give its"),
        ('{"method": "save", "key": "k", "since": "soon"}', "an age such as 90s"),
        ('{"method": "save", "key": "k", "since": "9999-01-01T00:00Z"}', "call 1: --since"),
        (b"\xff\xfe", "line 1: "),
    ],
)
def test_a_file_that_cannot_be_understood_is_not_sent(
    text: str | bytes, said: str, on_tcp: OnSocket
) -> None:
    ran = run("batch", on_tcp.address, "-", stdin=text)
    assert (ran.code, ran.out) == (2, ""), ran
    assert said in " ".join(ran.err.split()), ran


def test_words_that_are_missing_or_too_many(on_tcp: OnSocket) -> None:
    for words in ([], ["a", "b"]):
        ran = run("batch", on_tcp.address, *words)
        assert (ran.code, ran.out) == (2, "") and "one FILE" in ran.err, ran
    ran = run("batch", on_tcp.address, "gone")
    assert ran.code == 2 and "cannot read gone: No such file" in ran.err, ran


def test_nobody_is_there(place: Path) -> None:
    ran = run("batch", "unix:nowhere", "-", stdin=lines(CALLS), cwd=place)
    assert (ran.code, ran.out) == (3, ""), ran
    assert "Nothing was called." in ran.err and "7 of 7 calls not made" in ran.err, ran


def test_a_server_that_dies_in_the_middle(place: Path) -> None:
    calls: list[dict[str, Any]] = [
        {"method": "add", "params": [1]},
        {"method": "die"},
        {"method": "add", "params": [2]},
    ]
    ran = run("batch", "-", "--", "python", "sums.py", stdin=lines(calls), cwd=place)
    assert ran.code == 3, ran
    first, second, third = ran.jsons
    assert first["method"] == "add" and third["failure"] == "connection-lost"
    assert second["failure"] == "connection-lost" and not second["retryable"], ran
    assert datetime.fromisoformat(second["first_sent"]).tzinfo is not None, ran
    assert len(second["idempotency_key"]) == 32


def test_the_time_is_over(on_tcp: OnSocket) -> None:
    calls: list[dict[str, Any]] = [
        {"method": "add", "params": [1]},
        {"method": "wait_for", "params": {"path": "never"}, "key": "late"},
    ]
    ran = run("batch", on_tcp.address, "-", "--timeout", "5", stdin=lines(calls))
    assert ran.code == 4, ran
    *_, late = ran.jsons
    assert late["failure"] == "timeout" and late["idempotency_key"] == "late", ran


def test_ctrl_c_tells_what_was_sent_and_its_keys(on_unix: OnSocket, tmp_path: Path) -> None:
    calls: list[dict[str, Any]] = [
        {"method": "wait_for", "params": {"path": "never"}, "key": "mine"},
        {"method": "key_of"},
    ]
    file = tmp_path / "calls"
    file.write_text(lines(calls))
    log = on_unix.directory / "log"
    with Terminal("batch", on_unix.address, file, "--no-color") as terminal:
        eventually(lambda: "waiting" in log.read_text(), "the first call runs")
        terminal.type("\x03")
        ran = terminal.end()
    assert ran.code == 130, ran
    assert "Nothing was called" not in ran.out and "not made" not in ran.out, ran
    assert "2 of 2 calls not answered: whether they happened is not known" in ran.out, ran
    told = re.search(r'wait_for can be sent again with ("key": "mine", "since": "[^"]+")', ran.out)
    assert told, ran
    assert datetime.fromisoformat(json.loads(f"{{{told[1]}}}")["since"]).tzinfo is not None, ran
    assert re.search(r'key_of can be sent again with "key": "[0-9a-f]{32}", "since"', ran.out), ran


def test_a_key_among_the_params_is_the_key(on_unix: OnSocket) -> None:
    calls = [{"method": "key_of", "params": {"idempotency_key": "mine"}}]
    ran = run("batch", on_unix.address, "-", stdin=lines(calls))
    assert (ran.code, ran.jsons[0]["result"]) == (0, "mine"), ran
