"""What we asked of the peer: open calls by id, each with a waiter for its answer.

A call is registered before its bytes are sent, so that no answer can come too early. An answer
settles its call once; late, repeated and unknown ones are dropped and counted, those to calls that
we have cancelled apart. Ids are never used twice.

Calls of ours wait here while the peer does not read, and never count among the answers it has not
read: those stop our reading, and then the answers that our calls wait for could not come.

It has more than 400 lines because what is open and what is held change together: a call that is
held cannot have been answered.
"""

import functools
import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec
from msgspec import Raw, Struct

from duet_rpc.engine.dispatch import Dispatcher
from duet_rpc.engine.outgoing import JOIN, Outgoing
from duet_rpc.engine.requests import Requests
from duet_rpc.errors import InvalidAnswer, RpcError, UsageError
from duet_rpc.wire import surrogates
from duet_rpc.wire.depth import SHALLOW, is_json_text, shallow_json
from duet_rpc.wire.dialect import ITEM, JSONRPC, UNSUBSCRIBE, Dialect, Progress
from duet_rpc.wire.framing import Fault, Frame, Framing
from duet_rpc.wire.large import LARGE, decode_large
from duet_rpc.wire.messages import (
    NULL,
    Response,
    decode_error,
    encode_batch,
    encode_notification,
    encode_request,
    request_around,
    request_form,
)
from duet_rpc.wire.models import write_model
from duet_rpc.wire.params import SPACE
from duet_rpc.wire.subscriptions import (
    encode_subscribed,
    read_subscription_end,
    read_subscription_item,
)

if TYPE_CHECKING:
    from duet_rpc.engine.inflow import SubscriptionInflow
    from duet_rpc.engine.results import Decode
    from duet_rpc.wire.unreadable import Glimpse

_MAX_DIGITS = 18


class Waiter(Protocol):
    """What waits for the answer to a call of ours."""

    @property
    def decode(self) -> "Decode | None":
        """What it will decode the raw result with; None if it wants whatever value comes."""
        ...

    def settle(self, result: Any, error: Exception | None) -> None:
        """Take the result, raw unless `decode` is None, or the error; called exactly once."""
        ...

    def progress(self, value: Progress) -> None:
        """Take progress of the call; it is still being worked on."""
        ...


class CallingConnection(Protocol):
    """The connection, as far as calls need it."""

    dispatcher: Dispatcher
    framing: Framing
    outgoing: Outgoing
    requests: Requests


class Line(Protocol):
    """The host, as far as calls need it."""

    @property
    def behind(self) -> bool:
        """The peer has not taken what we sent."""
        ...


def _answer_of(result: Any) -> Callable[[Any], Any]:
    """Make what decodes nearly every answer; one with any other member takes the slow decode."""
    fields = [("jsonrpc", Literal["2.0"]), ("id", int), ("result", result)]
    answer = msgspec.defstruct("Answer", fields, gc=False, forbid_unknown_fields=True)
    return msgspec.json.Decoder(answer).decode


_decode_raw = _answer_of(Raw)
_decode_value = _answer_of(Any)


@functools.cache
def _decode_shallow() -> Callable[[Any], Any]:
    return _answer_of(shallow_json())


_encode = msgspec.json.Encoder(enc_hook=write_model).encode

_MAX_DIGITS = 18
MAX_CANCELLED = 1000
"""Cancelled calls whose late answers are known as such; those of older ones are unmatched."""
_ABOUT_NOTIFICATIONS = frozenset({"command-requires-id", "notification-not-allowed"})


_FORMS: dict[str, bytes] = {}


def _form(method: str) -> bytes:
    """Make, once for each method, the request that lacks only its id and params."""
    form = request_form(method)
    if len(_FORMS) < 1000:
        _FORMS[method] = form
    return form


Refused = Callable[[RpcError], None]


class _Held(Struct, gc=False):
    """A frame that has to wait, and the calls in it by id. Thousands may, and form no circle."""

    frame: Frame
    wanted: list[int]
    """Their answers are waited for."""
    forgotten: tuple[int, ...] = ()
    """No one does any more."""


