"""`duet-rpc serve FILE:OBJECT`: a person's own service."""

import sys

import click

from duet_rpc.cli.serve_options import ServeOptions, option, serving_options
from duet_rpc.collector import pause_collector


@click.command("serve", epilog="Exit codes: 0 ended as asked, 1 the file failed, 2 used wrongly.")
@click.argument("target", metavar="FILE[:OBJECT]")
@serving_options()
@option(
    "--store",
    metavar="URL",
    envvar="DUET_RPC_STORE",
    help="Where to remember commands, so that a retry does not run twice: sqlite:///commands.db,"
    " postgresql://..., redis://...",
)
@option(
    "--unix",
    metavar="PATH",
    envvar="DUET_RPC_UNIX",
    help="Listen on a unix socket, made for you alone (mode 0600), instead of stdin and stdout.",
)
@option(
    "--tcp",
    metavar="HOST:PORT",
    envvar="DUET_RPC_TCP",
    help="Listen on a TCP port (0: any free one, shown in the log). Only loopback addresses are"
    " taken, for every client that connects is served.",
)
@option(
    "--allow-remote",
    is_flag=True,
    envvar="DUET_RPC_ALLOW_REMOTE",
    help="Take any address for --tcp. Everybody who can reach it may call everything.",
)
@option(
    "--max-connections",
    type=click.IntRange(min=1),
    metavar="COUNT",
    envvar="DUET_RPC_MAX_CONNECTIONS",
    help="Serve so many connections of a socket at once; others are refused.  [100]",
)
@option(
    "--reload",
    is_flag=True,
    envvar="DUET_RPC_RELOAD",
    help="Start anew, on the same stdin and stdout, when a file of the service changes. It happens"
    " between requests, so the client notices nothing; a version that cannot be imported is logged,"
    " and the old one goes on.",
)
def command(
    options: ServeOptions,
    target: str,
    store: str | None,
    unix: str | None,
    tcp: str | None,
    allow_remote: bool,
    max_connections: int | None,
    reload: bool,
) -> None:
    """Serve your own functions, on stdin and stdout or on a socket.

    FILE is a Python file, or a module as package.module. OBJECT is the Service in it; it may be
    left out where there is only one. The daemon's own methods (see `duet-rpc rpc`) are there too,
    unless the service defines its own.

    \b
    duet-rpc serve app.py
    duet-rpc serve bank.py:accounts --policy production --store sqlite:///commands.db
    duet-rpc serve shop.api:service --framing ndjson --reload
    duet-rpc serve app.py --unix app.sock
    duet-rpc serve app.py --tcp 127.0.0.1:8765
    """
    with pause_collector():
        from duet_rpc.cli.load import find_file, load_service, read_host_and_port
        from duet_rpc.errors import UsageError
        from duet_rpc.server.endpoints import MAX_CONNECTIONS
        from duet_rpc.server.server import Server
        from duet_rpc.transports.stdio import take_stdio

    if unix is not None and tcp is not None:
        raise click.UsageError("choose one of --unix and --tcp")
    if max_connections is not None and unix is None and tcp is None:
        raise click.UsageError("--max-connections is for sockets; give --unix or --tcp")
    if reload and (unix is not None or tcp is not None):
        raise click.UsageError("--reload is for stdin and stdout; leave out --unix and --tcp")
    rules = options.make_policy()
    framing = options.framing
    if unix is None and tcp is None:
        take_stdio()  # before the file is imported: it may print
    if reload:
        # Compiled files are distinguished by the second; people change a file twice in one.
        sys.dont_write_bytecode = True
    service = load_service(target)
    try:
        server = Server(service, policy=rules, store=store)
    except UsageError as error:
        text = str(error).replace("store= of Server", "--store")
        raise click.UsageError(text) from None
    logs = options.make_logs()
    most = MAX_CONNECTIONS if max_connections is None else max_connections
    try:
        if unix is not None:
            server.run_unix(unix, logs=logs, framing=framing, max_connections=most)
            return
        if tcp is not None:
            host, port = read_host_and_port(tcp)
            server.run_tcp(
                host,
                port,
                allow_remote=allow_remote,
                logs=logs,
                framing=framing,
                max_connections=most,
            )
            return
        file = find_file(target) if reload else None
        if file is None:
            server.run_stdio(framing=framing, logs=logs)
        else:
            from duet_rpc.cli.reload import Reload

            server.run_stdio(framing=framing, logs=logs, on_start=Reload(target, file, logs).watch)
    except UsageError as error:
        text = str(error).replace("say allow_remote=True", "give --allow-remote")
        raise click.UsageError(text) from None
