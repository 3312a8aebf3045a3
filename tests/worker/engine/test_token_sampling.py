"""The parts of a draw: keys, random numbers, the likeliest, and the three ways to choose."""

import itertools
from collections.abc import Callable
from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.rounding import FLOAT32_EPSILON
from tests.worker.engine.reference_sampler import gumbel_noise
from tests.worker.engine.samplings import sampling
from tests.worker.engine.tracked_batch import SEEDS, random_logits
from worker.engine import token_sampling
from worker.engine.token_sampling import (
    CANDIDATES,
    SamplingGroup,
    row_key,
    sample_filtered,
    sample_full_vocabulary,
    sample_plain,
    top_tokens,
    uniform_of,
    uniform_rows,
)

_NUMBERS = st.integers(0, 2**32 - 1)
_VOCABULARY = 1000
_WAYS = pytest.mark.parametrize("draw", [sample_plain, sample_filtered, sample_full_vocabulary])


def _group(rows: list[dict[str, Any]]) -> SamplingGroup:
    samplings = [sampling(**{"temperature": 1.0, **fields}) for fields in rows]
    return SamplingGroup(range(len(rows)), samplings, _VOCABULARY)


def _keys(*keys: tuple[int, int]) -> mx.array:
    return mx.array(keys, dtype=mx.uint32)


# Keys.


def test_every_seed_and_position_has_a_key_of_its_own() -> None:
    keys = {row_key(seed, position) for seed in range(100) for position in range(100)}
    assert len(keys) == 100 * 100


@given(seed=SEEDS, position=st.integers(0, 2**40))
def test_a_key_is_two_numbers_of_32_bits(seed: int, position: int) -> None:
    key = row_key(seed, position)
    assert len(key) == 2
    assert all(0 <= half < 2**32 for half in key)
    assert cast(list[list[int]], _keys(key).tolist()) == [list(key)]


def test_a_key_never_changes_so_that_a_stream_can_be_resumed_by_a_newer_worker() -> None:
    assert row_key(0, 0) == (0x5250A507, 0xF994740E)
    assert row_key(2**64 - 1, 7) == (0x0055FAAD, 0x857D2AF8)


def test_a_group_takes_each_key_from_its_rows_seed_and_the_position_at_its_place() -> None:
    group = SamplingGroup([2, 0], [sampling(seed=5), sampling(seed=6)], _VOCABULARY)
    keys = group.keys([10, 11, 12])
    assert keys.tolist() == [list(row_key(5, 12)), list(row_key(6, 10))]


def test_a_part_of_a_group_has_the_places_and_parameters_of_its_rows() -> None:
    rows = [{"seed": i, "temperature": i + 1.0, "top_p": i / 10, "top_k": i} for i in range(4)]
    group = SamplingGroup([3, 5, 7, 9], [sampling(**fields) for fields in rows], _VOCABULARY)
    part = group.part([1, 3])
    assert part.indices == [5, 9]
    assert part.temperature.tolist() == [[2.0], [4.0]]
    assert part.top_k.tolist() == [[1], [3]]
    np.testing.assert_allclose(np.array(part.top_p), [[0.1], [0.3]], rtol=1e-6)
    positions = list(range(10))
    assert part.keys(positions).tolist() == [list(row_key(1, 5)), list(row_key(3, 9))]


# Random numbers.


@settings(max_examples=30)
@given(seeds=st.lists(SEEDS, min_size=1, max_size=9), vocabulary=st.sampled_from([1, 7, 40, 1000]))
def test_the_numbers_of_a_row_depend_on_its_key_alone_bit_for_bit(
    seeds: list[int], vocabulary: int
) -> None:
    together = np.array(uniform_rows(_keys(*(row_key(seed, 3) for seed in seeds)), vocabulary))
    assert together.shape == (len(seeds), vocabulary)
    assert together.min() >= 0 and together.max() < 1
    for seed, row in zip(seeds, together, strict=True):
        alone = np.array(uniform_rows(_keys(row_key(seed, 3)), vocabulary))[0]
        assert alone.tobytes() == row.tobytes()


