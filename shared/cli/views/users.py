"""The table of users."""

from collections.abc import Sequence

from rich.text import Text

from shared.access.folder import ClusterMember
from shared.access.nats_accounts import CLIENT_CONNECTIONS
from shared.cli.views import formatting
from shared.cli.views.fitted_table import Column, table


def user_table(users: Sequence[ClusterMember], width: int) -> list[Text]:
    """Return a header line, then a line for each user."""
    return table(_COLUMNS, users, width)


def _key_state(user: ClusterMember) -> Text:
    return Text("the old key is still valid", "yellow") if len(user.public_keys) > 1 else Text()


def _limit(user: ClusterMember) -> Text:
    if user.role != "client":
        return Text()
    return formatting.plain_text(str(user.max_connections or CLIENT_CONNECTIONS))


_COLUMNS: tuple[Column[ClusterMember], ...] = (
    Column("role", lambda user: formatting.plain_text(user.role)),
    Column(
        "name", lambda user: formatting.plain_text(user.name, "bold"), min_width=8, keep_end=True
    ),
    Column("connections", _limit, rank=2),
    Column("since", lambda user: formatting.plain_text(user.added_at[:10]), rank=1),
    Column("", _key_state, rank=2),
)
