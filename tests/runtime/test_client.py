"""What a call does, and how it ends: for the asyncio client and the blocking one alike."""

import dataclasses
import select
import threading
import time
from typing import Any

import pytest

from duet_rpc import Context, Progress, Service
from duet_rpc.errors import (
    CallTimeout,
    ConnectFailed,
    ConnectionLost,
    InvalidAnswer,
    InvalidParams,
    MethodNotFound,
    RpcError,
    TransportError,
    UsageError,
)
from duet_rpc.policy import DEVELOPMENT
from duet_rpc.transports.link import Link
from tests.helpers import Recorder
from tests.runtime.faces import (
    PATIENCE,
    Driver,
    Face,
    Peer,
    Pending,
    Scripted,
    failure,
    raises_all,
)

SHORT = 0.2
"""A timeout that is to pass."""


class OutOfInk(RpcError):
    code, message = 4711, "Out of ink"


@dataclasses.dataclass
class Note:
    title: str
    stars: int = 0


def make_service() -> Service:
    service = Service()

    @service.query
    def echo(value: Any) -> Any:
        return value

    @service.query(inline=True)
    def add(a: int, b: int = 1) -> int:
        return a + b

    @service.query
    def note(title: str) -> Note:
        return Note(title, 5)

    @service.query
    def draw() -> None:
        raise OutOfInk("no cyan", data={"left": 0})

    @service.query
    def unknown_code() -> None:
        raise RpcError("odd", code=99, data=[1])

    @service.query
    def nothing() -> None:
        return None

    @service.query
    async def sleep(seconds: float) -> float:
        import asyncio

        await asyncio.sleep(seconds)
        return seconds

    return service


SERVICE = make_service()


def eventually(condition: Any) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, "it does not come about"
        time.sleep(0.005)


# Results and errors.


@pytest.mark.parametrize(
    "value", [0, 1, -1.5, "", "näh\u2028\U0001f600", [], [0], {}, {"a": None}, None, False, True]
)
def test_a_result_comes_back_as_it_is(face: Face, value: Any) -> None:
    result = face.connect(SERVICE).call("echo", {"value": value})
    assert result == value and type(result) is type(value)


@pytest.mark.parametrize("params", [[1, 2], {"a": 1, "b": 2}, (1, 2), [2], {"a": 2}])
def test_params_are_a_list_or_an_object(face: Face, params: Any) -> None:
    assert face.connect(SERVICE).call("add", params) == 3


@pytest.mark.parametrize("params", [None, [], {}])
def test_no_params_can_be_said_in_three_ways(face: Face, params: Any) -> None:
    assert face.connect(SERVICE).call("nothing", params) is None


def test_an_error_is_raised_as_the_class_of_its_code(face: Face) -> None:
    driver = face.connect(SERVICE)
    with pytest.raises(OutOfInk, match="no cyan") as caught:
        driver.call("draw")
    assert caught.value.data == {"left": 0} and caught.value.from_peer
    with pytest.raises(MethodNotFound):
        driver.call("no.such.method")
    with pytest.raises(InvalidParams):
        driver.call("add", {"a": "text"})
    with pytest.raises(RpcError) as odd:
        driver.call("unknown_code")
    assert type(odd.value) is RpcError and odd.value.code == 99 and odd.value.data == [1]


def test_a_result_is_decoded_into_the_type_that_was_asked_for(face: Face) -> None:
    driver = face.connect(SERVICE)
    assert driver.call("note", {"title": "T"}, returns=Note) == Note("T", 5)
    with pytest.raises(InvalidAnswer, match="not what was asked for"):
        driver.call("note", {"title": "T"}, returns=int)
    assert driver.call("add", [1, 1]) == 2


@pytest.mark.parametrize(
    ("params", "options"),
    [
        (5, {}),
        ("text", {}),
        ({"value": object()}, {}),
        ([], {"returns": complex | object}),
        ([1], {"on_progress": print}),
    ],
    ids=["a number", "a text", "no JSON", "no type of JSON", "progress without names"],
)
def test_what_cannot_be_sent_is_a_usage_error(face: Face, params: Any, options: Any) -> None:
    driver = face.connect(SERVICE)
    with pytest.raises(UsageError):
        driver.call("echo", params, **options)
    assert driver.stats.pending == 0
    assert driver.call("add", [1]) == 2


