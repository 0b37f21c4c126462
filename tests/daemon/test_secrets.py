"""Values of callers: what the runtime itself writes, to its log and to its peers, holds none.

Every form of a secret goes through every kind of bad request, bad frame and failing handler, over
each kind of server; then neither the log nor an answer may hold it. The text of a handler's
exception is the application's: it is logged, and `--no-exception-text` keeps it out.
"""

import contextlib
import itertools
import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import pytest

from duet_rpc import Server, Service, UsageError
from duet_rpc.errors import InvalidAnswer
from duet_rpc.ledger import open_store
from duet_rpc.redaction import redact
from duet_rpc.transports.address import parse_target
from tests.daemon.process import (
    PATIENCE,
    environment,
    eventually,
    frame,
    frames,
    notification,
    request,
    serve,
)

SECRET = "hunter2"
FORMS = (
    "hunter2",
    "correct hunter2 staple",
    "password=hunter2",
    "password = 'correct hunter2'",
    'password="correct hunter2"',
    "password='it\\'s hunter2'",
    '{"password": "hunter2"}',
    '{"password":"correct hunter2","user":"ada"}',
    "{'api_key': 'hunter2'}",
    '"private_key": "-----BEGIN hunter2"',
    "secret: hunter2",
    "client_secret=hunter2&scope=all",
    "passphrase: 'two words hunter2'",
    "aws_secret_access_key = hunter2",
    "token hunter2",
    "Bearer hunter2",
    "bearer hunter2",
    "Basic hunter2",
    "Authorization: Bearer hunter2",
    "Authorization: Token hunter2",
    'Authorization: Digest username="ada", response="hunter2"',
    "Proxy-Authorization: Negotiate hunter2",
    "{'Authorization': 'Token hunter2'}",
    "(b'authorization', b'Token hunter2')",
    "Cookie: sessionid=hunter2",
    "Cookie: a=b; sessionid=hunter2",
    "Set-Cookie: sessionid=hunter2; HttpOnly",
    "X-API-Key: hunter2",
    "postgresql://ada:hunter2@db/x",
    "redis://:hunter2@db:6379/0",
    "https://ada:p@hunter2@example.org/",
    "hunter2\nin two lines\r\n\r\n",
    "Content-Length: 5\r\nhunter2",
    "\x1b[31mhunter2\x1b[0m",
    "hunter2" * 40,
    "ünïcödé hunter2 \U0001f511",
)

SERVICE = """
import enum, logging
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from msgspec import Meta, Struct

service = Service()

class Level(enum.Enum):
    LOW = "low"

class Closed(Struct, forbid_unknown_fields=True):
    number: int

class Circle(Struct, tag=True):
    radius: int

class Square(Struct, tag=True):
    side: int

@dataclass
class Checked:
    text: str
    def __post_init__(self) -> None:
        raise ValueError(f"{self.text} is refused")

class Loud:
    def __init__(self, text: str) -> None:
        self.text = text
    def __repr__(self) -> str:
        return self.text

@service.query
def number(n: int) -> int: return n
@service.query
def limited(pin: Annotated[str, Meta(max_length=1)]) -> None: ...
@service.query
def matched(pin: Annotated[str, Meta(pattern="^a$")]) -> None: ...
@service.query
def chosen(of: Literal["a", "b"]) -> None: ...
@service.query
def level(level: Level) -> None: ...
@service.query
def closed(closed: Closed) -> None: ...
@service.query
def numbers(numbers: dict[str, int]) -> None: ...
@service.query
def shape(shape: Circle | Square) -> None: ...
@service.query
def checked(checked: Checked) -> None: ...
@service.query
def unserializable(text: str) -> Any: return {"kept": Loud(text)}
@service.command
def pay(text: str) -> None: ...

class Quiet(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text: " + self.args[0])

def fail(text: str) -> None:
    raise KeyError(text)

@service.query
def failing(text: str, how: str, ctx: Context) -> None:
    match how:
        case "plain": fail(text)
        case "os": raise FileNotFoundError(2, "No such file", "/srv/" + text)
        case "syntax": raise SyntaxError(text, ("<text>", 1, 1, text, 1, 2))
        case "int": int(text)
        case "noted":
            error = ValueError(text)
            error.add_note(text)
            raise error
        case "caused":
            try: fail(text)
            except KeyError as error: raise RuntimeError(text) from error
        case "in handling":
            try: fail(text)
            except KeyError: raise RuntimeError(text)
        case "hidden":
            try: fail(text)
            except KeyError: raise RuntimeError("other") from None
        case "group":
            errors: list[Exception] = [ValueError(text), ExceptionGroup(text, [KeyError(text)])]
            raise ExceptionGroup(text, errors)
        case "textless": raise Quiet(text)
        case "exit": raise SystemExit(text)
        case "logged":
            try: fail(text)
            except KeyError: ctx.logger.exception("caught")
            raise ValueError(text)
        case "circle":
            error = ValueError(text)
            error.__cause__ = KeyError(text)
            error.__cause__.__cause__ = error
            raise error
"""
HOWS = (
    "plain",
    "os",
    "syntax",
    "int",
    "noted",
    "caused",
    "in handling",
    "hidden",
    "group",
    "textless",
    "exit",
    "logged",
    "circle",
)

