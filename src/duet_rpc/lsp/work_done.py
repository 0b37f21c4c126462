"""Work outside of requests whose progress the client shows: `with server.work_done("Index")`.

The client is asked for a token (`window/workDoneProgress/create`), and sent the begin, the reports
and the end of the work. A client that shows none, refuses, or is gone is sent nothing: progress is
no reason for work to fail.
"""

import itertools
from collections.abc import Callable
from typing import Any

from msgspec import Raw

from duet_rpc.context import RemotePeer, Reply
from duet_rpc.errors import RpcError, TransportError
from duet_rpc.service import Service
from duet_rpc.wire.dialect import LSP
from duet_rpc.wire.lsp_progress import WorkDoneReports, describe_progress

CANCEL = "window/workDoneProgress/cancel"
"""The notification by which a client cancels such work."""


class WorkDone:
    """Work that the client shows: a block of `with` on a thread, of `async with` on a loop."""

    def __init__(
        self,
        peer: RemotePeer | None,
        token: str,
        title: str,
        *,
        message: str | None,
        cancellable: bool,
        on_end: Callable[[], object],
    ) -> None:
        """Without a peer nothing is sent."""
        self.cancelled: bool = False
        """True once the user has cancelled it. What that means is up to the work."""
        self._peer = peer
        self._token = token
        self._reports = WorkDoneReports(token, title)
        self._begin = {"cancellable": cancellable} | (
            {} if message is None else {"message": message}
        )
        self._on_end = on_end

    def __enter__(self) -> "WorkDone":
        reply = self._create()
        try:
            if reply is not None:
                reply.result()
        except (RpcError, TransportError):
            self._peer = None  # what it has not created may not be reported
        except BaseException:
            self._on_end()
            raise
        self._send(self._reports.begin(**self._begin))
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()

    async def __aenter__(self) -> "WorkDone":
        reply = self._create()
        try:
            if reply is not None:
                await reply
        except (RpcError, TransportError):
            self._peer = None
        except BaseException:  # cancelled
            self._on_end()
            raise
        self._send(self._reports.begin(**self._begin))
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.end()

    def report(self, done: Any = None, total: Any = None, message: str | None = None) -> None:
        """Say how far the work is: as a share of a total, in words, or both."""
        self._send(self._reports.report(describe_progress(done, total, message)))

    def end(self, message: str | None = None) -> None:
        """Say that the work is over; the end of the block does it. Idempotent."""
        self._on_end()
        self._send(self._reports.end(message))

    def _create(self) -> Reply[Any] | None:
        if self._peer is None:
            return None
        try:
            return self._peer.call("window/workDoneProgress/create", {"token": self._token})
        except TransportError:
            self._peer = None
            return None

    def _send(self, params: bytes | None) -> None:
        if params is None or self._peer is None:
            return
        try:
            self._peer.notify(LSP.progress, Raw(params))
        except TransportError:
            self._peer = None


class OpenWork:
    """The work of one session that has not ended, by its tokens."""

    def __init__(self) -> None:
        self._open: dict[str, WorkDone] = {}
        self._numbers = itertools.count(1)

    def add(
        self, peer: RemotePeer | None, title: str, *, message: str | None, cancellable: bool
    ) -> WorkDone:
        """Make a piece of work that is about to begin."""
        token = f"duet-rpc-{next(self._numbers)}"
        work = self._open[token] = WorkDone(
            peer,
            token,
            title,
            message=message,
            cancellable=cancellable,
            on_end=lambda: self._open.pop(token, None),
        )
        return work

    def add_to(self, service: Service) -> None:
        """Serve the notification by which the user cancels a piece of work."""

        @service.notification(name=CANCEL, inline=True, ignore_unknown=True)
        def cancel(token: Any) -> None:
            work = self._open.get(token) if isinstance(token, str) else None
            if work is not None:
                work.cancelled = True