def test_both_framings(face: Face) -> None:
    driver = face.connect(SERVICE, framing="ndjson")
    assert driver.call("echo", {"value": "two\nlines"}) == "two\nlines"


# Time.


def test_a_timeout_touches_nobody_else_and_tells_the_server(face: Face) -> None:
    seen: list[Any] = []

    def script(peer: Peer) -> None:
        first, second = peer.request(), peer.request()
        late, other = sorted([first, second], key=lambda request: request["method"] != "late")
        cancel = peer.request()
        seen.append((cancel["method"], cancel["params"] == {"id": late["id"]}, "id" in cancel))
        peer.answer(other, b'"fine"')
        peer.answer(late, b'"too late"')
        peer.answer(peer.request(), b'"and on"')

    server = Scripted(script)
    driver = face.open(server)
    other = driver.begin("other")
    eventually(lambda: driver.stats.pending == 1)
    late = driver.begin("late", timeout=SHORT)
    error = failure(late)
    assert isinstance(error, CallTimeout) and isinstance(error, TimeoutError)
    assert "late" in str(error) and "0.2 s" in str(error)
    assert other.result(PATIENCE) == "fine"
    assert driver.call("next") == "and on"
    server.join()
    assert seen == [("$/cancelRequest", True, False)]
    stats = driver.stats
    assert (stats.calls, stats.timeouts, stats.late_answers, stats.pending) == (3, 1, 1, 0)
    assert stats.unmatched_answers == 0


def test_the_usual_timeout_is_the_clients(face: Face) -> None:
    driver = face.connect(SERVICE, timeout=SHORT)
    with pytest.raises(CallTimeout):
        driver.call("sleep", {"seconds": 60})
    assert driver.call("sleep", {"seconds": 2 * SHORT}, timeout=PATIENCE) == 2 * SHORT
    assert driver.call("sleep", {"seconds": 2 * SHORT}, timeout=None) == 2 * SHORT
    assert driver.stats.timeouts == 1


def test_a_server_that_stops_reading_holds_nobody(face: Face) -> None:
    done = threading.Event()
    server = Scripted(lambda peer: (peer.request(), done.wait(PATIENCE)))
    driver = face.open(server)
    large = {"text": "x" * 3_000_000}
    waiting = [
        driver.begin("large", large, timeout=SHORT),
        driver.begin("small", timeout=2 * SHORT),
        driver.begin("large", large, timeout=3 * SHORT),
        driver.begin("small", timeout=3 * SHORT),
    ]
    assert [type(failure(call)) for call in waiting] == [CallTimeout] * 4
    assert driver.stats.pending == 0
    begun = time.monotonic()
    driver.close()
    assert time.monotonic() - begun < PATIENCE / 2
    done.set()


def test_calls_wait_for_a_server_that_reads_again(face: Face) -> None:
    go_on = threading.Event()

    def script(peer: Peer) -> None:
        go_on.wait(PATIENCE)
        while (request := peer.read()) is not None:
            peer.answer(request, b"%d" % len(request["params"]["text"]))

    driver = face.open(Scripted(script))
    sizes = [2_000_000, 10, 1_000_000, 20, 30]
    calls = [driver.begin("size", {"text": "x" * size}) for size in sizes]
    eventually(lambda: driver.stats.pending == len(sizes))
    go_on.set()
    assert [call.result(PATIENCE) for call in calls] == sizes


def test_a_large_call_does_not_stop_our_reading(face: Face) -> None:
    # The server answers the first call before it reads the second, and does not read on until its
    # own answer, larger than any buffer, has been taken.
    def script(peer: Peer) -> None:
        first = peer.request()
        peer.answer(first, b'"%b"' % (b"y" * 8_000_000))
        peer.answer(peer.request(), b'"second"')

    driver = face.open(Scripted(script))
    first = driver.begin("first")
    eventually(lambda: driver.stats.pending == 1)
    second = driver.begin("second", {"text": "x" * 8_000_000})
    assert len(first.result(PATIENCE)) == 8_000_000
    assert second.result(PATIENCE) == "second"


