"""A server that does everything wrong: each call ends once, and nothing is left behind.

Two calls are open when the server misbehaves: the *victim*, which has a short timeout, and a
*bystander*, which is answered properly afterwards if the connection has survived.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from duet_rpc import Service
from duet_rpc.errors import (
    CallTimeout,
    ConnectionLost,
    InternalError,
    InvalidAnswer,
    MethodNotFound,
    RpcError,
)
from duet_rpc.policy import EDITOR, SPEC, replace
from tests.runtime.faces import PATIENCE, Driver, Face, Peer, Scripted, failure, framed

SHORT = 0.4

Misdeed = Callable[[Peer, int], object]
"""What the server does, given the id of the victim. True if it answers nobody any more."""


class Case(NamedTuple):
    misdeed: Misdeed
    victim: Any
    """The result, or the class of the error."""
    unmatched: int = 0
    faults: int = 0


def says(text: str) -> Misdeed:
    """Say one message; ID stands for the victim's id."""

    def misdeed(peer: Peer, id: int) -> None:
        peer.say(text.replace("ID", str(id)).encode())

    return misdeed


def writes(data: bytes) -> Misdeed:
    """Write bytes as they are."""

    def misdeed(peer: Peer, id: int) -> None:
        peer.write(data.replace(b"ID", b"%d" % id))

    return misdeed


def hangs_up(data: bytes) -> Misdeed:
    """Write bytes and close."""

    def misdeed(peer: Peer, id: int) -> bool:
        peer.write(data.replace(b"ID", b"%d" % id))
        return True

    return misdeed


def both(*misdeeds: Misdeed) -> Misdeed:
    def misdeed(peer: Peer, id: int) -> None:
        for one in misdeeds:
            one(peer, id)

    return misdeed


GOOD = '{"jsonrpc":"2.0","id":ID,"result":"good"}'
ERROR = '{"code":7,"message":"seven"}'


def byte_by_byte(peer: Peer, id: int) -> None:
    for byte in framed(GOOD.replace("ID", str(id)).encode()):
        peer.write(bytes([byte]))
        time.sleep(0.0005)


def floods(peer: Peer, id: int) -> None:
    noise = framed(b'{"jsonrpc":"2.0","method":"noise","params":{"n":1}}') * 500
    strangers = framed(b'{"jsonrpc":"2.0","id":987654321,"result":1}') * 500
    for _ in range(10):
        peer.write(noise + strangers)
    says(GOOD)(peer, id)


def asks_under_the_same_id(peer: Peer, id: int) -> None:
    says('{"jsonrpc":"2.0","id":ID,"method":"yours"}')(peer, id)
    says('{"jsonrpc":"1.0","id":ID,"method":"yours"}')(peer, id)
    answer = peer.request()
    assert answer["id"] == id and answer["error"]["code"] == -32601
    says(GOOD)(peer, id)


