"""Servers for the command line to talk to: ours on pipes and sockets, and strange ones."""

import subprocess
import sys
from pathlib import Path
from types import TracebackType

from tests.cli.shell import PATIENCE
from tests.daemon.process import eventually

OURS = '''
import os, sys, time
from dataclasses import dataclass, field
from typing import Any, Literal

from duet_rpc import Context, RpcError, Service

app = Service()

class NoteNotFound(RpcError):
    code, message = 404, "Note not found"

class Rude(RpcError):
    code, message = 13, "bell \\a and \\x1b[31mred"

@dataclass
class Tag:
    name: str
    weight: float = 1.0

@dataclass
class Note:
    text: str
    tags: list[Tag] = field(default_factory=list)
    mood: Literal["good", "bad"] = "good"

@app.query
def add(a: int, b: int = 0) -> int:
    """Add two numbers.

    There may be more to say.
    """
    return a + b

@app.query
def echo(value: Any = None) -> Any:
    """Return what is given."""
    return value

@app.query
def total(*values: float) -> float:
    return sum(values)

@app.query
def get(id: int) -> Note:
    """Get a note."""
    if id == 13:
        raise Rude()
    raise NoteNotFound(data={"id": id})

@app.command
def save(note: Note) -> str:
    """Save a note."""
    with open("saved", "a") as file:
        file.write(note.text + "\\n")
    return note.text

@app.command
def key_of(ctx: Context) -> str:
    """Say under which key it was called."""
    return ctx.idempotency_key or "none"

@app.command
def wait_for(path: str, ctx: Context) -> str:
    """Wait until a file is there."""
    print("waiting", file=sys.stderr, flush=True)
    count = 0
    while not os.path.exists(path):
        time.sleep(0.05)
        count += 1
        ctx.progress({"percentage": count, "message": "looking"})
    with open("waited", "a") as file:
        file.write("once\\n")
    return "there"

@app.query
def fail() -> None:
    raise ValueError("a secret that stays in the log")

@app.command
def die(code: int = 3) -> None:
    print("last words", file=sys.stderr, flush=True)
    os._exit(code)
'''

ON_PIPES = f"{OURS}\napp.run()\n"

ON_SOCKETS = f"""{OURS}
from duet_rpc import Server
from duet_rpc.policy import AGENT

def told(address):
    with open(sys.argv[2] + ".new", "w") as file:
        file.write(address)
    os.rename(sys.argv[2] + ".new", sys.argv[2])

server = Server(app, policy=AGENT, store="sqlite:///commands.db")
if sys.argv[1] == "tcp":
    server.run_tcp("127.0.0.1", 0, on_start=told)
else:
    server.run_unix(sys.argv[1], on_start=told)
"""

STRANGE = '''
"""Answers one message a line, in ways that its argument names."""
import json, sys, time

how = sys.argv[1]
for line in sys.stdin:
    with open("heard", "a") as file:
        file.write(line)
    message = json.loads(line)
    items = message if isinstance(message, list) else [message]
    if how == "dies":
        sys.exit("I do not like this")
    if how == "silent" or "id" not in items[0]:
        continue
    answer = {"jsonrpc": "2.0", "id": items[0]["id"]}
    if items[0]["method"] in ("describeMethods", "rpc.discover", "listMethods"):
        if how == "odd":
            answer["result"] = {"methods": [3, {"name": 4}, {}]}
        elif how == "openrpc" and items[0]["method"] == "rpc.discover":
            answer["result"] = json.load(open("openrpc.json"))
        else:
            answer["error"] = {"code": -32601, "message": "what?"}
    elif how == "empty":
        pass
    else:
        answer["result"] = message if how == "repeats" else True
    print(json.dumps(answer), flush=True)
'''


class OnSocket:
    """Our service on a socket, in a process of its own."""

    def __init__(self, directory: Path, where: str) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self._where = where
        (directory / "sockets.py").write_text(ON_SOCKETS)
        self.address = ""

    def __enter__(self) -> "OnSocket":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Start it and wait until it listens."""
        told = self.directory / "address"
        told.unlink(missing_ok=True)
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "sockets.py", self._where, "address"],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        eventually(lambda: told.exists() or self._process.poll() is not None, "a server listens")
        assert told.exists(), (self.directory / "log").read_text()
        self.address = told.read_text()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait(PATIENCE)
