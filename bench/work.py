"""The work items: what is done to a peer, and which figures come out.

Each item is a function from a peer and a scale to figures. One call is one repetition for one peer;
who is asked, how often and in which order is decided elsewhere (`__main__.py`).
"""

import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from bench import processes, stores, wire
from bench.processes import CLIENT_CORE, SERVER_CORE
from bench.roster import HERE, OURS_PYTHON, Peer

Figures = dict[str, float]


@dataclass(frozen=True)
class Figure:
    """A row of the table."""

    title: str
    unit: str
    """`us`, `ms`, `ns/B`, `MB`, `kB` or `/s`; all but the last are better when smaller."""


@dataclass(frozen=True)
class Scale:
    """How much is done in one repetition."""

    repetitions: int
    stream: int
    trips: int
    window: int
    rounds: int
    dispatched: int
    starts: int
    large: tuple[int, ...]
    connections: int
    flood: float
    commands: int
    stores: tuple[str, ...]
    sizes: tuple[int, ...]
    widths: tuple[int, ...]
    scaled: int
    """Requests for each width, at least."""


LARGEST = 10 * 1024 * 1024 - 1_000
"""Bytes of the largest value: with its envelope, it is just below the usual limit of 10 MiB."""

FULL = Scale(
    repetitions=5, stream=100_000, trips=3_000, window=40_000, rounds=30_000, dispatched=30_000,
    starts=3, large=(1, 9), connections=1_000, flood=1.0, commands=500,
    stores=("memory", "sqlite", "postgres", "valkey"),
    sizes=(100, 1_000, 10_000, 100_000, 1_000_000, LARGEST), widths=(1, 10, 100, 1_000, 10_000),
    scaled=20_000,
)  # fmt: skip
QUICK = Scale(
    repetitions=2, stream=20_000, trips=1_000, window=10_000, rounds=10_000, dispatched=10_000,
    starts=1, large=(1,), connections=200, flood=0.5, commands=150, stores=("memory", "sqlite"),
    sizes=(100, 10_000, 1_000_000), widths=(1, 100, 1_000), scaled=5_000,
)  # fmt: skip


@dataclass(frozen=True)
class Item:
    """One kind of work and the role that a peer needs for it."""

    title: str
    role: str
    run: Callable[[Peer, Scale], Figures]
    figures: dict[str, Figure]


