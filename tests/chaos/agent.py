"""An agent that loses answers and repeats itself, before a server that is killed under it.

It speaks the lines of MCP by itself: no client of ours is in between. One answer in five it throws
away, as a host does that has given up waiting, and sends the same call again: the same key, another
id. Now and then it sends a call twice at once. Whatever was under way when the server died is sent
again as well. Every answer is kept, also those that the agent has not seen.
"""

import asyncio
import json
import random
from collections import Counter, deque
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

WINDOW = 12
"""Calls that are under way at once."""
LOST = 0.2
TWICE = 0.05
PATIENCE = 60.0
"""Seconds of silence after which something hangs."""

_AGAIN = frozenset({"in-progress", "store-unavailable"})
_PREFIX = "io.modelcontextprotocol/"
_META = {_PREFIX + "protocolVersion": "2026-07-28", _PREFIX + "clientCapabilities": {}}
_HELLO: dict[str, Any] = {
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "chaos", "version": "1"},
    },
}


class Errand(Struct, eq=False):
    """One call as the agent means it, however often it is sent."""

    key: str
    tool: str
    cents: int
    is_modern: bool
    """In which era it is asked: both have one connection."""
    results: list[bytes] = []
    """What it was answered with, byte for byte, but for what says that it should come again."""
    is_unknown: bool = False
    """Whether it was ever told that nobody knows."""
    is_done: bool = False

    @property
    def params(self) -> dict[str, Any]:
        """The params of each of its calls."""
        arguments = {"cents": self.cents, "idempotency_key": self.key}
        params = {"name": self.tool, "arguments": arguments}
        return params | {"_meta": _META} if self.is_modern else params


class _Line(Struct):
    id: int
    result: Raw | UnsetType = UNSET


class _Failed(Struct):
    isError: bool = False
    meta: dict[str, Any] = msgspec.field(default={}, name="_meta")

    @property
    def reason(self) -> str:
        return str(self.meta["duet-rpc/error"]["data"]["reason"])


_read_line = msgspec.json.Decoder(_Line).decode
_read_failed = msgspec.json.Decoder(_Failed).decode


class Agent:
    """One run of many errands through many lives of a server."""

    def __init__(self, command: list[str], log: Path, env: dict[str, str], seed: int) -> None:
        self._command = command
        self._log = log
        self._env = env
        self._random = random.Random(seed)
        self._next_id = 0
        self._sent = 0
        self._open: dict[int, Errand] = {}
        self.counts: Counter[str] = Counter()

    async def run(self, errands: list[Errand], kills: int) -> None:
        """Go on until each errand has an answer that the agent has seen."""
        waiting = deque(errands)
        # The call after whose sending the server dies; each errand is sent once at least.
        deaths = deque(sorted(self._random.sample(range(len(errands)), kills)))
        while waiting or deaths:
            await self._live(waiting, deaths)
            self.counts["lives"] += 1

    async def _live(self, waiting: deque[Errand], deaths: deque[int]) -> None:
        """Talk to one server until it dies or there is nothing left to say."""
        with self._log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=self._env,
            )
        try:
            self._say(process, _HELLO)
            while waiting or self._open:
                while waiting and len(self._open) < WINDOW:
                    self._send(process, waiting.popleft())
                    if deaths and self._sent > deaths[0]:
                        deaths.popleft()
                        await self._kill(process, waiting)
                        return
                line = await asyncio.wait_for(_output(process).readline(), PATIENCE)
                assert line.endswith(b"\n"), f"it has ended by itself: {self.tail()}"
                self._receive(line, waiting)
            _input(process).close()
            assert await asyncio.wait_for(process.wait(), PATIENCE) == 0, self.tail()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def _kill(self, process: asyncio.subprocess.Process, waiting: deque[Errand]) -> None:
        """Kill the server in the middle of everything; what it has said before still counts."""
        # Every step of a call is to be hit: on its way, claimed, running, recorded, answered.
        await asyncio.sleep(self._random.random() ** 2 * 0.02)
        process.kill()
        for line in (await _output(process).read()).splitlines(keepends=True):
            if line.endswith(b"\n"):
                self._receive(line, waiting)
        await process.wait()
        self.counts["kills"] += 1
        self.counts["cut off"] += len(self._open)
        again = dict.fromkeys(self._open.values())  # each once, though it was sent twice
        waiting.extendleft(errand for errand in again if not errand.is_done)
        self._open.clear()

    def _send(self, process: asyncio.subprocess.Process, errand: Errand) -> None:
        self._sent += 1
        for _ in range(2 if self._random.random() < TWICE else 1):
            self._open[self._next_id] = errand
            self._say(process, {"method": "tools/call", "params": errand.params})
            self.counts["calls"] += 1

    def _say(self, process: asyncio.subprocess.Process, message: dict[str, Any]) -> None:
        whole = {"jsonrpc": "2.0", "id": self._next_id, **message}
        _input(process).write(json.dumps(whole).encode() + b"\n")
        self._next_id += 1

    def _receive(self, data: bytes, waiting: deque[Errand]) -> None:
        line = _read_line(data)
        errand = self._open.pop(line.id, None)
        if errand is None:
            assert b'"protocolVersion"' in data, f"no one has asked for {data!r}"
            return
        assert line.result is not UNSET, data
        self.counts["answers"] += 1
        is_last = self._take(errand, bytes(line.result))
        if errand.is_done or errand in self._open.values():
            return  # it is on its way once more anyway
        if is_last and self._random.random() >= LOST:
            errand.is_done = True
        else:
            self.counts["lost"] += is_last
            waiting.append(errand)

    def _take(self, errand: Errand, result: bytes) -> bool:
        """Keep an answer; tell whether it is the last word, or asks for the same call again."""
        failed = _read_failed(result)
        if failed.isError and failed.reason in _AGAIN:
            self.counts[failed.reason] += 1
            return False
        errand.is_unknown = errand.is_unknown or failed.isError
        assert not failed.isError or failed.reason == "outcome-unknown", result
        errand.results.append(result)
        return True

    def tail(self) -> str:
        """Give the end of the server's log."""
        return self._log.read_text(errors="replace")[-4000:]


def _input(process: asyncio.subprocess.Process) -> asyncio.StreamWriter:
    assert process.stdin is not None, "it is a pipe"
    return process.stdin


def _output(process: asyncio.subprocess.Process) -> asyncio.StreamReader:
    assert process.stdout is not None, "it is a pipe"
    return process.stdout
