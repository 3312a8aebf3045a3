"""The `worker` command."""

import asyncio
import logging
import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from shared import subjects
from shared.bus import Bus
from shared.bus_metrics import BusMetrics
from shared.cli.membership_commands import membership_commands
from shared.cli.options import (
    json_option,
    no_discovery_option,
    prints_errors,
    read_settings,
    reject_empty,
    settings_options,
    version_option,
)
from shared.discovery.selection import is_server_unset, select_servers
from shared.errors import BusTimeout, NoResponders, SettingsError
from shared.folders import data_folder
from shared.ids import WorkerId, is_name, name_from
from shared.logs import BusLogHandler, set_up_logging
from shared.metrics_server import serving_metrics
from shared.python_module import python_module
from shared.service import StopSignal, run_on_bus, run_service
from shared.settings import ClusterSettings
from shared.settings.base import DEMO_MODEL
from shared.settings.rolled_out import RolledOutVersion, ignored_settings
from shared.telemetry import Tracer, check_installed, tracing
from worker.agent.agent import WorkerAgent
from worker.agent.configuration import RolledOutConfiguration
from worker.agent.engine_count import engine_count
from worker.agent.metrics import worker_registry
from worker.host.machine import available_cores, this_machine
from worker.models import demo_model


def stable_worker_id() -> WorkerId:
    """Return the id that this machine used before, or derive one from the host name."""
    path = data_folder() / "worker-id"
    if path.is_file() and is_name(stored := path.read_text().strip()):
        return WorkerId(stored)
    derived = name_from(socket.gethostname())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(derived + "\n")
    return WorkerId(derived)


logger = logging.getLogger(__name__)

_RESTART_STATUS = 75

_HELP = """Serve models of this machine to a cluster.

Connects to NATS, loads its models, and serves requests until it is stopped. Ctrl-C finishes
running requests first; a second Ctrl-C stops at once.

\b
  worker join                                  with a token from `cluster auth add worker NAME`
  worker                                       the joined cluster; else the cluster on this
                                               machine, or the open one on this network
  worker --nats nats://192.168.1.20:4222 --token secret
  worker --model mlx-community/Qwen3-4B-4bit
  worker --check
"""


@click.group(help=_HELP, invoke_without_command=True)
@settings_options
@click.option(
    "--id", "worker_id", help="Name of this worker. Default: from the host name, stored on disk."
)
@click.option(
    "--model",
    "models",
    multiple=True,
    callback=reject_empty,
    help="Model to serve: alias, folder or Hugging Face id.",
)
@click.option(
    "--metrics-port", type=click.IntRange(0, 65535),
    help="Serve Prometheus metrics on this port, on this machine only (0: any free port).",
)  # fmt: skip
@click.option("--check", is_flag=True, help="Show device, BLAS, threads, memory, speed; then exit.")
@click.option(
    "--fetch", metavar="MODEL", help="Download and convert a built-in model (demo), then exit."
)
@no_discovery_option
@json_option
@version_option("worker")
@click.pass_context
@prints_errors
def main(
    context: click.Context,
    config: Path | None,
    nats: str | None,
    token: str | None,
    worker_id: str | None,
    models: tuple[str, ...],
    metrics_port: int | None,
    check: bool,
    fetch: str | None,
    no_discovery: bool,
    as_json: bool,
) -> None:
    if context.invoked_subcommand is not None:
        return
    if fetch is not None:
        _fetch(fetch)
        return
    section: dict[str, Any] = {}
    if worker_id is not None:
        section["id"] = worker_id
    if models:
        section["models"] = list(models)
    if metrics_port is not None:
        section["metrics"] = {"enabled": True, "port": metrics_port}
    flags: dict[str, Any] = {"worker": section} if section else {}
    if no_discovery:
        flags["discovery"] = {"enabled": False}
    if as_json:
        flags["logging"] = {"format": "json"}
    own = read_settings(config, nats, token, flags, command="worker")
    if check:
        sys.exit(_check(own, as_json=as_json))
    if is_server_unset(own):
        log = partial(click.echo, err=True)
        nats = ",".join(asyncio.run(select_servers(own.discovery, own.nats, log)))
        own = read_settings(config, nats, token, flags, command="worker")
    identity = WorkerId(own.worker.id) if own.worker.id else stable_worker_id()

    def load(rolled_out: RolledOutVersion | None) -> ClusterSettings:
        settings = read_settings(
            config,
            nats,
            token,
            flags,
            command="worker",
            rolled_out=rolled_out,
            machine=lambda settings: this_machine(identity, settings.worker.labels),
        )
        check_installed(settings.telemetry)
        return settings

    configuration = RolledOutConfiguration(identity, own.nats.servers, load)
    settings = configuration.begin()
    logs = set_up_logging(settings.logging, "worker", identity)
    for key in ignored_settings(settings):
        logger.warning("%s is no longer used; remove it from the settings", key)
    environment = dict(os.environ)  # before `run_service` removes the variable of its parent
    status = run_service(lambda stop: _serve(settings, identity, logs, configuration, stop))
    if status == _RESTART_STATUS:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
    sys.exit(status)


