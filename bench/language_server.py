"""`make bench-lsp`: the same language server with duet-rpc and with pygls, side by side.

Lines of the program, time from its start to the answer of `initialize`, and the round trip of a
hover. Both are started in turn inside each repetition and do the same work over pipes; every answer
is compared. Only the ratios count.
"""

import argparse
import ast
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROGRAMS = {
    "duet-rpc": HERE / "language_servers" / "ours.py",
    "pygls": HERE / "language_servers" / "with_pygls.py",
}
GOALS = {"lines": 1.0, "start": 1 / 5, "hover": 1 / 4}

URI = "file:///words.txt"
TEXT = "".join(f"line {number} has 😀 words and a todo\n" for number in range(200))
CAPABILITIES = {"textDocument": {"hover": {"contentFormat": ["markdown", "plaintext"]}}}


class Session:
    """A language server in a process of its own, spoken to by the simplest client there is."""

    def __init__(self, program: Path) -> None:
        self._last_id = 0
        self._buffer = b""
        environment = dict(os.environ)
        # Whoever installs a package has its bytecode; to compile at each start would not be fair.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self.process = subprocess.Popen(
            [sys.executable, str(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        assert self.process.stdin and self.process.stdout
        self._write_fd = self.process.stdin.fileno()
        self._read_fd = self.process.stdout.fileno()

    def notify(self, method: str, params: Any) -> None:
        self._send({"jsonrpc": "2.0", "method": method, "params": params})

    def ask(self, method: str, params: Any = None) -> Any:
        self._last_id += 1
        self._send({"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params})
        return self.receive()["result"]

    def receive(self) -> Any:
        """Read one message; nothing else may be on its way."""
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            self._read()
        size = int(self._buffer[:end].split(b"Content-Length: ")[1].split(b"\r\n")[0])
        while len(self._buffer) < end + 4 + size:
            self._read()
        body = self._buffer[end + 4 : end + 4 + size]
        self._buffer = self._buffer[end + 4 + size :]
        return json.loads(body)

    def end(self) -> None:
        self.ask("shutdown")
        self.notify("exit", None)
        if self.process.wait(30):
            raise SystemExit("a server did not end well")

    def _send(self, message: Any) -> None:
        body = json.dumps(message).encode()
        os.write(self._write_fd, b"Content-Length: %d\r\n\r\n%b" % (len(body), body))

    def _read(self) -> None:
        data = os.read(self._read_fd, 65536)
        if not data:
            raise SystemExit("a server has ended too soon")
        self._buffer += data


def measure(program: Path, hovers: int) -> tuple[dict[str, float], Any]:
    """Start a server and ask it; return its figures, and what it answered."""
    begun = time.perf_counter()
    session = Session(program)
    session.ask("initialize", {"processId": None, "rootUri": None, "capabilities": CAPABILITIES})
    started = time.perf_counter() - begun
    session.notify("initialized", {})
    opened = {"uri": URI, "languageId": "text", "version": 1, "text": TEXT}
    session.notify("textDocument/didOpen", {"textDocument": opened})
    diagnostics = session.receive()["params"]["diagnostics"]
    trips, answers = [], []
    for number in range(hovers):
        position = {"line": number % 200, "character": 1}
        begun = time.perf_counter()
        answer = session.ask(
            "textDocument/hover", {"textDocument": {"uri": URI}, "position": position}
        )
        trips.append(time.perf_counter() - begun)
        answers.append(answer["contents"])
    session.end()
    figures = {"start": started, "hover": statistics.median(trips)}
    return figures, (len(diagnostics), answers)


def count_lines(program: Path) -> int:
    """Count the lines of a program that are neither empty nor its docstring."""
    source = program.read_text("utf-8")
    docstring = ast.parse(source).body[0]
    lines = source.splitlines()[docstring.end_lineno :]
    return sum(bool(line.strip()) for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.language_server", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=15, metavar="N")
    parser.add_argument("--hovers", type=int, default=1000, metavar="N")
    arguments = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = {
        name: {"lines": [count_lines(program)], "start": [], "hover": []}
        for name, program in PROGRAMS.items()
    }
    for _ in range(arguments.repetitions):
        answers = []
        for name, program in PROGRAMS.items():
            figures, answered = measure(program, arguments.hovers)
            answers.append(answered)
            for figure, value in figures.items():
                found[name][figure].append(value)
        if answers[0] != answers[1]:
            raise SystemExit("the two servers do not answer alike")
    print("ours divided by pygls, medians of one run; below the goal is reached\n")
    for figure, goal in GOALS.items():
        ours, theirs = (statistics.median(found[name][figure]) for name in PROGRAMS)
        reached = "reached" if ours / theirs <= goal else "not reached"
        compared = f"{_say(figure, ours)} against {_say(figure, theirs)}"
        print(f"{figure:6} {ours / theirs:6.3f}   goal {goal:.3f}   {reached:11}   {compared}")


def _say(figure: str, value: float) -> str:
    if figure == "lines":
        return f"{value:.0f}"
    return f"{value * 1000:.0f} ms" if figure == "start" else f"{value * 1e6:.0f} us"


if __name__ == "__main__":
    main()
