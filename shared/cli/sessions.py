"""`cluster sessions`."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import orjson
from rich.console import Console

from shared.cli.groups import ListingGroup
from shared.cli.options import (
    json_option,
    not_empty,
    reports_errors,
    settings_options,
    version_option,
)
from shared.cli.session import with_cluster
from shared.cli.views.figures import printable
from shared.cli.views.sessions import SessionRow, session_table
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

_HELP = """List the conversations that workers keep; pin and remove them.

A request with a session_id is a turn of a session: its worker keeps what was said and the KV
cache of it, in memory and on disk, so that the next turn computes only what is new. The longest
unused go first; what is pinned stays.

\b
  cluster sessions
  cluster sessions ls --client ada --json
  cluster sessions pin support-17
  cluster sessions rm support-17
"""


@click.group(cls=ListingGroup, help=_HELP)
@version_option("cluster sessions")
def command() -> None:
    pass


def _whose(function: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--worker", metavar="ID", callback=not_empty, help="Only on this one."),
        click.option("--client", metavar="NAME", callback=not_empty, help="Only of this one."),
    ):
        function = option(function)
    return function


@command.command("ls")
@_whose
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=100, show_default=True, metavar="N",
    help="The last used N of each worker.",
)  # fmt: skip
@settings_options
@json_option
@reports_errors
def list_sessions(
    client: str | None,
    worker: str | None,
    limit: int,
    config: Path | None,
    nats: str | None,
    token: str | None,
    as_json: bool,
) -> None:
    """List sessions, the last used first (what `cluster sessions` does alone)."""

    async def work(cluster: Cluster) -> list[SessionRow]:
        return await _rows(cluster, client, worker, limit)

    rows = with_cluster(config, nats, token, work)
    if as_json:
        sessions = [{"worker": row.worker, **row.session.model_dump()} for row in rows]
        click.echo(orjson.dumps({"sessions": sessions}).decode())
        return
    if not rows:
        click.echo("No worker keeps a session. A request gets one by its session_id.")
        return
    console = Console(highlight=False)
    for line in session_table(rows, console.width):
        console.print(line, soft_wrap=True)


def _order_command(
    name: str, help: str, done: str, order: Callable[[ClientName, str], ControlOrder]
) -> None:
    """A subcommand that gives an order for each of the sessions it is given."""

    @command.command(name, help=help)
    @click.argument("sessions", metavar="SESSION...", nargs=-1, required=True, callback=not_empty)
    @_whose
    @settings_options
    @json_option
    @reports_errors
    def give(
        sessions: Sequence[str],
        client: str | None,
        worker: str | None,
        config: Path | None,
        nats: str | None,
        token: str | None,
        as_json: bool,
    ) -> None:
        async def work(cluster: Cluster) -> list[SessionRow]:
            rows = _named(sessions, await _rows(cluster, client, worker, 1000))
            for row in rows:
                named = order(row.session.client, row.session.id)
                _checked(await cluster.control(row.worker, named))
            return rows

        _tell(with_cluster(config, nats, token, work), done, as_json=as_json)


_order_command(
    "rm",
    "Forget sessions: what was said, and all that is kept of their texts alone.",
    "removed",
    lambda client, id: ForgetSession(client=client, session_id=id),
)
_order_command(
    "pin",
    "Keep sessions when others go.",
    "pinned",
    lambda client, id: PinSession(client=client, session_id=id, pinned=True),
)
_order_command(
    "unpin",
    "Let sessions go when others need their place.",
    "unpinned",
    lambda client, id: PinSession(client=client, session_id=id, pinned=False),
)


async def _rows(
    cluster: Cluster, client: str | None, worker: str | None, limit: int
) -> list[SessionRow]:
    """The sessions of all workers, the last used first.

    Raises:
        Unavailable: there is no such worker, or none at all.
    """
    ids = [report.id for report in (await cluster.health()).workers]
    chosen = [id for id in ids if worker in (None, id)]
    if not chosen:
        name = "" if worker is None else f" {worker!r}"
        raise Unavailable(f"there is no worker{name}; there are: {', '.join(ids) or 'none'}")

    async def of(worker: WorkerId) -> list[SessionRow]:
        named = ClientName(client) if client is not None else None
        reply = _checked(await cluster.control(worker, ListSessions(client=named, limit=limit)))
        return [SessionRow(worker, session) for session in reply.sessions]

    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(of(id)) for id in chosen]
    rows = [row for task in asked for row in task.result()]
    return sorted(rows, key=lambda row: row.session.idle_s)


def _named(names: Sequence[str], rows: Sequence[SessionRow]) -> list[SessionRow]:
    """The sessions of these names, wherever they are.

    Raises:
        InvalidRequest: one is not there, or several clients have one of that name.
    """
    chosen = []
    for name in names:
        found = [row for row in rows if row.session.id == name]
        clients = sorted({row.session.client for row in found})
        if not found:
            raise InvalidRequest(f"no worker keeps a session {name!r}", code="unknown_session")
        if len(clients) > 1:
            raise InvalidRequest(
                f"several clients have a session {name!r}: {', '.join(clients)}; "
                "say which with --client"
            )
        chosen += found
    return chosen


def _checked(reply: ControlReply) -> ControlReply:
    """Raises RequestError: the worker refused."""
    if not reply.ok:
        message = f"worker {reply.worker}: {reply.message}"
        raise RequestError(printable(message), code=reply.code)
    return reply


def _tell(rows: Sequence[SessionRow], done: str, *, as_json: bool) -> None:
    if as_json:
        sessions = [
            {"worker": row.worker, "client": row.session.client, "id": row.session.id}
            for row in rows
        ]
        click.echo(orjson.dumps({"done": done, "sessions": sessions}).decode())
        return
    for row in rows:
        click.echo(printable(f"{row.worker}: {row.session.id} {done}"))