Make = Callable[[str], bytes]
Message = dict[str, Any]


def body(message: Any) -> bytes:
    return frame(json.dumps(message, ensure_ascii=False).encode())


numbers = itertools.count(1)


def call(method: str, params: Any) -> bytes:
    return request(method, params, id=next(numbers))


def envelope(**members: Any) -> bytes:
    return body({"jsonrpc": "2.0", **members})


WRONG: dict[str, Make] = {
    "a wrong type": lambda s: call("number", {"n": s}),
    "a wrong type by position": lambda s: call("number", [s]),
    "a limit": lambda s: call("limited", {"pin": s}),
    "a pattern": lambda s: call("matched", [s]),
    "a closed set": lambda s: call("chosen", [s]),
    "an enum": lambda s: call("level", {"level": s}),
    "a member": lambda s: call("closed", {"closed": {"number": s}}),
    "a key of a map": lambda s: call("numbers", {"numbers": {s: s}}),
    "a tag": lambda s: call("shape", {"shape": {"type": s}}),
    "a check of the type's own": lambda s: call("checked", {"checked": {"text": s}}),
    "too many": lambda s: call("number", [s] * 9),
    "a large one": lambda s: call("number", [s * 200]),
    "params of no kind": lambda s: call("number", s),
    "an unknown method": lambda s: call("lost", {"n": s}),
    "no method": lambda s: envelope(id=1, method=[s]),
    "another version": lambda s: body({"jsonrpc": s, "id": 1, "method": "number"}),
    "an id of no kind": lambda s: envelope(id={s: s}, method="number"),
    "no object": lambda s: body(s),
    "a notification": lambda s: notification("number", {"n": s}),
    "an unknown notification": lambda s: notification("lost", [s]),
    "a batch": lambda s: body([{"jsonrpc": s}, s, {"jsonrpc": "2.0", "id": 1, "method": "number"}]),
    "a large batch": lambda s: body([s] * 200),
    "a key that is too long": lambda s: call("pay", {"text": s, "idempotency_key": s * 300}),
    "a key that is unprintable": lambda s: call("pay", {"text": s, "idempotency_key": s + "\n"}),
    "a key that is no text": lambda s: call("pay", {"text": s, "idempotency_key": [s]}),
    "a key for other params": lambda s: (
        call("pay", {"text": s + "1", "idempotency_key": "k"})
        + call("pay", {"text": s + "2", "idempotency_key": "k"})
    ),
    "an outcome": lambda s: call("rpc.outcome", {"method": "pay", "idempotency_key": [s]}),
    "a level": lambda s: call("setLogLevel", {"level": s}),
    "meta": lambda s: call("pay", {"text": 1, "_meta": s}),
    "a trace": lambda s: call("pay", {"text": 1, "_meta": {"traceparent": s, "progressToken": s}}),
    "an answer": lambda s: envelope(id=77, result=s),
    "an error": lambda s: envelope(id=77, error={"code": 1, "message": s, "data": {"reason": s}}),
    "an error for no one": lambda s: envelope(id=None, error={"code": 1, "message": s, "data": s}),
    "an answer with both": lambda s: envelope(id=77, result=s, error=s),
    "a cancellation of nothing": lambda s: notification("$/cancelRequest", [s]),
    "progress of nothing": lambda s: notification("$/progress", {"token": 5, "value": s}),
    "an unserializable result": lambda s: call("unserializable", [s]),
}
NAMES: dict[str, Make] = {
    "an unknown name": lambda s: call("number", {"n": 1, s: 1}),
    "an unknown member": lambda s: call("closed", {"closed": {"number": 1, s: 1}}),
}
"""A parameter that does not exist is named to the caller who wrote the name, and not logged."""


