"""The host on an event loop: what another thread may do to it."""

import asyncio
import os

from duet_rpc import Service
from duet_rpc.context import Origin
from duet_rpc.engine.connection import ConnectionOptions
from duet_rpc.engine.dispatch import Dispatcher
from duet_rpc.hosts.loop import LoopHost
from duet_rpc.hosts.workers import Workers
from duet_rpc.policy import SPEC
from duet_rpc.transports.channel import Channel
from duet_rpc.wire.framing import HeaderFraming

REQUEST = HeaderFraming.encode(b'{"jsonrpc":"2.0","id":1,"method":"lost"}')


async def test_whoever_reads_for_the_loop_does_not_wait_for_input() -> None:
    reading, peer_writes = os.pipe()
    peer_reads, writing = os.pipe()
    channel = Channel(reading, writing)
    workers = Workers()
    host = LoopHost(
        channel,
        Dispatcher(Service(), SPEC),
        HeaderFraming(),
        ConnectionOptions(origin=Origin(connection_id="one", transport="memory")),
        workers=workers,
    )
    loop = asyncio.get_running_loop()
    try:
        waiting = loop.run_in_executor(None, host.read_for_loop)
        done, _ = await asyncio.wait([waiting], timeout=20)
        os.write(peer_writes, REQUEST)  # which would end the waiting
        await waiting
        assert done, "it waited for input, and the loop could not go on meanwhile"
        await loop.run_in_executor(None, host.read_for_loop)
        await asyncio.sleep(0)
        assert b"Method not found" in os.read(peer_reads, 4096)
    finally:
        host.close()
        workers.close()
        os.close(peer_writes)
        os.close(peer_reads)
