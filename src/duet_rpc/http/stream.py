"""One connection of an HTTP client as bytes in and out (sans-I/O): requests one after the other.

Pipelined requests are answered in order, because the next is begun when the one before is answered.
A client that repeats itself sends the same head each time; heads that were read and accepted are
known by their bytes, so most requests cost one look-up and no parsing.

A deadline is not moved by what drips in: it counts from the first byte of a request to its last.
"""

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

from msgspec import Struct

from duet_rpc.http.head import BadRequest, ChunkedBody, read_head
from duet_rpc.http.messages import HttpAnswer, say, spell_head
from duet_rpc.http.rules import Accepted, HttpRules, Upgrade, refuse_oversize
from duet_rpc.http.statuses import is_error, spell_answer

if TYPE_CHECKING:
    from duet_rpc.http.service import HttpService

_MAX_KNOWN = 16
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_HEAD_END = b"\r\n\r\n"
MAX_PIPELINED = 64 * 1024
"""Bytes that are read ahead while a request is answered."""


class HttpSettings(Struct, frozen=True):
    """What holds for each connection of a listener."""

    rules: HttpRules
    service: "HttpService"
    max_head: int
    read_timeout: float
    idle_timeout: float
    read_date: Callable[[], bytes]
    """Gives the line of the header Date."""
    read_time: Callable[[], float]
    """Gives the seconds since 1970."""


class _Head(Struct):
    """A head whose body is to come."""

    accepted: Accepted
    keeps_alive: bool
    is_old: bool


