"""`duet-rpc mcp FILE[:OBJECT]`: a service as tools of an agent, and what helps to set that up."""

from importlib import import_module

import click

_HELPERS: dict[str, str] = {"check": "check", "config": "config"}
"""The module of each command beside the one that serves."""


class _ServeByDefault(click.Group):
    """A group whose first word may also be the file to serve."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name what helps; to serve is what the group itself does."""
        return list(_HELPERS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Load one command."""
        module = _HELPERS.get(name, "serve")
        command = import_module(f"duet_rpc.cli.mcp.{module}").command
        assert isinstance(command, click.Command), "each module has its command under that name"
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Take a word that is no command for the file to serve."""
        if args and args[0] not in _HELPERS:
            return "mcp", self.get_command(ctx, "serve"), args
        return super().resolve_command(ctx, args)


@click.group(
    "mcp",
    cls=_ServeByDefault,
    context_settings={"ignore_unknown_options": True},
    subcommand_metavar="FILE[:OBJECT] [OPTIONS]...",
    epilog="Exit codes: 0 ended as asked, 1 failed, 2 used wrongly.",
)
def command() -> None:
    """Serve your own functions as tools of an agent (MCP), on stdin and stdout or on a socket.

    Queries are tools that only read; commands are tools that act, once for each idempotency key.
    All revisions of the protocol are spoken, whichever the agent asks for.

    \b
    duet-rpc mcp notes.py                            what an agent's host starts
    duet-rpc mcp notes.py --help                     the options of serving
    duet-rpc mcp bank.py --store sqlite:///bank.db   calls that survive a crash
    """