def test_a_large_call_does_not_count_among_our_answers(face: Face) -> None:
    # As before, but we have an answer to give while the large call is still on its way.
    go_on = threading.Event()

    def script(peer: Peer) -> None:
        first = peer.request()
        go_on.wait(PATIENCE)
        peer.say(b'{"jsonrpc":"2.0","id":"q","method":"nope"}')
        peer.answer(first, b'"%b"' % (b"y" * 8_000_000))
        messages = [peer.request(), peer.request()]
        assert messages[1]["error"]["code"] == -32601
        peer.answer(messages[0], b'"second"')

    server = Scripted(script)
    driver = face.open(server)
    first = driver.begin("first", timeout=PATIENCE)
    eventually(lambda: driver.stats.pending == 1)
    second = driver.begin("second", {"text": "x" * 8_000_000}, timeout=PATIENCE)
    eventually(lambda: driver.stats.pending == 2)
    go_on.set()
    assert len(first.result(PATIENCE)) == 8_000_000
    assert second.result(PATIENCE) == "second"
    server.join()


def test_a_notification_waits_for_a_server_that_does_not_read(face: Face) -> None:
    go_on, received = threading.Event(), []

    def script(peer: Peer) -> None:
        go_on.wait(PATIENCE)
        received.extend(peer.read_all())

    server = Scripted(script)
    driver = face.open(server, timeout=SHORT)
    large = {"text": "x" * 1_000_000}
    with pytest.raises(CallTimeout):
        for _ in range(3):
            driver.do(lambda client: client.notify("note", large))
    go_on.set()
    driver.client._timeout = PATIENCE
    driver.do(lambda client: client.notify("last"))
    driver.close()
    server.join()
    assert received[0] == {"jsonrpc": "2.0", "method": "note", "params": large}
    assert received[-1]["method"] == "last"


# Progress.


def progressing(peer: Peer, *, every: float, times: int) -> None:
    request = peer.request()
    token = request["params"]["_meta"]["progressToken"]
    for step in range(times):
        time.sleep(every)
        peer.say(
            b'{"jsonrpc":"2.0","method":"$/progress","params":{"token":%d,"value":%d}}'
            % (token, step)
        )
    time.sleep(every)
    peer.answer(request, b'"done"')


def test_progress_extends_a_timeout(face: Face) -> None:
    server = Scripted(lambda peer: progressing(peer, every=1.0, times=4))
    driver, news = face.open(server), list[Any]()
    result = driver.call("work", {"size": 1}, timeout=4.0, on_progress=news.append)
    assert result == "done" and news == [Progress(n) for n in range(4)]


@pytest.mark.parametrize("kind", ["query", "command"])
def test_queries_and_commands_have_progress_too(face: Face, kind: str) -> None:
    driver = face.open(Scripted(lambda peer: progressing(peer, every=0.0, times=2)))
    news = list[Any]()
    result = driver.do(
        lambda client: getattr(client, kind)("work", {"size": 1}, on_progress=news.append)
    )
    assert result == "done" and news == [Progress(0), Progress(1)]


def test_progress_extends_a_timeout_no_further_than_the_total(face: Face) -> None:
    def script(peer: Peer) -> None:
        try:
            progressing(peer, every=0.1, times=200)
        except OSError:
            pass  # the client is gone

    driver = face.open(Scripted(script))
    begun = time.monotonic()
    with pytest.raises(CallTimeout):
        driver.call("work", timeout=PATIENCE, total_timeout=0.5)
    assert time.monotonic() - begun < 15
    driver.close()


TOTAL = "no result within 0.3 s, its total timeout"


@pytest.mark.parametrize(
    ("usual", "options", "said"),
    [
        (30.0, {"total_timeout": 0.3}, TOTAL),
        (30.0, {"timeout": None, "total_timeout": 0.3}, TOTAL),
        (None, {"total_timeout": 0.3}, TOTAL),
        (30.0, {"timeout": 20, "total_timeout": 0.3}, TOTAL),
        (30.0, {"timeout": 0.3, "total_timeout": 20}, "no answer within 0.3 s"),
        (30.0, {"timeout": 0.3, "total_timeout": 0.3}, "no answer within 0.3 s"),
    ],
)
@pytest.mark.parametrize("way", ["call", "query", "command"])
def test_the_limit_that_ended_a_call_is_named(
    face: Face, way: str, usual: float | None, options: dict[str, Any], said: str
) -> None:
    driver = face.open(Scripted(Peer.read_all), timeout=usual)
    with pytest.raises(CallTimeout) as caught:
        driver.do(lambda client: getattr(client, way)("work", **options))
    assert str(caught.value) == f"work: {said}"
    assert driver.stats.timeouts == 1


