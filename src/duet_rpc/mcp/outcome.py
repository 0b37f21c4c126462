"""The tool `outcome`: what became of a command, for an agent that does not know."""

from typing import TYPE_CHECKING, Any

from duet_rpc.context import Context
from duet_rpc.errors import InvalidParams, UsageError
from duet_rpc.mcp.tools import Tool, make_tools
from duet_rpc.mcp.wording import OUTCOME_TOOL
from duet_rpc.service import Kind, Service
from duet_rpc.wire.params import check_key

if TYPE_CHECKING:
    from duet_rpc.engine.dispatch import CommandLedger


def add_outcome_tool(tools: dict[str, Tool], ledger: "CommandLedger | None") -> dict[str, Tool]:
    """Add the tool where there is a command whose outcome can be asked for."""
    commands = {
        name: tool.method.name for name, tool in tools.items() if tool.method.kind is Kind.COMMAND
    }
    if not commands or ledger is None:
        return tools
    if OUTCOME_TOOL in tools:
        raise UsageError(
            f"{tools[OUTCOME_TOOL].method.name} would be the tool {OUTCOME_TOOL}, which tells what"
            " became of a command; give it another name="
        )
    service = Service()

    @service.query(name=OUTCOME_TOOL)
    def outcome(tool: str, idempotency_key: str, ctx: Context) -> dict[str, Any]:
        """Tell what became of an earlier call of another tool under an idempotency_key.

        The state is "done" with the result or the error of that call; "running" if it has not
        ended; "none" if nothing of the kind has happened, so that the call can be made; "unknown"
        if no one can tell.
        """
        method = commands.get(tool)
        if method is None:
            raise InvalidParams(
                data={
                    "param": "tool",
                    "expected": "the name of a tool that acts",
                    "received": "another text",
                    "accepted": sorted(commands),
                }
            )
        outcome: dict[str, Any] = ledger.outcome(ctx.principal, method, check_key(idempotency_key))
        return outcome

    return dict(sorted({**tools, **make_tools(service, service, key_required=False)}.items()))
