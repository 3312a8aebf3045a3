"""`cluster up`."""

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import orjson
from filelock import FileLock, Timeout

from shared.cli.local.access import SharedToken, credential_variables
from shared.cli.local.addresses import (
    DEFAULT_PORT,
    cluster_folder,
    is_loopback,
    network_address,
    required_token,
)
from shared.cli.local.cluster import LocalCluster, LocalPlan
from shared.cli.local.http_gateway import check_port
from shared.cli.local.model import fetch_demo_model, model_flags
from shared.cli.local.serving import run_supervised, run_until_stopped, wait_until_ready
from shared.cli.options import (
    config_option,
    json_option,
    prints_errors,
    read_settings,
    reject_empty,
    version_option,
)
from shared.cli.progress import StartupDisplay
from shared.cli.views.formatting import count
from shared.client import connect
from shared.errors import SettingsError
from shared.folders import make_private
from shared.loopback import is_surely_loopback
from shared.messages.health import ClusterHealth
from shared.service import StopSignal, run_service
from shared.settings import ClusterSettings
from shared.settings.gateway import GatewaySettings
from shared.terminal_text import escaped, printable

_HELP = """Start a whole cluster on this machine: a NATS server, a controller and workers.

Ctrl-C stops it after the answers that run; a second Ctrl-C stops at once. With a COMMAND, that is
run when the cluster is ready, and its exit status is returned:

\b
  cluster up                        one worker with the demo model
  cluster up --workers 2 --model ~/models/Qwen3-4B-4bit
  cluster up --listen 0.0.0.0       prints the line with which other Macs join
  cluster up --http-port 8000       with OpenAI's and Anthropic's APIs
  cluster up --metrics-port 9464    with metrics for Prometheus
  cluster up --nats-port 0 -- cluster run "Hello"
"""


@click.command(help=_HELP, context_settings={"ignore_unknown_options": False})
@click.option("--workers", default=1, show_default=True, type=click.IntRange(1, 64))
@click.option(
    "--model",
    callback=reject_empty,
    help="Model for the skill chat: alias, folder or Hugging Face id.",
)
@click.option(
    "--nats-port",
    default=DEFAULT_PORT,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port of the NATS server; 0 for any free one.",
)
@click.option(
    "--listen",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDR",
    help="Address on which the NATS server listens. Other machines need a token.",
)
@click.option(
    "--http-port",
    type=click.IntRange(0, 65535),
    help="Start a gateway for OpenAI's and Anthropic's APIs on this port; 0 for any free one. "
    "Default: only if gateway.enabled is set.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Serve Prometheus metrics: the controller on this port, the workers on the next ones; 0 "
    "for any free ones. The gateway has its own at /metrics.",
)
@click.option(
    "--token", help="Token for other machines. Default: created once and stored, if needed."
)
@config_option
@click.option("--nats", metavar="URL", help="Not supported: this command starts its own server.")
@json_option
@version_option("cluster up")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@prints_errors
def command(
    workers: int,
    model: str | None,
    nats_port: int,
    listen: str,
    http_port: int | None,
    metrics_port: int | None,
    token: str | None,
    config: Path | None,
    nats: str | None,
    as_json: bool,
    command: tuple[str, ...],
) -> None:
    if nats is not None:
        raise SettingsError(
            "--nats: `cluster up` starts a NATS server of its own. To join the cluster at "
            f"{nats}, run `worker --nats {nats}`"
        )
    settings = read_settings(config, None, None, settings_of_flags(model, http_port))
    with _locked_folder(nats_port) as folder:
        token = token or required_token(listen, folder)
        plan = LocalPlan(
            workers=workers,
            host=listen,
            port=nats_port,
            access=SharedToken(token),
            config=config,
            model=model,
            folder=folder,
            metrics_port=metrics_port,
        )
        if settings.gateway.enabled:
            check_port(settings.gateway)  # before a model is downloaded or loaded
        fetch_demo_model(settings)
        up = UpRun(plan, settings, list(command), token=token, as_json=as_json)
        sys.exit(run_service(up.run))


