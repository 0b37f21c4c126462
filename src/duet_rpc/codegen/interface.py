"""Writes a Python module that types the calls of a service: a `Protocol`, and how to get its proxy.

What the module says is taken from the methods as they are registered, so it cannot differ from
what is served: names on the wire, kinds, defaults, errors. Methods that yield are streams.
"""

import keyword
import re
from collections.abc import Callable
from typing import Any, get_args

from msgspec import UNSET, Struct
from msgspec.structs import replace

from duet_rpc.codegen.classes import write_copy, write_doc
from duet_rpc.codegen.hints import HintWriter, NameTaken, quote
from duet_rpc.methods.signature import Parameter
from duet_rpc.service import Kind, Method, Service
from duet_rpc.wire.params import KEY

_WIDTH = 100


class InterfaceOptions(Struct, frozen=True, kw_only=True):
    """What a written module is to be."""

    made_by: str
    """The command that makes it."""
    class_name: str = ""
    """Of the interface; made of the service's name if it is empty."""
    is_blocking: bool = False
    copies: Callable[[Any], bool] = lambda cls: False
    """Says of a class whether it is to be copied, because it cannot be imported."""


def write_interface(service: Service, options: InterfaceOptions) -> str:
    """Write the module. Raises `UsageError` for a class that can be neither."""
    interface = _Interface(service, options)
    try:
        return interface.write()
    except NameTaken as error:
        if options.class_name or error.name != interface.class_name:
            raise
        renamed = replace(options, class_name=f"{error.name}Service")
        return _Interface(service, renamed).write()


