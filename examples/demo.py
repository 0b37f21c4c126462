"""A tour of duet-rpc: a bank as a daemon, the client, and commands that survive `kill -9`.

The first acts talk to the bank next door over its pipes, byte by byte; the rest (`demo_retries`)
use the client, and kill the server at the worst moments.

Every act shows what was sent and what came back, and checks it: the demo exits with 1 if an answer
is not what it should be. Run it with `make demo`.
"""

import asyncio
import json
import os
import queue
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import demo_retries

BANK = Path(__file__).with_name("bank.py")
PATIENCE = 30.0
"""Seconds to wait for an answer before the demo fails."""
WIDTH, INDENT = 100, 32
"""Columns of a line, and those before its last one."""


class Wrong(Exception):
    """The bank did something else than it should."""


class NobodyWatches(Exception):
    """Whoever read what is shown has gone, as `head` does."""


# What a person sees.


class Stage:
    """Prints acts and messages in aligned columns, in colour on a terminal.

    Where a message has an id, it stands before it: an answer has that of its request.
    """

    def __init__(self, colour: bool) -> None:
        self._colour = colour
        self._acts = 0
        self._watched = True

    def title(self, text: str) -> None:
        """Open an act, unless nobody looks any more: then the one before was the last."""
        if not self._watched:
            raise NobodyWatches
        self._acts += 1
        self.print(f"\n{self.paint('1', f'{self._acts}. {text}')}")

    def say(self, text: str) -> None:
        """Explain, in a sentence."""
        self.print(f"   {self.paint('2', text)}")

    def sent(self, what: str, detail: str, id: object = "") -> None:
        """Show what goes to the daemon."""
        self._line(self.paint("36", "-->"), what, detail, id)

    def came(self, what: str, detail: str, id: object = "", good: bool = True) -> None:
        """Show what comes from the daemon."""
        self._line(self.paint("32" if good else "33", "<--"), what, detail, id)

    def noted(self, what: str, detail: str) -> None:
        """Show something that happened beside the stream."""
        self._line(self.paint("35", " * "), what, detail)

    def print(self, text: str) -> None:
        """Show a text, if anybody still looks."""
        try:
            print(text, flush=True)
        except BrokenPipeError:
            self._watched = False
            # What Python still holds for stdout would fail again with every line.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def table(self, heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
        """Show rows in columns."""
        widths = [max(len(cell) for cell in column) for column in zip(heads, *rows, strict=True)]
        for row in (heads, *rows):
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            line = "  ".join(cells).rstrip()
            self.print(f"   {self.paint('1', line) if row is heads else line}")

    def paint(self, code: str, text: str) -> str:
        """Colour a text, where there is colour."""
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour else text

    def _line(self, mark: str, what: str, detail: str, id: object = "") -> None:
        first, *rest = textwrap.wrap(detail, WIDTH - INDENT, break_on_hyphens=False) or [""]
        self.print(f"   {mark} {id:>4} {what:<19} {first}".rstrip())
        for line in rest:
            self.print(" " * INDENT + line)