@settings(max_examples=30)
@given(seeds=st.lists(SEEDS, min_size=1, max_size=5), ids=st.lists(_NUMBERS, min_size=1))
def test_the_number_of_a_token_depends_on_its_row_and_its_id_alone_bit_for_bit(
    seeds: list[int], ids: list[int]
) -> None:
    keys = [row_key(seed, 3) for seed in seeds]
    together = np.array(uniform_of(_keys(*keys), mx.array([ids] * len(seeds), dtype=mx.uint32)))
    assert together.shape == (len(seeds), len(ids))
    assert together.min() >= 0 and together.max() < 1
    for key, row in zip(keys, together, strict=True):
        for token, number in zip(ids, row, strict=True):
            alone = np.array(uniform_of(_keys(key), mx.array([[token]], dtype=mx.uint32)))
            assert alone.tobytes() == number.tobytes()


def test_the_numbers_of_all_tokens_are_spread_evenly_and_do_not_follow_one_another() -> None:
    ids = mx.arange(50_000)[None]
    for seed in range(3):
        numbers = np.array(uniform_of(_keys(row_key(seed, 0)), ids))[0]
        counts = np.histogram(numbers, bins=50, range=(0, 1))[0]
        assert ((counts - 1000) ** 2 / 1000).sum() < 100  # chi-squared, 49 degrees: p < 1e-4
        for lag in (1, 2, 256):
            assert abs(np.corrcoef(numbers[:-lag], numbers[lag:])[0, 1]) < 0.02
        assert abs(np.corrcoef(numbers, uniform_of(_keys(row_key(seed, 1)), ids)[0])[0, 1]) < 0.02


# The three ways.


@_WAYS
@settings(max_examples=30)
@given(seed=SEEDS, vocabulary=st.sampled_from([40, CANDIDATES]))
def test_among_equal_scores_the_token_with_the_most_gumbel_noise_of_mlx_is_drawn(
    draw: Any, seed: int, vocabulary: int
) -> None:
    keys = _keys(row_key(seed, 0))
    how = sampling(temperature=1.0, seed=seed, top_p=1.0 if draw is sample_plain else 0.9999)
    noise = gumbel_noise(how, 0, vocabulary)
    token = draw(mx.zeros((1, vocabulary)), keys, _group([{}]))
    assert token.tolist() == [int(noise.argmax())]


def _deal(monkeypatch: pytest.MonkeyPatch, numbers: NDArray[np.float64]) -> Callable[[], mx.array]:
    """Random numbers [rows, V] that are known beforehand, for the keys that are returned."""
    dealt = mx.array(numbers, dtype=mx.float32)
    monkeypatch.setattr(token_sampling, "uniform_rows", lambda keys, _: dealt[keys[:, 0]])
    monkeypatch.setattr(
        token_sampling,
        "uniform_of",
        lambda keys, ids: mx.take_along_axis(dealt[keys[:, 0]], ids, axis=1),
    )
    return lambda: _keys(*((row, 0) for row in range(len(numbers))))