class HttpStream:
    """The requests of one connection.

    It has more than fifteen fields because what is not complete yet may be a head, a body, or a
    body in chunks, and each has its own.
    """

    def __init__(
        self,
        options: HttpSettings,
        *,
        connection_id: str,
        address: str | None,
        write: Callable[[bytes], object],
        now: float,
        on_answered: Callable[[], object],
    ) -> None:
        """`on_answered` is called when a request was answered that took its time."""
        self._on_answered = on_answered
        self._options = options
        self._connection_id = connection_id
        self._address = address
        self._write = write
        self._known: dict[bytes, _Head] = {}
        self._head: _Head | None = None
        self._chunks: ChunkedBody | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._needed = 0
        """Bytes that have to be there before it is worth looking at them again."""
        self._cancel: Callable[[], object] | None = None
        self._busy = False
        self._began_at = inf
        """When the first byte came of a request that is not complete; infinite if there is none."""
        self._idle_since = now
        self._was_used = False
        self.upgrade: tuple[bytes, Upgrade, bytes] | None = None
        """The head that asks for a WebSocket, who asks, and what came behind it."""
        self.closing: bool = False
        """Nothing more is read, and the connection ends when everything is sent."""
        self.requests = 0

    @property
    def is_busy(self) -> bool:
        """Whether a request is being answered."""
        return self._busy

    @property
    def wants_data(self) -> bool:
        """Whether to read on."""
        return not self.closing and (not self._busy or self._size < MAX_PIPELINED)

    def receive(self, data: bytes, now: float) -> None:
        """Take bytes of the client."""
        if self._parts:
            self._parts.append(data)
            self._size += len(data)
            if self._busy or self._size < self._needed:
                return
            data, self._parts, self._size = b"".join(self._parts), [], 0
        elif self._busy:
            self._keep(data, 0)
            return
        if self._began_at == inf:
            self._began_at = now
        self._work(data, now)
        self._idle_since = now

    def check(self, now: float) -> bool:
        """Look at the time; False if the connection is to be closed now."""
        options = self._options
        if self._busy or self.closing:
            return True
        if self._began_at != inf:
            if now - self._began_at < options.read_timeout:
                return True
            if self._head is not None:
                seconds = f"{options.read_timeout:g} s"
                self._refuse(say(408, f"the body was not complete within {seconds}", closes=True))
                return True
            return False
        limit = options.idle_timeout
        if not self._was_used:
            limit = min(limit, options.read_timeout)
        return now - self._idle_since < limit

    def drain(self) -> None:
        """Take no more requests; the one that is being answered is."""
        if not self._busy and self._began_at == inf:
            self.closing = True

    def lose(self) -> None:
        """The client has gone: stop what may be stopped."""
        self.closing = True
        cancel, self._cancel = self._cancel, None
        if cancel is not None:
            cancel()

    # Requests.

    def _work(self, data: bytes, now: float) -> None:
        """Go through what is there, as far as it is complete."""
        position, end = 0, len(data)
        while position < end and not self._busy and not self.closing:
            try:
                position, needed = self._step(data, position)
            except BadRequest as error:
                self._refuse(say(400, str(error), closes=True))
                return
            if needed:
                self._keep(data, position, needed)
                return
            if position < end and self._head is None:
                self._began_at = now
        if self.upgrade is not None:
            head, upgrade, _ = self.upgrade
            self.upgrade = head, upgrade, data[position:]
        elif position < end and not self.closing:
            self._keep(data, position)

    def _keep(self, data: bytes, position: int, needed: int = 1) -> None:
        rest = data[position:]
        self._parts = [rest]
        self._size = len(rest)
        self._needed = needed

    def _step(self, data: bytes, position: int) -> tuple[int, int]:
        """Read a head or a body; return up to where, and how many bytes it takes to go on."""
        head = self._head
        if head is None:
            end = data.find(_HEAD_END, position)
            size = (len(data) if end < 0 else end + 4) - position
            if size > self._options.max_head:
                self._refuse(say(431, "the headers are too large", closes=True))
                return position, 0
            if end < 0:
                # An empty line in front of a request is an old habit of some clients.
                if data.startswith(b"\r\n", position):
                    return position + 2, 0
                return position, size + 1
            raw = data[position : end + 4]
            position = end + 4
            head = self._known.get(raw) or self._take_head(raw)
            if head is None:
                return position, 0
        if head.accepted.length is None:
            return self._step_chunks(head, data, position)
        length = head.accepted.length
        if len(data) - position < length:
            if self._head is None:
                self._head = head
                if head.accepted.expects_continue:
                    self._write(_CONTINUE)
            return position, length
        self._head = None
        self._begin(head, data[position : position + length])
        return position + length, 0

    def _step_chunks(self, head: _Head, data: bytes, position: int) -> tuple[int, int]:
        if self._chunks is None:
            self._chunks = ChunkedBody(self._options.rules.max_body)
            self._head = head
            if head.accepted.expects_continue and position == len(data):
                self._write(_CONTINUE)
        position, is_complete = self._chunks.feed(data, position)
        if not is_complete:
            return position, len(data) - position + 1
        chunks, self._chunks, self._head = self._chunks, None, None
        if chunks.is_oversize:
            self._refuse(refuse_oversize(self._options.rules.max_body))
        else:
            self._begin(head, chunks.body)
        return position, 0

    def _take_head(self, raw: bytes) -> _Head | None:
        """Read a head and judge it; None if it was refused, or answered at once."""
        read = read_head(raw.removeprefix(b"\r\n"), self._address)
        request, keeps_alive = read.request, read.keeps_alive
        options = self._options
        found = options.rules.judge(request, self._connection_id, options.read_time())
        is_head, is_old = request.method == "HEAD", request.version == "1.0"
        if isinstance(found, Upgrade):
            self.upgrade = raw, found, b""
            self.closing = True
            return None
        if isinstance(found, HttpAnswer):
            # A body that may follow is not read.
            if request.get(b"transfer-encoding") or request.get(b"content-length") not in (
                None,
                b"0",
            ):
                keeps_alive = False
            self._reply(found, keeps_alive, has_body=not is_head, is_old=is_old)
            return None
        head = _Head(found, keeps_alive, is_old)
        if keeps_alive and found.length is not None and not is_old and not found.expects_continue:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[raw] = head
        return head

    def _begin(self, head: _Head, body: bytes) -> None:
        self._began_at = inf
        self._was_used = True
        self.requests += 1
        accepted, service = head.accepted, self._options.service
        if accepted.expires == inf or self._options.read_time() < accepted.expires:
            answer = service.answer_at_once(accepted, body)
            if answer is not None:
                if head.keeps_alive and not (accepted.headers or head.is_old or is_error(answer)):
                    date = self._options.read_date()
                    self._write(_OK % (date, len(answer), answer))
                else:
                    found = spell_answer(answer, accepted.headers)
                    self._reply(found, head.keeps_alive, is_old=head.is_old)
                return
        self._busy = True
        answered = is_later = False

        def deliver(answer: HttpAnswer) -> None:
            nonlocal answered
            answered = True
            self._answer(head, answer, is_later=is_later)

        cancel = service.take(accepted, body, deliver)
        if not answered:
            self._cancel = cancel
            is_later = True

    def _answer(self, head: _Head, answer: HttpAnswer, *, is_later: bool) -> None:
        self._cancel = None
        self._busy = False
        self._reply(answer, head.keeps_alive, is_old=head.is_old)
        if is_later:
            self._on_answered()

    def go_on(self, now: float) -> None:
        """A request was answered: begin the next one, if it is there."""
        self._idle_since = now
        if self._parts and not self._busy and not self.closing:
            data, self._parts, self._size = b"".join(self._parts), [], 0
            self._began_at = now
            self._work(data, now)

    def _refuse(self, answer: HttpAnswer) -> None:
        self._head = self._chunks = None
        self._reply(answer, False)

    def _reply(
        self, answer: HttpAnswer, keeps_alive: bool, *, has_body: bool = True, is_old: bool = False
    ) -> None:
        keeps_alive = keeps_alive and not answer.closes and not self._options.service.is_draining
        self._began_at = inf
        head = spell_head(answer, self._options.read_date(), keeps_alive=keeps_alive, old=is_old)
        self._write(head + answer.body if has_body else head)
        if not keeps_alive:
            self.closing = True


_OK = b"HTTP/1.1 200 OK\r\n%bcontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
