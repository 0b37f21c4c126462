"""Prompts: texts for a model that the user of a client chooses by name."""

from typing import Any

import msgspec
from msgspec import Raw
from msgspec.json import encode

from duet_rpc.around.offers import PromptOffer
from duet_rpc.mcp.results import ERROR, RESULT, spell_error
from duet_rpc.mcp.revision import Revision
from duet_rpc.methods.docstrings import read_docstring
from duet_rpc.service import Method
from duet_rpc.wire.surrogates import decode_value, encode_value


class _SentMessage(msgspec.Struct):
    content: Raw
    role: str = "user"


_messages_decoder = msgspec.json.Decoder(list[_SentMessage | str])


class Prompts:
    """The prompts of a service, by name."""

    def __init__(self, offers: list[PromptOffer], bound: dict[str, Method]) -> None:
        """`bound` are the methods that make them, joined to what they ask for."""
        self._offers = {each.name: each for each in sorted(offers, key=lambda offer: offer.name)}
        self._bound = bound

    def __bool__(self) -> bool:
        return bool(self._offers)

    def find(self, name: str) -> tuple[PromptOffer, Method] | None:
        """Find a prompt, and what makes it."""
        offer = self._offers.get(name)
        return None if offer is None else (offer, self._bound[offer.method.name])

    def describe(self, revision: Revision) -> list[Raw]:
        """Say what `prompts/list` says of them."""
        return [Raw(encode(_describe(offer, revision))) for offer in self._offers.values()]


def _describe(offer: PromptOffer, revision: Revision) -> dict[str, Any]:
    said: dict[str, Any] = {"name": offer.name}
    if offer.title is not None and revision.has_structure:
        said["title"] = offer.title
    if offer.description:
        said["description"] = offer.description
    words = read_docstring(offer.method.handler.__doc__).params
    arguments = [
        {"name": each.name, "required": each.required}
        | _describe_argument(each.hint, words.get(each.argument))
        for each in offer.method.parameters.listed
    ]
    if arguments:
        said["arguments"] = arguments
    return said


def _describe_argument(hint: Any, words: str | None) -> dict[str, str]:
    """Take the words of its hint, or else those of the docstring."""
    for meta in getattr(hint, "__metadata__", ()):
        if isinstance(meta, msgspec.Meta) and meta.description is not None:
            return {"description": meta.description}
    return {} if words is None else {"description": words}


def spell_messages(offer: PromptOffer, revision: Revision, member: bytes) -> bytes:
    """Make the result of `prompts/get` of what the function has returned."""
    if member.startswith(ERROR):
        return spell_error(member)
    value = member[len(RESULT) :]
    if not value.startswith(b"["):
        value = b"[%b]" % value
    messages = [_say(each) for each in decode_value(_messages_decoder, value)]
    result: dict[str, Any] = {"messages": messages}
    if offer.description:
        result["description"] = offer.description
    if revision.is_modern:
        result["resultType"] = "complete"
    return b'"result":' + encode_value(result)


def _say(message: _SentMessage | str) -> dict[str, Any]:
    if isinstance(message, str):
        return {"role": "user", "content": {"type": "text", "text": message}}
    content: Any = message.content
    if bytes(content).startswith(b'"'):
        content = {"type": "text", "text": content}
    return {"role": message.role, "content": content}
