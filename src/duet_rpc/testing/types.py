"""The types of the fixtures, for tests that are type-checked: `rpc_client: testing.MakeClient`."""

from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Unpack

from duet_rpc.client.client import Client
from duet_rpc.client.options import CommonOptions
from duet_rpc.engine.log import Log
from duet_rpc.policy import Policy
from duet_rpc.service import Service
from duet_rpc.testing.wire import Wire

if TYPE_CHECKING:
    from duet_rpc import blocking
    from duet_rpc.engine.face import MakeFace
    from duet_rpc.hooks import Hooks
    from duet_rpc.ledger import Ledger, Store

T = TypeVar("T")


class ConnectOptions(CommonOptions, total=False):
    """What can be said of a client in memory, and of the server that it is connected to."""

    policy: Policy
    """The server's."""
    store: "Store | Ledger | str | None"
    """Where the server keeps what became of commands."""
    wire: Wire | None
    """What the two say to each other passes through it."""
    server_log: Log | None
    """In place of the logger `duet_rpc` of Python's `logging`."""
    client_policy: Policy
    hooks: "Sequence[Hooks]"
    """The server's."""
    override: Mapping[Any, Any] | None
    """Values in place of what the service provides, by type."""
    client_hooks: "Sequence[Hooks]"
    face: "MakeFace | None"
    """Another protocol that the server speaks, such as `duet_rpc.mcp.Mcp()`."""


class Connect(Protocol):
    """The type of `rpc_connect`, which is `testing.connect`."""

    def __call__(
        self, service: Service, /, **options: Unpack[ConnectOptions]
    ) -> AbstractAsyncContextManager[Client]:
        """Connect an asyncio client to a service in memory."""
        ...


class MakeClient(Protocol):
    """The type of `rpc_client`."""

    def __call__(self, service: Service, /, **options: Unpack[ConnectOptions]) -> "blocking.Client":
        """Connect a blocking client to a service in memory, until the test ends."""
        ...


class RunOnClock(Protocol):
    """The type of `rpc_run`, which is `testing.run`."""

    def __call__(self, coroutine: Coroutine[Any, Any, T], *, seed: int | None = None) -> T:
        """RunOnClock a coroutine on a clock that jumps."""
        ...
