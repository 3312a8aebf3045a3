"""Log records on the wire, for `cluster logs`."""

from typing import Literal

from pydantic import Field

from shared.codec import WireMessage, WireMessagePart
from shared.messages.base import ShortName

LogLevel = Literal["debug", "info", "warning", "error", "critical"]


class LogRecord(WireMessagePart):
    """One line of a log.

    Attributes:
        time: UTC, ISO 8601 with milliseconds.
        kind: controller, worker, engine, gateway.
        fields: structured context, for example {"request_id": ..., "model": ...}.
    """

    time: str
    level: LogLevel
    kind: str
    id: str
    message: str
    fields: dict[str, str | int | float | bool | None] = {}


class RecentLogsQuery(WireMessage):
    """Queries every process for its latest records, at most `limit` each."""

    limit: int = Field(200, ge=0, lt=2**31)
    request_id: ShortName | None = None


class RecentLogs(WireMessage):
    records: list[LogRecord]
