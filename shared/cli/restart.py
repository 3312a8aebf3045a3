"""`cluster restart`."""

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
from shared.cli.wait_notice import WAITING, wait_notice
from shared.cli.worker_orders import progress_callback, restart, select_workers
from shared.client import Cluster
from shared.errors import InvalidRequest
from shared.messages.worker_report import WorkerReport

_HELP = """Restart workers, for example after an upgrade. A worker drains (see `cluster drain`),
ends, and runs the same command line again.

With --rolling one worker restarts after another, each when the one before is ready again, so that
the cluster keeps serving. If a worker does not come back, the remaining workers are not restarted.

\b
  cluster restart --rolling               all workers
  cluster restart --rolling mac-1 mac-2
  cluster restart mac-1 --deadline 0      its requests migrate at once
"""


@click.command(help=_HELP)
@click.argument("workers", metavar="[WORKER]...", nargs=-1, callback=reject_empty)
@click.option(
    "--rolling", is_flag=True, help="One worker after another; all workers if none is named."
)
@click.option(
    "--deadline", type=click.FloatRange(0, 86_400), metavar="SECONDS",
    help="Requests migrate after this time. Default: worker.drain_timeout_ms.",
)  # fmt: skip
@click.option(
    "--within", type=click.FloatRange(1, 86_400), default=300.0, show_default=True,
    metavar="SECONDS", help="Maximum time of a worker until it is ready again.",
)  # fmt: skip
@settings_options
@json_option
@version_option("cluster restart")
@prints_errors
def command(
    workers: Sequence[str],
    rolling: bool,
    deadline: float | None,
    within: float,
    config: Path | None,
    nats: str | None,
    token: str | None,
    as_json: bool,
) -> None:
    if not workers and not rolling:
        raise InvalidRequest("name the workers, or restart all with --rolling")

    async def work(cluster: Cluster) -> list[WorkerOrderResult]:
        async with wait_notice(WAITING):
            reports = await select_workers(cluster, workers)
        with ProgressDisplay(quiet=as_json) as display:

            async def order_one(report: WorkerReport) -> WorkerOrderResult:
                show = progress_callback(display, report)
                return await restart(cluster, report, show, deadline_s=deadline, limit_s=within)

            if not rolling:
                return list(await asyncio.gather(*map(order_one, reports)))
            outcomes: list[WorkerOrderResult] = []
            for report in reports:
                outcomes.append(outcome := await order_one(report))
                if outcome.done is None:
                    reason = f"not restarted, because {report.id} did not come back"
                    remaining = reports[len(outcomes) :]
                    outcomes += [
                        WorkerOrderResult(other.id, code="skipped", reason=reason)
                        for other in remaining
                    ]
                    break
            return outcomes

    try:
        outcomes = with_cluster(config, nats, token, work, shows_progress=True)
    except KeyboardInterrupt:
        click.echo("The workers that were already ordered to restart will restart.", err=True)
        sys.exit(130)
    print_outcomes(outcomes, "not all workers were restarted", as_json=as_json)
