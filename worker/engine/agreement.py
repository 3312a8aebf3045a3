"""Whether two ways to compute the same row agree, except for rounding.

A row of a batch goes through other kernels than the same row alone, so its log-probabilities differ
in their last bits. The size of that difference depends on the network, its weights and its number
type. It is measured by batching a row with copies of itself: no wrong mask, position or shape can
show there. A difference more than ten times as large is an error.
"""

_TOLERANCE_FACTOR = 10.0
_MIN_GAP = 1e-3
_MIN_EPSILONS = 32
"""Lower bound of the allowed gap in epsilons: copies may by chance round as the row alone does."""
_MAX_GAP = 0.5
"""Copies of a row with a larger gap are wrong themselves."""
_TIE_GAP = 1e-3
_TIE_EPSILONS = 8
"""Logits from 4 to 8 are multiples of this many epsilons."""


def allowed_gap(own_gap: float, epsilon: float) -> float:
    """Return the largest gap between log-probabilities that rounding explains.

    Args:
        own_gap: the largest gap between the row alone and the row batched with copies of itself.
        epsilon: the machine epsilon of the network's number type.
    """
    return min(_MAX_GAP, max(_TOLERANCE_FACTOR * own_gap, _MIN_GAP, _MIN_EPSILONS * epsilon))


def is_tie(best_gap: float, own_gap: float, epsilon: float) -> bool:
    """Whether the two likeliest tokens are so close that rounding decides between them.

    Args:
        best_gap: the gap between the log-probabilities of the two likeliest tokens.
        own_gap, epsilon: as for `allowed_gap`; each of the two values may be off by that much.
    """
    return best_gap < max(_TIE_GAP, _TIE_EPSILONS * epsilon, min(_MAX_GAP, 2 * own_gap))