CASES = {
    # Ends.
    "closes at once": Case(hangs_up(b""), ConnectionLost),
    "closes inside a header": Case(hangs_up(b"Content-Le"), ConnectionLost, faults=1),
    "closes inside a body": Case(
        hangs_up(b'Content-Length: 50\r\n\r\n{"jsonrpc":"2.0","id":ID,'), ConnectionLost, faults=1
    ),
    "closes before the last byte": Case(
        hangs_up(b'Content-Length: 38\r\n\r\n{"jsonrpc":"2.0","id":1,"result":"go"'),
        ConnectionLost,
        faults=1,
    ),
    "closes after a frame": Case(
        hangs_up(framed(b'{"jsonrpc":"2.0","id":1,"result":"good"}')), "good"
    ),
    # Ids.
    "answers twice": Case(both(says(GOOD), says(GOOD)), "good", unmatched=1),
    "answers with a result, then an error": Case(
        both(says(GOOD), says('{"jsonrpc":"2.0","id":ID,"error":' + ERROR + "}")),
        "good",
        unmatched=1,
    ),
    "answers somebody else": Case(
        says('{"jsonrpc":"2.0","id":1ID,"result":"good"}'), CallTimeout, unmatched=1
    ),
    "a text for an id": Case(
        says('{"jsonrpc":"2.0","id":"ID","result":"good"}'), CallTimeout, unmatched=1
    ),
    "a float for an id": Case(
        says('{"jsonrpc":"2.0","id":ID.0,"result":"good"}'), CallTimeout, unmatched=1
    ),
    "a power for an id": Case(
        says('{"jsonrpc":"2.0","id":IDe0,"result":"good"}'), CallTimeout, unmatched=1
    ),
    "a negative id": Case(
        says('{"jsonrpc":"2.0","id":-ID,"result":"good"}'), CallTimeout, unmatched=1
    ),
    "zero for an id": Case(
        says('{"jsonrpc":"2.0","id":0,"result":"good"}'), CallTimeout, unmatched=1
    ),
    "minus zero for an id": Case(
        says('{"jsonrpc":"2.0","id":-0,"result":"good"}'), CallTimeout, unmatched=1
    ),
    "an id that nobody can count to": Case(
        says('{"jsonrpc":"2.0","id":' + "9" * 6000 + ',"result":"good"}'), CallTimeout, unmatched=1
    ),
    "null for an id": Case(
        both(says('{"jsonrpc":"2.0","id":null,"result":"good"}'), says(GOOD)), "good", unmatched=1
    ),
    "an error for nobody": Case(
        says('{"jsonrpc":"2.0","id":null,"error":' + ERROR + "}"), CallTimeout, unmatched=1
    ),
    "true for an id": Case(
        both(says('{"jsonrpc":"2.0","id":true,"result":"good"}'), says(GOOD)), "good", faults=1
    ),
    "an object for an id": Case(
        both(says('{"jsonrpc":"2.0","id":{"n":ID},"result":"good"}'), says(GOOD)), "good", faults=1
    ),
    "an array for an id": Case(
        both(says('{"jsonrpc":"2.0","id":[ID],"result":"good"}'), says(GOOD)), "good", faults=1
    ),
    "no id": Case(both(says('{"jsonrpc":"2.0","result":"good"}'), says(GOOD)), "good", faults=1),
    # Members.
    "result and error": Case(
        says('{"jsonrpc":"2.0","id":ID,"result":"good","error":' + ERROR + "}"), InvalidAnswer
    ),
    "result and no error": Case(
        says('{"jsonrpc":"2.0","id":ID,"result":"good","error":null}'), "good"
    ),
    "error and no result": Case(
        says('{"jsonrpc":"2.0","id":ID,"result":null,"error":' + ERROR + "}"), RpcError
    ),
    "result and error both null": Case(
        says('{"jsonrpc":"2.0","id":ID,"result":null,"error":null}'), None
    ),
    "neither result nor error": Case(says('{"jsonrpc":"2.0","id":ID}'), InvalidAnswer, faults=1),
    "an error that is null": Case(says('{"jsonrpc":"2.0","id":ID,"error":null}'), InvalidAnswer),
    "an error that is a text": Case(says('{"jsonrpc":"2.0","id":ID,"error":"no"}'), InvalidAnswer),
    "an error without members": Case(says('{"jsonrpc":"2.0","id":ID,"error":{}}'), InvalidAnswer),
    "an error without message": Case(
        says('{"jsonrpc":"2.0","id":ID,"error":{"code":1}}'), InvalidAnswer
    ),
    "a code that is a text": Case(
        says('{"jsonrpc":"2.0","id":ID,"error":{"code":"1","message":"m"}}'), InvalidAnswer
    ),
    "a code that is a fraction": Case(
        says('{"jsonrpc":"2.0","id":ID,"error":{"code":1.5,"message":"m"}}'), InvalidAnswer
    ),
    "a code of a thousand digits": Case(
        says('{"jsonrpc":"2.0","id":ID,"error":{"code":' + "1" * 1000 + ',"message":"m"}}'),
        (RpcError, InvalidAnswer),
    ),
    "no version": Case(says('{"id":ID,"result":"good"}'), InvalidAnswer, faults=1),
    "another version": Case(
        says('{"jsonrpc":"1.0","id":ID,"result":"good"}'), InvalidAnswer, faults=1
    ),
    "members that nobody knows": Case(
        says('{"jsonrpc":"2.0","id":ID,"result":"good","took":5}'), "good"
    ),
    "a request under the victim's id": Case(asks_under_the_same_id, "good", faults=1),
    # Bodies.
    "no JSON": Case(both(says("so what"), says(GOOD)), "good", faults=1),
    "half a body": Case(both(says('{"jsonrpc":"2.0","id":ID,'), says(GOOD)), "good", faults=1),
    "not a number": Case(says('{"jsonrpc":"2.0","id":ID,"result":NaN}'), InvalidAnswer, faults=1),
    "not UTF-8": Case(
        writes(framed(b'{"jsonrpc":"2.0","id":1,"result":"\xff\xfe"}')), InvalidAnswer, faults=1
    ),
    "nested too deep": Case(
        says('{"jsonrpc":"2.0","id":ID,"result":' + "[" * 100 + "]" * 100 + "}"),
        InvalidAnswer,
        faults=1,
    ),
    "a text alone": Case(both(says('"text"'), says(GOOD)), "good", faults=1),
    # Frames.
    "one byte after the other": Case(byte_by_byte, "good"),
    "noise before a frame": Case(
        both(writes(b"Traceback (most recent"), says(GOOD)), "good", faults=1
    ),
    "noise between frames": Case(
        both(says(GOOD), writes(b"\r\n\x00\xff noise \r\n\r\n")), "good", faults=1
    ),
    "a header without length": Case(
        both(writes(b"Foo: bar\r\n\r\n"), says(GOOD)), "good", faults=1
    ),
    "a length that is no number": Case(
        both(writes(b"Content-Length: ten\r\n\r\n"), says(GOOD)), "good", faults=1
    ),
    "a header without end": Case(
        both(writes(b"X: " + b"y" * 10_000 + b"\r\n\r\n"), says(GOOD)), "good", faults=1
    ),
    "an answer that is too large": Case(
        says('{"jsonrpc":"2.0","id":ID,"result":"' + "x" * 70_000 + '"}'), InvalidAnswer, faults=1
    ),
    # Arrays.
    "an answer in an array": Case(says("[" + GOOD + "]"), "good"),
    "the same answer twice in an array": Case(says(f"[{GOOD},{GOOD}]"), "good", unmatched=1),
    "an empty array": Case(both(says("[]"), says(GOOD)), "good", faults=1),
    "an array of nonsense": Case(both(says("[1,2,[]]"), says(GOOD)), "good", faults=1),
    "nonsense among answers": Case(says(f"[1,{GOOD},null]"), "good", faults=1),
    "a malformed answer in an array": Case(
        says('[{"jsonrpc":"2.0","id":ID}]'), InvalidAnswer, faults=1
    ),
    # Too much.
    "floods": Case(floods, "good", unmatched=5000),
    "progress of nothing": Case(
        both(
            says('{"jsonrpc":"2.0","method":"$/progress","params":{"token":"x","value":1}}'),
            says('{"jsonrpc":"2.0","method":"$/progress"}'),
            says('{"jsonrpc":"2.0","method":"$/progress","params":{"token":98765}}'),
            says('{"jsonrpc":"2.0","method":"$/progress","params":[1]}'),
            says(GOOD),
        ),
        "good",
    ),
    "cancels what it never asked": Case(
        both(
            says('{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":ID}}'),
            says('{"jsonrpc":"2.0","method":"$/cancelRequest"}'),
            says(GOOD),
        ),
        "good",
    ),
}

