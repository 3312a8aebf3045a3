"""A sampler whose rows remember what was drawn for them, and what rows may ask for."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import mlx.core as mx
import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.worker.engine.reference_sampler import Array
from worker.engine.sampling import BatchLogprobs, BatchSampler, SamplingRow
from worker.link.orders import Sampling

SEEDS = st.integers(0, 2**64 - 1)


@dataclass(frozen=True, slots=True)
class Shown:
    """The log-probabilities of one draw: of its token, and of the likeliest by their ids."""

    drawn: float
    top: dict[int, float]


@dataclass(slots=True)
class TrackedRow:
    """A row with all its tokens; `shown` has an entry for each draw that came with
    log-probabilities."""

    how: Sampling
    prompt_ids: list[int] = field(default_factory=lambda: [0])
    answer_ids: list[int] = field(default_factory=list)
    shown: list[Shown] = field(default_factory=list)


class TrackedBatch:
    """Draws for its rows, and gives each its own token as the next input."""

    def __init__(self, rows: Sequence[TrackedRow] = ()) -> None:
        self.rows: list[TrackedRow] = []
        self._sampler = BatchSampler()
        self.join(rows)

    def join(self, rows: Sequence[TrackedRow]) -> None:
        self.rows.extend(rows)
        self._sampler.extend(
            [SamplingRow(row.how, list(row.prompt_ids), list(row.answer_ids)) for row in rows]
        )

    def keep(self, indices: Sequence[int]) -> None:
        self.rows = [self.rows[index] for index in indices]
        self._sampler.retain(indices)

    def step(self, logits: Array, dtype: mx.Dtype = mx.float32) -> list[int]:
        """A token for each row, by its row of `logits`."""
        inputs = [[*row.prompt_ids, *row.answer_ids][-1] for row in self.rows]
        tokens, logprobs = self._sampler.sample(
            mx.array(logits, dtype=dtype), mx.array(inputs, dtype=mx.uint32)
        )
        drawn = cast(list[int], tokens.tolist())
        for row, token in zip(self.rows, drawn, strict=True):
            row.answer_ids.append(token)
        if logprobs is not None:
            self._show(logprobs)
        return drawn

    def _show(self, logprobs: BatchLogprobs) -> None:
        drawn = cast(list[float], logprobs.sampled.tolist())
        top_ids = cast(list[list[int]], logprobs.top_ids.tolist())
        top = cast(list[list[float]], logprobs.top.tolist())
        for place, row in enumerate(logprobs.rows):
            asked = self.rows[row].how.logprobs
            assert asked is not None
            pairs = list(zip(top_ids[place], top[place], strict=True))
            self.rows[row].shown.append(Shown(drawn[place], dict(pairs[:asked])))


def random_logits(vocabulary: int, spread: float, *seed: int) -> Array:
    """[V], the same again for the same seed; exact in float32."""
    single = np.random.default_rng(seed).normal(0, spread, vocabulary).astype(np.float32)
    logits: NDArray[np.float64] = single.astype(np.float64)
    return logits


def samplings(vocabulary: int, top_ks: Sequence[int]) -> st.SearchStrategy[Sampling]:
    """Everything that a row may ask for, mostly some of it at a time."""
    return st.builds(
        Sampling,
        temperature=st.sampled_from([1.0, 0.7, 0.3, 1.5, 2.0, 1.0, 0.8, 1.2, 0.0, 1e-6]),
        top_p=st.sampled_from([1.0, 0.9, 0.95, 0.5, 0.99, 0.1, 1.0, 0.8, 0.97, 0.0]),
        top_k=st.sampled_from([0, 0, 0, *top_ks]),
        min_p=st.sampled_from([0.0, 0.0, 0.0, 0.0, 0.02, 0.3, 1.0]),
        repetition_penalty=st.sampled_from([1.0, 1.0, 1.3, 2.0, 0.5]),
        presence_penalty=st.sampled_from([0.0, 0.0, 0.7, 2.0, -2.0]),
        frequency_penalty=st.sampled_from([0.0, 0.0, 0.4, 2.0, -1.0]),
        logit_bias=st.dictionaries(
            st.integers(0, vocabulary - 1).map(str), st.floats(-100, 100, width=16), max_size=3
        ),
        seed=SEEDS,
        logprobs=st.sampled_from([None, None, 0, 1, 5]),
    )


def tracked_rows(vocabulary: int, top_ks: Sequence[int]) -> st.SearchStrategy[TrackedRow]:
    tokens = st.integers(0, vocabulary - 1)
    return st.builds(
        TrackedRow,
        how=samplings(vocabulary, top_ks),
        prompt_ids=st.lists(tokens, min_size=1, max_size=6),
        answer_ids=st.lists(tokens, max_size=3),
    )
