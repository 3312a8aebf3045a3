"""Prompts on their way into a cache: chunks, progress, and what is not computed."""

from collections.abc import Sequence
from dataclasses import replace

import mlx.core as mx
import pytest

from tests.rounding import difference
from tests.worker.engine.watched_network import (
    WatchedNetwork,
    logits_alone,
    logits_bound,
    prepared,
    random_ids,
)
from worker.engine.batch_cache import BatchCache
from worker.engine.model import LoadedModel
from worker.engine.prefill import PendingPrefill, PrefillBatch, PrefillProgress, PrefillRow
from worker.engine.prompt import PreparedSequence

_WIDER = 2000


class _WideNetwork(WatchedNetwork):
    """Its output layer is so wide that whoever computes it can be told by the memory."""

    def __call__(self, tokens: mx.array, cache: object = None) -> mx.array:
        return mx.repeat(super().__call__(tokens, cache=cache), _WIDER, axis=-1)


@pytest.fixture(params=[False, True], ids=["without output layer", "with it"])
def model(model: LoadedModel, request: pytest.FixtureRequest) -> LoadedModel:
    assert model.output is not None
    return model if request.param else replace(model, output=None)


def _job_of(
    model: LoadedModel, sequences: Sequence[PreparedSequence], network: object = None
) -> PrefillBatch:
    rows = [
        PrefillRow(PendingPrefill(each, 0.0, 10.0 - each.order.sequence, 0.0)) for each in sequences
    ]
    return PrefillBatch(network or model.network, model.layout, rows, output=model.output)


def _job(model: LoadedModel, *lengths: int) -> PrefillBatch:
    return _job_of(model, [prepared(i, random_ids(n, i)) for i, n in enumerate(lengths)])


def _chunk(job: PrefillBatch, count: int) -> list[PrefillProgress]:
    job.advance(count)
    return job.progress()


def _assert_ready(network: WatchedNetwork, job: PrefillBatch) -> None:
    """Its logits, or what the last tokens give with its cache, are those of a pass over all tokens
    without one; and so is what comes next."""
    assert job.complete
    logits, cache = job.logits, job.release_caches()
    tokens = [each.tokens for each in job.pending]
    if logits is None:
        assert cache.rows.lengths == [count - 1 for count in tokens]
        logits = _step(network, cache, job.inputs)
    assert cache.rows.lengths == tokens
    bound = logits_bound(network)
    for row, each in zip(logits, job.pending, strict=True):
        assert difference(row, logits_alone(network, each.prepared.all_ids)) <= bound
    cache.resize(cache.slots, cache.width + 1)
    for row, each in zip(_step(network, cache, [7] * len(tokens)), job.pending, strict=True):
        ids = [*each.prepared.all_ids, 7]
        assert difference(row, logits_alone(network, ids)) <= bound


def _step(network: WatchedNetwork, cache: BatchCache, inputs: Sequence[int]) -> mx.array:
    """[B, V] after one more token of each."""
    logits: mx.array = network.real(mx.array([[each] for each in inputs]), cache=cache.layers)
    cache.rows.advance()
    return logits[:, -1]


@pytest.mark.parametrize(
    ("lengths", "most", "chunks"),
    [
        ([10], 100, [9]),
        ([10], 9, [9]),
        ([10], 4, [4, 4, 1]),
        ([10, 10, 10], 4, [4, 4, 1]),
        ([4, 4, 4], 1, [1, 1, 1]),
        ([2] * 5, 64, [1]),
        ([3, 10, 1, 7], 4, [4, 4, 1]),
        ([1, 300, 257], 128, [128, 128, 43]),
    ],
    ids=str,
)
def test_prompts_go_into_their_cache_in_chunks_the_last_token_with_what_is_before_it(
    model: LoadedModel, network: WatchedNetwork, lengths: list[int], most: int, chunks: list[int]
) -> None:
    job = _job(model, *lengths)
    done = 0
    for chunk in chunks:
        assert not job.complete
        assert job.left == max(lengths) - 1 - done
        done += chunk
        expected = [
            PrefillProgress(i, min(done, length - 1), length) for i, length in enumerate(lengths)
        ]
        assert _chunk(job, most) == expected
    last = chunks[-1] + (model.output is not None)
    assert network.shapes == [(len(lengths), chunk) for chunk in [*chunks[:-1], last]]
    assert job.left == 0 and (job.logits is None) == (model.output is None)
    _assert_ready(network, job)


