"""What rounding explains: the bounds of every test that compares what a network computes.

**The rule.** Ten times the difference between two right computations of the same thing is allowed,
made in the same run on the same machine; the product judges rows in batches by the same rule
(`worker/engine/probe.py`). A bound that was measured once is the rounding of one machine: OpenBLAS
sums in another order on another processor, and the test fails there.

**Two right computations.** A row batched with copies of itself is such a pair, but some processors
sum both in the same order, so that they differ by nothing. So each weight is moved to the number
beside it: a sum that is rounded in any order is the exact sum of factors that are each off by about
a rounding, so any processor's sums, and PyTorch's, differ as these two do. Such a pair shows no
fault (a wrong position, mask or row is wrong in both), so no fault widens the bound that it is
judged by.

**Limits.** At least `MIN_EPSILONS` steps of the number type at the largest value are allowed, for
where both computations happen to round alike. Never more than a hundredth of the largest value: a
network that rounds by more shows nothing.

Answers that part where rounding chooses between two tokens are ties: see `tests/ties.py`.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

T = TypeVar("T")

FLOAT32_EPSILON = float(np.finfo(np.float32).eps)
FACTOR = 10.0
MIN_EPSILONS = 32
"""As of the product's probe."""
_MAX_SHARE = 0.01
_DRAWS = 3
"""Of weights beside the real ones: from draw to draw the largest difference varies by half."""


def allowed(own: float, magnitude: float, epsilon: float = FLOAT32_EPSILON) -> float:
    """Return the largest difference that rounding explains.

    Args:
        own: the difference of two right computations.
        magnitude: the largest value that is compared.
        epsilon: of the number type.
    """
    least = MIN_EPSILONS * epsilon * magnitude
    return min(_MAX_SHARE * magnitude, max(FACTOR * own, least))


def difference(found: Any, expected: Any) -> float:
    """Return the largest difference of two arrays of one shape; nan if any number is nan."""
    found, expected = np.array(found, np.float64), np.array(expected, np.float64)
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max())


def with_weights_beside(network: Any, compute: Callable[[], T]) -> list[T]:
    """Return what is computed with each weight moved to the number beside it, up or down by chance,
    once for each draw. The network has its own weights again when this returns.

    Args:
        network: an `mlx.nn.Module`; weights that are not float32 stay.
    """
    weights = cast(list[tuple[str, mx.array]], tree_flatten(network.parameters()))
    computed = []
    try:
        for seed in range(_DRAWS):
            chance = np.random.default_rng(seed)
            beside = [(name, _beside(array, chance)) for name, array in weights]
            network.update(tree_unflatten(beside))
            computed.append(compute())
    finally:
        network.update(tree_unflatten(weights))
    return computed


def own_difference(network: Any, compute: Callable[[], Any]) -> float:
    """Return by how much rounding may change an array that a network computes."""
    right = np.array(compute())
    beside = with_weights_beside(network, lambda: np.array(compute()))
    return max(difference(other, right) for other in beside)


def assert_near(found: Any, expected: Any, own: float) -> None:
    """Assert that two arrays differ by no more than rounding explains.

    Args:
        own: as for `allowed`.
    """
    limit = allowed(own, float(np.abs(np.array(expected, np.float64)).max()))
    apart = difference(found, expected)
    assert apart <= limit, f"differs by {apart:.2g}, of which rounding explains {limit:.2g}"


def _beside(array: mx.array, chance: np.random.Generator) -> mx.array:
    if array.dtype != mx.float32:
        return array
    numbers = np.array(array)
    towards = np.where(chance.random(numbers.shape) < 0.5, -np.inf, np.inf)
    return mx.array(np.nextafter(numbers, towards.astype(np.float32)))
