"""Whole batches beside a plain sampler in numpy that knows one row at a time."""

from collections import Counter
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker.engine.reference_sampler import (
    Array,
    allowed,
    expect,
    log_softmax,
    penalised,
)
from tests.worker.engine.samplings import GREEDY, sampling
from tests.worker.engine.tracked_batch import (
    SEEDS,
    TrackedBatch,
    TrackedRow,
    random_logits,
    tracked_rows,
)
from worker.engine.token_sampling import CANDIDATES

_SMALL = 40
_LARGE = 1000
_TOP_KS = {
    _SMALL: [1, 2, 5, 39, 40, 400],
    _LARGE: [1, 3, 40, 255, 256, 257, 600, 999, 1000, 5000],
}
_SPREADS = st.sampled_from([0.2, 2.0, 6.0])
_NUMBERS = st.integers(0, 2**32 - 1)
_VOCABULARIES = pytest.mark.parametrize("vocabulary", [_SMALL, _LARGE])


def _rows(vocabulary: int) -> st.SearchStrategy[tuple[TrackedRow, float]]:
    """Rows with any parameters and the spread of their logits; half of them choose from many."""
    anything = tracked_rows(vocabulary, _TOP_KS[vocabulary])
    return st.one_of(
        st.tuples(anything, _SPREADS), st.tuples(anything.map(_with_many_to_choose), st.just(0.2))
    )


def _with_many_to_choose(row: TrackedRow) -> TrackedRow:
    top_p = row.how.top_p if row.how.top_p >= 0.5 else 0.9
    temperature = max(1.0, row.how.temperature)
    how = replace(row.how, temperature=temperature, top_p=top_p, min_p=0.0, logit_bias={})
    return replace(row, how=how)


def _draws(logits: Array, seeds: range, **fields: Any) -> list[int]:
    """A token for each seed, all in one batch."""
    how = sampling(**{"temperature": 1.0, **fields})
    batch = TrackedBatch([TrackedRow(replace(how, seed=seed)) for seed in seeds])
    return batch.step(np.tile(logits, (len(seeds), 1)))


def _stream(logits: Array, count: int, **fields: Any) -> list[int]:
    """Tokens of one row, each drawn from the same logits."""
    row = TrackedRow(sampling(**{"temperature": 1.0, **fields}))
    batch = TrackedBatch([row])
    for _ in range(count):
        batch.step(logits[None])
    return row.answer_ids


# Beside the reference.


@_VOCABULARIES
def test_every_row_of_a_mixed_batch_gets_the_token_that_the_reference_draws(
    vocabulary: int,
) -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=100)
    @given(
        rows=st.lists(_rows(vocabulary), min_size=1, max_size=12),
        number=_NUMBERS,
    )
    def draws_as_the_reference(rows: list[tuple[TrackedRow, float]], number: int) -> None:
        batch = TrackedBatch([row for row, _ in rows])
        for step in range(4):
            logits = np.stack(
                [
                    random_logits(vocabulary, spread, number, place, step)
                    for place, (_, spread) in enumerate(rows)
                ]
            )
            expected = [
                expect(logits[place], row.how, row.prompt_ids, row.answer_ids)
                for place, row in enumerate(batch.rows)
            ]
            drawn = batch.step(logits)
            for row, token, right in zip(batch.rows, drawn, expected, strict=True):
                assert token == right.token or not right.decided, row.how
                seen["draws"] += 1
                seen["undecided"] += not right.decided
                seen["chosen from many"] += right.left > 1
                if right.decided and right.left > CANDIDATES:
                    seen["wide nucleus"] += row.how.top_k == 0 and row.how.top_p < 1
                    seen["wide top-k"] += CANDIDATES < row.how.top_k < vocabulary

    draws_as_the_reference()
    assert seen["draws"] > 300
    assert seen["undecided"] < 0.03 * seen["draws"]
    assert seen["chosen from many"] > 0.1 * seen["draws"]
    if vocabulary > CANDIDATES:
        assert seen["wide nucleus"] > 10
        assert seen["wide top-k"] > 10


# Alone and in company.


