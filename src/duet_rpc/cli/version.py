"""`duet-rpc version`: the version, for scripts."""

import click

from duet_rpc.version import __version__


@click.command("version")
def command() -> None:
    """Print the version."""
    click.echo(__version__)
