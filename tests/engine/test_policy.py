"""Policies: the presets, what cannot be built, and how the rules are told."""

from typing import Any

import msgspec
import pytest

from duet_rpc.errors import UsageError
from duet_rpc.policy import (
    AGENT,
    DEVELOPMENT,
    EDITOR,
    PRESETS,
    PRODUCTION,
    SPEC,
    Notifications,
    Policy,
    explain,
    preset,
    replace,
)
from duet_rpc.server.server import Server
from duet_rpc.service import Service

MIB = 1024 * 1024


def test_the_presets_are_found_by_name_in_any_case() -> None:
    assert list(PRESETS) == ["spec", "editor", "agent", "development", "production"]
    assert preset("Editor") is EDITOR and preset("SPEC") is SPEC


def test_an_unknown_preset_is_told_what_there_is() -> None:
    with pytest.raises(UsageError, match="no policy 'emacs'; the presets are spec, editor"):
        preset("emacs")


def test_a_variant_says_that_it_is_one() -> None:
    variant = replace(EDITOR, read_timeout=5.0)
    assert (variant.name, variant.read_timeout, variant.max_batch) == ("editor*", 5.0, 0)
    assert replace(variant, max_depth=3).name == "editor*"
    assert replace(EDITOR, name="mine").name == "mine"
    assert EDITOR.read_timeout == 30.0


def test_a_policy_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        EDITOR.max_batch = 3  # type: ignore[misc]


def test_a_rule_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="no rule batches, speed"):
        replace(EDITOR, speed=11, batches=True)


def test_a_required_key_without_a_required_id_makes_no_sense() -> None:
    with pytest.raises(UsageError, match="set command_needs_id=True"):
        replace(PRODUCTION, command_needs_id=False)


@pytest.mark.parametrize(
    "rule",
    [
        "max_in_flight",
        "max_message_bytes",
        "max_header_bytes",
        "max_depth",
        "max_queued",
        "max_queued_bytes",
        "max_output_bytes",
        "max_subscriptions",
    ],
)
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_a_limit_is_at_least_one(rule: str, value: float) -> None:
    with pytest.raises(UsageError, match=f"{rule} is .*at least 1"):
        replace(SPEC, **{rule: value})


@pytest.mark.parametrize(
    ("rule", "value", "accepted"),
    [
        ("read_timeout", "x", "a number above 0 seconds"),
        ("read_timeout", None, "a number above 0 seconds"),
        ("max_batch", "5", "a whole number"),
        ("max_depth", 6.5, "a whole number, at least 1"),
        ("max_queued", True, "a whole number, at least 1"),
        ("key_required", "no", "True or False"),
        ("ordered_commands", 1, "True or False"),
        ("notifications", "any method", "Notifications.ANY or DECLARED"),
        ("name", 7, "a text"),
    ],
)
def test_a_rule_of_another_kind_is_refused(rule: str, value: Any, accepted: str) -> None:
    with pytest.raises(UsageError, match=f"^{rule} is .*; give {accepted}"):
        replace(DEVELOPMENT, **{rule: value})


def test_only_a_policy_has_variants() -> None:
    wrong: Any = "SPEC"
    with pytest.raises(UsageError, match="give one of duet_rpc.policy, such as SPEC"):
        replace(wrong, max_depth=3)


def test_a_negative_batch_limit_is_refused() -> None:
    with pytest.raises(UsageError, match="use 0 to refuse batches"):
        replace(SPEC, max_batch=-1)


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_frame_gets_some_time(seconds: float) -> None:
    with pytest.raises(UsageError, match="above 0 seconds"):
        replace(SPEC, read_timeout=seconds)


def test_every_rule_is_explained_with_its_value_and_origin() -> None:
    told = {rule.name: (rule.value, rule.origin) for rule in explain(EDITOR)}
    assert told["batches"] == ("refused", "editor daemons: none are taken")
    assert told["handlers in flight"][0] == "1"
    assert told["message size"][0] == "10,485,760 bytes (10 MiB)"
    assert told["header section"][0] == "8,192 bytes"
    assert told["time for one frame"][0] == "30 s from its first byte"
    # One line for each rule, and the name of the policy is no rule.
    assert len(told) == len(msgspec.structs.fields(Policy)) - 1


@pytest.mark.parametrize("policy", PRESETS.values(), ids=PRESETS)
def test_each_preset_explains_the_rules_it_differs_in(policy: Policy) -> None:
    told = {rule.name: rule.value for rule in explain(policy)}
    assert told["batches"] == (f"up to {policy.max_batch} items" if policy.max_batch else "refused")
    assert told["notifications"] == policy.notifications.value
    assert told["refused message without id"] == (
        "answered with id null" if policy in (DEVELOPMENT, PRODUCTION) else "logged"
    )
    assert told["command needs id"] == ("yes" if policy in (DEVELOPMENT, PRODUCTION) else "no")
    assert told["idempotency key"] == ("required" if policy is PRODUCTION else "optional")
    assert all(rule.origin for rule in explain(policy))


def test_notifications_are_any_or_declared() -> None:
    assert AGENT.notifications is Notifications.ANY
    assert DEVELOPMENT.notifications is Notifications.DECLARED


def test_a_name_in_place_of_a_policy_or_a_service_is_told() -> None:
    with pytest.raises(UsageError, match="such as PRODUCTION"):
        Server(Service(), policy="production")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a Service, not 'notes'"):
        Server("notes")  # type: ignore[arg-type]
