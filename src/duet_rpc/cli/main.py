"""The commands by name. Each stands in a module of its own and is loaded when asked for."""

from importlib import import_module

import click

from duet_rpc.version import __version__

COMMANDS = {
    "rpc": "rpc",
    "serve": "serve",
    "mcp": "mcp.group",
    "call": "call",
    "batch": "batch",
    "list": "list_methods",
    "describe": "describe",
    "stub": "stub",
    "commands": "commands.group",
    "policy": "policy",
    "version": "version",
    "completion": "completion",
}
"""The module of each command."""


class LazyGroup(click.Group):
    """A group whose commands are imported by name, in the order of the table."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands, the ones for everyday use first."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Load one command."""
        if name not in COMMANDS:
            return None
        command = import_module(f"duet_rpc.cli.{COMMANDS[name]}").command
        assert isinstance(command, click.Command), "each module has its command under that name"
        return command


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 ended as asked, 1 failed, 2 used wrongly.",
)
@click.version_option(__version__, prog_name="duet-rpc", message="%(prog)s %(version)s")
def duet_rpc() -> None:
    """JSON-RPC 2.0 for Python: serve typed functions to editors, agents and programs.

    \b
    duet-rpc serve app.py            serve the functions of app.py on stdin and stdout
    duet-rpc mcp app.py              serve them as the tools of an agent
    duet-rpc list -- python app.py   what a server has
    duet-rpc call unix:sock add a:=1 b:=2
    duet-rpc rpc                     the bare daemon, to try a client against
    duet-rpc policy production       what the rules of a policy are, and why
    """
