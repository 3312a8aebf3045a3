"""GELU beside the exact function."""

import math
from typing import cast

import mlx.core as mx
import pytest

from tests.rounding import FLOAT32_EPSILON
from worker.engine.embedding.gelu import erf, gelu

_STEP = 8 * FLOAT32_EPSILON
"""What a handful of operations rounds, of a number near 1."""
_NUMBERS = [n / 500 for n in range(-5000, 5001)]


def test_the_error_function_is_as_precise_as_float32() -> None:
    values = cast(list[float], erf(mx.array(_NUMBERS)).tolist())
    assert max(abs(v - math.erf(x)) for v, x in zip(values, _NUMBERS, strict=True)) < _STEP


def test_gelu_is_the_exact_one() -> None:
    values = cast(list[float], gelu(mx.array(_NUMBERS)).tolist())
    exact = [0.5 * x * (1 + math.erf(x / math.sqrt(2))) for x in _NUMBERS]
    for value, right, x in zip(values, exact, _NUMBERS, strict=True):
        assert value == pytest.approx(right, abs=_STEP * max(1.0, abs(x)))


def test_half_precision_stays_half_precision() -> None:
    x = mx.array([-1.0, 0.5, 2.0], dtype=mx.float16)
    assert gelu(x).dtype == mx.float16
