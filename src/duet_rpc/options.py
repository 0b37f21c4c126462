"""Options as people give them: what can be one, and how a wrong one is refused."""

from math import inf
from typing import Any, TypeGuard

from duet_rpc.errors import UsageError

SECONDS = "seconds above 0, or None for no bound"
TIME_LEFT = "seconds, 0 or more, or None for no bound"


def check(name: str, value: Any, is_sound: bool, accepted: str) -> None:
    """Refuse an option that cannot work, and say what can."""
    if not is_sound:
        raise UsageError(f"{name} is {value!r}; give {accepted}")


def is_number(value: Any) -> bool:
    """Tell whether one can count with it; not NaN, and no integer that is no float any more."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return -1e300 < value < 1e300 or value in (inf, -inf)


def is_integer(value: Any) -> TypeGuard[int]:
    """Tell whether it is a whole number, which True is not."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_seconds(value: Any) -> bool:
    """Tell whether it is a time to wait, or None for no bound."""
    return value is None or (is_number(value) and value > 0)


def is_time_left(value: Any) -> bool:
    """Tell whether it is the time of a call, or None: what is left of a time may be nothing."""
    return value is None or (is_number(value) and value >= 0)


def is_text(value: Any) -> bool:
    """Tell whether it is a string that can be sent."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
