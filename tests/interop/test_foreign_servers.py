"""Our clients and servers that nobody here wrote: a thousand calls in flight, each answer checked.

Two speak MCP in lines (the Python and the TypeScript SDK), two LSP's framing (pygls and
vscode-jsonrpc). Each takes its time for every single call, so that answers come in any order.
"""

import asyncio
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from duet_rpc import Client, Service, blocking
from duet_rpc.errors import CallTimeout, MethodNotFound, RpcError
from tests.interop.clients import HERE, NODE_PACKAGES, needed

FOREIGN = HERE / "foreign"
MODULES = HERE / "node" / "node_modules"
IN_FLIGHT = 1000
PATIENCE = 100.0

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("rpc_no_leaks")]


class Foreign:
    """One of the servers: how it is started, greeted, asked, and what it answers."""

    def __init__(self, program: str, framing: str, package: str = "") -> None:
        self.program = FOREIGN / program
        self.framing = framing
        self.package = package

    def options(self) -> tuple[list[str], dict[str, Any]]:
        environment = dict(os.environ)
        if self.program.suffix == ".js":
            command = [needed("node"), str(self.program)]
            if not (MODULES / self.package).is_dir():
                pytest.skip(NODE_PACKAGES)
            environment["NODE_PATH"] = str(MODULES)
        else:
            command = [sys.executable, str(self.program)]
        return command, {"env": environment, "framing": self.framing, "timeout": PATIENCE}


SERVERS = {
    "MCP Python SDK": Foreign("mcp_server.py", "ndjson"),
    "MCP TypeScript SDK": Foreign("mcp_server.js", "ndjson", "@modelcontextprotocol/sdk"),
    "pygls": Foreign("pygls_server.py", "lsp"),
    "vscode-jsonrpc": Foreign("vscode_server.js", "lsp", "vscode-jsonrpc"),
}

MCP_HELLO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "duet-rpc", "version": "1"},
}
LSP_HELLO: dict[str, Any] = {"processId": os.getpid(), "rootUri": None, "capabilities": {}}


def greeting(name: str) -> list[tuple[str, Any]]:
    """Say what a server wants to hear first: requests, and notifications after them."""
    if name.startswith("MCP"):
        return [("initialize", MCP_HELLO), ("notifications/initialized", None)]
    if name == "pygls":
        return [("initialize", LSP_HELLO), ("initialized", {})]
    return []


def question(name: str, number: int) -> tuple[str, Any, Any]:
    """Make the question with a number, and the one right answer to it."""
    if name.startswith("MCP"):
        params = {"name": "add", "arguments": {"a": number, "b": 1}}
        return "tools/call", params, str(number + 1)
    if name == "pygls":
        params = {
            "textDocument": {"uri": "file:///nowhere.txt"},
            "position": {"line": number, "character": number % 7},
        }
        return "textDocument/hover", params, f"{number}:{number % 7}"
    return "add", {"a": number, "b": 1}, number + 1


def answer(name: str, result: Any) -> Any:
    """Take the answer out of what a server wraps it in."""
    if name.startswith("MCP"):
        assert not result.get("isError")
        return result["content"][0]["text"]
    if name == "pygls":
        return result["contents"]["value"]
    return result


@pytest.mark.parametrize("name", SERVERS)
async def test_a_thousand_calls_in_flight(name: str) -> None:
    command, options = SERVERS[name].options()
    async with Client.spawn(*command, **options) as client:
        for method, params in greeting(name):
            if method == "initialize":
                assert isinstance(await client.call(method, params), dict)
            else:
                await client.notify(method, params)
        calls = []
        for number in range(IN_FLIGHT):
            method, params, right = question(name, number)
            calls.append((right, client.start(method, params)))
        assert client.stats.pending == IN_FLIGHT
        for right, call in calls:
            assert answer(name, await call) == right
        stats = client.stats
        assert (stats.pending, stats.unmatched_answers, stats.faults) == (0, 0, 0)
        method, params, right = question(name, 5)
        with pytest.raises(CallTimeout):
            await client.call(method, params, timeout=0.0)
        assert answer(name, await client.call(method, params)) == right, "it lives on"
        with pytest.raises(RpcError):
            await client.call("no/such/method", {})


@pytest.mark.parametrize("name", SERVERS)
def test_threads_share_a_blocking_client(name: str) -> None:
    command, options = SERVERS[name].options()
    failures: list[BaseException] = []
    with blocking.Client.spawn(*command, **options) as client:
        for method, params in greeting(name):
            if method == "initialize":
                client.call(method, params)
            else:
                client.notify(method, params)

        def ask(thread: int) -> None:
            try:
                for step in range(15):
                    method, params, right = question(name, 100 * thread + step)
                    assert answer(name, client.call(method, params)) == right
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=ask, args=[thread]) for thread in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        if failures:
            raise failures[0]
        assert (client.stats.pending, client.stats.unmatched_answers) == (0, 0)


async def test_errors_cancellation_and_calls_back_with_vscode_jsonrpc() -> None:
    command, options = SERVERS["vscode-jsonrpc"].options()
    ours, told = Service(), asyncio.Event()

    @ours.query
    async def upper(text: str) -> str:
        return text.upper()

    @ours.query(notification_allowed=True)
    async def cancelled() -> None:
        told.set()

    async with Client.spawn(*command, service=ours, **options) as client:
        with pytest.raises(RpcError, match="it failed") as caught:
            await client.call("fail")
        assert (caught.value.code, caught.value.data) == (4714, {"why": "asked to"})
        with pytest.raises(MethodNotFound):
            await client.call("nope")
        assert await client.call("back", {"text": "shout"}) == "SHOUT"
        with pytest.raises(CallTimeout):
            await client.call("wait", {}, timeout=0.3)
        async with asyncio.timeout(PATIENCE):
            await told.wait()


def test_the_servers_are_there() -> None:
    assert {Path(server.program).name for server in SERVERS.values()} == {
        path.name for path in FOREIGN.iterdir() if path.suffix in (".py", ".js")
    }
