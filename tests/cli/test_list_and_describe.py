"""`duet-rpc list` and `duet-rpc describe`: what a server has."""

import json
import re
from pathlib import Path

import pytest

from tests.cli.servers import OnSocket
from tests.cli.shell import on_terminal, run

pytestmark = pytest.mark.timeout(180)

STRANGE = ("--framing", "ndjson", "--", "python", "strange.py")


def test_a_list_for_programs(on_tcp: OnSocket, place: Path) -> None:
    for words in ([on_tcp.address], ["--", "python", "sums.py"]):
        ran = run("list", *words, cwd=place)
        assert (ran.code, ran.err) == (0, ""), ran
        by_name = {method["name"]: method for method in ran.json}
        assert by_name["add"]["kind"] == "query"
        assert by_name["add"]["description"].startswith("Add two numbers.")
        assert by_name["save"]["kind"] == "command"
        assert by_name["save"]["promise"] == "at-most-once"
        assert "rpc.discover" in by_name
        assert list(by_name) == sorted(by_name)


def test_a_list_for_people(on_tcp: OnSocket) -> None:
    ran = on_terminal("list", on_tcp.address, "--no-color")
    assert ran.code == 0, ran
    header, *rows = ran.out.splitlines()
    assert re.fullmatch(r"method +kind +description", header)
    at = header.index("description")
    [add] = [row for row in rows if row.startswith("add ")]
    assert add[at:] == "Add two numbers." and add[header.index("kind") :].startswith("query")
    assert not any(row.startswith(("listMethods", "shutdown", "exit")) for row in rows)
    assert "and what every daemon has (--all): describeMethods" in ran.out
    everything = on_terminal("list", on_tcp.address, "--all")
    assert "\nlistMethods " in everything.out and "--all" not in everything.out
    assert "\x1b[1mmethod" in everything.out


def test_a_narrow_terminal_cuts_descriptions(on_tcp: OnSocket) -> None:
    ran = on_terminal("list", on_tcp.address, "--all", "--no-color", COLUMNS="60")
    assert max(map(len, ran.out.splitlines())) <= 60 and "..." in ran.out, ran


def test_a_service_without_methods_of_its_own() -> None:
    ran = on_terminal("list", "--", "duet-rpc", "rpc")
    assert ran.code == 0 and "no methods of its own" in ran.out, ran


def test_a_description_for_people(on_tcp: OnSocket) -> None:
    ran = on_terminal("describe", on_tcp.address, "save", "--no-color")
    assert ran.code == 0, ran
    assert ran.out.splitlines() == [
        "save  command, at-most-once",
        "",
        "  Save a note.",
        "",
        "  never run twice under one key; cut off in the middle, its outcome is unknown",
        "",
        "params",
        "  note  Note  required",
        "",
        "returns",
        "  string",
        "",
        "Note",
        "  text  string          required",
        "  tags  array of Tag    optional",
        '  mood  "bad" | "good"  default "good"',
        "",
        "Tag",
        "  name    string  required",
        "  weight  number  default 1.0",
    ]


def test_what_a_description_tells(on_tcp: OnSocket) -> None:
    add = on_terminal("describe", on_tcp.address, "add", "--no-color").out
    assert re.search(r"a +integer +required\n +b +integer +default 0\n", add), add
    get = on_terminal("describe", on_tcp.address, "get", "--no-color").out
    assert re.search(r"errors\n +13 +bell \\u0007 and .*\n +404 +Note not found\n", get), get
    total = on_terminal("describe", on_tcp.address, "total", "--no-color").out
    assert "params (by position, any number)" in total, total
    key_of = on_terminal("describe", on_tcp.address, "key_of", "--no-color").out
    assert "params\n  none\n" in key_of, key_of


def test_what_a_description_tells_of_names_and_of_all_params(place: Path) -> None:
    (place / "mail.py").write_text(
        "from duet_rpc import Service, Whole\n"
        "mail = Service(rename='camel')\n"
        "@mail.query\ndef find(max_items: int = 3) -> int: return max_items\n"
        "@mail.query\ndef keep(params: Whole[dict[str, int]]) -> None: ...\n"
    )
    server = ("--", "duet-rpc", "serve", "mail.py")
    find = on_terminal("describe", "find", "--no-color", *server, cwd=place).out
    assert re.search(r"params\n +maxItems +integer +default 3\n", find), find
    keep = on_terminal("describe", "keep", "--no-color", *server, cwd=place).out
    assert "params (as one value)\n" in keep, keep
    assert run("call", "find", "maxItems:=4", *server, cwd=place).json == 4


