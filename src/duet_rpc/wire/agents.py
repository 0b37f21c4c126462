"""What an agent answers when a handler asks it something: `ctx.sample`, `ctx.roots`."""

from typing import Any

from msgspec import Struct


class Sample(Struct, frozen=True):
    """What a model of an agent's has said: the answer to `ctx.sample`."""

    text: str
    """What it said, if that is text."""
    content: Any
    """All that it said, as it came."""
    model: str = ""
    stop_reason: str | None = None


class Root(Struct, frozen=True):
    """A place that an agent works in, a folder as a rule: what `ctx.roots` lists."""

    uri: str
    name: str | None = None