SMALL = replace(SPEC, max_message_bytes=64 * 1024)


@pytest.mark.parametrize("name", CASES)
def test_every_call_ends_once(face: Face, name: str) -> None:
    case = CASES[name]

    def script(peer: Peer) -> None:
        requests: list[dict[str, Any]] = []
        while len(requests) < 2:
            message = peer.request()
            if "id" in message:  # a slow machine may see the victim give up in between
                requests.append(message)
        victim, bystander = sorted(requests, key=lambda request: request["method"] != "victim")
        if case.misdeed(peer, victim["id"]) is True:
            return
        peer.answer(bystander, b'"fine"')
        peer.read_all()

    server = Scripted(script)
    driver = face.open(server, policy=SMALL)
    victim = driver.begin("victim", timeout=SHORT if case.victim is CallTimeout else PATIENCE)
    wait_for(driver, 1)
    bystander = driver.begin("bystander", timeout=PATIENCE)
    hung_up = case.victim is ConnectionLost or name == "closes after a frame"
    if hung_up:
        assert isinstance(failure(bystander), ConnectionLost)
    else:
        assert bystander.result(PATIENCE) == "fine"
    if isinstance(case.victim, (type, tuple)):
        assert isinstance(failure(victim), case.victim)
    else:
        assert victim.result(PATIENCE) == case.victim
    stats = driver.stats
    assert (stats.pending, stats.calls) == (0, 2)
    driver.close()
    server.join()
    stats = driver.stats
    assert stats.pending == 0
    assert stats.unmatched_answers == case.unmatched
    assert stats.faults >= case.faults and bool(stats.faults) == bool(case.faults)


