"""Which prompts mlx-lm itself says otherwise of."""

from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module

from tests.architectures.references import say_alone
from tests.architectures.unsteady_prompts import UnsteadyPrompts
from tests.rounding import FLOAT32_EPSILON

_VOCABULARY = 16
_SHORT, _LONG = (1, 2, 3), tuple(range(10))


class _Network(Module):
    """The logits after a token are a row of its table."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.layers: list[Any] = []
        self.table = 3 * mx.random.normal((_VOCABULARY, _VOCABULARY), key=mx.random.key(1))
        self.scores = mx.array([0.5, 0.5])

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        return self.table[tokens]


class _Choosing(_Network):
    """After token 9, what comes depends on which of two scores is higher, and they are equal."""

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        turned = mx.where(self.scores[0] > self.scores[1], -self.table, self.table)
        return mx.where((tokens == 9)[..., None], turned[tokens], self.table[tokens])


class _Faulty(_Network):
    """Whatever is wrong with it, it is the same each time."""

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        return super().__call__(tokens * 0, cache)


def _unsteady(network: Any) -> UnsteadyPrompts:
    said = {prompt: say_alone(network, prompt, 1) for prompt in (_SHORT, _LONG)}
    return UnsteadyPrompts(network, said, FLOAT32_EPSILON)


def test_a_network_that_chooses_by_equal_scores_is_unsteady_where_it_chooses() -> None:
    unsteady = _unsteady(_Choosing())
    assert _SHORT not in unsteady
    assert _LONG in unsteady
    assert unsteady.reason() == (
        "mlx-lm itself says otherwise of 10 tokens and more where it rounds otherwise: not compared"
    )


def test_other_networks_are_steady_also_faulty_ones() -> None:
    for network in (_Network(), _Faulty()):
        unsteady = _unsteady(network)
        assert _SHORT not in unsteady and _LONG not in unsteady
