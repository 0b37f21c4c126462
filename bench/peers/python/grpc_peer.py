# mypy: disable-error-code="import-not-found, import-untyped, misc, name-defined"
"""gRPC: protobuf messages over HTTP/2 on a unix socket.

The server is the synchronous one; the client is synchronous for one call at a time and asyncio for
several, the quicker of the two in each case.
"""

from __future__ import annotations

import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from subprocess import Popen

import grpc

from bench import driver

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from typing import Any

sys.path.insert(0, os.path.dirname(__file__))
protos, services = grpc.protos_and_services("bench.proto")
OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


class Bench(services.BenchServicer):
    def Add(self, request: Any, context: Any) -> Any:
        return protos.Sum(value=request.a + request.b)

    def EchoText(self, request: Any, context: Any) -> Any:
        return protos.Text(value=request.value)

    def EchoRecords(self, request: Any, context: Any) -> Any:
        return protos.Records(value=request.value)


def listen(path: str) -> None:
    server = grpc.server(ThreadPoolExecutor(8), options=OPTIONS)
    services.add_BenchServicer_to_server(Bench(), server)
    server.add_insecure_port(f"unix:{path}")
    server.start()
    server.wait_for_termination()


def plain(records: Any) -> Any:
    return [
        {"id": r.id, "name": r.name, "price": r.price, "tags": list(r.tags), "active": r.active}
        for r in records.value
    ]


@contextmanager
def server(program: list[str]) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "grpc.sock")
        process = Popen([*program, "listen", path])
        with grpc.insecure_channel(f"unix:{path}") as channel:
            grpc.channel_ready_future(channel).result(timeout=20)
        yield f"unix:{path}"
        process.terminate()
        process.wait()


@contextmanager
def connect_blocking(program: list[str]) -> Iterator[driver.Submit]:
    with server(program) as address, grpc.insecure_channel(address, options=OPTIONS) as channel:
        stub = services.BenchStub(channel)

        def submit(method: str, params: dict[str, Any]) -> driver.Pending:
            value = params.get("value")
            if method == "add":
                return driver.Done(stub.Add(protos.Pair(**params)).value)
            if isinstance(value, str):
                return driver.Done(stub.EchoText(protos.Text(value=value)).value)
            return driver.Done(plain(stub.EchoRecords(protos.Records(value=value))))

        yield submit


@asynccontextmanager
async def connect(program: list[str]) -> AsyncIterator[driver.Call]:
    with server(program) as address:
        async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
            stub = services.BenchStub(channel)

            async def call(method: str, params: dict[str, Any]) -> Any:
                return (await stub.Add(protos.Pair(**params))).value

            yield call


if __name__ == "__main__":
    driver.main(listen=listen, connect=connect, connect_blocking=connect_blocking)
