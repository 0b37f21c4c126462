"""Error classes: declared by methods, found in the code of handlers and of their helpers."""

import functools
from collections.abc import Callable
from typing import Any

import pytest

from duet_rpc import RpcError, Service, UsageError
from duet_rpc.errors import Overloaded
from duet_rpc.methods import raised
from duet_rpc.methods.raised import find_errors
from tests.methods import failing
from tests.methods.failing import Missing


class Trouble(RpcError):
    """A family, which has no code."""


class Frozen(Trouble):
    code, message = 7001, "Frozen"


class DeepFrozen(Frozen):
    """Shares the code of its parent."""


class AlsoFrozen(RpcError):
    code, message = 7001, "Also frozen"


class Spent(RpcError):
    code, message = 7002, "Spent"


def fail(how: str) -> int:
    if how == "spent":
        raise Spent()
    raise Frozen(data={"how": how})


def fail_in_turn(times: int) -> int:
    return fail_in_turn(times - 1) if times else fail("frozen")


class Purse:
    def pay(self, amount: int) -> int:
        return self._take(amount) + self.count()

    def _take(self, amount: int) -> int:
        raise Spent(data=amount)

    @staticmethod
    def count() -> int:
        raise Frozen()

    @classmethod
    def open(cls) -> int:
        return cls.count()

    def __call__(self, amount: int) -> int:
        return self._take(amount)


class Cached(Purse):
    def _take(self, amount: int) -> int:
        raise Missing()


purse = Purse()


def named() -> None:
    raise Frozen


def by_module() -> None:
    raise failing.Missing()


def by_helper() -> int:
    return fail("spent")


def by_helper_of_a_module() -> None:
    failing.look_up(1)


def by_comprehension() -> list[int]:
    return [fail(how) for how in ("a", "b")]


def by_inner_function() -> int:
    def inner() -> int:
        raise Spent()

    return inner()


def by_object() -> int:
    return purse.pay(1)


def by_class() -> int:
    return Purse.open()


def caught() -> int:
    try:
        return 1
    except Frozen:
        return 2
    except (Spent, failing.Missing):
        return 3


def caught_and_raised() -> int:
    try:
        return 1
    except Spent as error:
        raise Frozen() from error


def reserved() -> int:
    raise Overloaded


def through_a_library() -> str:
    import msgspec

    return msgspec.json.encode(functools.reduce(max, [1])).decode()


CASES: list[tuple[Callable[..., Any], list[type[RpcError]]]] = [
    (named, [Frozen]),
    (by_module, [Missing]),
    (by_helper, [Spent, Frozen]),
    (by_helper_of_a_module, [Missing]),
    (by_comprehension, [Spent, Frozen]),
    (by_inner_function, [Spent]),
    (by_object, [Spent, Frozen]),
    (by_class, [Frozen]),
    (fail_in_turn, [Spent, Frozen]),
    (caught, []),
    (caught_and_raised, [Frozen]),
    (reserved, [Overloaded]),
    (through_a_library, []),
    (purse.pay, [Spent, Frozen]),
    (Cached().pay, [Missing, Frozen]),
    (purse, [Spent]),
    (Purse.open, [Frozen]),
    (functools.partial(fail, "spent"), [Spent, Frozen]),
    (functools.wraps(fail)(lambda *args: None), [Spent, Frozen]),
    (len, []),
]


@pytest.mark.clause("errors-14")
@pytest.mark.parametrize(
    ("handler", "found"), CASES, ids=[getattr(case[0], "__qualname__", "object") for case in CASES]
)
def test_errors_are_found_where_they_can_be_seen(
    handler: Callable[..., Any], found: list[type[RpcError]]
) -> None:
    assert find_errors(handler) == found


def test_the_functions_of_a_library_are_none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    code = failing.look_up.__code__
    path = code.co_filename.replace("failing.py", "site-packages/failing.py")
    monkeypatch.setattr(failing.look_up, "__code__", code.replace(co_filename=path))
    assert find_errors(by_helper_of_a_module) == []


def test_what_was_typed_in_has_helpers_too() -> None:
    names: dict[str, Any] = {"Spent": Spent, "fail": fail}
    exec("def helper(): raise Spent\ndef handler(): return helper() + fail('x')", names)
    assert find_errors(names["handler"]) == [Spent]


def test_a_program_without_end_is_looked_at_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raised, "_MOST_HELPERS", 1)
    assert find_errors(by_helper) == []


def test_declared_errors_come_first() -> None:
    service = Service()
    service.query(errors=Trouble)(named)  # a family stands for all below it
    service.command(errors=[Missing])(by_helper)
    listed = {method.name: method.list_errors() for method in service}
    assert listed == {"named": [Frozen], "by_helper": [Missing, Spent, Frozen]}
    assert service.errors.get(7003) is Missing


@pytest.mark.clause("errors-15")
def test_a_code_is_declared_once_in_a_service() -> None:
    says = r"Frozen and AlsoFrozen have the same code, 7001"
    service = Service()
    service.query(errors=[Frozen])(named)
    with pytest.raises(UsageError, match=says):
        service.query(errors=[AlsoFrozen])(by_module)
    assert "by_module" not in service
    with pytest.raises(UsageError, match=says):
        service.query(errors=[Frozen, AlsoFrozen])(by_module)
    with pytest.raises(UsageError, match=says):
        Service(errors=[Frozen, AlsoFrozen])
    with pytest.raises(UsageError, match=says):
        Service(errors=Frozen).query(errors=AlsoFrozen)(named)
    with pytest.raises(UsageError, match=says):
        service.include(Service(errors=AlsoFrozen))


def test_a_subclass_may_share_the_code_of_its_parent() -> None:
    service = Service(errors=DeepFrozen)
    service.query(errors=Frozen)(named)
    service.check_errors()
    assert service.errors.get(7001) is Frozen


@pytest.mark.parametrize("errors", [[ValueError], "Frozen", Service(), [Service()], 7001])
def test_what_is_no_error_class_is_refused(errors: Any) -> None:
    with pytest.raises(UsageError, match="errors: expected classes of RpcError"):
        Service().query(errors=errors)(named)