@_VOCABULARIES
def test_a_row_draws_the_same_alone_and_among_rows_that_join_leave_and_change_places(
    vocabulary: int,
) -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=30)
    @given(
        guests=st.lists(
            st.tuples(_rows(vocabulary), st.integers(0, 4), st.integers(1, 5)),
            min_size=2,
            max_size=7,
        ),
        number=_NUMBERS,
    )
    def draws_the_same(
        guests: list[tuple[tuple[TrackedRow, float], int, int]], number: int
    ) -> None:
        def logits(place: int, row: TrackedRow) -> Array:
            return random_logits(
                vocabulary, guests[place][0][1], number, place, len(row.answer_ids)
            )

        chance = np.random.default_rng(number)
        batch = TrackedBatch()
        places: list[int] = []  # of the batch's rows, among the guests
        together = [replace(row, answer_ids=[*row.answer_ids], shown=[]) for (row, _), *_ in guests]
        for step in range(9):
            staying = [i for i, p in enumerate(places) if step < guests[p][1] + guests[p][2]]
            if len(staying) < len(places):
                chance.shuffle(staying)
                batch.keep(staying)
                places = [places[index] for index in staying]
            joining = [p for p, (_, joins, _) in enumerate(guests) if joins == step]
            if joining:
                batch.join([together[p] for p in joining])
                places += joining
            if places:
                batch.step(np.stack([logits(p, together[p]) for p in places]))
                seen["company"] += len(places) > 1
        for place, ((row, _), _, stay) in enumerate(guests):
            alone = TrackedBatch([replace(row, answer_ids=[*row.answer_ids], shown=[])])
            for _ in range(stay):
                alone.step(logits(place, alone.rows[0])[None])
            assert together[place].answer_ids == alone.rows[0].answer_ids, row.how
            assert together[place].shown == alone.rows[0].shown, row.how
            seen["shown"] += len(together[place].shown)

    draws_the_same()
    assert seen["company"] > 20
    assert seen["shown"] > 20


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("penalty", "seen_before"),
    [({"repetition_penalty": 1.3}, 4.0), ({"presence_penalty": 0.9230769}, 4.0)],
    ids=["repetition", "presence"],
)
def test_a_penalty_weakens_half_precision_logits_alike_alone_and_beside_a_row_without_one(
    penalty: dict[str, float], seen_before: float, dtype: mx.Dtype
) -> None:
    logits = np.array([seen_before, 3.078125, 0.0, 0.0])  # both near 4 / 1.3 = 3.0769
    how = sampling(logprobs=4, **penalty)
    alone = TrackedRow(how, answer_ids=[0])
    TrackedBatch([alone]).step(logits[None], dtype)
    beside = TrackedRow(how, answer_ids=[0])
    TrackedBatch([beside, TrackedRow(GREEDY)]).step(np.stack([logits] * 2), dtype)
    assert beside.shown == alone.shown
    assert beside.answer_ids == alone.answer_ids


# Greedy.


@settings(max_examples=50)
@given(number=_NUMBERS, seed=SEEDS)
def test_temperature_0_top_p_0_and_top_k_1_all_take_the_likeliest(number: int, seed: int) -> None:
    logits = random_logits(_SMALL, 2.0, number)
    for fields in ({"temperature": 0.0}, {"top_p": 0.0}, {"top_k": 1}):
        assert _stream(logits, 2, seed=seed, **fields) == [int(logits.argmax())] * 2


@pytest.mark.parametrize("name", ["temperature", "top_p"])
@pytest.mark.parametrize("size", [1e-6, 1e-30, 1e-40, 1e-60, 1e-300])
def test_a_vanishing_temperature_or_top_p_takes_the_likeliest(name: str, size: float) -> None:
    logits = random_logits(_SMALL, 2.0, 2)
    assert _draws(logits, range(20), **{name: size}) == [int(logits.argmax())] * 20


@pytest.mark.parametrize("fields", [{"temperature": 2e-5}, {"top_p": 2e-5}, {"min_p": 1.0}])
@_VOCABULARIES
def test_what_is_just_not_greedy_takes_the_likeliest_too(
    vocabulary: int, fields: dict[str, Any]
) -> None:
    logits = random_logits(vocabulary, 2.0, 3)
    second, first = np.sort(logits)[-2:]
    assert first - second > 0.01
    assert _draws(logits, range(20), **fields) == [int(logits.argmax())] * 20


# Seeds and positions.


@settings(max_examples=25)
@given(number=_NUMBERS, seed=SEEDS, position=st.integers(0, 50))
def test_a_draw_depends_on_logits_seed_and_position_alone(
    number: int, seed: int, position: int
) -> None:
    logits = random_logits(_SMALL, 2.0, number)
    how = sampling(temperature=1.2, top_p=0.9, seed=seed)

    def tokens(first: int, count: int) -> list[int]:
        row = TrackedRow(how, answer_ids=[0] * first)
        batch = TrackedBatch([row])
        for _ in range(count):
            batch.step(logits[None])
        return row.answer_ids[first:]

    whole = tokens(position, 6)
    assert tokens(position, 6) == whole
    for cut in (1, 3, 5):
        assert tokens(position + cut, 6 - cut) == whole[cut:]


def test_other_seeds_and_other_positions_draw_otherwise() -> None:
    flat = np.zeros(_SMALL)
    batch = TrackedBatch([TrackedRow(sampling(temperature=1.0, seed=seed)) for seed in range(20)])
    for _ in range(30):
        batch.step(np.tile(flat, (20, 1)))
    by_seed = [row.answer_ids for row in batch.rows]
    assert len({tuple(tokens) for tokens in by_seed}) == 20
    assert all(len(set(tokens)) > 10 for tokens in by_seed)


