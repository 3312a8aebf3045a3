"""Prompts of which mlx-lm itself says otherwise where it comes to the same by another right way."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from tests.architectures.references import Ids, Said, say_alone
from tests.rounding import with_weights_beside
from worker.engine.probe import allowed_gap

_SMALL_PART_TOKENS = 16
_IN_PARTS = "where they come in parts"
_BY_ROUNDING = "where it rounds otherwise"


class UnsteadyPrompts:
    """Contains the prompts that are unsteady, in either of two ways.

    Some networks say otherwise where a prompt goes into the cache in small parts. Others choose
    experts, or tokens to attend to, by scores that rounding puts in another order: they say
    otherwise with each weight moved to the number beside it (`tests/rounding.py`). Nothing of the
    engine takes part in either.

    Args:
        said: what mlx-lm says of each prompt.
        epsilon: of the network's number type.
    """

    def __init__(self, network: Any, said: Mapping[Ids, Said], epsilon: float) -> None:
        self._network = network
        self._said = said
        self._limit = allowed_gap(0.0, epsilon)
        self._found: dict[Ids, str] = {}
        self._how = cache(self._find)

    def __contains__(self, prompt: Ids) -> bool:
        how = self._how(prompt)
        if how is not None:
            self._found[prompt] = how
        return how is not None

    def reason(self) -> str:
        """Say which prompts that were asked for are unsteady, and how the shortest of them is."""
        shortest = min(self._found, key=len)
        return (
            f"mlx-lm itself says otherwise of {len(shortest)} tokens and more "
            f"{self._found[shortest]}: not compared"
        )

    def _find(self, prompt: Ids) -> str | None:
        said = self._said[prompt]

        def again(**how: int) -> bool:
            return _is_same(
                said, say_alone(self._network, prompt, len(said.ids), **how), self._limit
            )

        if not again(part_tokens=_SMALL_PART_TOKENS):
            return _IN_PARTS
        return None if all(with_weights_beside(self._network, again)) else _BY_ROUNDING


def _is_same(said: Said, other: Said, limit: float) -> bool:
    """Whether no log-probability differs by more than the limit, up to a tie."""
    for number, (token, another) in enumerate(zip(said.ids, other.ids, strict=True)):
        if not np.nanmax(np.abs(said.logprobs[number] - other.logprobs[number])) <= limit:
            return False
        if token != another:
            break
    return True
