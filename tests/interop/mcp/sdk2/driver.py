"""The MCP Python SDK 2 as a client: `driver.py tour|leave auto|legacy|VERSION COMMAND...`."""

import os
import sys
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mcp import Client, MCPError, StdioServerParameters
from pydantic import BaseModel

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
warnings.simplefilter("ignore")

from scenarios import main  # noqa: E402


def dump(result: BaseModel) -> Any:
    return result.model_dump(mode="json", by_alias=True, exclude_none=True)


class Adapter:
    def __init__(self, client: Client) -> None:
        self._client = client

    def version(self) -> str:
        return str(self._client.protocol_version)

    def server(self) -> Any:
        client = self._client
        info = client.server_info
        return {
            "info": None if info is None else dump(info),
            "instructions": client.instructions,
            "capabilities": dump(client.server_capabilities),
        }

    def describe_error(self, error: BaseException) -> Any:
        return dump(error.error) if isinstance(error, MCPError) else {"text": str(error)}

    async def call(
        self,
        name: str,
        arguments: Any = None,
        *,
        seconds: float | None = None,
        progress: Any = None,
    ) -> Any:
        found = await self._client.call_tool(
            name, arguments, read_timeout_seconds=seconds, progress_callback=progress
        )
        return dump(found)

    async def tools(self) -> Any:
        return dump(await self._client.list_tools())

    async def resources(self) -> Any:
        return dump(await self._client.list_resources())

    async def templates(self) -> Any:
        return dump(await self._client.list_resource_templates())

    async def read(self, uri: str) -> Any:
        return dump(await self._client.read_resource(uri))

    async def prompts(self) -> Any:
        return dump(await self._client.list_prompts())

    async def prompt(self, name: str, arguments: dict[str, str]) -> Any:
        return dump(await self._client.get_prompt(name, arguments))

    async def set_level(self, level: Any) -> Any:
        return dump(await self._client.set_logging_level(level))

    async def ping(self) -> Any:
        return dump(await self._client.send_ping())

    async def cancelled(self) -> None:
        """It has told the server."""


@asynccontextmanager
async def open_client(mode: str, command: list[str]) -> AsyncIterator[Adapter]:
    server = StdioServerParameters(command=command[0], args=command[1:])
    async with Client(server, mode=mode) as client:
        yield Adapter(client)


if __name__ == "__main__":
    main(open_client)