def round_trips(peer: Peer, scale: Scale) -> Figures:
    """W1: one request at a time, the peer's own client to its own server."""
    count = max(300, scale.trips // min(peer.slowness, 10))
    # Node compiles what runs often: whoever is quick gets as much again to become warm.
    warmup = count if peer.slowness == 1 else count // 3
    plan = {"work": "one", "width": 1, "count": count, "warmup": warmup}
    figures = {}
    one, _ = processes.call(peer, plan, client_core=SERVER_CORE, server_core=SERVER_CORE)
    figures["one.p50"], figures["one.p99"] = one["p50"], one["p99"]
    if CLIENT_CORE != SERVER_CORE:
        two, _ = processes.call(peer, plan)
        figures["two.p50"], figures["two.p99"] = two["p50"], two["p99"]
    return figures


def window(peer: Peer, scale: Scale) -> Figures:
    """W2: 64 requests in flight, own client to own server."""
    count = max(800, scale.window // peer.slowness)
    plan = {"work": "window", "width": 64, "count": count, "warmup": 200}
    few, base = processes.call(peer, plan | {"count": 200})
    many, used = processes.call(peer, plan)
    server = (used.cpu - base.cpu) / (count - 200)
    return {
        "rate": count / many["wall"],
        "cpu": many["cpu"] / count + max(server, 0.0),
    }


def prepared_stream(peer: Peer, scale: Scale) -> Figures:
    """W3: a prepared stream of small requests through stdin."""
    cpu, memory = _stream(peer, scale.stream // peer.slowness, batch=0)
    return {"cpu": cpu, "memory": memory}


def batches(peer: Peer, scale: Scale) -> Figures:
    """W4: the same stream in batches of 50, per item."""
    return {"cpu": _stream(peer, scale.stream // peer.slowness, batch=50)[0]}


def _stream(peer: Peer, count: int, batch: int) -> tuple[float, float]:
    """Processor time of one request, start-up taken off, and the peak of memory."""
    few = min(500, count // 10)

    def run(count: int) -> processes.Used:
        data = wire.handshake(peer) + wire.stream(peer, count, batch)
        answers = (count // batch if batch else count) + wire.shakes_hands(peer)
        got, used = processes.feed(peer, data, answers)
        wire.check(peer, got, count)
        return used

    base, whole = run(few), run(count)
    return (whole.cpu - base.cpu) / (count - few), whole.memory


def large_echoes(peer: Peer, scale: Scale) -> Figures:
    """W5: large values there and back, own client to own server."""
    figures = {}
    for kind in ("text", "records"):
        for megabytes in scale.large:
            path = payload(kind, megabytes * 1_000_000)
            if not peer.program:
                figures[f"{kind}{megabytes}.memory"] = float(path.stat().st_size)
                continue
            count = 10 if megabytes == 1 else 4
            count = max(1, count // min(peer.slowness, 4))
            plan = {
                "work": "echo", "width": 1, "count": count, "warmup": 1, "payload": str(path),
            }  # fmt: skip
            found, used = processes.call(peer, plan)
            figures[f"{kind}{megabytes}.time"] = found["p50"]
            figures[f"{kind}{megabytes}.memory"] = used.memory
    return figures


def payload(kind: str, size: int) -> Path:
    """A JSON file of about that many bytes, the same for everyone."""
    path = HERE / ".peers" / f"{kind}-{size}.json"
    if not path.exists():
        line = "The quick brown fox jumps over the lazy dog, again and again. "
        value: object = (line * (size // len(line) + 1))[:size]
        if kind == "records":
            value = [
                {
                    "id": number,
                    "name": f"record number {number}",
                    "price": number / 4,
                    "tags": ["first", "second"],
                    "active": number % 2 == 0,
                }
                for number in range(size // 97)
            ]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value, separators=(",", ":")), encoding="utf-8")
    return path


def thousand_open(peer: Peer, scale: Scale) -> Figures:
    """W6: a client with 1,000 calls open, answered in random order by a scripted server."""
    count = max(2_000, scale.rounds // peer.slowness)
    plan = {"work": "rounds", "width": 1_000, "count": count, "warmup": 1_000}
    script = (OURS_PYTHON, str(HERE / "limits" / "shuffle.py"), peer.framing)
    found, _ = processes.call(peer, plan, server=script)
    return {"cpu": found["cpu"] / count}


def dispatcher(peer: Peer, scale: Scale) -> Figures:
    """W7: bytes to bytes in one process."""
    count = str(scale.dispatched // min(peer.slowness, 5))
    return {
        kind: processes.measure(peer, "dispatch", kind, count)["seconds"]
        for kind in ("request", "notification", "batch")
        if f"dispatch:{kind}" in peer.roles
    }


def cold_start(peer: Peer, scale: Scale) -> Figures:
    """W8: loading the library, and from spawn to the first answer."""
    nothing = (*peer.imports[:-1], "0")
    loads, starts = [], []
    with processes.pinned(SERVER_CORE):
        for _ in range(scale.starts):
            loads.append(_time(peer, peer.imports) - _time(peer, nothing))
            starts.append(_first_answer(peer))
    figures = {"answer": statistics.median(starts)}
    if not peer.variant:
        figures["import"] = statistics.median(loads)
        if peer.kind == "ours":
            figures["asyncio"] = _loads_asyncio(peer)
    return figures


def _loads_asyncio(peer: Peer) -> float:
    """One if `import duet_rpc` alone loads asyncio, else none."""
    script = "import sys, duet_rpc; print(int('asyncio' in sys.modules))"
    done = subprocess.run([OURS_PYTHON, "-c", script], env=peer.environment, capture_output=True)
    return float(done.stdout)


def _time(peer: Peer, command: tuple[str, ...]) -> float:
    start = time.perf_counter()
    subprocess.run(command, env=peer.environment, check=True)
    return time.perf_counter() - start


def _first_answer(peer: Peer) -> float:
    taken, got = _begin(peer, wire.request(peer, 0))
    wire.check(peer, got, 1)
    return taken


def _begin(peer: Peer, message: dict[str, Any]) -> tuple[float, bytes]:
    """Seconds from spawn to the answer to a first message, and all that came."""
    hello = wire.handshake(peer) + wire.frame(peer, message)
    start = time.perf_counter()
    with processes.serving(peer, list(peer.program)) as (reading, writing):
        os.write(writing, hello)
        got = processes.read_answers(reading, wire.end_mark(peer), 1 + wire.shakes_hands(peer))
        return time.perf_counter() - start, got


def idle_connections(peer: Peer, scale: Scale) -> Figures:
    """W9: memory of the server for each connection that has made one call and waits."""
    processes.allow_descriptors(2 * scale.connections + 100)
    message = wire.frame(peer, wire.request(peer, 0))
    with processes.listening(peer) as (path, pid):

        def open_one() -> Any:
            connection = processes.connect(path)
            connection.sendall(message)
            got = processes.read_answers(connection.fileno(), wire.end_mark(peer), 1)
            wire.check(peer, got, 1)
            return connection

        # The first few pay for code and pools that the later ones share.
        connections = [open_one() for _ in range(20)]
        before = processes.resident(pid)
        connections += [open_one() for _ in range(scale.connections)]
        grown = processes.resident(pid) - before
        for connection in connections:
            connection.close()
    return {"memory": grown / scale.connections}


def fairness(peer: Peer, scale: Scale) -> Figures:
    """W10: round trips on one connection, alone and while another floods the server."""
    script = HERE / "limits" / "flood.py"
    with processes.listening(peer) as (path, _), processes.pinned(CLIENT_CORE):
        alone = _latency(peer, path, scale.flood)
        flooder = subprocess.Popen([OURS_PYTHON, str(script), path], stdin=subprocess.PIPE)
        assert flooder.stdin, "a pipe was asked for"
        with flooder.stdin as requests:
            requests.write(wire.stream(peer, 1_000))
        time.sleep(0.2)
        flooded = _latency(peer, path, scale.flood)
        flooder.kill()
        flooder.wait()
    return {"alone": alone, "flooded": flooded}


def _latency(peer: Peer, path: str, seconds: float) -> float:
    """The 99th percentile of round trips made one by one for a while."""
    connection = processes.connect(path)
    message = wire.frame(peer, wire.request(peer, 0))
    taken: list[float] = []
    deadline = time.perf_counter() + seconds
    while (start := time.perf_counter()) < deadline or len(taken) < 3:
        connection.sendall(message)
        got = processes.read_answers(connection.fileno(), wire.end_mark(peer), 1)
        taken.append(time.perf_counter() - start)
        wire.check(peer, got, 1)
    connection.close()
    return sorted(taken)[len(taken) * 99 // 100]


def commands(peer: Peer, scale: Scale) -> Figures:
    """W11: commands with a key, each durable before it is answered, beside the raw commit loop."""
    figures = {}
    # Beside the peers, not in a temporary folder, which may be memory and never sync.
    with tempfile.TemporaryDirectory(dir=HERE / ".peers") as folder:
        for store in scale.stores:
            url = stores.url(store, folder)
            if url is None:
                continue
            alone = scale.commands
            for name, width, count in ("one", 1, alone), ("many", 64, 4 * alone):
                if peer.kind == "ours":
                    figures[f"{store}.{name}"] = _command_rate(peer, url, width, count)
                elif store != "memory":
                    found = processes.measure(peer, "commit", url, str(width), str(count))
                    figures[f"{store}.{name}"] = found["rate"]
            # No messages: what the ledger itself adds to two commits.
            if peer.kind == "ours":
                found = processes.measure(peer, "ledger", url, str(alone))
                figures |= {f"{store}.{way}": found[way] for way in LEDGER}
            elif store != "memory":
                figures |= {f"{store}.{way}": figures[f"{store}.one"] for way in LEDGER}
        if peer.kind == "ours":
            for name, url in ("without", ""), ("with", f"sqlite:///{folder}/queries.db"):
                server = replace(peer, program=(*peer.program, f"store={url}"))
                _stream(server, 500, batch=0)  # makes the file, which must not count
                figures[f"query.{name}"], _ = _stream(server, scale.stream, batch=0)
    return figures


def _command_rate(peer: Peer, url: str, width: int, count: int) -> float:
    # A key of its own for every command: what was done once is only looked up again.
    plan = {
        "work": "window", "command": uuid4().hex, "width": width, "count": count, "warmup": 10,
    }  # fmt: skip
    done, _ = processes.call(peer, plan, server=(*peer.program, f"store={url}"))
    return count / done["wall"]


def scaling(peer: Peer, scale: Scale) -> Figures:
    """W12: what a request costs by its size and by how many are open; both ends on one core.

    With nothing to wait for but each other on one core, wall time is the work of both.
    """
    figures = {}

    def measure(plan: dict[str, Any]) -> dict[str, float]:
        found, _ = processes.call(peer, plan, client_core=SERVER_CORE, server_core=SERVER_CORE)
        return found

    for size in scale.sizes:
        count = max(5, min(2_000, 20_000_000 // size))
        plan = {
            "work": "echo", "width": 1, "count": count, "warmup": max(1, count // 10),
            "payload": str(payload("text", size)),
        }  # fmt: skip
        found = measure(plan)
        figures[f"size{size}"] = found["p50"]
        least = scale.sizes[0]
        if size > least:
            figures[f"byte{size}"] = (found["p50"] - figures[f"size{least}"]) / (size - least)
    for width in scale.widths:
        count = max(scale.scaled, 10 * width)
        plan = {"work": "window", "width": width, "count": count, "warmup": width}
        found = measure(plan)
        figures[f"open{width}"] = found["wall"] / count
    return figures


def tools(peer: Peer, scale: Scale) -> Figures:
    """W13: the stream of W3 as calls of a tool, in both eras, and how soon its tools are listed.

    Our own plain calls, with a message a line as well, stand beside them.
    """
    count = scale.stream // peer.slowness
    figures = {"call": _stream(peer, count, batch=0)[0]}
    if not peer.tools:
        return figures
    starts = []
    with processes.pinned(SERVER_CORE):
        for _ in range(scale.starts):
            taken, got = _begin(peer, wire.list_tools(peer))
            wire.check_listed(peer, got)
            starts.append(taken)
    figures["list"] = statistics.median(starts)
    modern = replace(peer, is_modern=True)
    if "1" not in peer.name:  # the older SDK ends before the newest revision
        figures["modern"] = _stream(modern, count, batch=0)[0]
    return figures


STORES = {
    "memory": "memory", "sqlite": "SQLite", "postgres": "PostgreSQL", "valkey": "Valkey",
}  # fmt: skip
LEDGER = {"thread": "the ledger alone, a thread", "loop": "the ledger alone, an event loop"}

ITEMS: dict[str, Item] = {
    "W1": Item("one at a time, own client and server", "one", round_trips, {
        "one.p50": Figure("one core, p50", "us"),
        "one.p99": Figure("one core, p99", "us"),
        "two.p50": Figure("two cores, p50", "us"),
        "two.p99": Figure("two cores, p99", "us"),
    }),
    "W2": Item("64 in flight, own client and server", "window", window, {
        "rate": Figure("requests per second", "/s"),
        "cpu": Figure("CPU of both ends per request", "us"),
    }),
    "W3": Item("prepared stream through stdin", "serve", prepared_stream, {
        "cpu": Figure("server CPU per request", "us"),
        "memory": Figure("server peak memory", "MB"),
    }),
    "W4": Item("batches of 50 through stdin", "batch", batches, {
        "cpu": Figure("server CPU per item", "us"),
    }),
    "W5": Item("large echo, own client and server", "echo", large_echoes, {
        f"{kind}{size}.{what}": Figure(f"{size} MB of {kind}, {title}", unit)
        for kind in ("text", "records")
        for size in (1, 9)
        for what, title, unit in (("time", "time", "ms"), ("memory", "server peak memory", "MB"))
    }),
    "W6": Item("client with 1,000 open, random order", "rounds", thousand_open, {
        "cpu": Figure("client CPU per request", "us"),
    }),
    "W7": Item("dispatcher, bytes to bytes", "dispatch:request", dispatcher, {
        "request": Figure("request", "us"),
        "notification": Figure("notification", "us"),
        "batch": Figure("batch item", "us"),
    }),
    "W8": Item("cold start", "serve", cold_start, {
        "import": Figure("import", "ms"),
        "answer": Figure("spawn to first answer", "ms"),
        "asyncio": Figure("asyncio loaded by `import duet_rpc`", ""),
    }),
    "W9": Item("idle connections on a unix socket", "listen", idle_connections, {
        "memory": Figure("server memory per connection", "kB"),
    }),
    "W10": Item("round trips while another connection floods", "listen", fairness, {
        "alone": Figure("p99 alone", "us"),
        "flooded": Figure("p99 while flooded", "us"),
    }),
    "W11": Item("durable commands", "commands", commands, {
        f"{store}.{width}": Figure(f"{title}, {how}", "/s")
        for store, title in STORES.items()
        for width, how in (("one", "one at a time"), ("many", "64 in flight"), *LEDGER.items())
    } | {
        "query.without": Figure("a query, service without a store, server CPU", "us"),
        "query.with": Figure("a query, service with a store, server CPU", "us"),
    }),
    "W12": Item("scaling", "scale", scaling, {
        f"size{size}": Figure(f"echo of {size:,} bytes", "us") for size in FULL.sizes
    } | {
        f"byte{size}": Figure(f"each byte of {size:,}", "ns/B") for size in FULL.sizes[1:]
    } | {
        f"open{width}": Figure(f"request, {width:,} in flight", "us") for width in FULL.widths
    }),
    "W13": Item("tools of agents (MCP)", "tools", tools, {
        "call": Figure("server CPU per call", "us"),
        "modern": Figure("server CPU per call, 2026-07-28", "us"),
        "list": Figure("spawn to the list of tools", "ms"),
    }),
}  # fmt: skip
