"""`cluster restart`."""

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
from shared.cli.session import with_cluster
from shared.cli.worker_orders import named, restart, shown_on
from shared.client import Cluster
from shared.errors import InvalidRequest
from shared.messages.worker_report import WorkerReport

_HELP = """Start workers again, as after an upgrade: each drains (see `cluster drain`), ends, and
runs the same command line anew.

With --rolling one after another: the next one only when the one before is ready again, so that the
cluster goes on serving. Where one does not come back, the others are left alone.

\b
  cluster restart --rolling               all workers
  cluster restart --rolling mac-1 mac-2
  cluster restart mac-1 --deadline 0      its streams go on elsewhere at once
"""


@click.command(help=_HELP)
@click.argument("workers", metavar="[WORKER]...", nargs=-1, callback=not_empty)
@click.option("--rolling", is_flag=True, help="One after another; all, unless some are named.")
@click.option(
    "--deadline", type=click.FloatRange(0, 86_400), metavar="SECONDS",
    help="Streams go on elsewhere after so long. Default: worker.drain_timeout_ms.",
)  # fmt: skip
@click.option(
    "--within", type=click.FloatRange(1, 86_400), default=300.0, show_default=True,
    metavar="SECONDS", help="How long one may take until it is ready again.",
)  # fmt: skip
@settings_options
@json_option
@version_option("cluster restart")
@reports_errors
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
        raise InvalidRequest("name the workers, or start all again with --rolling")

    async def work(cluster: Cluster) -> list[Outcome]:
        reports = await named(cluster, workers)
        with LoadDisplay(quiet=as_json) as display:

            async def one(report: WorkerReport) -> Outcome:
                show = shown_on(display, report)
                return await restart(cluster, report, show, deadline_s=deadline, limit_s=within)

            if not rolling:
                return list(await asyncio.gather(*map(one, reports)))
            outcomes: list[Outcome] = []
            for report in reports:
                outcomes.append(outcome := await one(report))
                if outcome.done is None:
                    reason = f"left alone, as {report.id} is not back"
                    others = reports[len(outcomes) :]
                    outcomes += [
                        Outcome(other.id, code="skipped", reason=reason) for other in others
                    ]
                    break
            return outcomes

    try:
        outcomes = with_cluster(config, nats, token, work)
    except KeyboardInterrupt:
        click.echo("The workers that were told so start again.", err=True)
        sys.exit(130)
    tell(outcomes, "not all were started again", as_json=as_json)