def test_the_total_binds_while_progress_comes_though_there_is_no_timeout(face: Face) -> None:
    def script(peer: Peer) -> None:
        try:
            progressing(peer, every=0.05, times=400)
        except OSError:
            pass  # the client is gone

    driver = face.open(Scripted(script))
    came: list[Any] = []
    with pytest.raises(CallTimeout, match="no result within 0.5 s, its total timeout"):
        driver.call("work", timeout=None, total_timeout=0.5, on_progress=came.append)
    assert came
    driver.close()


@pytest.mark.parametrize("options", [{"timeout": None}, {}])
def test_the_total_covers_connecting_anew(face: Face, options: dict[str, Any]) -> None:
    opener = Slow(Peer.read, Peer.read_all)
    driver = face.open(opener, reconnect=True)
    with pytest.raises(ConnectionLost):
        driver.call("first")
    opener.delay = 0.2
    with pytest.raises(CallTimeout, match=r"no result within 0\.5 s, its total timeout"):
        driver.call("work", total_timeout=0.5, **options)
    driver.close()


class Slow(Scripted):
    """Takes its time to connect."""

    delay = 0.0

    def open(self, timeout: float | None = None) -> Link:
        time.sleep(self.delay)
        return super().open(timeout)


def test_a_handlers_news_reach_the_caller(face: Face) -> None:
    service = Service()

    @service.query
    def count(to: int, ctx: Context) -> int:
        for number in range(to):
            ctx.progress({"at": number})
        return to

    driver, news = face.connect(service), list[Any]()
    assert driver.call("count", {"to": 3}, on_progress=news.append) == 3
    assert news == [Progress({"at": n}) for n in range(3)]
    assert driver.call("count", {"to": 3}) == 3, "nobody asked for news"


def test_news_that_fail_are_the_listeners_own_affair(face: Face) -> None:
    service = Service()

    @service.query
    def tell(ctx: Context) -> str:
        ctx.progress(1)
        return "told"

    def listener(value: Any) -> None:
        raise RuntimeError("not now")

    driver = face.connect(service)
    assert driver.call("tell", on_progress=listener) == "told"


def test_progress_that_nobody_asked_for_extends_nothing(face: Face) -> None:
    def script(peer: Peer) -> None:
        request = peer.request()
        stop = time.monotonic() + PATIENCE
        try:
            while time.monotonic() < stop:
                peer.say(
                    b'{"jsonrpc":"2.0","method":"$/progress","params":{"token":%d,"value":1}}'
                    % request["id"]
                )
                time.sleep(SHORT / 4)
        except OSError:
            pass

    driver = face.open(Scripted(script))
    with pytest.raises(CallTimeout):
        driver.call("work", timeout=SHORT)
    driver.close()


# The end of a connection.


def test_a_lost_connection_ends_every_call_at_once(face: Face) -> None:
    def script(peer: Peer) -> None:
        for _ in range(20):
            peer.request()

    driver = face.open(Scripted(script))
    calls = [driver.begin("wait", timeout=None) for _ in range(20)]
    errors = [failure(call) for call in calls]
    assert {type(error) for error in errors} == {ConnectionLost}
    assert len({id(error) for error in errors}) == 20, "each call has an error of its own"
    with raises_all(ConnectionLost, TransportError):
        driver.call("later")
    with pytest.raises(ConnectionLost):
        driver.do(lambda client: client.notify("later"))
    stats = driver.stats
    assert (stats.lost, stats.pending) == (20, 0)


def test_answers_that_came_before_the_end_are_answers(face: Face) -> None:
    def script(peer: Peer) -> None:
        requests = [peer.request() for _ in range(5)]
        for request in requests[:4]:
            peer.answer(request, b'"last words"')

    driver = face.open(Scripted(script))
    calls = [driver.begin("wait") for _ in range(5)]
    outcomes = [call.exception(PATIENCE) or call.result() for call in calls]
    assert outcomes.count("last words") == 4
    assert [type(outcome) for outcome in outcomes].count(ConnectionLost) == 1


