"""Every way a call can fail, sorted by the caller's question "was there an answer?".

    DuetError
    ├─ RpcError                yes, and it is no: code, message, data; the same classes on both ends
    │  ├─ ParseError  InvalidRequest  MethodNotFound  InvalidParams  InternalError
    │  ├─ KeyReused  InProgress  OutcomeUnknown  StoreUnavailable  ResultUnserializable
    │  ├─ Overloaded  ShuttingDown  DeadlineExceeded  Cancelled  NotInitialized  Lagged
    │  ├─ Unauthenticated  PermissionDenied
    │  └─ your own subclasses, with codes outside -32768..-32000
    ├─ TransportError          unknown: a query may be sent again, a command only with its key
    │  └─ ConnectFailed  ConnectionLost  InvalidAnswer  CallTimeout (also a TimeoutError)
    └─ UsageError              the question was never sent: the caller's own mistake

This file has more than 400 lines because all errors are in it, each with its docstring.

A code and its canonical message are written here and nowhere else. This module knows no I/O and no
JSON.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar

RESERVED_CODES = range(-32768, -31999)
"""The codes that JSON-RPC keeps for itself and for implementations (us): -32768 to -32000."""
_FREE = "outside -32768..-32000"

_BY_CODE: dict[int, type["RpcError"]] = {}
"""Our own; those of services belong to their clients, for two may use one code (`ErrorClasses`)."""


class DuetError(Exception):
    """The root of everything that duet-rpc raises on purpose."""

    idempotency_key: str | None = None
    """The key of the command that failed, for sending the very same command again."""

    def __reduce__(self) -> Any:
        # For `copy` and `pickle`. Not by calling the class: a subclass may take other arguments
        # than a message, and a peer may have answered a code that no one here may raise.
        return _remake, (type(self), self.args), self.__dict__


E = TypeVar("E", bound=DuetError)


def _remake(cls: type[E], args: tuple[Any, ...]) -> E:
    # By the built-in class underneath, which is another one for a `CallTimeout`.
    built_in = next(base for base in cls.__mro__ if base.__module__ == "builtins")
    remade: E = built_in.__new__(cls, *args)
    return remade


class UsageError(DuetError):
    """The library was used in a way that cannot work; the text says what to do instead."""


class RpcError(DuetError):
    """An error answer. Raise a subclass from a handler; catch the same class around a call.

    A subclass states `code` and `message` in its body; `data` is given where it is raised. A client
    raises the classes that it was given (`errors=`), or that the service of a proxy has; for any
    other code it raises an `RpcError`. A subclass without a code is an abstract base class: its
    subclasses are raised, and it is caught.
    """

    code: int = -32603
    message: str = "Internal error"
    data: Any = None
    retryable: ClassVar[bool] = False
    """Whether sending the very same call again can help and can do no harm."""
    from_peer = False
    """True if a peer answered this error to a call of ours, rather than our own code raising it."""
    word: ClassVar[str | None] = None
    """What `data.reason` says for every error of this class, where one word is enough."""
    is_own: ClassVar[bool] = False
    """Whether it belongs to a protocol that we speak, and may have one of its codes."""

    def __init__(self, message: str | None = None, *, data: Any = None, code: int | None = None):
        if message is not None:
            self.message = message
        if code is not None:
            self.code = code
        if (wrong := misuse(self)) is not None:
            raise UsageError(wrong)
        self.data = data if self.word is None else {"reason": self.word, **(data or {})}
        super().__init__(self.message)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "code" not in cls.__dict__:
            return
        if type(cls.code) is not int:
            raise UsageError(f"{cls.__name__}: a code is an integer, not {cls.code!r}")
        if cls.code in RESERVED_CODES and not cls.__module__.startswith("duet_rpc."):
            raise UsageError(_explain_reserved(cls.__name__, cls.code))
        if cls.__module__ == __name__:
            _BY_CODE[cls.code] = cls

    def __str__(self) -> str:
        text = f"{self.message} ({self.code})"
        return text if self.data is None else f"{text}: {self.data}"

    @property
    def reason(self) -> str | None:
        """The one word in `data.reason` that tells faults of one code apart, if there is one."""
        reason = self.data.get("reason") if isinstance(self.data, dict) else None
        return reason if isinstance(reason, str) else None

    @staticmethod
    def from_wire(
        code: int, message: str, data: Any = None, cls: "type[RpcError] | None" = None
    ) -> "RpcError":
        """Make the error that an answer describes: of the class given, or of ours for its code."""
        # Not by its constructor: a peer may answer codes that no one here may raise.
        error = _remake(cls or _BY_CODE.get(code, RpcError), (message,))
        try:
            error.code, error.message, error.data = code, message, data
        except AttributeError:  # of a class that computes one of them
            error = _remake(RpcError, (message,))
            error.code, error.message, error.data = code, message, data
        error.from_peer = True
        return error


class ErrorClasses:
    """Which class an error answer is raised in, by its code: of one client, proxy or service.

    Given are classes, an abstract base class for all below it, a service (or whatever has `errors`)
    or several of these. Codes mean something within a service only, so a class is never looked up
    elsewhere; and where two fit one code, neither is taken.
    """

    __slots__ = ("_by_code", "_others")

    def __init__(self, given: Any = ()) -> None:
        self._by_code: dict[int, type[RpcError]] = {}
        self._others: list[Any] = []
        for each in _list_given(given):
            if isinstance(each, type):
                self._add(each)
            else:
                self._others.append(each)

    @property
    def classes(self) -> tuple[type[RpcError], ...]:
        """The classes that were given, one for each code."""
        return tuple(self._by_code.values())

    def get(self, code: int) -> type[RpcError] | None:
        """Find the one class for a code; None if there is none, or more than one."""
        known = self._by_code.get(code)
        if known is not None or not self._others:
            return known
        found = {other.errors.get(code) for other in self._others} - {None}
        return found.pop() if len(found) == 1 else None

    def _add(self, cls: type[RpcError]) -> None:
        known = self._by_code.setdefault(cls.code, cls)
        if issubclass(cls, known):
            return  # one that shares the code of its parent
        if not issubclass(known, cls):
            raise UsageError(
                f"errors: {known.__name__} and {cls.__name__} have the same code, {cls.code};"
                " give each to a client or a proxy of its own"
            )
        self._by_code[cls.code] = cls


def error_classes(given: Any) -> ErrorClasses:
    """Take what was given as `errors`; a table that was made before is taken as it is."""
    return given if isinstance(given, ErrorClasses) else ErrorClasses(given)


def list_classes(given: Any) -> tuple[type[RpcError], ...]:
    """List the classes in what a method is declared to raise, which is nothing else."""
    listed = tuple(_list_given(given))
    if other := [each for each in listed if not isinstance(each, type)]:
        raise UsageError(f"errors: expected classes of RpcError, not {other[0]!r}")
    return listed


def pick_base(classes: Collection[type[RpcError]]) -> type[RpcError] | None:
    """Pick the class that all others come from; None if there is none."""
    return next((cls for cls in classes if all(issubclass(each, cls) for each in classes)), None)


def find_shared_codes() -> list[int]:
    """Find the codes that two classes of this process state, neither a subclass of the other."""
    by_code: dict[int, set[type[RpcError]]] = {}
    for cls in _stating_a_code(RpcError):
        by_code.setdefault(cls.code, set()).add(cls)
    return [code for code, classes in by_code.items() if pick_base(classes) is None]


def _list_given(errors: Any) -> Iterator[Any]:
    """List the classes with a code, and whatever else has errors, in what was given."""
    if errors is None:
        return
    if isinstance(errors, type) and issubclass(errors, RpcError):
        yield from _stating_a_code(errors)
    elif hasattr(errors, "errors") and not isinstance(errors, type):
        yield errors
    elif isinstance(errors, Iterable) and not isinstance(errors, (str, bytes)):
        for each in errors:
            yield from _list_given(each)
    else:
        raise UsageError(
            f"errors: expected classes of RpcError, or a Service that raises them, not {errors!r}"
        )


def _stating_a_code(cls: type[RpcError]) -> Iterator[type[RpcError]]:
    if cls.code != RpcError.code:
        yield cls
        return
    for each in cls.__subclasses__():
        if each.__module__ != __name__:
            yield from _stating_a_code(each)


def in_class(error: Exception, tables: Sequence[ErrorClasses]) -> Exception:
    """Make of an error answer one of the class that the first of these has for its code."""
    if type(error) is not RpcError:
        return error
    for classes in tables:
        cls = classes.get(error.code)
        if cls is not None:
            return RpcError.from_wire(error.code, error.message, error.data, cls)
    return error


def misuse(error: RpcError) -> str | None:
    """Say why no handler may answer an error: its code belongs to others, or is none."""
    name, code = type(error).__name__, error.code
    if type(code) is not int:
        return f"{name}: a code is an integer, not {code!r}"
    if code == RpcError.code and not isinstance(error, InternalError):
        return f"{name} has no code of its own; raise a class that states one, {_FREE}"
    if code in RESERVED_CODES and code not in _BY_CODE and not error.is_own:
        return _explain_reserved(name, code)
    return None


def _explain_reserved(name: str, code: int) -> str:
    return f"{name}: code {code} is reserved by JSON-RPC; choose one {_FREE}"


class ParseError(RpcError):
    """What arrived is not exactly one JSON value."""

    code: int = -32700
    message: str = "Parse error"


class InvalidRequest(RpcError):
    """The envelope, the framing or a rule of the policy was broken; `data.reason` says which."""

    code: int = -32600
    message: str = "Invalid Request"

    @classmethod
    def because(cls, reason: str, message: str | None = None, **details: Any) -> "InvalidRequest":
        """Make the error for one of `INVALID_REQUEST_REASONS`, with details beside the reason."""
        assert reason in INVALID_REQUEST_REASONS, f"{reason} is not on the closed list"
        return cls(message, data={"reason": reason, **details})


INVALID_REQUEST_REASONS = frozenset(
    {
        "bad-charset",
        "batch-not-supported",
        "batch-too-large",
        "command-requires-id",
        "duplicate-id",
        "header-too-large",
        "invalid-content-length",
        "invalid-envelope",
        "invalid-id-type",
        "notification-not-allowed",
        "oversize",
        "too-many-subscriptions",
        "unsupported-content-type",
    }
)
"""The closed list of words that `data.reason` of an `InvalidRequest` is taken from."""


class MethodNotFound(RpcError):
    """No method of that name is served here."""

    code: int = -32601
    message: str = "Method not found"


class InvalidParams(RpcError):
    """The params do not fit the method; `data` says which, what was expected and what came."""

    code: int = -32602
    message: str = "Invalid params"


class InternalError(RpcError):
    """A handler failed unforeseen; `data.reference` also stands in the server's log."""

    code: int = -32603
    message: str = "Internal error"


