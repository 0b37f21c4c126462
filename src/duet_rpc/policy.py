"""The rules of one deployment, as one immutable value.

An editor daemon and a production service want different rules; one engine reads them all from here,
so there is no second code path. Presets cover the usual deployments; `replace` makes variants:

    replace(EDITOR, read_timeout=5.0)

A policy that makes no sense cannot be built. Nothing here acts: the engine asks, this module
answers.
"""

import enum
from typing import Any

import msgspec

from duet_rpc.errors import UsageError
from duet_rpc.options import check, is_integer, is_number, is_text

__all__ = [
    "AGENT",
    "DEVELOPMENT",
    "EDITOR",
    "PRESETS",
    "PRODUCTION",
    "SPEC",
    "Notifications",
    "Policy",
    "Rule",
    "explain",
    "preset",
    "replace",
]

_MIB = 1024 * 1024


class Notifications(enum.Enum):
    """Which methods may be called by a message without id."""

    ANY = "any method"
    DECLARED = "declared only"


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Every rule of one deployment. Build variants with `replace`; wrong ones raise.

    It has more than fifteen fields because each rule is one of them.
    """

    name: str
    max_batch: int
    """Items in one batch; 0 refuses batches altogether."""
    max_in_flight: int
    """Handlers of one connection running at once; 1 is the sequential daemon."""
    notifications: Notifications
    answers_refused_notifications: bool
    """Whether a refused message without id is answered (id null) or only logged."""
    command_needs_id: bool
    key_required: bool
    """Whether a command must carry an idempotency key (and so needs a durable store)."""

    max_message_bytes: int = 10 * _MIB
    max_header_bytes: int = 8 * 1024
    read_timeout: float = 30.0
    """Seconds from the first byte of a frame to its last; an idle connection never times out."""
    max_depth: int = 64
    max_queued: int = 256
    max_queued_bytes: int = 32 * _MIB
    max_output_bytes: int = _MIB
    """Answers the peer has not read; beyond it we stop reading until the peer reads."""
    max_subscriptions: int = 1024
    """Subscriptions of one connection at once."""
    ordered_commands: bool = False
    """Whether the commands of one connection run one at a time, in the order in which they came;
    queries go on beside them."""

    def __post_init__(self) -> None:
        if self.key_required and not self.command_needs_id:
            raise UsageError(
                "a required idempotency key makes no sense where a command needs no id:"
                " set command_needs_id=True as well"
            )
        check("name", self.name, is_text(self.name), "a text")
        sound = is_integer(self.max_batch) and self.max_batch >= 0
        check("max_batch", self.max_batch, sound, "a whole number; use 0 to refuse batches")
        for field in _AT_LEAST_ONE:
            value = getattr(self, field)
            check(field, value, is_integer(value) and value >= 1, "a whole number, at least 1")
        for field in _YES_OR_NO:
            value = getattr(self, field)
            check(field, value, isinstance(value, bool), "True or False")
        listed = isinstance(self.notifications, Notifications)
        check("notifications", self.notifications, listed, "Notifications.ANY or DECLARED")
        sound = is_number(self.read_timeout) and self.read_timeout > 0
        check("read_timeout", self.read_timeout, sound, "a number above 0 seconds")


_AT_LEAST_ONE = (
    "max_in_flight",
    "max_message_bytes",
    "max_header_bytes",
    "max_depth",
    "max_queued",
    "max_queued_bytes",
    "max_output_bytes",
    "max_subscriptions",
)

_YES_OR_NO = (
    "answers_refused_notifications",
    "command_needs_id",
    "key_required",
    "ordered_commands",
)

SPEC = Policy(
    name="spec",
    max_batch=100,
    max_in_flight=16,
    notifications=Notifications.ANY,
    answers_refused_notifications=False,
    command_needs_id=False,
    key_required=False,
)
"""Plain JSON-RPC 2.0: the specification's own examples pass."""

EDITOR = msgspec.structs.replace(SPEC, name="editor", max_batch=0, max_in_flight=1)
"""The stdio daemon: one request after the other, answers in request order, no batches."""

AGENT = msgspec.structs.replace(SPEC, name="agent", max_batch=50)
"""Agent hosts: small batches, many calls in flight."""