for joining in membership_commands("worker"):
    main.add_command(joining)


async def _serve(
    settings: ClusterSettings,
    identity: WorkerId,
    logs: BusLogHandler,
    configuration: RolledOutConfiguration,
    stop: StopSignal,
) -> int:
    restart = False

    async def work(bus: Bus, tracer: Tracer | None) -> None:
        nonlocal restart
        await _check_name(bus, identity)
        agent = WorkerAgent(settings, bus, identity, logs, configuration, tracer)
        registry = worker_registry(agent.report, agent.refused)
        registry.register(BusMetrics(bus.statistics))
        with serving_metrics(settings.worker.metrics, registry, section="worker.metrics") as url:
            if url is not None:
                logger.info("Prometheus metrics at %s", url)
            restart = await agent.run(stop)

    async with tracing(settings.telemetry, "worker", identity) as tracer:
        status = await run_on_bus(
            stop, settings.nats, "worker", identity, lambda bus: work(bus, tracer)
        )
    return _RESTART_STATUS if restart else status


async def _check_name(bus: Bus, identity: WorkerId) -> None:
    """Raises SettingsError if a worker of this name already serves the cluster."""
    try:
        await bus.request(subjects.worker_health(identity), b"", timeout_s=2)
    except (NoResponders, BusTimeout):
        return
    raise SettingsError(
        f"a worker named {identity} already serves this cluster; choose another name with --id"
    )


def _fetch(model: str) -> None:
    if model != DEMO_MODEL:
        raise SettingsError(f"--fetch: only {DEMO_MODEL!r} is built in, not {model!r}")
    if demo_model.is_present():
        click.echo(demo_model.folder())
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("demo model", total=1.0)
        shown = ""

        def report(stage: str, share: float | None) -> None:
            nonlocal shown
            if stage != shown and not bar.console.is_terminal:
                bar.console.print(f"demo model: {stage}")
            shown = stage
            bar.update(task, description=f"demo model: {stage}", completed=share or 0.0)

        path = demo_model.ensure(report)
        bar.update(task, description="demo model: ready", completed=1.0)
    click.echo(path)


def _check(settings: ClusterSettings, *, as_json: bool) -> int:
    """Run the check in a separate process, since only the engine package may import MLX."""
    plan = engine_count(settings)
    threads = settings.worker.engines.fixed_threads or available_cores()
    command = [
        *(*python_module("worker.engine.check"), "--threads", str(threads)),
        *("--engines", str(plan.count), "--why", plan.why),
    ]
    return subprocess.run([*command, *(["--json"] if as_json else [])], check=False).returncode


if __name__ == "__main__":
    main()
