"""Errors: codes, canonical messages, and the way to the wire and back."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from duet_rpc import errors
from duet_rpc.errors import (
    RESERVED_CODES,
    CallTimeout,
    Cancelled,
    ConnectionLost,
    DuetError,
    ErrorClasses,
    InvalidParams,
    InvalidRequest,
    MethodNotFound,
    Overloaded,
    RpcError,
    TransportError,
    UsageError,
    in_class,
    misuse,
)

TABLE = {
    "ParseError": (-32700, "Parse error", None, False),
    "InvalidRequest": (-32600, "Invalid Request", None, False),
    "MethodNotFound": (-32601, "Method not found", None, False),
    "InvalidParams": (-32602, "Invalid params", None, False),
    "InternalError": (-32603, "Internal error", None, False),
    "PermissionDenied": (-32009, "Permission denied", "permission-denied", False),
    "Unauthenticated": (-32010, "Unauthenticated", "unauthenticated", False),
    "KeyReused": (-32012, "Idempotency key reused", "idempotency-key-reused", False),
    "InProgress": (-32013, "Command in progress", "in-progress", True),
    "OutcomeUnknown": (-32014, "Outcome unknown", "outcome-unknown", False),
    "StoreUnavailable": (-32015, "Store unavailable", "store-unavailable", True),
    "ResultUnserializable": (-32016, "Result cannot be serialized", "result-unserializable", False),
    "Overloaded": (-32017, "Overloaded", "overloaded", True),
    "ShuttingDown": (-32018, "Shutting down", "shutting-down", True),
    "DeadlineExceeded": (-32019, "Deadline exceeded", "deadline-exceeded", False),
    "Cancelled": (-32800, "Request cancelled", "cancelled", False),
}


@pytest.mark.parametrize("name", TABLE)
def test_each_error_has_its_code_message_reason_and_retry(name: str) -> None:
    code, message, reason, retryable = TABLE[name]
    error = getattr(errors, name)()
    assert (error.code, error.message, error.reason, error.retryable) == TABLE[name]
    assert isinstance(error, RpcError) and isinstance(error, DuetError)


@pytest.mark.parametrize("name", TABLE)
def test_an_answer_becomes_the_class_of_its_code(name: str) -> None:
    code, message, reason, _ = TABLE[name]
    error = RpcError.from_wire(code, message, {"reason": reason} if reason else None)
    assert type(error) is getattr(errors, name)
    assert error.from_peer and error.reason == reason


def test_an_unknown_code_becomes_a_plain_error() -> None:
    error = RpcError.from_wire(99_999, "of the peer's own", [1])
    assert type(error) is RpcError
    assert (error.code, error.message, error.data) == (99_999, "of the peer's own", [1])
    assert error.reason is None


def raised(code: int, given: Any, *, data: Any = None) -> RpcError:
    """Make of an answer the error that a client with these classes raises."""
    error = in_class(RpcError.from_wire(code, "of the peer", data), [ErrorClasses(given)])
    assert isinstance(error, RpcError) and error.from_peer and error.code == code
    return error


def test_a_class_is_known_only_where_it_was_given() -> None:
    class Mine(RpcError):
        code, message = 4040, "Mine"

    class Theirs(RpcError):
        code, message = 4040, "Theirs"

    assert type(RpcError.from_wire(4040, "whose?")) is RpcError
    assert type(raised(4040, Mine)) is Mine and type(raised(4040, Theirs)) is Theirs
    for nothing in (None, (), [], [None]):
        assert type(raised(4040, nothing)) is RpcError
    with pytest.raises(UsageError, match="Mine and Theirs have the same code, 4040"):
        ErrorClasses([Mine, Theirs])


def test_the_first_table_that_has_a_class_counts() -> None:
    class Mine(RpcError):
        code, message = 4040, "Mine"

    class Theirs(RpcError):
        code, message = 4040, "Theirs"

    class Other(RpcError):
        code, message = 4041, "Other"

    tables = [ErrorClasses(Mine), ErrorClasses([Theirs, Other])]
    found = [type(in_class(RpcError.from_wire(code, "x"), tables)) for code in (4040, 4041, 4042)]
    assert found == [Mine, Other, RpcError]
    overloaded = RpcError.from_wire(-32017, "Overloaded")
    assert in_class(overloaded, tables) is overloaded


@pytest.mark.parametrize("given", ["NoteNotFound", 404, ValueError, [ValueError], {"a": 1}, object])
def test_what_is_no_error_class_is_refused(given: Any) -> None:
    with pytest.raises(UsageError, match="errors: expected classes of RpcError"):
        ErrorClasses(given)


def test_a_subclass_states_code_and_message() -> None:
    class NoteNotFound(RpcError):
        code, message = 404, "Note not found"

    error = NoteNotFound(data={"id": 7})
    assert (error.code, error.message, error.data) == (404, "Note not found", {"id": 7})
    assert str(error) == "Note not found (404): {'id': 7}"
    assert type(raised(404, NoteNotFound)) is NoteNotFound


def test_a_subclass_with_a_constructor_of_its_own_comes_back_from_the_wire() -> None:
    class Quota(RpcError):
        code, message = 429, "Quota used up"

        def __init__(self, used: int) -> None:
            super().__init__(data={"used": used})

    error = raised(429, Quota, data={"used": 3})
    assert type(error) is Quota and error.data == {"used": 3}


def test_a_subclass_without_a_code_shares_its_parents() -> None:
    class Conflict(RpcError):
        code, message = 409, "Conflict"

    class EditConflict(Conflict):
        pass

    assert EditConflict().code == 409
    for given in ([Conflict, EditConflict], [EditConflict, Conflict], Conflict):
        assert type(raised(409, given)) is Conflict
    assert type(raised(409, EditConflict)) is EditConflict


def test_a_message_and_a_code_can_be_given_where_it_is_raised() -> None:
    error = RpcError("busy", code=7)
    assert (error.code, error.message, str(error)) == (7, "busy", "busy (7)")


@pytest.mark.parametrize("reserved", [RESERVED_CODES[0], -32603, RESERVED_CODES[-1]])
def test_reserved_codes_are_refused_where_they_are_defined(reserved: int) -> None:
    with pytest.raises(UsageError, match="choose one outside -32768..-32000"):
        type("Mine", (RpcError,), {"code": reserved, "__module__": "mine"})


def test_codes_beside_the_reserved_ones_are_free() -> None:
    for free in (-32769, -31999):
        assert type("Mine", (RpcError,), {"code": free, "__module__": "mine"})().code == free


@pytest.mark.parametrize("code", ["404", 4.04, True, None])
def test_a_code_is_an_integer(code: object) -> None:
    with pytest.raises(UsageError, match="a code is an integer"):
        type("Mine", (RpcError,), {"code": code, "__module__": "mine"})


def test_a_code_is_an_integer_also_where_it_is_raised() -> None:
    for code in ("no", 2.5, True):
        with pytest.raises(UsageError, match="a code is an integer"):
            RpcError("x", code=code)  # type: ignore[arg-type]


def test_a_family_has_no_code_and_is_caught_but_not_raised() -> None:
    class Trouble(RpcError):
        pass

    class PaperJam(Trouble):
        code, message = 4001, "Paper jam"

    assert type(raised(4001, Trouble)) is type(raised(4001, [Trouble])) is PaperJam
    for family in (Trouble, RpcError):
        with pytest.raises(UsageError, match=f"{family.__name__} has no code of its own"):
            family("it happened")
    assert Trouble("it happened", code=4002).code == 4002


@pytest.mark.parametrize("code", [-32000, -32001, -32768, -32603])
def test_reserved_codes_are_refused_also_where_they_are_raised(code: int) -> None:
    with pytest.raises(UsageError, match=r"outside -32768\.\.-32000"):
        RpcError("x", code=code)
    with pytest.raises(UsageError, match=r"outside -32768\.\.-32000"):
        type("Mine", (type("Mixin", (), {"code": code}), RpcError), {"__module__": "mine"})()
    assert RpcError.from_wire(code, "of the peer").code == code


def test_our_own_errors_may_be_raised_and_have_subclasses() -> None:
    class BadTitle(InvalidParams):
        message = "Bad title"

    assert (BadTitle().code, misuse(BadTitle()), misuse(Overloaded())) == (-32602, None, None)


def test_a_constructor_that_forgets_ours_leaves_an_error_all_the_same() -> None:
    class Forgetful(RpcError):
        code, message = 4003, "Forgetful"

        def __init__(self, what: str) -> None:
            self.what = what

    error = Forgetful("keys")
    assert (error.code, error.message, error.data) == (4003, "Forgetful", None)
    assert str(error) == "Forgetful (4003)"


def test_an_error_of_any_class_can_be_copied() -> None:
    class Poor(RpcError):
        code, message = 1001, "Poor"

        def __init__(self, have: int, need: int) -> None:
            super().__init__(data={"have": have, "need": need})

    error = raised(1001, Poor, data={"have": 1, "need": 2})
    twin = copy.copy(error)
    assert type(twin) is Poor and twin is not error
    assert (str(twin), twin.data, twin.from_peer) == (str(error), error.data, True)


def test_details_stand_beside_the_reason() -> None:
    error = Overloaded(data={"retry_after_ms": 100})
    assert error.data == {"reason": "overloaded", "retry_after_ms": 100}
    assert InvalidRequest.because("batch-too-large", limit=50).data == {
        "reason": "batch-too-large",
        "limit": 50,
    }
    assert InvalidRequest.because("oversize", "Too big").message == "Too big"


def test_reasons_of_invalid_requests_are_a_closed_list() -> None:
    with pytest.raises(AssertionError, match="closed list"):
        InvalidRequest.because("because-i-say-so")


@pytest.mark.parametrize("data", [None, [1], "text", {"reason": 7}, {}])
def test_data_without_a_word_has_no_reason(data: object) -> None:
    assert MethodNotFound(data=data).reason is None


def test_a_lost_connection_tells_how_the_child_ended() -> None:
    error = ConnectionLost("the server ended", exit_code=-9, stderr_tail="Killed")
    assert (error.exit_code, str(error)) == (-9, "the server ended\nKilled")
    assert str(ConnectionLost("gone")) == "gone"


def test_what_had_no_answer_is_no_rpc_error() -> None:
    assert issubclass(ConnectionLost, TransportError) and not issubclass(ConnectionLost, RpcError)
    assert issubclass(CallTimeout, TimeoutError)
    assert not issubclass(UsageError, (RpcError, TransportError))
    assert not InvalidParams.retryable and not Cancelled.retryable


class Picky(RpcError):
    code, message = 4321, "Picky"

    def __init__(self, shelf: int, *, row: int) -> None:
        super().__init__(data={"shelf": shelf, "row": row})


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))]
)
@pytest.mark.parametrize(
    "error",
    [
        Picky(3, row=4),
        RpcError.from_wire(99, "odd", [1]),
        RpcError.from_wire(-32001, "of another server"),
        RpcError.from_wire(-32603, "Internal error"),
        ConnectionLost("gone", exit_code=-9, stderr_tail="killed"),
        CallTimeout("late"),
        CallTimeout(),
        UsageError("no"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_can_be_copied_and_sent_to_another_process(
    error: DuetError, again: Callable[[DuetError], DuetError]
) -> None:
    error.idempotency_key = "k"
    twin = again(error)
    assert twin is not error and type(twin) is type(error)
    assert (str(twin), twin.args, vars(twin)) == (str(error), error.args, vars(error))
