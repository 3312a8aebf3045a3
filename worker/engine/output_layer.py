"""The output layer of a network, for single positions.

mlx-lm's networks compute the logits of every position. A prompt needs only those of its last token,
and with a large vocabulary computing all takes longer than the rest of the pass. All networks call
the output layer in one of two ways: as `lm_head`, or, with shared weights, as `as_linear` of the
embedding.
"""

from collections.abc import Sequence
from typing import Any, cast

import mlx.core as mx

from worker.engine.caches import CacheLayout

Position = tuple[int, int]
"""Row and column in the tokens of a pass."""

_TOLERANCE = 0.05
"""Relative to the largest logit: rounding differs with the shape of the matrices."""


class OutputLayer:
    """Belongs to the engine thread. Holds no reference to the network."""

    def __init__(self) -> None:
        self._positions: Sequence[Position] | None = None

    @classmethod
    def of(cls, network: Any, layout: CacheLayout) -> "OutputLayer | None":
        """Patch the output layer of a network. Returns None if single positions do not work, or if
        the cache has states: a prompt's cached state must be the one before its last token, so that
        the same prompt finds it."""
        if not layout.allows_padding:
            return None
        layer = cls()
        for name, module in network.named_modules():
            if hasattr(module, "as_linear"):
                layer._patch(module, "as_linear")
            elif name.rpartition(".")[2] == "lm_head":
                layer._patch(module, "__call__")
        return layer if layer._works(network, layout) else None

    def logits(
        self, network: Any, tokens: mx.array, cache: Any, positions: Sequence[Position]
    ) -> mx.array:
        """Return the logits [N, V] at N positions of tokens [B, T]; caches all tokens."""
        return self._at(network, tokens, cache, positions)[:, 0]

    def _at(
        self, network: Any, tokens: mx.array, cache: Any, positions: Sequence[Position]
    ) -> mx.array:
        self._positions = positions
        try:
            return cast(mx.array, network(tokens, cache=cache))
        finally:
            self._positions = None

    def _patch(self, module: Any, method: str) -> None:
        kind = type(module)
        original = getattr(kind, method)

        def at_positions(module: Any, hidden: mx.array) -> Any:
            return original(module, self._selected(hidden))

        module.__class__ = type(kind.__name__, (kind,), {method: at_positions})

    def _selected(self, hidden: mx.array) -> mx.array:
        """Return [N, 1, D] of [B, T, D]; all of it if no positions are set."""
        if self._positions is None:
            return hidden
        rows, columns = zip(*self._positions, strict=True)
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
