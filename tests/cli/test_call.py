"""`duet-rpc call`, as people and scripts use it."""

import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from duet_rpc.cli.failures import Attempt, advise, suggest_methods
from duet_rpc.errors import InProgress
from duet_rpc.ledger import SqliteStore
from duet_rpc.ledger.fingerprint import fingerprint
from tests.cli.records import claim
from tests.cli.servers import OnSocket
from tests.cli.shell import COMMAND, PATIENCE, Terminal, on_terminal, run, shell_environment
from tests.daemon.process import eventually

pytestmark = pytest.mark.timeout(180)

SUMS = ("--", "python", "sums.py")


# Params.


@pytest.mark.parametrize(
    ("item", "value"),
    [
        ("value=text", '"text"'),
        ("value=", '""'),
        ("value=a=b:=c", '"a=b:=c"'),
        ("value=5", '"5"'),
        ("value:=5", "5"),
        ("value:= [1, {}] ", "[1,{}]"),
        ("value:=null", "null"),
        ('value:="a:=b"', '"a:=b"'),
        ("value=ä€😀", '"ä€😀"'),
        (r"value=\@ada", '"@ada"'),
        (r'value:={"\ud83d":["\uD83D",1.0]}', r'{"\ud83d":["\ud83d",1.0]}'),
        ("value=@note.txt", '"two\\nlines\\n"'),
        ("value:=@note.json", '{"a":[1]}'),
        # A number of thirty digits passes through unchanged.
        ("value:=123456789012345678901234567890", "123456789012345678901234567890"),
    ],
)
def test_a_param_arrives_as_it_was_given(item: str, value: str, on_tcp: OnSocket) -> None:
    (on_tcp.directory / "note.txt").write_text("two\nlines\n")
    (on_tcp.directory / "note.json").write_text('{\n "a": [1]\n}\n')
    ran = run("call", on_tcp.address, "echo", item, cwd=on_tcp.directory)
    assert (ran.code, ran.out, ran.err) == (0, value + "\n", "")


def test_the_spelling_of_numbers_is_sent_and_shown_unchanged(place: Path) -> None:
    words = ("call", "say", "value:=1.50e+2", "--framing", "ndjson")
    ran = run(*words, "--", "python", "strange.py", "repeats", cwd=place)
    assert ran.code == 0, ran
    assert '"value":1.50e+2' in (place / "heard").read_text()


@pytest.mark.parametrize(
    ("words", "stdin", "out"),
    [
        (["add", "--json", "-"], '{"a": 1, "b": 2}', "3"),
        (["add", "--json", "-"], "[4, 5]", "9"),
        (["add", "--json", "params.json"], "", "30"),
        (["add", "--json", "params.json", "b:=1"], "", "11"),
        (["add", "--json", '{"a": 7}'], "", "7"),
        (["total", "--json", "[1, 2, 3.5]"], "", "6.5"),
        (["echo", "value=@-"], "from stdin", '"from stdin"'),
        (["echo", "value:=@-"], "[true]", "[true]"),
        (["echo"], "nobody reads this", "null"),
        (["add", "a:=1", "--query"], "", "1"),
    ],
)
def test_params_from_files_and_stdin(
    words: list[str], stdin: str, out: str, on_tcp: OnSocket
) -> None:
    (on_tcp.directory / "params.json").write_text('{"a": 10, "b": 20}\n')
    ran = run("call", on_tcp.address, *words, stdin=stdin, cwd=on_tcp.directory)
    assert (ran.code, ran.out, ran.err) == (0, f"{out}\n", "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["add", "5"], "'5' is no parameter: write name=text"),
        (["add", ":=5"], "has no name"),
        (["add", "a:=x"], "a is not JSON: .*; for text write a=x"),
        (["add", "a:="], "a is not JSON: it is empty"),
        (["add", "a:=NaN"], "a is not JSON"),
        (["add", "a:=[1"], "a is not JSON"),
        (["add", "a:=1", "a:=2"], "a is given twice"),
        (["add", "a=@gone.txt"], "cannot read gone.txt: No such file"),
        (["add", "a:=@broken.json"], "broken.json is not JSON"),
        (["add", "a=@bytes"], "bytes is not text in UTF-8"),
        (["add", "a=@-", "b=@-"], "stdin can be read only once"),
        (["add", "--json", "-", "b=@-"], "stdin can be read only once|stdin is not JSON"),
        (["add", "--json", "-"], "stdin is not JSON: it is empty"),
        (["add", "--json", "number.json"], "params are a JSON object or array"),
        (["add", "--json", "[1]", "b:=1"], "takes no names beside it"),
        (["save", "--json", "[1]", "--command"], "named"),
        ([], "which method"),
        (["add", "--key", "k", "--query"], "a query has no key"),
        (["add", "--notify", "--command"], "not sent with --notify"),
        (["add", "--key", "k", "--notify"], "not sent with --notify"),
        (["add", "--timeout", "0"], "--timeout"),
        (["add", "--framing", "xml"], "--framing"),
        (["add", "--format", "xml"], "--format"),
        (["add", "--no-such-option"], "No such option"),
        (["add", "idempotency_key:=5", "--command"], "an idempotency key is text"),
        (["key_of", "--key", ""], "the idempotency key is empty .*unset.* leave it out"),
        (["key_of", "idempotency_key="], "the idempotency key is empty"),
    ],
)
def test_what_cannot_be_understood_is_not_sent(
    words: list[str], said: str, on_tcp: OnSocket
) -> None:
    place = on_tcp.directory
    (place / "broken.json").write_text("{")
    (place / "bytes").write_bytes(b"\xff\xfe")
    (place / "number.json").write_text("5")
    ran = run("call", on_tcp.address, *words, cwd=place)
    assert (ran.code, ran.out) == (2, ""), ran
    assert re.search(said, " ".join(ran.err.split())), ran


