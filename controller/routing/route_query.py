"""What routing must know of a request."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from shared.ids import ClientName, ModelId, SessionKey, WorkerId
from shared.messages.base import Priority
from shared.messages.request import Requirements

Links = Sequence[tuple[str, float]]
"""The prefix hashes of a prompt (`shared.messages.prefixes`), shortest prefix first, each with the
prefix's share of the prompt."""


def _no_links(_: ModelId) -> Links:
    return ()


class RouteQuery(NamedTuple):
    """
    Attributes:
        models: any of them serves the request, the best one first.
        text_bytes, token_ids: size of the prompt: bytes of text, and the number of token ids.
        client: who asks; None: anybody.
        links: returns the prefix hashes of the prompt for a model.
        session, home: session or affinity of the request, and the worker that served its last
            request.
        is_turn: whether `session` is a session, which stays on its worker, and not an affinity.
        is_list_part: whether it is one of a list of prompts, which is answered after its last one.
        abilities: those of `model_status.ABILITIES` that the model must have on the worker.
        generates: whether the answer is generated text, not embeddings or scores.
        structured: whether it asks for reasoning, tools or a schema, which older workers lack.
    """

    models: Sequence[ModelId]
    requires: Requirements | None = None
    level: Priority = "medium"
    text_bytes: int = 0
    token_ids: int = 0
    client: ClientName | None = None
    links: Callable[[ModelId], Links] = _no_links
    session: SessionKey | None = None
    home: WorkerId | None = None
    is_turn: bool = False
    is_list_part: bool = False
    abilities: frozenset[str] = frozenset()
    generates: bool = True
    structured: bool = False
