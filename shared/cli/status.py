"""`cluster status`."""

import asyncio
import sys
from pathlib import Path

import click
import uvloop
from rich.console import Console
from rich.text import Text

from shared.access.member_credentials import MemberCredentials
from shared.access.stored_memberships import joined_settings
from shared.bus import Bus
from shared.cli.connection import service_membership, with_cluster
from shared.cli.options import (
    EXIT_FAILURE,
    json_option,
    prints_errors,
    settings_options,
    version_option,
)
from shared.cli.views.overview import overview
from shared.cli.views.workers import worker_table
from shared.codec import encode
from shared.errors import BusError, ClusterError
from shared.ids import WorkerId
from shared.messages.health import WorkerHealth
from shared.messages.sender import decode_from
from shared.messages.worker_report import WorkerReport
from shared.settings.nats import NatsSettings
from shared.subjects import inbox_prefix, worker_health

_ANSWER_S = 2.0
_HELP = """Show workers, models and controllers of a cluster.

The exit status is 0 if a worker is ready, and 1 if the cluster is unavailable: no worker is ready,
no controller leads, or nothing answers.

\b
Workers
state       starting, warming (loads models), ready, unhealthy, draining
active      requests that generate / batch slots
queue       queued requests of high/medium/low priority
wait        p50/p95 time in the queue, of the priority that waits longest
tok/s       generated tokens per second
memory      used by the worker / its hard limit
limits      used memory, with ┼ at the soft limit and ┤ at the hard limit
cores       CPU cores in use / of the machine
restarts    engine processes that were restarted
balance     load balance of the engines: 1 is even
config      version of the rolled-out cluster.yaml; empty: its own file

\b
Models      see `cluster models --help`

\b
Controllers
leads       the one that accepts requests; the others stand by
active      requests under way
completed   requests that were answered, or cancelled by the client
rejected    requests that were the client's mistake, such as an unknown model
failed      requests that the cluster could not serve

Columns that do not fit the terminal are left out; --json has all values.
"""


@click.command(help=_HELP)
@settings_options
@json_option
@version_option("cluster status")
@prints_errors
def command(config: Path | None, nats: str | None, token: str | None, as_json: bool) -> None:
    try:
        health = with_cluster(config, nats, token, lambda cluster: cluster.health())
    except BusError:
        if not as_json:
            _print_own_worker()
        raise
    if as_json:
        click.echo(encode(health).decode())
    else:
        console = Console(highlight=False)
        _print_lines(console, overview(health, console.width))
    if health.status == "unavailable":
        sys.exit(EXIT_FAILURE)


def _print_own_worker() -> None:
    """Print the report of the worker on this machine, if `worker join` joined a cluster here."""
    member = service_membership()
    if member is None or member.role != "worker":
        return
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            report = runner.run(_own_report(member))
    except ClusterError:
        click.echo(f"The worker {member.name} does not run, or has no connection.")
        return
    console = Console(highlight=False)
    click.echo("The worker of this machine:")
    _print_lines(console, worker_table([report], console.width))


async def _own_report(member: MemberCredentials) -> WorkerReport:
    """Ask the worker of this machine with its own key, which permits that.

    Raises:
        ClusterError: the server or the worker does not answer.
    """
    joined = joined_settings("worker")
    assert joined is not None
    settings = NatsSettings.model_validate(joined["nats"])
    prefix = inbox_prefix(member.role, member.name)
    bus = await Bus.connect(settings, name="status", inbox_prefix=prefix, wait_s=_ANSWER_S)
    try:
        answer = await bus.request(worker_health(WorkerId(member.name)), b"", timeout_s=_ANSWER_S)
        return decode_from(member.name, WorkerHealth, answer.payload, any_protocol=True).worker
    finally:
        await bus.close()


def _print_lines(console: Console, lines: list[Text]) -> None:
    for line in lines:
        console.print(line, soft_wrap=True)