def test_half_a_character_is_shown_as_its_escape(on_tcp: OnSocket) -> None:
    ran = on_terminal("call", on_tcp.address, "echo", r'value:=["half \ud83d"]', "--no-color")
    assert (ran.code, ran.out.splitlines()) == (0, ["[", '  "half \\ud83d"', "]"]), ran
    ran = run("call", on_tcp.address, "add", r'a:="\ud83d"')
    assert ran.code == 1 and "Invalid params" in ran.err, ran


def test_bytes_that_are_no_text_are_not_sent(on_tcp: OnSocket) -> None:
    for item in ("value=\udcff", "value:=\udcff"):
        ran = run("call", on_tcp.address, "echo", item)
        assert (ran.code, ran.out) == (2, ""), ran


# The server.


def test_a_server_is_started_by_its_command(place: Path) -> None:
    ran = run("call", "add", "a:=1", "b:=2", *SUMS, cwd=place)
    assert (ran.code, ran.out, ran.err) == (0, "3\n", "")


def test_everything_after_the_dashes_is_the_servers(place: Path) -> None:
    (place / "arguments.py").write_text(
        "import sys\nfrom duet_rpc import Service\napp = Service()\n"
        "@app.query\ndef given() -> list[str]:\n    return sys.argv[1:]\napp.run()\n"
    )
    words = ("--format", "pretty", "--", "--help", "x=1")
    ran = run("call", "given", "--", "python", "arguments.py", *words, cwd=place)
    assert (ran.code, ran.json) == (0, list(words)), ran


def test_a_server_on_a_unix_socket(on_unix: OnSocket) -> None:
    ran = run("call", on_unix.address, "add", "a:=1", "b:=2")
    assert (ran.code, ran.out, ran.err) == (0, "3\n", "")
    ran = run("call", "unix:s", "add", "a:=1", cwd=on_unix.directory)
    assert (ran.code, ran.out) == (0, "1\n"), ran


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["add"], "which server.*'add' is no address"),
        ([], "which server"),
        (["http://localhost", "add"], "which server"),
        (["tcp://localhost", "add"], "which server"),
        (["tcp://localhost:99999", "add"], "which server"),
        (["add", "--"], "after -- comes the command of a server"),
        (["unix:s", "add", "--", "python", "sums.py"], "not both"),
        (["--", "python", "sums.py"], "which method"),
    ],
)
def test_a_server_that_is_not_named_is_asked_for(words: list[str], said: str, place: Path) -> None:
    ran = run("call", *words, cwd=place)
    assert (ran.code, ran.out) == (2, ""), ran
    assert re.search(said, " ".join(ran.err.split())), ran


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tcp://127.0.0.1:1", "add"], "nothing listens there"),
        (["unix:nowhere", "add"], "is the server running"),
        (["unix:sums.py", "add"], "cannot connect to unix:sums.py"),
        (["add", "--", "no-such-program"], "cannot start no-such-program"),
        (["add", "--", "./sums.py"], "cannot start ./sums.py"),
    ],
)
def test_without_a_connection_nothing_is_called(words: list[str], said: str, place: Path) -> None:
    ran = run("call", "--command", *words, cwd=place)
    assert (ran.code, ran.out) == (3, ""), ran
    assert said in ran.err and "Nothing was called." in ran.err and "--key" not in ran.err, ran