def test_what_a_description_tells_of_a_repetition(place: Path) -> None:
    (place / "alarm.py").write_text(
        "from duet_rpc import Service\n"
        "alarm = Service()\n"
        "@alarm.command(dedupe='arguments', dedupe_window=90)\ndef page(who: str) -> None: ...\n"
    )
    server = ("--", "duet-rpc", "serve", "alarm.py")
    page = on_terminal("describe", "page", "--no-color", *server, cwd=place).out
    assert "the same arguments within 90 s are taken for a repetition" in page, page
    described = run("describe", "page", *server, cwd=place).json
    assert described["x-dedupe"] == {"by": "arguments", "window": 90.0}


def test_a_description_for_programs(on_tcp: OnSocket) -> None:
    ran = run("describe", on_tcp.address, "add")
    assert (ran.code, ran.err) == (0, ""), ran
    assert ran.json["name"] == "add" and ran.json["x-kind"] == "query"
    assert [each["name"] for each in ran.json["params"]] == ["a", "b"]


def test_a_method_that_is_not_there(on_tcp: OnSocket) -> None:
    ran = run("describe", on_tcp.address, "ad")
    assert (ran.code, ran.out) == (1, ""), ran
    assert ran.err == "duet-rpc: the server has no method ad\n  Did you mean add?\n"


@pytest.mark.parametrize("words", [["list"], ["describe", "say"]])
@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("plain", 1, "the server does not say what its methods are"),
        ("odd", 1, "the server does not say what its methods are"),
        ("dies", 3, "| I do not like this"),
        ("silent", 4, "no answer within 1 s"),
    ],
)
def test_servers_that_say_nothing(
    words: list[str], how: str, code: int, said: str, place: Path
) -> None:
    timeout = ("--timeout", "1") if how == "silent" else ()
    ran = run(*words, *timeout, *STRANGE, how, cwd=place)
    assert (ran.code, ran.out) == (code, ""), ran
    assert said in ran.err, ran


def test_failures_for_programs(place: Path) -> None:
    ran = run("list", "unix:nowhere", "--format", "json", cwd=place)
    assert (ran.code, ran.json["failure"]) == (3, "no-connection"), ran


SCHEMAS = [
    ({"type": "integer", "minimum": 0, "exclusiveMaximum": 9}, "integer >= 0, < 9"),
    ({"type": ["string", "null"]}, "string | null"),
    ({"anyOf": [{"type": "string"}, {"$ref": "#/x/Pet"}]}, "string | Pet"),
    ({"oneOf": [{"const": 1}, {"enum": ["a", None]}]}, '1 | "a" | null'),
    ({"type": "array", "items": [{"type": "string"}, {"type": "number"}]}, "[string, number]"),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, "object of integer"),
    ({"type": "string", "format": "date", "pattern": "^2"}, "string matching ^2, (date)"),
    ({"allOf": [{"$ref": "#/x/Pet"}], "default": {}}, "Pet"),
    ({}, "any"),
    (True, "any"),
    ({"type": 5}, "any"),
    (None, "any"),
]


def test_documents_of_others_are_read_as_far_as_they_go(place: Path) -> None:
    """What anybody may write: references, odd schemas, methods without names, escapes."""
    params = [{"name": f"p{n}", "schema": schema} for n, (schema, _) in enumerate(SCHEMAS)]
    method = {"name": "say", "summary": "Short.", "description": "Long\x1b.", "params": params}
    document = {
        "methods": [method, {"$ref": "#/gone"}, {"name": "bare"}, {"name": "odd", "params": 5}],
        "components": {"schemas": {"Pet": {"type": "string"}, "Odd": 5}},
    }
    (place / "openrpc.json").write_text(json.dumps(document))
    ran = run("describe", "say", "--format", "pretty", *STRANGE, "openrpc", cwd=place)
    assert ran.code == 0 and "\x1b" not in ran.out, ran
    for number, (_, words) in enumerate(SCHEMAS):
        assert re.search(rf"^  p{number} +{re.escape(words)}  ", ran.out, re.MULTILINE), words
    assert "\nPet\n  string\n" in ran.out, ran
    for name in ("bare", "odd"):
        assert run("describe", name, "--format", "pretty", *STRANGE, "openrpc", cwd=place).code == 0
    ran = run("list", *STRANGE, "openrpc", cwd=place)
    assert [each["name"] for each in ran.json] == ["bare", "odd", "say"], ran
    assert ran.json[2] == {"name": "say", "description": "Short."}


def test_words_that_are_missing_or_too_many(on_tcp: OnSocket) -> None:
    for words in (
        ["list"],
        ["list", on_tcp.address, "more"],
        ["describe", on_tcp.address],
        ["describe", on_tcp.address, "a", "b"],
        ["list", "--", *()],
    ):
        ran = run(*words)
        assert (ran.code, ran.out) == (2, ""), ran
