"""Rows that decode together: what each gets, when each ends, and what it costs."""

from collections import defaultdict
from collections.abc import Sequence

import mlx.core as mx
import pytest

from tests.worker.engine.driven_batch import ids_of
from tests.worker.engine.expected_tokens import ExpectedTokens, drawn_alone
from tests.worker.engine.reference_sampler import log_softmax
from tests.worker.engine.samplings import GREEDY, sampling
from tests.worker.engine.watched_network import (
    WatchedNetwork,
    greedy_alone,
    logits_alone,
    logits_bound,
    prepared,
    random_ids,
)
from worker.engine.batch_cache import BatchCache
from worker.engine.caches import evaluate
from worker.engine.decoding import DecodeGroup, DecodingRow
from worker.engine.model import LoadedModel
from worker.engine.prefill import PendingPrefill
from worker.engine.sequence import GeneratedToken
from worker.link.orders import Sampling


def _row(
    sequence: int,
    ids: list[int],
    *,
    left: int = 6,
    ends: Sequence[int] = (),
    how: Sampling = GREEDY,
) -> DecodingRow:
    one = prepared(sequence, ids, max_tokens=left, how=how)
    return DecodingRow(PendingPrefill(one, 0.0, 0.0, 0.0), frozenset(ends))


def _group(model: LoadedModel, rows: Sequence[DecodingRow]) -> DecodeGroup:
    """With caches that nothing of ours has filled; their prompts may differ in length."""
    prompts = [row.pending.prepared.all_ids for row in rows]
    longest = max(map(len, prompts))
    cache = model.layout.new_cache(len(rows), longest)
    if longest > 1:
        padded = [[*ids[:-1], *[0] * (longest - len(ids))] for ids in prompts]
        model.network.real(mx.array(padded), cache=cache)
        evaluate(cache)
    held = BatchCache.of(cache, [len(ids) - 1 for ids in prompts], model.layout)
    inputs = mx.array([ids[-1] for ids in prompts], dtype=mx.uint32)
    return DecodeGroup(model.network, rows, held, inputs)


def _join(group: DecodeGroup, coming: DecodeGroup) -> None:
    width = max(group.cache.width, coming.required_size[1])
    group.cache.resize(max(group.cache.slots, len(group) + len(coming)), width)
    group.absorb(coming)


def _retire(group: DecodeGroup) -> None:
    group.drop([row for row in group.rows if row.finished or row.left == 0])


def _steps(group: DecodeGroup, count: int) -> list[GeneratedToken]:
    """So many steps, each read at once."""
    tokens = []
    for _ in range(count):
        if not group.has_capacity:
            group.grow()
        tokens += group.sample().read()
        _retire(group)
    return tokens


def _finish(group: DecodeGroup) -> dict[int, list[GeneratedToken]]:
    """All tokens that are still to come, by their sequence; each step is read when the device
    has the next one to do."""
    tokens: dict[int, list[GeneratedToken]] = defaultdict(list)
    ahead = None
    while group.rows or ahead:
        drawn = None
        if group.rows:
            if not group.has_capacity:
                group.grow()
            drawn = group.sample()
        if ahead:
            for token in ahead.read():
                tokens[token.sequence].append(token)
        ahead = drawn
        _retire(group)
    return dict(tokens)


def _ids_alone(model: LoadedModel, row: DecodingRow) -> ExpectedTokens:
    (tokens,) = _finish(_group(model, [row])).values()
    return drawn_alone(model.network, row.pending.prepared, ids_of(tokens))


# What each row gets.


@pytest.mark.parametrize(
    ("lengths", "left"),
    [((17, 1, 5, 40, 1), 20), ((253, 256, 257, 9), 8)],
    ids=["any lengths", "over the borders of blocks"],
)
def test_rows_get_the_tokens_that_the_network_gives_without_cache_or_batch(
    model: LoadedModel, network: WatchedNetwork, lengths: tuple[int, ...], left: int
) -> None:
    prompts = [random_ids(length, 1) for length in lengths]
    group = _group(model, [_row(i, ids, left=left) for i, ids in enumerate(prompts)])
    tokens = _finish(group)
    for i, ids in enumerate(prompts):
        assert ids_of(tokens[i]) == greedy_alone(network, ids, left)


