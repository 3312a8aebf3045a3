"""GELU, faster than MLX's on a CPU, where MLX computes `erf` number by number."""

import math

import mlx.core as mx
from mlx.nn.layers.activations import gelu as _gelu

from worker.engine.device import on_gpu

_LARGEST = 3.92
"""In float32, erf of more than this is 1."""
_NUMERATOR = (
    1.128379022, 0.192764356, 5.306051967e-2, 3.868339327e-3, 2.87479544e-4, 2.034731632e-6
)  # fmt: skip
_DENOMINATOR = (
    1.0, 0.504164629, 0.1150847414, 1.517232071e-2, 1.188117771e-3, 3.807061352e-5
)  # fmt: skip
"""erf(x) = x * numerator(x²) / denominator(x²), lowest power first: a least-squares fit, reweighted
until the largest error on [0, 3.92] was least (1.6e-8; 3.4e-7 with the rounding of float32)."""


def gelu(x: mx.array) -> mx.array:
    """Return x * Φ(x), Φ the cumulative distribution of the standard normal."""
    if on_gpu() or x.dtype != mx.float32:
        return _gelu(x)
    return 0.5 * x * (1 + erf(x * math.sqrt(0.5)))


def erf(x: mx.array) -> mx.array:
    """Return the error function, in multiplications and one division; float32 only."""
    x = mx.clip(x, -_LARGEST, _LARGEST)
    square = x * x
    return x * _polynomial(_NUMERATOR, square) / _polynomial(_DENOMINATOR, square)


def _polynomial(coefficients: tuple[float, ...], x: mx.array) -> mx.array:
    value = x * coefficients[-1] + coefficients[-2]
    for coefficient in coefficients[-3::-1]:
        value = value * x + coefficient
    return value