def test_a_server_that_takes_nothing_more_has_said_its_last_words(face: Face) -> None:
    import socket

    answered = threading.Event()

    def script(peer: Peer) -> None:
        request = peer.request()
        peer.socket.shutdown(socket.SHUT_RD)  # our next write fails, although it lives
        peer.answer(request, b'"answer"')
        answered.set()
        time.sleep(2)

    driver = face.open(Scripted(script))
    first = driver.begin("first")
    answered.wait(PATIENCE)
    with pytest.raises(ConnectionLost):
        driver.call("second", timeout=PATIENCE)
    assert first.result(PATIENCE) == "answer"
    driver.close()


def test_closing_ends_calls_that_wait(face: Face) -> None:
    driver = face.connect(SERVICE)
    calls = [driver.begin("sleep", {"seconds": 100}, timeout=None) for _ in range(5)]
    eventually(lambda: driver.stats.pending == 5)
    driver.close()
    for call in calls:
        error = failure(call)
        assert isinstance(error, ConnectionLost) and "closed" in str(error)
    assert driver.stats.pending == 0


def test_a_closed_client_says_so(face: Face) -> None:
    driver = face.connect(SERVICE)
    driver.close()
    driver.close()
    with pytest.raises(ConnectionLost, match="the client was closed"):
        driver.call("add", [1])
    with pytest.raises(UsageError, match="make a new one"):
        driver.do(lambda client: client.open())
    assert driver.batch(lambda batch: [batch.call("add", [1])])[0].error() is not None


def test_a_client_that_was_never_opened_says_so(face: Face) -> None:
    from duet_rpc import Client, blocking

    kind = Client if face.name == "asyncio" else blocking.Client
    unopened = kind(Scripted())
    driver = face.connect(SERVICE)
    with pytest.raises(UsageError, match="with"):
        driver.do(lambda client: unopened.call("add", [1]))


def test_opening_is_done_once(face: Face) -> None:
    driver = face.open(Scripted(lambda peer: peer.read_all()))
    driver.do(lambda client: client.open())
    assert driver.stats.connects == 1
    driver.close()


def test_a_server_that_cannot_be_reached(face: Face) -> None:
    with raises_all(ConnectFailed, TransportError):
        face.open(Scripted())


# Matching.


def test_ids_are_never_used_twice(face: Face) -> None:
    seen: list[Any] = []

    def script(peer: Peer) -> None:
        while (message := peer.read()) is not None:
            if "id" in message:
                seen.append(message["id"])
                if message["method"] == "answer":
                    peer.answer(message)

    server = Scripted(script)
    driver = face.open(server)
    for round in range(30):
        driver.call("answer")
        if round % 10 == 0:
            with pytest.raises(CallTimeout):
                driver.call("ignore", timeout=0.02)
    driver.close()
    server.join()
    assert len(seen) == len(set(seen)) == 33


def test_answers_find_their_calls_in_any_order(face: Face) -> None:
    count = 40

    def script(peer: Peer) -> None:
        import random

        requests = [peer.request() for _ in range(count)]
        random.Random(7).shuffle(requests)
        for request in requests:
            peer.answer(request, b"%d" % request["params"]["number"])

    driver = face.open(Scripted(script))
    calls = [driver.begin("n", {"number": number}) for number in range(count)]
    assert [call.result(PATIENCE) for call in calls] == list(range(count))


def test_one_at_a_time(face: Face) -> None:
    order: list[str] = []

    def script(peer: Peer) -> None:
        peer.socket.settimeout(PATIENCE)
        for _ in range(4):
            request = peer.request()
            order.append(f"asked {request['id']}")
            peer.socket.settimeout(0.3)
            try:
                stray = peer.read()
                order.append(f"too early {stray}")
            except TimeoutError:
                pass
            peer.socket.settimeout(PATIENCE)
            peer.answer(request)

    server = Scripted(script)
    driver = face.open(server, allow_concurrent_requests=False)
    calls = [driver.begin("x") for _ in range(4)]
    for call in calls:
        call.result(PATIENCE)
    server.join()
    assert order == ["asked 1", "asked 2", "asked 3", "asked 4"]


