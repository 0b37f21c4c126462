"""`duet-rpc policy`: the rules of each preset as the contract has them, and their origins."""

import re

import pytest
from click.testing import CliRunner

from duet_rpc.cli.main import duet_rpc

BESIDE, IN_ORDER = "side by side, as queries", "one at a time, in order"
TABLE = {
    "spec": ("up to 100 items", "16", "any method", "logged", "no", "optional", BESIDE),
    "editor": ("refused", "1", "any method", "logged", "no", "optional", IN_ORDER),
    "agent": ("up to 50 items", "16", "any method", "logged", "no", "optional", BESIDE),
    "development": (
        "up to 50 items",
        "16",
        "declared only",
        "answered with id null",
        "yes",
        "optional",
        BESIDE,
    ),
    "production": (
        "up to 50 items",
        "16",
        "declared only",
        "answered with id null",
        "yes",
        "required",
        BESIDE,
    ),
}
RULES = (
    "batches",
    "handlers in flight",
    "notifications",
    "refused message without id",
    "command needs id",
    "idempotency key",
    "commands",
)
LIMITS = {
    "message size": "10,485,760 bytes",
    "header section": "8,192 bytes",
    "time for one frame": "30 s",
    "nesting depth": "64",
    "queued requests": "256",
    "queued bodies": "33,554,432 bytes",
    "unread answers": "1,048,576 bytes",
}


def shown(*arguments: str) -> list[list[str]]:
    """Run the command; return the cells of each line."""
    result = CliRunner().invoke(duet_rpc, ["policy", *arguments])
    assert result.exit_code == 0, result.output
    return [re.split(r"\s{2,}", line) for line in result.output.splitlines() if line]


@pytest.mark.clause("policies-7")
@pytest.mark.parametrize("name", TABLE)
def test_a_preset_has_the_values_of_the_table(name: str) -> None:
    values = {cells[0]: cells[1] for cells in shown(name)}
    assert tuple(values[rule] for rule in RULES) == TABLE[name]
    for limit, value in LIMITS.items():
        assert values[limit].startswith(value)


@pytest.mark.clause("policies-7")
@pytest.mark.parametrize("name", TABLE)
def test_every_rule_says_where_it_comes_from(name: str) -> None:
    header, line, *rules = shown(name)
    assert header == ["rule", "value", "where it comes from"]
    assert set("".join(line)) == {"-"}
    for cells in rules:
        assert len(cells) == 3 and all(cells), cells


@pytest.mark.clause("policies-7")
def test_the_origins_stand_on_their_own() -> None:
    assert {cells[0]: cells[2] for cells in shown("editor")}["batches"].startswith("editor daemons")
    origins = {cells[0]: cells[2] for cells in shown("production")}
    assert origins["idempotency key"].startswith("services")
    assert origins["message size"].startswith("framing")
    for name in TABLE:
        assert not [cells for cells in shown(name) if re.search("ADR|BATCH", cells[2])]


@pytest.mark.clause("policies-7")
def test_a_name_is_taken_in_any_case() -> None:
    assert shown("PRODUCTION") == shown("production")


@pytest.mark.clause("policies-7")
def test_without_a_name_the_presets_stand_side_by_side() -> None:
    header, _, *rows = shown()
    assert header == ["rule", *TABLE]
    for row in rows[: len(RULES)]:
        place = RULES.index(row[0])
        assert tuple(row[1:]) == tuple(values[place] for values in TABLE.values())
    limits = {row[0]: row[1] for row in rows[len(RULES) :]}
    assert LIMITS.keys() <= limits.keys()


@pytest.mark.clause("policies-7")
def test_columns_are_aligned() -> None:
    lines = CliRunner().invoke(duet_rpc, ["policy", "agent"]).output.splitlines()
    second = lines[0].index("value")
    assert all(line[second - 2 : second] == "  " and line[second] != " " for line in lines[2:])


@pytest.mark.clause("policies-7")
def test_an_unknown_policy_is_a_wrong_use() -> None:
    result = CliRunner().invoke(duet_rpc, ["policy", "strict"])
    assert result.exit_code == 2
    assert all(name in result.output for name in TABLE)
