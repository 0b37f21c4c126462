"""A face: another protocol on the same engine, such as MCP, and what it has to tell the engine.

In JSON-RPC itself a request names a method, and its answer is what the method returned. A protocol
of its own has methods of its own, and calls those of a service through them; it spells their
results and their errors in its way. Everything between, from the queue to the ledger, is the same.

    request -> session.prepare -> job -> ... -> member -> job.shape -> answer

Without a face none of this is asked for.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, Protocol

from duet_rpc.errors import RpcError
from duet_rpc.wire.messages import Notification, Request

if TYPE_CHECKING:
    from duet_rpc.context import Origin, Peer
    from duet_rpc.engine.dispatch import Dispatcher, Job
    from duet_rpc.engine.intake import Intake
    from duet_rpc.service import Service
    from duet_rpc.wire.dialect import Dialect


class Face(Protocol):
    """A protocol, bound to the methods of one dispatcher."""

    def compile_intake(self) -> "Intake | None":
        """Make what reads plain requests; None if all of them take the slow decode."""
        ...

    def open(
        self, peer: "Peer", origin: "Origin", retake: "Callable[[Request], None]"
    ) -> "FaceSession":
        """Begin to talk with one peer; `retake` begins a request anew that was left open."""
        ...

    async def end(self, until: float) -> bool:
        """Let what goes on without a request end; return whether it does in time."""
        ...


class MakeFace(Protocol):
    """How a dispatcher gets its face."""

    @property
    def dialect(self) -> "Dialect":
        """How the protocol spells cancellation and progress."""
        ...

    @property
    def framing(self) -> Literal["lsp", "ndjson", "auto"]:
        """How its messages are told apart, where an endpoint names no other way."""
        ...

    def extend(self, service: "Service") -> "Service":
        """Add to a service what is served through this face alone."""
        ...

    def bind(self, dispatcher: "Dispatcher") -> Face:
        """Read the methods that the dispatcher serves."""
        ...


class FaceSession(Protocol):
    """What was agreed on with one peer."""

    @property
    def max_batch(self) -> int:
        """How many messages may come in one array; 0 for none."""
        ...

    def needs_no_slot(self, message: Request) -> bool:
        """Whether a request asks the protocol itself, and no handler: it waits for none."""
        ...

    def prepare(
        self, message: Request | Notification, read_at: float | None, *, in_batch: bool
    ) -> "Job":
        """Find what a message asks for; see `Dispatcher.prepare`. Raises `RpcError`."""
        ...

    def is_command(self, message: Request | Notification) -> bool:
        """Tell whether a message asks for a command of the service."""
        ...

    def refuse(self, id: bytes, message: Request | Notification, error: RpcError) -> bytes:
        """Encode the answer to a request that is refused."""
        ...

    def encode_fault(self, id: bytes, error: RpcError) -> bytes:
        """Encode the answer to what is no message; its id is null if it could not be read."""
        ...

    def cancelled(self, id: bytes) -> None:
        """The peer has cancelled a request; perhaps it is one that the face has left open."""
        ...

    def close(self) -> None:
        """The peer is gone."""
        ...
