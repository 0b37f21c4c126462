"""`duet-rpc serve FILE:OBJECT`: a person's own service."""

import sys

import click

from duet_rpc.cli.endpoint_options import EndpointOptions, endpoint_options
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
@endpoint_options
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
    where: EndpointOptions,
    reload: bool,
) -> None:
    """Serve your own functions, on stdin and stdout, on a socket or over HTTP.

    FILE is a Python file, or a module as package.module. OBJECT is the Service in it; it may be
    left out where there is only one. The daemon's own methods (see `duet-rpc rpc`) are there too,
    unless the service defines its own.

    \b
    duet-rpc serve app.py
    duet-rpc serve bank.py:accounts --policy production --store sqlite:///commands.db
    duet-rpc serve shop.api:service --framing ndjson --reload
    duet-rpc serve app.py --unix app.sock
    duet-rpc serve app.py --tcp 127.0.0.1:8765
    duet-rpc serve app.py --http 127.0.0.1:8000
    """
    with pause_collector():
        from duet_rpc.cli.load import find_file, load_service
        from duet_rpc.errors import UsageError
        from duet_rpc.server.server import Server
        from duet_rpc.transports.stdio import take_stdio

    where.check()
    if reload and where.has_socket:
        raise click.UsageError("--reload is for stdin and stdout; leave out the socket")
    rules = options.make_policy("development" if where.http is not None else None)
    framing = options.framing
    if not where.has_socket:
        take_stdio()  # before the file is imported: it may print
    if reload:
        # Compiled files are distinguished by the second; people change a file twice in one.
        sys.dont_write_bytecode = True
    service = load_service(target)
    try:
        server = Server(service, policy=rules, store=store)
        endpoint = where.make_endpoint(framing)
    except UsageError as error:
        raise click.UsageError(_in_options(error)) from None
    logs = options.make_logs()
    file = find_file(target) if reload else None
    try:
        if endpoint is not None:
            server.run(endpoint, logs=logs)
        elif file is None:
            server.run_stdio(framing=framing, logs=logs)
        else:
            from duet_rpc.cli.reload import Reload

            server.run_stdio(framing=framing, logs=logs, on_start=Reload(target, file, logs).watch)
    except UsageError as error:
        raise click.UsageError(_in_options(error)) from None


def _in_options(error: Exception) -> str:
    """Say what is wrong in the words of the command line."""
    text = str(error).replace("store= of Server", "--store")
    return text.replace("say allow_remote=True", "give --allow-remote")
