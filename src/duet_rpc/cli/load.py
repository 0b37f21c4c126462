"""Finds the Service that a person means by `FILE:OBJECT` or `package.module:OBJECT`.

What can go wrong is said in one or two lines that tell what to do. A wrong name is a usage error
(exit code 2); a file that raises when it is imported has failed (exit code 1).
"""

import importlib
import importlib.util
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING

import click

from duet_rpc.server.daemon import being_imported
from duet_rpc.service import Service

if TYPE_CHECKING:
    from duet_rpc.mcp.face import Mcp


def load_service(target: str) -> Service:
    """Import the module that `target` names and take the service out of it."""
    place, name = split_target(target)
    return _take_service(_load_module(place), place, name)


def load_service_and_face(target: str, instructions: str | None = None) -> "tuple[Service, Mcp]":
    """Do the same for agents: an `Mcp` value beside the service says what they read of it."""
    from msgspec.structs import replace

    from duet_rpc.mcp.face import Mcp

    place, name = split_target(target)
    module = _load_module(place)
    service = _take_service(module, place, name)
    faces = [value for value in vars(module).values() if isinstance(value, Mcp)]
    face = faces[0] if faces else Mcp()
    return service, face if instructions is None else replace(face, instructions=instructions)


def split_target(target: str) -> tuple[str, str]:
    """Part the file or module from the object; a colon may be part of a path."""
    place, colon, name = target.rpartition(":")
    is_name = bool(colon) and not name.endswith(".py") and os.sep not in name
    return (place, name) if is_name else (target, "")


def _load_module(place: str) -> ModuleType:
    being_imported.append(place)
    try:
        return _import_file(place) if is_file(place) else _import_module(place)
    finally:
        being_imported.clear()


def _take_service(module: ModuleType, place: str, name: str) -> Service:
    services = {key: value for key, value in vars(module).items() if isinstance(value, Service)}
    if name:
        return _pick_service(module, name, place, services)
    distinct = {id(service): key for key, service in services.items()}
    if len(distinct) == 1:
        return next(iter(services.values()))
    if not distinct:
        raise click.UsageError(f"{place} has no Service; make one: service = Service()")
    choices = " or ".join(f"{place}:{key}" for key in distinct.values())
    raise click.UsageError(f"{place} has several services; say which: {choices}")


def try_service(target: str) -> None:
    """See whether a service can be loaded; end the process with what is wrong if it cannot."""
    try:
        load_service(target)
    except click.ClickException as error:
        sys.exit(error.format_message())


def find_file(target: str) -> str | None:
    """Say which file a target was loaded from."""
    place = split_target(target)[0]
    if is_file(place):
        return os.path.abspath(place)
    return getattr(sys.modules.get(place), "__file__", None)


def is_file(place: str) -> bool:
    """Tell whether a file is meant, and no module."""
    return place.endswith(".py") or os.sep in place or place in ("", ".", "..")


def _pick_service(
    module: ModuleType, name: str, place: str, services: dict[str, Service]
) -> Service:
    found: object = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if isinstance(found, Service):
        return found
    what = f"{name} is not there" if found is None else f"{name} is a {type(found).__name__}"
    known = ", ".join(services) or "none"
    raise click.UsageError(f"{place}: {what}, and a Service is needed; its services: {known}")


def _import_file(path: str) -> ModuleType:
    if not os.path.isfile(path):
        near = " (a folder)" if os.path.isdir(path) else ""
        raise click.UsageError(f"there is no file {path or repr(path)}{near}; give FILE.py:OBJECT")
    name = os.path.splitext(os.path.basename(path))[0]
    # Neighbours can be imported, as with `python FILE`.
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    if name in sys.modules:
        name = f"served_{name}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise click.UsageError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and hints look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise _fail(error, path) from None
    return module


def _import_module(name: str) -> ModuleType:
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise click.UsageError(
                f"there is no module {error.name} here or among the installed ones;"
                f" for a file, give its name with .py"
            ) from None
        raise _fail(error, name) from None
    except Exception as error:
        raise _fail(error, name) from None


def _fail(error: Exception, place: str) -> click.ClickException:
    """Say what was raised, and the line that raised it: the last one outside of the machinery."""
    import traceback

    from duet_rpc.cli.exit_codes import LOAD_FAILED
    from duet_rpc.cli.output import Failed

    if isinstance(error, SyntaxError) and error.lineno is not None:
        where = f"{error.filename}:{error.lineno}: {(error.text or '').strip()}"
        return Failed(f"{place} cannot be read: {error.msg}\n  {where}", LOAD_FAILED)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and frame.filename != __file__
    ]
    own = [frame for frame in frames if f"{os.sep}duet_rpc{os.sep}" not in frame.filename]
    text = f"{place} raised {type(error).__name__} when it was imported: {error}"
    for frame in (own or frames)[-1:]:
        text += f"\n  {frame.filename}:{frame.lineno}: {frame.line}"
    return Failed(text, LOAD_FAILED)


def read_host_and_port(text: str) -> tuple[str, int]:
    """Read HOST:PORT, with an IPv6 address in brackets."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit() or int(port) > 65535:
        raise click.UsageError(f"{text} is not HOST:PORT, as in 127.0.0.1:8765 or [::1]:8765")
    return host, int(port)
