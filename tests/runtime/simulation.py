"""Small worlds in which everything goes wrong, each the same again for the same seed.

A world is a client and a server on one jumping clock, with a wire between them that drops, delays,
repeats, garbles, stops and cuts as its seed says. A dozen callers do what callers do. Afterwards
the laws of the client must hold: each call ended once, in time, with its own answer or with an
error that explains itself, and nothing is left.

    python -m tests.runtime.simulation 4711      tell what happens in world 4711
"""

import asyncio
import json
import random
import sys
from typing import Any, NamedTuple

from duet_rpc import Client, Context, Retry, Service
from duet_rpc.errors import (
    CallTimeout,
    Cancelled,
    ConnectionLost,
    InvalidAnswer,
    Overloaded,
    RpcError,
    TransportError,
)
from duet_rpc.policy import EDITOR, SPEC, replace
from duet_rpc.testing import Faults, Wire, connect, run

LATE = 0.05
CALLERS = 6
STEPS = 5


class Event(NamedTuple):
    at: float
    what: str


class OddNumber(RpcError):
    code, message = 4713, "Odd number"


def make_server(seed: int) -> Service:
    service, chance = Service(), random.Random(seed)

    @service.query
    async def echo(number: int) -> int:
        await asyncio.sleep(chance.choice([0, 0, 0.1, 1, 5]))
        return number

    @service.query(inline=True)
    def quick(number: int) -> int:
        return number

    @service.query
    async def odd(number: int) -> int:
        raise OddNumber(data=number)

    @service.query
    async def back(number: int, ctx: Context) -> int:
        return int(await ctx.call("twice", {"number": number}, timeout=20)) // 2

    @service.query
    async def steady(number: int, ctx: Context) -> int:
        for step in range(4):
            await asyncio.sleep(0.5)
            ctx.progress(step)
        return number

    # A ledger has threads, whose time is real; what matters here is what the client does.
    @service.query(ignore_unknown=True)
    async def do(number: int) -> int:
        await asyncio.sleep(chance.choice([0, 0.5]))
        return number

    return service


def make_ours() -> Service:
    service = Service()

    @service.query
    async def twice(number: int) -> int:
        await asyncio.sleep(0.05)
        return 2 * number

    return service