def in_header(line: bytes) -> bytes:
    return line + b"\r\n" + frame(b"{}")


LOST: dict[str, Make] = {
    "a cut body": lambda s: frame(json.dumps({"params": s}).encode()[:-1]),
    "two values": lambda s: frame(json.dumps(s).encode() * 2),
    "not a number": lambda s: frame(b'{"params":[NaN,%b]}' % json.dumps(s).encode()),
    "no UTF-8": lambda s: frame(b'{"params":"%b\xff"}' % s.encode()),
    "too deep": lambda s: frame(b"[" * 80 + json.dumps(s).encode() + b"]" * 80),
    "an unknown header": lambda s: in_header(b"X-Token: " + one_line(s)),
    "a media type": lambda s: in_header(b"Content-Type: " + one_line(s)),
    "a charset": lambda s: in_header(
        b"Content-Type: application/vscode-jsonrpc; charset=" + one_line(s)
    ),
    "a length": lambda s: b"Content-Length: " + one_line(s) + b"\r\n\r\n",
    "no header": lambda s: one_line(s) + b"\r\n\r\n",
    "large headers": lambda s: b"X: " + one_line(s) * 2000 + b"\r\n\r\n",
    "a large body": lambda s: frame(json.dumps(s * 9000).encode()),
}


def one_line(text: str) -> bytes:
    return text.replace("\r", " ").replace("\n", " ").encode()


class Written(NamedTuple):
    """What a server has written in its life."""

    wire: bytes
    log: str


def talk(face: str, tmp_path: Path, streams: list[bytes], *options: str) -> Written:
    """Send streams to a server, each on a connection of its own where there are such; end it."""
    options = ("--log-level", "debug", "--max-message-bytes", "50000", *options)
    if face == "unix":
        return talk_on_socket(tmp_path, streams, *options)
    policy = {"stdio": "editor", "stdio on a loop": "agent"}[face]
    with serve(tmp_path, SERVICE, "--policy", policy, *options) as daemon:
        for stream in streams:
            daemon.send(stream)
        daemon.send(b"Content-Length: 90\r\n\r\n" + SECRET.encode())
        daemon.close_input()
        assert daemon.wait() == 0
        eventually(lambda: " info ended " in daemon.log, "the log is read to its end")
        return Written(bytes(daemon.wire), daemon.log)


def talk_on_socket(tmp_path: Path, streams: list[bytes], *options: str) -> Written:
    path = tmp_path / "s"
    wire = b""
    with serve(tmp_path, SERVICE, "--policy", "agent", "--unix", str(path), *options) as daemon:
        daemon.wait_for_log("listening")
        for stream in streams:
            with socket.socket(socket.AF_UNIX) as connected:
                connected.settimeout(PATIENCE)
                connected.connect(str(path))
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    connected.sendall(stream)  # not all of it is read where the boundary is lost
                    connected.shutdown(socket.SHUT_WR)
                    while data := connected.recv(65536):
                        wire += data
        daemon.process.terminate()
        assert daemon.wait() == 0
        eventually(lambda: " info ended " in daemon.log, "the log is read to its end")
        return Written(wire, daemon.log)


FACES = ("stdio", "stdio on a loop", "unix")


def holds_secret(text: str) -> bool:
    return SECRET in text.replace("\\", "")


@pytest.mark.parametrize("face", FACES)
def test_no_value_of_a_caller_is_in_the_log_or_in_an_answer(face: str, tmp_path: Path) -> None:
    kinds = WRONG | LOST
    streams = [make(form) for form in FORMS for make in kinds.values()]
    written = talk(face, tmp_path, streams, "--no-exception-text")
    for message in frames(written.wire):
        assert not holds_secret(json.dumps(message)), message
    for line in written.log.splitlines():
        assert not holds_secret(line), line
    assert "log lines were dropped" not in written.log
    answered = len(frames(written.wire))
    assert answered > len(FORMS) * 25, "the table reaches the server"
    assert written.log.count(" warn ") > len(FORMS) * 25, "and is logged"


