"""Rows that decode together: what each gets, when each ends, and what it costs."""

from collections import defaultdict
from collections.abc import Sequence

import mlx.core as mx
import pytest

from tests.worker.engine.reference_sampler import log_softmax
from tests.worker.engine.samplings import GREEDY, sampling
from tests.worker.engine.watched_network import (
    WatchedNetwork,
    greedy_alone,
    logits_alone,
    random_ids,
)
from worker.engine.caches import merge, new_cache
from worker.engine.decoding import DecodeBatch, DecodingRow, Token
from worker.engine.sampling import SampledRow
from worker.link.messages import Sampling


def _row(
    sequence: int,
    ids: Sequence[int],
    *,
    left: int = 6,
    ends: Sequence[int] = (),
    how: Sampling = GREEDY,
) -> DecodingRow:
    return DecodingRow(sequence, left, frozenset(ends), SampledRow(how, ids))


def _add(network: WatchedNetwork, batch: DecodeBatch, rows: Sequence[DecodingRow]) -> None:
    """Rows join with caches that nothing of ours has filled; their prompts may differ in
    length."""
    caches = []
    for row in rows:
        cache = new_cache(network)
        if len(row.sampled.prompt_ids) > 1:
            mx.eval(network.real(mx.array([list(row.sampled.prompt_ids[:-1])]), cache=cache))
        caches.append(cache)
    batch.add(rows, merge(caches), [row.sampled.prompt_ids[-1] for row in rows])


def _finish(batch: DecodeBatch) -> dict[int, list[Token]]:
    """All tokens that are still to come, by their sequence."""
    tokens: dict[int, list[Token]] = defaultdict(list)
    while batch.busy:
        for token in batch.step():
            tokens[token.sequence].append(token)
    return dict(tokens)


def _ids(tokens: Sequence[Token]) -> list[int | None]:
    return [token.token_id for token in tokens]


# What each row gets.


def test_rows_of_any_lengths_get_the_tokens_that_the_network_gives_without_cache_or_batch(
    network: WatchedNetwork,
) -> None:
    prompts = [random_ids(length, 1) for length in (17, 1, 5, 40, 1)]
    batch = DecodeBatch(network)
    _add(network, batch, [_row(i, ids, left=20) for i, ids in enumerate(prompts)])
    tokens = _finish(batch)
    for i, ids in enumerate(prompts):
        assert _ids(tokens[i]) == greedy_alone(network, ids, 20)


def test_rows_that_join_later_disturb_nobody_and_are_not_disturbed(
    network: WatchedNetwork,
) -> None:
    prompts = [random_ids(length, 2) for length in (1, 30, 2, 90)]
    batch = DecodeBatch(network)
    early: list[Token] = []
    for i, ids in enumerate(prompts):
        _add(network, batch, [_row(i, ids, left=9)])
        for _ in range(i + 1):
            early += batch.step()
    rest = _finish(batch)
    for i, ids in enumerate(prompts):
        mine = [token for token in early if token.sequence == i] + rest.get(i, [])
        assert _ids(mine) == greedy_alone(network, ids, 9)


def test_the_first_token_of_a_row_comes_with_the_second_step(network: WatchedNetwork) -> None:
    batch = DecodeBatch(network)
    ids = random_ids(4, 3)
    _add(network, batch, [_row(1, ids)])
    assert batch.step() == []
    assert network.shapes == [(1, 1)]
    (token,) = batch.step()
    assert token == Token(1, greedy_alone(network, ids, 1)[0], None)
    assert network.shapes == [(1, 1)] * 2  # one step ahead


# Ends.


def test_a_row_that_ends_by_length_costs_no_further_pass(network: WatchedNetwork) -> None:
    batch = DecodeBatch(network)
    lengths = {1: 4, 2: 1, 3: 6, 4: 4}
    _add(network, batch, [_row(i, random_ids(5, i), left=left) for i, left in lengths.items()])
    tokens = _finish(batch)
    assert network.shapes == [(4, 1), (3, 1), (3, 1), (3, 1), (1, 1), (1, 1)]
    for i, left in lengths.items():
        assert [token.finish_reason for token in tokens[i]] == [None] * (left - 1) + ["length"]
    assert not batch.busy and len(batch) == 0


def test_an_end_token_ends_its_row_alone_unseen_and_after_one_pass_in_vain(
    network: WatchedNetwork,
) -> None:
    ids = random_ids(6, 10)
    whole = greedy_alone(network, ids, 7)
    assert whole[3] not in whole[:3]
    batch = DecodeBatch(network)
    _add(
        network,
        batch,
        [_row(1, ids, left=7), _row(2, ids, left=7, ends=[300, whole[3]]), _row(3, ids, left=7)],
    )
    tokens = _finish(batch)
    assert tokens[2] == [*(Token(2, token, None) for token in whole[:3]), Token(2, None, "stop")]
    assert _ids(tokens[1]) == _ids(tokens[3]) == whole
    assert network.shapes == [(3, 1)] * 5 + [(2, 1)] * 2


