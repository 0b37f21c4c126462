"""What became of a command, as a value: how `rpc.outcome` is read."""

import copy
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from msgspec import UNSET, Raw, Struct, UnsetType

from duet_rpc.client.options import Expected
from duet_rpc.engine.results import Decode, decode_any
from duet_rpc.errors import InvalidAnswer, RpcError, UsageError, in_class
from duet_rpc.wire.messages import decode_error

T = TypeVar("T")
CommandState: TypeAlias = Literal["none", "running", "done", "unknown"]


class Outcome(Struct, Generic[T], frozen=True):
    """What became of a command, as the server's store knows it."""

    state: CommandState
    """`none`: no such command is known; `running`: it has begun and not ended; `done`: it has a
    result or an error; `unknown`: it was cut off, or its record is gone."""
    _result: Any = None
    _error: RpcError | None = None

    def result(self) -> T:
        """Return the result, or raise the error that it ended with; only if it is `done`."""
        error = self.error()
        if error is not None:
            raise copy.copy(error)  # what we keep must not keep the frames it is raised through
        found: T = self._result
        return found

    def error(self) -> RpcError | None:
        """Return the error that it ended with, None if it has a result; only if it is `done`."""
        if self.state != "done":
            raise UsageError(f"the command has no result: its state is {self.state!r}")
        return self._error


class OutcomeAnswer(Struct):
    """The answer of `rpc.outcome`, as it comes."""

    state: CommandState
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET

    def read(self, decode: Decode | None, expected: Expected) -> Outcome[Any]:
        """Make the value that a caller sees."""
        if self.error is not UNSET:
            error = decode_error(bytes(self.error))
            if error is None:
                raise InvalidAnswer("the error of the command cannot be read")
            found = in_class(error, expected.errors)
            assert isinstance(found, RpcError), "in_class changes the class of an RpcError only"
            return Outcome(self.state, None, found)
        raw = b"null" if self.result is UNSET else bytes(self.result)
        return Outcome(self.state, (decode_any if decode is None else decode)(raw))
