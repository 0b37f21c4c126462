"""The caller of a task's command: no client, but the server itself.

What it sends names a command, its key and its arguments, and is answered as JSON-RPC answers. It
takes the way of every other request: queue, slots, hooks, deadline, ledger.
"""

from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
from msgspec import Raw, Struct

from duet_rpc.context import Context, Origin, Peer, Reply
from duet_rpc.engine.dispatch import Dispatcher, Job
from duet_rpc.errors import RpcError, UsageError
from duet_rpc.mcp.task_records import Task
from duet_rpc.wire.agents import Root, Sample
from duet_rpc.wire.messages import NULL, Notification, Request, encode_error
from duet_rpc.wire.params import KEY
from duet_rpc.wire.surrogates import decode_value, encode_value

if TYPE_CHECKING:
    from logging import LoggerAdapter


class TaskParams(Struct):
    """The params of what a `TaskSession` takes."""

    key: str
    arguments: Raw


_decoder = msgspec.json.Decoder(TaskParams)


def write_request(task: Task) -> bytes:
    """Write the request that runs the command of a task."""
    params = TaskParams(task.key, Raw(task.arguments or NULL))
    return encode_value(
        {"jsonrpc": "2.0", "id": task.id, "method": task.method.name, "params": params}
    )


class TaskSession:
    """Takes what `write_request` has written."""

    max_batch: int = 0

    def __init__(self, dispatcher: Dispatcher, peer: Peer, origin: Origin) -> None:
        self._dispatcher = dispatcher
        self._peer = peer
        self._origin = origin

    def prepare(
        self, message: Request | Notification, read_at: float | None, *, in_batch: bool
    ) -> Job:
        """See `FaceSession.prepare`."""
        assert isinstance(message, Request) and message.params is not None, "we have written it"
        params = decode_value(_decoder, message.params)
        method = self._dispatcher.service.get(message.method)
        assert method is not None, "its tool is offered"
        arguments = bytes(params.arguments)
        job = self._dispatcher.prepare_call(
            method,
            message.id,
            None if arguments == NULL else arguments,
            self._peer,
            self._origin,
            meta=Raw(encode_value({KEY: params.key})),
        )
        if job.context is not None:
            job.context._asked = _NoClient()
        return job

    def needs_no_slot(self, message: Request) -> bool:
        """See `FaceSession.needs_no_slot`."""
        return False

    def is_command(self, message: Request | Notification) -> bool:
        """See `FaceSession.is_command`."""
        return True

    def refuse(self, id: bytes, message: Request | Notification, error: RpcError) -> bytes:
        """See `FaceSession.refuse`."""
        return encode_error(id, error)

    def encode_fault(self, id: bytes, error: RpcError) -> bytes:
        """See `FaceSession.encode_fault`."""
        return encode_error(id, error)

    def cancelled(self, id: bytes) -> None:
        """See `FaceSession.cancelled`; no one sends that here."""

    def close(self) -> None:
        """See `FaceSession.close`."""


class _NoClient:
    """What a handler may ask inside a task: nothing."""

    def wrap_logger(self, logger: "LoggerAdapter[Any]") -> "LoggerAdapter[Any]":
        """Leave the logger as it is: there is no one to be sent its lines."""
        return logger

    def elicit(self, ctx: Context, kind: Any, message: str, **options: Any) -> Reply[Any]:
        """Refuse to ask."""
        self._refuse(ctx)

    def sample(self, ctx: Context, messages: Any, **options: Any) -> Reply[Sample]:
        """Refuse to ask."""
        self._refuse(ctx)

    def roots(self, ctx: Context, **options: Any) -> Reply[list[Root]]:
        """Refuse to ask."""
        self._refuse(ctx)

    def _refuse(self, ctx: Context) -> NoReturn:
        raise UsageError(
            f"{ctx.method} runs as a task, whose client cannot be asked; forbid that by"
            ' tool=ToolOptions(task="forbidden")'
        )
