"""What a tool may return beside plain values: pictures, sound, links, resources, and messages.

A tool that is declared to return one of these, or a list of them, returns content: it goes out as
it is, without a structured form beside it.
"""

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from duet_rpc.methods.tool_options import Icon as Icon

Role: TypeAlias = Literal["user", "assistant"]


class Annotations(Struct):
    """For whom a piece of content is, and how much it matters."""

    audience: list[Role] | UnsetType = UNSET
    priority: Annotated[float, Meta(ge=0, le=1)] | UnsetType = UNSET
    lastModified: str | UnsetType = UNSET


class Text(Struct, tag_field="type", tag="text"):
    """A text."""

    text: str
    annotations: Annotations | UnsetType = UNSET


class Image(Struct, tag_field="type", tag="image"):
    """A picture: `Image(png_bytes)`."""

    data: bytes
    mimeType: str = "image/png"
    annotations: Annotations | UnsetType = UNSET


class Audio(Struct, tag_field="type", tag="audio"):
    """A sound: `Audio(wav_bytes)`."""

    data: bytes
    mimeType: str = "audio/wav"
    annotations: Annotations | UnsetType = UNSET


class ResourceLink(Struct, tag_field="type", tag="resource_link"):
    """A link to a resource, which the client may read."""

    uri: str
    name: str
    title: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    mimeType: str | UnsetType = UNSET
    size: int | UnsetType = UNSET
    annotations: Annotations | UnsetType = UNSET


class ResourceContents(Struct):
    """What a resource holds: a text, or bytes in `blob`."""

    uri: str
    mimeType: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    blob: bytes | UnsetType = UNSET


class EmbeddedResource(Struct, tag_field="type", tag="resource"):
    """A resource together with what it holds."""

    resource: ResourceContents
    annotations: Annotations | UnsetType = UNSET


Content: TypeAlias = Text | Image | Audio | ResourceLink | EmbeddedResource
"""One block of a result."""

CONTENT_TYPES: tuple[type[Struct], ...] = (Text, Image, Audio, ResourceLink, EmbeddedResource)


class Message(Struct):
    """One message of a prompt: a text, or another content, said by the user or the assistant."""

    content: Any
    role: Role = "user"