@_WAYS
def test_a_random_number_of_exactly_0_never_lets_its_token_be_drawn(
    draw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = _deal(monkeypatch, np.array([[0.0, 0.3, 0.2]]))
    assert draw(mx.array([[50.0, 1.0, 0.0]]), keys(), _group([{}])).tolist() == [1]


_FILTERS = st.fixed_dictionaries(
    {
        "top_k": st.sampled_from([0, 1, 3, 40, 255, 256]),
        "top_p": st.sampled_from([0.2, 0.6, 0.9, 0.99]),
        "min_p": st.sampled_from([0.0, 0.05, 0.4]),
    }
)


@settings(max_examples=60)
@given(
    rows=st.lists(st.tuples(_FILTERS, st.sampled_from([0.1, 1.0, 5.0])), min_size=1, max_size=8),
    number=_NUMBERS,
    vocabulary=st.sampled_from([40, 256, 257, 600]),
)
def test_the_candidates_alone_and_the_whole_vocabulary_in_order_draw_the_same(
    rows: list[tuple[dict[str, Any], float]], number: int, vocabulary: int
) -> None:
    scores = mx.array(
        np.stack(
            [
                random_logits(vocabulary, spread, number, place)
                for place, (_, spread) in enumerate(rows)
            ]
        ),
        dtype=mx.float32,
    )
    keys = _keys(*((number, place) for place in range(len(rows))))
    group = _group([fields for fields, _ in rows])
    narrow = sample_filtered(scores, keys, group)
    assert narrow.tolist() == sample_full_vocabulary(scores, keys, group).tolist()


@pytest.mark.parametrize("counts", [(256, 1000), (256, 700, 1000), (256, 800, 1000)], ids=str)
def test_only_the_rows_with_a_wide_nucleus_are_drawn_from_more(
    monkeypatch: pytest.MonkeyPatch, counts: tuple[int, ...]
) -> None:
    """The nucleus of the flat rows lies beyond the candidates, that of the steep one within."""
    flat, steep = -np.arange(1000) / 1e4, -np.arange(1000) / 2.0
    scores = mx.array(np.stack([flat, steep, flat]), dtype=mx.float32)
    noise = np.full((3, 1000), 0.5)
    noise[:, 700] = 1 - 1e-6  # within the nucleus of the flat ones
    noise[:, 990] = 1 - 1e-7  # behind the nucleus of all
    keys = _deal(monkeypatch, noise)
    group = _group([{"top_p": 0.9}, {"top_p": 0.9}, {"top_p": 0.5}])
    assert sample_filtered(scores, keys(), group, counts).tolist() == [700, 0, 0]


def test_the_weights_of_a_whole_vocabulary_are_its_exponentials() -> None:
    values = np.concatenate([[0.0, -1e-30, -87.0, -500.0, -np.inf], -np.geomspace(1e-8, 80, 5000)])
    weights = np.array(token_sampling._exp_below_0(mx.array(values, dtype=mx.float32)[None]))[0]
    # A rounded argument changes an exponential by as much times the argument.
    roundings = 8 + 2 * np.abs(np.where(np.isfinite(values), values, 0.0))
    right = np.exp(values)
    assert (np.abs(weights - right) <= FLOAT32_EPSILON * roundings * right + 2e-38).all()


# The likeliest.


@settings(max_examples=60)
@given(
    number=_NUMBERS,
    rows=st.integers(1, 4),
    vocabulary=st.sampled_from([1, 2, 40, 300, 1000]),
    data=st.data(),
)
def test_the_likeliest_come_in_order_and_none_of_the_others_is_likelier(
    number: int, rows: int, vocabulary: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(0, vocabulary), label="count")
    levels = data.draw(st.sampled_from([3, 10**6]), label="levels")  # 3: nothing but ties
    scores: NDArray[np.float32] = (
        np.random.default_rng(number).integers(0, levels, (rows, vocabulary)).astype(np.float32)
    )
    ids, values = (np.array(array) for array in top_tokens(mx.array(scores), count))
    assert ids.shape == values.shape == (rows, count)
    for row in range(rows):
        assert len(set(ids[row].tolist())) == count
        assert values[row].tolist() == np.sort(scores[row])[::-1][:count].tolist()
        assert values[row].tolist() == scores[row, ids[row]].tolist()


def test_the_likeliest_of_a_row_are_the_same_in_any_batch() -> None:
    rows = [random_logits(600, 1.0, place).round(1) for place in range(5)]  # with many ties
    alone = [cast(list[list[int]], top_tokens(mx.array(row[None]), 40)[0].tolist()) for row in rows]
    for order in itertools.islice(itertools.permutations(range(5)), 0, None, 17):
        ids = top_tokens(mx.array(np.stack([rows[place] for place in order])), 40)[0]
        assert ids.tolist() == [alone[place][0] for place in order]
