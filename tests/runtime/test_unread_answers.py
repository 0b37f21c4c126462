"""An answer that cannot be read ends its own call at once, and no other one.

Calls wait without a timeout here: what is left to it would never end.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from duet_rpc import Client, Context, Server, Service, blocking
from duet_rpc.errors import ConnectionLost, InvalidAnswer
from duet_rpc.policy import EDITOR, SPEC, replace
from tests.runtime.faces import PATIENCE, Driver, Face, Peer, Scripted
from tests.runtime.test_misbehaving_server import wait_for

DEEP = b"[" * 100 + b"]" * 100
LARGE = b'"' + b"x" * 70_000 + b'"'
LONG = b"x" * 5000
SMALL = replace(SPEC, max_message_bytes=64 * 1024)

ORDERS = {
    "id first": b'{"jsonrpc":"2.0","id":ID,"result":RESULT}',
    "gopls": b'{"jsonrpc":"2.0","result":RESULT,"id":ID}',
    "typescript": b'{"result":RESULT,"jsonrpc":"2.0","id":ID}',
    "laid out": b'{\n  "result": RESULT,\n  "id": ID,\n  "jsonrpc": "2.0"\n}',
}
FAULTS = {
    "too deep": (DEEP, r"nests deeper than 64; .*policy=replace\(SPEC, max_depth=...\)"),
    "too large": (
        LARGE,
        r"oversize; we take at most 65,536 bytes; .*replace\(SPEC, max_message_bytes=...\)",
    ),
    "not a number": (b"[NaN]", "not JSON"),
    "not UTF-8": (b'"\xff"', "not JSON in UTF-8"),
    "another id inside": (b'[{"id":OTHER},"\\"id\\":OTHER}",NaN]', "not JSON"),
    "another id inside, too large": (
        b'["' + b"x" * 70_000 + b'",{"id":OTHER,"result":{"id":OTHER}},"\\",\\"id\\":OTHER}"]',
        "oversize",
    ),
}


def answer(order: str, fault: str, id: int, other: int = 0) -> bytes:
    body = ORDERS[order].replace(b"RESULT", FAULTS[fault][0])
    return body.replace(b"ID", b"%d" % id).replace(b"OTHER", b"%d" % other)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("fault", FAULTS)
def test_its_own_call_ends_and_no_other(face: Face, order: str, fault: str) -> None:
    def script(peer: Peer) -> None:
        victim, bystander = peer.request(), peer.request()
        peer.say(answer(order, fault, victim["id"], bystander["id"]))
        peer.answer(bystander, b'"good"')
        peer.read_all()

    driver = face.open(Scripted(script), policy=SMALL)
    victim = driver.begin("victim", timeout=None)
    wait_for(driver, pending=1)
    bystander = driver.begin("bystander", timeout=None)
    with pytest.raises(InvalidAnswer, match=FAULTS[fault][1]):
        victim.result(PATIENCE)
    assert bystander.result(PATIENCE) == "good"
    assert (driver.stats.pending, driver.stats.faults) == (0, 1)
    driver.close()


@pytest.mark.parametrize(
    "body",
    [
        b'{"jsonrpc":"2.0","result":"cut',
        b'{"jsonrpc":"2.0","result":{"id":7}',
        b'{"jsonrpc":"2.0","id":1,',
        b'[{"jsonrpc":"2.0","result":"cut',
        b'{"jsonrpc":"2.0","resu',
        b'{"jsonrpc":"2.0","err',
        b'{"jsonrpc":"2.0","result":"\xff"}',
        b'{"jsonrpc":"2.0","trace":"' + LONG + b'","result":' + DEEP + b"}",
        b'{"result":' + LARGE + b',"id":1,"more":2}',
    ],
)
def test_if_one_call_is_open_it_is_that_one(face: Face, body: bytes) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.say(body)
        peer.answer(peer.request(), b'"good"')
        peer.read_all()

    driver = face.open(Scripted(script), policy=SMALL)
    with pytest.raises(InvalidAnswer):
        driver.call("victim", timeout=None)
    assert driver.call("next", timeout=None) == "good"
    driver.close()


@pytest.mark.parametrize(
    "body",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":' + DEEP + b"}",
        b'{"jsonrpc":"2.0","method":"m","params":' + LARGE + b"}",
        b'{"method":"m","params":' + LARGE + b',"jsonrpc":"2.0","id":1}',
        b'[{"jsonrpc":"2.0","id":1,"method":"m","params":' + DEEP + b"}]",
        b'{"jsonrpc":"2.0","id":99,"result":' + DEEP + b"}",
        b'{"jsonrpc":"2.0","result":' + LARGE + b',"id":99}',
        b'{"jsonrpc":"2.0","id":"1","result":' + DEEP + b"}",
        b'{"id":1,"result":' + DEEP + b',"id":2}',
        b'{"jsonrpc":"2.0","id":"' + LONG + b'","method":"m","params":' + DEEP + b"}",
        b'{"jsonrpc":"2.0","trace":"' + LONG + b'","method":"m","params":' + DEEP + b',"id":1}',
        b'{"jsonrpc":"2.0","meth',
        b'{"jsonrpc":"2.0"',
        b'{"more":' + LARGE + b"}",
        b'{"level":"info","text":"bad \xff"}',
        b'{"level":"info","took":NaN}',
        b'{"level":"error","error":"bad \xff"}',
        b"{'a': 1}",
        b"{'result': 1}",
        b"{debug} starting",
        b"[{info}] starting",
        b"Listening on port 8080",
        b"[INFO] started",
        b"",
    ],
)
def test_what_is_no_answer_to_it_does_not_end_it(face: Face, body: bytes) -> None:
    def script(peer: Peer) -> None:
        request = peer.request()
        peer.say(body or b" ")
        peer.answer(request, b'"good"')
        peer.read_all()

    driver = face.open(Scripted(script), policy=SMALL)
    assert driver.call("victim", timeout=None) == "good"
    driver.close()


def test_if_several_are_open_and_it_cannot_be_told_none_ends(face: Face) -> None:
    def script(peer: Peer) -> None:
        requests = [peer.request(), peer.request()]
        peer.say(b'{"jsonrpc":"2.0","result":"cut')
        peer.say(b'{"jsonrpc":"2.0","result":' + LARGE + b"}")
        for request in requests:
            peer.answer(request, b'"good"')
        peer.read_all()

    driver = face.open(Scripted(script), policy=SMALL)
    pending = [driver.begin("x", timeout=None) for _ in range(2)]
    assert [each.result(PATIENCE) for each in pending] == ["good", "good"]
    assert driver.stats.faults == 2
    driver.close()


def test_an_answer_that_is_never_whole_ends_its_call_by_its_beginning(face: Face) -> None:
    def script(peer: Peer) -> None:
        request = peer.request()
        begun = b'{"jsonrpc":"2.0","id":%d,"result":"' % request["id"]
        peer.write(b"Content-Length: 999999999\r\n\r\n" + begun + b"x" * 1000)
        peer.read_all()

    driver = face.open(Scripted(script), policy=SMALL)
    with pytest.raises(InvalidAnswer, match="max_message_bytes"):
        driver.call("victim", timeout=None)
    driver.close()


IMPATIENT = replace(SPEC, read_timeout=0.2)
LATE = [
    b'{"jsonrpc":"2.0","id":%d,"result":"begun',
    b'{"id":%d,"jsonrpc":"2.0","error":{"code":1,',
    b'[{"jsonrpc":"2.0","id":%d,"result":[1,',
]


@pytest.mark.parametrize("framing", ["lsp", "ndjson"])
@pytest.mark.parametrize("begun", LATE)
def test_an_answer_that_is_late_ends_its_call_and_no_other(
    face: Face, begun: bytes, framing: str
) -> None:
    driver = face.spawn(
        sys.executable, "-c", BEGINNING, framing, begun.decode(), framing=framing, policy=IMPATIENT
    )
    victim = driver.begin("victim", timeout=None)
    wait_for(driver, pending=1)
    bystander = driver.begin("bystander", timeout=None)
    with pytest.raises(InvalidAnswer, match=r"within 0.2 s; .*read_timeout"):
        victim.result(PATIENCE)
    driver.do(lambda client: client.notify("go on"))
    assert bystander.result(PATIENCE) == "good"
    driver.close()


BEGINNING = """
import json, sys

