"""The client of FastMCP 4: `driver.py tour|leave auto|legacy|VERSION COMMAND...`."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from mcp import MCPError
from pydantic import BaseModel

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from scenarios import main


def dump(result: BaseModel) -> Any:
    return result.model_dump(mode="json", by_alias=True, exclude_none=True)


class Adapter:
    def __init__(self, client: "Client[Any]") -> None:
        self._client = client

    def version(self) -> str:
        return str(self._client.protocol_version)

    def server(self) -> Any:
        client = self._client
        info, capabilities = client.server_info, client.server_capabilities
        return {
            "info": None if info is None else dump(info),
            "instructions": client.instructions,
            "capabilities": None if capabilities is None else dump(capabilities),
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
        found = await self._client.call_tool_mcp(
            name, arguments or {}, timeout=seconds, progress_handler=progress
        )
        if not found.is_error and seconds is None and name not in ("lab_picture", "lab_mixed"):
            # What most people call: it makes objects of the output schema.
            parsed = await self._client._parse_call_tool_result(name, found)
            assert parsed.data is not None, name
        return dump(found)

    async def tools(self) -> Any:
        return {"tools": [dump(tool) for tool in await self._client.list_tools()]}

    async def resources(self) -> Any:
        return {"resources": [dump(each) for each in await self._client.list_resources()]}

    async def templates(self) -> Any:
        found = await self._client.list_resource_templates()
        return {"resourceTemplates": [dump(each) for each in found]}

    async def read(self, uri: str) -> Any:
        return {"contents": [dump(each) for each in await self._client.read_resource(uri)]}

    async def prompts(self) -> Any:
        return {"prompts": [dump(each) for each in await self._client.list_prompts()]}

    async def prompt(self, name: str, arguments: dict[str, str]) -> Any:
        return dump(await self._client.get_prompt(name, arguments))

    async def set_level(self, level: Any) -> Any:
        await self._client.set_logging_level(level)
        return {}

    async def ping(self) -> Any:
        assert await self._client.ping()
        return {}

    async def cancelled(self) -> None:
        """It has told the server."""


@asynccontextmanager
async def open_client(mode: str, command: list[str]) -> AsyncIterator[Adapter]:
    transport = StdioTransport(command[0], command[1:], keep_alive=False)
    async with Client(transport, mode=mode) as client:
        yield Adapter(client)


if __name__ == "__main__":
    main(open_client)