def test_one_at_a_time_goes_on_after_a_timeout(face: Face) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        cancel = peer.request()
        assert cancel["method"] == "$/cancelRequest"
        peer.answer(peer.request(), b'"second"')

    server = Scripted(script)
    driver = face.open(server, allow_concurrent_requests=False)
    first = driver.begin("first", timeout=SHORT)
    eventually(lambda: driver.stats.pending == 1)
    second = driver.begin("second")
    assert isinstance(failure(first), CallTimeout)
    assert second.result(PATIENCE) == "second"
    server.join()


def test_one_at_a_time_a_call_whose_turn_never_came_is_never_sent(face: Face) -> None:
    seen: list[str] = []
    gave_up = threading.Event()

    def script(peer: Peer) -> None:
        first = peer.request()
        gave_up.wait(PATIENCE)
        peer.answer(first)
        seen.extend(message["method"] for message in peer.read_all())

    server = Scripted(script)
    driver = face.open(server, allow_concurrent_requests=False)
    first = driver.begin("first")
    eventually(lambda: driver.stats.pending == 1)
    never = driver.begin("never", timeout=SHORT)
    assert isinstance(failure(never), CallTimeout)
    gave_up.set()
    first.result(PATIENCE)
    driver.do(lambda client: client.notify("end"))
    driver.close()
    server.join()
    assert seen == ["end"]


@pytest.mark.parametrize("in_batch", [False, True], ids=["alone", "in a batch"])
def test_a_refused_notification_is_told_with_its_reason(face: Face, in_batch: bool) -> None:
    service, log = make_service(), Recorder()

    @service.command
    def pay() -> None: ...

    driver = face.connect(service, policy=DEVELOPMENT, log=log)
    if in_batch:
        driver.batch(lambda batch: [batch.notify("pay"), batch.notify("nothing")])
    else:
        driver.do(lambda client: client.notify("pay"))
        driver.do(lambda client: client.notify("nothing"))
    assert driver.call("add", [1]) == 2
    for line, reason in zip(
        log.lines, ["command-requires-id", "notification-not-allowed"], strict=True
    ):
        assert (line.severity, line.text) == ("warn", "a notification was refused")
        assert line.fields["reason"] == reason
    refused = log.lines[0].fields["error"]
    assert refused.data["detail"] == "pay is a command: send it with an id"
    assert driver.stats.unmatched_answers == 2


def test_a_refused_notification_is_told_although_nobody_calls_again(face: Face) -> None:
    service, log = make_service(), Recorder()
    driver = face.connect(service, policy=DEVELOPMENT, log=log)
    driver.do(lambda client: client.notify("nothing"))
    if face.name == "blocking":  # which reads when somebody waits, or when it is closed
        assert select.select([driver.client._host.channel.read_fd], [], [], PATIENCE)[0]
        driver.close()
    eventually(lambda: log.lines)
    assert [line.fields["reason"] for line in log.lines] == ["notification-not-allowed"]


def test_one_at_a_time_does_not_hold_notifications(face: Face) -> None:
    def script(peer: Peer) -> None:
        request = peer.request()
        assert peer.request() == {"jsonrpc": "2.0", "method": "note"}
        peer.answer(request)

    server = Scripted(script)
    driver = face.open(server, allow_concurrent_requests=False)
    call = driver.begin("wait")
    eventually(lambda: driver.stats.pending == 1)
    driver.do(lambda client: client.notify("note"))
    call.result(PATIENCE)
    server.join()


def outcomes(calls: list[Pending]) -> list[Any]:
    return [call.exception(PATIENCE) or call.result() for call in calls]


def test_four_and_more_parallel_calls(face: Face) -> None:
    driver = face.connect(SERVICE)
    calls = [driver.begin("echo", {"value": n}) for n in range(64)]
    assert outcomes(calls) == list(range(64))


def drive(driver: Driver, count: int) -> None:
    for number in range(count):
        assert driver.call("add", [number, 0]) == number


def test_counts(face: Face) -> None:
    driver = face.connect(SERVICE)
    drive(driver, 10)
    stats = driver.stats
    assert (stats.calls, stats.connects, stats.pending, stats.faults) == (10, 1, 0, 0)
