"""The boundary around a talk with a server: what goes wrong there ends the command."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from duet_rpc.cli.failures import Attempt, Interrupted, exit_code, failure_json, headline
from duet_rpc.cli.output import Failed, Output
from duet_rpc.errors import DuetError

if TYPE_CHECKING:
    from duet_rpc.blocking import Client
    from duet_rpc.cli.connect import Server


@contextmanager
def talking(server: "Server", output: Output) -> "Iterator[Client]":
    """Open a client for questions that change nothing."""
    try:
        with server.client() as client:
            yield client
    except KeyboardInterrupt:
        raise _failed(Interrupted("interrupted"), server, output) from None
    except DuetError as error:
        raise _failed(error, server, output) from None


def _failed(error: DuetError, server: "Server", output: Output) -> Failed:
    if output.json_wanted:
        output.value(failure_json(error, Attempt(method="", sent=False)))
    return Failed(headline(error), exit_code(error), server.about_framing(error))
