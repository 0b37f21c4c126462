"""One client: what was agreed on with it, and in which revision its messages speak.

The revision is chosen for each request: by its own metadata where it has any, else by what the
handshake agreed on. So a client may probe in one way and go on in another.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, Raw, UnsetType

from duet_rpc.context import Origin, Peer
from duet_rpc.engine.dispatch import Dispatcher, Job
from duet_rpc.engine.failures import error_member
from duet_rpc.errors import InvalidParams, InvalidRequest, MethodNotFound, RpcError
from duet_rpc.mcp.asked import Asked
from duet_rpc.mcp.call_params import find_key
from duet_rpc.mcp.dialogue import Dialogue
from duet_rpc.mcp.errors import ProtocolError, malformed, unsupported_version
from duet_rpc.mcp.listening import Listens
from duet_rpc.mcp.request_meta import (
    CAPABILITIES,
    VERSION,
    RequestMeta,
    find_meta,
    read_request_meta,
    read_value,
)
from duet_rpc.mcp.results import (
    spell_error,
    spell_open,
    spell_refusal,
    spell_result,
)
from duet_rpc.mcp.revision import Revision
from duet_rpc.mcp.revisions import EVERY_METHOD, NEWEST_HANDSHAKE, REVISIONS
from duet_rpc.mcp.rounds import Rounds
from duet_rpc.mcp.targets import TARGETS, read_call, say_refusal, shorten
from duet_rpc.service import Kind, Method
from duet_rpc.wire.dialect import MCP
from duet_rpc.wire.messages import NULL, Notification, Request
from duet_rpc.wire.params import read_short

if TYPE_CHECKING:
    from duet_rpc.mcp.face import BoundMcp

MAX_BATCH = 50
_BEFORE_HANDSHAKE = frozenset({"initialize", "ping"})
_ANSWERED_AT_ONCE = frozenset(
    ("ping", "server/discover", "tools/list", "prompts/list", "resources/list")
    + ("resources/templates/list", "logging/setLevel")
)
"""What no handler is called for. `initialize` is not among them: it changes how what comes after it
is read."""
_NOTIFICATIONS = "notifications/"
_ID_STARTS = frozenset(b'"-0123456789')


class McpSession:
    """What was agreed on with one client."""

    def __init__(
        self,
        bound: "BoundMcp",
        peer: Peer,
        origin: Origin,
        retake: Callable[[Request], None],
    ) -> None:
        self.bound: BoundMcp = bound
        self.peer: Peer = peer
        self.origin: Origin = origin
        self.revision: Revision | None = None
        """What the handshake agreed on; None before it."""
        self.capabilities: dict[str, Any] = {}
        """What the client said there that it can do."""
        self.level: str = "info"
        """From which severity on it wants log lines, where the handshake agreed on a revision."""
        self.listens: Listens = Listens(self)
        self.subscribed: set[str] = set()
        """The resources whose changes it wants to hear of."""
        self.dialogue: Dialogue = Dialogue(self, retake)
        self.offers_tasks: bool = bound.has_task_tools and peer.has_loop

    def agree(self, revision: Revision) -> None:
        """Note what the handshake has agreed on."""
        self.revision = revision
        self.bound.agreed[self.origin.connection_id] = revision

    @property
    def max_batch(self) -> int:
        """See `FaceSession.max_batch`."""
        takes = self.revision is not None and self.revision.takes_batches
        return MAX_BATCH if takes else 0

    @property
    def dispatcher(self) -> Dispatcher:
        """What runs the methods."""
        return self.bound.dispatcher

    # What a message asks for.

    def needs_no_slot(self, message: Request) -> bool:
        """See `FaceSession.needs_no_slot`. A host takes a server that answers no ping for dead."""
        return message.method in _ANSWERED_AT_ONCE

    def prepare(
        self, message: Request | Notification, read_at: float | None, *, in_batch: bool
    ) -> Job:
        """See `FaceSession.prepare`."""
        if isinstance(message, Request) and not _is_id(message.id):
            raise InvalidRequest.because(
                "invalid-id-type", detail="an id is a text or a whole number"
            )
        if isinstance(message, Request) and self.dialogue.is_open(message.id):
            raise InvalidRequest.because(
                "duplicate-id",
                detail="a request with this id waits for what you were asked: use another",
            )
        if isinstance(message, Request) and message.id in self.listens:
            raise InvalidRequest.because(
                "duplicate-id", detail="you listen under this id already: use another"
            )
        if message.method not in EVERY_METHOD:
            raise MethodNotFound(data={"detail": "MCP has no such method"})
        if isinstance(message, Notification) and not message.method.startswith(_NOTIFICATIONS):
            raise MethodNotFound(data={"detail": f"{message.method} needs an id"})
        asked = self.ask(message)
        if message.method not in asked.revision.methods:
            detail = f"revision {asked.revision.name} has no {message.method}"
            raise MethodNotFound(data={"detail": detail})
        if in_batch and message.method == "initialize":
            raise InvalidRequest("initialize cannot be part of a batch")
        target = TARGETS.get(message.method)
        if target is not None and isinstance(message, Request):
            return target(self, message, asked, read_at)
        return self.prepare_own(message, asked)

    def is_command(self, message: Request | Notification) -> bool:
        """See `FaceSession.is_command`."""
        if message.method != "tools/call":
            return False
        try:
            name = read_call(message.params).name
        except ProtocolError:
            return False  # to be refused
        tool = self.bound.tools.get(name)
        return tool is not None and tool.method.kind is Kind.COMMAND

    def ask(self, message: Request | Notification) -> Asked:
        """Find out in which revision a message speaks; raise `ProtocolError`."""
        id = message.id if isinstance(message, Request) else None
        raw = find_meta(message.params)
        sent = read_request_meta(raw)
        if sent.version is not UNSET:
            version = read_value(sent.version, str, VERSION)
            revision = REVISIONS.get(version)
            if revision is None or not revision.is_modern:
                raise unsupported_version(version, self.bound.versions)
            capabilities = read_value(sent.capabilities, dict[str, Any], CAPABILITIES)
            level = _read_level(sent)
            if raw is not UNSET:
                self.bound.note_meta(bytes(raw), revision)
            return Asked(self, revision, capabilities, level, raw, sent, id, Rounds({}))
        revision = self.revision
        if revision is None:
            if isinstance(message, Request) and message.method not in _BEFORE_HANDSHAKE:
                raise malformed(
                    "Begin with initialize, or send _meta with"
                    f" {VERSION} and {CAPABILITIES} in each request"
                )
            revision = NEWEST_HANDSHAKE
        rounds = self.dialogue.take_answers(message)
        return Asked(self, revision, self.capabilities, self.level, raw, sent, id, rounds)

    def prepare_own(self, message: Request | Notification, asked: Asked) -> Job:
        """Prepare one of the protocol's own methods."""
        id = message.id if isinstance(message, Request) else None
        method = self.bound.protocol.get(message.method)
        if method is None and self.offers_tasks:
            method = self.bound.task_methods.get(message.method)
        if method is None:
            raise MethodNotFound(data={"detail": f"{message.method} is not offered here"})
        try:
            job = self.prepare_method(method, id, message.params, asked)
        except InvalidParams as error:
            raise malformed(say_refusal(error), **(error.data or {})) from None
        spell = spell_open if message.method == "subscriptions/listen" else spell_result
        job.shape = partial(spell, asked.revision)
        return job

    def prepare_method(
        self,
        method: Method,
        id: bytes | None,
        params: bytes | None,
        asked: Asked,
        *,
        meta: Raw | UnsetType = UNSET,
        read_at: float | None = None,
    ) -> Job:
        """Prepare the call of a method; its context knows what was asked for."""
        job = self.dispatcher.prepare_call(
            method,
            id,
            params,
            self.peer,
            self.origin,
            meta=asked.meta if meta is UNSET else meta,
            read_at=read_at,
        )
        if job.context is not None:
            job.context._asked = asked
        return job

    # Refusals.

    def refuse(self, id: bytes, message: Request | Notification, error: RpcError) -> bytes:
        """See `FaceSession.refuse`. Of a tool, it is a result that a model can read."""
        self.dialogue.take_answers(message)  # which are for no other request
        if not _is_id(id):
            return self.encode_fault(NULL, error)
        return b'{"jsonrpc":"2.0","id":%b,%b}' % (id, self._spell_refusal(message, error))

    def _spell_refusal(self, message: Request | Notification, error: RpcError) -> bytes:
        member = error_member(error)
        if message.method != "tools/call" or isinstance(
            error, (ProtocolError, InvalidRequest, MethodNotFound)
        ):
            return spell_error(member)
        try:
            revision = self.ask(message).revision
            params = read_call(message.params)
        except ProtocolError:
            return spell_error(member)
        key = find_key(params)
        return spell_refusal(params.name, revision, key, error)

    def encode_fault(self, id: bytes, error: RpcError) -> bytes:
        """See `FaceSession.encode_fault`."""
        member = spell_error(error_member(error))
        revision = NEWEST_HANDSHAKE if self.revision is None else self.revision
        if not _is_id(id):
            id = NULL
        if id == NULL and not revision.names_missing_id:
            return b'{"jsonrpc":"2.0",%b}' % member
        return b'{"jsonrpc":"2.0","id":%b,%b}' % (id, member)

    # Notifications.

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification, at any time."""
        if self.peer.gone is None:
            self.peer.notify_outside(method, params)

    def tell_updated(self, uri: str) -> None:
        """Tell of a resource that has changed, if the client wants to know."""
        if uri in self.subscribed:
            self.notify("notifications/resources/updated", {"uri": uri})
        self.listens.tell_updated(uri)

    def cancelled(self, id: bytes) -> None:
        """See `FaceSession.cancelled`."""
        self.listens.end(id)
        self.dialogue.drop(id)

    def close(self) -> None:
        """See `FaceSession.close`."""
        self.bound.agreed.pop(self.origin.connection_id, None)
        self.bound.forget(self)


def _read_level(sent: RequestMeta) -> str | None:
    """Read from which severity on a request wants log lines; None if it wants none."""
    level = read_short(sent.level)
    if level is UNSET or level is None:
        return None
    if not isinstance(level, str) or level not in MCP.levels:
        raise malformed(f"there is no level {shorten(str(level))}")
    return level


def _is_id(id: bytes) -> bool:
    """Tell whether an id is one of MCP's: a text or a whole number."""
    return id[0] in _ID_STARTS and (id[0] == 0x22 or not any(mark in id for mark in b".eE"))
