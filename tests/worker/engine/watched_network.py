"""A network that notes its calls, and what it would say without any cache or batch."""

import time
from collections.abc import Sequence
from typing import Any, cast

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache

from shared.ids import ModelId
from tests.rounding import allowed, own_difference
from tests.worker.engine.expected_tokens import ExpectedTokens, likeliest
from tests.worker.engine.reference_sampler import Array
from tests.worker.engine.samplings import GREEDY
from worker.engine.prompt import PreparedSequence
from worker.link.orders import Sampling, SubmitSequence

_BOUND_TOKENS = 300


class WatchedNetwork:
    """The real network behind it does all the work.

    Attributes:
        shapes: (rows, tokens of each) of every forward pass.
        pause_s: how much longer a pass takes.
    """

    def __init__(self, network: Any) -> None:
        self.real = network
        self.shapes: list[tuple[int, ...]] = []
        self.pause_s = 0.0

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        self.shapes.append(tokens.shape)
        time.sleep(self.pause_s)
        return cast(mx.array, self.real(tokens, cache=cache))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


def logits_alone(network: WatchedNetwork, ids: Sequence[int]) -> Array:
    """[V] what comes after `ids`, of one pass over all of them; not noted."""
    logits: Array = np.array(network.real(mx.array([list(ids)]))[0, -1]).astype(np.float64)
    return logits


def logits_bound(network: Any) -> float:
    """How far two logits, or log-probabilities, of this network may lie apart by rounding."""
    real = getattr(network, "real", network)
    tokens = mx.array([random_ids(_BOUND_TOKENS, 1)])

    def logits() -> Any:
        return real(tokens, cache=make_prompt_cache(real))

    return allowed(own_difference(real, logits), float(np.abs(np.array(logits())).max()))


def greedy_alone(network: WatchedNetwork, ids: Sequence[int], count: int) -> ExpectedTokens:
    """The `count` likeliest tokens that come after `ids`, each of a pass over all before."""
    answer: list[int] = []
    steps = []
    for _ in range(count):
        steps.append(logits_alone(network, [*ids, *answer]))
        answer.append(int(steps[-1].argmax()))
    return likeliest(zip(answer, steps, strict=True))


def random_ids(length: int, seed: int) -> list[int]:
    """A prompt for the tiny model."""
    ids: list[int] = np.random.default_rng([length, seed]).integers(0, 256, length).tolist()
    return ids


def prepared(
    sequence: int,
    ids: list[int],
    *,
    max_tokens: int = 8,
    how: Sampling = GREEDY,
    resumed_ids: Sequence[int] = (),
    stop_token_ids: Sequence[int] = (),
    ignore_eos: bool = False,
    client: str = "",
    is_newcomer: bool = False,
) -> PreparedSequence:
    """A sequence that is ready for prefill."""
    order = SubmitSequence(
        sequence=sequence,
        model=ModelId("tiny"),
        messages=None,
        text=None,
        token_ids=ids,
        max_tokens=max_tokens,
        stop=[],
        stop_token_ids=list(stop_token_ids),
        sampling=how,
        resumed_ids=list(resumed_ids),
        ignore_eos=ignore_eos,
        client=client,
        is_newcomer=is_newcomer,
    )
    return PreparedSequence(order, ids, max_tokens)
