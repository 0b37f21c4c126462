"""`duet-rpc policy [NAME]`: the rules as a table a person can read."""

from collections.abc import Sequence

import click

from duet_rpc.cli.output import count_cells, lay_out_columns
from duet_rpc.policy import PRESETS, explain


@click.command("policy", short_help="Show the rules of a policy, and where they come from.")
@click.argument("name", required=False, type=click.Choice(list(PRESETS), case_sensitive=False))
def command(name: str | None) -> None:
    """Show the rules of a policy: each rule, its value, and where it comes from.

    Without a name: the presets side by side, and the limits that they share. A rule comes from the
    specification, or from what editor daemons, agent hosts or services need; docs/adr/README.md
    says what each of them decided, and where it is described.

    \b
    duet-rpc policy
    duet-rpc policy production
    """
    if name is not None:
        rules = explain(PRESETS[name.lower()])
        rows = [("rule", "value", "where it comes from")]
        rows += [(rule.name, rule.value, rule.origin) for rule in rules]
        _print(rows)
        return
    presets = [explain(policy) for policy in PRESETS.values()]
    by_rule = [
        (same[0].name, *(rule.value for rule in same)) for same in zip(*presets, strict=True)
    ]
    _print([("rule", *PRESETS), *(row for row in by_rule if len(set(row[1:])) > 1)])
    click.echo()
    _print([("limit", "all of them"), *(row[:2] for row in by_rule if len(set(row[1:])) == 1)])


def _print(rows: Sequence[tuple[str, ...]]) -> None:
    header, *rest = rows
    rule = ["-" * max(map(count_cells, column)) for column in zip(*rows, strict=True)]
    for line in lay_out_columns([header, rule, *rest]):
        click.echo(line)
