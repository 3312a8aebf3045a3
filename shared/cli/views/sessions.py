"""The table of sessions."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from shared.cli.views import formatting
from shared.cli.views.fitted_table import Column, table
from shared.ids import WorkerId
from shared.messages.control import SessionStatus


@dataclass(frozen=True, slots=True)
class SessionTableRow:
    """A session on the worker that served it."""

    worker: WorkerId
    session: SessionStatus


def session_table(rows: Sequence[SessionTableRow], width: int) -> list[Text]:
    """Return a header line, then a line for each row."""
    return table(_COLUMNS, rows, width)


def _cached(session: SessionStatus) -> Text:
    """Return the share of the tokens that the next turn need not compute."""
    if not session.text_tokens:
        return Text(formatting.NO_VALUE, "dim")
    share = f"{min(1.0, session.tokens / session.text_tokens):.0%}"
    return Text(share, "" if session.tokens else "dim")


def _size(count_bytes: int) -> Text:
    return Text(formatting.size(count_bytes)) if count_bytes else Text(formatting.NO_VALUE, "dim")


def _state(session: SessionStatus) -> Text:
    names = ["running"] if session.active else []
    names += ["pinned"] if session.pinned else []
    return formatting.plain_text(
        " ".join(names), formatting.style_of("running") if session.active else ""
    )


_COLUMNS: tuple[Column[SessionTableRow], ...] = (
    Column(
        "session",
        lambda row: formatting.plain_text(row.session.id, "bold"),
        min_width=10,
        keep_end=True,
    ),
    Column("client", lambda row: formatting.plain_text(row.session.client), min_width=6, rank=3),
    Column("worker", lambda row: formatting.plain_text(row.worker), min_width=8, keep_end=True),
    Column(
        "model",
        lambda row: formatting.plain_text(row.session.model),
        min_width=6,
        rank=5,
        keep_end=True,
    ),
    Column("turns", lambda row: Text(str(row.session.turns)), right=True),
    Column("tokens", lambda row: Text(str(row.session.text_tokens)), rank=2, right=True),
    Column("cached", lambda row: _cached(row.session), right=True),
    Column("memory", lambda row: _size(row.session.memory_bytes), rank=1, right=True),
    Column("disk", lambda row: _size(row.session.disk_bytes), rank=1, right=True),
    Column("age", lambda row: Text(formatting.duration(row.session.age_s)), rank=4, right=True),
    Column("used", lambda row: Text(formatting.duration(row.session.idle_s)), right=True),
    Column("", lambda row: _state(row.session)),
)