class UpRun:
    """One run of `cluster up`."""

    def __init__(
        self,
        plan: LocalPlan,
        settings: ClusterSettings,
        command: list[str],
        *,
        token: str | None,
        as_json: bool,
    ) -> None:
        self._plan = plan
        self._token = token
        self._settings = settings
        self._command = command
        self._as_json = as_json
        self._local = LocalCluster(plan, settings, self._print_status)

    async def run(self, stop: StopSignal) -> int:
        """Start all processes, serve until a stop request or the end of the command, and stop."""
        try:
            await self._local.start()
            return await self._serve(stop)
        finally:
            if stop.immediate:
                await self._local.kill()
            else:
                if not self._command:
                    self._print_status("stopping ...")
                await self._local.stop()

    async def _serve(self, stop: StopSignal) -> int:
        status = await run_until_stopped(stop, run_supervised(self._local, self._work()))
        return status if status is not None else 0

    async def _work(self) -> int:
        async with connect(self._local.client) as cluster:
            with StartupDisplay(quiet=bool(self._command)) as display:
                health = await wait_until_ready(cluster, self._local.worker_ids, display.show)
        if self._command:
            return await self._run_command()
        self._print_ready(health)
        await asyncio.Event().wait()  # until cancelled
        return 0

    def _print_ready(self, health: ClusterHealth) -> None:
        url = self._local.nats.url
        if self._as_json:
            line = {
                "nats_url": url,
                "http_url": self._local.http_url,
                "workers": self._local.worker_ids,
                "controllers": self._local.controller_ids,
                "metrics_urls": self._metrics_urls,
            }
            click.echo(orjson.dumps(line).decode())
            sys.stdout.flush()
            return
        where = "" if self._local.nats.port == DEFAULT_PORT else f" --nats {url}"
        click.echo(
            f"{click.style('Ready', fg='green', bold=True)} at {url}, "
            f"{count(len(self._local.worker_ids), 'worker')}, {models_text(health)}. "
            "In another terminal:\n"
            f'  cluster run{where} "What is the capital of France?"\n'
            f"  cluster chat{where}\n"
            f"  cluster status{where}\n"
            f"Logs: cluster logs{where}, or {self._plan.folder / 'logs'}"
        )
        if (http_url := self._local.http_url) is not None:
            click.echo(for_clients(http_url, self._settings.gateway, health))
        else:
            click.echo("For OpenAI's and Anthropic's clients: cluster up --http-port 8000")
        if self._metrics_urls:
            urls = "".join(f"\n  {url}" for url in self._metrics_urls.values())
            click.echo(f"Metrics for Prometheus:{urls}")
        if not is_loopback(self._plan.host):
            click.echo(
                "Other Macs join with:\n"
                f"  worker --nats nats://{network_address(self._plan.host, self._local.nats.port)} "
                f"--token {self._token}"
            )
        click.echo("Ctrl-C stops the cluster.")

    @property
    def _metrics_urls(self) -> dict[str, str]:
        ports = self._local.metrics_ports.items()
        return {name: f"http://127.0.0.1:{port}/metrics" for name, port in ports}

    async def _run_command(self) -> int:
        environment = {
            **os.environ,
            "CLUSTER__NATS__SERVERS": orjson.dumps([self._local.nats.url]).decode(),
            **credential_variables(self._local.client),
        }
        if (http_url := self._local.http_url) is not None:
            environment["OPENAI_BASE_URL"] = f"{http_url}/v1"
            environment["ANTHROPIC_BASE_URL"] = http_url
        try:
            process = await asyncio.create_subprocess_exec(*self._command, env=environment)
        except OSError as error:
            raise SettingsError(f"{self._command[0]}: {error.strerror}") from None
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()

    def _print_status(self, text: str) -> None:
        click.echo(escaped(text), err=True)


def models_text(health: ClusterHealth) -> str:
    """For example: model demo (skill chat)."""
    skills = (
        f"model {', '.join(models)} (skill {skill})" for skill, models in health.skills.items()
    )
    return printable(", ".join(skills)) or "no model"


def for_clients(url: str, gateway: GatewaySettings, health: ClusterHealth) -> str:
    """Return the variables and model names for OpenAI's and Anthropic's clients, and the page."""
    has_keys = gateway.keys_file is not None or not is_surely_loopback(gateway.host)
    key = "none" if gateway.allow_anonymous or not has_keys else "KEY"
    names = dict.fromkeys(str(name) for skill, models in health.skills.items()
                          for name in (skill, *models))  # fmt: skip
    hint = ["  `gateway keys add NAME` prints a KEY."] if key == "KEY" else []
    return "\n".join(
        [
            "For OpenAI's and Anthropic's clients (see docs/clients.md):",
            f"  export OPENAI_BASE_URL={url}/v1 OPENAI_API_KEY={key}",
            f"  export ANTHROPIC_BASE_URL={url} ANTHROPIC_AUTH_TOKEN={key}",
            *hint,
            f"  model names: {printable(', '.join(names))}",
            f"In a browser, the cluster and a chat: {url}/",
        ]
    )


def settings_of_flags(model: str | None, http_port: int | None) -> dict[str, Any]:
    """Return the settings of the options."""
    flags = model_flags(model)
    if http_port is not None:
        flags["gateway"] = {"enabled": True, "port": http_port}
    return flags


@contextlib.contextmanager
def _locked_folder(port: int) -> Iterator[Path]:
    """Lock and return the data folder of the cluster on this port; a temporary folder for port 0.

    Raises:
        SettingsError: another `cluster up` uses the folder, or it cannot be written.
    """
    if port == 0:
        with tempfile.TemporaryDirectory(prefix="mlx-cluster-") as name:
            yield Path(name)
        return
    folder = cluster_folder(port)
    lock = FileLock(folder / "lock", timeout=0)
    try:
        make_private(folder)
        lock.acquire()
    except Timeout:
        raise SettingsError(
            f"a cluster already runs on port {port} (see `cluster status`). "
            "Choose another port with --nats-port, 0 for any free one"
        ) from None
    except OSError as error:
        raise SettingsError(f"cannot write to {folder}: {error.strerror}") from None
    with lock:
        yield folder
