"""`cluster bench agents`."""

import sys
import tempfile
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from shared.cli.benches import plot
from shared.cli.benches.comparison import BenchLoad, Comparison
from shared.cli.benches.files import as_json_text, save
from shared.cli.benches.report import report
from shared.cli.benches.trial import BenchTrial
from shared.cli.local.model import fetch_demo_model, model_flags
from shared.cli.local.serving import unless_asked
from shared.cli.options import (
    config_option,
    json_option,
    not_empty,
    read_settings,
    reports_errors,
    version_option,
)
from shared.cli.progress import LoadDisplay
from shared.errors import SettingsError
from shared.service import StopRequest, run_service

_INTERRUPTED = 130
_WIDTH_OF_FILES = 140

_HELP = """What the KV memory gives to agents.

Several agents work at once, each in a conversation of its own. All begin with the same long
system prompt that describes their tools; each turn adds a result and the model's answer, and
sends the whole conversation again. After half of the turns the cluster is stopped and started
again. All of this is done twice, without the KV memory and with it, with the same prompts.

\b
prompt       tokens of all agents' prompts in this turn
prefilled    of these, those that were computed; the others were kept
first token  from asking to the first token; waiting in the queue is part of it
answer       from asking to the end of the answer

Answers are greedy and must be the same on both sides; this is checked. (In half precision two
words that are equally likely may fall either way.)

The cluster is one of its own on this machine, and keeps its texts in a temporary folder. The
table goes to standard output, agents.json and agents.png into a folder.

\b
  cluster bench agents
  cluster bench agents --model mlx-community/Qwen3-4B-4bit --system-tokens 8000
  cluster bench agents --agents 3 --turns 4 --system-tokens 300    a quick one
"""


@click.command(help=_HELP)
@click.option(
    "--agents",
    default=10,
    show_default=True,
    type=click.IntRange(1, 64),
    help="How many work at once.",
)
@click.option(
    "--turns",
    default=6,
    show_default=True,
    type=click.IntRange(2, 100),
    help="Of each agent, one after another.",
)
@click.option(
    "--model",
    callback=not_empty,
    help="Model of the skill chat: alias, folder or Hugging Face id.",
)
@click.option(
    "--system-tokens",
    default=2000,
    show_default=True,
    type=click.IntRange(1, 200_000),
    help="Size of the system prompt, about.",
)
@click.option(
    "--turn-tokens",
    default=100,
    show_default=True,
    type=click.IntRange(1, 50_000),
    help="Size of what each turn adds before its answer, about.",
)
@click.option(
    "--max-tokens",
    default=32,
    show_default=True,
    type=click.IntRange(1, 8192),
    help="Longest answer.",
)
@click.option("--no-restart", is_flag=True, help="Do not start the cluster again in the middle.")
@click.option(
    "--output",
    default="bench-agents",
    show_default=True,
    metavar="FOLDER",
    callback=not_empty,
    help="Where plot and figures go. What an earlier run left there is replaced.",
)
@config_option
@click.option("--nats", metavar="URL", help="Not for this command: it starts its own cluster.")
@json_option
@version_option("cluster bench agents")
@reports_errors
def command(
    model: str | None,
    no_restart: bool,
    output: str,
    config: Path | None,
    nats: str | None,
    as_json: bool,
    **sizes: int,
) -> None:
    if nats is not None:
        raise SettingsError("--nats: `cluster bench agents` starts a cluster of its own")
    # A gateway would take its port from a cluster that is up.
    flags: dict[str, Any] = {**model_flags(model), "gateway": {"enabled": False}}
    settings = read_settings(config, None, None, flags)
    load = BenchLoad(**sizes, restart=not no_restart)
    folder = Path(output).expanduser()
    _prepare(folder)
    if (hint := plot.missing()) is not None:
        _say(hint)
    fetch_demo_model(settings)

    async def work(stop: StopRequest) -> int:
        with LoadDisplay(quiet=as_json) as display:
            trial = BenchTrial(load, config, model, settings, display, _say)
            comparison = await unless_asked(stop, trial.run())
        if comparison is None:
            return _INTERRUPTED
        publish(comparison, folder, as_json=as_json)
        return 0

    sys.exit(run_service(work))


def _prepare(folder: Path) -> None:
    """Raises SettingsError when nothing can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise _unwritable(folder, error) from None


def publish(comparison: Comparison, folder: Path, *, as_json: bool) -> None:
    """Print the figures, then write them and the plot.

    Raises:
        SettingsError: the folder takes no files any more.
    """
    if as_json:
        click.echo(as_json_text(comparison))
    else:
        console = Console(highlight=False)
        width = console.width if console.is_terminal else _WIDTH_OF_FILES
        for line in report(comparison, width):
            console.print(line, soft_wrap=True)
    try:
        written = save(comparison, folder)
    except OSError as error:
        raise _unwritable(folder, error) from None
    if not as_json:
        click.echo(f"Written: {', '.join(str(path) for path in written)}")
    if (hint := plot.missing()) is not None:
        _say(hint)


def _unwritable(folder: Path, error: OSError) -> SettingsError:
    return SettingsError(f"--output: cannot write to {folder}: {error.strerror or error}")


def _say(text: str) -> None:
    click.echo(text, err=True)
