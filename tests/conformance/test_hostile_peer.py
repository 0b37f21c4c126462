"""An attacker against one daemon process: everything malformed that we could think of.

Each case is followed by a good request. The answers must be exactly those of the fault table, then
that of the good request; the process must live to the end, log no traceback, and never have used
more than 64 MiB beyond what it used when it was idle.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple

import pytest

from duet_rpc.wire.framing import HeaderFraming

MIB = 1024 * 1024
LIMIT = 10 * MIB

Expected = tuple[int, str | None, Any]


class Case(NamedTuple):
    """What is sent, and the errors (code, reason, id) that are answered before the good answer."""

    name: str
    stream: bytes
    expected: list[Expected]


PARSE: list[Expected] = [(-32700, None, None)]
FOUND: list[Expected] = []
REFUSED: list[Expected] = [(-32602, None, 1)]


def invalid(reason: str, id: Any = None) -> list[Expected]:
    return [(-32600, reason, id)]


LENGTH = invalid("invalid-content-length")
ENVELOPE = invalid("invalid-envelope")
ID_TYPE = invalid("invalid-id-type")
BATCH = invalid("batch-not-supported")


def frame(body: bytes) -> bytes:
    return HeaderFraming.encode(body)


def call(params: bytes, method: bytes = b"version") -> bytes:
    return b'{"jsonrpc":"2.0","id":1,"method":"%b","params":%b}' % (method, params)


BODY = b'{"jsonrpc":"2.0","id":1,"method":"nothing"}'
NOTHING: list[Expected] = [(-32601, None, 1)]
SIZE = len(BODY)
TYPE = b"Content-Type: application/vscode-jsonrpc"


def headers() -> Iterator[Case]:
    """Header sections, good and bad, before one and the same body."""
    good = [
        b"content-length: %d\r\n\r\n",
        b"CONTENT-LENGTH:%d\r\n\r\n",
        b"Content-Length:     %d     \r\n\r\n",
        b"Content-Length:\t%d\r\n\r\n",
        b"Content-Length: 0000000%d\r\n\r\n",
        b"Content-Length: %d\r\nX-A: b\r\n\r\n",
        b"X-A: Content-Length: 5\r\nContent-Length: %d\r\n\r\n",
        b"A:\r\nB: \r\nContent-Length: %d\r\n\r\n",
        TYPE + b"\r\nContent-Length: %d\r\n\r\n",
        TYPE + b"; charset=utf-8\r\nContent-Length: %d\r\n\r\n",
        TYPE + b';charset="UTF8"\r\nContent-Length: %d\r\n\r\n',
        TYPE + b"; a=b; charset=utf-8; c=d\r\nContent-Length: %d\r\n\r\n",
        b"\r\n\r\n\r\nContent-Length: %d\r\n\r\n",
    ]
    for number, header in enumerate(good):
        yield Case(f"good header {number}", header % SIZE + BODY, NOTHING)
    lengths = [b"", b" ", b"-1", b"+1", b"1.0", b"1e3", b"0x10", b"1_0", b"1 0", b"NaN", b"1" * 16]
    lengths += [b"9" * 400, b"'5'", b'"5"', b"5;", b"5,5", b"\xd9\xa5", b"\xef\xbc\x95", b"5\0"]
    for text in lengths:
        yield Case(f"length {text[:20]!r}", b"Content-Length: %b\r\n\r\n" % text, LENGTH)
    yield Case("no length", b"X-A: b\r\n\r\n", LENGTH)
    yield Case("type without length", TYPE + b"\r\n\r\n", LENGTH)
    yield Case("two lengths", b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", LENGTH)
    yield Case("bare newlines", b"Content-Length: 5\n\nhello", LENGTH)
    yield Case("no colon", b"Content-Length 5\r\n\r\n", LENGTH)
    yield Case("name with a blank", b"Content Length: 5\r\n\r\n", LENGTH)
    yield Case("folded header", b"X-A: b\r\n  c\r\n\r\n", LENGTH)
    yield Case("empty name", b": 5\r\n\r\n", LENGTH)
    for kind in (b"text/plain", b"application/json", b"application/vscode-jsonrpc2", b"", b";"):
        stream = b"Content-Type: %b\r\nContent-Length: %d\r\n\r\n%b" % (kind, SIZE, BODY)
        yield Case(f"type {kind!r}", stream, invalid("unsupported-content-type"))
    for charset in (b"utf-16", b"ascii", b"", b'"', b"utf-8 x"):
        header = TYPE + b"; charset=%b\r\nContent-Length: %d\r\n\r\n" % (charset, SIZE)
        yield Case(f"charset {charset!r}", header + BODY, invalid("bad-charset"))
    yield Case("long header", b"X: " + b"y" * 9000, invalid("header-too-large"))
    yield Case("endless name", b"y" * 20_000, invalid("header-too-large"))
    yield Case("many headers", b"X: y\r\n" * 40, invalid("header-too-large"))


def garbage() -> Iterator[Case]:
    """Bytes that are no frame."""
    texts = [
        b"hello",
        b"\0" * 100,
        b"\xff" * 100,
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"Traceback (most recent call last):\n  ValueError\n",
        b'{"jsonrpc":"2.0","id":1,"method":"version"}\n',
        b"\x1b[31mred\x1b[0m\r\n",
        b"\xef\xbb\xbf",
        b"Content-Lengt",
        b"content-type",
        b"{",
    ]
    for text in texts:
        yield Case(f"garbage {text[:20]!r}", text, LENGTH)
    yield Case("a mebibyte of garbage", b"garbage " * (MIB // 8), LENGTH)


def sizes() -> Iterator[Case]:
    """Lengths that do not fit the bodies, and bodies that are too long."""
    for short in (1, 5, SIZE - 1):
        header = b"Content-Length: %d\r\n\r\n" % (SIZE - short)
        yield Case(f"{short} bytes too many", header + BODY, PARSE)
    header = b"Content-Length: %d\r\n\r\n" % (SIZE + 10)
    yield Case("10 bytes too few", header + BODY + frame(BODY), PARSE)
    yield Case("empty body", frame(b""), PARSE)
    yield Case("two values", frame(BODY + BODY), PARSE)
    yield Case("a frame in a frame", frame(frame(BODY)), PARSE)
    inner = frame(BODY) * 250_000
    assert len(inner) > LIMIT
    yield Case("frames in an oversized body", frame(inner), invalid("oversize"))
    yield Case("one byte too large", frame(b" " * (LIMIT + 1)), invalid("oversize"))
    eleven = b"Content-Length: 11000000\r\n\r\n" + b"x" * 11_000_000
    yield Case("11 MB", eleven, invalid("oversize"))
    typed = b"Content-Type: a/b\r\n" + frame(frame(BODY) * 1000)
    yield Case("frames in a refused body", typed, invalid("unsupported-content-type"))


def envelopes() -> Iterator[Case]:
    """JSON that is no request."""
    for body in (b"1", b"null", b"true", b'"a"', b"1.5e5", b"{}", b'{"a":1}', b'{"jsonrpc":"2.0"}'):
        yield Case(f"body {body!r}", frame(body), ENVELOPE)
    for body in (b"[]", b"[1]", b"[[]]", b"[" + BODY + b"]", b" [ ] "):
        yield Case(f"batch {body[:9]!r}", frame(body), BATCH)
    for version in (b'"1.0"', b"2.0", b"null", b"[]", b'"2.0 "'):
        body = b'{"jsonrpc":%b,"id":"v","method":"version"}' % version
        yield Case(f"version {version!r}", frame(body), invalid("invalid-envelope", "v"))
    for method in (b"1", b"null", b"[]", b"{}", b"true"):
        body = b'{"jsonrpc":"2.0","id":"m","method":%b}' % method
        yield Case(f"method {method!r}", frame(body), invalid("invalid-envelope", "m"))
    for id in (b"true", b"false", b"[]", b"{}", b"[1]", b'{"id":1}'):
        body = b'{"jsonrpc":"2.0","id":%b,"method":"version"}' % id
        yield Case(f"id {id!r}", frame(body), ID_TYPE)
    for params in (b"1", b'"a"', b"true", b"1.5"):
        yield Case(f"params {params!r}", frame(call(params)), invalid("invalid-envelope", 1))
    for name in (b"", b"rpc.", b"__class__", b"version ", b"VERSION", b"$/nothing", b"\\u0000"):
        body = b'{"jsonrpc":"2.0","id":1,"method":"%b"}' % name
        yield Case(f"method named {name!r}", frame(body), NOTHING)
    for member in (b'"result":1', b'"error":{}', b'"error":null', b'"result":1,"error":1'):
        for id in (b"1", b"null", b'"x"', b"99999999999999999999"):
            body = b'{"jsonrpc":"2.0","id":%b,%b}' % (id, member)
            yield Case(f"answer {member!r} {id!r}", frame(body), FOUND)
    for params in (b"[1]", b'{"a":1}', b'{"__proto__":{}}', b'{"":""}'):
        yield Case(f"unwanted {params!r}", frame(call(params)), REFUSED)
    wrong = [b"{}", b"[]", b"[1]", b'{"level":5}', b'{"level":null}', b'{"level":"loud"}']
    for params in (*wrong, b'["debug","info"]', b'{"level":"%b"}' % (b"x" * 100_000)):
        body = call(params, b"setLogLevel")
        yield Case(f"level {params[:20]!r}", frame(body), REFUSED)
    for method in (b"nothing", b"setLogLevel", b"$/cancelRequest", b"$/x", b"version"):
        body = b'{"jsonrpc":"2.0","method":"%b","params":[7]}' % method
        yield Case(f"notification {method!r}", frame(body), FOUND)


def texts() -> Iterator[Case]:
    """Bodies that are almost JSON."""
    for body in (
        b"{",
        b"}",
        b"[",
        b'"',
        b"tru",
        b"nul",
        b"-",
        b"01",
        b"+1",
        b".5",
        b"1.",
        b"1e",
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b"0x10",
        b"'a'",
        b"[1,]",
        b"[,1]",
        b"[1 2]",
        b'{"a":1,}',
        b'{"a"}',
        b"{1:2}",
        b'{"a":1 "b":2}',
        b"// comment\n{}",
        b"/* */{}",
        b'"\\q"',
        b'"\\u12"',
        b'"\\ud800',
        b'"\\udc00\\ud800\\u"',
        b'["\\ud800",NaN]',
        b'["\\ud800"' + b",[" * 65 + b"]" * 66,
        b'"\x01"',
        b'"\n"',
        b'"\xff"',
        b'"\xc0\xaf"',
        b'"\xed\xa0\x80"',
        b'"\xf4\x90\x80\x80"',
        b'"\xe2\x82"',
        b"\xef\xbb\xbf{}",
        b"\xff\xfe{\0}\0",
        b"{}\0",
        b"\0{}",
        b"{}{}",
        b"{} {}",
        b"\x1f\x8b\x08\0",
        b"<?xml?>",
        b"[" * 65 + b"]" * 65,
        b'{"a":' * 65 + b"1" + b"}" * 65,
        b"[" * 100_000,
        call(b"[%b]" % (b"[" * 64 + b"]" * 64)),
        call(b'["\xff"]'),
        call(b'{"a":NaN}'),
    ):
        yield Case(f"text {body[:24]!r}", frame(body), PARSE)


def filled(unit: bytes, before: bytes, after: bytes) -> bytes:
    """Repeat a unit until the body has its largest size."""
    return before + unit * ((LIMIT - len(before) - len(after)) // len(unit)) + after


def worst() -> Iterator[Case]:
    """The largest bodies that are allowed, each the worst of its sort."""
    head = b'{"jsonrpc":"2.0","id":1,"method":"nothing","params":['
    unwanted = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"x":['
    for name, unit, last in (
        ("empty lists", b"[],", b"1"),
        ("empty objects", b"{},", b"1"),
        ("deep nests", b"[" * 60 + b"]" * 60 + b",", b"1"),
        ("brackets in strings", b'"[",[],', b"1"),
        ("escaped quotes", b'"\\"[",', b"1"),
        ("long floats", b"1.2345678901234567e-290,", b"1"),
        ("short numbers", b"1,", b"1"),
        ("empty strings", b'"",', b"1"),
        ("two-byte characters", '"é",'.encode(), b"1"),
    ):
        yield Case(name, frame(filled(unit, head, last + b"]}")), NOTHING)
    yield Case("members that are ignored", frame(filled(b"{},", unwanted, b"1]}}")), FOUND)
    meta = b'{"jsonrpc":"2.0","id":0,"method":"version","params":{"_meta":{"traceparent":['
    yield Case("trace context", frame(filled(b"{},", meta, b"1]}}}")), FOUND)
    progress = b'{"jsonrpc":"2.0","method":"$/progress","params":{"token":1,"value":['
    yield Case("progress", frame(filled(b"{},", progress, b"1]}}")), FOUND)
    cancel = b'{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":['
    yield Case("cancellation", frame(filled(b"{},", cancel, b"1]}}")), FOUND)
    answer = b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m","data":['
    yield Case("an error of the peer", frame(filled(b"{},", answer, b"1]}}")), FOUND)
    yield Case("open lists", frame(b"[" * LIMIT), PARSE)
    yield Case("open pairs", frame(filled(b"[[],", b"", b"")), PARSE)
    yield Case("one deep nest", frame(b"[" * (LIMIT // 2) + b"]" * (LIMIT // 2)), PARSE)
    yield Case("a batch of numbers", frame(filled(b"1,", b"[", b"1]")), BATCH)
    yield Case("a batch of batches", frame(filled(b"[],", b"[[", b"1]]")), BATCH)
    yield Case("repeated ids", frame(filled(b'"id":1,', b"{", BODY[1:])), NOTHING)
    yield Case("blanks", frame(filled(b" ", b"", BODY)), NOTHING)
    backslashes = filled(b"\\\\", b'{"jsonrpc":"2.0","id":1,"method":"', b'"}')
    yield Case("a method of backslashes", frame(backslashes), NOTHING)
    long_name = filled(b"n", b'{"jsonrpc":"2.0","id":1,"method":"version","params":{"', b'":1}}')
    yield Case("a parameter with a long name", frame(long_name), REFUSED)
    marks = filled(b" - at `$", b'{"jsonrpc":"2.0","id":1,"method":"version","params":{"', b'":1}}')
    yield Case("a parameter named like a message of ours", frame(marks), REFUSED)
    start = b'{"jsonrpc":"2.0","id":1,"method":"version","params":{" - at `$'
    yield Case("a parameter named like a path", frame(filled(b".a", start, b'":1}}')), REFUSED)
    digits = filled(b"9", b'{"jsonrpc":"2.0","id":"n","method":1,"x":', b"}")
    yield Case("a number of ten million digits", frame(digits), invalid("invalid-envelope", "n"))
    cut = filled(b'"a":"b",', b"{", b"")
    yield Case("an object that does not end", frame(cut), PARSE)


class Daemon:
    """`duet-rpc rpc` on two pipes; its log goes to a file."""

    def __init__(self, log: Path) -> None:
        self._log = log.open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "duet_rpc", "rpc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self.stdin: IO[bytes] = self._process.stdin
        self.stdout: IO[bytes] = self._process.stdout
        self._sent = 0

    def __enter__(self) -> "Daemon":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self.stdin, self.stdout, self._log):
            stream.close()

    def attack(self, stream: bytes) -> list[Expected]:
        """Send a stream and a good request; return the errors answered before the good answer."""
        self._sent += 1
        good = f"good {self._sent}"
        self.stdin.write(stream)
        self.stdin.write(frame(b'{"jsonrpc":"2.0","id":"%b","method":"version"}' % good.encode()))
        self.stdin.flush()
        errors: list[Expected] = []
        while True:
            answer = self._read()
            if "error" not in answer:
                if answer["id"] == good:
                    return errors
                continue  # a good answer that the case itself asked for
            data = answer["error"].get("data") or {}
            errors.append((answer["error"]["code"], data.get("reason"), answer["id"]))

    def _read(self) -> Any:
        header = self.stdout.readline()
        assert header.startswith(b"Content-Length: ") and self.stdout.readline() == b"\r\n", header
        body = self.stdout.read(int(header.removeprefix(b"Content-Length: ")))
        assert len(body) < 2000, "no answer to an attacker is long"
        return json.loads(body)

    @property
    def most_memory(self) -> int:
        """The most bytes that it ever used."""
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmHWM")

    def end(self) -> int:
        """End its input and wait for its end."""
        self.stdin.close()
        return self._process.wait(30)


@pytest.mark.clause("framing-20", "messages-7")
@pytest.mark.timeout(300)
def test_one_process_withstands_everything(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Daemon(log) as daemon:
        assert daemon.attack(b"") == []
        idle = daemon.most_memory
        count = 0
        for cases in (headers, garbage, texts, envelopes, sizes, worst):
            for case in cases():
                assert daemon.attack(case.stream) == case.expected, case.name
                count += 1
        assert count > 200
        assert daemon.most_memory - idle <= 64 * MIB
        assert daemon.end() == 0
    assert b"Traceback" not in log.read_bytes()


@pytest.mark.clause("framing-25")
@pytest.mark.timeout(120)
def test_an_oversized_frame_costs_nearly_nothing(tmp_path: Path) -> None:
    with Daemon(tmp_path / "log") as daemon:
        # The buffer that reading needs is had before.
        daemon.attack(frame(call(b'["%b"]' % (b"x" * 200_000))))
        idle = daemon.most_memory
        frame_of_11_mb = b"Content-Length: 11000000\r\n\r\n" + b"x" * 11_000_000
        assert daemon.attack(frame_of_11_mb) == invalid("oversize")
        assert daemon.most_memory - idle < MIB