def read():
    if sys.argv[1] == "ndjson":
        return json.loads(sys.stdin.buffer.readline())
    size = int(sys.stdin.buffer.readline().split(b":")[1])
    sys.stdin.buffer.readline()
    return json.loads(sys.stdin.buffer.read(size))

def write(text):
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()

victim, bystander = read(), read()
is_line = sys.argv[1] == "ndjson"
write(("" if is_line else "Content-Length: 1000\\r\\n\\r\\n") + sys.argv[2] % victim["id"])
read()
good = '{"jsonrpc":"2.0","id":%d,"result":"good"}' % bystander["id"]
write("\\n%s\\n" % good if is_line else "Content-Length: %d\\r\\n\\r\\n%s" % (len(good), good))
read()
"""


def test_a_late_answer_ends_its_call_with_the_reason_also_where_the_connection_ends(
    face: Face,
) -> None:
    def script(peer: Peer) -> None:
        request, _ = peer.request(), peer.request()
        peer.write(b"Content-Length: 1000\r\n\r\n" + LATE[0] % request["id"])
        peer.read_all()

    driver = face.open(Scripted(script, is_network=True), policy=IMPATIENT)
    victim = driver.begin("victim", timeout=None)
    wait_for(driver, pending=1)
    bystander = driver.begin("bystander", timeout=None)
    with pytest.raises(InvalidAnswer, match="read_timeout"):
        victim.result(PATIENCE)
    with pytest.raises(ConnectionLost):
        bystander.result(PATIENCE)
    driver.close()


@pytest.mark.parametrize("begun", [b'{"jsonrpc":"2.0","id":1,"method":"m', b'{"jsonrpc":"2.0","re'])
def test_a_late_frame_that_names_no_call_of_ours_ends_the_connection_only(
    face: Face, begun: bytes
) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.write(b"Content-Length: 1000\r\n\r\n" + begun)
        peer.read_all()

    driver = face.open(Scripted(script, is_network=True), policy=IMPATIENT)
    with pytest.raises(ConnectionLost):
        driver.begin("x", timeout=None).result(PATIENCE)
    driver.close()


ANONYMOUS = [
    b'{"jsonrpc":"2.0","result":"for whom"}',
    b'{"jsonrpc":"2.0","id":null,"result":"for whom"}',
    b'{"jsonrpc":"2.0","id":null,"result":"for whom","error":null}',
    b'{"jsonrpc":"2.0","id":{"n":1},"result":"for whom"}',
    b'{"jsonrpc":"2.0","id":[1],"result":"for whom"}',
    b'{"jsonrpc":"2.0","id":true,"result":"for whom"}',
    b'{"jsonrpc":"1.0","result":"for whom"}',
    b'{"id":null,"result":"for whom"}',
    b'[{"jsonrpc":"2.0","result":"for whom"}]',
    b'[{"jsonrpc":"2.0","id":null,"result":"for whom"}]',
]
"""Good JSON, and a result; but no id says whose it is."""


@pytest.mark.parametrize("body", ANONYMOUS)
def test_a_result_without_a_usable_id_ends_the_only_call(face: Face, body: bytes) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.say(body)
        peer.answer(peer.request(), b'"good"')
        peer.read_all()

    driver = face.open(Scripted(script))
    with pytest.raises(InvalidAnswer, match="no usable id"):
        driver.begin("victim", timeout=None).result(PATIENCE)
    assert driver.call("next", timeout=None) == "good"
    assert (driver.stats.unmatched_answers, driver.stats.faults) == (0, 1)
    driver.close()


@pytest.mark.parametrize("body", ANONYMOUS)
def test_a_result_without_a_usable_id_ends_none_of_several(face: Face, body: bytes) -> None:
    def script(peer: Peer) -> None:
        requests = [peer.request(), peer.request()]
        peer.say(body)
        for request in requests:
            peer.answer(request, b'"good"')
        peer.read_all()

    driver = face.open(Scripted(script))
    pending = [driver.begin("x", timeout=None) for _ in range(2)]
    assert [each.result(PATIENCE) for each in pending] == ["good", "good"]
    assert driver.stats.unmatched_answers + driver.stats.faults == 1
    driver.close()


@pytest.mark.parametrize(
    "body",
    [
        b'{"result":"a log line"}',
        b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"of something else"}}',
        b'{"jsonrpc":"2.0","id":null,"result":null,"error":{"code":-32600,"message":"no"}}',
        b'{"jsonrpc":"2.0","error":{"code":-32600,"message":"of something else"}}',
        b'{"id":null,"error":{"code":-32600,"message":"of something else"}}',
        b'{"jsonrpc":"2.0","id":null}',
        b'{"jsonrpc":"2.0","id":null,"result":null}',
        b'{"jsonrpc":"2.0","id":null,"result":null,"error":null}',
        b'{"jsonrpc":"2.0","id":true,"method":"m","result":1}',
        b'{"jsonrpc":"2.0","id":"1","result":"under an id that is none of ours"}',
    ],
)
def test_what_is_no_result_without_an_id_ends_no_call(face: Face, body: bytes) -> None:
    def script(peer: Peer) -> None:
        request = peer.request()
        peer.say(body)
        peer.answer(request, b'"good"')
        peer.read_all()

    driver = face.open(Scripted(script))
    assert driver.begin("x", timeout=None).result(PATIENCE) == "good"
    driver.close()


# Batches.


@pytest.mark.parametrize("policy", [SPEC, EDITOR])
@pytest.mark.parametrize(
    ("body", "ended"),
    [
        (b'[{"jsonrpc":"2.0","result":1},{"jsonrpc":"2.0","id":TWO,"result":2}]', [0]),
        (b'[{"jsonrpc":"2.0","id":ONE,"result":1},{"jsonrpc":"2.0","id":{},"result":2}]', [1]),
        (b'[{"jsonrpc":"2.0","id":null,"result":1},{"jsonrpc":"2.0","result":2}]', [0, 1]),
    ],
)
def test_results_without_ids_in_an_array_end_what_is_left_of_the_batch(
    face: Face, body: bytes, ended: list[int], policy: Any
) -> None:
    def script(peer: Peer) -> None:
        single = peer.request()
        first, second = peer.read()
        peer.say(body.replace(b"ONE", b"%d" % first["id"]).replace(b"TWO", b"%d" % second["id"]))
        peer.answer(single, b'"good"')
        peer.read_all()

    driver = face.open(Scripted(script), policy=policy)
    single = driver.begin("single", timeout=None)
    wait_for(driver, pending=1)
    errors = in_batch(driver, 2)
    assert [index for index, error in enumerate(errors) if error is not None] == ended
    assert all(isinstance(errors[index], InvalidAnswer) for index in ended)
    assert single.result(PATIENCE) == "good"
    driver.close()


def in_batch(driver: Driver, count: int) -> list[Any]:
    items = driver.batch(lambda batch: [batch.query("x", timeout=None) for _ in range(count)])
    return [item.error() for item in items]


@pytest.mark.parametrize("policy", [SMALL, replace(EDITOR, max_message_bytes=64 * 1024)])
@pytest.mark.parametrize(
    "broken",
    [
        b'[{"jsonrpc":"2.0","id":ONE,"result":%b},{"jsonrpc":"2.0","id":TWO,"result":1}]' % DEEP,
        b'[{"jsonrpc":"2.0","id":ONE,"result":1},{"jsonrpc":"2.0","id":TWO,"result":%b}]' % LARGE,
        b'[{"result":%b,"id":ONE},{"result":1,"id":TWO}]' % LARGE,
        b'[{"result":1,"id":ONE},{"result":NaN,"id":TWO}]',
        b'[{"jsonrpc":"2.0","resu',
        b"[%b]" % b",".join([b'{"jsonrpc":"2.0","id":ONE,"result":1}'] * 200),
    ],
    ids=["deep", "large", "large, id last", "no JSON", "cut", "too many"],
)
def test_one_array_that_cannot_be_read_ends_the_batch(
    face: Face, broken: bytes, policy: Any
) -> None:
    def script(peer: Peer) -> None:
        single = peer.request()
        first, second = peer.read()
        sent = broken.replace(b"ONE", b"%d" % first["id"]).replace(b"TWO", b"%d" % second["id"])
        peer.say(sent)
        peer.answer(single, b'"good"')
        peer.read_all()

    driver = face.open(Scripted(script), policy=policy)
    single = driver.begin("single", timeout=None)
    wait_for(driver, pending=1)
    errors = in_batch(driver, 2)
    assert [type(error) for error in errors] == [InvalidAnswer, InvalidAnswer]
    assert single.result(PATIENCE) == "good"
    driver.close()


@pytest.mark.parametrize("printed", [b"[{info}] starting", b'[{"jsonrpc":"2.0","meth'])
def test_what_is_no_array_of_answers_does_not_end_the_batch(face: Face, printed: bytes) -> None:
    def script(peer: Peer) -> None:
        requests = peer.read()
        peer.say(printed)
        answers = [b'{"jsonrpc":"2.0","id":%d,"result":1}' % each["id"] for each in requests]
        peer.say(b"[%b]" % b",".join(answers))
        peer.read_all()

    driver = face.open(Scripted(script), policy=SMALL)
    assert in_batch(driver, 2) == [None, None]
    driver.close()


# Real servers: both framings, pipes and sockets, and calls of handlers.

PROGRAM = """
import json, sys

