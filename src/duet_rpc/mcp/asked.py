"""What is known of one request of an agent beside its params, and what its handler may ask."""

from typing import TYPE_CHECKING, Any

from msgspec import Raw, Struct, UnsetType

from duet_rpc.context import Context, Reply
from duet_rpc.mcp import questions
from duet_rpc.mcp.request_meta import RequestMeta
from duet_rpc.mcp.revision import Revision
from duet_rpc.mcp.rounds import Rounds
from duet_rpc.wire.agents import Root, Sample

if TYPE_CHECKING:
    from logging import LoggerAdapter

    from duet_rpc.mcp.session import McpSession


class Asked(Struct, frozen=True):
    """What is known of a request beside its params."""

    session: "McpSession"
    revision: Revision
    capabilities: dict[str, Any]
    """What the client can do."""
    level: str | None
    """From which severity on the client wants log lines; None for none."""
    meta: Raw | UnsetType
    sent: RequestMeta
    id: bytes | None
    """The id of the request; None for a notification."""
    rounds: Rounds
    """What the handler has asked the client."""

    def wrap_logger(self, logger: "LoggerAdapter[Any]") -> "LoggerAdapter[Any]":
        """See `FaceRequest.wrap_logger`."""
        if self.level is None:
            return logger
        from duet_rpc.mcp.log_messages import ToldLogger  # here: it loads logging

        return ToldLogger(logger, self.session, self.level, self.session.bound.name)

    def elicit(self, ctx: Context, kind: Any, message: str, **options: Any) -> Reply[Any]:
        """See `FaceRequest.elicit`."""
        return self.rounds.ask(self, ctx, questions.ask_form(kind, message), **options)

    def sample(self, ctx: Context, messages: Any, **options: Any) -> Reply[Sample]:
        """See `FaceRequest.sample`."""
        key, timeout = options.pop("key"), options.pop("timeout")
        question = questions.ask_model(messages, **options)
        return self.rounds.ask(self, ctx, question, key=key, timeout=timeout)

    def roots(self, ctx: Context, **options: Any) -> Reply[list[Root]]:
        """See `FaceRequest.roots`."""
        return self.rounds.ask(self, ctx, questions.ask_roots(), **options)
