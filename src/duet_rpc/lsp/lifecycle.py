"""The life of a session: not initialized, running, shut down. And what the client said of itself.

Before `initialize` a request is answered -32002, after `shutdown` -32600; a notification is
dropped. `exit` ends the process, with code 0 after `shutdown` and 1 without.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from msgspec import Struct

from duet_rpc.context import RemotePeer
from duet_rpc.errors import InvalidRequest, NotInitialized
from duet_rpc.lsp.positions import Encoding

_ENCODINGS: tuple[Encoding, ...] = ("utf-8", "utf-16", "utf-32")


class Editor(Struct, frozen=True):
    """What the client said of itself in `initialize`."""

    name: str = ""
    version: str = ""
    capabilities: Mapping[str, Any] = {}
    initialization_options: Any = None
    root_uri: str | None = None
    workspace_folders: Sequence[Mapping[str, Any]] = ()

    def supports(self, path: str) -> bool:
        """Tell whether a capability is there and true: `"workspace.applyEdit"`."""
        return bool(self.find(path))

    def find(self, path: str) -> Any:
        """Look up a capability by its path, with dots; None if it is not there."""
        found: Any = self.capabilities
        for name in path.split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
        return found

    @property
    def position_encoding(self) -> Encoding:
        """The first of its encodings that we know; UTF-16 is the one that everybody has."""
        offered = self.find("general.positionEncodings")
        for each in offered if isinstance(offered, list) else ():
            for known in _ENCODINGS:
                if each == known:
                    return known
        return "utf-16"

    def markup_kind(self, feature: str) -> str:
        """Say in which form it shows texts of a feature: markdown if it can."""
        name = "documentationFormat" if "completion" in feature else "contentFormat"
        offered = self.find(f"textDocument.{feature}.{name}")
        return "markdown" if isinstance(offered, list) and "markdown" in offered else "plaintext"


class Lifecycle:
    """How far a session is."""

    def __init__(self) -> None:
        self.running: bool = False
        """Between `initialize` and `shutdown`."""
        self.has_shut_down: bool = False
        self.editor: Editor = Editor()
        self.peer: RemotePeer | None = None
        """The client, once it has sent `initialize`."""

    def begin_anew(self) -> None:
        """Forget the session before: another client is to come."""
        self.running = self.has_shut_down = False
        self.editor = Editor()
        self.peer = None

    def start(self, editor: Editor, peer: RemotePeer) -> None:
        """Take the one `initialize` that there is."""
        if self.running or self.has_shut_down:
            raise InvalidRequest(data={"detail": "initialize was sent before"})
        self.editor, self.peer = editor, peer
        self.running = True

    def shut_down(self) -> None:
        """Take `shutdown`: nothing but `exit` may follow."""
        if not self.running:
            self.refuse()
        self.running, self.has_shut_down = False, True

    def refuse(self) -> NoReturn:
        """Refuse a request that came too soon or too late."""
        if self.has_shut_down:
            raise InvalidRequest(data={"detail": "after shutdown only exit may follow"})
        raise NotInitialized(data={"detail": "the first request has to be initialize"})
