"""Which modules of mlx-lm compute a row otherwise in a batch than alone, and what is done about it.

Rows that decode together are at different positions. Some modules of mlx-lm 0.32 take one position
for all of them, or shape what they compute by the longest: that gives wrong tokens, or raises.
mlx-lm's own batches have the same faults.
"""

from typing import Any

_ROWS_ALONE = {
    "afm7": "its last layers take the width of the batch for the position of every row",
    "gpt_bigcode": "it looks up the embedding of one position for all rows",
    "minimax_m3_vl": "it keeps the last block of the batch's width for every row",
    "phi3small": "it lays out its blocks by the batch's width, and adds the mask to the scores",
}
"""Modules whose rows are prefilled and decoded one at a time, and why."""

_GROUPED_HEADS = frozenset({"gemma2"})
"""Modules that compute scores [B, KV heads, heads of a group, L, S] and mask them as they are."""


def batches_rows(network: Any) -> bool:
    """Whether its rows may share a cache and a pass, as far as is known of its module."""
    return _module(network) not in _ROWS_ALONE


def groups_heads(network: Any) -> bool:
    """Whether masks need an axis more, for the query heads that share a head of keys."""
    if _module(network) not in _GROUPED_HEADS:
        return False
    args = network.args
    return bool(args.num_attention_heads > args.num_key_value_heads)


def _module(network: Any) -> str:
    return type(network).__module__.rpartition(".")[2]