def wait_for(driver: Driver, pending: int) -> None:
    until = time.monotonic() + PATIENCE
    while driver.stats.pending < pending:
        assert time.monotonic() < until
        time.sleep(0.002)


LARGE_TEXTS = """
import sys
from duet_rpc import Server, Service

app = Service()

@app.query
def text(size: int) -> str:
    return "x" * size

Server(app).run_stdio(framing=sys.argv[1])
"""


@pytest.mark.parametrize("framing", ["lsp", "ndjson"])
def test_an_answer_that_is_too_large_ends_its_call_and_no_other(face: Face, framing: str) -> None:
    policy = replace(SPEC, max_message_bytes=100_000)
    server = (sys.executable, "-c", LARGE_TEXTS, framing)
    driver = face.spawn(*server, framing=framing, policy=policy)
    large = [driver.begin("text", [200_000 + more], timeout=None) for more in range(3)]
    small = driver.begin("text", [3], timeout=PATIENCE)
    for pending in large:
        with pytest.raises(InvalidAnswer, match="dropped: oversize.*100,000 bytes"):
            pending.result(PATIENCE)
    assert small.result(PATIENCE) == "xxx"
    assert driver.call("text", [2], timeout=PATIENCE) == "xx"
    assert (driver.stats.pending, driver.stats.faults) == (0, 3)
    driver.close()


def test_a_large_message_that_is_no_answer_ends_no_call(face: Face) -> None:
    def script(peer: Peer) -> None:
        request = peer.request()
        padding = b"x" * 2_000
        peer.say(b'{"jsonrpc":"2.0","id":1,"method":"news","params":["%b"]}' % padding)
        peer.say(b'{"jsonrpc":"2.0","method":"news","params":["id\\":1,%b"]}' % padding)
        peer.answer(request)
        peer.read_all()

    driver = face.open(Scripted(script), policy=replace(SPEC, max_message_bytes=1_000))
    driver.call("victim", timeout=PATIENCE)
    assert (driver.stats.pending, driver.stats.faults) == (0, 2)
    driver.close()


def test_on_a_socket_noise_ends_the_connection(face: Face) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.write(b"Content-Length: x\r\n\r\n")
        peer.read_all()

    server = Scripted(script, is_network=True)
    driver = face.open(server)
    with pytest.raises(ConnectionLost, match="no frame"):
        driver.call("victim", timeout=PATIENCE)
    with pytest.raises(ConnectionLost, match="no frame"):
        driver.call("later")
    driver.close()
    server.join()


