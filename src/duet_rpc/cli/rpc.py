"""`duet-rpc rpc`: the daemon with nothing but its own methods."""

import click

from duet_rpc.cli.serve_options import ServeOptions, serving_options


@click.command("rpc")
@serving_options()
def command(options: ServeOptions) -> None:
    """Serve the daemon's own methods on stdin and stdout.

    They are initialize, listMethods, describeMethods, version, setLogLevel, shutdown, exit,
    rpc.discover and rpc.outcome: what a client under development needs to try itself against.
    `duet-rpc serve` has them too, beside the functions of your own.

    The daemon ends with exit code 0, and in less than two seconds, on shutdown, at the end of its
    input, and on SIGINT, SIGTERM or SIGHUP. What it has read by then is answered.

    \b
    duet-rpc rpc < requests.bin            answer what is in a file
    duet-rpc rpc --framing ndjson          one message a line, to type by hand
    duet-rpc rpc --log-level debug --log-file rpc.log
    """
    from duet_rpc.server.server import Server
    from duet_rpc.service import Service

    server = Server(Service(), policy=options.make_policy())
    server.run_stdio(framing=options.framing, logs=options.make_logs())
