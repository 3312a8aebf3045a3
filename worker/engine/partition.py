"""Partition of rows into groups that decode together, by the bytes that a step reads from memory.

A group of n rows whose longest has w tokens reads the weights once and n * w tokens of keys
and values, padding included. A single group shares the weights; a group per length pads nothing.
The cheapest partition in between is found exactly: with rows sorted by length, groups are runs, and
the best runs up to a row follow from the best runs before it (dynamic programming).
"""

from collections.abc import Iterable, Sequence

STEPS_TO_PAY_BACK = 32
"""Moving rows must pay off within this number of steps."""


def step_cost(group: Sequence[int], pass_cost: float, token_cost: float) -> float:
    """Return the cost of one step of a group.

    Args:
        group: the lengths of its rows, in tokens.
        pass_cost: the cost of reading the weights.
        token_cost: the cost of reading keys and values of one token, in the same unit, such as
            bytes.
    """
    return pass_cost + len(group) * max(group) * token_cost if group else 0.0


def best_partition(lengths: Sequence[int], pass_cost: float, token_cost: float) -> list[list[int]]:
    """Return the partition with the lowest total cost of a step, as row indices of each group; the
    shortest rows first. Takes O(rows²) time."""
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
    """Return the cost of one step of every group."""
    return sum(step_cost(group, pass_cost, token_cost) for group in groups)
