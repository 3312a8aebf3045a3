"""Structured logs: to stderr as text or JSON lines, and over NATS for `cluster logs`.

The fields of a record come from `extra={"request_id": ..., "model": ...}`; `FIELDS` lists them.
"""

import asyncio
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TextIO

import orjson

from shared import subjects
from shared.bus import Bus, IncomingMessage
from shared.errors import BusError, DecodeError, SettingsError
from shared.messages.json_bounds import decode_query
from shared.messages.logs import LogLevel, RecentLogsQuery
from shared.settings.tree import LoggingSettings
from shared.terminal_text import escaped
from shared.version import PROTOCOL


class WatchedLogFile:
    """Appends lines to a file. If the file is renamed or removed, as newsyslog does, the next
    lines go to a new file: rotation needs no signal."""

    def __init__(self, path: Path) -> None:
        """
        Raises:
            SettingsError: the file cannot be opened for writing.
        """
        self._path = path
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._descriptor = self._open()
        except OSError as error:
            raise SettingsError(
                f"logging.file: {path}: {error.strerror}", param="logging.file"
            ) from None

    def write(self, lines: bytes) -> None:
        """
        Raises:
            OSError: the disk is full, or the folder is gone.
        """
        if self._renamed():
            descriptor = self._open()
            os.close(self._descriptor)
            self._descriptor = descriptor
        rest = memoryview(lines)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]

    def flush(self) -> None:
        """Do nothing: `write` does not buffer."""

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def _renamed(self) -> bool:
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return True
        return not os.path.samestat(found, os.fstat(self._descriptor))


FIELDS = ("request_id", "client", "model", "worker", "controller", "attempt", "engine", "code")
_MAX_RECORDS = 1000
_ENVELOPE_BYTES = 1024
"""What an answer has beside its records takes less."""
_PUBLISH_INTERVAL_S = 0.2
_LEVELS: dict[int, LogLevel] = {
    logging.DEBUG: "debug",
    logging.INFO: "info",
    logging.WARNING: "warning",
    logging.ERROR: "error",
    logging.CRITICAL: "critical",
}


class LogOutput(Protocol):
    """A destination of log lines."""

    def write(self, lines: bytes, /) -> object: ...

    def flush(self) -> object: ...


class EncodedLogRecord(NamedTuple):
    """A record of `logging`, encoded as the JSON of a `LogRecord`."""

    kind: str
    request_id: str | None
    body: bytes


def _that_fit(records: Sequence[EncodedLogRecord], max_bytes: int) -> list[EncodedLogRecord]:
    """Return the latest records that one message can hold."""
    left = max_bytes - _ENVELOPE_BYTES
    latest = []
    for record in reversed(records):
        left -= len(record.body) + 1
        if left < 0:
            break
        latest.append(record)
    return latest[::-1]


class BusLogHandler(logging.Handler):
    """Stores the latest records, and publishes new ones once it has a bus.

    Args:
        out: also gets each record, as a line.
    """

    def __init__(self, kind: str, identity: str, out: LogOutput | None = None) -> None:
        super().__init__()
        self._kind = kind
        self._id = identity
        self._out = out
        self._lines: deque[EncodedLogRecord] = deque(maxlen=_MAX_RECORDS)
        self._unsent: deque[EncodedLogRecord] = deque(maxlen=_MAX_RECORDS)
        self._unwritten: list[bytes] = []

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = log_line(record, self._kind, self._id)
            self._lines.append(line)
            self._unsent.append(line)
            if self._out is not None:
                self._unwritten.append(line.body)
                self._write_soon(record.levelno)
        except Exception:  # as every handler of the logging library does
            self.handleError(record)

    def _write_soon(self, level: int) -> None:
        """Write warnings and records from outside an event loop at once. Other records are written
        together before the loop waits again: a write per line was a fifth of a line's cost."""
        if level < logging.WARNING:
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                pass
            else:
                if len(self._unwritten) == 1:
                    loop.call_soon(self.flush)
                return
        self.flush()

    def flush(self) -> None:
        """Write the buffered lines."""
        self.acquire()
        try:
            if self._unwritten and self._out is not None:
                lines, self._unwritten = self._unwritten, []
                self._out.write(b"\n".join(lines) + b"\n")
                self._out.flush()
        finally:
            self.release()

    async def answer(self, bus: Bus) -> None:
        """Answer queries for recent records."""

        async def handle(message: IncomingMessage) -> None:
            if not message.reply:
                return
            try:
                query = decode_query(RecentLogsQuery, message.payload or b"{}")
            except DecodeError:
                return
            matching = [line for line in self._lines if query.request_id in (None, line.request_id)]
            latest = _that_fit(matching[max(0, len(matching) - query.limit) :], bus.max_payload)
            records = [orjson.Fragment(line.body) for line in latest]
            answer = orjson.dumps({"protocol": PROTOCOL, "records": records})
            await bus.publish(message.reply, answer)

        await bus.subscribe(subjects.RECENT_LOGS, handle)

    async def run(self, bus: Bus) -> None:
        """Publish new records a few times a second, until cancelled."""
        while True:
            await asyncio.sleep(_PUBLISH_INTERVAL_S)
            await self.publish_new(bus)

    async def publish_new(self, bus: Bus) -> None:
        """Publish the records since the last call. Drops them while NATS is unreachable: `answer`
        still returns them."""
        while self._unsent:
            line = self._unsent.popleft()
            try:
                await bus.publish(subjects.log(line.kind, self._id), line.body)
            except BusError:
                return