def test_a_step_is_asked_for_without_waiting_and_read_later(
    model: LoadedModel, network: WatchedNetwork
) -> None:
    ids = random_ids(4, 3)
    group = _group(model, [_row(1, ids)])
    first = group.sample()
    second = group.sample()
    assert network.shapes == [(1, 1)] * 2
    assert first.has_fresh
    assert not second.has_fresh
    whole = greedy_alone(network, ids, 2)
    assert first.read() == [GeneratedToken(1, whole[0], None)]
    assert second.read() == [GeneratedToken(1, whole[1], None)]
    assert group.lengths == [5]


def test_a_step_of_old_and_new_rows_is_fresh(model: LoadedModel) -> None:
    group = _group(model, [_row(1, random_ids(4, 1))])
    _steps(group, 2)
    _join(group, _group(model, [_row(2, random_ids(3, 2))]))
    assert group.sample().has_fresh
    assert not group.sample().has_fresh


def test_a_group_knows_that_it_has_stepped_and_how_long_a_step_takes(model: LoadedModel) -> None:
    group = _group(model, [_row(1, random_ids(4, 1))])
    assert (group.stepped, group.step_s) == (False, 0.0)
    group.sample()
    assert group.stepped
    group.record_step(0.5)
    assert group.step_s == 0.5
    group.record_step(1.0)
    assert 0.5 < group.step_s < 1.0


def test_a_machine_that_stood_still_during_a_step_hardly_counts(model: LoadedModel) -> None:
    group = _group(model, [_row(1, random_ids(4, 1))])
    group.record_step(0.5)
    group.record_step(3600)
    assert group.step_s < 2 * 0.5


# Ends.


def test_a_row_that_ends_by_length_costs_no_further_pass(
    model: LoadedModel, network: WatchedNetwork
) -> None:
    lengths = {1: 4, 2: 1, 3: 6, 4: 4}
    rows = [_row(i, random_ids(5, i), left=left) for i, left in lengths.items()]
    group = _group(model, rows)
    tokens = _finish(group)
    assert network.shapes == [(4, 1), (3, 1), (3, 1), (3, 1), (1, 1), (1, 1)]
    for i, left in lengths.items():
        assert [token.finish_reason for token in tokens[i]] == [None] * (left - 1) + ["length"]
    assert len(group) == 0


def test_an_end_token_ends_its_row_alone_unseen_and_after_one_pass_in_vain(
    model: LoadedModel, network: WatchedNetwork
) -> None:
    ids = random_ids(6, 10)
    whole = greedy_alone(network, ids, 7)
    assert whole[3] not in whole[:3]
    ends = {1: [], 2: [300, whole[3]], 3: list[int]()}
    group = _group(model, [_row(i, ids, left=7, ends=ends[i]) for i in ends])
    tokens = _finish(group)
    assert tokens[2] == [
        *(GeneratedToken(2, token, None) for token in whole[:3]),
        GeneratedToken(2, None, "stop", end_id=whole[3]),
    ]
    assert ids_of(tokens[1]) == ids_of(tokens[3]) == whole
    assert network.shapes == [(3, 1)] * 5 + [(2, 1)] * 2


def test_an_end_token_at_the_last_place_ends_with_stop(
    model: LoadedModel, network: WatchedNetwork
) -> None:
    ids = random_ids(6, 10)
    whole = greedy_alone(network, ids, 4)
    assert whole[3] not in whole[:3]
    group = _group(model, [_row(1, ids, left=4, ends=[whole[3]])])
    assert _finish(group)[1][-1] == GeneratedToken(1, None, "stop", end_id=whole[3])
    assert network.shapes == [(1, 1)] * 4


# Leaving, and moving to other groups.


def test_a_sequence_that_comes_again_gets_nothing_of_what_was_drawn_for_the_removed_one(
    model: LoadedModel, network: WatchedNetwork
) -> None:
    first, again = random_ids(5, 30), random_ids(8, 31)
    assert greedy_alone(network, first, 1) != greedy_alone(network, again, 1)
    group = _group(model, [_row(1, first), _row(2, first)])
    in_flight = group.sample()
    group.rows[0].finished = True
    _retire(group)
    _join(group, _group(model, [_row(1, again)]))
    assert [token.sequence for token in in_flight.read()] == [2]
    assert ids_of(_finish(group)[1]) == greedy_alone(network, again, 6)


