"""`cluster drain`."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from shared.cli.options import (
    json_option,
    not_empty,
    reports_errors,
    settings_options,
    version_option,
)
from shared.cli.outcomes import Outcome, tell
from shared.cli.progress import LoadDisplay
from shared.cli.services.service import label_of
from shared.cli.session import with_cluster
from shared.cli.worker_orders import drain, named, shown_on
from shared.client import Cluster
from shared.messages.worker_report import WorkerReport

_HELP = """Have workers end, as before a Mac is shut down or looked after.

They take nothing new. Streams end by themselves until the deadline (worker.drain_timeout_ms unless
it is given here); those that have not go on at other workers, where they were. A worker that was
drained stays away until it is started again.

\b
  cluster drain mac-2
  cluster drain mac-2 mac-3 --deadline 5
  cluster drain mac-2 --deadline 0        its streams go on elsewhere at once
"""

_BRING_BACK = f"""To bring a worker back, run `worker` on its machine, or start its service:
  macOS  launchctl kickstart gui/$UID/{label_of("worker")}
  Linux  systemctl --user start {label_of("worker")}"""


@click.command(help=_HELP)
@click.argument("workers", metavar="WORKER...", nargs=-1, required=True, callback=not_empty)
@click.option(
    "--deadline", type=click.FloatRange(0, 86_400), metavar="SECONDS",
    help="Streams go on elsewhere after so long.",
)  # fmt: skip
@click.option("--wait/--no-wait", default=True, show_default=True, help="Until they have left.")
@settings_options
@json_option
@version_option("cluster drain")
@reports_errors
def command(
    workers: Sequence[str],
    deadline: float | None,
    wait: bool,
    config: Path | None,
    nats: str | None,
    token: str | None,
    as_json: bool,
) -> None:
    async def work(cluster: Cluster) -> list[Outcome]:
        reports = await named(cluster, workers)
        with LoadDisplay(quiet=as_json) as display:

            async def one(report: WorkerReport) -> Outcome:
                show = shown_on(display, report)
                return await drain(cluster, report, show, deadline_s=deadline, wait=wait)

            return list(await asyncio.gather(*map(one, reports)))

    try:
        outcomes = with_cluster(config, nats, token, work)
    except KeyboardInterrupt:
        click.echo("The workers go on draining.", err=True)
        sys.exit(130)
    tell(outcomes, "not all were drained", as_json=as_json)
    if wait and not as_json:
        click.echo(_BRING_BACK, err=True)