def test_a_server_that_cannot_start_is_quoted(place: Path) -> None:
    (place / "bad.py").write_text("raise SystemExit('no licence today')")
    ran = run("call", "add", "a:=1", "--", "python", "bad.py", cwd=place)
    assert (ran.code, ran.out) == (3, ""), ran
    assert "exited with status 1" in ran.err and "| no licence today" in ran.err, ran
    assert "Nothing was called." in ran.err, ran


def test_a_server_that_dies_in_the_middle(place: Path) -> None:
    ran = run("call", "die", "--format", "json", *SUMS, cwd=place)
    assert ran.code == 3, ran
    assert "exited with status 3" in ran.err and "| last words" in ran.err, ran
    assert "Whether it happened is not known." in ran.err, ran
    assert "takes effect at most once" in ran.err and "happens once" not in ran.err, ran
    key = ran.json["idempotency_key"]
    since = ran.json["first_sent"]
    line = f"duet-rpc call die --format json --key {key} --since {since} -- python sums.py"
    assert line in ran.err, ran
    # The server may have lost its memory, and would take the same words for a new command.
    assert ran.json["failure"] == "connection-lost" and not ran.json["retryable"], ran


AGES = """
import os
from duet_rpc import Context, Service
app = Service()

@app.command(retry_safe=True)
def age(ctx: Context) -> float | None:
    return None if ctx.retry is None else ctx.retry.age

@app.command(retry_safe=True)
def die() -> None:
    os._exit(3)

app.run()
"""


@pytest.mark.parametrize(
    ("words", "age", "is_retryable"),
    [
        (["--retry"], 7 * 86400, True),
        (["--since", "5m"], 300, False),
        (["--since", "1.5h"], 5400, False),
        (["--since", "2026-01-31T12:00:00Z"], None, True),
    ],
)
def test_a_retry_tells_its_age(
    place: Path, words: list[str], age: float | None, is_retryable: bool
) -> None:
    (place / "ages.py").write_text(AGES)
    if age is None:
        age = (datetime.now(UTC) - datetime.fromisoformat(words[1])).total_seconds()
    server = ("--", "python", "ages.py")
    shown = run("call", "age", "--key", "k", *words, *server, cwd=place)
    assert shown.code == 0 and 0 <= float(shown.out) - age < 60, shown
    ran = run("call", "die", "--key", "k", *words, "--format", "json", *server, cwd=place)
    assert (ran.code, ran.json["retryable"]) == (3, is_retryable), ran
    # An age would be too young when it is said again, and a moment would not.
    line = next(line for line in ran.err.splitlines() if "--key k" in line)
    if is_retryable:
        assert line.count("--since") == words.count("--since"), line
    else:
        assert f"--since {ran.json['first_sent']} -- python" in line, line


STORE = "postgresql://ada:s3cr-t@127.0.0.1:9/db"


