"""The `controller` command."""

import contextlib
import gc
import logging
import secrets
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import click

from controller.rollout.store import ConfigVersionStore
from controller.service import Controller, LoadSettings
from shared.bus import Bus
from shared.cli.membership_commands import membership_commands
from shared.cli.options import (
    json_option,
    no_discovery_option,
    prints_errors,
    read_settings,
    settings_options,
    version_option,
)
from shared.discovery.announcer import announced, announcement_of
from shared.errors import ClusterError
from shared.ids import ControllerId, name_from
from shared.logs import BusLogHandler, set_up_logging
from shared.service import StopSignal, run_on_bus, run_service
from shared.settings import ClusterSettings
from shared.settings.rolled_out import RolledOutVersion
from shared.telemetry import Tracer, check_installed, tracing

logger = logging.getLogger(__name__)

_HELP = """Route requests of a cluster to its workers.

Run one, or up to three: one leads, the others stand by to take over (that needs JetStream).
Health: `nats req mlx.health.cluster ''`, or `cluster status`.

\b
  controller --nats nats://192.168.1.20:4222 --config config/cluster.yaml
  controller join          with a token from `cluster auth add controller NAME`; then: controller
"""


@click.group(help=_HELP, invoke_without_command=True)
@settings_options
@click.option(
    "--metrics-port", type=click.IntRange(0, 65535),
    help="Serve Prometheus metrics on this port, on this machine only (0: any free port).",
)  # fmt: skip
@click.option(
    "--id", "controller_id", help="Name of this controller. Default: host name and a random suffix."
)
@no_discovery_option
@json_option
@version_option("controller")
@click.pass_context
@prints_errors
def main(
    context: click.Context,
    config: Path | None,
    nats: str | None,
    token: str | None,
    metrics_port: int | None,
    controller_id: str | None,
    no_discovery: bool,
    as_json: bool,
) -> None:
    if context.invoked_subcommand is not None:
        return
    flags: dict[str, Any] = {}
    if controller_id is not None:
        flags["controller"] = {"id": controller_id}
    if metrics_port is not None:
        flags.setdefault("controller", {})["metrics"] = {"enabled": True, "port": metrics_port}
    if no_discovery:
        flags["discovery"] = {"enabled": False}
    if as_json:
        flags["logging"] = {"format": "json"}

    def load(rolled_out: RolledOutVersion | None) -> ClusterSettings:
        settings = read_settings(
            config, nats, token, flags, command="controller", rolled_out=rolled_out
        )
        check_installed(settings.telemetry)
        return settings

    settings = load(None)
    default_id = f"{name_from(socket.gethostname())[:56]}-{secrets.token_hex(3)}"
    identity = ControllerId(settings.controller.id or default_id)
    logs = set_up_logging(settings.logging, "controller", identity)
    sys.exit(run_service(lambda stop: _serve(settings, load, identity, logs, stop)))


for command in membership_commands("controller"):
    main.add_command(command)


_GC_THRESHOLDS = (50_000, 50, 1000)
"""Of the three generations of the garbage collector: with 1,000 workers a full collection takes a
tenth of a second, during which no request is routed."""


async def _serve(
    settings: ClusterSettings,
    load: LoadSettings,
    identity: ControllerId,
    logs: BusLogHandler,
    stop: StopSignal,
) -> int:
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)

    async def work(bus: Bus, tracer: Tracer | None) -> None:
        current, version = await _load_rolled_out(bus, load, settings)
        controller = Controller(
            current, bus, identity, logs, load=load, version=version, tracer=tracer
        )
        async with _announced(current, bus, identity):
            await controller.run(stop)

    async with tracing(settings.telemetry, "controller", identity) as tracer:
        return await run_on_bus(
            stop, settings.nats, "controller", identity, lambda bus: work(bus, tracer)
        )


@contextlib.asynccontextmanager
async def _announced(
    settings: ClusterSettings, bus: Bus, identity: ControllerId
) -> AsyncIterator[None]:
    """Announce this cluster on the local network meanwhile, if other machines can reach it."""
    async with contextlib.AsyncExitStack() as stack:
        announcement = announcement_of(settings.nats, bus.server_info)
        if settings.discovery.enabled and announcement is not None:
            await stack.enter_async_context(
                announced(announcement, identity, settings.discovery.interfaces)
            )
        yield


async def _load_rolled_out(
    bus: Bus, load: LoadSettings, own: ClusterSettings
) -> tuple[ClusterSettings, int]:
    """Return the settings of the version that was rolled out, and its number; or, if the version
    cannot be read now, the machine's own and 0: the controller applies the version once it can."""
    store = ConfigVersionStore(bus)
    try:
        state = await store.state()
        version = await store.version(state.stable) if state.stable else None
        if version is not None:
            return load(RolledOutVersion(version.version, version.text)), version.version
    except ClusterError as error:
        logger.info("starting with the machine's own settings: %s", error.message)
    return own, 0
