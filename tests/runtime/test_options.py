"""Options that cannot work are refused where a client is made, and the text says what can."""

import logging
from typing import Any

import pytest

from duet_rpc import Client, Retry, Service, UsageError, blocking
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
        ("timeout", -1, "seconds above 0, or None"),  # which stands for the usual one in a call
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
def test_an_address_alone_does_not_make_a_client(client: Any) -> None:
    with pytest.raises(UsageError, match=r"Client\.connect\(\)"):
        client("unix:nowhere.sock")


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
    assert log.texts == ["an answer that nobody waits for"]
