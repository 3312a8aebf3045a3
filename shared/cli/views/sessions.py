"""Sessions on workers, a line for each."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from shared.cli.views import figures
from shared.cli.views.fitted_table import Column, table
from shared.ids import WorkerId
from shared.messages.control import SessionStatus


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session on the worker that served it."""

    worker: WorkerId
    session: SessionStatus


def session_table(rows: Sequence[SessionRow], width: int) -> list[Text]:
    """A line of titles, then one for each row."""
    return table(_COLUMNS, rows, width)


def _kept(session: SessionStatus) -> Text:
    """How much of its text need not be computed again."""
    if not session.text_tokens:
        return Text(figures.NOTHING, "dim")
    share = f"{min(1.0, session.tokens / session.text_tokens):.0%}"
    return Text(share, "" if session.tokens else "dim")


def _size(count_bytes: int) -> Text:
    return Text(figures.size(count_bytes)) if count_bytes else Text(figures.NOTHING, "dim")


def _state(session: SessionStatus) -> Text:
    names = ["running"] if session.active else []
    names += ["pinned"] if session.pinned else []
    return figures.words(" ".join(names), figures.style_of("running") if session.active else "")


_COLUMNS: tuple[Column[SessionRow], ...] = (
    Column("session", lambda row: figures.words(row.session.id, "bold"), least=10, keep_end=True),
    Column("client", lambda row: figures.words(row.session.client), least=6, rank=3),
    Column("worker", lambda row: figures.words(row.worker), least=8, keep_end=True),
    Column("model", lambda row: figures.words(row.session.model), least=6, rank=5, keep_end=True),
    Column("turns", lambda row: Text(str(row.session.turns)), right=True),
    Column("tokens", lambda row: Text(str(row.session.text_tokens)), rank=2, right=True),
    Column("kept", lambda row: _kept(row.session), right=True),
    Column("memory", lambda row: _size(row.session.memory_bytes), rank=1, right=True),
    Column("disk", lambda row: _size(row.session.disk_bytes), rank=1, right=True),
    Column("age", lambda row: Text(figures.duration(row.session.age_s)), rank=4, right=True),
    Column("used", lambda row: Text(figures.duration(row.session.idle_s)), right=True),
    Column("", lambda row: _state(row.session)),
)
