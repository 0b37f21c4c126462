"""How the process ends: the exit codes of the commands that call, and what each stands for."""

from duet_rpc.errors import (
    CallTimeout,
    DuetError,
    InvalidAnswer,
    RpcError,
    TransportError,
    UsageError,
)

ERROR_ANSWER, USED_WRONGLY, NO_CONNECTION, NO_ANSWER, BAD_ANSWER = 1, 2, 3, 4, 5
NOT_WRITTEN = 6
"""Stdout does not take a result."""
LOAD_FAILED = 1
"""The file of a service was found, but raised when it was imported."""
INTERRUPTED = 130

EXIT_CODES = (
    "Exit codes: 0 done, 1 the server answered an error, 2 used wrongly (nothing was sent),"
    " 3 no connection or lost, 4 no answer in time, 5 an answer without meaning,"
    " 6 the result cannot be written, 130 interrupted."
)


class Interrupted(TransportError):
    """The person stopped waiting."""


def choose_exit_code(error: DuetError) -> int:
    """Say how the process ends after this."""
    match error:
        case RpcError():
            return ERROR_ANSWER
        case UsageError():
            return USED_WRONGLY
        case Interrupted():
            return INTERRUPTED
        case CallTimeout():
            return NO_ANSWER
        case InvalidAnswer():
            return BAD_ANSWER
    return NO_CONNECTION
