"""Prompts of one length on their way into a cache: chunks, progress, and what is not computed."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import pytest

from tests.worker.engine.watched_network import (
    WatchedNetwork,
    logits_alone,
    prepared,
    random_ids,
)
from worker.engine.prefill import PrefillGroup, Progress

_WIDER = 2000


class _WideNetwork(WatchedNetwork):
    """Its output layer is so wide that whoever computes it can be told by the memory."""

    def __call__(self, tokens: mx.array, cache: object = None) -> mx.array:
        return mx.repeat(super().__call__(tokens, cache=cache), _WIDER, axis=-1)


def _group(network: WatchedNetwork, length: int, count: int) -> PrefillGroup:
    return PrefillGroup(network, [prepared(i, random_ids(length, i)) for i in range(count)])


def _assert_ready(network: WatchedNetwork, group: PrefillGroup) -> None:
    """With its cache the last tokens give what all tokens give without one."""
    assert group.complete
    tokens = mx.array(group.inputs)[:, None]
    logits = np.array(network.real(tokens, cache=group.cache)[:, -1])
    for row, sequence in zip(logits, group.sequences, strict=True):
        np.testing.assert_allclose(row, logits_alone(network, sequence.all_ids), atol=1e-3)


@pytest.mark.parametrize(
    ("length", "count", "max_tokens", "chunks"),
    [
        (10, 1, 100, [9]),
        (10, 1, 9, [9]),
        (10, 1, 4, [4, 4, 1]),
        (10, 3, 12, [4, 4, 1]),
        (10, 3, 14, [4, 4, 1]),
        (4, 3, 2, [1, 1, 1]),
        (2, 5, 64, [1]),
    ],
)
def test_a_group_goes_into_its_cache_in_chunks_of_at_most_so_many_tokens_all_but_the_last(
    network: WatchedNetwork, length: int, count: int, max_tokens: int, chunks: list[int]
) -> None:
    group = _group(network, length, count)
    done = 0
    for chunk in chunks:
        assert not group.complete
        done += chunk
        expected = [Progress(i, done, length) for i in range(count)]
        assert group.advance(max_tokens) == expected
    assert network.shapes == [(count, chunk) for chunk in chunks]
    assert done == length - 1
    _assert_ready(network, group)


def test_a_prompt_of_one_token_needs_no_prefill(network: WatchedNetwork) -> None:
    group = _group(network, 1, 3)
    assert group.complete
    assert group.advance(10) == [Progress(i, 0, 1) for i in range(3)]
    assert network.shapes == []
    _assert_ready(network, group)


def test_what_an_earlier_attempt_generated_is_prefilled_behind_the_prompt(
    network: WatchedNetwork,
) -> None:
    resumed = prepared(1, random_ids(5, 1), resumed_ids=random_ids(3, 2))
    group = PrefillGroup(network, [resumed, prepared(2, random_ids(8, 3))])
    assert group.advance(100) == [Progress(1, 7, 8), Progress(2, 7, 8)]
    assert group.inputs == [random_ids(3, 2)[-1], random_ids(8, 3)[-1]]
    _assert_ready(network, group)


@pytest.mark.parametrize("leaving", [[0], [2], [1, 3], [3, 2, 0]], ids=str)
@pytest.mark.parametrize("advanced", [0, 1, 3], ids=lambda chunks: f"after {chunks} chunks")
def test_a_sequence_can_leave_at_any_time_and_the_others_go_on(
    network: WatchedNetwork, leaving: Sequence[int], advanced: int
) -> None:
    group = _group(network, 10, 4)
    for _ in range(advanced):
        group.advance(12)
    for sequence in [*leaving, 99]:
        group.remove(sequence)
    staying = [i for i in range(4) if i not in leaving]
    assert [sequence.order.sequence for sequence in group.sequences] == staying
    while not group.complete:
        progress = group.advance(12)
        assert [one.sequence for one in progress] == staying
    assert sum(tokens for _, tokens in network.shapes) == 9
    _assert_ready(network, group)


def test_the_output_layer_is_never_computed(network: WatchedNetwork) -> None:
    wide = _WideNetwork(network.real)
    group = _group(wide, 33, 4)

    def memory_of_a_chunk() -> int:
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        group.advance(64)
        return mx.get_peak_memory() - before

    logits_bytes = 4 * 16 * 258 * _WIDER * 4
    assert memory_of_a_chunk() < logits_bytes / 4
    assert not group.complete
    assert memory_of_a_chunk() < logits_bytes / 4
    assert group.complete
    # Whoever does compute it needs the memory.
    mx.reset_peak_memory()
    mx.eval(wide(mx.zeros((4, 16), dtype=mx.uint32)))
    assert mx.get_peak_memory() > logits_bytes
