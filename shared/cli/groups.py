"""Commands that have subcommands."""

import click


class ListingGroup(click.Group):
    """Lists when it is given no subcommand."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ("--help", "--version")):
            args = ["ls", *args]
        return super().parse_args(ctx, args)