class Calls:
    """The open calls of one connection.

    It has more than twenty methods because an answer can come, fail or be missing in many ways,
    and more than fifteen fields because what is looked up for each call is kept at hand.
    """

    def __init__(
        self,
        wire: CallingConnection,
        line: Line,
        one_at_a_time: bool = False,
        dialect: Dialect = JSONRPC,
    ) -> None:
        self.one_at_a_time = one_at_a_time
        """Send a call only when no other waits for its answer."""
        self.open: dict[int, Waiter] = {}
        """By id, oldest first."""
        self.subscribed: dict[bytes, SubscriptionInflow] = {}
        """What the server sends items of, by its own names, until it tells the end."""
        self.last_id: int = 0
        self.late_answers: int = 0
        """Answers to calls that we had cancelled, or whose time was over; no fault of the peer."""
        self._cancelled: OrderedDict[int, None] = OrderedDict()
        """Calls that the peer was asked to cancel, oldest first; their answers may still come."""
        self._wire = wire
        self._line = line
        self._dialect = dialect
        self._frame = wire.framing.frame
        self._flush = wire.outgoing.flush
        self._send_own = wire.outgoing.send_own
        self._max_depth = wire.dispatcher.policy.max_depth
        self._batches: deque[tuple[list[int], Refused]] = deque()
        self._held: OrderedDict[int, _Held] = OrderedDict()
        self._held_ids: dict[int, int] = {}
        self._last_held = 0
        self._wants_values = True
        """What the last answer was wanted as: its value, or raw."""

    @property
    def has_open(self) -> bool:
        """Some call waits for its answer."""
        return bool(self.open)

    @property
    def holds(self) -> bool:
        """Something of ours waits to be sent."""
        return bool(self._held)

    @property
    def most_answers(self) -> int:
        """How many answers can come in one array; a power of two, so that there are few limits."""
        return 1 << len(self.open).bit_length()

    def send(self, method: str, params: bytes | None, waiter: Waiter, in_turn: bool = True) -> int:
        """Send a request; its bytes go out with the next flush, or when the peer reads again.

        A call that a handler makes while it serves the peer does not wait for its turn: the call
        whose turn it is may depend on that handler.
        """
        self.last_id = id = self.last_id + 1
        self.open[id] = waiter
        frame: Frame
        if params is None:
            frame = self._frame(encode_request(id, method, None))
        elif len(params) < LARGE:
            try:
                form = _FORMS[method]
            except KeyError:
                form = _form(method)
            body = form % (id, params)
            prefixes, size = self._wire.framing.prefixes, len(body)
            frame = prefixes[size] + body if size < len(prefixes) else self._frame(body)
        else:
            frame = self._wire.framing.frame_around(*request_around(id, method, params))
        if self._held or self.one_at_a_time or self._line.behind:
            if in_turn or not self.one_at_a_time:
                self._put(frame, [id])
                return id
        send_own = self._send_own  # called by a name, it is not looked for in the class first
        send_own(frame)
        return id

    def send_batch(
        self, items: Sequence[tuple[str, bytes | None, Waiter | None]], refused: Refused
    ) -> list[int]:
        """Send several calls in one array; a waiter of None is a notification.

        `refused` is called if the peer refuses the batch as a whole, before any of it has run.
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
        self._put(self._frame(encode_batch(parts)), list(ids))
        return ids

    def notify(self, method: str, params: bytes | None) -> None:
        """Send a notification now, or when the peer reads again."""
        self._put(self._frame(encode_notification(method, params)), [])
        self._flush()

    def forget(self, id: int, *, tell_peer: bool) -> bool:
        """Stop waiting for an answer; False if no one was."""
        if self.open.pop(id, None) is None:
            return False
        place = self._held_ids.pop(id, None)
        if place is not None:
            held = self._held[place]
            held.wanted.remove(id)
            held.forgotten += (id,)
            if not held.wanted:
                del self._held[place]  # it was never sent, so there is nothing to cancel
        elif tell_peer:
            self._cancelled[id] = None
            if len(self._cancelled) > MAX_CANCELLED:
                self._cancelled.popitem(last=False)
            self._send_cancel(id)
            self._flush()
        if self._held:
            self.release_held()
        return True

    def give_up(self, id: int) -> bool:
        """Ask the peer to cancel a call, and go on waiting for its answer; False if there is none.

        The answer tells whether the call had an effect that has to be undone.
        """
        if id in self._held_ids:
            return self.forget(id, tell_peer=False)
        if id not in self.open:
            return False
        if self._dialect.answers_cancelled:
            self._send_cancel(id)
            self._flush()
        return True

    def unsubscribe(self, name: bytes) -> None:
        """Tell the peer that no more items of a subscription are wanted."""
        self.notify(UNSUBSCRIBE, encode_subscribed(name))

    def lose(self, error: Exception) -> int:
        """The connection is gone: every open call ends now. Return how many there were.

        After an interrupt (Ctrl-C) in the middle of it, calling it again ends the rest.
        """
        lost = len(self.open)
        self._batches.clear()
        self._held.clear()
        self._held_ids.clear()
        if lost or self.subscribed:
            import copy  # here: a cold start should not pay for it
        while self.subscribed:
            name, inflow = next(iter(self.subscribed.items()))
            inflow.end(copy.copy(error))
            self.subscribed.pop(name, None)
        while self.open:
            id, waiter = next(iter(self.open.items()))
            # One each: an exception that is raised in many places collects all their tracebacks.
            waiter.settle(None, copy.copy(error))
            self.open.pop(id, None)
        return lost

    def release_held(self) -> None:
        """Send the calls that waited for the peer to read, or for the call before them."""
        for ready in itertools.count(1):
            if not self._held:
                break
            place, held = next(iter(self._held.items()))
            if self._must_wait(0 if held.wanted else None):
                break
            del self._held[place]
            for id in held.wanted:
                del self._held_ids[id]
            self._send_own(held.frame)
            for id in held.forgotten:
                self._send_cancel(id)
            if ready % JOIN == 0:
                self._flush()  # which shows whether the peer still reads
        self._flush()

    def _send_cancel(self, id: int) -> None:
        dialect = self._dialect
        cancel = encode_notification(dialect.cancel, dialect.encode_cancel(id))
        self._send_own(self._frame(cancel))

    def keep_held(self) -> None:
        """Send nothing of what waits, whatever comes: its callers are about to be ended."""
        self._held.clear()
        self._held_ids.clear()

    def take_answers(self, arrived: deque[bytes | bytearray | Fault]) -> None:
        """Settle calls by the plain answers that came first, up to anything else."""
        open, held, max_depth = self.open, self._held_ids, self._max_depth
        small = 2 * max_depth  # a value nested n deep needs 2n bytes
        wants_values = self._wants_values
        while open and arrived:
            body: Any = arrived[0]
            try:
                size = len(body)
                if not wants_values:
                    answer = _decode_raw(body)
                elif size < LARGE:
                    answer = _decode_value(body)
                else:
                    answer = decode_large(_decode_shallow(), body)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError):
                return  # a fault is no bytes
            id = answer.id
            if id not in open or (held and id in held):
                return
            waiter = open[id]
            if (waiter.decode is None) is not wants_values:
                # What is wanted is known only now; the next one nearly always wants the same.
                self._wants_values = wants_values = not wants_values
                continue
            if wants_values:
                if size > small and (size < LARGE or max_depth <= SHALLOW):
                    if not is_json_text(body, max_depth):
                        return
            elif size > small or not body.isascii():
                if not is_json_text(body, max_depth):
                    return
            arrived.popleft()
            del open[id]
            result = answer.result
            del answer  # the collector does not see it, so no frame may keep it
            waiter.settle(result, None)
            if self._held:
                self.release_held()

    def settle(self, response: Response) -> None:
        """Settle the call that an answer is for, whatever the answer looks like."""
        waiter = self._take_out(response.id)
        if waiter is None and not (response.id == NULL and self._refuse_batch(response)):
            self._drop(response)
        elif waiter is None:
            pass  # a whole batch was refused
        elif response.error is None:
            _settle_raw(waiter, response.result)
        elif (
            response.result in (None, NULL)  # JSON-RPC 1.0 had both members, and peers still do
            and (error := decode_error(response.error)) is not None
        ):
            waiter.settle(None, error)
        else:
            waiter.settle(None, InvalidAnswer("the answer has no valid result or error"))
        if self._held:
            self.release_held()

    def _drop(self, response: Response) -> None:
        """Count an answer that settles nothing, and report it; it may refuse a notification."""
        if response.id.isdigit() and len(response.id) <= _MAX_DIGITS:
            if int(response.id) in self._cancelled:
                del self._cancelled[int(response.id)]
                self.late_answers += 1
                return
        error = None
        if response.id == NULL and response.error is not None and len(response.error) < LARGE:
            error = decode_error(response.error)
        self._tell_dropped(response.id, error)

    def drop_late(self) -> None:
        """Count an answer that came just before its cancellation could be sent."""
        self.late_answers += 1

    def _tell_dropped(self, id: bytes, error: RpcError | None) -> None:
        from duet_rpc.hooks import AnswerDropped  # rare, and a cold start should not pay for it

        requests = self._wire.requests
        requests.stats.unmatched_answers += 1
        self._wire.dispatcher.tell(AnswerDropped(requests.origin, id, error))

    def fail(self, id: bytes, why: str = "the answer has neither a result nor an error") -> bool:
        """End a call whose answer cannot be understood; False if no one waits for it."""
        waiter = self._take_out(id)
        if waiter is None:
            return False
        waiter.settle(None, InvalidAnswer(why))
        if self._held:
            self.release_held()
        return True

    def fail_anonymous(self, *, in_array: bool) -> bool:
        """End the call of an answer that says under no id whose it is; False if that is unclear."""
        from duet_rpc.wire.unreadable import Glimpse

        seen = Glimpse(is_array=in_array, is_request=False, is_answer=True, id=None)
        return self._fail_meant(seen, "the answer has no usable id")

    def fail_unread(self, body: bytes | bytearray, *, too_many: bool = False) -> bool:
        """End the calls that a message answers which cannot be read; False if it answers none.

        It is not JSON, nests too deep, or is an array of too many items.
        """
        if not self.open:
            return False
        from duet_rpc.engine.unread import look_at_unread

        return self._fail_meant(*look_at_unread(body, self._max_depth, too_many=too_many))

    def fail_dropped(self, fault: Fault) -> None:
        """End the calls whose answer was dropped unread, as soon as it is clear which they are."""
        from duet_rpc.engine.unread import look_at_dropped

        self._fail_meant(*look_at_dropped(fault))

    def fail_late(self, begun: bytes, seconds: float) -> None:
        """End the calls under the id of an answer that began so and was not whole in time."""
        if self.open and begun:
            from duet_rpc.engine.unread import look_at_late

            self._fail_meant(*look_at_late(begun, seconds))

    def _fail_meant(self, seen: "Glimpse | None", why: str) -> bool:
        """End the calls that what was seen answers; False if it answers none."""
        if seen is None:
            return False
        from duet_rpc.engine.unread import find_meant

        sent = self.open.keys() - self._held_ids.keys()
        batches = [found for ids, _ in self._batches if (found := [i for i in ids if i in sent])]
        return self._fail_all(find_meant(seen, sent, batches), why)

    def _fail_all(self, ids: list[int], why: str) -> bool:
        for id in ids:
            self.open.pop(id).settle(None, InvalidAnswer(why))
        if ids and self._held:
            self.release_held()
        return bool(ids)

    def _take_out(self, id: bytes) -> Waiter | None:
        # Our ids are plain integers; one spelled in another way is not ours. Python refuses to read
        # thousands of digits, and no call of ours has more than these.
        if id.isdigit() and id[0] != 0x30 and len(id) <= _MAX_DIGITS:
            # A call that was never sent cannot have been answered.
            return None if int(id) in self._held_ids else self.open.pop(int(id), None)
        return None

    def take_progress(self, params: bytes | None) -> bool:
        """Pass the progress of a call on to its waiter; False if it is not one of ours."""
        report = self._dialect.read_progress(params)
        waiter = None if report is None else self.open.get(report[0])
        if report is None or waiter is None:
            return False
        if getattr(waiter, "takes_parts", False):
            waiter.take_part(report[1].get(self._dialect.progress_value or ""))  # type: ignore[attr-defined]
            return True
        try:
            waiter.progress(self._dialect.decode_progress(report[1]))
        except msgspec.ValidationError:
            return False  # a number beyond all bounds
        return True

    def take_item(self, params: bytes | None) -> bool:
        """Pass an item on to the reader of its stream; one that comes after the end is dropped.

        False if no call of ours has had its id.
        """
        from duet_rpc.wire.streams import read_item  # with the first item that there is

        item = read_item(params)
        if item is None:
            return False
        raw, seq, value = item
        if not raw.isdigit() or len(raw) > _MAX_DIGITS or int(raw) > self.last_id:
            return False
        reader = getattr(self.open.get(int(raw)), "take_item", None)
        if reader is not None:
            reader(seq, value)
        return True

    def take_subscribed(self, method: str, params: bytes | None) -> bool:
        """Pass an item or the end of a subscription on to its reader; False if it is none of ours.

        Items that come after we have unsubscribed are dropped.
        """
        if not self.subscribed:
            return False
        if method == ITEM:
            item = read_subscription_item(params)
            inflow = None if item is None else self.subscribed.get(item[0])
            if item is not None and inflow is not None:
                inflow.take_item(item[1], item[2])
                return True
            return False
        end = read_subscription_end(params)
        inflow = None if end is None else self.subscribed.pop(end[0], None)
        if end is None or inflow is None:
            return False
        error: Exception | None = None
        if end[1] is not None:
            error = decode_error(end[1]) or InvalidAnswer("the end has no valid error")
        inflow.end(error)
        return True

    def _put(self, frame: Frame, ids: list[int]) -> None:
        """Send a frame with these calls in it, or hold it."""
        if self._held or self._must_wait(len(ids) or None):
            self._last_held = place = self._last_held + 1
            self._held[place] = _Held(frame, ids)
            for id in ids:
                self._held_ids[id] = place
        else:
            self._send_own(frame)

    def _must_wait(self, own: int | None) -> bool:
        """Whether the peer does not read, or a call other than our `own` waits for its answer.

        `own` is None for a notification, which need not wait for calls.
        """
        if self._line.behind:
            return True
        if own is None or not self.one_at_a_time:
            return False
        return len(self.open) - len(self._held_ids) - own > 0

    def _answered(self, ids: list[int]) -> bool:
        return all(id not in self.open for id in ids)

    def _refuse_batch(self, response: Response) -> bool:
        """An error without id means the oldest batch on its way, if nothing of it was answered."""
        while self._batches and self._answered(self._batches[0][0]):
            self._batches.popleft()
        error = decode_error(response.error) if response.error is not None else None
        if error is None or not self._batches or error.reason in _ABOUT_NOTIFICATIONS:
            return False
        ids, refused = self._batches[0]
        if not all(id in self.open and id not in self._held_ids for id in ids):
            return False
        self._batches.popleft()
        for id in ids:
            del self.open[id]
        refused(error)
        return True


def _settle_raw(waiter: Waiter, result: bytes | None) -> None:
    if waiter.decode is not None:
        waiter.settle(result, None)
        return
    from duet_rpc.engine.results import decode_any  # rare: nearly all are decoded with the answer

    try:
        value = decode_any(result)
    except InvalidAnswer as error:
        waiter.settle(None, error.with_traceback(None))  # which knows the waiter
    else:
        waiter.settle(value, None)


def encode_params(params: Any) -> bytes | None:
    """Encode params: a list, a dict, or anything that becomes an array or an object."""
    if params is None:
        return None
    try:
        try:
            encoded = _encode(params)
        except UnicodeEncodeError:  # a lone surrogate
            encoded = surrogates.encode(params)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise UsageError(f"these params cannot be written as JSON: {error}") from None
    if type(params) is dict or type(params) is list:
        return encoded
    encoded = encoded.strip(SPACE).replace(b"\n", b" ")  # a text of the caller's own; NDJSON
    if encoded[:1] not in (b"{", b"["):
        raise UsageError("params are a list or an object; wrap a single value in a list")
    return encoded
