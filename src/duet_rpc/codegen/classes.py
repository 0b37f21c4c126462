"""Writes classes anew, for programs that cannot import the module that defines them.

A copy has the fields, names on the wire and defaults of the class, and none of its methods. What
only its own code knows (a class of pydantic or attrs, a default that is computed) cannot be copied.
"""

import dataclasses
import enum
import textwrap
import typing
from typing import Any, NewType, get_type_hints

import msgspec
from msgspec import NODEFAULT

from duet_rpc.codegen.hints import HintWriter, quote
from duet_rpc.errors import RpcError, UsageError

# As expressions, whose types follow from that of the field.
_FACTORIES: dict[Any, str] = {list: "[]", dict: "{}", set: "set()", frozenset: "frozenset()"}


def write_copy(cls: Any, writer: HintWriter) -> list[str]:
    """Write the definition of a class. Raises `UsageError` for one that cannot be copied."""
    if isinstance(cls, NewType):
        name, base = cls.__name__, writer.write(cls.__supertype__)
        return [f"{name} = {writer.name('typing', 'NewType')}({quote(name)}, {base})"]
    if issubclass(cls, enum.Enum):
        return _write_enum(cls, writer)
    if issubclass(cls, RpcError):
        return _write_error(cls, writer)
    if issubclass(cls, msgspec.Struct):
        return _write_struct(cls, writer)
    if dataclasses.is_dataclass(cls):
        return _write_dataclass(cls, writer)
    if typing.is_typeddict(cls):
        return _write_typed_dict(cls, writer)
    if issubclass(cls, tuple) and hasattr(cls, "_field_defaults"):
        return _write_named_tuple(cls, writer)
    raise UsageError(
        f"{cls.__qualname__} cannot be copied, only imported from {cls.__module__}:"
        " say --types import"
    )


def _write_class(cls: Any, bases: str, lines: list[str]) -> list[str]:
    said = vars(cls).get("__doc__") or ""
    is_made = said.startswith(f"{cls.__name__}(")  # by the library, of the fields
    doc = [] if is_made else [f"    {line}" for line in write_doc(said)]
    body = [*doc, *([""] if doc and lines else []), *lines] or ["    pass"]
    return [f"class {cls.__name__}({bases}):" if bases else f"class {cls.__name__}:", *body]


def write_doc(doc: str | None) -> list[str]:
    """Write the first paragraph of a docstring, or its begin; nothing if there is none."""
    text = " ".join((doc or "").split("\n\n")[0].split())
    text = textwrap.shorten(text, 90, placeholder=" ...").replace("\\", "\\\\").replace('"', "'")
    return [f'"""{text}"""'] if text else []


def _write_enum(cls: type[enum.Enum], writer: HintWriter) -> list[str]:
    bases = ", ".join(writer.write_class(base) for base in cls.__bases__)
    lines = [f"    {each.name} = {writer.write_value(each.value)}" for each in cls]
    return _write_class(cls, bases, lines)


def _write_error(cls: type[RpcError], writer: HintWriter) -> list[str]:
    lines = [f"    code, message = {cls.code}, {quote(cls.message)}"]
    if cls.retryable:
        lines.append("    retryable = True")
    return _write_class(cls, writer.name("duet_rpc", "RpcError"), lines)


def _write_struct(cls: Any, writer: HintWriter) -> list[str]:
    config = cls.__struct_config__
    options = [writer.name("msgspec", "Struct")]
    for option in ("frozen", "omit_defaults", "forbid_unknown_fields", "array_like"):
        if getattr(config, option):
            options.append(f"{option}=True")
    if config.tag is not None:
        tag = writer.write_value(config.tag)
        options += [f"tag_field={quote(config.tag_field)}", f"tag={tag}"]
    if _mixes_defaults(msgspec.structs.fields(cls)):
        options.append("kw_only=True")
    hints = get_type_hints(cls, include_extras=True)
    lines = []
    for field in msgspec.structs.fields(cls):
        line = f"    {field.name}: {writer.write(hints[field.name])}"
        given = _default_of(cls, field.name, field.default, field.default_factory, writer)
        if field.encode_name != field.name:
            parts = [*([given] if given else []), f"name={quote(field.encode_name)}"]
            line += f" = {writer.name('msgspec', 'field')}({', '.join(parts)})"
        elif given.startswith("default_factory"):
            line += f" = {writer.name('msgspec', 'field')}({given})"
        elif given:
            line += f" = {given.removeprefix('default=')}"
        lines.append(line)
    return _write_class(cls, ", ".join(options), lines)


def _mixes_defaults(fields: Any) -> bool:
    """Tell whether a field without a default follows one that has one."""
    required = [field.required for field in fields]
    return sorted(required, reverse=True) != required


def _write_dataclass(cls: Any, writer: HintWriter) -> list[str]:
    options = [f"{name}=True" for name in ("frozen",) if getattr(cls.__dataclass_params__, name)]
    fields = dataclasses.fields(cls)
    if any(field.kw_only for field in fields):
        options.append("kw_only=True")
    hints = get_type_hints(cls, include_extras=True)
    decorator = "@" + writer.name("dataclasses", "dataclass")
    lines = []
    for field in fields:
        missing = dataclasses.MISSING
        given = _default_of(
            cls,
            field.name,
            NODEFAULT if field.default is missing else field.default,
            NODEFAULT if field.default_factory is missing else field.default_factory,
            writer,
        )
        line = f"    {field.name}: {writer.write(hints[field.name])}"
        if given.startswith("default_factory"):
            line += f" = {writer.name('dataclasses', 'field')}({given})"
        elif given:
            line += f" = {given.removeprefix('default=')}"
        lines.append(line)
    written = f"{decorator}({', '.join(options)})" if options else decorator
    return [written, *_write_class(cls, "", lines)]


def _default_of(cls: Any, name: str, default: Any, factory: Any, writer: HintWriter) -> str:
    """Write what makes the default of a field; empty if it has none."""
    if factory is not NODEFAULT:
        if factory in _FACTORIES:
            return f"default_factory=lambda: {_FACTORIES[factory]}"
    elif default is NODEFAULT:
        return ""
    elif default is msgspec.UNSET:
        return f"default={writer.name('msgspec', 'UNSET')}"
    else:
        try:
            return f"default={writer.write_value(default)}"
        except ValueError:
            pass
    raise UsageError(
        f"the default of {cls.__qualname__}.{name} cannot be copied, only imported from"
        f" {cls.__module__}: say --types import"
    )


def _write_typed_dict(cls: Any, writer: HintWriter) -> list[str]:
    lines = []
    for name, hint in get_type_hints(cls, include_extras=False).items():
        written = writer.write(hint)
        if name not in cls.__required_keys__:
            written = f"{writer.name('typing', 'NotRequired')}[{written}]"
        lines.append(f"    {name}: {written}")
    return _write_class(cls, writer.name("typing", "TypedDict"), lines)


def _write_named_tuple(cls: Any, writer: HintWriter) -> list[str]:
    hints = get_type_hints(cls, include_extras=True)
    lines = []
    for name in cls._fields:
        default = cls._field_defaults.get(name, NODEFAULT)
        given = _default_of(cls, name, default, NODEFAULT, writer).removeprefix("default=")
        lines.append(f"    {name}: {writer.write(hints[name])}" + (f" = {given}" if given else ""))
    return _write_class(cls, writer.name("typing", "NamedTuple"), lines)
