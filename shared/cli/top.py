"""`cluster top`."""

import asyncio
import math
import sys
import time
from pathlib import Path

import click
from rich.console import Console

from shared.cli.options import (
    json_option,
    print_error,
    reports_errors,
    settings_options,
    version_option,
)
from shared.cli.session import with_cluster
from shared.cli.top_screen import TopScreen
from shared.cli.views.frame import Look, frame
from shared.client import Cluster
from shared.codec import encode
from shared.errors import ClusterError

_HELP = """Watch a cluster: workers, engines and models, renewed again and again.

\b
Keys    q ends, p pauses, s sorts workers by name, load or memory
state   with how many models are pre-warmed, and ✗ how many failed
queue   requests of high/medium/low priority
wait    p50/p95 of the priority that waits longest
limits  memory, with ┼ at the soft limit and ┤ at the hard one

\b
  cluster top
  cluster top --once | less
  cluster top --json --interval 10 >> health.jsonl
"""


def _interval(_: click.Context, parameter: click.Parameter, value: float) -> float:
    if math.isnan(value):  # a range takes it
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
    help="How often to ask, 0.2 to 60 s.",
)
@click.option("--once", is_flag=True, help="Print one frame. Default where output is no terminal.")
@settings_options
@json_option
@version_option("cluster top")
@reports_errors
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
            look = Look(await cluster.health(), speeds={}, live=False)
            for line in frame(look, console.width):
                console.print(line, soft_wrap=True)
        else:
            await TopScreen(cluster, console, interval_s).run()

    try:
        with_cluster(config, nats, token, watch)
    except KeyboardInterrupt:
        sys.exit(130)


async def _print_json(cluster: Cluster, interval_s: float, *, once: bool) -> None:
    """A line of health for each interval; where there is none, why, on stderr.

    Raises:
        ClusterError: the first time it was there none.
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