@pytest.mark.parametrize("url", [STORE, f"{STORE}?password=s3cr-t", "redis://:s3cr-t@127.0.0.1:9"])
@pytest.mark.parametrize(
    ("words", "is_retry"),
    [([], False), (["--key", "k", "--since", "5m"], True), (["--key", "k", "--retry"], True)],
)
def test_after_a_store_that_cannot_be_reached_nothing_is_a_retry(
    place: Path, url: str, words: list[str], is_retry: bool
) -> None:
    """Nor does the line for sending it again hold the password that was typed."""
    (place / "ages.py").write_text(AGES.replace("app.run()", ""))
    server = ("--", str(COMMAND), "serve", "ages.py", "--store", url)
    ran = run("call", "die", *words, *server, cwd=place)
    assert ran.code == 1 and "Nothing was done. It can be sent again." in ran.err, ran
    assert "s3cr-t" not in ran.out + ran.err and ":***@127.0.0.1:9" in ran.err, ran
    line = next(line for line in ran.err.splitlines() if "duet-rpc call" in line)
    assert "--key" in line and "with the password where *** is" in ran.err, ran
    assert ("--since" in line or "--retry" in line) is is_retry, ran


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--retry"], "give its --key"),
        (["--since", "5m"], "give its --key"),
        (["--key", "k", "--since", "soon"], "an age such as 90s"),
        (["--key", "k", "--since", "9999-01-01T00:00:00Z"], "that is still to come"),
        (["--key", "k", "idempotency_key=other"], "two idempotency keys"),
        (["--key", "k", "--json", '{"_meta": {"idempotency_key": "other"}}'], "two idempotency"),
        (["idempotency_key:=7"], "an idempotency key is text"),
    ],
)
def test_what_contradicts_itself_is_not_sent(place: Path, words: list[str], told: str) -> None:
    ran = run("call", "die", *words, *SUMS, cwd=place)
    assert (ran.code, ran.out) == (2, ""), ran
    assert told in ran.err, ran


def test_what_the_server_writes_is_shown_when_asked_for(place: Path) -> None:
    quiet = run("call", "add", "a:=1", *SUMS, cwd=place)
    told = run("call", "add", "a:=1", "-v", *SUMS, cwd=place)
    assert quiet.out == told.out == "1\n"
    assert quiet.err == "" and "info started" in told.err, told


def test_an_unforeseen_failure_shows_the_log_of_a_server_we_started(place: Path) -> None:
    ran = run("call", "fail", *SUMS, cwd=place)
    assert (ran.code, ran.out) == (1, ""), ran
    assert "error -32603: Internal error" in ran.err and "ValueError: a secret" in ran.err, ran


def test_a_result_that_cannot_be_sent_shows_the_log_of_a_server_we_started(place: Path) -> None:
    (place / "odd.py").write_text(
        "from typing import Any\nfrom duet_rpc import Service\napp = Service()\n"
        "@app.query\ndef thing() -> Any: return object()\napp.run()\n"
    )
    ran = run("call", "thing", "--", "python", "odd.py", cwd=place)
    assert (ran.code, ran.out) == (1, ""), ran
    assert "It happened; only its result cannot be sent." in ran.err, ran
    assert "The server's log tells why" in ran.err and "type object" in ran.err, ran


def test_a_wrong_word_is_not_blamed_on_the_way_it_was_written(place: Path) -> None:
    (place / "words.py").write_text(
        "from typing import Literal\nfrom duet_rpc import Service\napp = Service()\n"
        "@app.query\ndef pick(word: Literal['a', 'b']) -> str: return word\napp.run()\n"
    )
    ran = run("call", "pick", "word=c", "--", "python", "words.py", cwd=place)
    assert "is text" not in ran.err and "`duet-rpc describe` shows" in ran.err, ran


def test_an_unforeseen_failure_elsewhere_names_its_reference(on_tcp: OnSocket) -> None:
    ran = run("call", on_tcp.address, "fail")
    assert ran.code == 1, ran
    found = re.search(r"under (\w+)\.", ran.err)
    assert found and found[1] in (on_tcp.directory / "log").read_text(), ran


# Answers.


def test_an_error_answer(on_tcp: OnSocket) -> None:
    ran = run("call", on_tcp.address, "get", "id:=4")
    assert (ran.code, ran.out) == (1, ""), ran
    assert ran.err == 'duet-rpc: error 404: Note not found\n  {"id":4}\n'
    ran = run("call", on_tcp.address, "get", "id:=4", "--format", "json")
    error = {"code": 404, "message": "Note not found", "data": {"id": 4}}
    assert (ran.code, ran.json) == (1, {"error": error, "retryable": False}), ran
    assert "Note not found" in ran.err, ran


def test_text_in_place_of_a_number_is_explained(on_tcp: OnSocket) -> None:
    ran = run("call", on_tcp.address, "add", "a=1")
    assert ran.code == 1 and "a: expected integer, received string" in ran.err, ran
    assert "write a:=... for other values" in ran.err, ran


def test_wrong_params_point_to_describe(on_tcp: OnSocket) -> None:
    ran = run("call", on_tcp.address, "add")
    assert ran.code == 1 and "a: expected integer, received nothing" in ran.err, ran
    assert "`duet-rpc describe` shows what add takes" in ran.err, ran


