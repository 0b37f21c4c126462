"""Completions: what an argument may become, while somebody types it."""

from typing import Any, Literal, get_args, get_origin

import msgspec
from msgspec import UNSET, Struct, UnsetType

from duet_rpc.mcp.results import ERROR, RESULT, spell_error, spell_result
from duet_rpc.mcp.revision import Revision
from duet_rpc.service import Method
from duet_rpc.wire.surrogates import decode_value, encode_value

MAX_VALUES = 100


class Reference(Struct):
    """What an argument belongs to: a prompt, or the template of a resource."""

    type: Literal["ref/prompt", "ref/resource"]
    name: str | UnsetType = UNSET
    uri: str | UnsetType = UNSET

    @property
    def target(self) -> str:
        """The name of the prompt, or the template."""
        said = self.name if self.type == "ref/prompt" else self.uri
        return "" if said is UNSET else said


class Argument(Struct):
    """The argument, and what has been typed of it."""

    name: str
    value: str


class Chosen(Struct):
    """What was chosen before."""

    arguments: dict[str, str] = {}


class CompleteParams(Struct):
    """The params of `completion/complete`."""

    ref: Reference
    argument: Argument
    context: Chosen = msgspec.field(default_factory=Chosen)


_values_decoder = msgspec.json.Decoder(list[str])


def make_completion_params(method: Method, asked: CompleteParams) -> bytes:
    """Make the params of the function that completes: it takes the arguments only if it wants."""
    given: dict[str, Any] = {"value": asked.argument.value, "arguments": asked.context.arguments}
    return encode_value({name: given[name] for name in method.parameters.names if name in given})


def list_choices(method: Method, argument: str, typed: str) -> list[str]:
    """List the values of a closed set that begin with what has been typed."""
    hint = next((each.hint for each in method.parameters.listed if each.name == argument), None)
    if get_origin(hint) is not Literal:
        return []
    return [value for value in get_args(hint) if isinstance(value, str) and value.startswith(typed)]


def spell_choices(values: list[str]) -> dict[str, Any]:
    """Make the result of `completion/complete`."""
    most = values[:MAX_VALUES]
    return {"completion": {"values": most, "total": len(values), "hasMore": most != values}}


def spell_completion(revision: Revision, member: bytes) -> bytes:
    """Make the result of what the function has returned."""
    if member.startswith(ERROR):
        return spell_error(member)
    values = decode_value(_values_decoder, member[len(RESULT) :])
    return spell_result(revision, b'"result":' + encode_value(spell_choices(values)))