class NotInitialized(RpcError):
    """A language server was sent a request before `initialize`. The code is LSP's."""

    code, message = -32002, "Server not initialized"


class PermissionDenied(RpcError):
    """The caller lacks a scope that the method asks for. The handler has not run."""

    code: int = -32009
    message: str = "Permission denied"
    word: ClassVar[str | None] = "permission-denied"


class Unauthenticated(RpcError):
    """The credentials are missing, unknown or over. Nothing has run."""

    code: int = -32010
    message: str = "Unauthenticated"
    word: ClassVar[str | None] = "unauthenticated"


class KeyReused(RpcError):
    """The idempotency key was used before, with other params."""

    code: int = -32012
    message: str = "Idempotency key reused"
    word: ClassVar[str | None] = "idempotency-key-reused"


class InProgress(RpcError):
    """The same command is still running elsewhere; ask again after `data.retry_after_ms`."""

    code: int = -32013
    message: str = "Command in progress"
    retryable: ClassVar[bool] = True
    word: ClassVar[str | None] = "in-progress"


class OutcomeUnknown(RpcError):
    """A run of this command was cut off, and no one can know whether its effect happened."""

    code: int = -32014
    message: str = "Outcome unknown"
    word: ClassVar[str | None] = "outcome-unknown"


class StoreUnavailable(RpcError):
    """The command store cannot be reached. The handler has not run."""

    code: int = -32015
    message: str = "Store unavailable"
    retryable: ClassVar[bool] = True
    word: ClassVar[str | None] = "store-unavailable"


