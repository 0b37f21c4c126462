"""`AsgiApp`: a server as a plain ASGI application, to be mounted in another one or run by itself.

    app = AsgiApp(Server(service))                 # uvicorn module:app
    Route("/rpc", AsgiApp(server, path="/rpc"))      # in Starlette or FastAPI

Nothing depends on the lifespan of ASGI, because frameworks do not run that of a mounted one: what
the service needs is opened with the first request. `aclose` gives it back, as the lifespan does.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from duet_rpc.errors import UsageError
from duet_rpc.http.messages import HttpAnswer, HttpRequest, say
from duet_rpc.http.options import HttpOptions
from duet_rpc.http.rules import Accepted, HttpRules, Upgrade, refuse_oversize
from duet_rpc.http.service import HttpService, next_connection_id
from duet_rpc.http.statuses import spell_answer
from duet_rpc.server.server import Server
from duet_rpc.service import Service

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

_DRAIN = 2.0
_SWEEP = 0.5
"""Seconds between two looks at the deadlines."""
_MAX_KNOWN = 256


class _Gone(Exception):
    """The client has gone before its body was complete."""


class Deadlines:
    """Until when each body has to be there: one timer looks at all of them."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._tasks: dict[asyncio.Task[Any], float] = {}
        self._late: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> "asyncio.Task[Any]":
        """The task that runs now begins to read."""
        task = asyncio.current_task()
        assert task is not None, "an application is called in a task"
        loop = asyncio.get_running_loop()
        self._tasks[task] = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_later(_SWEEP, self._sweep, loop)
        return task

    def end(self, task: "asyncio.Task[Any]") -> None:
        """It has read all, or reads no more."""
        self._tasks.pop(task, None)

    def is_late(self, task: "asyncio.Task[Any]") -> bool:
        """Tell, once, whether it was cancelled because its time is over."""
        if task not in self._late:
            return False
        self._late.discard(task)
        task.uncancel()
        return True

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for task in [task for task, until in self._tasks.items() if until <= now]:
            del self._tasks[task]
            self._late.add(task)
            task.cancel()
        self._timer = loop.call_later(_SWEEP, self._sweep, loop) if self._tasks else None