def read():
    if sys.argv[1] == "ndjson":
        return json.loads(sys.stdin.buffer.readline())
    size = int(sys.stdin.buffer.readline().split(b":")[1])
    sys.stdin.buffer.readline()
    return json.loads(sys.stdin.buffer.read(size))

def write(body):
    body = body.encode()
    head = b"" if sys.argv[1] == "ndjson" else b"Content-Length: %d\\r\\n\\r\\n" % len(body)
    sys.stdout.buffer.write(head + body + (b"\\n" if sys.argv[1] == "ndjson" else b""))
    sys.stdout.buffer.flush()

while True:
    request = read()
    depth, size = request["params"]
    result = "[" * depth + json.dumps("x" * size) + "]" * depth
    write('{"result":%s,"jsonrpc":"2.0","id":%d}' % (result, request["id"]))
"""


@pytest.mark.parametrize("framing", ["lsp", "ndjson"])
def test_over_a_process(face: Face, framing: str) -> None:
    driver = face.spawn(sys.executable, "-c", PROGRAM, framing, framing=framing, policy=SMALL)
    assert driver.call("x", [0, 3], timeout=None) == "xxx"
    deep, large, good = (
        driver.begin("x", params, timeout=None) for params in ([70, 1], [0, 70_000], [0, 2])
    )
    with pytest.raises(InvalidAnswer, match="max_depth"):
        deep.result(PATIENCE)
    with pytest.raises(InvalidAnswer, match="max_message_bytes"):
        large.result(PATIENCE)
    assert good.result(PATIENCE) == "xx"
    driver.close()


ASKING = """
import sys
from duet_rpc import Server, Service
from duet_rpc.policy import preset, replace
from tests.runtime.test_unread_answers import asking