def wants_colour() -> bool:
    """Colour is for terminals, and for people who have not asked to be spared."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return sys.stdout.isatty()


def compact(value: Any) -> str:
    """Write JSON in one line, as a person would."""
    return json.dumps(value, ensure_ascii=False)


# The daemon, as a client sees it: three pipes and an exit code.


def with_header(body: bytes) -> bytes:
    """Put the header in front of a body."""
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def frame(members: dict[str, Any]) -> bytes:
    """Make the frame of a message."""
    return with_header(json.dumps({"jsonrpc": "2.0", **members}).encode())


class Daemon:
    """The bank in a process of its own."""

    def __init__(self, stage: Stage, command: list[str]) -> None:
        self.stage = stage
        self._ids = 0
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "NO_COLOR": "1"},
        )
        # What was read: messages, or what is wrong with the stream; None at its end.
        self._frames: queue.Queue[dict[str, Any] | Wrong | None] = queue.Queue()
        self._log: queue.Queue[str] = queue.Queue()
        for reader in (self._read_frames, self._read_log):
            threading.Thread(target=reader, daemon=True).start()

    # Sending.

    def write(self, data: bytes) -> None:
        """Write bytes as they are."""
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def write_frame(self, body: bytes) -> None:
        """Write a body with its header."""
        self.write(with_header(body))

    def send(self, method: str, params: dict[str, Any] | None = None) -> int:
        """Send a request; return its id."""
        self._ids += 1
        self.stage.sent(method, compact(params or {}), self._ids)
        self._send({"id": self._ids, "method": method, "params": params or {}})
        return self._ids

    def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        """Send a notification."""
        self.stage.sent(method, f"{compact(params or {})}  (a notification: no answer)")
        self._send({"method": method, "params": params or {}})

    def _send(self, members: dict[str, Any]) -> None:
        self.write(frame(members))

    # Receiving.

    def receive(self) -> dict[str, Any]:
        """Wait for the next message and show it."""
        try:
            message = self._frames.get(timeout=PATIENCE)
        except queue.Empty:
            raise Wrong("no answer came") from None
        if message is None:
            raise Wrong("the daemon ended early")
        if isinstance(message, Wrong):
            raise message
        if "error" in message:
            error = message["error"]
            data = f" {compact(error['data'])}" if "data" in error else ""
            said = f"{error['message']}{data}"
            self.stage.came(f"error {error['code']}", said, compact(message["id"]), good=False)
        else:
            self.stage.came("result", compact(message["result"]), compact(message["id"]))
        return message

    def result(self, id: int) -> Any:
        """Wait for the result of a request."""
        message = self.receive()
        expect(message.get("id"), id, "the answer's id")
        if "result" not in message:
            raise Wrong(f"an error came where a result should: {compact(message['error'])}")
        return message["result"]

    def error(self, id: int | None) -> dict[str, Any]:
        """Wait for the error that a request, or a message without a readable id, should get."""
        message = self.receive()
        expect(message.get("id"), id, "the answer's id")
        if "error" not in message:
            raise Wrong(f"a result came where an error should: {compact(message['result'])}")
        error: dict[str, Any] = message["error"]
        return error

    def ask(self, method: str, params: dict[str, Any] | None = None) -> Any:
        """Send a request and wait for its result."""
        return self.result(self.send(method, params))

    def log_line(self, part: str) -> str:
        """Wait for a line in the log that has this part."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                line = self._log.get(timeout=max(0, until - time.monotonic()))
            except queue.Empty:
                raise Wrong(f"the log has no line with {part!r}") from None
            if part in line:
                return line

    def exit_code(self) -> int:
        """Wait for the end, and for the last byte; there must be none outside a frame."""
        code = self._process.wait(PATIENCE)
        if self._frames.get(timeout=PATIENCE) is not None:
            raise Wrong("something follows the last answer")
        return code

    def close(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.wait()

    def _read_frames(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        while header := stdout.readline():
            name, _, length = header.partition(b": ")
            try:
                if name != b"Content-Length" or stdout.readline() != b"\r\n":
                    raise ValueError("there should be a header")
                self._frames.put(json.loads(stdout.read(int(length))))
            except ValueError as error:
                self._frames.put(Wrong(f"stdout holds {header!r}, which is no frame: {error}"))
                return
        self._frames.put(None)

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._log.put(line.decode("utf-8", "replace").rstrip())


def expect(found: Any, wanted: Any, what: str) -> None:
    """Compare; the demo fails if they differ."""
    if found != wanted:
        raise Wrong(f"{what} is {compact(found)}, and should be {compact(wanted)}")


# The acts, in order. Each leaves the daemon as it found it, but for what the next one needs.


def ask_the_bank(bank: Daemon) -> None:
    """Typed functions, called by name"""
    bank.stage.say(
        "--> goes to the bank, <-- comes back, under the id of its request. Money is in cents."
    )
    bank.ask("bank.open", {"owner": "Ada", "deposit": 100_00})
    bank.ask("bank.open", {"owner": "Grace"})
    receipt = bank.ask("bank.transfer", {"source": "A-1", "target": "A-2", "cents": 30_00})
    expect(receipt["balances"], {"A-1": 70_00, "A-2": 30_00}, "what the receipt says")


def be_refused(bank: Daemon) -> None:
    """A refusal is an answer that a program can read"""
    error = bank.error(
        bank.send("bank.transfer", {"source": "A-2", "target": "A-1", "cents": 31_00})
    )
    expect([error["code"], error["data"]], [2002, {"balance": 30_00, "missing": 1_00}], "the error")
    error = bank.error(
        bank.send("bank.transfer", {"source": "A-1", "target": "A-2", "cents": "all"})
    )
    expect([error["code"], error["data"]["param"]], [-32602, "cents"], "the error")
    error = bank.error(bank.send("bank.rob"))
    expect(error["code"], -32601, "the code")


def break_the_stream(bank: Daemon) -> None:
    """Bad bytes are answered, and the next good frame is read"""
    bank.stage.sent("garbage", "GET / HTTP/1.1\\r\\nHost: bank\\r\\n\\r\\n")
    bank.write(b"GET / HTTP/1.1\r\nHost: bank\r\n\r\n")
    expect(bank.error(None)["data"]["reason"], "invalid-content-length", "the reason")
    bank.stage.sent("half a JSON value", '{"jsonrpc": "2.0", "id": 7, "meth')
    bank.write_frame(b'{"jsonrpc": "2.0", "id": 7, "meth')
    expect(bank.error(None)["code"], -32700, "the code")
    bank.stage.sent(
        "a frame of 20 MB", "with a frame inside, which empties an account: it must not run"
    )
    robbery = frame({"method": "bank.transfer", "params": ["A-1", "A-2", 70_00]})
    bank.write_frame((robbery + bytes(1_000_000)) * 20)
    expect(bank.error(None)["data"]["reason"], "oversize", "the reason")
    account = bank.ask("bank.balance", {"account": "A-1"})
    expect(account["balance"], 70_00, "the balance")


def print_to_stdout(bank: Daemon) -> None:
    """A stray print does not corrupt the stream"""
    bank.stage.say(
        "transfer() calls print(). Stdout belongs to frames, so the text goes to stderr:"
    )
    bank.ask("bank.transfer", {"source": "A-1", "target": "A-2", "cents": 20_00})
    bank.stage.noted("stderr", bank.log_line("receipt 2"))
    expect(len(bank.ask("bank.accounts")), 2, "the number of accounts")


def cancel_a_request(bank: Daemon) -> None:
    """A running request can be cancelled"""
    audit = bank.send("bank.audit", {"hours": 8})
    behind = bank.send("bank.balance", {"account": "A-2"})
    bank.notify("$/cancelRequest", {"id": audit})
    expect(bank.error(audit)["code"], -32800, "the code")
    expect(bank.result(behind)["balance"], 50_00, "the balance")


def end_in_order(bank: Daemon) -> None:
    """Shutdown: what was asked before is answered, then the process ends"""
    started = time.monotonic()
    asked = [bank.send("bank.balance", {"account": number}) for number in ("A-1", "A-2")]
    asked.append(bank.send("shutdown"))
    balances = [bank.result(id) for id in asked]
    expect([balances[0]["balance"], balances[1]["balance"]], [50_00, 50_00], "the balances")
    code = bank.exit_code()
    bank.stage.noted("exit code", f"{code}, after {time.monotonic() - started:.2f} s")
    expect(code, 0, "the exit code")


ACTS: list[Callable[[Daemon], None]] = [
    ask_the_bank,
    be_refused,
    break_the_stream,
    print_to_stdout,
    cancel_a_request,
    end_in_order,
]


def play(stage: Stage) -> None:
    """Play all acts; raise if an answer is wrong or a promise was not kept."""
    stage.print(stage.paint("1", "duet-rpc: a small bank as a daemon, and a client at its pipes"))
    started = time.monotonic()
    bank = Daemon(stage, [sys.executable, str(BANK)])
    try:
        for act in ACTS:
            stage.title(act.__doc__ or act.__name__)
            act(bank)
    finally:
        bank.close()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(demo_retries.play(stage, Path(folder)))
    taken = f"in {time.monotonic() - started:.1f} s"
    stage.print(f"\n{stage.paint('32', f'Every answer was the right one, {taken}.')}")
    stage.print(
        "The bank of the first acts is examples/bank.py, the one that was killed is"
        " examples/durable_bank.py.\nREADME.md begins with a server of your own."
    )


def main() -> int:
    """Play the demo; return the exit code."""
    stage = Stage(wants_colour())
    try:
        play(stage)
    except NobodyWatches:
        pass
    except Exception as wrong:
        stage.print(f"\n{stage.paint('31', 'The demo failed:')} {type(wrong).__name__}: {wrong}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
