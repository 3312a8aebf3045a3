"""Whether two ways to compute the same row agree, but for rounding.

A row of a batch goes through other kernels than the same row alone, so its log-probabilities differ
in their last bits. How much that is depends on the network, its weights and its type of numbers;
what it comes to is seen where a row is batched with copies of itself, which no fault of a mask, a
position or a shape can tell from the row alone. What is more than ten times as far apart differs.
"""

_TIMES = 10.0
_LEAST_GAP = 1e-3
_LEAST_STEPS = 32
"""Of the type's smallest step at 1: copies of a row may round as the row alone does by chance."""
_MOST_GAP = 0.5
"""Copies of a row that are that far from it are wrong themselves."""
_TIE_GAP = 1e-3
_TIE_STEPS = 8
"""Logits from 4 to 8 are whole numbers of so many of the type's smallest steps at 1."""


def allowed_gap(own_gap: float, epsilon: float) -> float:
    """The largest gap between log-probabilities that rounding explains.

    Args:
        own_gap: the largest one between the row alone and the row batched with copies of itself.
        epsilon: the smallest step of the network's numbers at 1.
    """
    return min(_MOST_GAP, max(_TIMES * own_gap, _LEAST_GAP, _LEAST_STEPS * epsilon))


def is_tie(best_gap: float, own_gap: float, epsilon: float) -> bool:
    """Whether another token may come because the two best are so close that rounding decides.

    Args:
        best_gap: between the log-probabilities of the two likeliest tokens.
        own_gap, epsilon: as for `allowed_gap`; each of the two may be off by so much.
    """
    return best_gap < max(_TIE_GAP, _TIE_STEPS * epsilon, min(_MOST_GAP, 2 * own_gap))
