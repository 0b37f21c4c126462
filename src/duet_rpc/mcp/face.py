"""`Mcp`: a service as a set of tools, resources and prompts for agents.

    Server(service, face=Mcp()).run(Stdio(framing="ndjson"))

The value says what clients read of the server; bound to a dispatcher it holds what it serves.
"""

import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod, WeakSet

from msgspec import Struct

from duet_rpc.context import Origin, Peer
from duet_rpc.engine.dispatch import Dispatcher
from duet_rpc.engine.face import FaceSession
from duet_rpc.engine.intake import Intake
from duet_rpc.ledger.commands import Commands
from duet_rpc.mcp.completion import Reference
from duet_rpc.mcp.content import Icon
from duet_rpc.mcp.outcome import add_outcome_tool
from duet_rpc.mcp.prompts import Prompts
from duet_rpc.mcp.protocol import make_protocol
from duet_rpc.mcp.request_state import Seal
from duet_rpc.mcp.resources import Resources
from duet_rpc.mcp.revision import Revision
from duet_rpc.mcp.revisions import REVISIONS
from duet_rpc.mcp.session import McpSession
from duet_rpc.mcp.task_forms import describe_capability
from duet_rpc.mcp.tools import ListedTools, Tool, make_tools
from duet_rpc.options import check, is_integer, is_text
from duet_rpc.server.endpoints import FramingName
from duet_rpc.service import Method, Service
from duet_rpc.version import __version__
from duet_rpc.wire.dialect import MCP, Dialect
from duet_rpc.wire.messages import Request

if TYPE_CHECKING:
    from duet_rpc.mcp.tasks import Tasks

PAGE_SIZE = 500
_MAX_METAS, _MAX_META = 64, 4096
"""How many metadata of requests are remembered, and of how many bytes."""


class Mcp(Struct, frozen=True, kw_only=True):
    """What agents read of a service, beside what the service says itself."""

    instructions: str = ""
    """How the tools are meant to be used, for the model."""
    title: str = ""
    """A name for people."""
    website: str = ""
    icons: Sequence[Icon] = ()
    page_size: int = PAGE_SIZE
    """How many things a page of a list has."""
    secret: str = ""
    """What the states of unfinished requests are signed with. Several processes that serve the same
    clients need the same; empty is a random one."""
    cache_ms: int = 0
    """For how many milliseconds a client may keep a list, where the revision has such hints."""

    def __post_init__(self) -> None:
        for name in ("instructions", "title", "website", "secret"):
            value = getattr(self, name)
            check(name, value, is_text(value), "a text")
        sound = is_integer(self.page_size) and self.page_size >= 1
        check("page_size", self.page_size, sound, "a whole number, 1 or more")
        sound = is_integer(self.cache_ms) and self.cache_ms >= 0
        check("cache_ms", self.cache_ms, sound, "a whole number of milliseconds, 0 or more")

    @property
    def dialect(self) -> Dialect:
        """See `MakeFace.dialect`."""
        return MCP

    @property
    def framing(self) -> FramingName:
        """See `MakeFace.framing`."""
        return "ndjson"

    def extend(self, service: Service) -> Service:
        """See `MakeFace.extend`."""
        return service.with_methods(service.offered)

    def bind(self, dispatcher: Dispatcher) -> "BoundMcp":
        """See `MakeFace.bind`."""
        return BoundMcp(self, dispatcher)