@pytest.mark.parametrize("policy", [SPEC, EDITOR], ids=["spec", "editor"])
def test_answers_to_a_batch_come_in_one_array_under_any_policy(face: Face, policy: Any) -> None:
    count = 300

    def script(peer: Peer) -> None:
        batch = peer.read()
        answers = [{"jsonrpc": "2.0", "id": item["id"], "result": item["id"]} for item in batch]
        peer.say(json.dumps(answers).encode())
        peer.read_all()

    driver = face.open(Scripted(script), policy=policy)
    items = driver.batch(lambda batch: [batch.call("x") for _ in range(count)])
    assert [item.result() for item in items] == list(range(1, count + 1))
    driver.close()


def test_a_server_that_asks_and_never_reads_the_answers(face: Face) -> None:
    # Our answers are more than we keep for a peer that does not read; so we read nothing of it
    # either, until it does. Its answer to our own call is behind all that.
    def script(peer: Peer) -> None:
        request = peer.request()
        frames = b"".join(
            framed(b'{"jsonrpc":"2.0","id":%d,"method":"%b"}' % (number, b"m" * 300))
            for number in range(4000)
        )
        writer = threading.Thread(target=peer.write, args=[frames], daemon=True)
        writer.start()
        time.sleep(0.3)
        answers = [peer.request() for _ in range(4000)]
        writer.join(PATIENCE)
        assert {answer["error"]["code"] for answer in answers} <= {-32601, -32017}
        peer.answer(request, b'"at last"')
        peer.read_all()

    server = Scripted(script)
    driver = face.open(server)
    assert driver.call("wait", timeout=PATIENCE) == "at last"
    driver.close()
    server.join()


# Real processes.


def child(program: str) -> list[str]:
    return [sys.executable, "-c", program]


PRELUDE = """
import json, os, signal, sys, time
def read():
    size = int(sys.stdin.buffer.readline().split(b":")[1])
    sys.stdin.buffer.readline()
    return json.loads(sys.stdin.buffer.read(size))
def say(body):
    sys.stdout.buffer.write(b"Content-Length: %d\\r\\n\\r\\n%b" % (len(body), body))
    sys.stdout.buffer.flush()
def answer(request):
    say(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": "ok"}).encode())
"""

DEATHS = {
    "exits with a status": ("read(); print('ink ran out', file=sys.stderr); sys.exit(3)", 3),
    "dies of an exception": ("read(); raise RuntimeError('ink ran out')", 1),
    "is killed": (
        "read(); print('ink ran out', file=sys.stderr, flush=True); os.kill(os.getpid(), 9)",
        -9,
    ),
    "dies inside a frame": (
        "read(); os.write(1, b'Content-Length: 99\\r\\n\\r\\n{\"json');"
        "print('ink ran out', file=sys.stderr); sys.exit(4)",
        4,
    ),
    "says more than a pipe holds": (
        "read(); [print('x' * 1000, file=sys.stderr) for _ in range(1000)];"
        "print('ink ran out', file=sys.stderr); sys.exit(5)",
        5,
    ),
}


@pytest.mark.parametrize("death", DEATHS)
def test_a_dead_child_tells_how_it_died(face: Face, death: str) -> None:
    program, code = DEATHS[death]
    driver = face.spawn(*child(PRELUDE + program))
    calls = [driver.begin("x", timeout=PATIENCE) for _ in range(3)]
    for call in calls:
        error = failure(call)
        assert isinstance(error, ConnectionLost)
        # A loaded machine may take longer to bury a process than calls are kept waiting.
        assert error.exit_code in (code, None)
        if error.exit_code is not None:
            assert "ink ran out" in error.stderr_tail
            assert ("SIGKILL" if code == -9 else f"status {code}") in str(error)
        assert len(error.stderr_tail) <= 8192
    with pytest.raises(ConnectionLost):
        driver.call("later")
    assert driver.stats.pending == 0


