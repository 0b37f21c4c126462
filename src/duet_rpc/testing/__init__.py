"""For tests of services and clients: connections in memory, time that jumps, wires that fail.

    async def test_add() -> None:
        async with connect(service) as client:
            assert await client.call("add", {"a": 1, "b": 2}) == 3

`connect` joins a real client and a real server by a pair of sockets in one event loop: nothing is
mocked, and no process is started. `run` runs a coroutine on a clock that jumps over every wait, so
that a timeout of an hour takes no time and always comes after what it should come after. A `Wire`
between the two ends drops, delays, repeats and cuts what they say. `serve` and `serve_in_thread`
are for what memory does not have: a real socket, and several clients.
"""

from duet_rpc.testing.clock import JumpingLoop, ManualClock, run
from duet_rpc.testing.memory import connect, connect_blocking
from duet_rpc.testing.sockets import serve, serve_in_thread
from duet_rpc.testing.types import Connect, ConnectOptions, MakeClient, RunOnClock
from duet_rpc.testing.wire import Faults, Way, Wire

__all__ = [
    "Connect",
    "ConnectOptions",
    "Faults",
    "JumpingLoop",
    "MakeClient",
    "ManualClock",
    "RunOnClock",
    "Way",
    "Wire",
    "connect",
    "connect_blocking",
    "run",
    "serve",
    "serve_in_thread",
]