class ResultUnserializable(RpcError):
    """The handler ran, but its result cannot be sent."""

    code: int = -32016
    message: str = "Result cannot be serialized"
    word: ClassVar[str | None] = "result-unserializable"


class Overloaded(RpcError):
    """The queue or its budget is full; nothing was started. See `data.retry_after_ms`."""

    code: int = -32017
    message: str = "Overloaded"
    retryable: ClassVar[bool] = True
    word: ClassVar[str | None] = "overloaded"


class ShuttingDown(RpcError):
    """The server is ending: it did not start this request, or has ended this subscription."""

    code: int = -32018
    message: str = "Shutting down"
    retryable: ClassVar[bool] = True
    word: ClassVar[str | None] = "shutting-down"


class DeadlineExceeded(RpcError):
    """The server-side deadline passed. A command may be sent again with the same key."""

    code: int = -32019
    message: str = "Deadline exceeded"
    word: ClassVar[str | None] = "deadline-exceeded"


class Lagged(RpcError):
    """A subscriber did not take its items in time, and its subscription has ended."""

    code: int = -32020
    message: str = "Subscriber too slow"
    word: ClassVar[str | None] = "lagged"


class Cancelled(RpcError):
    """The request was cancelled by its caller. The code is LSP's."""

    code: int = -32800
    message: str = "Request cancelled"
    word: ClassVar[str | None] = "cancelled"


class InputRequired(RpcError):
    """A handler has asked its caller for something, and runs again with the answer.

    It is not sent: a protocol that has such questions says it in its own way.
    """

    code: int = -33600
    message: str = "Input required"
    word: ClassVar[str | None] = "input-required"


class NeedsInput(BaseException):
    """Goes through a handler that has asked for something that is not there yet.

    No handler is to catch it: what it has done so far is undone, nothing is recorded, and it runs
    again when the answer is there.
    """

    def __init__(self, refusal: InputRequired) -> None:
        super().__init__(refusal.message)
        self.refusal: InputRequired = refusal


class TransportError(DuetError):
    """There was no answer, so the outcome is unknown: a command is retried only with its key."""


class ConnectFailed(TransportError):
    """No connection could be made; nothing was sent."""


class ConnectionLost(TransportError):
    """The connection ended before the answer came.

    For a child process `exit_code` (negative: the signal that killed it) and `stderr_tail` tell
    why.
    """

    def __init__(self, message: str, *, exit_code: int | None = None, stderr_tail: str = ""):
        super().__init__(message)
        self.exit_code = exit_code
        self.stderr_tail = stderr_tail

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text}\n{self.stderr_tail}" if self.stderr_tail else text


class InvalidAnswer(TransportError):
    """An answer came that cannot be used: too deep, too large, no JSON, or of another type.

    Where a limit is the reason, the text names it and the setting that raises it.
    """


class CallTimeout(TransportError, TimeoutError):
    """The caller's own deadline passed before an answer came."""
