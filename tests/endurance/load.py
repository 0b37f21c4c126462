"""Load on the server of the endurance test, from a process of its own.

    python -m tests.endurance.load asyncio|blocking|raw SOCKET SEED

It is told what to do on stdin, and answers each line with one of JSON on stdout: `run SECONDS` puts
load on the server, ends it, and says how often it did what, what went wrong, and what the process
holds afterwards; `meet` has as many handlers run at once as may. The end of stdin ends it.

Operations are drawn by a seeded generator and come at a rate, not as fast as they can: what is
looked for is what stays behind, and other tests run beside.
"""

import asyncio
import json
import os
import random
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from types import NoneType
from typing import Any

from duet_rpc import Client, Service, blocking
from duet_rpc.errors import CallTimeout, InternalError, InvalidParams, MethodNotFound, RpcError
from duet_rpc.policy import AGENT
from tests.endurance.counts import held

PATIENCE = 60.0
PAUSE = 0.03
"""Seconds between two operations of a worker, on average."""
TEXTS = ("", "short", "x" * 300, "ü" * 3_000, "y" * 70_000)
SLOTS = AGENT.max_in_flight
RUN = os.urandom(8).hex()
"""What makes the keys of this process its own, whatever its seed."""


def make_service() -> Service:
    """Make what the server may call back."""
    service = Service("peer")

    @service.query(inline=True)
    def echo(text: str) -> str:
        return text

    @service.query
    def work(seconds: float) -> None:
        time.sleep(seconds)

    @service.query
    async def nap(seconds: float) -> None:
        await asyncio.sleep(seconds)

    @service.query
    def fail() -> None:
        raise ValueError("of a peer")

    return service


def make_ask(rng: random.Random) -> dict[str, Any]:
    """Choose what the server asks back: something that answers, that fails, or that takes long."""
    method, params = rng.choice(
        [("peer.echo", ["x"]), ("peer.fail", []), ("peer.work", [0.002]), ("peer.none", [])]
    )
    return {"method": method, "params": params, "within": rng.choice([0.001, PATIENCE])}


