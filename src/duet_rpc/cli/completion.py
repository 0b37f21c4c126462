"""`duet-rpc completion SHELL`: the script that teaches a shell our commands and options."""

import click

INSTALL = {
    "bash": "duet-rpc completion bash >> ~/.bashrc",
    "zsh": "duet-rpc completion zsh >> ~/.zshrc",
    "fish": "duet-rpc completion fish > ~/.config/fish/completions/duet-rpc.fish",
}


@click.command(
    "completion", epilog="\b\nTo keep it:\n" + "\n".join(f"  {line}" for line in INSTALL.values())
)
@click.argument("shell", type=click.Choice(list(INSTALL)))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script for bash, zsh or fish."""
    from click.shell_completion import get_completion_class

    completion = get_completion_class(shell)
    assert completion is not None, "click knows the three shells"
    root = ctx.find_root().command
    click.echo(completion(root, {}, "duet-rpc", "_DUET_RPC_COMPLETE").source())
