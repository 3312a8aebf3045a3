"""Which texts share a pass, and what is said of texts that cannot be embedded."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import RequestError
from shared.ids import ModelId
from shared.messages import vectors
from worker.engine.embedding.embedding_tokenizer import TokenizedPair
from worker.engine.embedding.model import EmbeddingModel
from worker.engine.embedding.prompts import Prompts
from worker.engine.text_embedder import TextEmbedder, similar
from worker.engine.text_preparation import PreparedText, QueryTokens, prepare_text
from worker.link.activity import EngineActivityRecord
from worker.link.orders import EmbeddingOptions, Sampling, SubmitSequence

_LENGTHS = st.lists(st.integers(1, 512), min_size=1, max_size=60).map(sorted)
_MODEL = ModelId("counts")
_GREEDY = Sampling(0.0, 1.0, 0, 0.0, 1.0, 0.0, 0.0, {}, 0, None)


@dataclass
class _CountingModel:
    """A scripted model: the vector of a text is `vector`, or its number of tokens and the pass it
    was in."""

    dimensions: int = 2
    max_tokens: int = 512
    vocabulary_size: int = 1000
    normalizes: bool = False
    kind: str = "embedding"
    compares: bool = False
    prompts: Prompts = field(default_factory=Prompts)
    passes: list[list[int]] = field(default_factory=list)
    vector: list[float] | None = None

    def tokenize(self, text: str, prompt_name: str | None) -> list[int]:
        return list(range(len(text.split())))

    def check_length(self, text: str, pause: Callable[[], None]) -> None:
        pass

    def tokenize_pair(self, first: str, second: str) -> TokenizedPair:
        return TokenizedPair([7], 1)

    def unpooled_tokens(self, prompt_name: str | None) -> int:
        return 0

    def embed(self, batch: list[list[int]], *, unpooled_tokens: list[int]) -> mx.array:
        assert len(unpooled_tokens) == len(batch)
        self.passes.append([len(row) for row in batch])
        if self.vector is not None:
            return mx.array([self.vector] * len(batch))
        return mx.array([[float(len(row)), float(len(self.passes))] for row in batch])


def _order(number: int, tokens: int = 3, priority: int = 1, **options: Any) -> SubmitSequence:
    return SubmitSequence(
        number, _MODEL, None, "word " * tokens, None, None, [], [], _GREEDY,
        priority=priority, embedding=EmbeddingOptions(**options),
    )  # fmt: skip


def _prepared(model: _CountingModel, *args: Any, **options: Any) -> Any:
    return prepare_text(_order(*args, **options), cast(EmbeddingModel, model))


@pytest.fixture
def model() -> _CountingModel:
    return _CountingModel()


@pytest.fixture
def embedder(model: _CountingModel) -> TextEmbedder:
    ticks = iter(range(10_000))
    embedder = TextEmbedder(
        EngineActivityRecord.private(),
        clock=lambda: next(ticks) / 1000,
        max_pass_tokens=16_384,
    )
    embedder.serve(_MODEL, cast(EmbeddingModel, model))
    return embedder


@given(_LENGTHS, st.data())
def test_a_pass_has_the_first_text_and_neighbours_with_little_padding(
    lengths: list[int], data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, len(lengths) - 1))
    limit = data.draw(st.floats(1, 20_000))
    chosen = similar(lengths, first, limit)
    rows = [lengths[index] for index in chosen]
    padded = len(rows) * max(rows)
    assert first in chosen
    assert len(rows) == 1 or padded <= limit
    assert padded - sum(rows) <= 0.25 * padded


def test_equal_texts_share_passes_as_large_as_allowed() -> None:
    assert similar([8] * 100, 50, 800) == range(100)
    assert len(similar([8] * 100, 50, 80)) == 10


def test_every_text_gets_its_own_vector_once(model: _CountingModel, embedder: TextEmbedder) -> None:
    lengths = [5, 400, 6, 5, 390, 1, 7]
    for number, tokens in enumerate(lengths):
        embedder.add(_prepared(model, number, tokens))
    outputs = {}
    while len(embedder):
        for output in embedder.embed(0.5):
            assert output.sequence not in outputs
            assert output.finish_reason == "stop" and output.embedding is not None
            outputs[output.sequence] = vectors.unpacked(output.embedding)[0]
    assert outputs == dict(enumerate(lengths))
    assert all(max(rows) < 1.5 * min(rows) + 2 for rows in model.passes)


def test_urgent_texts_go_first_then_the_earliest(
    model: _CountingModel, embedder: TextEmbedder
) -> None:
    """Lengths that do not share a pass."""
    for number, (tokens, priority) in enumerate([(10, 1), (100, 1), (400, 0)]):
        embedder.add(_prepared(model, number, tokens, priority))
    order = [output.sequence for _ in range(3) for output in embedder.embed(0.5)]
    assert order == [2, 0, 1]


def test_the_time_of_a_pass_decides_how_many_texts_the_next_one_has(
    model: _CountingModel, embedder: TextEmbedder
) -> None:
    for number in range(1000):
        embedder.add(_prepared(model, number, 10))
    while len(model.passes) < 30 and len(embedder):
        embedder.embed(0.05)  # each pass takes 1 ms by the clock
    assert len(model.passes[-1]) >= len(model.passes[0])


def test_long_texts_share_a_pass_only_as_far_as_attention_fits(embedder: TextEmbedder) -> None:
    """Rows times length squared is bounded."""
    model = _CountingModel(max_tokens=10_000, vocabulary_size=20_000)
    embedder.serve(_MODEL, cast(EmbeddingModel, model))
    for number in range(6):
        embedder.add(_prepared(model, number, 5000))
    while len(embedder):
        embedder.embed(1000.0)
    assert model.passes == [[5000] * 2] * 3


def test_texts_that_were_cancelled_or_whose_model_is_gone_are_returned(
    model: _CountingModel, embedder: TextEmbedder
) -> None:
    for number in range(3):
        embedder.add(_prepared(model, number))
    removed = embedder.remove(1)
    assert removed is not None and removed.order.sequence == 1
    assert embedder.remove(1) is None
    assert [text.order.sequence for text in embedder.remove_model(_MODEL)] == [0, 2]
    assert len(embedder) == 0


@pytest.mark.parametrize(
    ("order", "code", "param"),
    [
        (_order(1, 0), "invalid_request", "input"),
        (_order(1, 513), "context_length_exceeded", "input"),
        (_order(1, dimensions=3), "invalid_request", "dimensions"),
    ],
)
def test_a_text_that_cannot_be_embedded_says_why(
    model: _CountingModel, order: SubmitSequence, code: str, param: str
) -> None:
    with pytest.raises(RequestError) as failed:
        prepare_text(order, cast(EmbeddingModel, model))
    assert (failed.value.code, failed.value.param) == (code, param)


def test_shortened_vectors_are_normalised_only_if_the_models_are(
    model: _CountingModel, embedder: TextEmbedder
) -> None:
    """Each text to its own length, also in one pass."""
    for normalizes, expected in ((False, [3.0, 4.0]), (True, [0.6, 0.8])):
        model.normalizes, model.vector = normalizes, [3.0, 4.0, 5.0]
        embedder.add(_prepared(model, 1, dimensions=2))
        embedder.add(_prepared(model, 2))
        first, second = embedder.embed(0.5)
        assert first.embedding is not None and second.embedding is not None
        assert vectors.unpacked(first.embedding) == pytest.approx(expected)
        assert vectors.unpacked(second.embedding) == [3.0, 4.0, 5.0]
    model.vector = [0.0, 0.0, 1.0]
    embedder.add(_prepared(model, 1, dimensions=2))
    (output,) = embedder.embed(0.5)
    assert output.embedding is not None
    assert vectors.unpacked(output.embedding) == [0.0, 0.0]


def test_a_pass_has_no_more_tokens_of_new_queries_than_of_texts(embedder: TextEmbedder) -> None:
    """Each query is embedded once, when its first text is."""
    model = _CountingModel()
    embedder = TextEmbedder(
        EngineActivityRecord.private(), clock=iter(range(1000)).__next__, max_pass_tokens=100
    )
    embedder.serve(_MODEL, cast(EmbeddingModel, model))
    for number in range(8):
        query = QueryTokens((number // 2, *range(39)), 0)
        embedder.add(PreparedText(_order(number, query="q"), [1, 2, 3], query=query))
    served = []
    while len(embedder):
        outputs = embedder.embed(1e9)
        assert all(output.score is not None for output in outputs)
        served.append(len(outputs))
    assert served == [4, 4]
    assert sorted(map(len, model.passes)) == [1, 1, 1, 1, 4, 4]
    assert sum(passed == [40] for passed in model.passes) == 4


def test_a_text_without_length_has_the_score_0(embedder: TextEmbedder) -> None:
    model = _CountingModel(vector=[0.0, 0.0])
    embedder.serve(_MODEL, cast(EmbeddingModel, model))
    embedder.add(PreparedText(_order(1, query="q"), [1], query=QueryTokens((1,), 0)))
    (output,) = embedder.embed(1.0)
    assert output.score == 0.0


@pytest.mark.parametrize("wrong", ["query", "text", "pair"])
def test_tokens_outside_the_vocabulary_are_refused_before_they_reach_the_network(
    wrong: str,
) -> None:
    """A tokenizer may have more tokens than the network has embeddings."""
    model = _CountingModel(vocabulary_size=2, compares=True)
    if wrong == "pair":
        model.kind = "classification"
    words = {"query": ("a b c d", 1), "text": ("a", 4), "pair": ("a", 1)}[wrong]
    with pytest.raises(RequestError) as failed:
        _prepared(model, 1, words[1], query=words[0])
    assert failed.value.code == "invalid_request"
    assert failed.value.param == ("query" if wrong == "query" else "input")
