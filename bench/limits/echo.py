"""The floor of every round trip: the bytes of a small request through two pipes and back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench import driver

BODY = b'{"jsonrpc":"2.0","method":"add","params":{"a":1,"b":2},"id":7}'
MESSAGE = b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)


def serve() -> None:
    while data := os.read(0, 65536):
        os.write(1, data)


@contextmanager
def connect(program: list[str]) -> Iterator[driver.Submit]:
    server = driver.spawn(program)
    reading, writing = server.stdout.fileno(), server.stdin.fileno()

    def submit(method: str, params: dict[str, Any]) -> driver.Pending:
        os.write(writing, MESSAGE)
        driver.check(os.read(reading, 65536), MESSAGE)
        return driver.Done(params["a"] + params["b"])

    yield submit
    server.stdin.close()
    server.wait()


if __name__ == "__main__":
    driver.main(serve=serve, connect_blocking=connect)
