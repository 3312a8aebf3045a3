"""What a request asks of a worker, and how its prompt compares with what workers keep."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from shared.ids import ModelId, SessionKey, WorkerId
from shared.messages.priorities import Priority
from shared.messages.request import Requirements

Links = Sequence[tuple[str, float]]
"""The links of a prompt (`shared.messages.prefixes`), each with the share of it up to there."""


def _no_links(_: ModelId) -> Links:
    return ()


class RouteQuery(NamedTuple):
    """One of `models`, the earlier the better.

    Attributes:
        text_bytes, token_ids: what the prompt is made of.
        links: of the prompt, for a model.
        session, home: it shares this with others, and the worker that served the last of them.
        is_turn: that is a session, which stays where it is; else an affinity.
        among_others: of a list of prompts, which is answered when its last one is.
        abilities: that the model must have there, of `events.ABILITIES`.
        structured: it asks for reasoning, tools or a schema, of which older workers know nothing.
    """

    models: Sequence[ModelId]
    requires: Requirements | None = None
    level: Priority = "medium"
    text_bytes: int = 0
    token_ids: int = 0
    links: Callable[[ModelId], Links] = _no_links
    session: SessionKey | None = None
    home: WorkerId | None = None
    is_turn: bool = False
    among_others: bool = False
    abilities: frozenset[str] = frozenset()
    structured: bool = False
