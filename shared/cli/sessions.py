"""`cluster sessions`."""

import asyncio
from collections.abc import Callable, Sequence
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
from shared.cli.views.sessions import SessionTableRow, session_table
from shared.client import Cluster
from shared.errors import InvalidRequest, RequestError, Unavailable
from shared.ids import ClientName, WorkerId
from shared.messages.control import (
    ControlOrder,
    ControlReply,
    ForgetSession,
    ListSessions,
    PinSession,
)
from shared.terminal_text import printable

_HELP = """List the conversations that workers store; pin and delete them.

A request with a session_id is a turn of a session. The worker that serves the session stores its
messages and their KV cache, in memory and on disk, so that the next turn computes only the new
tokens. When space is short, the least recently used sessions are deleted first; a pinned session
stays.

\b
turns         answered requests
tokens        length of the conversation
cached        share of these tokens that the next turn need not compute
memory, disk  size of the cached tokens there
age, used     time since the first turn, since the last turn

\b
  cluster sessions
  cluster sessions ls --client ada --json
  cluster sessions pin support-17
  cluster sessions rm support-17
"""


@click.group(cls=DefaultListGroup, help=_HELP)
@version_option("cluster sessions")
def command() -> None:
    pass


def _filter_options(function: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option(
            "--worker", metavar="ID", callback=reject_empty, help="Only sessions of this worker."
        ),
        click.option(
            "--client", metavar="NAME", callback=reject_empty, help="Only sessions of this client."
        ),
    ):
        function = option(function)
    return function


@command.command("ls")
@_filter_options
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=100, show_default=True, metavar="N",
    help="The N most recently used sessions of each worker.",
)  # fmt: skip
@settings_options
@json_option
@prints_errors
def list_sessions(
    client: str | None,
    worker: str | None,
    limit: int,
    config: Path | None,
    nats: str | None,
    token: str | None,
    as_json: bool,
) -> None:
    """List sessions, the most recently used first. The default subcommand."""

    async def work(cluster: Cluster) -> list[SessionTableRow]:
        return await _rows(cluster, client, worker, limit)

    rows = with_cluster(config, nats, token, work)
    if as_json:
        sessions = [{"worker": row.worker, **row.session.model_dump()} for row in rows]
        click.echo(orjson.dumps({"sessions": sessions}).decode())
        return
    if not rows:
        click.echo("No worker stores a session. A request with a session_id starts one.")
        return
    console = Console(highlight=False)
    for line in session_table(rows, console.width):
        console.print(line, soft_wrap=True)


def _order_command(
    name: str, help: str, done: str, order: Callable[[ClientName, str], ControlOrder]
) -> None:
    """Add a subcommand that sends an order for each of the named sessions."""

    @command.command(name, help=help)
    @click.argument(
        "sessions", metavar="SESSION...", nargs=-1, required=True, callback=reject_empty
    )
    @_filter_options
    @settings_options
    @json_option
    @prints_errors
    def send(
        sessions: Sequence[str],
        client: str | None,
        worker: str | None,
        config: Path | None,
        nats: str | None,
        token: str | None,
        as_json: bool,
    ) -> None:
        async def work(cluster: Cluster) -> list[SessionTableRow]:
            rows = _find(sessions, await _rows(cluster, client, worker, 1000))
            for row in rows:
                reply = await cluster.control(row.worker, order(row.session.client, row.session.id))
                _checked(reply)
            return rows

        _print_sessions(with_cluster(config, nats, token, work), done, as_json=as_json)


_order_command(
    "rm",
    "Delete sessions: messages, and cached tokens that no other text shares.",
    "removed",
    lambda client, id: ForgetSession(client=client, session_id=id),
)
_order_command(
    "pin",
    "Pin sessions, so that they are not deleted when space is short.",
    "pinned",
    lambda client, id: PinSession(client=client, session_id=id, pinned=True),
)
_order_command(
    "unpin",
    "Unpin sessions, so that they may be deleted when space is short.",
    "unpinned",
    lambda client, id: PinSession(client=client, session_id=id, pinned=False),
)


async def _rows(
    cluster: Cluster, client: str | None, worker: str | None, limit: int
) -> list[SessionTableRow]:
    """Return the sessions of all workers, or of `worker`, the most recently used first.

    Raises:
        Unavailable: the worker does not exist, or the cluster has no workers.
    """
    ids = [report.id for report in (await cluster.health()).workers]
    chosen = [id for id in ids if worker in (None, id)]
    if not chosen:
        name = "" if worker is None else f" {worker!r}"
        raise Unavailable(f"there is no worker{name}; there are: {', '.join(ids) or 'none'}")

    async def list_on(worker: WorkerId) -> list[SessionTableRow]:
        owner = ClientName(client) if client is not None else None
        reply = _checked(await cluster.control(worker, ListSessions(client=owner, limit=limit)))
        return [SessionTableRow(worker, session) for session in reply.sessions]

    async with asyncio.TaskGroup() as tasks:
        listings = [tasks.create_task(list_on(id)) for id in chosen]
    rows = [row for task in listings for row in task.result()]
    return sorted(rows, key=lambda row: row.session.idle_s)


def _find(names: Sequence[str], rows: Sequence[SessionTableRow]) -> list[SessionTableRow]:
    """Return the sessions of these names, on any worker.

    Raises:
        InvalidRequest: a session does not exist, or several clients have a session of that name.
    """
    chosen = []
    for name in names:
        found = [row for row in rows if row.session.id == name]
        clients = sorted({row.session.client for row in found})
        if not found:
            raise InvalidRequest(f"no worker stores a session {name!r}", code="unknown_session")
        if len(clients) > 1:
            raise InvalidRequest(
                f"several clients have a session {name!r}: {', '.join(clients)}; "
                "choose one with --client"
            )
        chosen += found
    return chosen


def _checked(reply: ControlReply) -> ControlReply:
    """Return the reply.

    Raises:
        RequestError: the worker refused the order.
    """
    if not reply.ok:
        message = f"worker {reply.worker}: {reply.message}"
        raise RequestError(printable(message), code=reply.code)
    return reply


def _print_sessions(rows: Sequence[SessionTableRow], done: str, *, as_json: bool) -> None:
    if as_json:
        sessions = [
            {"worker": row.worker, "client": row.session.client, "id": row.session.id}
            for row in rows
        ]
        click.echo(orjson.dumps({"done": done, "sessions": sessions}).decode())
        return
    for row in rows:
        click.echo(printable(f"{row.worker}: {row.session.id} {done}"))
