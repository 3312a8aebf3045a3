"""`cluster logs`."""

import asyncio
import contextlib
import sys
from pathlib import Path

import click

from shared import subjects
from shared.bus import IncomingMessage
from shared.cli.connection import with_cluster
from shared.cli.options import json_option, prints_errors, settings_options, version_option
from shared.client import Cluster
from shared.codec import decode, encode
from shared.errors import DecodeError
from shared.messages.logs import LogRecord, RecentLogs, RecentLogsQuery
from shared.terminal_text import escaped, escaped_line

_COLLECT_S = 0.5
_RANK = {"debug": 0, "info": 1, "warning": 2, "error": 3, "critical": 4}
_COLOURS = {"warning": "yellow", "error": "red", "critical": "red"}

_HELP = """Show recent log lines of all processes of a cluster (over NATS), then follow new ones.

\b
  cluster logs
  cluster logs --request-id req-1234 --no-follow
  cluster logs --level warning --json
"""


@click.command(help=_HELP)
@click.option("--request-id", help="Only lines of this request.")
@click.option("--level", default="info", show_default=True, type=click.Choice(list(_RANK)))
@click.option(
    "--lines",
    default=200,
    show_default=True,
    type=click.IntRange(0),
    help="Recent lines of each process.",
)
@click.option("--follow/--no-follow", default=True, show_default=True, help="Follow new lines.")
@settings_options
@json_option
@version_option("cluster logs")
@prints_errors
def command(
    request_id: str | None,
    level: str,
    lines: int,
    follow: bool,
    config: Path | None,
    nats: str | None,
    token: str | None,
    as_json: bool,
) -> None:
    def wanted(record: LogRecord) -> bool:
        return _RANK[record.level] >= _RANK[level] and (
            request_id is None or record.fields.get("request_id") == request_id
        )

    def show(record: LogRecord) -> None:
        if wanted(record):
            click.echo(encode(record).decode() if as_json else _line(record))

    async def watch(cluster: Cluster) -> None:
        live: asyncio.Queue[LogRecord] = asyncio.Queue()

        async def on_record(message: IncomingMessage) -> None:
            with contextlib.suppress(DecodeError):
                record = decode(LogRecord, message.payload)
                if (record.kind, record.id) == subjects.parse_log(message.subject):
                    live.put_nowait(record)

        if follow:  # subscribed before the query of past lines, so that no line is missed
            await cluster.bus.subscribe(subjects.LOG_ALL, on_record)
        past = await _recent(cluster, RecentLogsQuery(limit=lines, request_id=request_id))
        for record in past:
            show(record)
        while follow:
            record = await live.get()
            if record not in past:
                show(record)

    try:
        with_cluster(config, nats, token, watch, shows_progress=True)
    except KeyboardInterrupt:
        sys.exit(130)


async def _recent(cluster: Cluster, query: RecentLogsQuery) -> list[LogRecord]:
    """Return the recent records of all processes, ordered by time."""
    answers = await cluster.bus.request_many(subjects.RECENT_LOGS, encode(query), wait_s=_COLLECT_S)
    records: list[LogRecord] = []
    for answer in answers:
        with contextlib.suppress(DecodeError):
            records.extend(decode(RecentLogs, answer.payload).records)
    return sorted(records, key=lambda record: record.time)


def _line(record: LogRecord) -> str:
    """Return a line without characters that a terminal obeys. The lines of a message after the
    first one are indented: none looks like a record."""
    clock = escaped_line(record.time[11:23])
    level = click.style(f"{record.level:<7}", fg=_COLOURS.get(record.level))
    fields = escaped_line(" ".join(f"{name}={value}" for name, value in record.fields.items()))
    process = click.style(escaped_line(f"{record.kind} {record.id}"), bold=True)
    message = escaped(record.message).replace("\n", "\n    ")
    return f"{clock} {level} {process}  {message}  {click.style(fields, dim=True)}".rstrip()