class AsgiApp:
    """A server as an ASGI application; `options` are those of `HttpOptions`."""

    def __init__(self, server: "Server | Service", **options: Any) -> None:
        self._server = Server(server) if isinstance(server, Service) else server
        if not isinstance(self._server, Server):
            raise UsageError(f"an AsgiApp serves a Server or a Service, not {server!r}")
        if self._server.face is not None:
            raise UsageError("a face such as Mcp() has its own rules over HTTP; serve the service")
        try:
            self._options = HttpOptions(**options)
        except TypeError as error:
            raise UsageError(f"{error}; AsgiApp takes the fields of HttpOptions") from None
        self._service: HttpService | None = None
        self._rules: dict[str, HttpRules] = {}
        self._known: dict[Any, Accepted] = {}
        """What was accepted, by all that it was judged by: most clients repeat themselves."""
        self._reading = Deadlines(self._server.policy.read_timeout)
        self._opening = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or live through a lifespan."""
        kind = scope["type"]
        if kind == "lifespan":
            await self._live(receive, send)
        elif kind == "http":
            await self._answer(scope, receive, send)
        elif kind == "websocket":
            await self._talk(scope, receive, send)

    async def aclose(self) -> None:
        """End: refuse what has not begun, wait for what runs, end the lifespans."""
        service, self._service = self._service, None
        if service is not None:
            await service.end(_DRAIN)
            await service.lifespan.end()
            self._server.close()

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            try:
                if message["type"] == "lifespan.startup":
                    await self._open()
                    await send({"type": "lifespan.startup.complete"})
                else:
                    await self.aclose()
                    await send({"type": "lifespan.shutdown.complete"})
                    return
            except Exception as error:
                which = message["type"].removeprefix("lifespan.")
                await send({"type": f"lifespan.{which}.failed", "message": str(error)})
                return

    async def _open(self) -> HttpService:
        if self._service is None:
            async with self._opening:
                if self._service is None:
                    from duet_rpc.server.logs import Logs

                    service = HttpService(self._server, Logs())
                    await service.lifespan.start()
                    self._service = service
        return self._service

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self._service or await self._open()
        found = self._judge(scope)
        answer = await self._take(service, found, receive) if type(found) is Accepted else found
        if answer is not None:
            assert isinstance(answer, HttpAnswer), "what is accepted is answered"
            await _send(answer, send, has_body=scope["method"] != "HEAD")

    async def _talk(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a WebSocket."""
        from duet_rpc.http.asgi_websocket import refuse_websocket, serve_websocket

        service = self._service or await self._open()
        request = _read_scope({**scope, "method": "GET"})
        rules = self._find_rules(scope)
        found = rules.judge_websocket(request, next_connection_id(), time.time())
        if isinstance(found, HttpAnswer):
            await refuse_websocket(found, scope, receive, send)
        else:
            await serve_websocket(service, found, scope, receive, send)

    def _judge(self, scope: Scope) -> HttpAnswer | Accepted:
        where = scope["method"], scope["path"], scope.get("server"), scope.get("client")
        seen = (*where, *scope["headers"])
        known = self._known.get(seen)
        now = time.time()
        if known is not None and now < known.expires:
            return known
        found = self._find_rules(scope).judge(_read_scope(scope), next_connection_id(), now)
        if isinstance(found, Accepted):
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[seen] = found
        # A server that speaks WebSocket does not hand it in as a request.
        return say(405, "no WebSocket is spoken here") if isinstance(found, Upgrade) else found

    async def _take(
        self, service: HttpService, accepted: Accepted, receive: Receive
    ) -> HttpAnswer | None:
        policy, reading = self._server.policy, self._reading
        task = reading.begin()
        try:
            body = await _read_body(receive, policy.max_message_bytes)
        except asyncio.CancelledError:
            if not reading.is_late(task):
                raise
            late = f"the body was not complete within {policy.read_timeout:g} s"
            return say(408, late, closes=True)
        except _Gone:
            return None
        finally:
            reading.end(task)
        if body is None:
            return refuse_oversize(policy.max_message_bytes)
        answer = service.answer_at_once(accepted, body)
        if answer is not None:
            return spell_answer(answer, accepted.headers)
        return await _answer_or_leave(service, accepted, body, receive)

    def _find_rules(self, scope: Scope) -> HttpRules:
        """Find the rules for the address that a request has come to."""
        bound = (scope.get("server") or ("",))[0]
        rules = self._rules.get(bound)
        if rules is None:
            rules = self._rules[bound] = HttpRules(
                self._options,
                max_body=self._server.policy.max_message_bytes,
                bound_to=(f"[{bound}]" if ":" in bound else bound,),
            )
        return rules


async def _answer_or_leave(
    service: HttpService, accepted: Accepted, body: bytes, receive: Receive
) -> HttpAnswer | None:
    """Answer a body; if its client leaves, cancel what may be stopped."""
    answering = asyncio.ensure_future(service.answer(accepted, body))
    leaving = asyncio.ensure_future(_wait_for_end(receive))
    try:
        await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
        return answering.result() if answering.done() else None
    finally:
        leaving.cancel()
        answering.cancel()


async def _wait_for_end(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _read_body(receive: Receive, most: int) -> bytes | None:
    """Read a body; None if it is too large."""
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Gone
        part, more = message.get("body", b""), message.get("more_body", False)
        size += len(part)
        if size > most:
            return None
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _read_scope(scope: Scope) -> HttpRequest:
    path: str = scope["path"]
    root = scope.get("root_path", "")
    if root and path.startswith(root):
        path = path[len(root) :] or "/"
    client = scope.get("client")
    address = None if not client else f"{client[0]}:{client[1]}"
    return HttpRequest(
        scope["method"], path, tuple(scope["headers"]), scope.get("http_version", "1.1"), address
    )


async def _send(answer: HttpAnswer, send: Send, *, has_body: bool) -> None:
    headers = list(answer.headers)
    if answer.status != 204:
        headers.append((b"content-length", b"%d" % len(answer.body)))
    if answer.closes:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body if has_body else b""})