class _Interface:
    def __init__(self, service: Service, options: InterfaceOptions) -> None:
        self._service = service
        self._options = options
        self.class_name = options.class_name or _camel(service.name) or "Remote"
        self._attributes = _name_attributes(service)
        taken = ["proxy", *self._attributes.values()]
        self._hints = HintWriter(self.class_name, taken, options.copies)

    def write(self) -> str:
        interface = self._write_class()
        errors = [
            self._hints.write_class(cls)
            for cls in self._service.errors
            if not cls.__module__.startswith("duet_rpc.")  # which every client knows
        ]
        function = self._write_function(errors)
        classes = self._write_copies()
        name = self._service.name or "the service"
        version = f" {self._service.version}" if self._service.version else ""
        if classes:  # which may be made of one another, or of themselves
            self._hints.imports["__future__"] = {"annotations"}
        head = [f'"""A typed client of {name}{version}, made by `{self._options.made_by}`."""', ""]
        parts = ["\n".join([*head, *self._hints.write_imports()])]
        parts += ["\n".join(lines) for lines in [*classes, interface, function]]
        return "\n\n\n".join(parts) + "\n"

    def _write_copies(self) -> list[list[str]]:
        """Write the classes that are copied, each after those that it is made of."""
        written: dict[Any, list[str]] = {}
        order: list[Any] = []

        def add(cls: Any) -> None:
            before = len(self._hints.copied)
            written[cls] = write_copy(cls, self._hints)
            for other in self._hints.copied[before:]:
                if other not in written:
                    add(other)
            order.append(cls)

        for cls in list(self._hints.copied):
            if cls not in written:
                add(cls)
        return [written[cls] for cls in order]

    def _write_class(self) -> list[str]:
        protocol = self._hints.name("typing", "Protocol")
        lines = [f"class {self.class_name}({protocol}):"]
        lines += [f"    {line}" for line in write_doc(self._service.description)]
        for method in self._service:
            if len(lines) > 1:
                lines.append("")
            lines += [f"    {line}" for line in self._write_method(method)]
        return lines

    def _write_method(self, method: Method) -> list[str]:
        attribute = self._attributes[method.name]
        decorator = self._hints.name("duet_rpc", method.kind.value)
        prefix = f"{self._service.name}." if self._service.name else ""
        is_usual = method.name == prefix + attribute
        lines = [f"@{decorator}" if is_usual else f"@{decorator}(name={quote(method.name)})"]
        given = ["self", *self._write_parameters(method)]
        verb, returns = self._write_returns(method)
        line = f"{verb} {attribute}({', '.join(given)}) -> {returns}:"
        doc = write_doc(method.description)
        if len(line) + 4 > _WIDTH - (0 if doc else 4):
            lines += [f"{verb} {attribute}(", *(f"    {each}," for each in given)]
            line = f") -> {returns}:"
        if doc:
            return [*lines, line, *(f"    {each}" for each in doc), "    ..."]
        return [*lines, f"{line} ..."]

    def _write_returns(self, method: Method) -> tuple[str, str]:
        is_blocking, returns = self._options.is_blocking, method.parameters.returns
        if method.kind is Kind.SUBSCRIPTION:
            subscription = self._hints.name(
                "duet_rpc.blocking" if is_blocking else "duet_rpc", "Subscription"
            )
            return "def", f"{subscription}[{self._hints.write(returns)}]"
        if method.streams:
            item = self._hints.write((*get_args(returns), Any)[0])
            kind = "Iterator" if is_blocking else "AsyncIterator"
            return "def", f"{self._hints.name('collections.abc', kind)}[{item}]"
        written = "None" if method.kind is Kind.NOTIFICATION else self._hints.write(returns)
        return "def" if is_blocking else "async def", written

    def _write_parameters(self, method: Method) -> list[str]:
        written = []
        is_named_only = False
        parameters = method.parameters
        for each in parameters.listed:
            if not each.positional and not is_named_only:
                is_named_only = True
                written.append("*")
            written.append(self._write_parameter(each, method))
        if parameters.rest is not UNSET:
            written.append(f"*values: {self._hints.write(parameters.rest)}")
        return written

    def _write_parameter(self, each: Parameter, method: Method) -> str:
        hints = self._hints
        if each.name == KEY and method.kind is Kind.COMMAND:
            return f"{each.argument}: str | None = None"  # the client makes one
        hint = hints.write(each.hint)
        if method.parameters.whole is not None:
            hint = f"{hints.name('duet_rpc', 'Whole')}[{hint}]"
        elif each.name != each.argument:
            annotated, name = hints.name("typing", "Annotated"), hints.name("duet_rpc", "Name")
            hint = f"{annotated}[{hint}, {name}({quote(each.name)})]"
        if each.required:
            return f"{each.argument}: {hint}"
        try:
            return f"{each.argument}: {hint} = {hints.write_value(each.default)}"
        except ValueError:
            return f"{each.argument}: {hint} = ..."

    def _write_function(self, errors: list[str]) -> list[str]:
        module = "duet_rpc.blocking" if self._options.is_blocking else "duet_rpc"
        client = self._hints.name(module, "Client")
        given = [self.class_name, *([quote(self._service.name)] if self._service.name else [])]
        given += [f"errors=[{', '.join(errors)}]"] if errors else []
        return [
            f"def proxy(client: {client}) -> {self.class_name}:",
            '    """Make the object whose methods call the server."""',
            f"    return client.proxy({', '.join(given)})",
        ]


def _name_attributes(service: Service) -> dict[str, str]:
    """Choose the attribute of each method, by its whole name."""
    prefix = f"{service.name}." if service.name else ""
    found: dict[str, str] = {}
    for method in service:
        attribute = method.name.removeprefix(prefix)
        if not attribute.isidentifier() or attribute.startswith("_"):
            words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", attribute)
            attribute = re.sub(r"\W+", "_", words).strip("_").lower() or "method"
        if keyword.iskeyword(attribute) or not attribute.isidentifier():
            attribute = f"call_{attribute}"
        while attribute in found.values():
            attribute += "_"
        found[method.name] = attribute
    return found


def _camel(name: str) -> str:
    words = "".join(word[:1].upper() + word[1:] for word in re.split(r"[\W_]+", name))
    return words if words.isidentifier() else ""
