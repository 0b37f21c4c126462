"""Who takes part: ours, the peers, the limits; what each can do and how it is started.

A peer is a program that speaks the driver protocol (`driver.py`) and a note of how it spells its
messages. Nothing here measures anything.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
ENVIRONMENT = HERE / ".peers" / "python"
REQUIREMENTS = HERE / "peers" / "python" / "requirements.txt"
NODE = HERE / "peers" / "node"

OURS_PYTHON = sys.executable
PEERS_PYTHON = str(ENVIRONMENT / "bin" / "python")

_DISPATCH = "dispatch:request dispatch:notification dispatch:batch"


@dataclass(frozen=True)
class Peer:
    """One who takes part."""

    name: str
    program: tuple[str, ...]
    """The command line without its role."""
    roles: frozenset[str]
    """What it takes part in: as a server `serve`, `listen`, `batch`, `commands`; as a client the
    plans of the driver protocol, `one`, `window`, `rounds`, `echo`, and `scale` for both ends;
    `tools` for servers of agents and what stands beside them; in process `dispatch:` and a
    kind."""
    family: str = ""
    """The column of the table that it stands in; its name, if none is given."""
    variant: str = ""
    """Which variant of ours it is, or which one it is to be compared with; empty: the usual."""
    imports: tuple[str, ...] = ()
    """A command that does nothing but load the library."""
    framing: Literal["header", "line"] = "header"
    link: Literal["pipe", "socket"] = "pipe"
    """What the server wants in place of stdin and stdout."""
    tools: bool = False
    """Whether its methods are MCP tools, called after a handshake."""
    is_modern: bool = False
    """Whether each request names the revision instead; only where its methods are tools."""
    slowness: int = 1
    """How many times fewer requests it is given; the cost of one does not depend on it."""
    server: tuple[str, ...] = ()
    """Another program than its own, for a client that is to call it."""
    kind: Literal["ours", "peer", "limit"] = "peer"
    path: tuple[Path, ...] = (ROOT,)
    """Where its Python modules come from."""

    @property
    def column(self) -> str:
        return self.family or self.name

    @property
    def environment(self) -> dict[str, str]:
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(map(str, self.path)))
        # Whoever installs a package has its bytecode; to compile at each start would not be fair.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        return environment

    def usable(self) -> bool:
        """Whether its program is there and its library can be loaded."""
        if not self.program:
            return True
        if not Path(self.program[1]).exists():
            return False
        done = subprocess.run(self.imports, env=self.environment, capture_output=True)
        return done.returncode == 0


def ours(root: Path = ROOT, name: str = "duet-rpc") -> list[Peer]:
    """Our own columns, from the working tree or from a checkout of another revision."""

    program = (OURS_PYTHON, str(root / "bench" / "ours" / "duet_peer.py"))

    def ours(variant: str, roles: str, *words: str, slowness: int = 1) -> Peer:
        return Peer(
            f"{name} {variant}".rstrip(),
            (*program, *words),
            frozenset(roles.split()),
            family=name,
            variant=variant,
            imports=(OURS_PYTHON, "-c", "from duet_rpc import Service"),
            slowness=slowness,
            kind="ours",
            path=(root / "src", root),
        )

    def agents(variant: str, *words: str, slowness: int = 1) -> Peer:
        """What serves agents, or the same methods beside it, with a message a line as well."""
        usual = ours(variant, "tools", *words, slowness=slowness)
        return replace(usual, framing="line", tools=words[0] != "lines")

    command = agents("mcp", "tools", slowness=10)
    command_line = (OURS_PYTHON, str(root / "bench" / "ours" / "mcp_command.py"))
    usual = ours("", f"serve batch listen one window rounds echo commands scale {_DISPATCH}")
    return [
        usual,
        ours("concurrent", "serve batch", "concurrent"),
        ours("on uvloop", "one window rounds", "uvloop"),
        # One call after the other in W1, 64 threads in W2.
        ours("blocking", "one window", "blocking", slowness=5),
        ours("raw", "echo", "raw"),
        ours("raw server", "echo", "raw-server"),
        ours("dispatcher", "dispatch:request", "dispatcher"),
        _bare_client(usual),
        agents("tools", "tools"),
        agents("no tools", "lines"),
        replace(command, program=command_line),
        agents("no tools, threads", "lines", "worker", slowness=10),
    ]


def peers() -> list[Peer]:
    """The peers and the limits, in the order of the table."""
    vscode = _node(
        "vscode-jsonrpc",
        "vscode",
        "vscode-jsonrpc/lib/node/main.js",
        "serve listen one window rounds echo",
    )
    return [
        vscode,
        _bare_client(vscode),
        _node("jayson", "jayson", "jayson", f"serve listen batch {_DISPATCH}",
              framing="line", link="socket"),
        _python("python-lsp-jsonrpc", "pylsp", "pylsp_jsonrpc.endpoint",
                "serve one window rounds echo dispatch:request dispatch:notification"),
        _python("aiorpcX", "aiorpcx", "aiorpcx",
                f"serve listen batch one window rounds echo {_DISPATCH}",
                framing="line", link="socket", slowness=5),
        _python("pygls", "pygls", "pygls.server", "serve one window rounds echo", slowness=20),
        _python("MCP SDK", "mcp", "mcp.server.lowlevel", "serve one window echo tools",
                framing="line", tools=True, slowness=40),
        _node("MCP TypeScript 2", "mcp2", "@modelcontextprotocol/server", "tools",
              framing="line", tools=True, slowness=2),
        _node("MCP TypeScript 1", "mcp1", "@modelcontextprotocol/sdk/dist/cjs/server/index.js",
              "tools", framing="line", tools=True, slowness=2),
        _python("pjrpc", "pjrpc", "pjrpc.server", f"serve batch {_DISPATCH}", slowness=5),
        _python("jsonrpcserver", "jsonrpcserver", "jsonrpcserver", f"serve batch {_DISPATCH}",
                slowness=5),
        _python("gRPC", "grpc", "grpc", "one window echo", slowness=20),
        _limit("minimum", "minimum", "serve one window rounds dispatch:request"),
        replace(
            _limit("minimum, joined writes", "minimum", "serve window", "joined"),
            family="minimum",
            variant="concurrent",
        ),
        _limit("raw echo", "echo", "one"),
        _limit("codec alone", "codec", _DISPATCH),
        _limit("raw commit", "commit", "commands"),
        Peer("the body itself", (), frozenset({"echo"}), kind="limit"),
    ]  # fmt: skip


def _bare_client(peer: Peer) -> Peer:
    """A server called by the client of the minimum: what the server alone adds to a round trip."""
    bare = _limit("", "minimum", "one")
    return replace(
        peer,
        name=f"{peer.name} bare client",
        family=peer.column,
        variant="bare client",
        program=bare.program,
        roles=bare.roles,
        server=peer.program,
    )


def _python(name: str, script: str, module: str, roles: str, **more: Any) -> Peer:
    program = (PEERS_PYTHON, str(HERE / "peers" / "python" / f"{script}_peer.py"))
    load = (PEERS_PYTHON, "-c", f"import {module}")
    return Peer(name, program, frozenset(roles.split()), imports=load, **more)


def _node(name: str, script: str, module: str, roles: str, **more: Any) -> Peer:
    node = shutil.which("node") or "node"
    program = (node, str(NODE / f"{script}_peer.js"))
    load = (node, "-e", f"require({str(NODE / 'node_modules' / module)!r})")
    return Peer(name, program, frozenset(roles.split()), imports=load, **more)


def _limit(name: str, script: str, roles: str, *words: str) -> Peer:
    program = (OURS_PYTHON, str(HERE / "limits" / f"{script}.py"), *words)
    load = (OURS_PYTHON, "-c", "import msgspec")
    return Peer(name, program, frozenset(roles.split()), imports=load, kind="limit")


def set_up(peers: Sequence[Peer]) -> Iterator[str]:
    """Install what these need, where it is missing or older than its pins; tell what is done."""
    words = [word for peer in peers for word in (*peer.program, *peer.server)]
    if PEERS_PYTHON in words:
        yield from _set_up_python()
    if any(word.startswith(str(NODE)) for word in words):
        yield from _set_up_node()


def _set_up_python() -> Iterator[str]:
    wanted = REQUIREMENTS.read_text(encoding="utf-8")
    stamp = ENVIRONMENT / "installed.txt"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        yield "installing the Python peers"
        subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True)
        install = [PEERS_PYTHON, "-m", "pip", "install", "--quiet", "-r", str(REQUIREMENTS)]
        subprocess.run(install, check=True)
        stamp.write_text(wanted, encoding="utf-8")


def _set_up_node() -> Iterator[str]:
    if shutil.which("npm") is None:
        yield "npm is not installed: the Node peers are left out"
        return
    package = (NODE / "package.json").read_text(encoding="utf-8")
    stamp = NODE / "node_modules" / "installed.json"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != package:
        yield "installing the Node peers"
        quiet = ["--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"]
        subprocess.run(["npm", "install", *quiet], cwd=NODE, check=True)
        stamp.write_text(package, encoding="utf-8")
