"""Command groups with a default subcommand."""

import click


class DefaultListGroup(click.Group):
    """Runs the subcommand `ls` if no subcommand is given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ("--help", "--version")):
            args = ["ls", *args]
        return super().parse_args(ctx, args)
