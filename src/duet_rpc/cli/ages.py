"""How old a retry is, as people say it: `5m`, or the time when the command was first sent.

A process remembers nothing of the one before, so the person says it; the line that a failed call
prints for sending it again says it for them.
"""

import re
from datetime import UTC, datetime, timedelta

import click

UNKNOWN_AGE = 7 * 86400.0
"""Seconds that a retry of unknown age is said to be old: as long as any record is kept."""

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_FORMS = "an age such as 90s, 5m, 2h or 3d, or a time such as 2026-01-31T12:00:00Z"


def read_age(since: str) -> float:
    """Say how many seconds ago that was; refuse what is none, and a time still to come."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", since.strip())
    if found is not None:
        return float(found[1]) * _UNITS[found[2]]
    try:
        then = datetime.fromisoformat(since.strip())
    except ValueError:
        raise click.UsageError(f"--since takes {_FORMS}, not {since!r}") from None
    age = (datetime.now(UTC) - then.astimezone(UTC)).total_seconds()
    if age < 0:
        raise click.UsageError(
            f"--since {since}: that is still to come, by the clock of this machine; say when the"
            " command was first sent, or --retry if no one knows"
        )
    return age


def is_moment(since: str) -> bool:
    """Tell whether it means the same whenever it is said again."""
    return "T" in since or "-" in since


def write_moment(age: float | None) -> str:
    """Write when something happened that is so old, so that `read_age` reads it; now if None.

    Fractions of a second are cut off: too old does no harm, too young may.
    """
    return (datetime.now(UTC) - timedelta(seconds=age or 0)).strftime("%Y-%m-%dT%H:%M:%SZ")
