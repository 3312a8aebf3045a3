"""Masks, compared with a loop over all pairs of positions."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from worker.engine.embedding.attention_masks import padding_mask, window_mask
from worker.engine.embedding.token_batch import TokenBatch, padded_batch

_LENGTHS = [(1,), (4,), (5,), (6,), (9, 9), (1, 9), (3, 12, 7)]


def batch(lengths: Sequence[int]) -> TokenBatch:
    rows = [[1] * length for length in lengths]
    return padded_batch(rows, 0, vocabulary_size=2, max_length=20)


def seen(mask: Any, lengths: Sequence[int]) -> Any:
    """(rows, queries, keys), bool."""
    length = max(lengths)
    whole = np.ones((1, 1, 1, 1), dtype=bool) if mask is None else np.array(mask)
    return np.broadcast_to(whole, (len(lengths), 1, length, length))[:, 0]


@pytest.mark.parametrize("lengths", _LENGTHS)
def test_a_token_sees_the_tokens_of_its_row(lengths: Sequence[int]) -> None:
    found = seen(padding_mask(batch(lengths)), lengths)
    for row, length in enumerate(lengths):
        assert found[row].tolist() == [
            [key < length for key in range(max(lengths))] for _ in range(max(lengths))
        ]


@pytest.mark.parametrize("lengths", _LENGTHS)
def test_a_token_sees_the_tokens_of_its_window(lengths: Sequence[int]) -> None:
    reach = 4
    found = seen(window_mask(batch(lengths), reach), lengths)
    for row, length in enumerate(lengths):
        for query in range(length):
            expected = [key < length and abs(key - query) <= reach for key in range(max(lengths))]
            assert found[row, query].tolist() == expected


@pytest.mark.parametrize("lengths", _LENGTHS)
def test_padding_sees_something_but_is_not_seen(lengths: Sequence[int]) -> None:
    found = seen(window_mask(batch(lengths), 1), lengths)
    assert found.any(axis=2).all()
    for row, length in enumerate(lengths):
        assert not found[row, :length, length:].any()
