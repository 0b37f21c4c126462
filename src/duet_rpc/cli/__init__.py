"""The command `duet-rpc`: one file per command, each importing what it needs when it runs.

An editor starts `duet-rpc rpc` each time it opens a project, and its user waits. There is nothing
to parse in that line, so it does without click, which would be a quarter of the start.
"""

import gc
import os
import signal
import sys

from duet_rpc.collector import pause_collector

VARIABLES = "DUET_RPC_"
"""How the names of our environment variables begin; each has an option beside it."""


def main() -> None:
    """Run the command line of this process."""
    if sys.argv[1:2] in (["rpc"], ["serve"]):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _end_at_once)
    if sys.argv[1:] == ["rpc"] and not any(name.startswith(VARIABLES) for name in os.environ):
        gc.disable()  # loading makes no garbage, and to look for some is a twentieth of the start
        from duet_rpc.server.server import Server
        from duet_rpc.service import Service

        Server(Service()).run_stdio(on_start=_collect_garbage)
        return
    try:
        with pause_collector():
            import click  # noqa: F401
    except ModuleNotFoundError:
        sys.exit("duet-rpc: the command line needs click: pip install 'duet-rpc[cli]'")
    from duet_rpc.cli.main import duet_rpc

    duet_rpc(prog_name="duet-rpc")


def _collect_garbage(started: object) -> None:
    """Collect garbage from now on; what was loaded is none and need not be looked at again."""
    gc.freeze()
    gc.enable()


def _end_at_once(number: int, frame: object) -> None:
    """End as asked while a daemon still loads; it has read nothing yet that it could answer.

    Not by an exception, which an import of somebody else's may catch.
    """
    os._exit(0)
