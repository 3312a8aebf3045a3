"""`cluster drain`."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from shared.cli.connection import with_cluster
from shared.cli.options import (
    json_option,
    prints_errors,
    reject_empty,
    settings_options,
    version_option,
)
from shared.cli.outcomes import WorkerOrderResult, print_outcomes
from shared.cli.progress import ProgressDisplay
from shared.cli.services.service import label_of
from shared.cli.wait_notice import WAITING, wait_notice
from shared.cli.worker_orders import drain, progress_callback, select_workers
from shared.client import Cluster
from shared.messages.worker_report import WorkerReport

_HELP = """Shut workers down gracefully, for example before maintenance of a Mac.

A draining worker accepts no new requests and finishes those that it has. Requests that have not
finished at the deadline (--deadline, else worker.drain_timeout_ms) migrate to other workers and
continue there. A drained worker does not come back until it is started again.

\b
  cluster drain mac-2
  cluster drain mac-2 mac-3 --deadline 5
  cluster drain mac-2 --deadline 0        its requests migrate at once
"""

_BRING_BACK = f"""To bring a worker back, run `worker` on its machine, or start its service:
  macOS  launchctl kickstart gui/$UID/{label_of("worker")}
  Linux  systemctl --user start {label_of("worker")}"""


@click.command(help=_HELP)
@click.argument("workers", metavar="WORKER...", nargs=-1, required=True, callback=reject_empty)
@click.option(
    "--deadline", type=click.FloatRange(0, 86_400), metavar="SECONDS",
    help="Requests migrate after this time. Default: worker.drain_timeout_ms.",
)  # fmt: skip
@click.option(
    "--wait/--no-wait", default=True, show_default=True, help="Wait until the workers have left."
)
@settings_options
@json_option
@version_option("cluster drain")
@prints_errors
def command(
    workers: Sequence[str],
    deadline: float | None,
    wait: bool,
    config: Path | None,
    nats: str | None,
    token: str | None,
    as_json: bool,
) -> None:
    async def work(cluster: Cluster) -> list[WorkerOrderResult]:
        async with wait_notice(WAITING):
            reports = await select_workers(cluster, workers)
        with ProgressDisplay(quiet=as_json) as display:

            async def order_one(report: WorkerReport) -> WorkerOrderResult:
                show = progress_callback(display, report)
                return await drain(cluster, report, show, deadline_s=deadline, wait=wait)

            return list(await asyncio.gather(*map(order_one, reports)))

    try:
        outcomes = with_cluster(config, nats, token, work, shows_progress=True)
    except KeyboardInterrupt:
        click.echo("The workers continue to drain.", err=True)
        sys.exit(130)
    print_outcomes(outcomes, "not all workers were drained", as_json=as_json)
    if wait and not as_json:
        click.echo(_BRING_BACK, err=True)
