"""The `cluster` command. Its subcommands are imported when they are used."""

import importlib
import logging

import click

from shared.cli.options import version_option

_COMMANDS = {
    "up": "Start a whole cluster on this machine.",
    "run": "Ask one question and stream the answer.",
    "chat": "Talk to a model.",
    "status": "Show controllers, workers and models.",
    "top": "Watch workers, engines and models.",
    "models": "List, load and unload models.",
    "sessions": "List, pin and remove conversations.",
    "logs": "Follow the logs of all processes.",
}
_HELP = """Use and look after a cluster of MLX workers.

\b
  cluster up                                   everything on this machine
  cluster run "What is the capital of France?"
  cluster chat
  cluster status
  cluster top                                  the same, live
"""


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = importlib.import_module(f"shared.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=_LazyGroup, help=_HELP)
@version_option("cluster")
def main() -> None:
    # Errors are shown by the commands; the libraries' own warnings are for services.
    logging.getLogger().addHandler(logging.NullHandler())
