"""A dozen clients and a nemesis: everything at once, drawn from one seed.

Clients send commands of every kind, duplicates of one another's commands at the same time, other
params under used keys, params that are refused, and queries. Meanwhile the nemesis kills and stops
servers, drops connections and restarts the store. Afterwards, with everything well again, each
command that was ever sent is sent once more, and the history is complete.

The draws are the same for a seed; what the machine makes of them never is, quite.
"""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Raw

from duet_rpc import Client, DuetError, Retry, RpcError
from duet_rpc.ledger import Promise
from tests.chaos.cluster import Cluster, ServerProcess
from tests.chaos.history import ERROR, LOST, RESULT, Call, History, Settled

CLIENTS = 12
TIMEOUT = 20.0
SEVERAL = Retry(attempts=4, first_delay=0.05, max_delay=0.5)
PATIENT = Retry(attempts=200, first_delay=0.1, max_delay=0.5, total=90.0)
PLAIN = {
    "bank.once": Promise.AT_MOST_ONCE,
    "bank.once_async": Promise.AT_MOST_ONCE,
    "bank.safe": Promise.RETRY_SAFE,
    "bank.safe_async": Promise.RETRY_SAFE,
}
TRANSACTIONAL = {
    "bank.move": Promise.TRANSACTIONAL,
    "bank.move_async": Promise.TRANSACTIONAL,
}


@dataclass(frozen=True)
class Order:
    """A command as it may be sent any number of times, by anybody."""

    method: str
    key: str
    value: str
    promise: Promise
    before: float = 0.0
    after: float = 0.0
    end: str = "ok"

    def params(self, call: str) -> dict[str, Any]:
        """Give the params of one call; what differs between calls is no part of the command."""
        return {
            "value": self.value,
            "before": self.before,
            "after": self.after,
            "end": self.end,
            "_meta": {"traceparent": call},
        }


