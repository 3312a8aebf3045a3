"""`cluster requests`."""

from collections.abc import Sequence
from pathlib import Path

import click
import orjson
from rich.console import Console

from shared.cli.connection import with_cluster
from shared.cli.lazy_group import DefaultListGroup
from shared.cli.options import (
    json_option,
    prints_errors,
    reject_empty,
    settings_options,
    version_option,
)
from shared.cli.views.formatting import count
from shared.cli.views.requests import request_table
from shared.client import Cluster
from shared.errors import InvalidRequest
from shared.ids import ClientName, is_name
from shared.messages.control import RequestState
from shared.messages.request_list import MAX_LISTED, RequestList
from shared.terminal_text import printable

_HELP = """List the requests that have not ended, and cancel them.

\b
state   waiting: for an earlier turn of its session, or for a new leader
        queued: no worker has capacity
        offered: a worker was asked to take it
        running: a worker has it
        backing_off: an attempt failed; the next one starts soon
        delegated: a list, which is served in parts
tokens  generated so far
age     time since the cluster accepted it

\b
  cluster requests
  cluster requests ls --client ada --json
  cluster requests cancel req-714c05a730a6e85b2461bd23
"""


@click.group(cls=DefaultListGroup, help=_HELP)
@version_option("cluster requests")
def command() -> None:
    pass


@command.command("ls")
@click.option(
    "--client", metavar="NAME", callback=reject_empty, help="Only requests of this client."
)
@click.option(
    "--limit", type=click.IntRange(1, MAX_LISTED), default=200, show_default=True, metavar="N",
    help="List at most N requests, the running ones first.",
)  # fmt: skip
@settings_options
@json_option
@prints_errors
def list_requests(
    client: str | None,
    limit: int,
    config: Path | None,
    nats: str | None,
    token: str | None,
    as_json: bool,
) -> None:
    """List requests, the running ones first. The default subcommand."""

    async def work(cluster: Cluster) -> RequestList:
        return await cluster.list_requests(_client_name(client), limit=limit)

    listed = with_cluster(config, nats, token, work)
    if as_json:
        click.echo(listed.model_dump_json(exclude_none=True))
        return
    if not listed.requests:
        click.echo("No request is waiting or running.")
        return
    console = Console(highlight=False)
    for line in request_table(listed.requests, console.width):
        console.print(line, soft_wrap=True)
    if (hidden := listed.total - len(listed.requests)) > 0:
        click.echo(f"{count(hidden, 'more request')}; --limit lists more")


@command.command("cancel")
@click.argument("requests", metavar="REQUEST...", nargs=-1, required=True, callback=reject_empty)
@click.option(
    "--client", metavar="NAME", callback=reject_empty,
    help="The client of the requests. Without it, the one that has a request of that id.",
)  # fmt: skip
@settings_options
@json_option
@prints_errors
def cancel_requests(
    requests: Sequence[str],
    client: str | None,
    config: Path | None,
    nats: str | None,
    token: str | None,
    as_json: bool,
) -> None:
    """Cancel requests; their streams end with finish_reason `cancelled`."""

    async def work(cluster: Cluster) -> list[RequestState]:
        owners = {id: await _owner(cluster, id, client) for id in requests}
        return [await Cluster(cluster.bus, owners[id]).cancel(id) for id in requests]

    states = with_cluster(config, nats, token, work)
    if as_json:
        cancelled = [state.model_dump(exclude_none=True) for state in states]
        click.echo(orjson.dumps({"cancelled": cancelled}).decode())
        return
    for state in states:
        has_ended = state.state in ("finished", "failed")
        click.echo(printable(f"{state.request_id} {'had ended' if has_ended else 'is cancelled'}"))


def _client_name(name: str | None) -> ClientName | None:
    """
    Raises:
        InvalidRequest: it is not a valid name.
    """
    if name is not None and not is_name(name):
        raise InvalidRequest(f"no client has the name {printable(name[:100])!r}", param="client")
    return ClientName(name) if name is not None else None


async def _owner(cluster: Cluster, request_id: str, client: str | None) -> ClientName:
    """Return the client of a request.

    Raises:
        InvalidRequest: there is no such request, or several clients have one.
    """
    listed = await cluster.list_requests(_client_name(client), limit=MAX_LISTED)
    owners = [each.client for each in listed.requests if each.request_id == request_id]
    if not owners:
        name = printable(request_id[:100])
        raise InvalidRequest(f"no request {name!r} is waiting or running", code="unknown_request")
    if len(owners) > 1:
        raise InvalidRequest(
            f"several clients have a request {printable(request_id)!r}: "
            f"{', '.join(sorted(owners))}; choose one with --client"
        )
    return owners[0]