@pytest.mark.parametrize("face", FACES)
def test_a_name_that_does_not_exist_is_answered_and_not_logged(face: str, tmp_path: Path) -> None:
    written = talk(face, tmp_path, [make(form) for form in FORMS for make in NAMES.values()])
    assert not any(holds_secret(line) for line in written.log.splitlines())
    named = [m["error"]["data"]["param"] for m in frames(written.wire) if isinstance(m["id"], int)]
    assert len(named) == len(FORMS) * len(NAMES)
    assert "hunter2" in named and "closed.hunter2" in named


@pytest.mark.parametrize("face", FACES)
def test_without_its_text_an_exception_is_logged_by_type_and_place(
    face: str, tmp_path: Path
) -> None:
    streams = [call("failing", {"text": form, "how": how}) for form in FORMS for how in HOWS]
    written = talk(face, tmp_path, streams, "--no-exception-text")
    for line in written.log.splitlines():
        assert not holds_secret(line), line
    assert not holds_secret(written.wire.decode())
    answers = [m for m in frames(written.wire) if isinstance(m["id"], int)]
    assert [m["error"]["code"] for m in answers] == [-32603] * len(streams)
    for answer in answers:
        assert answer["error"]["data"]["reference"] in written.log
    for shown in (
        "    KeyError\n",
        ", in fail\n        raise KeyError(text)\n",
        "which was the cause of:\n",
        "during whose handling came:\n",
        "ExceptionGroup\n",
        "member 2 of the group:\n",
        "FileNotFoundError (No such file or directory)\n",
        "served.Quiet\n",
        "    SystemExit\n",
        " error caught ",
    ):
        assert shown in written.log, shown


@pytest.mark.parametrize("face", FACES)
def test_the_text_of_an_exception_is_logged_and_not_answered(face: str, tmp_path: Path) -> None:
    streams = [call("failing", {"text": "what the handler said", "how": how}) for how in HOWS]
    written = talk(face, tmp_path, streams)
    assert b"what the handler said" not in written.wire
    assert "KeyError: 'what the handler said'" in written.log
    assert "ValueError: what the handler said\n    what the handler said\n" in written.log
    assert "during whose handling" not in written.log


def test_the_variable_keeps_texts_out_too(tmp_path: Path) -> None:
    env = environment(DUET_RPC_NO_EXCEPTION_TEXT="1")
    with serve(tmp_path, SERVICE, env=env) as daemon:
        daemon.send(request("failing", {"text": SECRET, "how": "plain"}))
        assert daemon.error(1)["data"]["reference"] in daemon.wait_for_log("handler failed")
        daemon.wait_for_log("KeyError")
        daemon.close_input()
        assert daemon.wait() == 0
        assert SECRET not in daemon.log


SERVE = """
import sys
from duet_rpc import Server, Service
from duet_rpc.server.logs import Logs

service = Service()

@service.query
def fail(text: str) -> None:
    raise KeyError(text)

log, given = sys.argv[1:]
logs = Logs(path=log) if given == "given" else None
Server(service, log_exception_text=False).run_stdio(logs=logs)
"""


@pytest.mark.parametrize("given", ["given", "its own"])
def test_a_server_withholds_texts_whatever_log_it_is_given(given: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SERVE, str(tmp_path / "log"), given],
        input=request("fail", [SECRET]),
        capture_output=True,
        env=environment(),
        timeout=PATIENCE,
    )
    log = (tmp_path / "log").read_text() if given == "given" else ended.stderr.decode()
    assert ended.returncode == 0 and "KeyError" in log and SECRET not in log
    with pytest.raises(UsageError, match="log_exception_text is 'no'; give True or False"):
        Server(Service(), log_exception_text="no")  # type: ignore[arg-type]


