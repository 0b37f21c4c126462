"""Answers that cannot be read: which calls of ours they were for, and why those fail. Pure.

A call may rather wait for its timeout than end by the answer to another. Loaded with the first such
answer.
"""

from collections.abc import Sequence, Set

from duet_rpc.wire.depth import is_balanced, is_deeper_than
from duet_rpc.wire.framing import Fault
from duet_rpc.wire.unreadable import Glimpse, glimpse

_LOOK, _LOOK_FIRST = 4096, 65536
"""Bytes of a message that are looked at: at its end, at its beginning."""
_MAX_DIGITS = 18
_SETTING = "to take such answers, set policy=replace(SPEC, %s=...)"

Seen = tuple[Glimpse | None, str]
"""What can be seen of an answer, None if that is no answer; and why it is none."""


def look_at_unread(body: bytes | bytearray, max_depth: int, *, too_many: bool) -> Seen:
    """Look at a message that is not JSON, nests too deep, or is an array of too many items."""
    # Where brackets do not match, the last one need not be the envelope's own.
    tail = bytes(body[-_LOOK:]) if is_balanced(body) else b""
    why = "the answer is not JSON in UTF-8"
    if too_many:
        why = "the answer is an array of more answers than there are calls"
    elif is_deeper_than(body, max_depth):
        why = f"the answer nests deeper than {max_depth}; {_SETTING % 'max_depth'}"
    return glimpse(bytes(body[:_LOOK_FIRST]), tail), why


def look_at_dropped(fault: Fault) -> Seen:
    """Look at the ends of a message that was dropped; it is seen once, as soon as it is clear."""
    early = glimpse(fault.head)
    seen = glimpse(fault.head, fault.tail)
    error = fault.error
    data = error.data if isinstance(error.data, dict) else {}
    why = f"the answer was dropped: {error.reason}"
    if "limit" in data:
        why += f"; we take at most {data['limit']:,} bytes; {_SETTING % 'max_message_bytes'}"
    is_clear = early is not None and (
        early.is_request or (early.is_answer and early.id is not None)
    )
    if early is None or is_clear is bool(fault.tail):
        return None, why  # what was clear from the beginning has been done then
    return seen, why


def look_at_late(begun: bytes, seconds: float) -> Seen:
    """Look at how an answer began that was not whole in time; without an id it is no one's."""
    seen = glimpse(begun[:_LOOK_FIRST])
    why = f"the answer was not complete within {seconds:g} s; {_SETTING % 'read_timeout'}"
    return (None if seen is None or seen.id is None else seen), why


def find_meant(seen: Glimpse, sent: Set[int], batches: Sequence[list[int]]) -> list[int]:
    """Find the calls that are answered by what is unread or anonymous; rather none than the wrong.

    An array answers the whole batch that one of its ids belongs to. Where no id is seen, an answer
    is that to the only batch, or the only call, that is on its way; what does not look like an
    answer is none.
    """
    if seen.is_request:
        return []
    if seen.id is not None:
        id = int(seen.id) if seen.id.isdigit() and len(seen.id) <= _MAX_DIGITS else 0
        if id not in sent or not (seen.is_answer or len(sent) == 1):
            return []
        return next((ids for ids in batches if seen.is_array and id in ids), [id])
    if not seen.is_answer:
        return []
    if seen.is_array and batches:
        return batches[0] if len(batches) == 1 else []
    return list(sent) if len(sent) == 1 else []