class Tally:
    """What was done, and what should not have happened."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []

    def fault(self, name: str, error: BaseException) -> None:
        """Note a failure that the load did not ask for."""
        if len(self.wrong) < 20:
            self.wrong.append(f"{name}: {type(error).__name__}: {error}")

    def report(self) -> dict[str, Any]:
        """Say it all, and forget it."""
        said = {"done": dict(self.done), "wrong": self.wrong}
        self.done, self.wrong = Counter(), []
        return said


# The asyncio client.


class AsyncLoad:
    """Eight tasks on one asyncio client."""

    WORKERS = 8

    def __init__(self, client: Client, seed: int) -> None:
        self._client = client
        self._generators = [random.Random(f"{seed} {n}") for n in range(self.WORKERS)]
        self._tally = Tally()
        self._keys = 0

    async def run(self, seconds: float) -> dict[str, Any]:
        """Put load on the server for a while; nothing of it is left afterwards."""
        until = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for rng in self._generators:
                group.create_task(self._work(rng, until))
        pending = self._client.stats.pending
        return self._tally.report() | {"pending": pending, "held": held()}

    async def _work(self, rng: random.Random, until: float) -> None:
        operations = [getattr(self, name) for name in dir(self) if name.startswith("do_")]
        while time.monotonic() < until:
            operation: Callable[[random.Random], Awaitable[None]] = rng.choice(operations)
            name = operation.__name__
            try:
                await operation(rng)
                self._tally.done[name] += 1
            except Exception as error:
                self._tally.fault(name, error)
            await asyncio.sleep(rng.expovariate(1 / PAUSE))

    async def do_query(self, rng: random.Random) -> None:
        text = rng.choice(TEXTS)
        assert await self._client.query("echo", {"text": text}) == text

    async def do_wait(self, rng: random.Random) -> None:
        await self._client.query(rng.choice(["work", "nap"]), [rng.random() * 0.005])

    async def do_failing(self, rng: random.Random) -> None:
        method, params, expected = rng.choice(FAILING)
        try:
            await self._client.query(method, params)
        except expected:
            return
        raise AssertionError(f"{method} did not fail")

    async def do_command(self, rng: random.Random) -> None:
        key, text = self._key(), rng.choice(TEXTS)
        first = self._client.command("deposit", {"text": text}, key=key)
        again = self._client.command("deposit", {"text": text}, key=key)
        assert list(await asyncio.gather(first, again)) == [text, text]

    async def do_slow_command(self, rng: random.Random) -> None:
        key = self._key()
        params = {"text": key, "seconds": rng.random() * 0.01}
        call = asyncio.ensure_future(self._client.command("deposit_slowly", params, key=key))
        await asyncio.sleep(rng.random() * 0.01)
        if rng.random() < 0.5:
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
        assert await self._client.command("deposit_slowly", params, key=key) == key

    def _key(self) -> str:
        self._keys += 1
        return f"{RUN}-{self._keys}"

    async def do_batch(self, rng: random.Random) -> None:
        timeout = rng.choice([0.002, PATIENCE])
        async with self._client.batch() as batch:
            items = [batch.query("echo", {"text": rng.choice(TEXTS)}, timeout=PATIENCE)]
            items.append(batch.query("nap", [rng.random() * 0.01], timeout=timeout))
            items.append(batch.query(*rng.choice(FAILING)[:2], timeout=PATIENCE))
            batch.notify("echo", {"text": "x"})
        items[0].result()
        assert isinstance(items[2].error(), RpcError)

    async def do_cancelled_batch(self, rng: random.Random) -> None:
        async def send() -> None:
            async with self._client.batch() as batch:
                batch.query("nap", [1.0])
                batch.query("no.such")

        call = asyncio.ensure_future(send())
        await self._sometime(rng)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    async def do_cancel(self, rng: random.Random) -> None:
        method = rng.choice(["nap", "work", "echo"])
        params: list[Any] = ["x"] if method == "echo" else [rng.random() * 0.01]
        call = asyncio.ensure_future(self._client.query(method, params))
        await self._sometime(rng)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    async def _sometime(self, rng: random.Random) -> None:
        for _ in range(rng.randrange(4)):
            await asyncio.sleep(0)
        if rng.random() < 0.5:
            await asyncio.sleep(rng.random() * 0.005)

    async def do_timeout(self, rng: random.Random) -> None:
        try:
            await self._client.query(rng.choice(["nap", "work"]), [0.01], timeout=0.003)
        except CallTimeout:
            pass

    async def do_ask(self, rng: random.Random) -> None:
        call = asyncio.ensure_future(
            self._client.query(rng.choice(["ask", "ask_in_thread"]), make_ask(rng))
        )
        if rng.random() < 0.2:
            await self._sometime(rng)
            call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    async def do_progress(self, rng: random.Random) -> None:
        seen: list[Any] = []
        assert await self._client.query("count_up", {"to": 5}, on_progress=seen.append) == 5
        assert len(seen) == 5, seen

    async def do_subscribe(self, rng: random.Random) -> None:
        most, params = rng.randrange(9), {"to": rng.randrange(9), "text": rng.choice(TEXTS)}

        async def take() -> None:
            try:
                async with asyncio.timeout(0.05):
                    async with self._client.subscribe("ticks", params, window=1 + most) as items:
                        async for _ in items:
                            if items.seq == most:
                                break
            except TimeoutError:
                pass

        call = asyncio.ensure_future(take())
        if rng.random() < 0.3:
            await self._sometime(rng)
            call.cancel()
        outcome = (await asyncio.gather(call, return_exceptions=True))[0]
        if type(outcome) not in (NoneType, RpcError, asyncio.CancelledError):
            raise AssertionError(repr(outcome))

    async def do_notify(self, rng: random.Random) -> None:
        await self._client.notify(rng.choice(["echo", "fail"]), {"text": "x"})

    async def meet(self) -> dict[str, Any]:
        """Have as many handlers run at once as may: with a slot lost, they would never meet."""
        calls = [
            self._client.query("meet", {"number": SLOTS, "where": "asyncio"}, timeout=PATIENCE)
            for _ in range(SLOTS)
        ]
        return {"met": await asyncio.gather(*calls)}


FAILING: tuple[tuple[str, Any, type[RpcError]], ...] = (
    ("fail", ["said"], InternalError),
    ("decline", ["said"], RpcError),
    ("no.such", None, MethodNotFound),
    ("echo", {"text": 5}, InvalidParams),
    ("nap", ["long"], InvalidParams),
)


async def drive_asyncio(path: str, seed: int) -> None:
    """Do as told, with an asyncio client."""
    loop = asyncio.get_running_loop()
    async with Client.connect(
        f"unix:{path}", timeout=PATIENCE, service=make_service(), policy=AGENT
    ) as client:
        load = AsyncLoad(client, seed)
        while words := (await loop.run_in_executor(None, sys.stdin.readline)).split():
            answer(await load.run(float(words[1])) if words[0] == "run" else await load.meet())


# The blocking client.


class BlockingLoad:
    """Four threads on one blocking client."""

    WORKERS = 4

    def __init__(self, client: blocking.Client, seed: int) -> None:
        self._client = client
        self._generators = [random.Random(f"{seed} {n}") for n in range(self.WORKERS)]
        self._tally = Tally()

    def run(self, seconds: float) -> dict[str, Any]:
        """See `AsyncLoad.run`."""
        until = time.monotonic() + seconds
        self._together([partial(self._work, rng, until) for rng in self._generators])
        pending = self._client.stats.pending
        return self._tally.report() | {"pending": pending, "held": held()}

    def _together(self, works: list[Callable[[], None]]) -> None:
        threads = [threading.Thread(target=work) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _work(self, rng: random.Random, until: float) -> None:
        operations = [getattr(self, name) for name in dir(self) if name.startswith("do_")]
        while time.monotonic() < until:
            operation: Callable[[random.Random], None] = rng.choice(operations)
            name = operation.__name__
            try:
                operation(rng)
                self._tally.done[name] += 1
            except Exception as error:
                self._tally.fault(name, error)
            time.sleep(rng.expovariate(1 / PAUSE))

    def do_query(self, rng: random.Random) -> None:
        text = rng.choice(TEXTS)
        assert self._client.query("echo", {"text": text}) == text

    def do_wait(self, rng: random.Random) -> None:
        self._client.query(rng.choice(["work", "nap"]), [rng.random() * 0.005])

    def do_failing(self, rng: random.Random) -> None:
        method, params, expected = rng.choice(FAILING)
        try:
            self._client.query(method, params)
        except expected:
            return
        raise AssertionError(f"{method} did not fail")

    def do_command(self, rng: random.Random) -> None:
        key = f"{RUN}-{rng.getrandbits(64)}"
        for _ in range(2):
            assert self._client.command("deposit", {"text": key}, key=key) == key

    def do_batch(self, rng: random.Random) -> None:
        with self._client.batch() as batch:
            first = batch.query("echo", {"text": rng.choice(TEXTS)})
            batch.query("nap", [rng.random() * 0.01], timeout=rng.choice([0.002, PATIENCE]))
            other = batch.query(*rng.choice(FAILING)[:2])
            batch.notify("echo", {"text": "x"})
        first.result()
        assert isinstance(other.error(), RpcError)

    def do_timeout(self, rng: random.Random) -> None:
        try:
            self._client.query(rng.choice(["nap", "work"]), [0.01], timeout=0.003)
        except CallTimeout:
            pass

    def do_ask(self, rng: random.Random) -> None:
        self._client.query(rng.choice(["ask", "ask_in_thread"]), make_ask(rng))

    def do_progress(self, rng: random.Random) -> None:
        seen: list[Any] = []
        assert self._client.query("count_up", {"to": 5}, on_progress=seen.append) == 5
        assert len(seen) == 5, seen

    def do_subscribe(self, rng: random.Random) -> None:
        most, params = rng.randrange(9), {"to": rng.randrange(9), "text": rng.choice(TEXTS)}
        try:
            for number, _ in enumerate(self._client.subscribe("ticks", params, timeout=0.05), 1):
                if number == most:
                    break
        except (CallTimeout, RpcError):
            pass

    def do_notify(self, rng: random.Random) -> None:
        self._client.notify(rng.choice(["echo", "fail"]), {"text": "x"})

    def meet(self) -> dict[str, Any]:
        """See `AsyncLoad.meet`."""
        met: list[int] = []

        def one() -> None:
            where = {"number": SLOTS, "where": "blocking"}
            met.append(self._client.query("meet", where, timeout=PATIENCE))

        self._together([one] * SLOTS)
        return {"met": met}


def drive_blocking(path: str, seed: int) -> None:
    """Do as told, with a blocking client."""
    with blocking.Client.connect(
        f"unix:{path}", timeout=PATIENCE, service=make_service(), policy=AGENT
    ) as client:
        load = BlockingLoad(client, seed)
        while words := sys.stdin.readline().split():
            answer(load.run(float(words[1])) if words[0] == "run" else load.meet())


# Peers that keep to no rule, each on a connection of its own.


def frame(message: Any) -> bytes:
    body = json.dumps(message).encode()
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def request(id: Any, method: str, params: Any) -> bytes:
    return frame({"jsonrpc": "2.0", "id": id, "method": method, "params": params})


def cancel(id: Any) -> bytes:
    return frame({"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": id}})


BAD = (
    b"Content-Length: x\r\n\r\n",
    b"no header at all\r\n\r\n",
    b"Content-Length: 99999999999\r\n\r\n" + b"z" * 1000,
    b"X: " + b"h" * 9000 + b"\r\n\r\n",
    b"Content-Type: text/html\r\nContent-Length: 2\r\n\r\n{}",
    b"Content-Length: 5\r\n\r\n{{{{{",
    b"Content-Length: 200\r\n\r\n" + b"[" * 100 + b"]" * 100,
    frame({"jsonrpc": "1.0", "id": 1}),
    frame([]),
    frame([1] * 200),
    frame({"jsonrpc": "2.0", "id": [1], "method": "echo"}),
    frame({"jsonrpc": "2.0", "id": 5, "result": "of no call"}),
    b"Content-Length: 50\r\n\r\ncut",
)


class RawLoad:
    """Bad frames, cancellations at every moment, and peers that vanish in the middle."""

    def __init__(self, path: str, seed: int) -> None:
        self._path = path
        self._rng = random.Random(f"{seed} raw")
        self._tally = Tally()

    def run(self, seconds: float) -> dict[str, Any]:
        """See `AsyncLoad.run`."""
        rng, until = self._rng, time.monotonic() + seconds
        operations = [getattr(self, name) for name in dir(self) if name.startswith("do_")]
        while time.monotonic() < until:
            operation = rng.choice(operations)
            with socket.socket(socket.AF_UNIX) as line:
                line.settimeout(PATIENCE)
                line.connect(self._path)
                try:
                    operation(line, rng)
                    self._tally.done[operation.__name__] += 1
                except (BrokenPipeError, ConnectionResetError):
                    self._tally.done["reset"] += 1  # the server has closed it, as it may
                except Exception as error:
                    self._tally.fault(operation.__name__, error)
            time.sleep(rng.expovariate(1 / PAUSE))
        return self._tally.report() | {"pending": 0, "held": held()}

    def do_bad_frames(self, line: socket.socket, rng: random.Random) -> None:
        line.sendall(b"".join(rng.choices(BAD, k=rng.randrange(1, 4))))
        line.shutdown(socket.SHUT_WR)
        while line.recv(65536):
            pass

    def do_cancel_at_once(self, line: socket.socket, rng: random.Random) -> None:
        """Send each request and its cancel in one write, more of them than there are slots."""
        number = rng.choice([1, SLOTS, SLOTS + 4])
        method, params = rng.choice([("nap", [5.0]), ("work", [0.002]), ("ask", ASK_FOR_EVER)])
        line.sendall(b"".join(request(n, method, params) + cancel(n) for n in range(number)))
        self._read_answers(line, number)

    def do_cancel_later(self, line: socket.socket, rng: random.Random) -> None:
        number = rng.choice([1, SLOTS, 2 * SLOTS])
        line.sendall(b"".join(request(n, "nap", [5.0]) for n in range(number)))
        time.sleep(rng.choice([0.0, rng.random() * 0.005]))
        ids = rng.sample(range(number), number)
        line.sendall(b"".join(map(cancel, ids)))
        self._read_answers(line, number)

    def do_cancel_in_batch(self, line: socket.socket, rng: random.Random) -> None:
        items = [{"jsonrpc": "2.0", "id": n, "method": "nap", "params": [5.0]} for n in range(20)]
        line.sendall(frame(items) + b"".join(map(cancel, range(20))))
        self._read_answers(line, 20)

    def _read_answers(self, line: socket.socket, number: int) -> None:
        """Read until so many requests are answered; the server may ask something meanwhile."""
        received = b""
        while received.count(b'"error"') + received.count(b'"result"') < number:
            data = line.recv(65536)
            assert data, "the server has closed the connection"
            received += data

    def do_vanish(self, line: socket.socket, rng: random.Random) -> None:
        data = request(1, "nap", [0.02]) + request(2, "work", [0.01]) + request(3, "echo", ["x"])
        data += request("k", "deposit", {"text": "x", "idempotency_key": str(rng.random())})
        data += request(5, "ask", ASK_FOR_EVER) + request(6, "ask_in_thread", ASK_FOR_EVER)
        line.sendall(data[: rng.randrange(len(data))])
        if rng.random() < 0.5:
            time.sleep(rng.random() * 0.01)

    def do_stop_reading(self, line: socket.socket, rng: random.Random) -> None:
        """Ask for more than is read, so that the server stops reading too; then vanish."""
        line.setblocking(False)
        data = request(1, "echo", ["y" * 70_000])
        try:
            for _ in range(rng.randrange(200)):
                line.sendall(data)
        except BlockingIOError:
            pass


ASK_FOR_EVER = {"method": "never.answered", "params": [], "within": PATIENCE}


def drive_raw(path: str, seed: int) -> None:
    """Do as told, without a client."""
    load = RawLoad(path, seed)
    while words := sys.stdin.readline().split():
        answer(load.run(float(words[1])))


def answer(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    kind, place, chosen = sys.argv[1:]
    if kind == "asyncio":
        asyncio.run(drive_asyncio(place, int(chosen)))
    elif kind == "blocking":
        drive_blocking(place, int(chosen))
    else:
        drive_raw(place, int(chosen))
