"""What mlx-lm says of one text alone, by its own loop: the engine is compared with it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load

from worker.engine.caches import leaves

Ids = tuple[int, ...]
_PART_TOKENS = 2048
"""As mlx-lm has it."""


@dataclass(frozen=True, slots=True)
class Said:
    """A greedy answer.

    Attributes:
        logprobs: [tokens, V] of each token of the answer.
    """

    ids: list[int]
    logprobs: npt.NDArray[np.float64]


def load_reference(folder: Path) -> Any:
    """The network as mlx-lm loads it, in which nothing of ours is."""
    network, *_ = load(str(folder))
    return network


def say_alone(
    network: Any, prompt: Sequence[int], count: int, *, part_tokens: int = _PART_TOKENS
) -> Said:
    """The `count` likeliest tokens after a prompt, which goes into the cache in such parts."""
    ids: list[int] = []
    logprobs: list[npt.NDArray[np.float64]] = []
    steps = generate_step(
        mx.array(list(prompt)), network, max_tokens=count, prefill_step_size=part_tokens
    )
    for token, each in steps:
        ids.append(int(token))
        logprobs.append(np.array(each.astype(mx.float32), dtype=np.float64))
    return Said(ids, np.stack(logprobs))


def window_tokens(network: Any) -> int:
    """Of the smallest window or chunk of its layers; 0 where all see the whole text."""
    sizes = [
        int(size)
        for leaf in leaves(make_prompt_cache(network))
        for name in ("max_size", "chunk_size")
        if (size := getattr(leaf, name, None))
    ]
    return min(sizes, default=0)
