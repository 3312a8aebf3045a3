"""Which rows decode together: length buckets, chosen by what a step reads from memory.

A group of n rows whose longest has w tokens reads the weights once and n * w tokens of keys
and values, padding included. One group for all shares the weights; a group for each length
pads nothing. Between these the cheapest is found exactly: sorted by length, groups are runs,
and the best runs up to a row follow from those before it (dynamic programming).
"""

from collections.abc import Iterable, Sequence

STEPS_TO_PAY_BACK = 32
"""To move rows must pay within so many steps."""


def step_cost(group: Sequence[int], pass_cost: float, token_cost: float) -> float:
    """What one step of a group reads.

    Args:
        group: the lengths of its rows, in tokens.
        pass_cost: of the weights.
        token_cost: of the keys and values of one token; the same unit, such as bytes.
    """
    return pass_cost + len(group) * max(group) * token_cost if group else 0.0


def best_partition(lengths: Sequence[int], pass_cost: float, token_cost: float) -> list[list[int]]:
    """The groups of rows, by their indices, that make the steps of all groups cheapest
    together; the shortest rows first. Takes a time of O(rows²)."""
    order = sorted(range(len(lengths)), key=lambda row: lengths[row])
    best = [0.0]
    begins: list[int] = []
    for end in range(1, len(order) + 1):
        longest = lengths[order[end - 1]]
        costs = [
            best[begin] + pass_cost + (end - begin) * longest * token_cost for begin in range(end)
        ]
        begin = min(range(end), key=costs.__getitem__)
        best.append(costs[begin])
        begins.append(begin)
    groups: list[list[int]] = []
    end = len(order)
    while end:
        groups.append(order[begins[end - 1] : end])
        end = begins[end - 1]
    return groups[::-1]


def total_cost(groups: Iterable[Sequence[int]], pass_cost: float, token_cost: float) -> float:
    """What one step of every group reads."""
    return sum(step_cost(group, pass_cost, token_cost) for group in groups)
