"""The table of the requests that have not ended."""

from collections.abc import Sequence

from rich.text import Text

from shared.cli.views import formatting
from shared.cli.views.fitted_table import Column, table
from shared.messages.request_list import RequestSummary


def request_table(requests: Sequence[RequestSummary], width: int) -> list[Text]:
    """Return a header line, then a line for each request."""
    return table(_COLUMNS, requests, width)


def _note(request: RequestSummary) -> Text:
    """Return where the request comes from, or why it waits."""
    if request.migrations and request.failed_workers:
        return formatting.plain_text(f"moved from {', '.join(request.failed_workers)}", "yellow")
    return formatting.plain_text((request.reason or "").replace("_", " "), "dim")


_COLUMNS: tuple[Column[RequestSummary], ...] = (
    Column(
        "request",
        lambda request: formatting.plain_text(request.request_id, "bold"),
        min_width=12,
        keep_end=True,
    ),
    Column("client", lambda request: formatting.plain_text(request.client), min_width=6),
    Column(
        "model",
        lambda request: formatting.plain_text(request.model),
        min_width=6,
        rank=3,
        keep_end=True,
    ),
    Column("priority", lambda request: Text(request.priority or formatting.NO_VALUE), rank=4),
    Column("state", lambda request: formatting.state_text(request.state)),
    Column(
        "worker",
        lambda request: formatting.plain_text(request.worker or formatting.NO_VALUE),
        min_width=8,
        keep_end=True,
    ),
    Column("tokens", lambda request: Text(str(request.tokens)), rank=2, right=True),
    Column("age", lambda request: Text(formatting.duration(request.elapsed_ms / 1000)), right=True),
    Column("", _note, rank=1),
)
