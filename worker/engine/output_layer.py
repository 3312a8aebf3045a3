"""The output layer of a network, for single positions.

mlx-lm's networks compute the logits of every position. Of a prompt those of its last token are of
use, and with a large vocabulary to compute all takes longer than the rest of the pass. All of them
call that layer in one of two ways: as `lm_head`, or as `as_linear` of the embedding, where both
share their weights.
"""

from collections.abc import Sequence
from typing import Any, cast

import mlx.core as mx

from worker.engine.caches import CacheLayout

Place = tuple[int, int]
"""A row and a column of the tokens of a pass."""

_TOLERANCE = 0.05
"""Of the largest logit: a pass may round in another way where its matrices have another shape."""


class OutputLayer:
    """Belongs to the engine thread. Holds nothing of the network."""

    def __init__(self) -> None:
        self._places: Sequence[Place] | None = None

    @classmethod
    def of(cls, network: Any, layout: CacheLayout) -> "OutputLayer | None":
        """That of a network; None where it cannot be had for single positions, and where what is
        kept of a prompt is its state before the last token: so the same prompt finds it."""
        if not layout.allows_padding:
            return None
        layer = cls()
        for name, module in network.named_modules():
            if hasattr(module, "as_linear"):
                layer._take_over(module, "as_linear")
            elif name.rpartition(".")[2] == "lm_head":
                layer._take_over(module, "__call__")
        return layer if layer._works(network, layout) else None

    def logits(
        self, network: Any, tokens: mx.array, cache: Any, places: Sequence[Place]
    ) -> mx.array:
        """[N, V] the logits at N places of tokens [B, T], all of which go into the cache."""
        return self._at(network, tokens, cache, places)[:, 0]

    def _at(self, network: Any, tokens: mx.array, cache: Any, places: Sequence[Place]) -> mx.array:
        self._places = places
        try:
            return cast(mx.array, network(tokens, cache=cache))
        finally:
            self._places = None

    def _take_over(self, module: Any, method: str) -> None:
        kind = type(module)
        whole = getattr(kind, method)

        def at_places(module: Any, hidden: mx.array) -> Any:
            return whole(module, self._chosen(hidden))

        module.__class__ = type(kind.__name__, (kind,), {method: at_places})

    def _chosen(self, hidden: mx.array) -> mx.array:
        """[N, 1, D] of [B, T, D]; all of it where no places are asked for."""
        if self._places is None:
            return hidden
        rows, columns = zip(*self._places, strict=True)
        return hidden[mx.array(rows), mx.array(columns)][:, None]

    def _works(self, network: Any, layout: CacheLayout) -> bool:
        tokens = mx.arange(3, dtype=mx.uint32)[None]
        whole = network(tokens, cache=layout.new_cache(1, 3))[:, 1:2]
        try:
            single = self._at(network, tokens, layout.new_cache(1, 3), [(0, 1)])
        except (ValueError, IndexError, TypeError):
            return False
        if single.shape != whole.shape:
            return False
        apart, largest = mx.abs(single - whole).max(), mx.abs(whole).max()
        return bool((apart <= _TOLERANCE * largest).item())