def test_prompts_of_one_token_need_no_prefill(model: LoadedModel, network: WatchedNetwork) -> None:
    job = _job(model, 1, 1, 1)
    assert job.complete
    assert _chunk(job, 10) == [PrefillProgress(i, 0, 1) for i in range(3)]
    assert network.shapes == []
    _assert_ready(network, job)


def test_what_was_generated_before_is_prefilled_behind_the_prompt(
    model: LoadedModel, network: WatchedNetwork
) -> None:
    resumed = prepared(1, random_ids(5, 1), resumed_ids=random_ids(3, 2))
    job = _job_of(model, [resumed, prepared(2, random_ids(8, 3))])
    assert _chunk(job, 100) == [PrefillProgress(1, 7, 8), PrefillProgress(2, 7, 8)]
    assert job.inputs == [random_ids(3, 2)[-1], random_ids(8, 3)[-1]]
    _assert_ready(network, job)


@pytest.mark.parametrize("leaving", [[0], [2], [1, 3], [3, 2, 0]], ids=str)
@pytest.mark.parametrize("advanced", [0, 1, 3], ids=lambda chunks: f"after {chunks} chunks")
@pytest.mark.parametrize("lengths", [[10, 10, 10, 10], [10, 3, 12, 8]], ids=str)
def test_a_sequence_can_leave_at_any_time_and_the_others_go_on(
    model: LoadedModel,
    network: WatchedNetwork,
    lengths: list[int],
    leaving: Sequence[int],
    advanced: int,
) -> None:
    job = _job(model, *lengths)
    for _ in range(advanced):
        _chunk(job, 3)
    for sequence in [*leaving, 99]:
        job.remove(sequence)
    staying = [i for i in range(4) if i not in leaving]
    assert [each.id for each in job.pending] == staying
    while not job.complete:
        assert [one.sequence for one in _chunk(job, 3)] == staying
    _assert_ready(network, job)


def test_when_all_have_left_nothing_is_left_to_report(model: LoadedModel) -> None:
    job = _job(model, 5, 7)
    _chunk(job, 2)
    job.remove(0)
    job.remove(1)
    assert (job.pending, job.progress()) == ([], [])


def test_a_job_is_due_with_the_first_of_its_sequences(model: LoadedModel) -> None:
    job = _job(model, 5, 7, 6)  # later sequences are due earlier here
    assert job.due_at == 8.0
    job.remove(2)
    assert job.due_at == 9.0


def test_a_job_reserves_what_its_cache_takes_when_it_is_full(model: LoadedModel) -> None:
    job = _job(model, 5, 300)
    assert job.reserved_bytes == 2 * 512 * model.layout.token_bytes
    while not job.complete:
        _chunk(job, 100)
    assert job.release_caches().nbytes == job.reserved_bytes
    job.remove(1)
    assert job.reserved_bytes == 512 * model.layout.token_bytes == job.release_caches().nbytes


def test_the_output_layer_is_never_computed_for_more_than_the_last_tokens(
    model: LoadedModel, network: WatchedNetwork
) -> None:
    wide = _WideNetwork(network.real)
    job = _job_of(model, [prepared(i, random_ids(33, i)) for i in range(4)], wide)

    def memory_of_a_chunk() -> int:
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        _chunk(job, 16)
        return mx.get_peak_memory() - before

    logits_bytes = 4 * 16 * 258 * _WIDER * 4
    assert memory_of_a_chunk() < logits_bytes / 4
    assert not job.complete
    assert memory_of_a_chunk() < logits_bytes / 4
    assert job.complete
    # Whoever does compute it needs the memory.
    mx.reset_peak_memory()
    mx.eval(wide(mx.zeros((4, 16), dtype=mx.uint32)))
    assert mx.get_peak_memory() > logits_bytes


def test_nothing_is_computed_for_a_longer_sequence_that_has_left(
    model: LoadedModel, network: WatchedNetwork
) -> None:
    job = _job(model, 5, 200)
    job.remove(1)
    assert job.left == 4