def test_a_child_that_never_started(face: Face) -> None:
    from duet_rpc.errors import ConnectFailed

    with pytest.raises(ConnectFailed, match="no such program"):
        face.spawn("/does/not/exist")


def test_a_child_that_hangs_at_the_end_is_killed(face: Face) -> None:
    program = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
answer(read())
while True: time.sleep(100)
"""
    driver = face.spawn(*child(PRELUDE + program))
    assert driver.call("x", timeout=PATIENCE) == "ok"
    driver.close()  # and `rpc_no_leaks` looks for the child


def test_a_child_that_closes_its_output_and_lives(face: Face) -> None:
    driver = face.spawn(*child(PRELUDE + "read(); os.close(1); time.sleep(1000)"))
    with pytest.raises(ConnectionLost, match="still runs"):
        driver.call("x", timeout=PATIENCE)
    driver.close()


def test_a_child_that_closes_its_input_and_lives(face: Face) -> None:
    program = "answer(read()); os.close(0); time.sleep(1000)"
    driver = face.spawn(*child(PRELUDE + program))
    assert driver.call("x", timeout=PATIENCE) == "ok"
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            driver.call("y", timeout=0.3)
        except CallTimeout:
            continue  # it was faster than the child, and lies in its pipe
        except ConnectionLost:
            break
    with pytest.raises(ConnectionLost):
        driver.call("z", timeout=PATIENCE)
    driver.close()


def test_a_child_that_prints_between_frames(face: Face) -> None:
    program = """
for _ in range(3):
    request = read()
    os.write(1, b"some library says hello\\n")
    answer(request)
    os.write(1, b"and goodbye\\n")
"""
    driver = face.spawn(*child(PRELUDE + program))
    assert [driver.call("x", timeout=PATIENCE) for _ in range(3)] == ["ok"] * 3
    assert driver.stats.faults >= 3
    driver.close()


FAILING = """
from duet_rpc import Service
service = Service()

@service.query
def fail() -> None:
    raise ZeroDivisionError("out of ink")

service.run()
"""


@pytest.mark.parametrize("stderr", ["show", "keep"])
def test_the_log_of_a_child_can_be_shown(
    face: Face, stderr: str, capsys: pytest.CaptureFixture[str]
) -> None:
    driver = face.spawn(*child(FAILING), stderr=stderr)
    with pytest.raises(InternalError) as caught:
        driver.call("fail", timeout=PATIENCE)
    driver.close()  # by then all of it was read
    shown = capsys.readouterr().err
    if stderr == "show":
        (line,) = [line for line in shown.splitlines() if caught.value.data["reference"] in line]
        assert "handler failed" in line and "method=fail" in line
        assert "ZeroDivisionError: out of ink" in shown
    else:
        assert shown == ""


def test_what_is_shown_of_a_child_is_still_kept_for_the_report(face: Face) -> None:
    program, _ = DEATHS["exits with a status"]
    driver = face.spawn(*child(PRELUDE + program), stderr="show")
    error = failure(driver.begin("x", timeout=PATIENCE))
    assert isinstance(error, ConnectionLost)
    assert error.exit_code is None or "ink ran out" in error.stderr_tail


def test_nothing_is_told_about_our_environment(face: Face) -> None:
    driver = face.spawn(*child(PRELUDE + "answer(read())"), env={"PATH": os.environ["PATH"]})
    assert driver.call("x", timeout=PATIENCE) == "ok"
    driver.close()


def test_a_service_of_ours_does_not_answer_for_a_method_it_has_not(face: Face) -> None:
    seen: list[Any] = []

    def script(peer: Peer) -> None:
        request = peer.request()
        peer.say(b'{"jsonrpc":"2.0","id":"q","method":"nope"}')
        seen.append(peer.request())
        peer.answer(request)

    server = Scripted(script)
    driver = face.open(server, service=Service("mine"))
    driver.call("x", timeout=PATIENCE)
    driver.close()
    server.join()
    assert seen[0]["id"] == "q" and seen[0]["error"]["code"] == MethodNotFound.code
