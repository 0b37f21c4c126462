"""`duet-rpc rpc`: the daemon with nothing but its own methods."""

from typing import Any

import click

from duet_rpc.cli.serve_options import make_logs, make_policy, serving_options


@click.command("rpc")
@serving_options
def command(
    policy: str,
    framing: Any,
    read_timeout: float | None,
    max_message_bytes: int | None,
    log_level: str,
    log_file: str | None,
    no_exception_text: bool,
    no_color: bool,
) -> None:
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

    server = Server(Service(), policy=make_policy(policy, read_timeout, max_message_bytes))
    server.run_stdio(
        framing=framing, logs=make_logs(log_level, log_file, no_exception_text, no_color)
    )
