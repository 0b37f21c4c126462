"""What we asked of the peer: open calls by id, each with somebody who waits for its answer.

A call is registered before its bytes are sent, so that no answer can come too early. An answer
settles its call once; late, repeated and unknown ones are dropped and counted. Ids are never used
twice.

Calls of ours wait here while the peer does not read, and never count among the answers it has not
read: those stop our reading, and then the answers that our calls wait for could not come.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import msgspec
from msgspec import Raw, Struct

from duet_rpc.errors import InvalidAnswer, RpcError, UsageError
from duet_rpc.framing import Fault, Framing
from duet_rpc.messages import (
    NULL,
    Response,
    decode_error,
    encode_batch,
    encode_notification,
    encode_request,
    is_json_text,
)

CANCEL = "$/cancelRequest"
PROGRESS = "$/progress"


class Waiter(Protocol):
    """Somebody who waits for the answer to a call of ours."""

    def settle(self, result: bytes | Raw | None, error: Exception | None) -> None:
        """Take the raw result, or the error; called exactly once."""
        ...

    def progress(self, value: Any) -> None:
        """Take news of the call; it is still being worked on."""
        ...


class Wire(Protocol):
    """The connection, as far as calls need it."""

    framing: Framing
    max_depth: int
    unmatched_answers: int

    def send(self, frame: bytes) -> None:
        """Have a frame sent with the next flush."""
        ...

    def flush(self) -> None:
        """Hand what is ready to the host."""
        ...

    def note(self, severity: Any, text: str, method: str | None, id: bytes | None) -> None:
        """Tell the log."""
        ...


class Line(Protocol):
    """The host, as far as calls need it."""

    @property
    def behind(self) -> bool:
        """The peer has not taken what we sent."""
        ...


class _Answer(Struct, gc=False):
    jsonrpc: Literal["2.0"]
    id: int
    result: Raw


class _Progress(Struct):
    token: int
    value: Any = None


_decode_answer = msgspec.json.Decoder(_Answer).decode
_decode_progress = msgspec.json.Decoder(_Progress).decode

_MAX_DIGITS = 18


def _cancellation(id: int) -> bytes:
    return encode_notification(CANCEL, b'{"id":%d}' % id)


Refused = Callable[[RpcError], None]


class Calls:
    """The open calls of one connection."""

    def __init__(self, wire: Wire, line: Line) -> None:
        self.one_at_a_time = False
        """Send a call only when no other waits for its answer."""
        self.open: dict[int, Waiter] = {}
        """By id, oldest first."""
        self.last_id = 0
        self._wire = wire
        self._line = line
        self._batches: deque[tuple[list[int], Refused]] = deque()
        self._held: deque[tuple[list[int], bytes]] = deque()
        self._held_ids = 0

    def send(self, method: str, params: bytes | None, waiter: Waiter) -> int:
        """Send a request; its bytes go out with the next flush, or when the peer reads again."""
        self.last_id = id = self.last_id + 1
        self.open[id] = waiter
        self._put([id], encode_request(id, method, params))
        return id

    def send_batch(
        self, items: Sequence[tuple[str, bytes | None, Waiter | None]], refused: Refused
    ) -> list[int]:
        """Send several calls in one array; a waiter of None is a notification.

        `refused` is told if the peer refuses the batch as a whole, before any of it has run.
        """
        ids, parts = [], []
        for method, params, waiter in items:
            if waiter is None:
                parts.append(encode_notification(method, params))
            else:
                self.last_id = id = self.last_id + 1
                self.open[id] = waiter
                ids.append(id)
                parts.append(encode_request(id, method, params))
        while self._batches and self._answered(self._batches[0][0]):
            self._batches.popleft()
        if ids:
            self._batches.append((ids, refused))
        self._put(ids, encode_batch(parts))
        return ids

    def notify(self, method: str, params: bytes | None) -> None:
        """Send a notification now."""
        self._put([], encode_notification(method, params))
        self._wire.flush()

    def forget(self, id: int, *, tell_peer: bool) -> bool:
        """Stop waiting for an answer; False if nobody was."""
        if self.open.pop(id, None) is None:
            return False
        for index, (ids, _) in enumerate(self._held):
            if id in ids:
                self._held_ids -= 1
                if len(ids) == 1:
                    del self._held[index]  # it was never sent, so there is nothing to cancel
                else:
                    ids.remove(id)
                return True
        if tell_peer:
            self._wire.send(self._wire.framing.encode(_cancellation(id)))
            self._wire.flush()
        self.release_held()
        return True

    def lose(self, error: Exception) -> None:
        """The connection is gone: every open call ends now."""
        waiters = list(self.open.values())
        self.open.clear()
        self._batches.clear()
        self._held.clear()
        self._held_ids = 0
        for waiter in waiters:
            waiter.settle(None, error)

    def release_held(self) -> None:
        """Send the calls that waited for the peer to read, or for the call before them."""
        while self._held and not self._must_wait():
            ids, frame = self._held.popleft()
            self._held_ids -= len(ids)
            self._wire.send(frame)
            self._wire.flush()

    def take_answer(self, body: bytes | bytearray | Fault) -> bool:
        """Settle a call by a plain answer with a result; False if this is anything else."""
        if isinstance(body, Fault):
            return False
        try:
            answer = _decode_answer(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        if answer.id not in self.open or not is_json_text(body, self._wire.max_depth):
            return False
        self.open.pop(answer.id).settle(answer.result, None)
        if self._held:
            self.release_held()
        return True

    def settle(self, response: Response) -> None:
        """Settle the call that an answer is for, whatever the answer looks like."""
        waiter = None
        # Our ids are plain integers; one spelled in another way is not ours. Python refuses to read
        # thousands of digits, and no call of ours has more than these.
        if response.id.isdigit() and response.id[0] != 0x30 and len(response.id) <= _MAX_DIGITS:
            waiter = self.open.pop(int(response.id), None)
        elif response.id == NULL and self._refuse_batch(response):
            return
        if waiter is None:
            self._wire.unmatched_answers += 1
            self._wire.note("warn", "an answer that nobody waits for", None, response.id)
        elif response.error is None:
            waiter.settle(response.result, None)
        elif response.result is None and (error := decode_error(response.error)) is not None:
            waiter.settle(None, error)
        else:
            waiter.settle(None, InvalidAnswer("the peer's answer has no valid result or error"))
        if self._held:
            self.release_held()

    def take_progress(self, params: bytes | None) -> bool:
        """Pass news of a long call on to whoever waits for it; False if it is not one of ours."""
        try:
            progress = _decode_progress(params or b"{}")
        except (msgspec.DecodeError, RecursionError):
            return False
        waiter = self.open.get(progress.token)
        if waiter is None:
            return False
        waiter.progress(progress.value)
        return True

    def _put(self, ids: list[int], body: bytes) -> None:
        frame = self._wire.framing.encode(body)
        if self._held or self._must_wait(len(ids)):
            self._held.append((ids, frame))
            self._held_ids += len(ids)
        else:
            self._wire.send(frame)

    def _must_wait(self, own: int = 0) -> bool:
        """Whether the peer does not read, or a call other than our `own` waits for its answer."""
        in_flight = len(self.open) - self._held_ids - own
        return self._line.behind or (self.one_at_a_time and in_flight > 0)

    def _answered(self, ids: list[int]) -> bool:
        return all(id not in self.open for id in ids)

    def _refuse_batch(self, response: Response) -> bool:
        """An error without id means the oldest open batch, if nothing of it was answered."""
        error = decode_error(response.error) if response.error is not None else None
        while self._batches:
            ids, refused = self._batches.popleft()
            if self._answered(ids):
                continue
            if error is None or not all(id in self.open for id in ids):
                return False
            for id in ids:
                del self.open[id]
            refused(error)
            return True
        return False


def encode_params(params: Any) -> bytes | None:
    """Encode params: a list, a dict, or anything that becomes an array or an object."""
    if params is None:
        return None
    try:
        encoded = msgspec.json.encode(params)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise UsageError(f"these params cannot be written as JSON: {error}") from None
    if encoded[:1] not in (b"{", b"["):
        raise UsageError("params are a list or an object; wrap a single value in a list")
    return encoded
