"""`cluster bench agents`."""

import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import orjson
from rich.console import Console

from shared.cli.benches import plot
from shared.cli.benches.comparison import BenchComparison, BenchLoad
from shared.cli.benches.report import report
from shared.cli.benches.trial import BenchTrial
from shared.cli.local.model import fetch_demo_model, model_flags
from shared.cli.local.serving import run_until_stopped
from shared.cli.options import (
    config_option,
    json_option,
    prints_errors,
    read_settings,
    reject_empty,
    version_option,
)
from shared.cli.progress import ProgressDisplay
from shared.errors import SettingsError
from shared.service import StopSignal, run_service


def as_json_text(comparison: BenchComparison) -> str:
    """Return the whole comparison as JSON."""
    return orjson.dumps(comparison.as_dict(), option=orjson.OPT_INDENT_2).decode()


def save(comparison: BenchComparison, folder: Path) -> list[Path]:
    """Write the results and, if matplotlib is installed, the plot; replace those of an earlier run.

    Returns:
        The written files.

    Raises:
        OSError: a file cannot be written.
    """
    results, picture = folder / "agents.json", folder / "agents.png"
    results.write_text(as_json_text(comparison) + "\n")
    picture.unlink(missing_ok=True)
    if plot.missing() is not None:
        return [results]
    plot.write_plot(comparison, picture)
    return [results, picture]


_INTERRUPTED = 130
_WIDTH_OF_FILES = 140

_HELP = """Measure what KV memory saves for agents.

Several agents work at once, each in its own conversation. All share a long system prompt that
describes their tools. Each turn adds a tool result and the model's answer, and sends the whole
conversation again. After half of the turns the cluster is restarted. Everything is done twice with
the same prompts: without KV memory, then with it.

\b
prompt       tokens of all prompts in this turn
prefilled    the tokens of these that were computed; the others were cached
first token  time from the request to the first token, including the queue
answer       time from the request to the end of the answer

Answers are greedy and must be equal in both runs, which is checked. (In half precision two equally
likely tokens may be chosen differently.)

The benchmark starts its own cluster on this machine, with KV memory in a temporary folder. It
prints the table on standard output; agents.json and agents.png are written into a folder.

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
    help="Number of agents that work at once.",
)
@click.option(
    "--turns",
    default=6,
    show_default=True,
    type=click.IntRange(2, 100),
    help="Turns of each agent.",
)
@click.option(
    "--model",
    callback=reject_empty,
    help="Model for the skill chat: alias, folder or Hugging Face id.",
)
@click.option(
    "--system-tokens",
    default=2000,
    show_default=True,
    type=click.IntRange(1, 200_000),
    help="Approximate size of the system prompt.",
)
@click.option(
    "--turn-tokens",
    default=100,
    show_default=True,
    type=click.IntRange(1, 50_000),
    help="Approximate size of what a turn adds before its answer.",
)
@click.option(
    "--max-tokens",
    default=32,
    show_default=True,
    type=click.IntRange(1, 8192),
    help="Maximum tokens of an answer.",
)
@click.option(
    "--no-restart", is_flag=True, help="Do not restart the cluster after half of the turns."
)
@click.option(
    "--output",
    default="bench-agents",
    show_default=True,
    metavar="FOLDER",
    callback=reject_empty,
    help="Folder for plot and results. Those of an earlier run are replaced.",
)
@config_option
@click.option("--nats", metavar="URL", help="Not supported: this command starts its own cluster.")
@json_option
@version_option("cluster bench agents")
@prints_errors
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
    # A gateway would conflict with the port of a cluster that already runs.
    flags: dict[str, Any] = {**model_flags(model), "gateway": {"enabled": False}}
    settings = read_settings(config, None, None, flags)
    load = BenchLoad(**sizes, restart=not no_restart)
    folder = Path(output).expanduser()
    _prepare(folder)
    if (hint := plot.missing()) is not None:
        _print_status(hint)
    fetch_demo_model(settings)

    async def work(stop: StopSignal) -> int:
        with ProgressDisplay(quiet=as_json) as display:
            trial = BenchTrial(load, config, model, settings, display, _print_status)
            comparison = await run_until_stopped(stop, trial.run())
        if comparison is None:
            return _INTERRUPTED
        publish(comparison, folder, as_json=as_json)
        return 0

    sys.exit(run_service(work))


def _prepare(folder: Path) -> None:
    """Create the folder, and check that it is writable.

    Raises:
        SettingsError: the folder is not writable.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise _unwritable(folder, error) from None


def publish(comparison: BenchComparison, folder: Path, *, as_json: bool) -> None:
    """Print the results, then write the results and the plot.

    Raises:
        SettingsError: the folder is not writable.
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
        _print_status(hint)


def _unwritable(folder: Path, error: OSError) -> SettingsError:
    return SettingsError(f"--output: cannot write to {folder}: {error.strerror or error}")


def _print_status(text: str) -> None:
    click.echo(text, err=True)
