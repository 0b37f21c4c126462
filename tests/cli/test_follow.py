"""`duet-rpc call` of a subscription: its items, one a line, until it ends or Ctrl-C."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.shell import COMMAND, PATIENCE, run, shell_environment

SERVER = '''
import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from duet_rpc import RpcError, Service

market = Service("market")


class Closed(RpcError):
    code, message = 8, "The market is closed"


@dataclass
class Price:
    symbol: str
    cents: int


@market.subscription(when_slow="wait")
async def prices(symbol: str, n: int = 3, then: str = "") -> AsyncIterator[Price]:
    """Follow the prices of a share."""
    for cents in range(n):
        yield Price(symbol, cents)
    if then == "wait":
        await asyncio.get_running_loop().create_future()
    if then == "fail":
        raise Closed()


market.run()
'''


@pytest.fixture
def server(tmp_path: Path) -> list[str]:
    (tmp_path / "market.py").write_text(SERVER)
    return ["--", sys.executable, str(tmp_path / "market.py")]


def test_items_are_printed_one_a_line(server: list[str]) -> None:
    ran = run("call", "market.prices", "symbol=X", *server)
    assert ran.jsons == [{"symbol": "X", "cents": cents} for cents in range(3)], ran
    assert (ran.code, ran.err) == (0, "")


def test_its_error_comes_after_its_items(server: list[str]) -> None:
    ran = run("call", "market.prices", "symbol=X", "n:=1", "then=fail", *server)
    assert (ran.jsons, ran.code) == ([{"symbol": "X", "cents": 0}], 1), ran
    assert "The market is closed" in ran.err


def test_ctrl_c_is_the_usual_end(server: list[str]) -> None:
    command = [str(COMMAND), "call", "market.prices", "symbol=X", "then=wait", *server]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=shell_environment(),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    found = [json.loads(process.stdout.readline())["cents"] for _ in range(3)]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert (found, out, err, process.returncode) == ([0, 1, 2], b"", b"", 0)


def test_the_time_that_is_asked_for_is_that_of_each_item(server: list[str]) -> None:
    words = ["symbol=X", "then=wait", "--timeout", "2"]
    ran = run("call", "market.prices", *words, *server)
    assert len(ran.jsons) == 3 and ran.code not in (0, 1), ran
    assert "no item within 2 s" in ran.err


def test_it_is_described(server: list[str]) -> None:
    ran = run("describe", "market.prices", "--format", "pretty", *server)
    assert "market.prices  subscription" in ran.out and "\nitems\n  Price\n" in ran.out, ran
    assert "it waits for a subscriber that does not keep up" in ran.out
    ran = run("list", "--format", "pretty", *server)
    assert "subscription" in ran.out, ran
