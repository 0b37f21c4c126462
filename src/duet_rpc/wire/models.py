"""Models of pydantic in JSON, known by their attributes: nothing here imports pydantic.

Dataclasses, structs, attrs classes and TypedDicts are msgspec's own business. Where it meets a
class that it does not know it asks `make_model`, when it decodes, and `write_model`, when it
encodes; so types without models pay nothing.

Law of this file: no text of pydantic leaves it. What does not fit is a `ModelMismatch`, which says
where and of which kind.
"""

from typing import Any

import msgspec
from msgspec import Raw


class ModelMismatch(ValueError):
    """A value that does not fit a model."""

    def __init__(self, model: type, value: Any, place: tuple[str | int, ...], kind: str) -> None:
        super().__init__("a value does not fit its model")
        self.model = model
        self.value = value
        """What was to become the model, as JSON decodes it."""
        self.place = place
        """Where in it the fault is."""
        self.kind = kind
        """What pydantic calls this fault."""


def is_model(cls: Any) -> bool:
    """Tell whether a class is a model that is made and written here."""
    return hasattr(cls, "__pydantic_validator__") and not hasattr(cls, "__dataclass_fields__")


def make_model(cls: Any, value: Any) -> Any:
    """Make a model of what JSON held, by the model's own rules for JSON."""
    if not is_model(cls):
        return value
    try:
        return cls.__pydantic_validator__.validate_json(_encode(value))
    except ValueError as error:
        if not hasattr(error, "errors"):  # not a refusal of pydantic's
            raise
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    # Out here, so that it does not keep the error before it, and the values in that.
    raise ModelMismatch(cls, value, first["loc"], first["type"])


def write_model(value: Any) -> Raw:
    """Write a model as JSON, under the names that it is read by."""
    cls = type(value)
    if not is_model(cls):
        raise TypeError(f"Encoding objects of type {cls.__qualname__} is unsupported")
    return Raw(cls.__pydantic_serializer__.to_json(value, by_alias=True))


_encode = msgspec.json.Encoder().encode
