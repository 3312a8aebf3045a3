"""The rule of what rounding explains, with a network of one layer."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.nn.layers.linear import Linear

from tests.rounding import (
    FLOAT32_EPSILON,
    allowed,
    assert_near,
    own_difference,
    with_weights_beside,
)


def _layer() -> Linear:
    mx.random.seed(1)
    return Linear(64, 8)


def _inputs() -> mx.array:
    return mx.random.normal((4, 64), key=mx.random.key(2))


def test_ten_times_the_difference_of_two_right_computations_is_rounding() -> None:
    assert allowed(1e-4, 1.0) == pytest.approx(1e-3)


def test_some_steps_of_the_number_type_are_always_rounding() -> None:
    assert allowed(0.0, 4.0) == 128 * FLOAT32_EPSILON


def test_a_hundredth_of_the_largest_value_never_is() -> None:
    assert allowed(1.0, 4.0) == 0.04


def test_weights_beside_differ_by_one_step_each_and_the_own_ones_come_back() -> None:
    layer = _layer()
    own = np.array(layer.weight)
    for beside in with_weights_beside(layer, lambda: np.array(layer.weight)):
        assert (np.abs(beside - own) == np.spacing(np.abs(own))).mean() > 0.99
        assert (beside > own).any() and (beside < own).any()
    assert np.array_equal(np.array(layer.weight), own)


def test_own_weights_come_back_also_after_an_error() -> None:
    layer = _layer()
    own = np.array(layer.weight)

    def fails() -> None:
        raise ValueError

    with pytest.raises(ValueError):
        with_weights_beside(layer, fails)
    assert np.array_equal(np.array(layer.weight), own)


def test_another_order_of_sums_is_rounding_and_a_wrong_row_is_not() -> None:
    layer, inputs = _layer(), _inputs()
    found = np.array(layer(inputs))
    weight, bias = np.array(layer.weight), np.array(layer.bias)
    one_by_one = np.zeros_like(found) + bias
    for column in reversed(range(64)):
        one_by_one += np.array(inputs)[:, column : column + 1] * weight[:, column]
    own = own_difference(layer, lambda: layer(inputs))
    assert 0 < own < 1e-5
    assert_near(found, one_by_one, own)
    for wrong in (found[::-1], found + 1e-4, found * np.nan):
        with pytest.raises(AssertionError, match="of which rounding explains"):
            assert_near(wrong, one_by_one, own)


def test_a_fault_does_not_widen_the_bound_that_it_is_judged_by() -> None:
    layer, inputs = _layer(), _inputs()

    def faulty() -> Any:
        return mx.roll(layer(inputs), 1, 0)

    own = own_difference(layer, lambda: layer(inputs))
    assert own_difference(layer, faulty) == pytest.approx(own)
    with pytest.raises(AssertionError):
        assert_near(faulty(), layer(inputs), own_difference(layer, faulty))
