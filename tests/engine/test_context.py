"""The context of a request: what it tells, what it passes on, and who wants a transaction."""

import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from duet_rpc.context import Context, Origin, Transaction, transaction_type
from duet_rpc.errors import ConnectionLost, UsageError
from duet_rpc.wire.dialect import JSONRPC
from tests.helpers import run_without_waiting

ORIGIN = Origin(connection_id="c1", transport="memory")


class Told:
    """A peer that remembers what a handler said to it."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []

    dialect = JSONRPC

    def notify(self, method: str, params: Any) -> None:
        self.said.append(("notify", method, params))

    def notify_outside(self, method: str, params: Any) -> None:
        self.said.append(("notify outside", method, params))

    gone: Exception | None = None
    behind = False

    def send_ahead(self, ctx: Context, spell: Callable[[], bytes | None]) -> None:
        self.said.append(("ahead", spell()))

    def call(
        self, ctx: Context | None, method: str, params: Any, timeout: float | None, returns: Any
    ) -> Any:
        self.said.append(("call", method, params, timeout, returns))
        return "the reply"

    def open_stream(self, ctx: Context) -> None:
        raise NotImplementedError

    takes_subscriptions = False
    has_loop = False

    def open_subscription(self, ctx: Context) -> Any:
        raise NotImplementedError

    def logger(self, ctx: Context) -> Any:
        return f"logger of {ctx.correlation_id}"


def context(peer: Told) -> Context:
    return Context(peer, "notes.get", correlation_id="7", origin=ORIGIN)


def test_a_context_tells_about_its_request() -> None:
    ctx = context(Told())
    assert (ctx.method, ctx.correlation_id, ctx.connection_id) == ("notes.get", "7", "c1")
    assert (ctx.principal, ctx.cancelled, ctx.deadline) == ("local", False, None)
    assert ctx.origin is ORIGIN
    assert (ctx.idempotency_key, ctx.trace_parent) == (None, None)


def test_a_notification_is_sent_at_once_and_may_be_awaited() -> None:
    peer = Told()
    sent = context(peer).notify("changed", {"id": 7})
    assert peer.said == [("notify", "changed", {"id": 7})]

    async def wait() -> bytes:
        await sent
        return b"done"

    assert run_without_waiting(wait()) == b"done"


def test_a_call_goes_to_the_peer_with_its_time_and_type() -> None:
    peer = Told()
    ctx = context(peer)
    reply: Any = ctx.call("ask", [1], timeout=2.5, returns=int)
    assert reply == "the reply"
    ctx.call("ask")
    assert peer.said == [("call", "ask", [1], 2.5, int), ("call", "ask", None, None, Any)]


def test_the_peer_outlives_the_request_but_not_the_connection() -> None:
    told = Told()
    peer = context(told).peer
    assert peer == context(told).peer and peer != context(Told()).peer
    assert len({peer, context(told).peer, context(Told()).peer}) == 2
    assert (repr(peer), peer.origin, peer.is_connected) == ("<RemotePeer c1>", ORIGIN, True)
    peer.notify("changed", [1])
    peer.call("ask", [1], timeout=2.5, returns=int)
    assert told.said == [("notify outside", "changed", [1]), ("call", "ask", [1], 2.5, int)]
    with pytest.raises(UsageError):
        peer.call("ask", timeout=-1)
    told.gone = ConnectionLost("gone")
    assert not peer.is_connected
    for act in (peer.notify, peer.call):
        with pytest.raises(ConnectionLost):
            act("too.late")
    assert len(told.said) == 2


def test_the_logger_is_the_requests_own() -> None:
    logger: Any = context(Told()).logger
    assert logger == "logger of 7"


class Lookalike:
    """Has the name of nothing that we know."""


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (Transaction, ""),
        (sqlite3.Connection, "sqlite3.Connection"),
        (type("Connection", (), {"__module__": "psycopg"}), "psycopg.Connection"),
        (
            type("AsyncConnection", (), {"__module__": "psycopg.connection_async"}),
            "psycopg.AsyncConnection",
        ),
        (type("Connection", (), {"__module__": "mine"}), None),
        (Lookalike, None),
        (int, None),
        (Any, None),
        (list[int], None),
    ],
)
def test_a_transaction_is_known_by_its_hint_alone(hint: Any, expected: str | None) -> None:
    assert transaction_type(hint) == expected


def test_progress_is_told_to_callers_who_asked_for_it() -> None:
    peer = Told()
    ctx = context(peer)
    ctx.progress(0.5)
    assert peer.said == []
    ctx.progress_token = 7
    ctx.progress(0.5)
    assert peer.said == [("ahead", b'{"token":7,"value":0.5}')]
