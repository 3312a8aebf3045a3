"""What rounding explains."""

import math

from worker.engine.probe import allowed_gap, is_tie

_FLOAT32, _BFLOAT16 = 2.0**-23, 2.0**-7


def test_ten_times_what_copies_of_a_row_differ_by_is_rounding() -> None:
    assert allowed_gap(0.002, _FLOAT32) == 0.02


def test_copies_that_happen_to_round_alike_leave_some_room() -> None:
    assert allowed_gap(0.0, _FLOAT32) == 1e-3
    assert allowed_gap(0.0, _BFLOAT16) == 0.25


def test_copies_that_are_far_apart_allow_nothing_more() -> None:
    assert allowed_gap(3.0, _FLOAT32) == allowed_gap(math.inf, _FLOAT32) == 0.5


def test_two_tokens_are_as_likely_where_rounding_can_swap_them() -> None:
    for best_gap, own_gap, epsilon, expected in (
        (0.0009, 0.0, 1e-7, True),
        (0.0011, 0.0, 1e-7, False),
        (0.03, 0.02, 1e-7, True),
        (0.05, 0.02, 1e-7, False),
        (0.06, 0.0, 2**-7, True),
        (0.07, 0.0, 2**-7, False),
        (0.6, math.inf, 1e-7, False),
    ):
        assert is_tie(best_gap, own_gap, epsilon) is expected
