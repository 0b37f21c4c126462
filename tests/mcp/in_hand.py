"""A client of MCP with its server in hand: messages in, answers out, no process and no loop."""

import json
import weakref
from typing import Any

from duet_rpc import Service
from duet_rpc.context import Origin
from duet_rpc.engine.connection import ConnectionOptions
from duet_rpc.engine.dispatch import CommandLedger, make_dispatcher
from duet_rpc.hosts.debug import connection_class
from duet_rpc.ledger import Ledger, MemoryStore
from duet_rpc.ledger.commands import Commands
from duet_rpc.mcp import Mcp
from duet_rpc.policy import AGENT, Policy
from duet_rpc.wire.dialect import MCP
from duet_rpc.wire.framing.line import LineFraming
from tests.helpers import Recorder
from tests.mcp.line import McpHost

NEWEST = "2025-11-25"
"""The newest revision that begins with a handshake."""


class InHand:
    """One client, after the handshake."""

    def __init__(
        self,
        service: Service,
        *,
        revision: str = NEWEST,
        policy: Policy = AGENT,
        face: Mcp | None = None,
        ledger: CommandLedger | None = None,
    ) -> None:
        face = face or Mcp()
        if ledger is None:
            kept = Ledger(MemoryStore())
            weakref.finalize(self, kept.close)  # it has a thread
            ledger = Commands(lambda: kept)
        self.host = McpHost(())
        self.host.dialect = MCP
        self.dispatcher = make_dispatcher(
            face.extend(service), policy, ledger=ledger, log=Recorder(), dialect=MCP, face=face
        )
        self._connection = connection_class(self.dispatcher)(
            self.dispatcher,
            LineFraming(),
            self.host,
            ConnectionOptions(origin=Origin(connection_id="c1", transport="memory")),
        )
        self.host.connection = self._connection
        self._id = 0
        opening = {"protocolVersion": revision, "capabilities": {}}
        assert self.ask("initialize", opening)["result"]["protocolVersion"] == revision

    def ask(self, method: str, params: dict[str, Any] | None = None) -> Any:
        """Send a request and return its whole answer."""
        self._id += 1
        message = {"jsonrpc": "2.0", "id": self._id, "method": method, "params": params or {}}
        (answer,) = self.send(json.dumps(message))
        assert answer["id"] == self._id
        return answer

    def send(self, line: str) -> list[Any]:
        """Send a line as it is and return what comes back."""
        before = len(self.host.writes)
        self._connection.receive(line.encode() + b"\n")
        written = b"".join(self.host.writes[before:])
        return [json.loads(each) for each in written.splitlines()]

    def tools(self) -> dict[str, Any]:
        """List the tools, by name."""
        return {tool["name"]: tool for tool in self.ask("tools/list")["result"]["tools"]}

    def call(self, tool: str, /, **arguments: Any) -> Any:
        """Call a tool and return its result."""
        return self.ask("tools/call", {"name": tool, "arguments": arguments})["result"]
