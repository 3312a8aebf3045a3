"""`cluster status`."""

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from shared.cli.options import json_option, reports_errors, settings_options, version_option
from shared.cli.session import with_cluster
from shared.messages.codec import encode
from shared.messages.events import ModelStatus, WorkerReport
from shared.messages.health import ClusterHealth

_COLOURS = {
    "ready": "green", "warm": "green", "warming": "yellow", "loading": "yellow",
    "starting": "yellow", "draining": "yellow", "degraded": "yellow", "available": "dim",
    "unhealthy": "red", "failed": "red", "unavailable": "red", "stopped": "red",
}  # fmt: skip


@click.command(help="Show controllers, workers and models of a cluster.")
@settings_options
@json_option
@version_option("cluster status")
@reports_errors
def command(config: Path | None, nats: str | None, token: str | None, as_json: bool) -> None:
    health = with_cluster(config, nats, token, lambda cluster: cluster.health())
    if as_json:
        click.echo(encode(health).decode())
    else:
        show(health, Console(highlight=False))


def show(health: ClusterHealth, console: Console) -> None:
    """Print the whole cluster for people."""
    skills = "; ".join(f"{skill}: {', '.join(models)}" for skill, models in health.skills.items())
    console.print(f"Cluster {_coloured(health.status)}    skills  {skills}")
    console.print(_workers(health.workers))
    for controller in health.controllers:
        console.print(
            f"controller [bold]{controller.id}[/] {_coloured(controller.state)}, "
            f"{controller.active_requests} active, {controller.completed_requests} completed, "
            f"{controller.failed_requests} failed, up {_duration(controller.uptime_s)}"
        )


def _workers(workers: list[WorkerReport]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("worker", "state", "models", "device"):
        table.add_column(name)
    for name in ("active", "queued", "tok/s", "memory", "up"):
        table.add_column(name, justify="right")
    for worker in workers:
        table.add_row(
            f"[bold]{worker.id}[/]",
            _coloured(worker.state),
            "\n".join(_model(model) for model in worker.models),
            f"{worker.hardware.chip} ({worker.hardware.accelerator})",
            f"{worker.active_requests}/{worker.max_batch_size}",
            f"{worker.queued_requests}/{worker.max_queue_depth}",
            f"{worker.tokens_per_s:.0f}",
            f"{worker.memory_bytes / 2**30:.1f} GiB",
            _duration(worker.uptime_s),
        )
    return table


def _model(model: ModelStatus) -> str:
    progress = f" {model.progress:.0%}" if model.progress is not None else ""
    error = f": {model.error}" if model.error else ""
    return f"{model.id} {_coloured(model.state)}{progress}{error}"


def _coloured(state: str) -> str:
    colour = _COLOURS.get(state)
    return f"[{colour}]{state}[/]" if colour else state


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
