"""Structured logs: to stderr for people or as JSON lines, and over NATS for `cluster logs`.

A line's fields come from `extra={"request_id": ..., "model": ...}`; `FIELDS` lists them.
"""

import asyncio
import logging
import sys
from collections import deque
from datetime import UTC, datetime

from shared import subjects
from shared.bus import Bus, Message
from shared.errors import BusError, DecodeError
from shared.messages.codec import decode, encode
from shared.messages.logs import LogLevel, LogRecord, RecentLogs, RecentLogsQuery
from shared.settings.tree import Logging

FIELDS = ("request_id", "client", "model", "worker", "controller", "attempt", "engine", "code")
_KEPT_RECORDS = 1000
_PUBLISH_INTERVAL_S = 0.2
_LEVELS: dict[int, LogLevel] = {
    logging.DEBUG: "debug",
    logging.INFO: "info",
    logging.WARNING: "warning",
    logging.ERROR: "error",
    logging.CRITICAL: "critical",
}


class LogStore(logging.Handler):
    """Keeps the last records, and publishes new ones once a bus is there."""

    def __init__(self, kind: str, identity: str) -> None:
        super().__init__()
        self._kind = kind
        self._id = identity
        self._records: deque[LogRecord] = deque(maxlen=_KEPT_RECORDS)
        self._unsent: deque[LogRecord] = deque(maxlen=_KEPT_RECORDS)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            entry = _entry(record, self._kind, self._id)
        except Exception:  # as every handler of the logging library does
            self.handleError(record)
            return
        self._records.append(entry)
        self._unsent.append(entry)

    async def answer(self, bus: Bus) -> None:
        """Answer questions for recent records."""

        async def handle(message: Message) -> None:
            if not message.reply:
                return
            try:
                query = decode(RecentLogsQuery, message.payload or b"{}")
            except DecodeError:
                return
            matching = [r for r in self._records if _matches(r, query.request_id)]
            records = matching[max(0, len(matching) - query.limit) :]
            await bus.publish(message.reply, encode(RecentLogs(records=records)))

        await bus.subscribe(subjects.RECENT_LOGS, handle)

    async def run(self, bus: Bus) -> None:
        """Publish what is logged, a few times a second, until cancelled."""
        while True:
            await asyncio.sleep(_PUBLISH_INTERVAL_S)
            await self.publish_new(bus)

    async def publish_new(self, bus: Bus) -> None:
        """Publish what was logged since the last call. Drops it when NATS is away: `answer`
        still has it."""
        while self._unsent:
            record = self._unsent.popleft()
            try:
                await bus.publish(subjects.log(record.kind, record.id), encode(record))
            except BusError:
                return


def set_up_logging(settings: Logging, kind: str, identity: str) -> LogStore:
    """Configure the root logger of a service; call once, first thing."""
    text = settings.format == "text" or (settings.format == "auto" and sys.stderr.isatty())
    stream = logging.StreamHandler()
    stream.setFormatter(_TextFormatter() if text else _JsonFormatter(kind, identity))
    logging._srcfile = None  # no line shows where it was written
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    store = LogStore(kind, identity)
    root = logging.getLogger()
    root.handlers = [stream, store]
    root.setLevel(settings.level.upper())
    for noisy in ("asyncio", "nats", "httpx", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    return store


def to_log_record(record: logging.LogRecord, kind: str, identity: str) -> LogRecord:
    """Our record of a line of the logging library."""
    message = record.getMessage()
    if record.exc_info:
        message = f"{message}\n{logging.Formatter().formatException(record.exc_info)}"
    fields = {name: value for name in FIELDS if (value := getattr(record, name, None)) is not None}
    moment = datetime.fromtimestamp(record.created, UTC)
    return LogRecord(
        time=moment.isoformat(timespec="milliseconds"),
        level=_LEVELS.get(record.levelno, "info"),
        kind=getattr(record, "kind", kind),
        id=identity,
        message=message,
        fields=fields,
    )


def _entry(record: logging.LogRecord, kind: str, identity: str) -> LogRecord:
    """Made once for all handlers of a process."""
    known: LogRecord | None = getattr(record, "entry", None)
    if known is None:
        known = record.entry = to_log_record(record, kind, identity)
    return known


def _matches(record: LogRecord, request_id: str | None) -> bool:
    return request_id is None or record.fields.get("request_id") == request_id


class _JsonFormatter(logging.Formatter):
    def __init__(self, kind: str, identity: str) -> None:
        super().__init__()
        self._kind = kind
        self._id = identity

    def format(self, record: logging.LogRecord) -> str:
        return encode(_entry(record, self._kind, self._id)).decode()


class _TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")
