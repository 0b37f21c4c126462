"""Whose answer a message is that cannot be read: too deep, too large, or not JSON at all.

Its call has to end now, with the reason, and not with its timeout. But no other call may end in its
place, whatever a result holds: texts of strangers, with `"id":5` in them. So only the envelope's
own members are looked at:

- at the beginning, member by member, as far as the kept bytes go; what is nested is passed over;
- at the end, backwards from the last brace, which is the envelope's own: the plain members `id`,
  `jsonrpc` and `method` that stand directly before it. Some servers write the id last.

A message with a `method` or with `params` is a request. One with a `result` or an `error` is an
answer, unless it is seen whole and has neither an id nor a version: programs log errors in JSON,
too. A name that is cut off is the one that it begins. Of any other no one knows, and neither is an
id enough: both ends count from one.
"""

from msgspec import Struct

from duet_rpc.startup import pattern

_BEGINS = rb"[ \t\r\n]*(\[?)[ \t\r\n]*\{"
_TOKEN = (
    rb'[ \t\r\n]*(?:("[^"\\]*(?:\\.[^"\\]*)*")|([\[{])|([\]}])|(:)|(,)'
    rb'|([^ \t\r\n"\[\]{}:,]+)(?=[ \t\r\n\]},]))'
)
_PLAIN = rb'"(id|jsonrpc|method)"[ \t\r\n]*:[ \t\r\n]*([0-9]{1,18}|"[^"\\]*")[ \t\r\n]*'
_ENDS = rb"(?:,[ \t\r\n]*%b)+\}[ \t\r\n]*(?:\][ \t\r\n]*)?\Z" % (
    _PLAIN.replace(b"(id", b"(?:id").replace(b"([0-9]", b"(?:[0-9]")
)

_REQUEST = frozenset({b'"method"', b'"params"'})
_ANSWER = frozenset({b'"result"', b'"error"'})
_ID = b'"id"'
_VERSION = b'"jsonrpc"'
_MOST_TOKENS = 2048
"""So much of a message is looked at, however large it is."""


class Glimpse(Struct, frozen=True):
    """What the ends of a message show of it."""

    is_array: bool
    is_request: bool
    is_answer: bool
    id: bytes | None
    """As it is spelled; None if none was seen, and empty if there are two, or a strange one."""


def glimpse(head: bytes, tail: bytes = b"") -> Glimpse | None:
    """Look at how a message begins and ends; None if it begins like no message.

    The tail has to be the true end of a whole message. A line that some program has printed is no
    message, though it comes between messages.
    """
    begins = pattern(_BEGINS).match(head)
    if begins is None:
        return None
    members, is_whole = _members(head, begins.end())
    found = pattern(_ENDS).search(tail)
    last = dict(pattern(_PLAIN).findall(found[0])) if found is not None else {}
    id = members.get(_ID)
    if b"id" in last and id != last[b"id"]:
        # The ends of an array belong to two messages, and either one will do.
        id = last[b"id"] if id is None else id if begins[1] else b""
    is_request = not _REQUEST.isdisjoint(members) or b"method" in last
    is_answer = not is_request and not _ANSWER.isdisjoint(members)
    if is_whole and id is None and _VERSION not in members:
        is_answer = False
    return Glimpse(bool(begins[1]), is_request, is_answer, id)


def _members(head: bytes, at: int) -> tuple[dict[bytes, bytes], bool]:
    """Read the members of the envelope as far as they are there: names, and plain values.

    Say also whether these are all of them.
    """
    members: dict[bytes, bytes] = {}
    depth, name, last = 0, b"", b""
    match = pattern(_TOKEN).match
    for _ in range(_MOST_TOKENS):
        token = match(head, at)
        if token is None:
            break
        at = token.end()
        text, opens, closes, colon, comma, word = token.groups()
        if opens:
            depth += 1
            if depth == 1 and name:
                members[name] = b""
        elif closes:
            depth -= 1
            if depth < 0:
                return members, True
        elif depth:
            continue
        elif colon:
            name = last
            if name == _ID and name in members:
                return {**members, _ID: b""}, False  # given twice
            if name != _ID:
                members[name] = b""  # its value may be cut off
        elif comma:
            name = b""
        elif name:
            members[name] = text or word
        else:
            last = text or b""
    if not depth and not name:
        members.update(dict.fromkeys(_begun(head[at:]), b""))
    return members, False


def _begun(rest: bytes) -> list[bytes]:
    """Say which of the names that matter is cut off here."""
    cut = rest.strip(b" \t\r\n")
    return [name for name in _REQUEST | _ANSWER if len(cut) > 1 and name.startswith(cut)]