@pytest.mark.parametrize(("method", "meant"), [("ad", "add"), ("notes.echo", "echo")])
def test_a_wrong_name_is_told_with_what_may_be_meant(
    method: str, meant: str, on_tcp: OnSocket
) -> None:
    ran = run("call", on_tcp.address, method)
    assert ran.code == 1 and f"Did you mean {meant}?" in ran.err, ran
    ran = run("call", on_tcp.address, "something.else.entirely")
    assert ran.code == 1 and "`duet-rpc list` shows what there is" in ran.err, ran


@pytest.mark.parametrize(
    ("method", "meant"),
    [
        ("get", "Did you mean shop.get?"),
        ("shop.gte", "Did you mean shop.get?"),
        ("Shop.Get", "Did you mean shop.get?"),
        ("shop_get", "Did you mean shop.get?"),
        ("shp.put", "Did you mean shop.put?"),
        ("versoin", "Did you mean version?"),
        ("store.find", "Did you mean shop.find or stock.find?"),
        ("shop.delete", "`duet-rpc list` shows what there is."),
    ],
)
def test_only_names_that_are_close_are_suggested(method: str, meant: str) -> None:
    known = ["shop.get", "shop.put", "shop.find", "stock.find", "exit", "version", "shutdown"]
    assert suggest_methods(Attempt(method=method, known_methods=known)) == [meant]


def test_control_characters_of_others_do_not_reach_the_terminal(on_tcp: OnSocket) -> None:
    ran = run("call", on_tcp.address, "get", "id:=13")
    assert ran.code == 1 and "\x1b" not in ran.err and "\a" not in ran.err, ran
    ran = on_terminal("call", on_tcp.address, "echo", "value=a\x9bb\x7f\u202e", "--no-color")
    assert ran.out == '"a\\u009bb\\u007f\\u202e"\n', ran
    # In a pipe the value is the value.
    assert run("call", on_tcp.address, "echo", "value=a\x9bb").json == "a\x9bb"


def test_a_notification(on_tcp: OnSocket) -> None:
    ran = run("call", on_tcp.address, "save", 'note:={"text": "told"}', "--notify")
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    saved = on_tcp.directory / "saved"
    eventually(lambda: saved.exists() and "told\n" in saved.read_text(), "the note is saved")


NEEDS_IDS = """
from duet_rpc import Service
from duet_rpc.policy import DEVELOPMENT
app = Service()
@app.command
def save(text: str) -> None: ...
@app.query
def look() -> None: ...
@app.query(notification_allowed=True)
def touch() -> None: ...
app.run(DEVELOPMENT)
"""


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["save", "text=a"], 1, "not sent with --notify: its outcome could not be answered"),
        (["look"], 1, "look takes no notifications"),
        (["touch"], 0, ""),
        (["unknown"], 0, ""),
    ],
)
def test_a_refused_notification_is_told(
    words: list[str], code: int, told: str, place: Path
) -> None:
    (place / "needs_ids.py").write_text(NEEDS_IDS)
    ran = run("call", *words, "--notify", "--", "python", "needs_ids.py", cwd=place)
    assert (ran.code, ran.out) == (code, ""), ran
    assert (told in ran.err) if told else ran.err == "", ran


def test_a_large_notification_reaches_a_slow_server(place: Path) -> None:
    (place / "slow.py").write_text(
        "import time\nfrom duet_rpc import Service\napp = Service()\n"
        "@app.query\ndef keep(text: str) -> None:\n    open('kept', 'w').write(text)\n"
        "time.sleep(0.3)\napp.run()\n"
    )
    (place / "text").write_text("x" * 3_000_000)
    words = ("call", "keep", "text=@text", "--notify", "--", "python", "slow.py")
    ran = run(*words, cwd=place)
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    assert (place / "kept").stat().st_size == 3_000_000


def test_the_time_is_over(on_tcp: OnSocket) -> None:
    words = ("wait_for", "path=never", "--timeout", "0.3", "--query")
    ran = run("call", on_tcp.address, *words, "--format", "json")
    assert ran.code == 4, ran
    assert "no answer within 0.3 s" in ran.err, ran
    assert ran.json["failure"] == "timeout" and not ran.json["retryable"], ran


