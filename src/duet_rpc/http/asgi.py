"""`AsgiApp`: a server as a plain ASGI application, to be mounted in another one or run by itself.

    app = AsgiApp(Server(service))                 # uvicorn module:app
    Route("/rpc", AsgiApp(server, path="/rpc"))      # in Starlette or FastAPI

Nothing depends on the lifespan of ASGI, because frameworks do not run that of a mounted one: what
the service needs is opened with the first request. `aclose` gives it back, as the lifespan does.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from duet_rpc.errors import UsageError
from duet_rpc.http.messages import HttpAnswer, HttpRequest, say
from duet_rpc.http.options import HttpOptions
from duet_rpc.http.rules import Accepted, HttpRules
from duet_rpc.http.service import HttpService, next_connection_id
from duet_rpc.server.server import Server
from duet_rpc.service import Service

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

_DRAIN = 2.0


class _Gone(Exception):
    """The client has gone before its body was complete."""


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
        self._opening = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or live through a lifespan."""
        kind = scope["type"]
        if kind == "lifespan":
            await self._live(receive, send)
        elif kind == "http":
            await self._answer(scope, receive, send)
        elif kind == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": "no WebSocket here"})

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
        request = _read_scope(scope)
        found = self._find_rules(scope, service).judge(request, next_connection_id())
        if isinstance(found, Accepted):
            answer = await self._take(service, found, receive)
        else:
            answer = found
        if answer is not None:
            await _send(answer, send, has_body=request.method != "HEAD")

    async def _take(
        self, service: HttpService, accepted: Accepted, receive: Receive
    ) -> HttpAnswer | None:
        timeout = self._server.policy.read_timeout
        try:
            async with asyncio.timeout(timeout):
                body = await _read_body(receive, self._server.policy.max_message_bytes)
        except TimeoutError:
            return say(408, f"the body was not complete within {timeout:g} s", closes=True)
        except _Gone:
            return None
        if body is None:
            return self._oversize
        at_once = service.answer_at_once(accepted, body)
        if at_once is not None:
            from duet_rpc.http.statuses import spell_answer

            return spell_answer(at_once, accepted.headers)
        return await _answer_or_leave(service, accepted, body, receive)

    @property
    def _oversize(self) -> HttpAnswer:
        rules = next(iter(self._rules.values()))
        return rules.refuse_oversize()

    def _find_rules(self, scope: Scope, service: HttpService) -> HttpRules:
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
