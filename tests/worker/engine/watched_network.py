"""A network that notes its calls, and what it would say without any cache or batch."""

import time
from collections.abc import Sequence
from typing import Any, cast

import mlx.core as mx
import numpy as np

from shared.ids import ModelId
from tests.worker.engine.reference_sampler import Array
from tests.worker.engine.samplings import GREEDY
from worker.engine.prompt import PreparedSequence
from worker.link.orders import Sampling, SubmitSequence


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


def greedy_alone(network: WatchedNetwork, ids: Sequence[int], count: int) -> list[int]:
    """The `count` likeliest tokens that come after `ids`, each of a pass over all before."""
    answer: list[int] = []
    for _ in range(count):
        answer.append(int(logits_alone(network, [*ids, *answer]).argmax()))
    return answer


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
    )
    return PreparedSequence(order, ids, max_tokens)
