"""The least that a JSON-RPC server and client in Python can do: frame, decode, call, encode, write.

A blocking loop, tuned by hand for this benchmark's two methods. No limits, no recovery, no errors,
no odd spellings, no collector: what a real runtime costs above this is what its promises cost.

With `joined` as first argument, answers that are ready together share a write of up to sixteen;
without it each answer is written alone, as a server must that promises an answer before it begins
the next request.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from bench import driver


class Pair(msgspec.Struct, gc=False):
    a: int
    b: int


class Value(msgspec.Struct, gc=False):
    value: Any


class Add(msgspec.Struct, tag_field="method", tag="add", gc=False):
    params: Pair
    id: int

    def call(self) -> Any:
        return self.params.a + self.params.b


class Echo(msgspec.Struct, tag_field="method", tag="echo", gc=False):
    params: Value
    id: int

    def call(self) -> Any:
        return self.params.value


class Answer(msgspec.Struct, gc=False):
    jsonrpc: str
    id: int
    result: Any


HEADERS = [b"Content-Length: %d\r\n\r\n" % length for length in range(1000)]


def bodies(reading: int) -> Iterator[list[bytes | bytearray]]:
    """The bodies in each read; a body that is not whole yet waits for the next."""
    rest = b""
    while data := os.read(reading, 65536):
        data = rest + data if rest else data
        found: list[bytes | bytearray] = []
        start = 0
        size = len(data)
        while (end := data.find(b"\r\n\r\n", start)) != -1:
            body = end + 4
            stop = body + int(data[start + 16 : end])
            if stop > size:
                rest = _whole(reading, data, body, stop, found)
                break
            found.append(data[body:stop])
            start = stop
        else:
            rest = data[start:]
        yield found


def _whole(
    reading: int, data: bytes, body: int, stop: int, found: list[bytes | bytearray]
) -> bytes:
    """Read the rest of one body straight into its place."""
    whole = bytearray(stop - body)
    have = len(data) - body
    whole[:have] = data[body:]
    view = memoryview(whole)
    while have < len(whole):
        have += os.readv(reading, [view[have:]])
    found.append(whole)
    return b""


def write(writing: int, data: bytes) -> None:
    sent = os.write(writing, data)
    while sent < len(data):
        sent += os.write(writing, memoryview(data)[sent:])


def serve(joined: bool) -> None:
    decode = msgspec.json.Decoder(Add | Echo).decode
    encode = msgspec.json.Encoder().encode
    answers: list[bytes] = []
    most = 16 if joined else 1
    for found in bodies(0):
        for body in found:
            request = decode(body)
            reply = encode(Answer("2.0", request.id, request.call()))
            length = len(reply)
            header = HEADERS[length] if length < 1000 else b"Content-Length: %d\r\n\r\n" % length
            answers.append(header + reply)
            if len(answers) >= most:
                write(1, b"".join(answers) if joined else answers[0])
                answers.clear()
        if answers:
            write(1, b"".join(answers))
            answers.clear()


@contextmanager
def connect(program: list[str]) -> Iterator[driver.Submit]:
    """A client without threads or loop: a result is read when it is asked for."""
    server = driver.spawn(program)
    reads = bodies(server.stdout.fileno())
    writing = server.stdin.fileno()
    decode = msgspec.json.Decoder(Answer).decode
    encode = msgspec.json.Encoder().encode
    results: dict[int, Any] = {}
    unsent: list[bytes] = []
    ids = iter(range(1 << 60))

    class Call:
        __slots__ = ("id",)

        def __init__(self, id: int) -> None:
            self.id = id

        def result(self) -> Any:
            if unsent:
                write(writing, b"".join(unsent))
                unsent.clear()
            while self.id not in results:
                for body in next(reads):
                    answer = decode(body)
                    results[answer.id] = answer.result
            return results.pop(self.id)

    def submit(method: str, params: dict[str, Any]) -> driver.Pending:
        id = next(ids)
        body = b'{"jsonrpc":"2.0","method":"%b","id":%d,"params":%b}' % (
            method.encode(), id, encode(params))  # fmt: skip
        unsent.append(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        if len(unsent) == 16:
            write(writing, b"".join(unsent))
            unsent.clear()
        return Call(id)

    yield submit
    server.stdin.close()
    server.wait()


def dispatch() -> driver.Answer:
    decode = msgspec.json.Decoder(Add | Echo).decode
    encode = msgspec.json.Encoder().encode

    def answer(data: bytes) -> bytes:
        request = decode(data)
        return encode(Answer("2.0", request.id, request.call()))

    return answer


if __name__ == "__main__":
    gc.disable()
    joined = sys.argv[1] == "joined"
    if joined:
        del sys.argv[1]
    driver.main(serve=lambda: serve(joined), connect_blocking=connect, dispatch=dispatch)
