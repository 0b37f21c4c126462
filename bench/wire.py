"""Bytes that the harness itself sends and reads: prepared streams and their answers."""

import json
from collections.abc import Iterator
from typing import Any

from bench.roster import Peer

_HANDSHAKE: list[dict[str, Any]] = [
    {
        "jsonrpc": "2.0",
        "id": "handshake",
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "bench", "version": "1"},
        },
    },
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
]
_AGENT = "io.modelcontextprotocol/"
_META = {
    _AGENT + "protocolVersion": "2026-07-28",
    _AGENT + "clientCapabilities": {},
    _AGENT + "clientInfo": {"name": "bench", "version": "1"},
}
"""What each request says where there is no handshake."""


def frame(peer: Peer, message: object) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode()
    if peer.framing == "line":
        return body + b"\n"
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def handshake(peer: Peer) -> bytes:
    """What must be sent before the first request; its answer has a text for its id."""
    return b"".join(frame(peer, message) for message in _HANDSHAKE) if shakes_hands(peer) else b""


def shakes_hands(peer: Peer) -> bool:
    """Tell whether there is a handshake, with one answer."""
    return peer.tools and not peer.is_modern


def request(peer: Peer, number: int) -> dict[str, Any]:
    """The small request of the benchmark: add one to a number, which is also the id."""
    params: dict[str, Any] = {"a": number, "b": 1}
    method = "add"
    if peer.tools:
        method, params = "tools/call", {"name": "add", "arguments": params}
    if peer.is_modern:
        params["_meta"] = _META
    return {"jsonrpc": "2.0", "method": method, "params": params, "id": number}


def list_tools(peer: Peer) -> dict[str, Any]:
    """The request of every host before it shows anything to a model."""
    params = {"_meta": _META} if peer.is_modern else {}
    return {"jsonrpc": "2.0", "method": "tools/list", "params": params, "id": 0}


def frames(peer: Peer, count: int, keys: bool = False) -> list[bytes]:
    """Requests, each in its frame; commands with keys if asked."""
    requests = [request(peer, number) for number in range(count)]
    if keys:
        for message in requests:
            message["params"]["idempotency_key"] = f"key-{message['id']}"
    return [frame(peer, message) for message in requests]


def stream(peer: Peer, count: int, batch: int = 0) -> bytes:
    """The prepared stream: `count` requests, alone or in batches."""
    if not batch:
        return b"".join(frames(peer, count))
    requests = [request(peer, number) for number in range(count)]
    groups = (requests[start : start + batch] for start in range(0, count, batch))
    return b"".join(frame(peer, group) for group in groups)


def bodies(peer: Peer, data: bytes) -> Iterator[Any]:
    """Cut what a peer wrote into messages."""
    if peer.framing == "line":
        yield from map(json.loads, data.splitlines())
        return
    start = 0
    while start < len(data):
        end = data.index(b"\r\n\r\n", start)
        lines = data[start:end].split(b"\r\n")
        length = next(int(line[15:]) for line in lines if line.startswith(b"Content-Length:"))
        start = end + 4 + length
        yield json.loads(data[end + 4 : start])


def end_mark(peer: Peer) -> bytes:
    """Bytes that stand once in every message: enough to count answers while they come."""
    return b"\n" if peer.framing == "line" else b"Content-Length:"


def check_listed(peer: Peer, data: bytes) -> None:
    """The tool of the benchmark is among those that are listed."""
    *_, answer = bodies(peer, data)
    if "add" not in [tool["name"] for tool in answer["result"]["tools"]]:
        raise SystemExit(f"{peer.name} does not list its tool")


def check(peer: Peer, data: bytes, count: int) -> None:
    """Every request has exactly its own answer, whatever the order; else the run is void."""
    found = {}
    for body in bodies(peer, data):
        for answer in body if isinstance(body, list) else [body]:
            if answer["id"] == "handshake":
                continue
            result = answer.get("result")
            if peer.tools and result:
                result = int(result["content"][0]["text"])
            found[answer["id"]] = result
    if found != {number: number + 1 for number in range(count)}:
        wrong = [(id, got) for id, got in found.items() if got != id + 1][:3]
        raise SystemExit(f"{peer.name}: {len(found)} answers to {count} requests, wrong: {wrong}")
