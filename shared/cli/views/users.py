"""Who may take part, a line for each."""

from collections.abc import Sequence

from rich.text import Text

from shared.access.folder import KnownUser
from shared.cli.views import figures
from shared.cli.views.fitted_table import Column, table


def user_table(users: Sequence[KnownUser], width: int) -> list[Text]:
    """A line of titles, then one for each user."""
    return table(_COLUMNS, users, width)


def _changing(user: KnownUser) -> Text:
    return Text("the key before is still taken", "yellow") if len(user.public_keys) > 1 else Text()


_COLUMNS: tuple[Column[KnownUser], ...] = (
    Column("role", lambda user: figures.words(user.role)),
    Column("name", lambda user: figures.words(user.name, "bold"), least=8, keep_end=True),
    Column("since", lambda user: figures.words(user.added_at[:10]), rank=1),
    Column("", _changing, rank=2),
)