# Filters.


@pytest.mark.parametrize(
    "fields", [{"top_k": 4}, {"top_p": 0.8}, {"min_p": 0.1}, {"top_k": 6, "top_p": 0.9}]
)
def test_every_token_that_is_allowed_is_drawn_at_times_and_no_other(
    fields: dict[str, Any],
) -> None:
    logits = np.array([2.0, 1.8, 1.5, 1.2, 1.0, 0.5, -1.0, -2.0, *(-6 - i / 9 for i in range(32))])
    tokens = allowed(logits, sampling(temperature=1.0, **fields))
    assert tokens is not None and 3 < len(tokens) < 9
    assert set(_draws(logits, range(400), **fields)) == tokens


@pytest.mark.parametrize(
    ("fields", "count"), [({"top_k": 400}, 400), ({"top_p": 0.5}, 300), ({"top_k": 256}, 256)]
)
def test_a_flat_distribution_draws_from_all_of_a_wide_choice(
    fields: dict[str, Any], count: int
) -> None:
    logits = -np.arange(_LARGE) / 1000
    tokens = allowed(logits, sampling(temperature=1.0, **fields))
    assert tokens is not None and len(tokens) >= count
    drawn = set(_draws(logits, range(3000), **fields))
    assert drawn <= tokens
    assert len(drawn) > 0.95 * len(tokens)
    assert max(drawn) > 0.98 * max(tokens)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
@pytest.mark.parametrize("fields", [{}, {"top_p": 0.999999}, {"top_k": 6}], ids=str)
def test_over_many_seeds_tokens_are_drawn_as_often_as_the_softmax_says(
    temperature: float, fields: dict[str, Any]
) -> None:
    logits = np.array([2.0, 1.0, 0.5, 0.0, -0.5, -1.0, -60.0])
    drawn = _draws(logits, range(3000), temperature=temperature, **fields)
    assert _chi_square(drawn, logits / temperature) < 20.5


def test_over_many_positions_tokens_are_drawn_as_often_as_the_softmax_says() -> None:
    logits = np.array([2.0, 1.0, 0.5, 0.0, -0.5, -1.0, -60.0])
    assert _chi_square(_stream(logits, 1500, seed=11), logits) < 20.5


def _chi_square(drawn: list[int], scores: Array) -> float:
    """Over the six likeliest tokens. 5 degrees of freedom: above 20.5 is 1 in 1000, and the
    seeds are fixed."""
    expected = np.exp(log_softmax(scores))[:6] * len(drawn)
    counts = np.bincount(drawn, minlength=6)
    assert len(counts) == 6
    result: float = ((counts - expected) ** 2 / expected).sum()
    return result


# Log-probabilities.


@_VOCABULARIES
@settings(max_examples=40)
@given(data=st.data(), number=_NUMBERS)
def test_logprobs_are_the_log_softmax_after_penalties_and_bias_for_the_rows_that_ask(
    vocabulary: int, data: st.DataObject, number: int
) -> None:
    rows = data.draw(
        st.lists(tracked_rows(vocabulary, _TOP_KS[vocabulary]), min_size=1, max_size=8)
    )
    batch = TrackedBatch(rows)
    for step in range(3):
        logits = np.stack(
            [random_logits(vocabulary, 2.0, number, place, step) for place in range(len(rows))]
        )
        expected = [
            log_softmax(penalised(logits[place], row.how, row.prompt_ids, row.answer_ids))
            for place, row in enumerate(rows)
        ]
        drawn = batch.step(logits)
        for row, token, right in zip(rows, drawn, expected, strict=True):
            if row.how.logprobs is None:
                assert row.shown == []
                continue
            assert len(row.shown) == step + 1
            shown = row.shown[-1]
            assert shown.drawn == pytest.approx(right[token], rel=1e-5, abs=1e-4)
            values = list(shown.top.values())
            assert len(values) == row.how.logprobs
            assert values == sorted(values, reverse=True)
            np.testing.assert_allclose(
                values, np.sort(right)[::-1][: len(values)], rtol=1e-5, atol=1e-4
            )
            for other, value in shown.top.items():
                assert value == pytest.approx(right[other], rel=1e-5, abs=1e-4)


def test_logprobs_for_more_tokens_than_there_are_give_them_all() -> None:
    row = TrackedRow(sampling(logprobs=3 * _SMALL))
    logits = random_logits(_SMALL, 2.0, 4)
    TrackedBatch([row]).step(logits[None])
    assert list(row.shown[0].top) == np.argsort(-logits).tolist()
