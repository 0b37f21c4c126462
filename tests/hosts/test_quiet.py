"""When a server that starts has read what had waited for it."""

import asyncio
import os

from duet_rpc.context import Origin
from duet_rpc.engine.connection import ConnectionOptions
from duet_rpc.engine.dispatch import Dispatcher
from duet_rpc.hosts.quiet import MAX_LOOKS, call_when_quiet, read_what_waits
from duet_rpc.hosts.threads import ThreadHost
from duet_rpc.policy import SPEC
from duet_rpc.service import Service
from duet_rpc.transports.channel import Channel
from duet_rpc.wire.framing.line import LineFraming


async def test_a_loop_is_quiet_when_nothing_came_for_some_turns() -> None:
    came, seen = 0, list[int]()

    def come() -> None:
        nonlocal came
        came += 1
        if came < 5:
            asyncio.get_running_loop().call_soon(come)

    come()
    quiet = asyncio.Event()

    def note() -> None:
        seen.append(came)
        quiet.set()

    call_when_quiet(asyncio.get_running_loop(), lambda: came, note)
    await quiet.wait()
    assert seen == [5]


async def test_a_loop_that_is_never_quiet_has_read_all_that_waited_after_some_turns() -> None:
    looks = 0

    def count() -> int:
        nonlocal looks
        looks += 1
        return looks

    quiet = asyncio.Event()
    call_when_quiet(asyncio.get_running_loop(), count, quiet.set)
    await quiet.wait()
    assert looks == MAX_LOOKS


def test_threads_read_until_nothing_is_there() -> None:
    read_fd, their_end = os.pipe()
    written, write_fd = os.pipe()

    def one() -> int:
        return 1

    service = Service()
    service.query(one)
    channel = Channel(read_fd, write_fd)
    options = ConnectionOptions(origin=Origin(connection_id="stdio", transport="stdio"))
    host = ThreadHost(channel, Dispatcher(service, SPEC), LineFraming(), options)
    os.write(their_end, b'{"jsonrpc":"2.0","id":1,"method":"one"}\n')
    read_what_waits(host, lambda: True)
    assert os.read(written, 1000) == b'{"jsonrpc":"2.0","id":1,"result":1}\n'
    assert not channel.has_input()
    host.release()
    for fd in (read_fd, write_fd, their_end, written):
        os.close(fd)
