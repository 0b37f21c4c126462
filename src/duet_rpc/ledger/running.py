"""What passes between ledger and handler: a run goes in, and how it ended comes out."""

import enum
from typing import Any

from msgspec import Struct

from duet_rpc.errors import RpcError
from duet_rpc.ledger.states import Command
from duet_rpc.wire.surrogates import encode_value


class Run(Struct, frozen=True):
    """One run of a command. Later runs of the same command have higher tokens."""

    command: Command
    token: int
    attempt: int = 1
    transaction: Any = None
    """The database connection inside its open transaction; only for transactional commands."""


class Ending(enum.Enum):
    """How a handler ended."""

    SUCCEEDED = "succeeded"
    DECLARED = "declared"
    """It raised an error of its interface: an outcome like any other."""
    FAILED = "failed"
    """It raised something that nobody foresaw."""
    UNSERIALIZABLE = "unserializable"
    """It returned something that cannot be sent."""


class Ran(Struct, frozen=True):
    """What a handler did; the body is the JSON member to send: `"result":…` or `"error":{…}`."""

    body: bytes
    ending: Ending = Ending.SUCCEEDED


def error_body(error: RpcError) -> bytes:
    """Encode an error as the member that an answer carries."""
    member = {"code": error.code, "message": error.message}
    if error.data is not None:
        member["data"] = error.data
    return b'"error":' + encode_value(member)