class BoundMcp:
    """What is served to agents: the tools, resources and prompts of one dispatcher.

    It has more than fifteen fields because everything that can be prepared is prepared here.
    """

    def __init__(self, face: Mcp, dispatcher: Dispatcher) -> None:
        self.face: Mcp = face
        self.dispatcher: Dispatcher = dispatcher
        service = dispatcher.service
        offered = {method.name for method in service.offered}
        bound: dict[str, Method] = {m.name: m for m in service if m.name in offered}
        methods = [method for method in service if method.name not in offered]
        self.name: str = service.name or "duet-rpc"
        self._version: str = service.version or __version__
        self._description: str = service.description
        tools = make_tools(service, methods, key_required=dispatcher.policy.key_required)
        self.tools: dict[str, Tool] = add_outcome_tool(tools, dispatcher.ledger)
        self.listed_tools: ListedTools = ListedTools(self.tools)
        self.resources: Resources = Resources(service.resources, bound)
        self.prompts: Prompts = Prompts(service.prompts, bound)
        self.completions: dict[tuple[str, str], Method] = {
            target: bound[method.name] for target, method in service.completions.items()
        }
        self.seal: Seal = Seal(face.secret.encode() or os.urandom(32))
        self.revisions: list[Revision] = list(REVISIONS.values())
        self.agreed: dict[str, Revision] = {}
        """What the handshake of each connection agreed on."""
        self.known_metas: dict[bytes, Revision] = {}
        """Metadata of requests that were found sound, byte for byte: most clients repeat it."""
        self._sessions: WeakSet[McpSession] = WeakSet()
        self._sessions_lock = threading.RLock()
        """Clients come and go on one thread while another tells them of a change."""
        self.protocol: Service = make_protocol(self)
        self.has_task_tools: bool = isinstance(dispatcher.ledger, Commands) and any(
            tool.has_task for tool in self.tools.values()
        )
        """Whether there is something that can be a task, where there is an event loop."""
        self._tasks: Tasks | None = None
        self._task_methods: Service | None = None
        self.versions: list[str] = list(REVISIONS)
        watch = WeakMethod(self.tell_updated)
        service.watchers.append(lambda uri: (tell := watch()) and tell(uri))

    def find_target(self, reference: Reference) -> Method | None:
        """Find the prompt or the resource whose argument is completed."""
        if reference.type == "ref/prompt":
            found = self.prompts.find(reference.target)
            return None if found is None else found[1]
        return self.resources.find_template(reference.target)

    def note_meta(self, meta: bytes, revision: Revision) -> None:
        """Remember that the metadata of a request is sound; few differ."""
        if len(self.known_metas) >= _MAX_METAS:
            self.known_metas.clear()
        if len(meta) <= _MAX_META:
            self.known_metas[meta] = revision

    def tell_updated(self, uri: str) -> None:
        """Tell every client that wants to know that a resource has changed; any thread."""
        with self._sessions_lock:
            sessions = list(self._sessions)
        for session in sessions:
            session.tell_updated(uri)

    def compile_intake(self) -> Intake | None:
        """See `Face.compile_intake`."""
        from duet_rpc.mcp.intake import compile_tools

        return compile_tools(self)

    @property
    def tasks(self) -> "Tasks":
        """The tasks; made for the first one."""
        if self._tasks is None:
            from duet_rpc.mcp.tasks import Tasks

            commands = self.dispatcher.ledger
            assert isinstance(commands, Commands), "else there are none"
            with self._sessions_lock:
                self._tasks = self._tasks or Tasks(self.dispatcher, commands)
        return self._tasks

    @property
    def task_methods(self) -> Service:
        """The methods of the protocol that are about tasks."""
        if self._task_methods is None:
            from duet_rpc.mcp.task_methods import make_task_methods

            self._task_methods = make_task_methods(self, self.tasks)
        return self._task_methods

    async def end(self, until: float) -> bool:
        """See `Face.end`."""
        return self._tasks is None or await self._tasks.end(until)

    def open(self, peer: Peer, origin: Origin, retake: Callable[[Request], None]) -> FaceSession:
        """See `Face.open`."""
        if self._tasks is not None and self._tasks.is_own(peer):
            from duet_rpc.mcp.task_session import TaskSession

            return TaskSession(self.dispatcher, peer, origin)
        session = McpSession(self, peer, origin, retake)
        with self._sessions_lock:
            self._sessions.add(session)
        return session

    def forget(self, session: McpSession) -> None:
        """A client is gone."""
        with self._sessions_lock:
            self._sessions.discard(session)

    def capabilities(self, revision: Revision, *, offers_tasks: bool) -> dict[str, Any]:
        """Say what is served, in a revision."""
        said: dict[str, Any] = {"tools": {}}
        if self.resources:
            said["resources"] = {"subscribe": True}
        if self.prompts:
            said["prompts"] = {}
        if self.completions and revision.has_completions:
            said["completions"] = {}
        if revision.tasks is not None and offers_tasks:
            said |= describe_capability(revision.tasks)
        return said | {"logging": {}}

    def server_info(self, revision: Revision) -> dict[str, Any]:
        """Say who serves, in a revision."""
        face = self.face
        said: dict[str, Any] = {"name": self.name, "version": self._version}
        if revision.has_structure and face.title:
            said["title"] = face.title
        if revision.has_icons:
            more = {
                "description": self._description,
                "websiteUrl": face.website,
                "icons": list(face.icons),
            }
            said |= {name: value for name, value in more.items() if value}
        return said
