"""The methods that every daemon has: what it is, what it serves, how to end it.

A service that defines one of these names itself keeps its own.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

from msgspec import Meta

from duet_rpc.context import Context
from duet_rpc.errors import InvalidParams
from duet_rpc.ledger.commands import Commands
from duet_rpc.options import is_text
from duet_rpc.service import Service
from duet_rpc.version import __version__
from duet_rpc.wire.dialect import JSONRPC, Dialect
from duet_rpc.wire.params import check_key

if TYPE_CHECKING:
    from duet_rpc.server.description import ServiceDescription

PROTOCOL_VERSION = "2.0"


class Levels(Protocol):
    """The one thing of a log that may be changed from outside."""

    def set_level(self, level: str) -> None:
        """Keep lines of this severity and above."""
        ...


def builtin_methods(
    service: Service,
    logs: Levels,
    end: Callable[[str], None],
    commands: Commands | None = None,
    dialect: Dialect = JSONRPC,
) -> Service:
    """Make the daemon's own methods for a service; `end` takes the reason."""
    daemon = Service()
    name = service.name or "duet-rpc"
    version = service.version or __version__

    def describe_served(with_schemas: bool = False) -> "ServiceDescription":
        from duet_rpc.server.description import describe

        served = service.with_fallback(daemon)
        return describe(served, name=name, version=version, with_schemas=with_schemas)

    @daemon.query(inline=True, ignore_unknown=True)
    def initialize() -> dict[str, Any]:
        """Say who is serving. Not required: every method is callable at once."""
        return {
            "serverInfo": {"name": name, "version": version},
            "protocolVersion": PROTOCOL_VERSION,
        }

    @daemon.query(inline=True, name="listMethods")
    def list_methods() -> list[dict[str, str]]:
        """List the methods with their descriptions."""
        methods = describe_served().methods
        return [{"name": each.name, "description": each.description} for each in methods]

    @daemon.query(inline=True, name="describeMethods")
    def describe_methods() -> list[dict[str, Any]]:
        """Say what each method takes and returns."""
        from duet_rpc.server.description import write_method

        return [write_method(method) for method in describe_served().methods]

    @daemon.query(inline=True, name="version")
    def say_version() -> dict[str, str]:
        """Say the version of what is served."""
        return {"version": version}

    *levels, last = dialect.levels

    @daemon.query(
        inline=True,
        name=dialect.set_level,
        notification_allowed=True,
        description=f"Keep log lines of this severity and above: {', '.join(levels)} or {last}.",
    )
    def set_log_level(level: str) -> dict[str, Any]:
        wanted = level.lower()
        if wanted not in dialect.levels:
            from duet_rpc.methods.wording import type_name

            raise InvalidParams(
                data={
                    "param": "level",
                    "expected": type_name(Literal[tuple(dialect.levels)]),
                    "received": "another string",
                    "accepted": list(dialect.levels),
                }
            )
        logs.set_level(dialect.levels[wanted])
        return {"level": wanted, "success": True} if dialect.repeats_level else {}

    @daemon.query(inline=True, notification_allowed=True, ignore_unknown=True)
    def shutdown() -> dict[str, str]:
        """Finish what was asked before, then end."""
        end("shutdown")
        return {"message": "Shutting down gracefully"}

    @daemon.query(inline=True, notification_allowed=True, ignore_unknown=True)
    def exit() -> None:
        """End; what LSP clients send after shutdown."""
        end("exit")

    @daemon.query(inline=True, name="rpc.discover")
    def discover() -> dict[str, Any]:
        """Describe everything that is served, as an OpenRPC document."""
        from duet_rpc.server.openrpc import write_openrpc

        return write_openrpc(describe_served(with_schemas=True))

    if commands is not None:

        @daemon.query(name="rpc.outcome")
        def outcome(
            method: str,
            idempotency_key: str,
            ctx: Context,
            age_ms: Annotated[int, Meta(ge=0)] = 0,
        ) -> Any:
            """Tell what became of a command: none, running, done or unknown, and its outcome.

            With its age (milliseconds since it was first sent), `none` is said only if the store
            would know; else it is `unknown`.
            """
            key = check_key(idempotency_key)
            if not is_text(method):  # no command has such a name, and no store takes it
                return {"state": "none"}
            return commands.outcome(ctx.principal, method, key, age_ms / 1000)

    return daemon


def parting_methods(part: Callable[[str], None]) -> Service:
    """Make the methods that end one connection of many; `part` takes it.

    In place of those that end the daemon: a client of a socket is not alone there.
    """
    parting = Service()

    @parting.query(inline=True, notification_allowed=True, ignore_unknown=True)
    def shutdown(ctx: Context) -> dict[str, str]:
        """Finish what was asked before on this connection, then close it; the server goes on."""
        part(ctx.connection_id)
        return {"message": "Closing this connection"}

    @parting.query(inline=True, notification_allowed=True, ignore_unknown=True)
    def exit(ctx: Context) -> None:
        """Close this connection; what LSP clients send after shutdown."""
        part(ctx.connection_id)

    return parting
