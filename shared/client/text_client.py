"""Requests with texts to embed, to score or to rank. Those that do not fit into one message are
sent in several requests."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import orjson

from shared.bus import Bus
from shared.client.completion import Completion
from shared.client.embeddings import Embeddings, Text, listed
from shared.client.scores import Ranking, Scores, pairs
from shared.client.stream import Stream
from shared.client.text_batches import TextOutputs, complete_all

_FIELDS_BYTES = 4096
"""Of a request with texts, for its other fields."""
_T = TypeVar("_T")


class TextClient:
    """The methods of a client that take texts.

    Attributes:
        bus: the connection.
    """

    bus: Bus

    def stream(self, content: None = None, **fields: Any) -> Stream:
        """Send a request: `shared.client.cluster`."""
        raise NotImplementedError

    async def embed(
        self, inputs: Text | Sequence[Text], *, skill: str = "embed", **fields: Any
    ) -> Embeddings:
        """Return the embeddings of one text or of several. Texts that do not fit into one message
        are sent in several requests.

        Args:
            inputs: each a string, or its token ids.
            fields: `dimensions`, `prompt_name`, and other fields of a request: model, priority, ...

        Raises:
            InvalidRequest: there is no text, or a field is invalid.
            StreamFailed: a text could not be embedded; `param` names it, as `input.<number>`.
        """

        answer = await self._complete_all(
            listed(inputs), lambda part: {"input": part}, {"skill": skill, **fields}
        )
        return Embeddings.of(answer)

    async def score(
        self,
        query: str | Sequence[str],
        inputs: str | Sequence[str],
        *,
        skill: str = "rerank",
        **fields: Any,
    ) -> Scores:
        """Return how relevant each text is for a query: the higher, the more.

        Args:
            query: one for all texts, or one for each.
            inputs: one text or several.
            fields: `truncate`, and other fields of a request: model, priority, ...

        Raises:
            InvalidRequest: there is no text, or a field is invalid.
            StreamFailed: a text could not be scored; `param` names it, as `input.<number>`.
        """
        fields = {"skill": skill, **fields}
        inputs = [inputs] if isinstance(inputs, str) else inputs
        if isinstance(query, str):
            fields["query"] = query
            return Scores.of(await self._complete_all(inputs, lambda part: {"input": part}, fields))
        answer = await self._complete_all(
            pairs(query, inputs),
            lambda part: {"query": [each for each, _ in part], "input": [each for _, each in part]},
            fields,
        )
        return Scores.of(answer)

    async def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        skill: str = "rerank",
        **fields: Any,
    ) -> Ranking:
        """Return documents ranked by their relevance for a query. Documents that are too long are
        cut, unless `truncate` is false.

        Args:
            top_n: only the first ones of the ranking.
            fields: as of `score`.

        Raises: as `score`.
        """
        fields = {"truncate": True, **fields}
        return Ranking.of(await self.score(query, documents, skill=skill, **fields), top_n)

    async def _complete_all(
        self,
        inputs: Sequence[_T],
        of_part: Callable[[list[_T]], dict[str, Any]],
        fields: dict[str, Any],
    ) -> TextOutputs:
        """Send texts with the same other `fields`, in as many requests as they need; `of_part`
        returns the fields with some of the texts."""
        own_id = {"request_id": fields.pop("request_id")} if "request_id" in fields else {}

        async def complete(part: list[_T], several: bool) -> Completion:
            given = {} if several else own_id
            return await self.stream(**of_part(part), **fields, **given).collect()

        used_bytes = _FIELDS_BYTES + len(orjson.dumps(fields.get("query", "")))
        return await complete_all(inputs, self.bus.max_payload // 4 - used_bytes, complete)
