"""Hooks of both clients: events of calls and connections, middleware on what they serve."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Raw

from duet_rpc import Context, Service
from duet_rpc.errors import CallTimeout, Cancelled, ConnectionLost, MethodNotFound, UsageError
from duet_rpc.hooks import (
    AnswerDropped,
    CallSent,
    CallSettled,
    ConnectionClosed,
    ConnectionOpened,
    Event,
    FrameFault,
    Hooks,
    Invocation,
)
from tests.runtime.faces import PATIENCE, Face, Peer, Scripted, failure
from tests.transports.lines import eventually


class Recording(Hooks):
    """Keeps the events, and passes handlers through."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.wrapped: list[str] = []

    def on(self, event: Event) -> None:
        self.events.append(event)

    def around(self, call: Invocation, next: Callable[[Invocation], Raw]) -> Any:
        self.wrapped.append(call.method)
        return next(call)

    async def around_async(self, call: Invocation, next: Any) -> Any:
        self.wrapped.append(call.method)
        return await next(call)

    def only(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def served() -> Service:
    service = Service()

    @service.query
    def add(a: int, b: int) -> int:
        return a + b

    @service.query
    def ask(ctx: Context) -> Any:
        return ctx.call("answer", timeout=PATIENCE).result()

    @service.query
    def wait(ctx: Context) -> None:
        while not ctx.cancelled:
            threading.Event().wait(0.01)

    return service


def test_calls_are_told_when_they_are_sent_and_when_they_are_over(face: Face) -> None:
    recording = Recording()
    driver = face.connect(served(), client_hooks=[recording], timeout=PATIENCE)
    assert driver.call("add", [1, 2]) == 3
    with pytest.raises(MethodNotFound):
        driver.call("no.such")
    with pytest.raises(CallTimeout):
        driver.call("wait", timeout=0.2)
    items = driver.batch(lambda batch: [batch.call("add", [1, 2]), batch.call("no.such")])
    assert items[0].result() == 3
    sent, settled = recording.only(CallSent), recording.only(CallSettled)
    methods = ["add", "no.such", "wait", "add", "no.such"]
    assert [event.method for event in sent] == methods
    assert sorted(event.id for event in settled) == [event.id for event in sent]
    errors = {event.id: type(event.error) for event in settled}
    expected = [type(None), MethodNotFound, Cancelled, type(None), MethodNotFound]
    assert [errors[event.id] for event in sent] == expected


def test_the_beginning_and_the_end_of_a_connection_are_told_once(face: Face) -> None:
    recording = Recording()

    def script(peer: Peer) -> None:
        peer.request()

    driver = face.open(Scripted(script), hooks=[recording], timeout=PATIENCE)
    assert isinstance(failure(driver.begin("slow")), ConnectionLost)
    driver.close()
    eventually(lambda: recording.only(ConnectionClosed), "the end is told")
    [opened], [closed] = recording.only(ConnectionOpened), recording.only(ConnectionClosed)
    assert opened.origin is closed.origin
    [settled] = recording.only(CallSettled)
    assert (settled.method, type(settled.error)) == ("slow", ConnectionLost)


def test_what_cannot_be_read_and_what_no_call_waits_for_are_told(face: Face) -> None:
    recording = Recording()

    def script(peer: Peer) -> None:
        asked = peer.request()
        peer.say(b"{")
        peer.say(b'{"jsonrpc":"2.0","id":null,"error":{"code":7,"message":"no"}}')
        peer.answer(asked, b"1")

    driver = face.open(Scripted(script), hooks=[recording], timeout=PATIENCE)
    assert driver.call("one") == 1
    assert len(recording.only(FrameFault)) == 1
    [dropped] = recording.only(AnswerDropped)
    assert dropped.id == b"null" and dropped.error is not None and dropped.error.code == 7
    assert not dropped.refuses_notification


def test_middleware_runs_around_what_a_client_serves(face: Face) -> None:
    ours, theirs = Recording(), Recording()
    service = Service()

    @service.query
    async def answer() -> str:
        return "a lot"

    driver = face.connect(
        served(), service=service, hooks=[theirs], client_hooks=[ours], timeout=PATIENCE
    )
    assert driver.call("ask") == "a lot"
    assert (theirs.wrapped, ours.wrapped) == (["ask"], ["answer"])


def test_what_is_no_hook_is_refused(face: Face) -> None:
    with pytest.raises(UsageError, match="hooks"):
        face.open(Scripted(), hooks=[print])