class Caller:
    """One client, and its memory of what it was told."""

    def __init__(self, name: str, server: ServerProcess):
        self.name = name
        self.server = server
        self.calls: list[Call] = []
        self._client: Client | None = None

    async def command(
        self,
        order: Order,
        *,
        retry: Retry | None = None,
        patience: float = TIMEOUT,
        is_final: bool = False,
        **changes: Any,
    ) -> Call:
        """Send a command and note how it ends; `changes` spoil its params."""
        call = self._note(order.method, order.key, order.value, order.promise)
        call.is_single = retry is None
        call.is_final = is_final
        params = order.params(call.id) | changes
        client = await self.connected()
        if client is None:
            call.settled.append(Settled(time.monotonic(), LOST, b"no connection"))
        else:
            asked = client.command(
                order.method,
                params,
                key=order.key,
                timeout=patience,
                retry=retry if retry is not None else Retry(attempts=1),
                returns=Raw,
            )
            await _settle(call, asked)
        return call

    async def query(self, value: str) -> None:
        """Ask something that changes nothing."""
        client = await self.connected()
        if client is not None:
            call = self._note("bank.echo", "", value, None)
            await _settle(call, client.query("bank.echo", {"value": value}, returns=Raw))

    async def drop(self) -> None:
        """Lose the connection, with everything that is on it."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _note(self, method: str, key: str, value: str, promise: Promise | None) -> Call:
        id = f"{self.name}-{len(self.calls)}"
        call = Call(id, self.server.name, promise, method, key, value, time.monotonic())
        self.calls.append(call)
        return call

    async def connected(self) -> Client | None:
        """Give the connection, a new one if need be; None if the server is down."""
        if self._client is None:
            client = Client.connect(f"unix:{self.server.socket}", timeout=TIMEOUT, reconnect=True)
            try:
                await client.open()
            except DuetError:
                await client.close()
                return None
            if self._client is None:
                self._client = client
            else:  # another task of ours was faster
                await client.close()
        return self._client


async def _settle(call: Call, asked: Awaitable[Any]) -> None:
    try:
        result = await asked
        end = Settled(time.monotonic(), RESULT, bytes(result))
    except RpcError as error:
        said = {"code": error.code, "message": error.message, "data": error.data}
        body = msgspec.json.encode(said, order="sorted")
        end = Settled(time.monotonic(), ERROR, body, error.code)
    except DuetError as error:
        end = Settled(time.monotonic(), LOST, type(error).__name__.encode())
    call.settled.append(end)


@dataclass
class Storm:
    """One run of the chaos test."""

    cluster: Cluster
    seed: int
    seconds: float
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        servers = self.cluster.servers
        self._callers = [
            Caller(f"c{number}", servers[number % len(servers)]) for number in range(CLIENTS)
        ]
        self._orders: list[Order] = []
        self._methods = PLAIN | (TRANSACTIONAL if self.cluster.is_transactional else {})
        self._ends = 0.0

    async def rage(self) -> History:
        """Let it all happen, wait until it is quiet, send everything once more."""
        self._ends = time.monotonic() + self.seconds
        async with asyncio.TaskGroup() as group:
            group.create_task(self._nemesis())
            for number, caller in enumerate(self._callers):
                group.create_task(self._client(caller, random.Random(f"{self.seed}/{number}")))
        await self._final_retries()
        for caller in self._callers:
            await caller.drop()
        return History(
            calls=[call for caller in self._callers for call in caller.calls],
            runs=self.cluster.runs(),
            effects=self.cluster.effects(),
            faults=self.cluster.faults + self.cluster.late_heartbeats(),
        )

    # Clients.

    async def _client(self, caller: Caller, draw: random.Random) -> None:
        number = 0
        while time.monotonic() < self._ends:
            number += 1
            kind = draw.random()
            if kind < 0.1:
                await caller.query(f"{caller.name} asks {number}")
            elif kind < 0.15 and self._orders:
                await self._other_params(caller, draw, number)
            elif kind < 0.2:
                order = self._draw(draw, f"{caller.name}-{number}")
                await caller.command(order, before="not a number")
            elif kind < 0.35 and self._orders:
                await self._send(caller, draw.choice(self._orders[-30:]), draw)
            else:
                await self._send_with_duplicates(caller, draw, number)
            await asyncio.sleep(draw.uniform(0.0, 0.05))

    async def _other_params(self, caller: Caller, draw: random.Random, number: int) -> None:
        used = draw.choice(self._orders[-30:])
        value = f"{caller.name}-{number} instead"
        other = Order(used.method, used.key, value, used.promise, end=used.end)
        self._orders.append(other)
        await self._send(caller, other, draw)

    async def _send_with_duplicates(self, caller: Caller, draw: random.Random, number: int) -> None:
        order = self._draw(draw, f"{caller.name}-{number}")
        self._orders.append(order)
        others = draw.sample(self._callers, draw.choice([0, 0, 1, 2, 4]))
        async with asyncio.TaskGroup() as group:
            for each in (caller, *others):
                group.create_task(self._send(each, order, draw))

    async def _send(self, caller: Caller, order: Order, draw: random.Random) -> None:
        retry = SEVERAL if draw.random() < 0.5 else None
        patience = draw.choice([TIMEOUT, TIMEOUT, TIMEOUT, 0.3])
        await caller.command(order, retry=retry, patience=patience)

    def _draw(self, draw: random.Random, value: str) -> Order:
        method = draw.choice(sorted(self._methods))
        promise = self._methods[method]
        # A transaction on SQLite keeps every other writer waiting.
        lasts = 0.03 if promise is Promise.TRANSACTIONAL else 0.15
        if promise is not Promise.TRANSACTIONAL and draw.random() < 0.05:
            lasts = self.cluster.lease  # the heartbeat has to keep the lease
        return Order(
            method,
            f"{self.seed}-{value}",
            value,
            promise,
            before=draw.uniform(0, lasts),
            after=draw.uniform(0, lasts),
            end=draw.choices(["ok", "decline", "fail"], [16, 2, 1])[0],
        )

    async def _final_retries(self) -> None:
        """Send every command once more, now that nothing stands in its way."""
        waiting = list(dict.fromkeys(self._orders))

        async def send_rest(caller: Caller) -> None:
            while waiting:
                await caller.command(waiting.pop(), retry=PATIENT, is_final=True)

        async with asyncio.TaskGroup() as group:
            for caller in self._callers:
                group.create_task(send_rest(caller))

    # The nemesis.

    async def _nemesis(self) -> None:
        draw = random.Random(f"{self.seed}/nemesis")
        deeds = ["kill", "kill", "stop", "drop", "drop"]
        if self.cluster.store is not None:
            deeds.append("store")
        # Each at least once, whatever the seed says.
        planned = draw.sample(deeds, len(deeds))
        idle = list(self.cluster.servers)
        is_store_up = True

        async def on_server(deed: Awaitable[None], server: ServerProcess) -> None:
            idle.remove(server)
            try:
                await deed
            finally:
                idle.append(server)

        async def on_store(deed: Awaitable[None]) -> None:
            nonlocal is_store_up
            is_store_up = False
            try:
                await deed
            finally:
                is_store_up = True

        async with asyncio.TaskGroup() as group:
            while time.monotonic() < self._ends:
                deed = planned.pop() if planned else draw.choice(deeds)
                pause = draw.uniform(0.0, 0.5)
                if deed == "store" and is_store_up:
                    restart = self.cluster.restart_store(crash=draw.random() < 0.5, pause=pause)
                    group.create_task(on_store(restart))
                elif deed == "drop":
                    group.create_task(draw.choice(self._callers).drop())
                elif deed in ("kill", "stop") and len(idle) > 1:
                    server = draw.choice(sorted(idle, key=lambda each: each.name))
                    stop_for = self.cluster.lease * draw.uniform(1.2, 1.8)
                    group.create_task(
                        on_server(
                            self.cluster.kill(server, pause)
                            if deed == "kill"
                            else self.cluster.stop(server, stop_for),
                            server,
                        )
                    )
                else:
                    await asyncio.sleep(0.1)  # whom it would befall suffers already
                    continue
                self.counts[deed] += 1
                await asyncio.sleep(draw.uniform(0.3, 0.9))


def summary(history: History, counts: Counter[str]) -> str:
    """Say in a line what a run was made of."""
    answers = Counter(
        "lost" if end.how == LOST else end.how if not end.code else str(end.code)
        for call in history.calls
        for end in call.settled
    )
    keys = len({call.identity for call in history.calls if call.promise is not None})
    return json.dumps(
        {
            "calls": len(history.calls),
            "keys": keys,
            "runs": len(history.runs),
            "effects": len(history.effects),
            "nemesis": dict(sorted(counts.items())),
            "late": sum(fault.what == "late" for fault in history.faults),
            "answers": dict(answers.most_common()),
        }
    )
