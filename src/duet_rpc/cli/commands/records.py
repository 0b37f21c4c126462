"""Records of commands as operators read them, and as their programs do."""

import shlex
from datetime import UTC, datetime
from typing import Any

from msgspec import Raw

from duet_rpc.cli.output import Output, lay_out_columns, safe, safe_json
from duet_rpc.ledger.states import Identity, Promise, Record, State
from duet_rpc.ledger.stores.base import Counts
from duet_rpc.wire import surrogates

_UNITS = ((86400.0, "day"), (3600.0, "hour"), (60.0, "minute"), (1.0, "second"))


def say_span(seconds: float) -> str:
    """Say a time as people do: `3 hours`, `2 days`."""
    for size, name in _UNITS:
        # Up to two of a unit, the smaller one says more: 90 minutes, 36 hours.
        if seconds >= 2 * size or (size == 1.0 and seconds >= 1):
            count = int(seconds // size)
            return f"{count} {name}" if count == 1 else f"{count} {name}s"
    return "a moment"


def write_time(at: float) -> str:
    """Write a time as ISO 8601 has it, in UTC."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def name_command(identity: Identity) -> str:
    """Name a command in a sentence."""
    whose = "" if identity.principal == "local" else f" of {safe(identity.principal)}"
    return f"{safe(identity.method)} {safe(identity.key)}{whose}"


def write_words(identity: Identity) -> str:
    """Write the words of a command line that mean this command."""
    principal = [] if identity.principal == "local" else ["--principal", identity.principal]
    # Not the URL itself: it may hold a password.
    return safe(shlex.join([identity.method, identity.key, *principal, "--store", "URL"]))


def describe_record(record: Record) -> dict[str, Any]:
    """Describe a record for a program."""
    described: dict[str, Any] = {
        "principal": record.identity.principal,
        "method": record.identity.method,
        "key": record.identity.key,
        "state": record.state.value,
        "promise": record.promise.value,
        "attempts": record.attempts,
        "correlation_id": record.correlation_id,
        "created_at": write_time(record.created_at),
        "finished_at": None if record.finished_at is None else write_time(record.finished_at),
        "expires_at": write_time(record.expires_at),
    }
    if record.state is not State.DONE:
        described["lease_until"] = write_time(record.lease_until)
    if record.outcome is not None:
        described["outcome"] = make_object(record.outcome)
    return described


def make_object(outcome: bytes) -> Raw:
    """Make an object of an outcome, which is kept as the member of an answer."""
    return Raw(b"{%b}" % outcome)


def describe_counts(counts: Counts) -> dict[str, Any]:
    """Describe the counts for a program."""
    running, unknown = counts.oldest_running, counts.oldest_unknown
    return {
        "running": counts.running,
        "done": counts.done,
        "unknown": counts.unknown,
        "oldest_running": None if running is None else write_time(running),
        "oldest_unknown": None if unknown is None else write_time(unknown),
    }


def say_counts(counts: Counts, now: float, output: Output) -> str:
    """Say the counts in a line; unknown ones are somebody's work."""
    unknown = _say_count(counts.unknown, "unknown", counts.oldest_unknown, now)
    return ", ".join(
        [
            output.alarming(unknown) if counts.unknown else unknown,
            _say_count(counts.running, "running", counts.oldest_running, now),
            f"{counts.done} done",
        ]
    )


def _say_count(count: int, state: str, oldest: float | None, now: float) -> str:
    if oldest is None:
        return f"{count} {state}"
    age = f"for {say_span(now - oldest)}"
    return f"{count} {state} ({age if count == 1 else f'the oldest {age}'})"


def say_outcome(record: Record) -> str:
    """Say in a line what became of a command."""
    match record.state:
        case State.RUNNING:
            return ""
        case State.UNKNOWN:
            return "cut off; resolve it"
    assert record.outcome is not None, "a finished record holds its outcome"
    name, _, value = record.outcome.partition(b":")
    shown = safe_json(surrogates.layout(value, -1))
    if name != b'"error"':
        return shown
    error = surrogates.decode(value)
    return f"error {error.get('code')}: {safe(str(error.get('message')))}"


def make_row(record: Record, now: float) -> tuple[str, ...]:
    """Make the row of a record in the table."""
    principal, method, key = map(safe, record.identity)
    age = say_span(now - record.created_at)
    return (record.state.value, method, key, principal, age, say_outcome(record))


HEADER = ("state", "method", "key", "principal", "age", "outcome")

_PROMISES = {
    Promise.TRANSACTIONAL: "transactional: effect and record are there together, or neither",
    Promise.AT_MOST_ONCE: "at most once: it is never run again by itself",
    Promise.RETRY_SAFE: "retry safe: the next retry runs it again if it was cut off",
}


def lay_out(record: Record, now: float, output: Output) -> list[str]:
    """Show everything about one record."""
    rows = [
        ("state", record.state.value),
        ("principal", safe(record.identity.principal)),
        ("promise", _PROMISES[record.promise]),
        ("attempts", str(record.attempts)),
        ("correlation", safe(record.correlation_id)),
        ("begun", _say_time(record.created_at, now)),
    ]
    if record.finished_at is not None:
        rows.append(("finished", _say_time(record.finished_at, now)))
    elif record.lease_until > now:
        rows.append(("lease", f"for {say_span(record.lease_until - now)} more"))
    else:
        rows.append(("lease", f"ended {say_span(now - record.lease_until)} ago"))
    rows.append(("kept for", f"{say_span(record.expires_at - now)} more"))
    lines = [output.strong(f"{safe(record.identity.method)} {safe(record.identity.key)}")]
    lines += [f"  {line}" for line in lay_out_columns(rows)]
    if record.outcome is not None:
        value = surrogates.layout(b"{%b}" % record.outcome, 2)
        lines += ["", output.colour_json(safe_json(value))]
    elif record.state is State.UNKNOWN:
        this = write_words(record.identity)
        lines += [
            "",
            "A run was cut off; whether its effect happened has to be found out. Then, one of:",
            f"  duet-rpc commands resolve {this} --result JSON",
            f"  duet-rpc commands resolve {this} --error CODE MESSAGE",
            f"  duet-rpc commands forget {this}    (it did not happen, and a retry may run it)",
        ]
    return lines


def _say_time(at: float, now: float) -> str:
    return f"{write_time(at)}, {say_span(now - at)} ago"
