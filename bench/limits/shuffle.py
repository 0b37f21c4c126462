"""A scripted server: it collects up to a thousand requests and answers them in random order.

It answers early when no more come for a while, for clients that never have so many open. Its first
argument names the framing, `header` or `line`.
"""

import os
import random
import re
import select
import sys

import msgspec

WIDTH = 1000
QUIET = 0.02


class Pair(msgspec.Struct):
    a: int
    b: int


class Request(msgspec.Struct):
    id: msgspec.Raw
    params: Pair


def main(framing: str) -> None:
    decode = msgspec.json.Decoder(Request).decode
    start, end = (rb"\r\n\r\n", rb"") if framing == "header" else (rb"", rb"\n")
    frames = re.compile(start + rb"(\{[^\r\n]*?\}\})" + end)
    order = random.Random(7)
    rest = b""
    waiting: list[bytes] = []
    while True:
        quiet = waiting and not select.select([0], [], [], QUIET)[0]
        if len(waiting) >= WIDTH or quiet:
            order.shuffle(waiting)
            data = b"".join(waiting)
            waiting.clear()
            while data:
                data = data[os.write(1, data) :]
        if quiet:
            continue
        data = os.read(0, 1 << 16)
        if not data:
            break
        rest += data
        stop = 0
        for found in frames.finditer(rest):
            request = decode(found[1])
            sum = request.params.a + request.params.b
            body = b'{"jsonrpc":"2.0","id":%b,"result":%d}' % (bytes(request.id), sum)
            if framing == "header":
                waiting.append(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
            else:
                waiting.append(body + b"\n")
            stop = found.end()
        rest = rest[stop:]


if __name__ == "__main__":
    main(sys.argv[1])
