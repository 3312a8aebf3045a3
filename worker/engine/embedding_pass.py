"""One pass over texts: their embeddings or scores."""

from collections.abc import Sequence
from typing import cast

import mlx.core as mx

from shared.messages import vectors
from worker.engine.embedding.embedding_tokenizer import TokenizedPair
from worker.engine.embedding.model import EmbeddingModel
from worker.engine.embedding.modules_file import shortened
from worker.engine.text_preparation import PreparedText, QueryTokens
from worker.link.facts import SequenceOutput

_MAX_QUERIES = 1024

_LEAST_LENGTH = 1e-12


class EmbeddingPasses:
    """The passes of one model. Remembers the embeddings of the latest queries, as the texts for one
    query are spread over passes."""

    def __init__(self, model: EmbeddingModel) -> None:
        self._model = model
        self._queries: dict[QueryTokens, mx.array] = {}

    def new_queries(self, inputs: Sequence[PreparedText]) -> set[QueryTokens]:
        """Return the queries of texts whose embeddings are not known yet."""
        queries = {text.query for text in inputs if text.query is not None}
        return queries - self._queries.keys()

    def run(self, inputs: Sequence[PreparedText]) -> list[SequenceOutput]:
        """Return the output of each text, in order. All are for this model; at least one."""
        if self._model.kind == "classification":
            return self._classify(inputs)
        rows = self._model.embed(
            [text.token_ids for text in inputs],
            unpooled_tokens=[text.unpooled_tokens for text in inputs],
        )
        results = [self._result(text, rows[n : n + 1]) for n, text in enumerate(inputs)]
        mx.eval(results)
        return [
            _scored(text, result) if text.query is not None else _embedded(text, result)
            for text, result in zip(inputs, results, strict=True)
        ]

    def _classify(self, inputs: Sequence[PreparedText]) -> list[SequenceOutput]:
        scores = self._model.score(
            [TokenizedPair(text.token_ids, text.second_from or 0) for text in inputs]
        )
        mx.eval(scores)
        return [_scored(text, scores[n]) for n, text in enumerate(inputs)]

    def _result(self, text: PreparedText, row: mx.array) -> mx.array:
        if text.query is not None:
            return _cosine(row, self._query_vector(text.query))
        options = text.order.embedding
        if options is None or options.dimensions is None:
            return row
        return shortened(row, options.dimensions, normalizes=self._model.normalizes)

    def _query_vector(self, query: QueryTokens) -> mx.array:
        if (known := self._queries.pop(query, None)) is None:
            known = self._model.embed([query.token_ids], unpooled_tokens=[query.unpooled_tokens])
            mx.eval(known)
        self._queries[query] = known  # the latest is last
        if len(self._queries) > _MAX_QUERIES:
            del self._queries[next(iter(self._queries))]
        return known


def _cosine(one: mx.array, other: mx.array) -> mx.array:
    """Return the cosine similarity of two vectors, each (1, dimensions); 0 if one has the
    length 0."""
    lengths = mx.linalg.norm(one) * mx.linalg.norm(other)
    return mx.sum(one * other) / mx.maximum(lengths, _LEAST_LENGTH)


def _embedded(text: PreparedText, row: mx.array) -> SequenceOutput:
    (vector,) = cast(list[list[float]], row.tolist())
    return SequenceOutput(
        text.order.sequence, 0, [], "", "stop",
        warnings=text.warnings, embedding=vectors.packed(vector),
    )  # fmt: skip


def _scored(text: PreparedText, score: mx.array) -> SequenceOutput:
    return SequenceOutput(
        text.order.sequence, 0, [], "", "stop",
        warnings=text.warnings, score=cast(float, score.item()),
    )  # fmt: skip
