"""The second half of the demo: the client, a server that dies at the worst moments, and retries."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from duet_rpc import Client, ConnectionLost, Retry, Service
from duet_rpc.errors import CallTimeout, KeyReused, OutcomeUnknown

if TYPE_CHECKING:
    from demo import Stage

BANK = Path(__file__).with_name("durable_bank.py")
TRANSFER = {"source": "Ada", "target": "Grace", "cents": 10_00}

slow = Service("slow")


@slow.query
async def answer(number: int, seconds: float) -> int:
    """Take a while to say a number."""
    await asyncio.sleep(seconds)
    return number


class Town:
    """What the acts share: the stage, a bank that can be killed, what was promised and counted."""

    def __init__(self, stage: "Stage", folder: Path) -> None:
        self.stage = stage
        self.folder = folder
        self.socket = folder / "bank.sock"
        self.promises: list[tuple[str, str, str]] = []
        self._bank: subprocess.Popen[bytes] | None = None

    def start_bank(self) -> None:
        """Start the bank and wait until it listens."""
        with open(self.folder / "bank.log", "ab") as log:
            self._bank = subprocess.Popen([sys.executable, str(BANK), str(self.socket)], stderr=log)
        for _ in range(3000):
            with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
                probe.connect(str(self.socket))
                break
            time.sleep(0.01)
        self.stage.noted("the bank", f"runs as process {self._bank.pid}")

    def kill_bank(self) -> None:
        """Kill it with the signal that nothing can catch."""
        assert self._bank is not None
        self._bank.send_signal(signal.SIGKILL)
        self.bank_died()

    def bank_died(self) -> None:
        """Wait for its end, and see that it was killed."""
        assert self._bank is not None
        code = self._bank.wait(30)
        self.stage.noted("the bank", f"was killed ({signal.Signals(-code).name})")

    def close(self) -> None:
        """End the bank, if it runs."""
        if self._bank is not None and self._bank.poll() is None:
            self._bank.kill()
            self._bank.wait()

    def client(self) -> Client:
        """Make a client that waits for the bank to listen."""
        retry = Retry(attempts=100, first_delay=0.05, max_delay=0.2, total=60)
        return Client.connect(f"unix:{self.socket}", retry=retry, timeout=30)

    def promised(self, what: str, promise: object, counted: object) -> None:
        """Note a promise and what was counted; the demo fails if they differ."""
        self.promises.append((what, str(promise), str(counted)))
        if promise != counted:
            raise AssertionError(f"{what}: promised {promise}, counted {counted}")

    @property
    def letters(self) -> int:
        """How many letters the post office has."""
        post = self.folder / "letters"
        return len(post.read_text().splitlines()) if post.exists() else 0


async def call_side_by_side(town: Town) -> None:
    """Many calls on one connection; one that times out hurts nobody"""
    async with Client.spawn(sys.executable, __file__, "serve-slow", timeout=30) as client:
        await client.query("slow.answer", {"number": 0, "seconds": 0})
        town.stage.sent(
            "slow.answer", "15 calls of 0.3 s each, and one of 60 s that may take 0.2 s"
        )
        began = time.monotonic()
        calls = [
            client.query("slow.answer", {"number": number, "seconds": 0.3}) for number in range(15)
        ]
        late = asyncio.ensure_future(
            client.call("slow.answer", {"number": 99, "seconds": 60}, timeout=0.2)
        )
        numbers = await asyncio.gather(*calls)
        taken = time.monotonic() - began
        town.stage.came("15 results", f"{taken:.2f} s for 15 calls of 0.3 s each")
        try:
            await late
        except CallTimeout as error:
            town.stage.came("timeout", str(error), good=False)
        town.promised("answers that reached their own call", 15, len(set(numbers)))


async def lose_the_server(town: Town) -> None:
    """A killed server settles every call, and says how it died"""
    async with Client.spawn(
        sys.executable, __file__, "serve-slow", timeout=30, reconnect=True
    ) as client:
        pid = await client.query("slow.pid")
        calls = [
            asyncio.ensure_future(client.call("slow.answer", {"number": n, "seconds": 60}))
            for n in range(10)
        ]
        town.stage.sent("slow.answer", f"10 calls of 60 s each; then kill -9 {pid}")
        await asyncio.sleep(0.05)
        os.kill(pid, signal.SIGKILL)
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        lost = [error for error in outcomes if isinstance(error, ConnectionLost)]
        town.stage.came("10 calls", str(lost[0]).splitlines()[0] if lost else "?", good=False)
        town.promised("calls that a dead server left pending", 0, client.stats.pending)
        town.promised("calls that ended with the connection", 10, len(lost))
        again = await client.query("slow.pid")
        town.stage.came("a new server", f"process {again} instead of {pid}")
        town.promised("calls answered after the reconnect", 1, int(again != pid))


async def die_before(town: Town) -> None:
    """kill -9 before the effect: the retry moves the money, once"""
    await _transfer_through_death(town, "before", "order-1", 10_00)


async def die_between(town: Town) -> None:
    """kill -9 between the effect and its record: neither is kept, the retry does both"""
    await _transfer_through_death(town, "between", "order-2", 20_00)


async def die_after(town: Town) -> None:
    """kill -9 after effect and record, before the answer is seen: the retry gets the answer"""
    async with town.client() as client:
        town.stage.sent("bank.transfer", "10.00, key order-3; nobody waits for the answer")
        call = asyncio.ensure_future(client.command("bank.transfer", TRANSFER, key="order-3"))
        for _ in range(3000):
            if (await client.outcome("bank.transfer", "order-3")).state == "done":
                break
            await asyncio.sleep(0.01)
        call.cancel()
        town.kill_bank()
        town.start_bank()
        balances = await client.command("bank.transfer", TRANSFER, key="order-3")
        town.stage.came("result", f"Grace holds {balances['Grace'] / 100:.2f}")
        held = (await client.query("bank.balances"))["Grace"]
        town.promised("Grace holds after three orders", "30.00", f"{held / 100:.2f}")


async def _transfer_through_death(town: Town, death: str, key: str, expected: int) -> None:
    async with town.client() as client:
        params = {**TRANSFER, "death": death}
        town.stage.sent("bank.transfer", f"10.00, key {key}, and the bank dies")
        waiting = asyncio.ensure_future(client.command("bank.transfer", params, key=key))
        await asyncio.to_thread(town.bank_died)
        town.start_bank()
        balances = await waiting
        town.stage.came("result", f"Grace holds {balances['Grace'] / 100:.2f}")
        town.promised(
            f"Grace holds after a death {death} the effect"
            if death == "before"
            else "Grace holds after a death between effect and record",
            f"{expected / 100:.2f}",
            f"{balances['Grace'] / 100:.2f}",
        )


async def fifty_at_once(town: Town) -> None:
    """Fifty clients send the same command at once: one effect, fifty same answers"""
    clients = [town.client() for _ in range(50)]
    try:
        await asyncio.gather(*(client.open() for client in clients))
        town.stage.sent("bank.transfer", "10.00, key order-4, from 50 connections")
        answers = await asyncio.gather(
            *(client.command("bank.transfer", TRANSFER, key="order-4") for client in clients)
        )
        held = (await clients[0].query("bank.balances"))["Grace"]
    finally:
        await asyncio.gather(*(client.close() for client in clients))
    town.stage.came("50 results", f"all say that Grace holds {answers[0]['Grace'] / 100:.2f}")
    town.promised("different answers to fifty clients", 1, len({str(a) for a in answers}))
    town.promised("Grace holds after fifty clients", "40.00", f"{held / 100:.2f}")


async def reuse_a_key(town: Town) -> None:
    """Another amount under a used key is refused"""
    async with town.client() as client:
        town.stage.sent("bank.transfer", "99.00, key order-4")
        refused = 0
        try:
            await client.command("bank.transfer", {**TRANSFER, "cents": 99_00}, key="order-4")
        except KeyReused as error:
            town.stage.came(f"error {error.code}", error.message, good=False)
            refused = 1
        town.promised("refusals of another amount", 1, refused)


async def at_most_once(town: Town) -> None:
    """What no database can take back: at most once, and honest about it"""
    async with town.client() as client:
        town.stage.sent("bank.send_letter", "key letter-1; the bank dies after posting it")
        params = {"text": "Dear Ada", "death": "between"}
        waiting = asyncio.ensure_future(client.command("bank.send_letter", params, key="letter-1"))
        await asyncio.to_thread(town.bank_died)
        town.start_bank()
        unknown = 0
        try:
            await waiting
        except OutcomeUnknown as error:
            town.stage.came(f"error {error.code}", f"{error.message}: nobody guesses", good=False)
            unknown = 1
        town.promised("letters posted although it was retried", 1, town.letters)
        town.promised("honest answers that nobody knows", 1, unknown)


ACTS: list[Callable[[Town], Awaitable[None]]] = [
    call_side_by_side,
    lose_the_server,
    die_before,
    die_between,
    die_after,
    fifty_at_once,
    reuse_a_key,
    at_most_once,
]


async def play(stage: "Stage", folder: Path) -> None:
    """Play these acts; raise if a promise was not kept."""
    town = Town(stage, folder)
    try:
        for act in ACTS:
            stage.title(act.__doc__ or "")
            if act is die_before:
                town.start_bank()
            await act(town)
    finally:
        town.close()
    stage.title("What was promised, and what was counted")
    stage.table(("promise", "promised", "counted"), town.promises)


if __name__ == "__main__":
    from duet_rpc import Server
    from duet_rpc.policy import AGENT

    @slow.query
    def pid() -> int:
        """Say which process this is."""
        return os.getpid()

    Server(slow, policy=AGENT).run_stdio()
