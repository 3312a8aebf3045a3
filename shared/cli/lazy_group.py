"""Groups of commands: one imports a command when it runs, one has a default command."""

import importlib
from collections.abc import Mapping
from typing import Any

import click
from click.exceptions import NoSuchCommand


class LazyGroup(click.Group):
    """Subcommand NAME is the object `command` in the module `package`.NAME.

    Args:
        summaries: one line of help for each subcommand, in the order of --help.
    """

    def __init__(
        self, *args: Any, package: str, summaries: Mapping[str, str], **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._package = package
        self._summaries = summaries

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._summaries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._summaries:
            return None
        command = importlib.import_module(f"{self._package}.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except NoSuchCommand as error:  # click suggests only imported commands
            name = error.command_name
            raise NoSuchCommand(name, possibilities=self._summaries, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._summaries.items()))


class DefaultListGroup(click.Group):
    """Runs the subcommand `ls` if no subcommand is given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ("--help", "--version")):
            args = ["ls", *args]
        return super().parse_args(ctx, args)