def set_up_logging(settings: LoggingSettings, kind: str, identity: str) -> BusLogHandler:
    """Configure the root logger of a service; call once, before anything is logged."""
    text = settings.format == "text" or (settings.format == "auto" and sys.stderr.isatty())
    file = WatchedLogFile(Path(settings.file).expanduser()) if settings.file is not None else None
    logging._srcfile = None  # no handler prints the source location
    logging.setLogRecordFactory(_Record)
    store = BusLogHandler(kind, identity, file or (None if text else sys.stderr.buffer))
    root = logging.getLogger()
    root.handlers = [store, _TextLines()] if text else [store]
    root.setLevel(settings.level.upper())
    for noisy in ("asyncio", "nats", "httpx", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    return store


def log_line(record: logging.LogRecord, kind: str, identity: str) -> EncodedLogRecord:
    """Return a record of `logging` as a `EncodedLogRecord`."""
    message = record.getMessage()
    if record.exc_info:
        message = f"{message}\n{logging.Formatter().formatException(record.exc_info)}"
    attributes = record.__dict__
    fields = {name: value for name in FIELDS if (value := attributes.get(name)) is not None}
    kind = attributes.get("kind", kind)
    entry = {
        "time": f"{_second(int(record.created))}.{int(record.created % 1 * 1000):03}+00:00",
        "level": _LEVELS.get(record.levelno, "info"),
        "kind": kind,
        "id": identity,
        "message": message,
        "fields": fields,
    }
    return EncodedLogRecord(kind, fields.get("request_id"), _json(entry))


@lru_cache(maxsize=1)
def _second(since_epoch: int) -> str:
    """Return ISO 8601 without a zone; cached, because many lines share a second."""
    return datetime.fromtimestamp(since_epoch, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _json(entry: Mapping[str, object]) -> bytes:
    try:
        line = orjson.dumps(entry, default=str)
    except orjson.JSONEncodeError:  # a lone surrogate
        message = str(entry["message"]).encode(errors="backslashreplace").decode()
        line = orjson.dumps({**entry, "message": message}, default=str)
    return bytes(memoryview(line))  # orjson's own take 4 KiB at least, and lines are kept


class _Record(logging.LogRecord):
    """A record without process, thread and source file, which no handler here prints: a controller
    logs thousands of lines per second."""

    def __init__(
        self,
        name: str,
        level: int,
        pathname: str,
        lineno: int,
        msg: str,
        args: Any,
        exc_info: Any,
        func: str | None = None,
        sinfo: str | None = None,
    ) -> None:
        self.name, self.levelno, self.levelname = name, level, logging.getLevelName(level)
        named = bool(args) and len(args) == 1 and isinstance(args[0], Mapping) and bool(args[0])
        self.msg, self.args = msg, args[0] if named else args
        self.exc_info, self.exc_text, self.stack_info = exc_info, None, sinfo
        self.created = time.time()
        self.msecs = self.created % 1 * 1000


class _TextLines(logging.StreamHandler[TextIO]):
    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(_TerminalFormatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))


class _TerminalFormatter(logging.Formatter):
    """Escapes what a terminal obeys, and indents the lines of a record after the first one."""

    def format(self, record: logging.LogRecord) -> str:
        return escaped(super().format(record)).replace("\n", "\n    ")