def test_servers_of_others_are_called_as_they_are(place: Path) -> None:
    words = ("call", "say", "a:=1", "--framing", "ndjson", "--", "python", "strange.py", "repeats")
    ran = run(*words, cwd=place)
    assert ran.code == 0, ran
    assert ran.json["params"] == {"a": 1}, "neither a key nor anything else of ours is added"


@pytest.mark.parametrize(("how", "code"), [("silent", 4), ("dies", 3), ("empty", 5), ("odd", 0)])
def test_servers_that_misbehave(how: str, code: int, place: Path) -> None:
    timeout = "1" if how == "silent" else "30"
    words = ("call", "say", "--framing", "ndjson", "--timeout", timeout)
    ran = run(*words, "--", "python", "strange.py", how, cwd=place)
    assert ran.code == code, ran
    if how == "silent":
        assert "nothing was called; --query or --command does without asking" in ran.err, ran
        assert "Nothing was called." in ran.err, ran
    if how == "dies":
        assert "| I do not like this" in ran.err, ran


@pytest.mark.parametrize(("ours", "theirs"), [("ndjson", "lsp"), ("lsp", "ndjson")])
@pytest.mark.parametrize("words", [("call", "add", "a:=1"), ("call", "add", "--query"), ("list",)])
def test_the_other_framing_is_a_lost_cause_that_ends(
    words: tuple[str, ...], ours: str, theirs: str, place: Path
) -> None:
    (place / "named.py").write_text("from duet_rpc import Service\nservice = Service()\n")
    server = ("--", "duet-rpc", "serve", "named.py", "--framing", theirs)
    ran = run(*words, "--framing", ours, "--timeout", "2", *server, cwd=place)
    assert ran.code in (3, 4, 5), ran
    assert f"is not framed as {ours}: try --framing {theirs}." in ran.err, ran


# Commands.


def test_a_command_gets_a_key_and_a_query_does_not(on_tcp: OnSocket) -> None:
    first = run("call", on_tcp.address, "key_of")
    other = run("call", on_tcp.address, "key_of")
    assert first.code == other.code == 0
    assert re.fullmatch("[0-9a-f]{32}", first.json) and first.json != other.json
    assert run("call", on_tcp.address, "key_of", "--query").json == "none"
    assert run("call", on_tcp.address, "key_of", "--key", "k 1").json == "k 1"
    assert run("call", on_tcp.address, "key_of", "idempotency_key=k2").json == "k2"
    assert run("call", on_tcp.address, "key_of", "--json", '{"idempotency_key":"k3"}').json == "k3"


def test_any_number_of_values_may_be_none(on_tcp: OnSocket) -> None:
    ran = run("call", on_tcp.address, "total")
    assert (ran.code, ran.json) == (0, 0), ran


def test_a_text_under_an_unknown_name_is_not_a_question_of_its_type(place: Path) -> None:
    ran = run("call", "add", "a:=1", "b:=2", "c=3", *SUMS, cwd=place)
    said = "c: expected a parameter named a or b, received an unknown name"
    assert said in ran.err and "is text" not in ran.err, ran


def test_an_answer_that_is_too_large_is_told(place: Path) -> None:
    (place / "large.py").write_text(
        "from duet_rpc import Service\napp = Service()\n"
        "@app.query\ndef large() -> str:\n    return 'x' * 11_000_000\napp.run()\n"
    )
    ran = run("call", "large", "--timeout", "5", "--", "python", "large.py", cwd=place)
    assert ran.code == 5 and "too large to be taken" in ran.err and "--framing" not in ran.err, ran


@pytest.mark.parametrize("words", [("--key", "k"), ("--command",)])
def test_a_key_for_a_query_says_what_to_leave_out(words: tuple[str, ...], place: Path) -> None:
    ran = run("call", "add", "a:=1", "b:=2", *words, *SUMS, cwd=place)
    assert ran.code == 1, ran
    assert "idempotency_key: expected no key (add is a query), received a key" in ran.err, ran
    assert "Leave out --key and --command." in ran.err, ran


def test_the_same_key_is_the_same_command(on_unix: OnSocket) -> None:
    words = ("call", on_unix.address, "save", 'note:={"text":"milk"}', "--key", "order-1")
    assert run(*words).out == run(*words).out == '"milk"\n'
    assert (on_unix.directory / "saved").read_text() == "milk\n"
    other = run("call", on_unix.address, "save", 'note:={"text":"tea"}', "--key", "order-1")
    assert other.code == 1 and "-32012" in other.err and "Nothing was done" in other.err, other


