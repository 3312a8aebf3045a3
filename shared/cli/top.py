"""`cluster top`."""

import asyncio
import math
import sys
import time
from pathlib import Path

import click
from rich.console import Console

from shared.cli.connection import with_cluster
from shared.cli.options import (
    json_option,
    print_error,
    prints_errors,
    settings_options,
    version_option,
)
from shared.cli.top_screen import TopScreen
from shared.cli.views.frame import TopFrameData, frame
from shared.client import Cluster
from shared.codec import encode
from shared.errors import ClusterError

_HELP = """Monitor workers, engines and models live. Without a terminal one frame is printed.

Keys: q quits, p pauses, s sorts workers by name, load or memory.

\b
Workers
state      with pre-warmed models (1/3), and ✗ with the number that failed
active     requests that generate / batch slots
queue      queued requests of high/medium/low priority
wait       p50/p95 time in the queue, of the priority that waits longest
tok/s      generated tokens per second; last min: the same as a graph
memory     used by the worker / its hard limit
limits     used memory, with ┼ at the soft limit and ┤ at the hard limit
cores      CPU cores in use / of the machine
restarts   engine processes that were restarted
balance    load balance of the engines: 1 is even
config     version of the rolled-out cluster.yaml; empty: its own file

\b
Engines, a line for each model
rows       sequences that decode / batch limit (adapts to the step time)
waiting    sequences that wait for a row
step       time of a decode step
stable     share of recent checks that left the batch limit unchanged
kv cache   KV caches of running sequences / their limit
reused     share of prompt tokens that came from KV memory
cached     KV memory in RAM; on disk: KV memory on disk
preempted  sequences that were paused because memory was short

\b
  cluster top
  cluster top --once | less
  cluster top --json --interval 10 >> health.jsonl
"""


def _interval(_: click.Context, parameter: click.Parameter, value: float) -> float:
    if math.isnan(value):  # FloatRange accepts NaN
        raise click.BadParameter("must be a number", param=parameter)
    return value


@click.command(help=_HELP)
@click.option(
    "--interval",
    "interval_s",
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    type=click.FloatRange(0.2, 60),
    callback=_interval,
    help="Time between updates, 0.2 to 60 s.",
)
@click.option(
    "--once",
    is_flag=True,
    help="Print one frame and exit. Default if the output is not a terminal.",
)
@settings_options
@json_option
@version_option("cluster top")
@prints_errors
def command(
    interval_s: float,
    once: bool,
    config: Path | None,
    nats: str | None,
    token: str | None,
    as_json: bool,
) -> None:
    console = Console(highlight=False)
    live = console.is_terminal and not console.is_dumb_terminal

    async def watch(cluster: Cluster) -> None:
        if as_json:
            await _print_json(cluster, interval_s, once=once)
        elif once or not live:
            data = TopFrameData(await cluster.health(), token_rates={}, live=False)
            for line in frame(data, console.width):
                console.print(line, soft_wrap=True)
        else:
            await TopScreen(cluster, console, interval_s).run()

    try:
        with_cluster(config, nats, token, watch, shows_progress=live)
    except KeyboardInterrupt:
        sys.exit(130)


async def _print_json(cluster: Cluster, interval_s: float, *, once: bool) -> None:
    """Print the health as one line per interval; later failures are printed on stderr.

    Raises:
        ClusterError: the first query of the health failed.
    """
    click.echo(encode(await cluster.health()).decode())
    due = time.monotonic()
    while not once:
        due = max(time.monotonic(), due + interval_s)
        await asyncio.sleep(due - time.monotonic())
        try:
            click.echo(encode(await cluster.health()).decode())
        except ClusterError as error:
            print_error(error, as_json=True)
