"""A command whose subcommands are imported when they are used."""

import importlib
from collections.abc import Mapping
from typing import Any

import click
from click.exceptions import NoSuchCommand


class LazyGroup(click.Group):
    """Each subcommand is the `command` of the module of its name in `package`.

    Args:
        summaries: what each does, by name, in the order of the help.
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
        except NoSuchCommand as error:  # click suggests only what it has imported
            name = error.command_name
            raise NoSuchCommand(name, possibilities=self._summaries, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._summaries.items()))
