"""`duet-rpc mcp FILE[:OBJECT]`: serves a person's own service to agents."""

import click

from duet_rpc.cli.serve_options import ServeOptions, option, serving_options
from duet_rpc.collector import pause_collector


class _ContextOfGroup(click.Context):
    """The context of a command that is called by the name of its group."""

    @property
    def command_path(self) -> str:
        """The words that a person has typed."""
        return super().command_path if self.parent is None else self.parent.command_path


class _CommandOfGroup(click.Command):
    context_class = _ContextOfGroup


@click.command(
    "mcp", cls=_CommandOfGroup, epilog="Exit codes: 0 ended as asked, 1 failed, 2 used wrongly."
)
@click.argument("target", metavar="FILE[:OBJECT]")
@serving_options(policy="agent", framing="ndjson")
@option(
    "--store",
    metavar="URL",
    envvar="DUET_RPC_STORE",
    help="Where to remember commands, so that a repeated call does not act twice, also after a"
    " crash: sqlite:///commands.db, postgresql://..., redis://...",
)
@option(
    "--instructions",
    metavar="TEXT",
    envvar="DUET_RPC_INSTRUCTIONS",
    help="What the model reads about the tools as a whole.",
)
@option("--unix", metavar="PATH", envvar="DUET_RPC_UNIX", help="Listen on a unix socket instead.")
@option("--tcp", metavar="HOST:PORT", envvar="DUET_RPC_TCP", help="Listen on a TCP port instead.")
def command(
    options: ServeOptions,
    target: str,
    store: str | None,
    instructions: str | None,
    unix: str | None,
    tcp: str | None,
) -> None:
    """Serve your own functions as tools of an agent (MCP).

    FILE is a Python file, or a module as package.module. OBJECT is the Service in it; it may be
    left out where there is only one. An `Mcp` value in the same file says more about the server.
    """
    with pause_collector():
        import duet_rpc.mcp.face  # noqa: F401  # what `load` is going to need
        from duet_rpc.cli.load import load_service_and_face, read_host_and_port
        from duet_rpc.errors import UsageError
        from duet_rpc.server.endpoints import Stdio, Tcp, Unix
        from duet_rpc.server.server import Server
        from duet_rpc.transports.stdio import take_stdio

    if unix is not None and tcp is not None:
        raise click.UsageError("choose one of --unix and --tcp")
    if unix is None and tcp is None:
        take_stdio()  # before the file is imported: it may print
    service, face = load_service_and_face(target, instructions)
    endpoint: Stdio | Unix | Tcp = Stdio(framing=options.framing)
    try:
        if unix is not None:
            endpoint = Unix(path=unix, framing=options.framing)
        elif tcp is not None:
            host, port = read_host_and_port(tcp)
            endpoint = Tcp(host=host, port=port, framing=options.framing)
        server = Server(service, policy=options.make_policy(), store=store, face=face)
        server.run(endpoint, logs=options.make_logs())
    except UsageError as error:
        text = str(error).replace("store= of Server", "--store")
        raise click.UsageError(text) from None
