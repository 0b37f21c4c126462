# mypy: disable-error-code="import-not-found"
"""The MCP Python SDK: its low-level server with two tools, and its client, over its own stdio."""

from __future__ import annotations

import json
import os
import sys

import mcp_types as types

from bench import driver

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Any


async def list_tools(ctx: Any, params: Any) -> Any:
    schema = {"type": "object"}
    return types.ListToolsResult(
        tools=[types.Tool(name=name, input_schema=schema) for name in ("add", "echo")]
    )


async def call_tool(ctx: Any, params: Any) -> Any:
    arguments = params.arguments
    if params.name == "add":
        text = str(arguments["a"] + arguments["b"])
    elif isinstance(arguments["value"], str):
        text = arguments["value"]
    else:
        return types.CallToolResult(content=[], structured_content=arguments)
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)])


def serve() -> None:
    import anyio
    from mcp.server import Server
    from mcp.server.stdio import stdio_server

    async def run() -> None:
        server = Server("bench", on_list_tools=list_tools, on_call_tool=call_tool)
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())

    anyio.run(run)


def connect(program: list[str]) -> Any:
    from contextlib import asynccontextmanager

    from mcp.client.session import ClientSession
    from mcp.client.stdio import StdioServerParameters, stdio_client

    @asynccontextmanager
    async def client() -> AsyncIterator[driver.Call]:
        command, *arguments = [*program, "serve"]
        parameters = StdioServerParameters(command=command, args=arguments, env=dict(os.environ))
        async with (
            stdio_client(parameters, errlog=sys.stderr) as (reading, writing),
            ClientSession(reading, writing) as session,
        ):
            await session.initialize()
            # The session asks for the tools' schemas before the first call; not part of the work.
            await session.list_tools()

            async def call(method: str, params: dict[str, Any]) -> Any:
                result: Any = await session.call_tool(method, params)
                if result.structured_content is not None:
                    return result.structured_content["value"]
                text = result.content[0].text
                return json.loads(text) if method == "add" else text

            yield call

    return client()


if __name__ == "__main__":
    driver.main(serve=serve, connect=connect)