# Of stores, addresses and environments.


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:hunter2@127.0.0.1:1/x",
        "redis://ada:hunter2@127.0.0.1:1/0",
    ],
)
def test_the_password_of_a_store_stays_out(url: str, tmp_path: Path) -> None:
    env = environment(DUET_RPC_STORE=url, OTHER="hunter2 of the environment")
    with serve(tmp_path, SERVICE, "--log-level", "debug", env=env) as daemon:
        daemon.send(request("pay", {"text": SECRET, "idempotency_key": SECRET}))
        assert "error" in daemon.answer(1)
        daemon.close_input()
        assert daemon.wait() == 0
        assert SECRET.encode() not in daemon.wire
        assert SECRET not in daemon.log


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://ada:hunter2@x",
        "mysql://ada:hunter2@x",
        "tcp:hunter2",
        "postgresql://ada:hunter2@127.0.0.1:1/x?no_such_option=hunter2",
    ],
)
def test_a_refused_store_url_is_shown_without_its_password(url: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        open_store(url)
    assert SECRET not in str(refused.value)
    with serve(tmp_path, SERVICE, env=environment(DUET_RPC_STORE=url)) as daemon:
        assert daemon.wait() == 2
        assert SECRET not in daemon.log


@pytest.mark.parametrize("address", ["http://ada:hunter2@x:80", "tcp://ada:hunter2@x"])
def test_a_refused_address_is_shown_without_its_password(address: str) -> None:
    with pytest.raises(UsageError, match="is no address of a server") as refused:
        parse_target(address)
    assert SECRET not in str(refused.value) and "ada:***@x" in str(refused.value)


# On the caller's side.


class Closed(msgspec.Struct, forbid_unknown_fields=True):
    number: int


class Checked(msgspec.Struct):
    text: str

    def __post_init__(self) -> None:
        raise ValueError(f"{self.text} is refused")


ASKED: tuple[tuple[Any, Any], ...] = (
    (int, SECRET),
    (Literal["a"], SECRET),
    (list[Literal["a"]], [SECRET]),
    (Closed, {"number": 1, SECRET: 1}),
    (Closed, {"number": SECRET}),
    (Checked, {"text": SECRET}),
    (dict[str, int], {SECRET: SECRET}),
)


@pytest.mark.parametrize(("asked", "sent"), ASKED)
def test_an_answer_that_does_not_fit_is_told_without_its_values(asked: Any, sent: Any) -> None:
    service = Service()

    @service.query
    def give() -> Any:
        return sent

    from duet_rpc import testing

    async def ask() -> None:
        async with testing.connect(service) as client:
            with pytest.raises(InvalidAnswer, match="not what was asked for") as refused:
                await client.query("give", returns=asked)
            assert SECRET not in str(refused.value)

    testing.run(ask())


# The masking, which helps and promises nothing.


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("connect(password='correct horse')", "connect(password='***')"),
        ('{"private_key": "a \\" b", "x": 1}', '{"private_key": "***", "x": 1}'),
        ('{\\"password\\":\\"a b\\",\\"x\\":1}', '{\\"password\\":\\"***\\",\\"x\\":1}'),
        ("password='never closed", "password='***"),
        ("postgresql://ada:hunter2@db/x", "postgresql://ada:***@db/x"),
        ("redis://:hunter2@db", "redis://:***@db"),
        ("https://ada:p@ss@db/x", "https://ada:***@db/x"),
        ("https://example.org/a:b@c", "https://example.org/a:b@c"),
        ("Authorization: Token hunter2", "Authorization: ***"),
        ('Authorization: Digest a="b", c="d"', "Authorization: ***"),
        ("{'Authorization': 'Token x', 'Accept': '*'}", "{'Authorization': '***', 'Accept': '*'}"),
        ("(b'authorization', b'Token x')", "(b'authorization', b'***')"),
        ("Cookie: a=b; c=d\nnext", "Cookie: ***\nnext"),
        ("Set-Cookie: a=b; HttpOnly", "Set-Cookie: ***"),
        ("api-key=hunter2&x=1", "api-key=***&x=1"),
        ("token=abc123, x=1", "token=***, x=1"),
        ("a token of esteem", "a token of esteem"),
        ("unexpected keyword argument 'token'", "unexpected keyword argument 'token'"),
    ],
)
def test_what_masking_there_is(text: str, masked: str) -> None:
    assert redact(text) == masked
