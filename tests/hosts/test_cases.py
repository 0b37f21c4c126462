"""The same behaviour on every host. A case that leaves a host out says why."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts.table import (
    ANSWERING,
    ASYNCIO,
    ASYNCIO_PIPES,
    BLOCKING,
    BLOCKING_PIPES,
    EVERY,
    EXCHANGE,
    MEMORY,
    MESSAGE_LINK,
    ON_A_LOOP,
    ONE_AT_A_TIME,
    TCP,
    UNIX,
    Host,
    Line,
    methods,
    over,
    steps,
)
from tests.transports.lines import PATIENCE, eventually, frame, notification, request


def answers(line: Line, count: int) -> dict[object, dict[str, object]]:
    """Read so many answers; calls of the host's own are passed over."""
    found: dict[object, dict[str, object]] = {}
    while len(found) < count:
        message = line.answer()
        assert message is not None, "the host closed the connection"
        if "method" not in message:
            found[message["id"]] = message
    return found


@over(ANSWERING)
def test_a_request_is_answered(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        assert line.call("add", [1, 2]) == {"jsonrpc": "2.0", "id": 1, "result": 3}


# A frame that takes too long.


@over([host for host in EVERY if host.has_socket])
def test_a_late_frame_ends_a_socket(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path, read_timeout=0.2) as line:
        assert line.call("add", [1, 2])["result"] == 3
        line.write(request("add", [1, 2])[:-5])
        assert line.answer() is None
        line.wait_for_log("a frame took too long")


@over([host for host in EVERY if host.carrier == "pipes"])
def test_a_late_frame_is_dropped_from_pipes(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path, read_timeout=0.2) as line:
        for times in (1, 2):
            line.write(request("add", [1, 2])[:-5])
            line.wait_for_log("a frame took too long", times)
            assert line.call("add", [1, times])["result"] == 1 + times


# What a handler learns of its request.


@over(ANSWERING, without=[ONE_AT_A_TIME])  # a method with a timeout is served on a loop
def test_a_handler_knows_its_deadline(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        for method in ("deadline", "deadline_async"):
            assert 0 < line.call(method)["result"] <= 60


@over(ANSWERING)
def test_a_handlers_log_lines_carry_its_method_and_ids(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        for times, method in enumerate(methods(host, "log"), 1):
            connection = line.call(method, id=f"seven-{times}")["result"]
            logged = line.wait_for_log("a line of the handler", times)
            for field in ("warn", f"method={method}", f"correlation_id=seven-{times}"):
                assert f"{field} " in f"{logged} "
            assert f"connection_id={connection}" in logged


TRANSPORTS = {"daemon": "stdio", "memory": "memory", "client": "memory"}


@over(ANSWERING)
def test_a_handler_knows_where_its_request_comes_from(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        logged = line.call("log")["result"]
        origin = line.call("origin")["result"]
        assert origin.pop("connection_id") == logged
        transport = TRANSPORTS.get(host.kind, host.program)
        assert origin.pop("transport") == transport
        address = origin.pop("address")
        assert address.startswith("tcp://127.0.0.1:") if transport == "tcp" else address is None
        principal = f"uid:{os.getuid()}" if transport == "unix" else "local"
        assert origin == {
            "principal": principal,
            "scopes": [],
            "headers": {},
            "can_be_called": host is not EXCHANGE,
        }


# Hooks.


def events(line: Line) -> list[str]:
    """List the events that a host has told so far."""
    found = (line.partition("event ") for line in line.log.splitlines())
    return [event for before, word, event in found if word and not before]


@over(EVERY)
def test_hooks_run_around_handlers_and_are_told_events(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path, hooks=True) as line:
        assert line.call("add", [1, 2])["result"] == 1000
        line.wait_for_log("around add 3")
        for method in methods(host, "log"):
            connection = line.call(method)["result"]
            line.wait_for_log(f'around {method} "{connection}"')
        assert line.call("no.such", [])["error"]["code"] == -32601
        line.wait_for_log("event RequestRefused no.such")
        asked = line.call("call_back", id="mine")
        line.wait_for_log("event CallSent question")
        line.write(frame(b'{"jsonrpc":"2.0","id":%d,"result":1}' % asked["id"]))
        assert line.answer()["result"] == 1
        line.wait_for_log("event CallSettled question")
        told = events(line)
        assert told[:3] == ["ConnectionOpened", "RequestBegun add", "RequestEnded add"]
        line.channel.close()
        line.wait_for_log("event ConnectionClosed")


@over(EVERY)
@pytest.mark.clause("hooks-8")
def test_events_of_a_connection_bring_its_peer(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path, greets=True) as line:
        greeting = line.answer()
        assert greeting["method"] == "welcome" and greeting["params"]["connection"]
        assert line.call("add", [1, 2])["result"] == 3
        line.channel.close()
        assert line.wait_for_log("gone").endswith("gone, 0 left, connected: False")


# Notifications keep their order, and come before the requests that follow them.


@over(EVERY)
@pytest.mark.parametrize("policy", ["spec", "editor", "development"])
def test_a_request_sees_all_notifications_before_it_in_order(
    host: Host, policy: str, tmp_path: Path
) -> None:
    kinds = methods(host, "change")
    looks = ["changed", "changed_inline"] if host.has_async else ["changed"]
    with host.serve(tmp_path, preset=policy) as line:
        sent = []
        for number in range(30):
            sent.append(notification(kinds[number % len(kinds)], [number]))
            sent.append(request(looks[number % len(looks)], id=number))
        line.write(b"".join(sent))
        for id, answer in answers(line, 30).items():
            seen = answer["result"]
            assert isinstance(id, int) and isinstance(seen, list)
            # A notification that follows may begin while the request still runs.
            assert len(seen) > id and seen == list(range(len(seen)))


@over(EVERY)
@pytest.mark.clause("hooks-5")
def test_middleware_of_a_service_runs_around_its_handlers(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path, middleware=True) as line:
        for method in methods(host, "use"):
            assert line.call(method)["result"] == method
            line.wait_for_log(f"guard {method}")
            line.wait_for_log(f"audit {method} 0")
            assert line.call(method, {"fails": "lookup"})["error"]["code"] == 404
            line.wait_for_log(f"audit {method} 404")
        line.wait_for_log("guard saw 404")
        refused = line.call("effect", [str(tmp_path / "never")])["error"]
        principal = f"uid:{os.getuid()}" if host == UNIX else "local"
        assert (refused["code"], refused["data"]) == (429, {"principal": principal})
        assert not (tmp_path / "never").exists()
        if host.kind != "client":
            assert line.call("version")["result"]
            assert "guard version" not in line.log, "the server's own methods are not the service's"


# What a handler is given that no caller sends.


def using(host: Host) -> list[str]:
    """Name the handlers that use a dependency, in every place where a handler can run."""
    plain = ["use", "use_command"]
    return [*plain, "use_inline", "use_async"] if host.has_async else plain


@over(EVERY)
@pytest.mark.clause("dependencies-4")
def test_a_dependency_is_open_while_the_handler_runs(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        for method in using(host):
            before = len(steps(line))
            key = {"idempotency_key": method} if method == "use_command" else {}
            assert line.call(method, key)["result"] == method
            # It is closed before the answer leaves.
            said = [each.removesuffix(f" {method}") for each in steps(line)[before:]]
            inner = ["open", "open inner", "use", "close inner", "done", "close"]
            assert said == (inner if method == "use_async" else ["open", "use", "done", "close"])


@over(EVERY)
@pytest.mark.clause("dependencies-5")
def test_a_dependency_sees_the_exception_of_the_handler(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        for method in using(host):
            before = len(steps(line))
            assert line.call(method, {"fails": "permission"})["error"]["code"] == 403
            said = [each.removesuffix(f" {method}") for each in steps(line)[before:]]
            assert [each for each in said if "inner" not in each] == [
                "open",
                "use",
                "saw PermissionError",
                "close",
            ]
            assert line.call(method, {"fails": "other"})["error"]["code"] == -32603


@over(EVERY)
@pytest.mark.clause("hooks-7")
def test_an_exception_of_a_library_is_answered_as_the_service_says(
    host: Host, tmp_path: Path
) -> None:
    with host.serve(tmp_path) as line:
        for method in using(host):
            params = {"fails": "lookup"}
            if method == "use_command":
                params["idempotency_key"] = "once"
                assert line.call(method, params)["error"] == {"code": 404, "message": "Missing"}
            assert line.call(method, params)["error"] == {"code": 404, "message": "Missing"}
        assert "handler failed" not in line.log


# Lifespans. A client runs none: its program is around it, and opens what its handlers need.

SERVERS = [ONE_AT_A_TIME, ON_A_LOOP, UNIX, TCP, MEMORY]


def lifetimes(line: Line) -> list[str]:
    """List what the lifespans have said so far."""
    return [each for each in line.log.splitlines() if each.startswith(("outer", "inner"))]


@over(SERVERS)
@pytest.mark.clause("lifespan-1")
def test_lifespans_are_around_all_that_is_served(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path, lifespan="well") as line:
        assert line.call("living_on")["result"] == ["Outer", "Inner"]
        assert lifetimes(line) == ["outer starts", "inner starts"]
        if host in (UNIX, TCP):
            line.process.send_signal(signal.SIGTERM)
        else:
            line.channel.close()
        assert line.process.wait(PATIENCE) == 0
        assert lifetimes(line)[2:] == ["inner ends", "outer ends"]


@over([ONE_AT_A_TIME, ON_A_LOOP, UNIX, TCP])
@pytest.mark.clause("lifespan-4")
def test_it_ends_although_a_lifespan_does_not(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path, lifespan="blocks") as line:
        assert line.call("living_on")["result"] == ["Outer", "Inner"]
        line.process.send_signal(signal.SIGTERM)
        assert line.process.wait(PATIENCE) == 0
        assert lifetimes(line)[2:] == ["inner ends", "outer ends"]
        line.wait_for_log("ended although a lifespan has not ended")


@over([ON_A_LOOP, UNIX, TCP])
@pytest.mark.clause("lifespan-3")
def test_lifespans_end_after_the_last_handler(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path, lifespan="well") as line:
        line.write(request("sleep_async"))
        line.wait_for_log("sleeping")
        line.process.send_signal(signal.SIGTERM)
        assert line.process.wait(PATIENCE) == 0
        said = [each for each in line.log.splitlines() if each in ("cancelled", "inner ends")]
        assert said == ["cancelled", "inner ends"]


@over([ON_A_LOOP, UNIX, TCP])
@pytest.mark.clause("lifespan-3")
def test_a_handler_that_does_not_end_does_not_keep_lifespans_from_ending(
    host: Host, tmp_path: Path
) -> None:
    with host.serve(tmp_path, lifespan="well") as line:
        line.write(request("hold", [str(tmp_path / "never")]))
        line.wait_for_log("holding")
        line.process.send_signal(signal.SIGTERM)
        assert line.process.wait(PATIENCE) == 0
        assert lifetimes(line)[2:] == ["inner ends", "outer ends"]
        line.wait_for_log("ended although a handler is still running")


@pytest.mark.parametrize("host", ["stdio one at a time", "stdio on a loop", "unix", "tcp"])
@pytest.mark.clause("lifespan-2")
def test_a_lifespan_that_fails_to_start_ends_the_process(host: str, tmp_path: Path) -> None:
    socket = tmp_path / "socket"
    limit = 1 if host == "stdio one at a time" else 16
    ended = subprocess.run(
        [sys.executable, "-m", "tests.hosts.served", host]
        + [json.dumps({"lifespan": "fails", "max_in_flight": limit}), str(socket)],
        input=request("add", [1, 2]),
        capture_output=True,
        timeout=PATIENCE,
    )
    assert (ended.returncode, ended.stdout) == (1, b"")
    log = ended.stderr.decode()
    assert "a lifespan failed to start; nothing is served" in log
    assert "OSError: no such pool" in log
    said = [each for each in log.splitlines() if each.startswith(("outer", "inner"))]
    assert said == ["outer starts", "inner starts"], "the outer one sees the error at its yield"
    assert not socket.exists()


@pytest.mark.parametrize("host", ["stdio one at a time", "stdio on a loop", "unix"])
@pytest.mark.clause("lifespan-4")
def test_it_ends_although_a_lifespan_does_not_start(host: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    rules = json.dumps({"lifespan": "hangs", "max_in_flight": 1})
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.hosts.served", host, rules, str(tmp_path / "socket")],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
    with process:
        eventually(lambda: "outer starts" in log.read_text(), "the lifespan starts")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    assert "ended although a lifespan has not started" in log.read_text()
    assert not (tmp_path / "socket").exists()


@over([ASYNCIO, BLOCKING])
@pytest.mark.clause("lifespan-5")
def test_a_client_refuses_a_service_with_a_lifespan(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path, lifespan="well") as line:
        assert line.process.wait(PATIENCE) == 1
        line.wait_for_log("UsageError: outer: a client runs no lifespan")


# A handler's own calls.


@over(EVERY)
def test_the_time_of_a_handlers_call_starts_when_it_is_called(host: Host, tmp_path: Path) -> None:
    timeout = 2.0
    with host.serve(tmp_path) as line:
        called = methods(host, "call_and_dawdle")
        line.write(b"".join(request(method, [timeout], method) for method in called))
        for method, answer in answers(line, len(called)).items():
            waited = answer["result"]
            # From the wait on it would be the whole timeout; a loaded machine has most of it.
            assert isinstance(waited, float) and waited < 0.75 * timeout, method


@over(EVERY)
def test_a_handlers_call_is_answered(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        asked = line.call("call_back", id="mine")
        assert asked["method"] == "question"
        line.write(frame(b'{"jsonrpc":"2.0","id":%d,"result":"a lot"}' % asked["id"]))
        assert line.answer() == {"jsonrpc": "2.0", "id": "mine", "result": "a lot"}


@over(EVERY)
def test_the_timeout_of_a_handlers_call_is_checked(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        for outcome in line.call("call_with_bad_timeouts")["result"]:
            assert "give seconds, 0 or more, or None for no bound" in outcome


# Reading goes on while a handler runs. The event loop of an asyncio client, and of a test in
# memory, is the program's own, and the program's calls are made on it without a lock: no other
# thread may read in its place.

WATCHED = [host for host in EVERY if host not in (MEMORY, MESSAGE_LINK, ASYNCIO, ASYNCIO_PIPES)]


@over(WATCHED)
@pytest.mark.parametrize("policy", ["spec", "editor"])
def test_a_request_is_cancelled_while_its_handler_blocks(
    host: Host, policy: str, tmp_path: Path
) -> None:
    with host.serve(tmp_path, preset=policy) as line:
        for times, method in enumerate(methods(host, "hold"), 1):
            gate = tmp_path / method
            line.write(request(method, [str(gate)], "held"))
            line.wait_for_log("holding", times)
            line.write(notification("$/cancelRequest", {"id": "held"}))
            answer = line.answer()
            assert (answer["id"], answer["error"]["code"]) == ("held", -32800)
            gate.touch()
            assert line.call("add", [1, 2], f"after {times}")["result"] == 3


@over(WATCHED)
def test_a_cancelled_request_is_not_answered_where_the_dialect_says_so(
    host: Host, tmp_path: Path
) -> None:
    with host.serve(tmp_path, dialect="mcp") as line:
        for times, method in enumerate(methods(host, "heed"), 1):
            line.write(request(method, id="held"))
            line.wait_for_log("heeding", times)
            line.write(notification("notifications/cancelled", {"requestId": "held"}))
            line.wait_for_log("heeded", times)
            assert line.call("add", [1, 2], f"after {times}")["result"] == 3


@over(EVERY)
@pytest.mark.parametrize("dialect", ["jsonrpc", "mcp"])
def test_progress_is_spelled_as_the_dialect_does(host: Host, dialect: str, tmp_path: Path) -> None:
    with host.serve(tmp_path, dialect=dialect) as line:
        line.write(request("report", {"_meta": {"progressToken": "t"}}))
        for done in range(3):
            parts = {"total": 3, "message": f"page {done}"}
            spelled = (
                ("notifications/progress", {"progressToken": "t", "progress": done, **parts})
                if dialect == "mcp"
                else ("$/progress", {"token": "t", "value": {"done": done, **parts}})
            )
            message = line.answer()
            assert (message["method"], message["params"]) == spelled
        assert line.answer() == {"jsonrpc": "2.0", "id": 1, "result": None}


@over([UNIX, TCP])
def test_one_blocked_loop_stops_the_reading_of_no_connection(host: Host, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with host.serve(tmp_path) as line, line.another() as early:
        assert early.call("add", [1, 2])["result"] == 3
        line.write(request("hold_async", [str(gate)], "held"))
        line.wait_for_log("holding")
        for times in range(3):
            early.write(request("add", [1, 2], times))
            early.write(notification("$/cancelRequest", {"id": times}))
            answer = early.answer()
            assert (answer["id"], answer["error"]["code"]) == (times, -32800)
        early.write(request("add", [3, 4], "queued"))
        line.write(notification("$/cancelRequest", {"id": "held"}))
        assert line.answer()["error"]["code"] == -32800
        assert early.is_quiet(), "nothing is started meanwhile"
        gate.touch()
        assert early.answer() == {"jsonrpc": "2.0", "id": "queued", "result": 7}
        assert line.call("add", [1, 2])["result"] == 3


# The end of a process comes within two seconds of its signal, whatever the service has left behind.

PROCESSES = [ONE_AT_A_TIME, ON_A_LOOP, UNIX, TCP]


@over(PROCESSES)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("what", ["thread", "hook", "both", "pool"])
def test_it_ends_although_a_handler_has_left_something_behind(
    host: Host, what: str, number: signal.Signals, tmp_path: Path
) -> None:
    with host.serve(tmp_path) as line:
        assert line.call("leave_behind", [what])["result"] is None
        line.process.send_signal(number)
        assert line.process.wait(PATIENCE) == 0
        line.wait_for_log(f"ended why={number.name}")
        line.wait_for_log("ended although the program has left a thread or an exit hook")


@over([ON_A_LOOP, UNIX, TCP])
def test_it_ends_although_an_inline_handler_blocks_and_more_has_come(
    host: Host, tmp_path: Path
) -> None:
    with host.serve(tmp_path) as line:
        line.write(request("hold_inline", [str(tmp_path / "never")]))
        line.wait_for_log("holding")
        line.write(request("add", [1, 2]))
        line.process.send_signal(signal.SIGTERM)
        assert line.process.wait(PATIENCE) == 0


@over(PROCESSES)
def test_what_waits_behind_a_blocked_handler_is_refused_before_the_end(
    host: Host, tmp_path: Path
) -> None:
    with host.serve(tmp_path) as line:
        method = "hold_async" if host.has_async else "hold"
        line.write(request(method, [str(tmp_path / "never")], "held"))
        line.wait_for_log("holding")
        line.write(request("add", [1, 2], "waits"))
        line.process.send_signal(signal.SIGTERM)
        answer = line.answer()
        assert (answer["id"], answer["error"]["code"]) == ("waits", -32018)
        assert line.process.wait(PATIENCE) == 0


# Forks. A child is no second server: when its handler ends, the child ends, and nothing of ours is
# read or written in it.


def forking(host: Host) -> list[str]:
    """Name the handlers that fork, in every place where a handler can run."""
    plain = ["fork", "fork_with_context", "fork_command"]
    return [*plain, "fork_inline", "fork_async"] if host.has_async else plain


@over(EVERY)
@pytest.mark.parametrize(("how", "status"), [("exit", 7), ("return", 0), ("raise", 1)])
def test_a_child_ends_with_its_handler(host: Host, how: str, status: int, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    effects = ["effect", "effect_inline"] if host.has_async else ["effect"]
    with host.serve(tmp_path) as line:
        for times, method in enumerate(forking(host), 1):
            more = [request(name, [str(trace)], name) for name in effects]
            key = {"idempotency_key": str(times)} if method == "fork_command" else {}
            line.write(b"".join([request(method, {"how": how} | key, "forks"), *more]))
            found = answers(line, 1 + len(more))
            assert found["forks"].get("result") == status, method
            assert trace.read_text() == "x" * len(effects) * times, "the child ran nothing else"
            for name in methods(host, "deadline") if host.has_async else ["add"]:
                line.call(name, [1, 2] if name == "add" else None)  # the loop still wakes up
        log = line.log
        assert "handler failed" not in log
        assert ("of the child" in log) == (how == "raise"), "Python says it, on the child's stderr"


@over(EVERY)
@pytest.mark.parametrize("how", ["exit", "return"])
def test_a_child_does_not_go_on_with_a_batch(host: Host, how: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    suffix = "_inline" if host.has_async else ""
    forks = b'{"jsonrpc":"2.0","id":1,"method":"fork%b","params":["%b"]}'
    acts = b'{"jsonrpc":"2.0","id":2,"method":"effect%b","params":["%b"]}'
    with host.serve(tmp_path) as line:
        for end in (suffix, ""):
            items = (
                forks % (end.encode(), how.encode()),
                acts % (end.encode(), str(trace).encode()),
            )
            line.write(frame(b"[%b,%b]" % items))
            first, second = line.answer()
            assert (first["result"], second["result"]) == (7 if how == "exit" else 0, None)
        assert trace.read_text() == "xx"


# Each coroutine of a blocking client has a loop of its own, which its child may use.
@over(EVERY, without=[ONE_AT_A_TIME, BLOCKING, BLOCKING_PIPES])
def test_a_child_that_awaits_ends_there(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        assert line.call("fork_async", ["await"])["result"] == 1
        assert "a child that a handler has forked cannot await" in line.log
        for how in ("task", "callback"):
            assert line.call("fork_below", [how])["result"] == 1, how
        assert line.call("fork", ["exit"])["result"] == 7
        assert line.call("deadline_async")["result"] > 0


@over(ANSWERING)
def test_a_handler_uses_multiprocessing(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        for _ in range(2):
            assert line.call("work_in_processes", [[-1, 2, -3]])["result"] == [1, 2, 3]


@over([UNIX, TCP])
def test_a_child_that_stays_keeps_no_connection_open(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line, line.another() as other:
        pid = line.call("fork_and_stay")["result"]
        try:
            assert other.call("shutdown")["result"]
            assert other.answer() is None, "the server has closed it, and nobody else holds it"
            line.process.send_signal(signal.SIGTERM)
            assert line.answer() is None
            assert line.process.wait(PATIENCE) == 0
        finally:
            os.kill(pid, signal.SIGKILL)


# A peer that outlives its request.


def remind(line: Line, gate: Path) -> None:
    """Have a host talk to us after its handler has ended."""
    assert line.call("remember", [str(gate)])["result"] is None
    assert line.call("add", [1, 2])["result"] == 3
    gate.touch()
    reminder = line.answer()
    assert (reminder["method"], reminder["params"]) == ("reminder", {"n": 1})
    asked = line.answer()
    assert asked["method"] == "question"
    line.write(frame(b'{"jsonrpc":"2.0","id":%d,"result":7}' % asked["id"]))
    line.wait_for_log("the peer answered 7")


@over(EVERY)
def test_a_peer_can_be_told_things_after_its_request(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        remind(line, tmp_path / "gate")


@over([UNIX, TCP])  # which go on when the connection is gone
def test_a_peer_that_is_gone_is_known_to_be(host: Host, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with host.serve(tmp_path) as line:
        remind(line, gate)
        line.channel.close()
        gate.with_name("gate.gone").touch()
        line.wait_for_log("the peer is gone", 2)


# Commands in order.


@over(EVERY, without=[ONE_AT_A_TIME])
def test_commands_run_one_at_a_time_beside_queries(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path, ordered_commands=True) as line:
        for method in methods(host, "keep"):
            gates = [tmp_path / f"{method} {number}" for number in range(4)]
            for number, gate in enumerate(gates):
                params = {"name": gate.name, "until": str(gate)}
                line.write(request(method, params, number))
            line.wait_for_log(f"keeping {gates[0].name}")
            assert line.call("add", [1, 2], "beside")["result"] == 3
            line.write(notification("$/cancelRequest", {"id": 1}))
            assert line.answer()["error"]["code"] == -32800
            for number in (0, 2, 3):
                gates[number].touch()
                answer = line.answer()
                assert (answer["id"], answer["result"]) == (number, gates[number].name)
    order = [each for each in line.log.splitlines() if each.startswith(("keeping", "kept"))]
    assert order == [
        f"{word} {method} {number}"
        for method in methods(host, "keep")
        for number in (0, 2, 3)
        for word in ("keeping", "kept")
    ]


@over(EVERY)
def test_a_command_whose_peer_calls_a_command_goes_on(host: Host, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    with host.serve(tmp_path, ordered_commands=True) as line:
        for method in methods(host, "ask_back"):
            line.write(request(method, {}, "outer"))
            question = line.answer()
            assert question["method"] == "question"
            line.write(request("keep", {"name": "inner", "until": str(gate)}, "inner"))
            assert line.answer()["id"] == "inner"
            said = {"jsonrpc": "2.0", "id": question["id"], "result": 7}
            line.write(frame(json.dumps(said).encode()))
            answer = line.answer()
            assert (answer["id"], answer["result"]) == ("outer", 7)


# Exchanges: each body by itself.


@over([EXCHANGE])
def test_a_caller_that_cannot_be_called_is_not(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        assert line.call("call_back")["error"]["code"] == -32603
        line.wait_for_log("this caller cannot be called back")
        line.write(request("report", {"_meta": {"progressToken": "t"}}, "quiet"))
        assert line.answer() == {"jsonrpc": "2.0", "id": "quiet", "result": None}


@over([EXCHANGE])
def test_exchanges_share_slots_and_queue(host: Host, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with host.serve(tmp_path, max_in_flight=2, max_queued=1) as line:
        for number in range(4):
            line.write(request("hold", [str(gate)], number))
        refused = line.answer()
        assert (refused["id"], refused["error"]["code"]) == (3, -32017)
        line.wait_for_log("holding", 2)
        gate.touch()
        assert set(answers(line, 3)) == {0, 1, 2}


@over([EXCHANGE])
def test_the_items_of_a_batch_run_together(host: Host, tmp_path: Path) -> None:
    with host.serve(tmp_path) as line:
        line.write(frame(b'[{"jsonrpc":"2.0","id":1,"method":"add","params":[1,2]},1]'))
        first, second = line.answer()
        assert (first["result"], second["error"]["code"]) == (3, -32600)
