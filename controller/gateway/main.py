"""The `gateway` command."""

import gc
import json
import secrets
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from controller.gateway.api_keys import ApiKeyRing
from controller.gateway.keys_command import keys
from controller.gateway.server import allow_open_files, check_tls
from controller.gateway.service import Gateway, key_ring
from shared.bus import Bus
from shared.cli.membership_commands import membership_commands
from shared.cli.options import (
    json_option,
    prints_errors,
    read_settings,
    settings_options,
    version_option,
)
from shared.ids import name_from
from shared.logs import BusLogHandler, set_up_logging
from shared.service import StopSignal, run_on_bus, run_service
from shared.settings import ClusterSettings
from shared.telemetry import Tracer, tracing

_HELP = """OpenAI- and Anthropic-compatible HTTP in front of a cluster.

Run any number of gateways; a gateway keeps no state. Programs need only another base URL:

\b
  gateway                                    on this machine: http://127.0.0.1:8000
  gateway keys add ada                       make a key for ada
  gateway join                               with a token of `cluster auth add gateway NAME`
  gateway --host 0.0.0.0 --keys-file FILE    with the file that `keys add` wrote to
  OPENAI_BASE_URL=http://127.0.0.1:8000/v1   for OpenAI's clients
  ANTHROPIC_BASE_URL=http://127.0.0.1:8000   for Anthropic's
"""


@click.group(help=_HELP, invoke_without_command=True)
@settings_options
@click.option("--host", help="Address to listen on. Default: 127.0.0.1.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port to listen on. Default: 8000; 0: any free port.",
)
@click.option("--keys-file", help="File of API keys; see `gateway keys --help`.")
@click.option("--allow-anonymous", is_flag=True, help="Serve callers without an API key.")
@click.option("--id", "gateway_id", help="Name of this gateway. Default: host and number.")
@json_option
@version_option("gateway")
@click.pass_context
@prints_errors
def main(
    context: click.Context,
    config: Path | None,
    nats: str | None,
    token: str | None,
    host: str | None,
    port: int | None,
    keys_file: str | None,
    allow_anonymous: bool,
    gateway_id: str | None,
    as_json: bool,
) -> None:
    options: dict[str, Any] = {"id": gateway_id, "host": host, "port": port, "keys_file": keys_file}
    flags: dict[str, Any] = {"gateway": {k: v for k, v in options.items() if v is not None}}
    if allow_anonymous:
        flags["gateway"]["allow_anonymous"] = True
    if as_json:
        flags["logging"] = {"format": "json"}
    if context.invoked_subcommand in ("join", "leave"):
        return
    settings = read_settings(config, nats, token, flags, command="gateway")
    if context.invoked_subcommand is not None:
        context.obj = settings
        return
    generated_id = f"{name_from(socket.gethostname())[:48]}-{secrets.token_hex(3)}"
    identity = settings.gateway.id or generated_id
    ring = key_ring(settings.gateway)
    check_tls(settings.gateway.tls)  # fails before the connection to NATS
    allow_open_files(settings.gateway.max_connections)
    logs = set_up_logging(settings.logging, "gateway", identity)
    announce = _print_url_as_json if as_json else _print_url
    sys.exit(run_service(lambda stop: _serve(settings, ring, identity, logs, announce, stop)))


main.add_command(keys)
for joining in membership_commands("gateway"):
    main.add_command(joining)


_GC_THRESHOLDS = (50_000, 50, 100)
"""Thresholds of `gc.set_threshold`, higher than Python's: streamed tokens create no reference
cycles, and collections at the default thresholds take more than 5 % of the gateway's CPU time."""


async def _serve(
    settings: ClusterSettings,
    ring: ApiKeyRing,
    identity: str,
    logs: BusLogHandler,
    announce: Callable[[str], None],
    stop: StopSignal,
) -> int:
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)

    async def work(bus: Bus, tracer: Tracer | None) -> None:
        await Gateway(settings, ring, bus, logs, announce, tracer).run(stop)

    async with tracing(settings.telemetry, "gateway", identity) as tracer:
        return await run_on_bus(
            stop, settings.nats, "gateway", identity, lambda bus: work(bus, tracer)
        )


def _print_url(url: str) -> None:
    click.echo(f"gateway: {url}/v1", err=True)


def _print_url_as_json(url: str) -> None:
    click.echo(json.dumps({"http_url": url}))
    sys.stdout.flush()