DEVELOPMENT = msgspec.structs.replace(
    AGENT,
    name="development",
    notifications=Notifications.DECLARED,
    answers_refused_notifications=True,
    command_needs_id=True,
)
"""The production rules while a service is being written: the idempotency key is optional."""

PRODUCTION = msgspec.structs.replace(DEVELOPMENT, name="production", key_required=True)
"""Commands need an id, an idempotency key and a durable store."""

PRESETS = {policy.name: policy for policy in (SPEC, EDITOR, AGENT, DEVELOPMENT, PRODUCTION)}


def preset(name: str) -> Policy:
    """Look up a preset by its name, in any case."""
    try:
        return PRESETS[name.lower()]
    except KeyError:
        known = ", ".join(PRESETS)
        raise UsageError(f"there is no policy {name!r}; the presets are {known}") from None


def replace(policy: Policy, **changes: Any) -> Policy:
    """Make a variant of a policy; the name says that it is one."""
    check("policy", policy, isinstance(policy, Policy), "one of duet_rpc.policy, such as SPEC")
    changes.setdefault("name", policy.name if policy.name.endswith("*") else policy.name + "*")
    unknown = changes.keys() - set(Policy.__struct_fields__)
    if unknown:
        raise UsageError(f"a policy has no rule {', '.join(sorted(unknown))}")
    return msgspec.structs.replace(policy, **changes)


class Rule(msgspec.Struct, frozen=True):
    """One rule as a person reads it: what it is, its value, and where it comes from."""

    name: str
    value: str
    origin: str


def explain(policy: Policy) -> list[Rule]:
    """Say each rule of a policy, its value, and where it comes from."""

    def size(count: int) -> str:
        return f"{count:,} bytes" + (f" ({count // _MIB} MiB)" if count % _MIB == 0 else "")

    declared = policy.notifications is Notifications.DECLARED
    in_order = policy.ordered_commands or policy.max_in_flight == 1
    rules = [
        (
            "batches",
            f"up to {policy.max_batch} items" if policy.max_batch else "refused",
            "editor daemons: none are taken"
            if not policy.max_batch
            else "JSON-RPC 2.0 section 6, with a limit against abuse",
        ),
        (
            "handlers in flight",
            str(policy.max_in_flight),
            "editor daemons: one request at a time, answers in order"
            if policy.max_in_flight == 1
            else "agent hosts: many calls on one connection",
        ),
        (
            "notifications",
            policy.notifications.value,
            "services: fail fast unless a method allows them" if declared else "JSON-RPC 2.0",
        ),
        (
            "refused message without id",
            "answered with id null" if policy.answers_refused_notifications else "logged",
            "services: a lost command must not go unseen"
            if policy.answers_refused_notifications
            else "JSON-RPC 2.0: notifications are never answered",
        ),
        (
            "command needs id",
            "yes" if policy.command_needs_id else "no",
            "services: every command is answered" if policy.command_needs_id else "JSON-RPC 2.0",
        ),
        (
            "idempotency key",
            "required" if policy.key_required else "optional",
            "services: a retry is no second command" if policy.key_required else "up to the caller",
        ),
        (
            "commands",
            "one at a time, in order" if in_order else "side by side, as queries",
            "services: effects happen in the order in which they were asked for"
            if policy.ordered_commands
            else "as the handlers in flight",
        ),
        (
            "message size",
            size(policy.max_message_bytes),
            "framing: one message must not take all memory",
        ),
        ("header section", size(policy.max_header_bytes), "default limit"),
        (
            "time for one frame",
            f"{policy.read_timeout:g} s from its first byte",
            "framing: half a frame must not stop the stream",
        ),
        ("nesting depth", str(policy.max_depth), "default limit"),
        ("queued requests", str(policy.max_queued), "default limit"),
        ("queued bodies", size(policy.max_queued_bytes), "default limit"),
        ("unread answers", f"{size(policy.max_output_bytes)}, then reading stops", "default limit"),
        ("subscriptions", f"{policy.max_subscriptions:,} of one connection", "default limit"),
    ]
    return [Rule(*rule) for rule in rules]
