"""Errors of the protocol itself: they are answered as errors, also inside `tools/call`."""

from typing import Any

from duet_rpc.errors import RpcError

INVALID_PARAMS = -32602
MISSING_CAPABILITY = -32021
UNSUPPORTED_VERSION = -32022


class ProtocolError(RpcError):
    """A request that breaks the protocol; a failed tool is none of these."""

    is_own = True

    def __init__(self, code: int, message: str, **data: Any) -> None:
        Exception.__init__(self, message)
        self.code = code
        self.message = message
        self.data = data or None


class ResourceNotFound(RpcError):
    """Raise it where there is nothing at the address of a resource.

    Each revision of the protocol has its own code for it; this one is sent where none is spoken.
    """

    code: int = -33602
    message: str = "Resource not found"


def malformed(message: str, **data: Any) -> ProtocolError:
    """Make the error for params that are not what the protocol wants."""
    return ProtocolError(INVALID_PARAMS, message, **data)


def unsupported_version(requested: str, supported: list[str]) -> ProtocolError:
    """Make the error for a revision that is not served."""
    return ProtocolError(
        UNSUPPORTED_VERSION,
        "Unsupported protocol version",
        supported=supported,
        requested=requested,
    )


def missing_capability(needed: dict[str, Any]) -> ProtocolError:
    """Make the error for what a client cannot do."""
    return ProtocolError(
        MISSING_CAPABILITY, "The client lacks a capability", requiredCapabilities=needed
    )
