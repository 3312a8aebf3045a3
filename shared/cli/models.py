"""`cluster models`."""

import asyncio
import itertools
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import click
import orjson
from rich.console import Console

from shared.cli.connection import with_cluster
from shared.cli.lazy_group import DefaultListGroup
from shared.cli.model_orders import LOADED, load, models_on_workers, pin, unload
from shared.cli.options import (
    json_option,
    prints_errors,
    reject_empty,
    settings_options,
    version_option,
)
from shared.cli.outcomes import WorkerOrderResult, print_outcomes
from shared.cli.progress import ProgressDisplay
from shared.cli.views.models import (
    ModelTableRow,
    batching_lines,
    error_lines,
    model_activity,
    model_rows,
    model_table,
    warning_lines,
)
from shared.cli.wait_notice import WAITING, wait_notice
from shared.client import Cluster
from shared.ids import ModelId, WorkerId
from shared.messages.health import ClusterHealth
from shared.messages.model_status import ModelStatus
from shared.terminal_text import printable

_HELP = """List the models of all workers; load, unload and pin them.

\b
state     warm: loaded
          loading, or the phase of loading, with a progress bar
          available: not loaded; a request or `load` loads it
          failed: could not be loaded; the reason is below the table
priority  order of loading, and of eviction when memory is short
idle      time since the last request
active    requests that generate; queued: requests that wait

\b
  cluster models
  cluster models load qwen3-4b
  cluster models unload qwen3-4b --worker mac-2
"""


@click.group(cls=DefaultListGroup, help=_HELP)
@version_option("cluster models")
def command() -> None:
    pass


def _model_and_worker(function: Callable[..., None]) -> Callable[..., None]:
    worker = click.option("--worker", metavar="ID", callback=reject_empty, help="Only this worker.")
    return click.argument("model", callback=reject_empty)(worker(function))


@command.command("ls")
@settings_options
@json_option
@prints_errors
def list_models(config: Path | None, nats: str | None, token: str | None, as_json: bool) -> None:
    """List all models of all workers. The default subcommand."""
    health = with_cluster(config, nats, token, lambda cluster: cluster.health())
    if as_json:
        click.echo(orjson.dumps(_as_dict(health)).decode())
        return
    rows = sorted(model_rows(health.workers), key=lambda row: (row.model.id, row.worker))
    if not rows:
        click.echo("No worker has a model.")
        return
    console = Console(highlight=False)
    width = console.width
    below = [lines(rows, width) for lines in (error_lines, batching_lines, warning_lines)]
    for line in itertools.chain(model_table(rows, width), *below):
        console.print(line, soft_wrap=True)


@command.command("load")
@_model_and_worker
@click.option(
    "--wait/--no-wait", default=True, show_default=True, help="Wait until the model is warm."
)
@settings_options
@json_option
@prints_errors
def load_model(
    model: str,
    worker: str | None,
    wait: bool,
    config: Path | None,
    nats: str | None,
    token: str | None,
    as_json: bool,
) -> None:
    """Load MODEL on all workers that are configured with it."""

    async def work(cluster: Cluster) -> list[WorkerOrderResult]:
        async with wait_notice(WAITING):
            health = await cluster.health()
        rows = models_on_workers(health, ModelId(model), _worker_id(worker))
        with ProgressDisplay(quiet=as_json) as display:

            async def load_one(row: ModelTableRow) -> WorkerOrderResult:
                def show(status: ModelStatus) -> None:
                    display.update(
                        row.worker, f"{model_activity(status)} {model}", status.progress or 0.0
                    )

                return await load(cluster, row, show, wait=wait)

            return await _send_all(rows, load_one)

    try:
        outcomes = with_cluster(config, nats, token, work, shows_progress=True)
    except KeyboardInterrupt:
        click.echo("The workers continue to load.", err=True)
        sys.exit(130)
    print_outcomes(outcomes, f"{model} could not be loaded", model=model, as_json=as_json)


@command.command("unload")
@_model_and_worker
@settings_options
@json_option
@prints_errors
def unload_model(
    model: str,
    worker: str | None,
    config: Path | None,
    nats: str | None,
    token: str | None,
    as_json: bool,
) -> None:
    """Unload MODEL from all workers that have it loaded. Refused while requests use the model."""

    async def work(cluster: Cluster) -> list[WorkerOrderResult]:
        rows = models_on_workers(await cluster.health(), ModelId(model), _worker_id(worker))
        if worker is None:
            rows = [row for row in rows if row.model.state in LOADED]
        return await _send_all(rows, lambda row: unload(cluster, row))

    outcomes = with_cluster(config, nats, token, work)
    if not outcomes and not as_json:
        click.echo(f"No worker has {printable(model)} loaded.")
    print_outcomes(outcomes, f"{model} could not be unloaded", model=model, as_json=as_json)


def _pin_command(name: str, help: str, *, pinned: bool) -> None:
    """Add a subcommand that pins a model, or ends that."""

    @command.command(name, help=help)
    @_model_and_worker
    @settings_options
    @json_option
    @prints_errors
    def send(
        model: str,
        worker: str | None,
        config: Path | None,
        nats: str | None,
        token: str | None,
        as_json: bool,
    ) -> None:
        async def work(cluster: Cluster) -> list[WorkerOrderResult]:
            rows = models_on_workers(await cluster.health(), ModelId(model), _worker_id(worker))
            return await _send_all(rows, lambda row: pin(cluster, row, pinned=pinned))

        outcomes = with_cluster(config, nats, token, work)
        print_outcomes(outcomes, f"{model} could not be {name}ned", model=model, as_json=as_json)


_pin_command(
    "pin",
    "Pin MODEL: until a worker restarts it evicts the model for no other one.",
    pinned=True,
)
_pin_command(
    "unpin",
    "Unpin MODEL, so that it may be evicted when memory is short.",
    pinned=False,
)


def _worker_id(name: str | None) -> WorkerId | None:
    return WorkerId(name) if name is not None else None


async def _send_all(
    rows: Sequence[ModelTableRow], order: Callable[[ModelTableRow], Awaitable[WorkerOrderResult]]
) -> list[WorkerOrderResult]:
    """Send an order to several workers concurrently; return the outcomes in the order of `rows`."""

    async def send(row: ModelTableRow) -> WorkerOrderResult:
        return await order(row)

    async with asyncio.TaskGroup() as tasks:
        sent = [tasks.create_task(send(row)) for row in rows]
    return [task.result() for task in sent]


def _as_dict(health: ClusterHealth) -> dict[str, Any]:
    """Return the fields of the health that are about models, under the same names."""
    workers = [
        {
            "id": worker.id,
            "state": worker.state,
            "models": [model.model_dump(exclude_none=True) for model in worker.models],
        }
        for worker in health.workers
    ]
    return {"protocol": health.protocol, "skills": health.skills, "workers": workers}