class World:
    """One run; `trace` is everything that happened, `faults` every broken law."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.seed = seed
        self.trace: list[Event] = []
        self.broken: list[str] = []
        self.ended: dict[int, str] = {}
        self.begun = 0
        self.sent_ids: set[tuple[int, int]] = set()

    def tell(self, what: str) -> None:
        self.trace.append(Event(round(asyncio.get_running_loop().time(), 6), what))

    def law(self, holds: bool, what: str) -> None:
        if not holds:
            self.broken.append(what)

    async def live(self) -> None:
        chance = self.chance
        wire = Wire()
        faulty = chance.random() < 0.7
        if faulty:
            for way in (wire.to_server, wire.to_client):
                way.rule = Faults(
                    seed=chance.randrange(1 << 30),
                    drop=chance.choice([0, 0, 0.1]),
                    duplicate=chance.choice([0, 0, 0.1]),
                    delay=chance.choice([(0.0, 0.0), (0.0, 0.2), (0.0, 3.0)]),
                )
        reconnect = chance.random() < 0.5
        policy = chance.choice([SPEC, SPEC, EDITOR, replace(SPEC, max_batch=2, max_queued=4)])
        async with connect(
            make_server(self.seed),
            policy=policy,
            wire=wire,
            timeout=chance.choice([2.0, 4.0]),
            reconnect=reconnect,
            framing=chance.choice(["lsp", "ndjson"]),
            allow_concurrent_requests=chance.random() < 0.8,
            service=make_ours(),
        ) as client:
            self.watch_ids(wire, client)
            trouble = asyncio.create_task(self.trouble(wire))
            await asyncio.gather(*(self.caller(client, number) for number in range(CALLERS)))
            trouble.cancel()
            wire.to_server.resume()
            wire.to_client.resume()
            stats = client.stats
            self.law(stats.pending == 0, f"{stats.pending} calls are pending")
            held = [frame for frame in client._calls._held.values() if frame.wanted]
            self.law(not held, "a call is held although nobody waits for it")
            self.tell(str(stats))
        self.law(client._host is None, "a closed client has a connection")
        self.law(len(self.ended) == self.begun, f"{self.begun} began, {len(self.ended)} ended")

    def watch_ids(self, wire: Wire, client: Client) -> None:
        """See that no id is used twice on a connection."""
        inner = wire.to_server.rule

        def rule(frame: bytes) -> Any:
            start = min(frame.find(mark) % len(frame) for mark in (b"{", b"["))
            body = json.loads(frame[start:])
            for message in body if isinstance(body, list) else [body]:
                if "method" in message and "id" in message:
                    id = client.stats.connects, message["id"]
                    self.law(id not in self.sent_ids, f"id {id} was used twice")
                    self.sent_ids.add(id)
            return inner(frame)

        wire.to_server.rule = rule

    async def trouble(self, wire: Wire) -> None:
        """Stop, cut and disturb the wire now and then."""
        chance = self.chance
        while True:
            await asyncio.sleep(chance.uniform(0.5, 4.0))
            way = chance.choice([wire.to_server, wire.to_client])
            match chance.randrange(5):
                case 0:
                    self.tell("the wire stops")
                    way.stop()
                    await asyncio.sleep(chance.uniform(0.1, 6.0))
                    way.resume()
                case 1 if chance.random() < 0.5:
                    self.tell("the wire is cut")
                    way.cut(chance.choice([0, 0, 7, 60]))
                case 2:
                    self.tell("a stranger's answer")
                    wire.to_client.inject(
                        b"Content-Length: 46\r\n\r\n"
                        b'{"jsonrpc":"2.0","id":123456789,"result":null}\n'
                    )
                case _:
                    pass

    async def caller(self, client: Client, who: int) -> None:
        for step in range(STEPS):
            number = 1000 * who + step
            await asyncio.sleep(self.chance.choice([0, 0, 0.01, 0.3, 1.0]))
            await self.one(client, number)

    async def one(self, client: Client, number: int) -> None:
        chance, loop = self.chance, asyncio.get_running_loop()
        kind = chance.choice(
            [
                "echo",
                "echo",
                "quick",
                "odd",
                "back",
                "steady",
                "do",
                "batch",
                "cancel",
                "large",
                "retry",
            ]
        )
        timeout = chance.choice([0.2, 1.0, 3.0])
        self.begun += 1
        self.tell(f"{number} {kind} begins")
        begun, limit = loop.time(), timeout
        try:
            match kind:
                case "batch":
                    outcome: Any = await self.batch(client, number, timeout)
                case "cancel":
                    call = client.start("echo", {"number": number}, timeout=timeout)
                    loop.call_later(chance.choice([0, 0.05, 0.5]), call.cancel)
                    outcome = await call
                case "large":
                    padding = "x" * 300_000
                    outcome = await client.call(
                        "quick", {"number": number, "_meta": {"padding": padding}}, timeout=timeout
                    )
                case "steady":
                    limit = 3.0
                    outcome = await client.call(
                        "steady", {"number": number}, timeout=1.0, total_timeout=limit
                    )
                case "do":
                    outcome = await client.command("do", {"number": number}, timeout=timeout)
                case "retry":
                    retry = Retry(attempts=3, first_delay=0.1, jitter=0.0, total=10.0)
                    limit = 3 * timeout + 0.5
                    outcome = await client.query(
                        "echo", {"number": number}, timeout=timeout, retry=retry
                    )
                case _:
                    outcome = await client.call(kind, {"number": number}, timeout=timeout)
            self.law(outcome == number, f"{number} got the answer {outcome!r}")
            self.law(kind != "odd", f"{number} succeeded")
            how = "answered"
        except OddNumber as error:
            self.law(kind == "odd" and error.data == number, f"{number} got the error {error}")
            how = "odd"
        except asyncio.CancelledError:
            self.law(kind == "cancel", f"{number} was cancelled")
            how = "cancelled"
        except (CallTimeout, ConnectionLost, Overloaded, Cancelled) as error:
            how = type(error).__name__
        except (TransportError, RpcError) as error:
            # A repeated request is refused (its id is in flight), a repeated refusal of a batch is
            # taken for that of the next, and a handler whose own call back was lost fails; anything
            # else has no reason to be.
            how = type(error).__name__
            expected = isinstance(error, RpcError) and (
                error.reason
                in ("duplicate-id", "shutting-down", "batch-too-large", "batch-not-supported")
                or kind == "back"
            )
            self.law(expected and not isinstance(error, InvalidAnswer), f"{number}: {error!r}")
        took = loop.time() - begun
        self.law(took <= limit + LATE, f"{number} {kind} ended after {took} s, not {limit}")
        self.law(number not in self.ended, f"{number} ended twice")
        self.ended[number] = how
        self.tell(f"{number} {how}")

    async def batch(self, client: Client, number: int, timeout: float) -> Any:  # noqa: ASYNC109
        async with client.batch() as batch:
            items = [
                batch.call("quick", {"number": number}, timeout=timeout),
                batch.notify("quick", {"number": number}),
                batch.call("odd", {"number": number}, timeout=timeout),
                batch.call("quick", {"number": -number}, timeout=timeout),
            ]
        error = items[2].error()
        self.law(error is not None, f"{number}: an odd number succeeded")
        if isinstance(error, OddNumber):
            self.law(error.data == number, f"{number} got the error {error}")
        if items[3].error() is None:
            self.law(items[3].result() == -number, f"{number} got its neighbour's answer")
        return items[0].result()


def explore(seed: int) -> World:
    """Run one world to its end."""
    world = World(seed)
    run(world.live(), seed=seed)
    return world


if __name__ == "__main__":
    for seed in map(int, sys.argv[1:]):
        world = explore(seed)
        for event in world.trace:
            print(f"{event.at:10.3f}  {event.what}")
        print("broken laws:", *(world.broken or ["none"]), sep="\n  ")