@pytest.mark.parametrize(
    "how",
    [
        sampling(temperature=1.2, seed=3),
        sampling(temperature=0.9, top_k=20, seed=4, logprobs=2),
        sampling(temperature=0.8, seed=5, repetition_penalty=3.0),
        sampling(frequency_penalty=2.0, presence_penalty=1.0),
    ],
    ids=["seeded", "top k", "repetition", "frequency"],
)
def test_a_group_that_has_stepped_joins_another_and_its_rows_draw_and_count_as_before(
    model: LoadedModel, how: Sampling
) -> None:
    def rows() -> list[DecodingRow]:
        return [_row(i, random_ids(3 + i, 22), left=40, how=how) for i in range(4)]

    alone = {i: _ids_alone(model, row) for i, row in enumerate(rows())}
    first, second = _group(model, rows()[:2]), _group(model, rows()[2:])
    before = _steps(first, 3) + _steps(second, 15)
    _join(first, second)
    rest = _finish(first)
    for i, whole in alone.items():
        mine = [token for token in before if token.sequence == i] + rest[i]
        assert ids_of(mine) == whole


def test_rows_that_were_taken_out_count_their_penalties_on(model: LoadedModel) -> None:
    how = sampling(temperature=0.7, seed=9, repetition_penalty=2.0, frequency_penalty=1.5)

    def rows() -> list[DecodingRow]:
        return [_row(i, random_ids(3 + i, 23), left=40, how=how) for i in range(3)]

    alone = {i: _ids_alone(model, row) for i, row in enumerate(rows())}
    group = _group(model, rows())
    before = _steps(group, 15)
    taken = group.take(group.rows[1:])
    rest = _finish(group) | _finish(taken)
    for i, whole in alone.items():
        mine = [token for token in before if token.sequence == i] + rest[i]
        assert ids_of(mine) == whole


# Room.


def test_a_group_grows_by_blocks_and_gives_back_what_is_left_over(model: LoadedModel) -> None:
    lengths = {0: 250, 1: 30, 2: 20, 3: 700}
    group = _group(model, [_row(i, random_ids(n, i), left=30) for i, n in lengths.items()])
    assert (group.cache.slots, group.cache.width) == (4, 768)
    assert group.required_size == (4, 768)
    group.drop([group.rows[3]])
    assert (group.cache.slots, group.cache.width) == (4, 768)
    group.fit()
    assert (group.cache.slots, group.cache.width) == (3, 256)
    before = group.cache.nbytes
    assert group.growth_bytes == before + before // 2  # as much again, and a layer meanwhile
    while group.has_capacity:
        group.sample()
    assert max(group.lengths) == 256
    group.grow()
    assert (group.cache.slots, group.cache.width) == (3, 512)
    group.drop(group.rows[:1])
    group.fit()
    assert (group.cache.slots, group.cache.width) == (2, 256)


def test_half_the_room_or_more_is_kept_for_a_while_for_those_who_come(model: LoadedModel) -> None:
    group = _group(model, [_row(i, random_ids(9, i), left=200) for i in range(5)])
    group.drop(group.rows[3:])
    for _ in range(80):
        group.sample()
    assert group.cache.slots == 5  # more than half is in use
    group.drop(group.rows[2:])
    for _ in range(64):
        group.sample()
        assert group.cache.slots == 5
    group.sample()
    assert group.cache.slots == 2


def test_the_bytes_of_some_rows_are_what_they_take_alone(model: LoadedModel) -> None:
    group = _group(model, [_row(i, random_ids(n, i)) for i, n in enumerate((10, 300, 20))])
    assert group.bytes_of(group.rows[:1]) == model.layout.bytes(1, 10)
    assert group.bytes_of([group.rows[0], group.rows[2]]) == model.layout.bytes(2, 20)
    assert group.bytes_of(group.rows) == group.cache.nbytes == model.layout.bytes(3, 300)
    assert group.take([group.rows[0]]).cache.nbytes == model.layout.bytes(1, 10)


# Log-probabilities.


def test_logprobs_reach_the_rows_that_ask_also_when_others_leave_before_them(
    model: LoadedModel, network: WatchedNetwork
) -> None:
    asked = {1: None, 2: 3, 3: None, 4: 0}
    prompts = {i: random_ids(3 + i, 40) for i in asked}
    left = {1: 2, 2: 6, 3: 4, 4: 6}
    rows = [_row(i, prompts[i], left=left[i], how=sampling(logprobs=asked[i])) for i in asked]
    tokens = _finish(_group(model, rows))
    bound = logits_bound(network)
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
                assert token.logprobs.sampled == pytest.approx(expected[token.token_id], abs=bound)
                likeliest = token.logprobs.top[:3]
                assert [other for other, _ in likeliest] == expected.argsort()[::-1][:3].tolist()
                for other, value in likeliest:
                    assert value == pytest.approx(expected[other], abs=bound)
            context.append(token.token_id)
