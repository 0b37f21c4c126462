# mypy: disable-error-code="import-not-found"
"""pygls: its JSON-RPC server and client on stdio.

The converter leaves params and results as they were parsed; the default one makes a new class for
every object and is slower.
"""

from __future__ import annotations

import cattrs
from pygls.protocol import (
    JsonRPCNotification,
    JsonRPCProtocol,
    JsonRPCRequestMessage,
    JsonRPCResponseMessage,
)
from pygls.server import JsonRPCServer

from bench import driver

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Any


def plain_converter() -> Any:
    converter = cattrs.Converter()
    for message in (JsonRPCRequestMessage, JsonRPCResponseMessage, JsonRPCNotification):
        converter.register_structure_hook(message, lambda values, cls: cls(**values))
    return converter


def serve() -> None:
    server = JsonRPCServer(JsonRPCProtocol, plain_converter)
    server.feature("add")(lambda params: params["a"] + params["b"])
    server.feature("echo")(lambda params: params["value"])
    server.start_io()


def connect(program: list[str]) -> Any:
    from contextlib import asynccontextmanager

    from pygls.client import JsonRPCClient

    @asynccontextmanager
    async def client() -> AsyncIterator[driver.Call]:
        connection: Any = JsonRPCClient(converter_factory=plain_converter)
        await connection.start_io(*program, "serve")
        yield connection.protocol.send_request_async
        connection.protocol.writer.close()
        await connection.stop()

    return client()


if __name__ == "__main__":
    driver.main(serve=serve, connect=connect)