def test_a_command_that_timed_out_is_sent_again_by_the_line_that_was_shown(
    on_unix: OnSocket,
) -> None:
    place = on_unix.directory
    words = ("wait_for", "path=go on", "--command", "--timeout", "1")
    ran = run("call", on_unix.address, *words)
    assert (ran.code, ran.out) == (4, ""), ran
    assert "no answer within 1 s" in ran.err, ran
    line = next(line for line in ran.err.splitlines() if "--key" in line)
    (place / "go on").touch()
    again = subprocess.run(
        shlex.split(line.replace("--timeout 1", "--timeout 40")),
        capture_output=True,
        text=True,
        env=shell_environment(),
        timeout=PATIENCE,
    )
    assert (again.returncode, again.stdout) == (0, '"there"\n'), again
    assert (place / "waited").read_text() == "once\n"


def test_a_command_in_progress_says_so(on_unix: OnSocket) -> None:
    words = ("call", on_unix.address, "wait_for", "path=go", "--key", "k", "--format", "json")
    first = subprocess.Popen([COMMAND, *words], env=shell_environment(), stdout=subprocess.PIPE)
    log = on_unix.directory / "log"
    eventually(lambda: "waiting" in log.read_text(), "the command runs")
    second = run(*words)
    assert (second.code, second.json["error"]["code"]) == (1, -32013), second
    assert second.json["retryable"] and second.json["idempotency_key"] == "k", second
    assert "It still runs." in second.err and "--key k" in second.err, second
    (on_unix.directory / "go").touch()
    assert first.communicate(timeout=PATIENCE)[0] == b'"there"\n'


@pytest.mark.parametrize(
    ("wait", "told"),
    [
        (1000, "It still runs. Ask again in a moment."),
        (16881, "Its run gave no sign of life. Ask again in 17 seconds."),
    ],
)
def test_a_run_without_a_sign_of_life_is_not_said_to_run(wait: int, told: str) -> None:
    error = InProgress(data={"retry_after_ms": wait})
    assert told in advise(error, Attempt(method="save", key="k"))


def test_an_unknown_outcome_names_the_operators_command(on_unix: OnSocket) -> None:
    store = SqliteStore(on_unix.directory / "commands.db")
    principal = run("call", on_unix.address, "key_of", "--key", "who")
    assert principal.code == 0
    [record] = store.records()
    claim(
        store,
        "k1",
        method="wait_for",
        principal=record.identity.principal,
        fingerprint=fingerprint("wait_for", b'{"path":"x"}'),
        lease=0.001,
    )
    store.close()
    ran = run("call", on_unix.address, "wait_for", "path=x", "--key", "k1")
    assert ran.code == 1 and "error -32014" in ran.err, ran
    line = next(line for line in ran.err.splitlines() if "duet-rpc commands show" in line)
    words = shlex.split(line.replace("URL", "sqlite:///commands.db"))[1:]
    assert words[:4] == ["commands", "show", "wait_for", "k1"] and "--store" in words
    shown = run(*words, "--principal", record.identity.principal, cwd=on_unix.directory)
    assert shown.code == 0 and "unknown" in shown.out, shown


def test_a_lost_connection_leaves_the_key(on_unix: OnSocket) -> None:
    with Terminal(
        "call", on_unix.address, "wait_for", "path=never", "--timeout", "inf"
    ) as terminal:
        terminal.wait_for("looking")
        on_unix.kill()
        ran = terminal.end()
    assert ran.code == 3 and "closed the connection" in ran.out and "--key" in ran.out, ran


# On a terminal.


def test_a_terminal_gets_layout_and_colour(on_tcp: OnSocket) -> None:
    words = ("call", on_tcp.address, "echo", 'value:={"a":[1,true,"x"]}')
    plain = '{\n  "a": [\n    1,\n    true,\n    "x"\n  ]\n}\n'
    ran = on_terminal(*words)
    assert "\x1b[36m" in ran.out and "\x1b[33m" in ran.out, ran
    assert re.sub(r"\x1b\[\d+m", "", ran.out) == plain
    assert on_terminal(*words, "--no-color").out == plain
    assert on_terminal(*words, NO_COLOR="1").out == plain
    assert on_terminal(*words, TERM="dumb").out == plain
    assert on_terminal(*words, "--format", "json").out == '{"a":[1,true,"x"]}\n'
    assert run(*words).out == '{"a":[1,true,"x"]}\n'
    assert run(*words, "--format", "pretty").out == plain