def test_an_end_token_at_the_last_place_ends_with_stop(network: WatchedNetwork) -> None:
    ids = random_ids(6, 10)
    whole = greedy_alone(network, ids, 4)
    assert whole[3] not in whole[:3]
    batch = DecodeBatch(network)
    _add(network, batch, [_row(1, ids, left=4, ends=[whole[3]])])
    assert _finish(batch)[1][-1] == Token(1, None, "stop")
    assert network.shapes == [(1, 1)] * 4


def test_a_batch_without_rows_is_not_busy_and_never_calls_the_network(
    network: WatchedNetwork,
) -> None:
    batch = DecodeBatch(network)
    assert not batch.busy
    assert batch.step() == []
    assert network.shapes == []


def test_when_all_have_ended_others_can_join(network: WatchedNetwork) -> None:
    batch = DecodeBatch(network)
    for i in range(3):
        ids = random_ids(3 + i, i)
        _add(network, batch, [_row(i, ids)])
        assert _ids(_finish(batch)[i]) == greedy_alone(network, ids, 6)


# Removal.


@pytest.mark.parametrize("steps", range(6))
def test_a_removed_row_brings_nothing_more_and_its_neighbours_do_not_notice(
    network: WatchedNetwork, steps: int
) -> None:
    prompts = {i: random_ids(3 + 4 * i, 20) for i in range(3)}
    batch = DecodeBatch(network)
    _add(network, batch, [_row(i, ids) for i, ids in prompts.items()])
    before = [token for _ in range(steps) for token in batch.step()]
    batch.remove(1)
    assert len(batch) == 2
    rest = _finish(batch)
    assert 1 not in rest
    for i in (0, 2):
        mine = [token for token in before if token.sequence == i] + rest[i]
        assert _ids(mine) == greedy_alone(network, prompts[i], 6)


def test_when_all_are_removed_nothing_comes_and_the_network_rests(
    network: WatchedNetwork,
) -> None:
    batch = DecodeBatch(network)
    _add(network, batch, [_row(i, random_ids(5, i)) for i in range(3)])
    batch.step()
    for i in range(3):
        batch.remove(i)
    assert _finish(batch) == {}
    assert network.shapes == [(3, 1)]


def test_a_sequence_that_comes_again_gets_nothing_of_what_was_drawn_for_the_removed_one(
    network: WatchedNetwork,
) -> None:
    first, again = random_ids(5, 30), random_ids(8, 31)
    assert greedy_alone(network, first, 1) != greedy_alone(network, again, 1)
    batch = DecodeBatch(network)
    _add(network, batch, [_row(1, first)])
    batch.step()
    batch.remove(1)
    _add(network, batch, [_row(1, again)])
    assert _ids(_finish(batch)[1]) == greedy_alone(network, again, 6)


def test_removing_an_unknown_row_changes_nothing(network: WatchedNetwork) -> None:
    ids = random_ids(5, 32)
    batch = DecodeBatch(network)
    batch.remove(1)
    _add(network, batch, [_row(1, ids)])
    batch.remove(2)
    assert len(batch) == 1
    assert _ids(_finish(batch)[1]) == greedy_alone(network, ids, 6)


# Log-probabilities.


def test_logprobs_reach_the_rows_that_ask_also_when_others_leave_before_them(
    network: WatchedNetwork,
) -> None:
    asked = {1: None, 2: 3, 3: None, 4: 0}
    prompts = {i: random_ids(3 + i, 40) for i in asked}
    left = {1: 2, 2: 6, 3: 4, 4: 6}
    batch = DecodeBatch(network)
    _add(
        network,
        batch,
        [_row(i, prompts[i], left=left[i], how=sampling(logprobs=asked[i])) for i in asked],
    )
    tokens = _finish(batch)
    for i, ids in prompts.items():
        assert len(tokens[i]) == left[i]
        context = list(ids)
        for token in tokens[i]:
            assert token.token_id is not None
            if asked[i] is None:
                assert token.logprobs is None
            else:
                assert token.logprobs is not None
                expected = log_softmax(logits_alone(network, context))
                assert token.logprobs.drawn == pytest.approx(expected[token.token_id], abs=1e-3)
                likeliest = token.logprobs.top[:3]
                assert [other for other, _ in likeliest] == expected.argsort()[::-1][:3].tolist()
                for other, value in likeliest:
                    assert value == pytest.approx(expected[other], abs=1e-3)
            context.append(token.token_id)
