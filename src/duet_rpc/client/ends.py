"""How a connection ended, as a value: what `closed()` of both clients returns."""

from typing import Literal, TypeAlias

from msgspec import Struct

from duet_rpc.transports.link import Link

EndReason: TypeAlias = Literal["closed", "exited", "lost"]


class ConnectionEnd(Struct, frozen=True):
    """How a connection of a client ended. As text: the message, and the last lines of stderr."""

    reason: EndReason
    """`closed`: by the client itself; `exited`: the process that it spawned ended; `lost`: the
    server closed the socket, the network failed, or what came was no frame."""
    message: str
    """One line that says what happened, for a log or a person."""
    connection_id: str
    """Which connection of the client it was: `client-1`, and after each reconnect the next."""
    exit_code: int | None = None
    """The exit status of a spawned server, also after `close()`; negative: the signal that killed
    it. None where there is no process."""
    stderr_tail: str = ""
    """The last lines that a spawned server wrote to its stderr."""
    pid: int | None = None
    """The process id that a spawned server had; None where there is no process."""

    def __str__(self) -> str:
        return f"{self.message}\n{self.stderr_tail}" if self.stderr_tail else self.message


def end_link(
    link: Link, connection_id: str, cause: Exception | None, *, by_client: bool
) -> ConnectionEnd:
    """Give a link back and say how its connection ended; blocks until a child process has ended.

    `cause` is what open calls failed with. The link is asked again: a child may have taken
    longer to end than calls wait for its exit status.
    """
    link.end()
    last = link.loss()
    reason: EndReason
    if by_client:
        reason = "closed"
    elif link.transport == "stdio":
        reason, cause = "exited", None
    else:
        reason = "lost"
    message = str(last.args[0] if cause is None else cause.args[0])
    return ConnectionEnd(
        reason, message, connection_id, last.exit_code, last.stderr_tail, pid=link.pid
    )
