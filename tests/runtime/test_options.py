"""Options that cannot work are refused where a client is made, and the text says what can."""

import asyncio
import contextlib
import functools
import logging
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from duet_rpc import Client, MemoryStore, Retry, Server, Service, UsageError, blocking
from duet_rpc.policy import EDITOR
from tests.runtime.faces import Face, Peer, Scripted

both = pytest.mark.parametrize("client", [Client, blocking.Client], ids=["asyncio", "blocking"])


class Told:
    """A log that is falsy while it is empty, as a list is."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __len__(self) -> int:
        return len(self.texts)

    def note(self, severity: str, text: str, **fields: Any) -> None:
        self.texts.append(text)

    def failure(self, text: str, error: BaseException, **fields: Any) -> str:
        self.texts.append(text)
        return "reference"


def function() -> None: ...


@both
@pytest.mark.parametrize(
    ("option", "value", "accepted"),
    [
        ("timeout", "5", "seconds above 0, or None"),
        ("timeout", -3, "seconds above 0, or None"),
        ("timeout", -1, "seconds above 0, or None"),
        ("timeout", 0, "seconds above 0, or None"),
        ("timeout", True, "seconds above 0, or None"),
        ("timeout", float("nan"), "seconds above 0, or None"),
        ("retry", 3, r"Retry\(attempts=3\)"),
        ("retry", Retry, r"Retry\(attempts=3\)"),
        ("reconnect", "yes", "True, False, or None"),
        ("framing", "xml", '"lsp" or "ndjson"'),
        ("framing", "auto", '"lsp" or "ndjson"'),  # a client speaks first
        ("framing", None, '"lsp" or "ndjson"'),
        ("service", function, "a Service"),
        ("policy", "SPEC", "one of duet_rpc.policy"),
        ("policy", None, "one of duet_rpc.policy"),
        ("allow_concurrent_requests", 1, "True or False"),
        ("log", logging.getLogger(), "the methods note and failure"),
    ],
)
def test_a_wrong_option_is_refused_at_once(
    client: Any, option: str, value: Any, accepted: str
) -> None:
    for make in (client.connect, client.spawn):
        with pytest.raises(UsageError, match=f"^{option} is .*; give .*{accepted}"):
            make("unix:nowhere.sock", **{option: value})


@both
@pytest.mark.parametrize("target", ["http://localhost:80", "localhost:80", "", 8765, None])
def test_an_address_of_another_kind_is_refused_at_once(client: Any, target: Any) -> None:
    with pytest.raises(UsageError, match=r"use unix:PATH, .* or tcp://HOST:PORT"):
        client.connect(target)


@both
@pytest.mark.parametrize("command", [(), (["python", "server.py"],), ("python", 3)])
def test_what_is_no_command_is_refused_at_once(client: Any, command: Any) -> None:
    with pytest.raises(UsageError, match="give its words one by one"):
        client.spawn(*command)


@both
@pytest.mark.parametrize(
    ("option", "value", "accepted"),
    [
        ("cwd", 7, "a path, or None"),
        ("env", {"A": 1}, "texts by name, or None for ours"),
        ("env", {1: "A"}, "texts by name, or None for ours"),
        ("env", ["A=1"], "texts by name, or None for ours"),
        ("restarts", "x", "a whole number, 0 or more"),
        ("restarts", -1, "a whole number, 0 or more"),
        ("restarts", 1.5, "a whole number, 0 or more"),
        ("restarts", True, "a whole number, 0 or more"),
        ("stderr", "print", '"keep" or "show"'),
        ("stderr", None, '"keep" or "show"'),
    ],
)
def test_a_wrong_option_of_a_child_is_refused_at_once(
    client: Any, option: str, value: Any, accepted: str
) -> None:
    with pytest.raises(UsageError, match=f"^{option} is .*; give .*{accepted}"):
        client.spawn("server", **{option: value})


@both
def test_the_refusal_of_an_environment_tells_none_of_its_values(client: Any) -> None:
    with pytest.raises(UsageError) as caught:
        client.spawn("server", env={"TOKEN": "hush", "PORT": 8765})
    assert "'PORT' of type int" in str(caught.value)
    assert "hush" not in str(caught.value) and "8765" not in str(caught.value)


@both
def test_an_address_alone_does_not_make_a_client(client: Any) -> None:
    with pytest.raises(UsageError, match=r"Client\.connect\(\)"):
        client("unix:nowhere.sock")


CALLS = {
    "call": lambda client, options: client.call("x", **options),
    "query": lambda client, options: client.query("x", **options),
    "command": lambda client, options: client.command("x", **options),
    "outcome": lambda client, options: client.outcome("x", "key", **options),
    "batch": lambda client, options: client.batch().call("x", **options),
}
EVERY, NEWS = tuple(CALLS), ("call", "query", "command")


@pytest.mark.parametrize(
    ("calls", "option", "value", "accepted"),
    [
        (EVERY, "timeout", "5", "seconds, 0 or more, or None"),
        (EVERY, "timeout", -5, "seconds, 0 or more, or None"),
        (EVERY, "timeout", -1, "seconds, 0 or more, or None"),
        (EVERY, "timeout", True, "seconds, 0 or more, or None"),
        (EVERY, "timeout", float("nan"), "seconds, 0 or more, or None"),
        (NEWS, "total_timeout", "5", "seconds above 0, or None"),
        (NEWS, "total_timeout", 0, "seconds above 0, or None"),
        (NEWS, "on_progress", "print", "a function, or None"),
        (("query", "command"), "retry", 3, r"Retry\(attempts=3\)"),
        (("query", "command"), "retry", Retry, r"Retry\(attempts=3\)"),
    ],
)
def test_a_wrong_option_of_a_call_is_refused_before_it_is_sent(
    face: Face, calls: tuple[str, ...], option: str, value: Any, accepted: str
) -> None:
    driver = face.connect(Service())
    for call in calls:
        with pytest.raises(UsageError, match=f"^{option} is .*; give .*{accepted}"):
            driver.do(functools.partial(CALLS[call], options={option: value}))
    assert driver.stats.calls == 0


@both
def test_every_sound_option_of_a_child_is_taken(client: Any) -> None:
    client.spawn("server", cwd=None, env=None)
    client.spawn("server", cwd="/", env={}, restarts=0, stderr="show")
    client.spawn(Path("server"), cwd=Path("/"), env={"A": "1", b"B": Path("x")}, restarts=10**6)


SERVE = {
    "run_stdio": lambda server, options: server.run_stdio(**options),
    "run_unix": lambda server, options: server.run_unix("x.sock", **options),
    "run_tcp": lambda server, options: server.run_tcp("127.0.0.1", 0, **options),
    "serve_unix": lambda server, options: asyncio.run(server.serve_unix("x.sock", **options)),
    "serve_tcp": lambda server, options: asyncio.run(server.serve_tcp("::1", 0, **options)),
}
SOCKETS = tuple(SERVE)[1:]


@pytest.mark.parametrize(
    ("ways", "option", "value", "accepted"),
    [
        (tuple(SERVE), "framing", "xml", '"lsp", "ndjson" or "auto"'),
        (tuple(SERVE), "framing", None, '"lsp", "ndjson" or "auto"'),
        (SOCKETS, "max_connections", 0, "a whole number, 1 or more"),
        (SOCKETS, "max_queued_bytes", "1", "a whole number, 1 or more"),
        (SOCKETS, "principal", "ada", "a function"),
    ],
)
def test_a_wrong_option_of_serving_is_refused_before_anything_is_opened(
    ways: tuple[str, ...],
    option: str,
    value: Any,
    accepted: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rpc_no_leaks: None,
) -> None:
    monkeypatch.chdir(tmp_path)
    for way in ways:
        with pytest.raises(UsageError, match=f"^{option} is .*; give .*{accepted}"):
            SERVE[way](Server(Service()), {option: value})
    assert not list(tmp_path.iterdir())


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    file: Any
    for file in ("shop.db", Path("shop.db")):
        with pytest.raises(UsageError, match=r"^'shop\.db' is no store URL; write sqlite:///shop"):
            Server(Service(), store=file)
    with pytest.raises(UsageError, match=f"write sqlite:///{tmp_path}/shop.db for a file"):
        file = tmp_path / "shop.db"
        Server(Service(), store=file)
    wrong: Any
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        for wrong in (connection, MemoryStore, 7, {"url": "memory:"}):
            with pytest.raises(UsageError, match=r"^store is .*; give a store, such as SqliteSto"):
                Server(Service(), store=wrong)
    Server(Service(), store=MemoryStore()).close()


@pytest.mark.parametrize("option", ["name", "version", "description"])
@pytest.mark.parametrize("value", [7, None, b"notes", "\ud800"])
def test_what_a_service_is_called_is_a_text(option: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"^{option} is .*; give a text"):
        Service(**{option: value})


@both
def test_every_sound_option_is_taken(client: Any) -> None:
    for timeout in (None, 0.001, 3, float("inf")):
        client.connect(
            "unix:nowhere.sock",
            timeout=timeout,
            retry=Retry(attempts=2),
            reconnect=False,
            framing="ndjson",
            service=Service(),
            policy=EDITOR,
            allow_concurrent_requests=False,
            log=Told(),
        )


def test_a_log_that_is_empty_is_still_a_log(face: Face) -> None:
    def script(peer: Peer) -> None:
        peer.say(b'{"jsonrpc":"2.0","id":77,"result":"nobody asked"}')
        peer.answer(peer.request())
        peer.read_all()

    log = Told()
    face.open(Scripted(script), log=log).call("anything")
    assert log.texts == ["an answer that no call waits for"]