policy = replace(preset(sys.argv[2]), max_message_bytes=64 * 1024)
Server(asking(), policy=policy).run_stdio(framing=sys.argv[1])
"""


def asking() -> Service:
    """Make handlers that cannot read what their peer answers."""
    service = Service()

    @service.query
    async def ask(ctx: Context) -> str:
        try:
            await ctx.call("give", timeout=None)
        except InvalidAnswer as error:
            return str(error)
        return "no error"

    @service.query
    def ask_in_a_thread(ctx: Context) -> str:
        try:
            ctx.call("give", timeout=None).result()
        except InvalidAnswer as error:
            return str(error)
        return "no error"

    return service


@pytest.mark.parametrize("method", ["ask", "ask_in_a_thread"])
@pytest.mark.parametrize("setting", ["max_depth", "max_message_bytes"])
def test_calls_of_handlers(face: Face, method: str, setting: str) -> None:
    driver = face.connect(asking(), policy=SMALL, service=giving(setting))
    assert setting in driver.call(method, timeout=PATIENCE)
    driver.close()


@pytest.mark.parametrize("policy", ["spec", "editor"])
@pytest.mark.parametrize("framing", ["lsp", "ndjson", "auto"])
def test_calls_of_handlers_in_a_daemon(framing: Any, policy: str) -> None:
    for setting in ("max_depth", "max_message_bytes"):
        server = (sys.executable, "-c", ASKING, framing, policy)
        with blocking.Client.spawn(
            *server, framing="lsp" if framing == "auto" else framing, service=giving(setting)
        ) as client:
            for method in ("ask", "ask_in_a_thread"):
                assert setting in client.call(method, timeout=PATIENCE)


@pytest.mark.parametrize("framing", ["lsp", "ndjson"])
async def test_calls_of_handlers_on_a_socket(framing: Any, tmp_path: Path) -> None:
    started: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = Server(asking(), policy=SMALL).serve_unix(
        str(tmp_path / "s"), on_start=started.set_result, framing=framing
    )
    server = asyncio.create_task(serving)
    for setting in ("max_depth", "max_message_bytes"):
        async with Client.connect(
            await started, framing=framing, service=giving(setting), timeout=PATIENCE
        ) as client:
            assert setting in await client.call("ask")
            assert setting in await client.call("ask_in_a_thread")
    server.cancel()
    await asyncio.wait([server])


def giving(setting: str) -> Service:
    service = Service()

    @service.query
    def give() -> Any:
        nested: Any = "x"
        for _ in range(70):
            nested = [nested]
        return nested if setting == "max_depth" else "x" * 70_000

    return service


def test_the_limit_can_be_raised(face: Face) -> None:
    def script(peer: Peer) -> None:
        peer.answer(peer.request(), DEEP)
        peer.read_all()

    driver = face.open(Scripted(script), policy=replace(SPEC, max_depth=500))
    assert driver.call("x", timeout=None) == json.loads(DEEP)
    driver.close()
