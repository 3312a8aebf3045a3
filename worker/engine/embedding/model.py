"""A loaded embedding model or classifier, and how it is loaded."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import mlx.core as mx
from mlx.utils import tree_flatten

from shared.errors import ModelError
from worker.engine.embedding.config_values import values_of
from worker.engine.embedding.embedding_tokenizer import EmbeddingTokenizer, TokenizedPair
from worker.engine.embedding.kind import embedding_kind
from worker.engine.embedding.modules_file import (
    MODULES,
    Normalize,
    VectorSteps,
    load_steps,
    read_modules,
    shortened,
)
from worker.engine.embedding.network import EmbeddingKind, TextNetwork, find_family, load_network
from worker.engine.embedding.pooling import Pooling
from worker.engine.embedding.prompts import Prompts, load_prompts
from worker.engine.embedding.score_activation import ScoreActivation, score_activation
from worker.engine.embedding.token_batch import TokenBatch, padded_batch
from worker.engine.prompt_tokens import check_length, sufficient_part
from worker.models.file_reading import read_object
from worker.models.files import inspect

_log = logging.getLogger(__name__)

_MAX_CONFIG_BYTES = 16_000_000
_HAS_HEAD = "`rerank: embeddings` in its settings has no effect: the model scores by itself"


@dataclass(frozen=True, slots=True)
class EmbeddingModel:
    """A network with its tokenizer. `tokenize` and `tokenize_pair` belong to one thread at a time,
    `embed`, `classify` and `score` to the engine thread.

    Attributes:
        kind: `classification` models score, the others embed.
        dimensions: of a vector by default; of a classifier, the number of its labels.
        max_tokens: of an input, special tokens included: those for which the model was made. The
            caller applies it.
        warnings: sentences for operators about what was assumed.
        steps: None for classifiers.
        activation: of a classifier with one label: makes a score from the logit.
        compares: an embedding model scores, too: texts by the similarity of their embeddings.
    """

    kind: EmbeddingKind
    dimensions: int
    max_tokens: int
    warnings: tuple[str, ...]
    network: TextNetwork
    tokenizer: EmbeddingTokenizer
    prompts: Prompts
    steps: VectorSteps | None
    activation: ScoreActivation = "sigmoid"
    compares: bool = False

    @property
    def abilities(self) -> list[str]:
        """The abilities of `ModelStatus`."""
        if self.kind == "classification":
            return ["rerank"]
        return ["embedding", "rerank"] if self.compares else ["embedding"]

    @property
    def normalizes(self) -> bool:
        """Whether vectors have the length 1."""
        return self.steps is not None and self.steps.normalizes

    @property
    def vocabulary_size(self) -> int:
        return self.network.body.vocabulary_size

    @property
    def memory_bytes(self) -> int:
        """Bytes of the weights."""
        weights = cast(list[tuple[str, mx.array]], tree_flatten(self.network.parameters()))
        return sum(array.nbytes for _, array in weights)

    def tokenize(
        self, text: str, prompt_name: str | None = None, *, truncated: bool = False
    ) -> list[int]:
        """Return the tokens of a text after its prompt, with the model's special tokens.

        Args:
            prompt_name: of the model's prompts; None for its default one, if it has one.
            truncated: cut to `max_tokens`.

        Raises:
            InvalidRequest: the model has no such prompt.
        """
        limit = self.max_tokens if truncated else None
        text = self.prompts.find(prompt_name) + text
        if truncated:
            text = sufficient_part(text, self.max_tokens, self.tokenizer.tokenize)
        return self.tokenizer.tokenize(text, limit)

    def check_length(self, text: str, pause: Callable[[], None]) -> None:
        """Check that a long text may have `max_tokens` or fewer; `pause` is called now and then.

        Raises:
            TooManyTokens: it has more.
        """
        check_length(text, self.max_tokens, self.tokenizer.tokenize, pause)

    def unpooled_tokens(self, prompt_name: str | None = None) -> int:
        """Return how many tokens at the beginning of an input are a prompt that is not pooled: 0
        but for models whose pooling has `include_prompt: false`.

        Raises:
            InvalidRequest: the model has no such prompt.
        """
        prompt = self.prompts.find(prompt_name)
        if not prompt or self.steps is None or self.steps.pooling.includes_prompt:
            return 0
        return self.tokenizer.count_prompt_tokens(prompt)

    def tokenize_pair(self, first: str, second: str, *, truncated: bool = False) -> TokenizedPair:
        """Return the tokens of a pair, such as a query and a document, with the model's special
        tokens.

        Args:
            truncated: the second text is cut so that the pair has `max_tokens`.
        """
        limit = self.max_tokens if truncated else None
        if truncated:
            second = sufficient_part(second, self.max_tokens, self.tokenizer.tokenize)
        return self.tokenizer.tokenize_pair(first, second, limit)

    def count_query_tokens(self, query: str) -> int:
        """Return how many tokens a pair with this query has besides those of its second text."""
        return self.tokenizer.count_first_tokens(query)

    def embed(
        self,
        batch: Sequence[Sequence[int]],
        *,
        dimensions: int | None = None,
        unpooled_tokens: Sequence[int] | None = None,
    ) -> mx.array:
        """Embed rows of tokens; not evaluated. A row's vector depends on the other rows by rounding
        only. The memory that a pass takes grows with rows x length squared: the caller limits both.

        Args:
            batch: one row or more, of one token or more each.
            dimensions: to which vectors are cut; those of unit length get it again.
            unpooled_tokens: for each row, what the method of that name returns for its prompt.

        Returns:
            (rows, dimensions), float32.

        Raises:
            ValueError: the model is a classifier, a row is empty or longer than the network's
                positions, a token is outside the vocabulary, or the model has fewer dimensions.
        """
        if self.steps is None:
            raise ValueError("a classifier does not embed")
        if dimensions is not None and not 1 <= dimensions <= self.steps.dimensions:
            raise ValueError(
                f"dimensions is {dimensions}; the model has 1 to {self.steps.dimensions}"
            )
        rows = self._padded(batch)
        vectors = self.steps(self.steps.pooling(self.network(rows), rows, unpooled_tokens))
        wanted = self.dimensions if dimensions is None else dimensions
        if wanted == self.steps.dimensions:
            return vectors
        return shortened(vectors, wanted, normalizes=self.normalizes)

    def score(self, batch: Sequence[TokenizedPair]) -> mx.array:
        """Score pairs; not evaluated.

        Returns:
            (rows,), float32.

        Raises:
            ValueError: the model is no classifier with one label, or a row is invalid; see `embed`.
        """
        logits = self.classify(batch)
        if logits.shape[1] != 1:
            raise ValueError("only a classifier with one label scores")
        return mx.sigmoid(logits[:, 0]) if self.activation == "sigmoid" else logits[:, 0]

    def classify(self, batch: Sequence[TokenizedPair]) -> mx.array:
        """Classify pairs; not evaluated.

        Returns:
            Logits: (rows, labels), float32.

        Raises:
            ValueError: the model is no classifier, or a row is invalid; see `embed`.
        """
        if self.kind != "classification":
            raise ValueError("only a classifier classifies")
        second_from = [pair.second_from for pair in batch]
        return self.network.classify(self._padded([pair.ids for pair in batch], second_from))

    def _padded(
        self, batch: Sequence[Sequence[int]], second_from: Sequence[int] | None = None
    ) -> TokenBatch:
        body = self.network.body
        return padded_batch(
            batch,
            body.padding_id,
            vocabulary_size=body.vocabulary_size,
            max_length=body.max_length,
            second_from=second_from,
        )


def load_embedding_model(folder: Path, *, compares: bool = False) -> EmbeddingModel:
    """Load an embedding model or a classifier, and evaluate its weights. Belongs to the engine
    thread.

    A causal language model is loaded as an embedding model, too.

    Args:
        compares: whether an embedding model scores, too.

    Raises:
        ModelError: says what is missing, broken or not supported.
    """
    modules = read_modules(folder)
    body_folder = folder if modules is None else modules[0].folder
    path = body_folder / "config.json"
    inspect(body_folder, trust_remote_code=False)
    config = read_object(path, max_bytes=_MAX_CONFIG_BYTES)
    with values_of(path):
        family = find_family(config)
    kind = embedding_kind(folder, config) or "embedding"
    if kind == "embedding" and modules is None and family.pooling is None:
        raise ModelError(
            f"{folder}: {MODULES} is missing, and its vectors cannot be computed without it"
        )
    prompts = load_prompts(folder)
    network = load_network(body_folder, kind)
    tokenizer = EmbeddingTokenizer(body_folder)
    steps: VectorSteps | None = None
    activation: ScoreActivation = "sigmoid"
    warnings: tuple[str, ...] = ()
    if kind == "embedding":
        size = network.body.hidden_size
        if modules is None:
            steps = VectorSteps(Pooling((str(family.pooling),)), (Normalize(),), size)
            warnings = (_assumed(str(family.pooling)),)
        else:
            steps = load_steps(folder, modules[1:], size)
    else:
        if compares:
            warnings = (_HAS_HEAD,)
        with values_of(path):
            activation = score_activation(config)
    for warning in warnings:
        _log.warning("%s: %s", folder, warning)
    limit = tokenizer.max_tokens or network.body.max_length
    return EmbeddingModel(
        kind=kind,
        dimensions=_dimensions(folder, prompts, steps, network.labels),
        max_tokens=min(limit, network.body.max_length),
        warnings=warnings,
        network=network,
        tokenizer=tokenizer,
        prompts=prompts,
        steps=steps,
        activation=activation,
        compares=compares and kind == "embedding",
    )


def _assumed(mode: str) -> str:
    pooled = "the last token's state is" if mode == "lasttoken" else "the mean of all states is"
    return (
        f"it has no {MODULES}, which would tell how to pool: {pooled} taken, and vectors are "
        "normalised"
    )


def _dimensions(folder: Path, prompts: Prompts, steps: VectorSteps | None, labels: int) -> int:
    if steps is None:
        return labels
    if prompts.dimensions is None:
        return steps.dimensions
    if prompts.dimensions > steps.dimensions:
        raise ModelError(
            f"{folder}: truncate_dim is {prompts.dimensions}, but the vectors have "
            f"{steps.dimensions} dimensions"
        )
    return prompts.dimensions
