"""Scores of texts for a query, and texts ranked by them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from shared.client.text_batches import TextOutputs
from shared.errors import InvalidRequest
from shared.messages.stream import Usage


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of texts, in their order: the higher, the more relevant for the query.

    Attributes:
        warnings: sentences for people, for example that texts were cut.
    """

    values: tuple[float, ...]
    usage: Usage
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, answer: TextOutputs) -> Self:
        values = tuple(output.score or 0.0 for output in answer.outputs)
        return cls(values, answer.usage, answer.warnings)


@dataclass(frozen=True, slots=True)
class RankedDocument:
    """`index` is that of the document in the list."""

    index: int
    score: float


@dataclass(frozen=True, slots=True)
class Ranking:
    """Documents by their relevance for a query, the most relevant first.

    Attributes:
        warnings: sentences for people, for example that documents were cut.
    """

    results: tuple[RankedDocument, ...]
    usage: Usage
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, scores: Scores, top_n: int | None) -> Self:
        """Rank the documents; those with equal scores stay in their order."""
        ranked = sorted(enumerate(scores.values), key=lambda each: -each[1])
        results = tuple(RankedDocument(*each) for each in ranked[:top_n])
        return cls(results, scores.usage, scores.warnings)


def pairs(query: str | Sequence[str], inputs: Sequence[str]) -> list[tuple[str, str]]:
    """Return each text with its query.

    Raises:
        InvalidRequest: there are several queries, but not one for each text.
    """
    queries = [query] * len(inputs) if isinstance(query, str) else query
    if len(queries) != len(inputs):
        raise InvalidRequest(
            f"query: {len(queries)} queries for {len(inputs)} texts", param="query"
        )
    return list(zip(queries, inputs, strict=True))
