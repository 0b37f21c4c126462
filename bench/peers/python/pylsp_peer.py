# mypy: disable-error-code="import-not-found, import-untyped"
"""python-lsp-jsonrpc: a reader, a writer and an endpoint over buffered files."""

from __future__ import annotations

import sys

from pylsp_jsonrpc.endpoint import Endpoint
from pylsp_jsonrpc.streams import JsonRpcStreamReader, JsonRpcStreamWriter

from bench import driver

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

METHODS = {
    "add": lambda params: params["a"] + params["b"],
    "echo": lambda params: params["value"],
}


def serve() -> None:
    writer = JsonRpcStreamWriter(sys.stdout.buffer)
    endpoint = Endpoint(METHODS, writer.write)
    JsonRpcStreamReader(sys.stdin.buffer).listen(endpoint.consume)
    endpoint.shutdown()


def connect(program: list[str]) -> Any:
    from contextlib import contextmanager
    from threading import Thread

    @contextmanager
    def client() -> Iterator[driver.Submit]:
        server = driver.spawn(program)
        writer = JsonRpcStreamWriter(server.stdin)
        endpoint = Endpoint({}, writer.write)
        reader = JsonRpcStreamReader(server.stdout)
        thread = Thread(target=reader.listen, args=(endpoint.consume,))
        thread.start()
        yield endpoint.request
        writer.close()
        thread.join()
        server.wait()

    return client()


def dispatch() -> driver.Answer:
    import ujson

    answers: list[str] = []
    endpoint = Endpoint(METHODS, lambda message: answers.append(ujson.dumps(message)))

    def answer(data: bytes) -> str | None:
        endpoint.consume(ujson.loads(data))
        return answers.pop() if answers else None

    return answer


if __name__ == "__main__":
    driver.main(serve=serve, connect_blocking=connect, dispatch=dispatch)
