"""Which parameters are given what the service provides, instead of what a caller sends.

A class that JSON cannot carry, such as a pool of connections, cannot come from a caller. For a
class that JSON can carry the author has to say it: `settings: Injected[Settings]`. Whether anything
provides the type is known when all of the service is, at the start (`dependencies`).
"""

from typing import Any

import msgspec

from duet_rpc.context import INJECTED, Context, transaction_type
from duet_rpc.wire.models import is_model

_GENERAL = frozenset({"builtins", "typing", "collections", "collections.abc", "msgspec"})
"""Modules whose classes are too general to say what is meant."""


def injected_type(hint: Any) -> Any:
    """Return the type that a parameter is injected by; None if callers send it."""
    if hasattr(hint, "__metadata__"):  # Annotated
        if INJECTED in hint.__metadata__:
            return hint.__origin__
        hint = hint.__origin__
    if not is_own_class(hint) or hint is Context or transaction_type(hint) is not None:
        return None
    if is_model(hint):
        return None
    try:
        is_foreign = isinstance(msgspec.inspect.type_info(hint), msgspec.inspect.CustomType)
    except (TypeError, ValueError, NameError):
        return None  # it cannot be decoded for a reason of its own, which will be reported
    return hint if is_foreign else None


def is_own_class(hint: Any) -> bool:
    """Tell whether a hint is a class, with or without arguments, that says what is meant."""
    cls = getattr(hint, "__origin__", hint)
    return isinstance(cls, type) and cls.__module__ not in _GENERAL
