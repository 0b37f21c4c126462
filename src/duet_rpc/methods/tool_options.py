"""What an author says of a method as a tool of an agent, beside what its signature says."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from duet_rpc.errors import UsageError
from duet_rpc.options import check, is_text


class Icon(Struct):
    """A picture for a tool, a resource, a prompt or the server: an address, https: or data:."""

    src: str
    mimeType: str | UnsetType = UNSET
    sizes: list[str] | UnsetType = UNSET
    theme: Literal["light", "dark"] | UnsetType = UNSET


class ToolOptions(Struct, frozen=True, kw_only=True):
    """How a method appears among the tools of an agent: `@service.command(tool=ToolOptions(...))`.

    What is None is taken from the kind of the method.
    """

    title: str | None = None
    """A name for people."""
    destructive: bool | None = None
    """Whether it may delete or overwrite something; a command may, unless it says otherwise."""
    open_world: bool | None = None
    """Whether it reaches beyond what the service holds: the web, other people."""
    idempotent: bool | None = None
    """Whether a second call with the same arguments changes nothing more."""
    hidden: bool = False
    """Whether agents are not offered it."""
    task: Literal["forbidden", "optional", "required"] = "optional"
    """Whether a client may ask for it to go on as a task, or has to."""
    input_schema: Mapping[str, Any] | None = None
    """JSON Schema of its arguments, in place of the one that is made of the type hints."""
    icons: Sequence[Icon] = ()
    """Pictures, for hosts that show them."""
    meta: Mapping[str, Any] | None = None
    """What is sent as the `_meta` of the tool, for hosts that know what to make of it."""

    def __post_init__(self) -> None:
        check("title", self.title, self.title is None or is_text(self.title), "a text, or None")
        for name in ("destructive", "open_world", "idempotent"):
            value = getattr(self, name)
            check(name, value, value is None or isinstance(value, bool), "True, False or None")
        check("hidden", self.hidden, isinstance(self.hidden, bool), "True or False")
        known = self.task in ("forbidden", "optional", "required")
        check("task", self.task, known, '"forbidden", "optional" or "required"')
        if self.input_schema is not None:
            _check_object("input_schema", self.input_schema)
            of_object = self.input_schema.get("type") == "object"
            accepted = 'a schema whose root has "type": "object"'
            check("input_schema", self.input_schema, of_object, accepted)
        icons: Any = self.icons
        sound = isinstance(icons, (list, tuple)) and all(isinstance(each, Icon) for each in icons)
        check("icons", icons, sound, 'a list of Icon("https://...")')
        if self.meta is not None:
            _check_object("meta", self.meta)


def check_tool(method: str, tool: Any) -> None:
    """Refuse what is given as `tool=` and is no `ToolOptions`."""
    if not isinstance(tool, ToolOptions):
        raise UsageError(
            f"{method}: tool is {tool!r}; give ToolOptions(...) of duet_rpc.mcp, as in"
            " tool=ToolOptions(destructive=False)"
        )


def _check_object(name: str, value: Any) -> None:
    sound = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    check(name, value, sound, "a dict with texts as its keys")
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"{name} cannot be written as JSON: {error}") from None