def test_progress_is_shown_on_a_terminal_and_taken_away(on_unix: OnSocket) -> None:
    with Terminal("call", on_unix.address, "wait_for", "path=go") as terminal:
        terminal.wait_for("% looking")
        (on_unix.directory / "go").touch()
        ran = terminal.end()
    assert ran.code == 0, ran
    assert re.search(r'\r\x1b\[K(\x1b\[32m)?"there"', ran.out), ran
    piped = run("call", on_unix.address, "wait_for", "path=go")
    assert (piped.out, piped.err) == ('"there"\n', ""), piped


def test_news_of_progress_do_not_prolong_the_time_that_was_asked_for(on_unix: OnSocket) -> None:
    ran = run("call", on_unix.address, "wait_for", "path=never", "--timeout", "4")
    assert ran.code == 4 and "no result within 4 s, its total timeout" in ran.err, ran


def test_ctrl_c_ends_the_waiting_and_shows_the_key(on_unix: OnSocket) -> None:
    with Terminal("call", on_unix.address, "wait_for", "path=never") as terminal:
        terminal.wait_for("looking")
        terminal.type("\x03")
        ran = terminal.end()
    assert ran.code == 130, ran
    assert "interrupted" in ran.out and "--key" in ran.out, ran


def test_stdin_from_a_terminal_says_how_to_end_it(on_tcp: OnSocket) -> None:
    with Terminal("call", on_tcp.address, "echo", "value=@-", "--no-color") as terminal:
        terminal.wait_for("Ctrl-D ends it")
        terminal.type("typed\n\x04")
        ran = terminal.end()
    assert ran.code == 0 and '"typed\\n"' in ran.out, ran


def test_a_reader_that_goes_away_is_no_failure_to_talk_about(on_tcp: OnSocket) -> None:
    (on_tcp.directory / "long").write_text("x" * 1_000_000)
    line = f"duet-rpc call {on_tcp.address} echo value=@long | head -c 10"
    ended = subprocess.run(
        ["sh", "-c", line],
        capture_output=True,
        cwd=on_tcp.directory,
        env=shell_environment(),
        timeout=PATIENCE,
    )
    assert (ended.stdout, ended.stderr) == (b'"xxxxxxxxx', b"")


def test_a_result_that_cannot_be_written_is_no_success(on_tcp: OnSocket) -> None:
    def ended(line: str, **variables: str) -> tuple[int, str, str]:
        done = subprocess.run(
            ["sh", "-c", f"duet-rpc call {on_tcp.address} echo value=ä€ {line}"],
            capture_output=True,
            env=shell_environment(**variables),
            timeout=PATIENCE,
        )
        return done.returncode, done.stdout.decode("latin-1"), done.stderr.decode()

    code, _, told = ended("> /dev/full")
    assert (code, told) == (6, "duet-rpc: the result cannot be written: No space left on device\n")
    code, _, told = ended(">&-")
    assert code == 0 and "Traceback" not in told
    # Stdout without the letters for it shows the rest.
    code, out, told = ended("--format pretty", PYTHONIOENCODING="latin-1")
    assert (code, out, told) == (0, '"ä\\u20ac"\n', "")


def test_no_event_loop_is_imported(on_tcp: OnSocket) -> None:
    program = (
        "import sys; from duet_rpc.cli.main import duet_rpc;"
        "duet_rpc(sys.argv[1:], standalone_mode=False); sys.exit('asyncio' in sys.modules)"
    )
    for words in (["call", on_tcp.address, "add", "a:=1"], ["list", on_tcp.address]):
        ended = subprocess.run(
            [sys.executable, "-c", program, *words], capture_output=True, timeout=PATIENCE
        )
        assert ended.returncode == 0, ended


def test_help_tells_forms_and_exit_codes() -> None:
    for name in ("call", "batch", "list", "describe"):
        ran = run(name, "--help")
        assert ran.code == 0 and f"duet-rpc {name} [OPTIONS] TARGET" in ran.out, ran
        assert "-- COMMAND..." in ran.out and "Exit codes: 0 done, 1 the server" in ran.out, ran
