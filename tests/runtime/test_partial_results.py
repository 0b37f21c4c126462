"""Clients of LSP servers: partial results as a stream, work done progress as `Progress`."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from duet_rpc import Client, Progress, blocking
from duet_rpc.errors import InvalidAnswer, RpcError, UsageError
from tests.runtime.faces import Face, Peer, Scripted

REFERENCES = "textDocument/references"


def say(peer: Peer, **message: Any) -> None:
    peer.say(json.dumps({"jsonrpc": "2.0", **message}).encode())


def progress(peer: Peer, token: Any, value: Any) -> None:
    say(peer, method="$/progress", params={"token": token, "value": value})


def collect(method: str, params: Any = None, **options: Any) -> Callable[[Any], Any]:
    """Take all items of a stream, with either client; return them and the error at the end."""

    async def take(client: Client) -> tuple[list[Any], Exception | None]:
        found = []
        try:
            async for item in client.stream(method, params, **options):
                found.append(item)
        except Exception as error:
            return found, error
        return found, None

    def take_blocking(client: blocking.Client) -> tuple[list[Any], Exception | None]:
        found = []
        try:
            for item in client.stream(method, params, **options):
                found.append(item)
        except Exception as error:
            return found, error
        return found, None

    return lambda client: (take if isinstance(client, Client) else take_blocking)(client)


def stream_from(face: Face, *answers: Any) -> tuple[list[Any], Exception | None]:
    """Stream from a server that sends these parts, and last the answer."""
    *parts, last = answers

    def script(peer: Peer) -> None:
        asked = peer.request()
        assert asked["params"]["partialResultToken"] == asked["id"]
        for part in parts:
            progress(peer, asked["id"], part)
        say(peer, id=asked["id"], **last)
        peer.read_all()

    driver = face.open(Scripted(script), dialect="lsp")
    found: tuple[list[Any], Exception | None] = driver.do(collect(REFERENCES, {}, window=2))
    return found


@pytest.mark.clause("lsp-11")
def test_partial_results_are_items(face: Face) -> None:
    assert stream_from(face, [1, 2, 3], [], [4], {"result": []}) == ([1, 2, 3, 4], None)
    assert stream_from(face, [1], {"result": None}) == ([1], None)


@pytest.mark.clause("lsp-11")
def test_a_server_without_partial_results_gives_the_list(face: Face) -> None:
    assert stream_from(face, {"result": [1, 2, 3]}) == ([1, 2, 3], None)
    assert stream_from(face, {"result": None}) == ([], None)
    incomplete = {"isIncomplete": False, "items": [{"label": "a"}]}
    assert stream_from(face, {"result": incomplete}) == ([{"label": "a"}], None)


@pytest.mark.clause("lsp-11")
def test_parts_and_then_a_list_are_a_fault(face: Face) -> None:
    found, error = stream_from(face, [1], {"result": [1]})
    assert found == [1]
    assert isinstance(error, InvalidAnswer)


def test_an_error_comes_after_the_parts(face: Face) -> None:
    found, error = stream_from(face, [1, 2], {"error": {"code": 7, "message": "no more"}})
    assert found == [1, 2]
    assert isinstance(error, RpcError) and error.code == 7


def test_no_grants_are_sent_for_partial_results(face: Face) -> None:
    seen: list[Any] = []

    def script(peer: Peer) -> None:
        asked = peer.request()
        for number in range(100):
            progress(peer, asked["id"], [number])
        say(peer, id=asked["id"], result=[])
        seen.extend(peer.read_all())

    scripted = Scripted(script)
    driver = face.open(scripted, dialect="lsp")
    assert driver.do(collect(REFERENCES, window=1)) == (list(range(100)), None)
    driver.close()
    scripted.join()
    assert seen == []


def test_no_more_than_a_bound_is_kept(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duet_rpc.engine.inflow._MAX_KEPT", 100)
    found, error = stream_from(face, ["x" * 40], ["x" * 40, "x" * 40, "x" * 40], {"result": []})
    assert isinstance(error, InvalidAnswer)
    assert len(found) <= 1


@pytest.mark.clause("lsp-8")
def test_work_done_is_progress(face: Face) -> None:
    def script(peer: Peer) -> None:
        asked = peer.request()
        token = asked["params"]["workDoneToken"]
        progress(peer, token, {"kind": "begin", "title": "Index", "percentage": 0})
        progress(peer, token, {"kind": "report", "message": "a.py", "percentage": 50})
        progress(peer, token, {"kind": "report"})
        progress(peer, token, {"kind": "end", "message": "done"})
        say(peer, id=asked["id"], result=7)
        peer.read_all()

    got: list[Progress] = []
    driver = face.open(Scripted(script), dialect="lsp")
    assert driver.call("index", on_progress=got.append) == 7
    assert got == [
        Progress(0, 100, "Index"),
        Progress(50, 100, "a.py"),
        Progress(),
        Progress(message="done"),
    ]


def test_tokens_of_the_callers_own_are_not_overwritten(face: Face) -> None:
    def script(peer: Peer) -> None:
        asked = peer.request()
        say(peer, id=asked["id"], result=asked["params"])
        peer.read_all()

    driver = face.open(Scripted(script), dialect="lsp")
    with pytest.raises(UsageError, match="hold a workDoneToken already"):
        driver.call("index", {"workDoneToken": "mine"}, on_progress=print)
    _, error = driver.do(collect(REFERENCES, {"partialResultToken": "mine"}))
    assert isinstance(error, UsageError)
    assert driver.call("index", {"workDoneToken": "mine"}) == {"workDoneToken": "mine"}
    assert driver.stats.pending == 0
