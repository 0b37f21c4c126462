"""Endpoints: values that are checked when they are made, and serve the same by every way."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from duet_rpc import Client, Server, Service, Stdio, Tcp, Unix, UsageError

service = Service()


@service.query
def double(number: int) -> int:
    return 2 * number


@pytest.mark.parametrize(
    ("make", "option", "value", "accepted"),
    [
        (Stdio, "framing", "xml", '"lsp", "ndjson" or "auto"'),
        (lambda **o: Unix("x", **o), "framing", None, '"lsp", "ndjson" or "auto"'),
        (lambda **o: Unix("x", **o), "max_connections", 0, "a whole number, 1 or more"),
        (lambda **o: Tcp("::1", 0, **o), "max_queued_bytes", True, "a whole number, 1 or more"),
        (lambda **o: Tcp("::1", 0, **o), "principal", "ada", "a function"),
        (lambda **o: Tcp("::1", 0, **o), "allow_remote", 1, "True or False"),
        (Unix, "path", 7, "the path of a socket"),
        (Unix, "path", b"x", "the path of a socket"),
        (lambda **o: Tcp(port=0, **o), "host", None, "a name or an address"),
        (lambda **o: Tcp("::1", **o), "port", "80", "a whole number from 0 .* to 65535"),
        (lambda **o: Tcp("::1", **o), "port", 65536, "a whole number from 0 .* to 65535"),
        (lambda **o: Tcp("::1", **o), "port", -1, "a whole number from 0 .* to 65535"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_made(
    make: Any, option: str, value: Any, accepted: str
) -> None:
    with pytest.raises(UsageError, match=f"^{option} is .*; give .*{accepted}"):
        make(**{option: value})


def test_an_endpoint_is_a_value() -> None:
    assert Unix("a", max_connections=3) == Unix("a", max_connections=3) != Unix("a")
    assert len({Stdio(), Stdio(framing="lsp"), Tcp("::1", 1), Tcp("::1", 1)}) == 2
    frozen: Any = Tcp("::1", 1)
    with pytest.raises(AttributeError):
        frozen.port = 2


@pytest.mark.parametrize("wrong", [None, "unix:x", Unix, ("::1", 1)])
def test_what_is_no_endpoint_is_refused(wrong: Any) -> None:
    server = Server(service)
    for way in (server.run, lambda it: asyncio.run(server.serve(it))):
        with pytest.raises(UsageError, match=r"is no (endpoint|socket); give .*Unix\(path\)"):
            way(wrong)


def test_stdio_is_not_served_in_a_loop_of_someone_elses() -> None:
    endpoint: Any = Stdio()
    with pytest.raises(UsageError, match=r"Stdio\(\) to run\(\)"):
        asyncio.run(Server(service).serve(endpoint))


@pytest.mark.parametrize(
    "make",
    [
        lambda path: Unix(path),
        lambda path: Unix(str(path), framing="ndjson"),
        lambda path: Tcp("127.0.0.1", 0, framing="auto"),
    ],
)
async def test_a_socket_is_served_until_it_is_cancelled(make: Any, tmp_path: Path) -> None:
    endpoint = make(tmp_path / "s")
    listens = asyncio.get_running_loop().create_future()
    server = Server(service)
    serving = asyncio.create_task(server.serve(endpoint, on_start=listens.set_result))
    address = await listens
    framing: Any = "lsp" if endpoint.framing == "auto" else endpoint.framing
    async with Client.connect(address, framing=framing) as client:
        assert await client.query("double", [21]) == 42
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
    assert not os.listdir(tmp_path)


RUN = """
import os, signal, sys, threading
from duet_rpc import Server, Service, Stdio, Tcp, Unix

def started(told):
    if not isinstance(endpoint, Stdio):
        os.kill(os.getpid(), signal.SIGTERM)

endpoint = eval(sys.argv[1])
Server(Service()).run(endpoint, on_start=started)
print("asyncio" in sys.modules, "socket" in sys.modules, threading.active_count(), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("endpoint", "why", "loaded"),
    [
        ("Stdio()", "end of input", "False False"),
        ("Unix('s')", "SIGTERM", "True True"),
        ("Tcp('127.0.0.1', 0)", "SIGTERM", "True True"),
    ],
)
def test_it_runs_until_its_end(endpoint: str, why: str, loaded: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", RUN, endpoint],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=50,
    )
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
    assert why in ended.stderr
    assert f"\n{loaded} " in ended.stderr
    assert not list(tmp_path.iterdir())
