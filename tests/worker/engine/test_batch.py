"""Continuous batching of the tiny model, stepped by hand."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.worker.engine.driven_batch import DrivenBatch, ids_alone, ids_of, steady, tokens_alone
from tests.worker.engine.expected_tokens import drawn_alone
from tests.worker.engine.other_models import KINDS, greedy_with_cache, serving
from tests.worker.engine.samplings import GREEDY, sampling
from tests.worker.engine.watched_network import (
    WatchedNetwork,
    greedy_alone,
    logits_bound,
    prepared,
    random_ids,
)
from worker.engine.batch_cache import BatchCache
from worker.engine.model import LoadedModel
from worker.engine.prefill import PrefillProgress
from worker.engine.prompt import PreparedSequence
from worker.engine.sequence import GeneratedToken
from worker.link.orders import Sampling

MakeBatch = Callable[..., DrivenBatch]
_WAYS = [
    GREEDY,
    sampling(temperature=0.9, top_p=0.95, seed=3),
    sampling(temperature=1.2, top_k=20, seed=4, logprobs=2),
    sampling(temperature=0.8, seed=7, repetition_penalty=1.3, frequency_penalty=0.4),
    sampling(presence_penalty=1.0, logit_bias={"65": -100.0}, logprobs=0),
]
_NO_COUNTING = [_WAYS[0], _WAYS[1], _WAYS[2]]
"""Without penalties."""


@pytest.fixture
def make_batch(model: LoadedModel) -> MakeBatch:
    def make(**fields: Any) -> DrivenBatch:
        return DrivenBatch(fields.pop("model", model), **fields)

    return make


def _block_bytes(model: LoadedModel) -> int:
    """What a row of up to 256 tokens takes."""
    return model.layout.bytes(1, 1)


def _light(model: LoadedModel, tokens: int) -> LoadedModel:
    """Its weights cost as much as the keys and values of so many tokens."""
    return replace(model, memory_bytes=tokens * model.layout.token_bytes)


def _prefilled(network: WatchedNetwork) -> list[tuple[int, ...]]:
    """The forward passes of more than a token a row."""
    return [shape for shape in network.shapes if shape[1] > 1]


def _assert_as_alone(
    driven: DrivenBatch, model: LoadedModel, sequences: Sequence[PreparedSequence]
) -> None:
    """The tokens of all, with their log-probabilities as near as rounding allows."""
    bound = logits_bound(model.network)
    for one in sequences:
        mine = driven.tokens[one.order.sequence]
        alone = tokens_alone(model, one)
        expected = drawn_alone(model.network, one, ids_of(alone))
        assert ids_of(mine) == expected, one.order.sequence
        asked = one.order.sampling.logprobs
        for token, other in zip(mine, alone, strict=False):
            if token.token_id != other.token_id:  # a tie
                break
            assert token.finish_reason == other.finish_reason
            assert (token.logprobs is None) == (other.logprobs is None)
            if token.logprobs is not None and other.logprobs is not None:
                assert token.logprobs.sampled == pytest.approx(other.logprobs.sampled, abs=bound)
                assert dict(token.logprobs.top[:asked]) == pytest.approx(
                    dict(other.logprobs.top[:asked]), abs=bound
                )


# Who is prefilled together.


@pytest.mark.parametrize(
    ("overhead_tokens", "most", "lengths", "passes"),
    [
        pytest.param(20, 200, [7, 60, 7, 25, 9, 55], [(4, 25), (2, 60)], id="differ by little"),
        pytest.param(0, 64, [10] * 3, [(1, 10)] * 3, id="weights cost nothing"),
        pytest.param(20, 1000, [90] * 2, [(1, 90)] * 2, id="many times the fixed part"),
        pytest.param(20, 30, [10] * 7, [(3, 10), (3, 10), (1, 10)], id="as fit into a chunk"),
        pytest.param(20, 8, [20] * 2, [(1, 8), (1, 8), (1, 4)] * 2, id="longer than a chunk"),
    ],
)
def test_prompts_are_prefilled_together_where_that_costs_less_than_apart(
    model: LoadedModel, make_batch: MakeBatch, network: WatchedNetwork,
    overhead_tokens: int, most: int, lengths: list[int], passes: list[tuple[int, int]],
) -> None:  # fmt: skip
    batch = make_batch(model=steady(model, overhead_tokens=overhead_tokens), max_chunk_tokens=most)
    batch.add(prepared(100, random_ids(1, 100), max_tokens=60))
    batch.prefill()
    prompts = {i: random_ids(length, i) for i, length in enumerate(lengths)}
    batch.add(*(prepared(i, ids) for i, ids in prompts.items()))
    batch.finish()
    assert _prefilled(network) == passes
    for i, ids in prompts.items():
        assert batch.ids(i) == greedy_alone(network, ids, 8)


def test_where_nobody_decodes_as_many_begin_together_as_the_time_holds(
    model: LoadedModel, make_batch: MakeBatch, network: WatchedNetwork
) -> None:
    batch = make_batch(model=steady(model, overhead_tokens=2), max_chunk_tokens=1000)
    batch.add(*(prepared(i, random_ids(90, i)) for i in range(3)))
    batch.prefill(seconds=0.0025 + 0.001 * 200)
    batch.prefill(seconds=0.0025 + 0.001 * 200)
    assert network.shapes == [(2, 90), (1, 90)]


def test_a_resumed_sequence_goes_with_those_of_its_whole_length(
    model: LoadedModel, make_batch: MakeBatch, network: WatchedNetwork
) -> None:
    batch = make_batch(model=steady(model, overhead_tokens=2))
    ids, long = random_ids(5, 1), random_ids(8, 2)
    whole = greedy_alone(network, ids, 8)
    batch.add(prepared(1, ids, resumed_ids=whole[:3]), prepared(2, long))
    batch.finish()
    assert _prefilled(network) == [(2, 8)]
    assert batch.ids(1) == whole[3:]
    assert batch.ids(2) == greedy_alone(network, long, 8)


def test_as_many_prompts_go_together_as_the_time_allows(
    make_batch: MakeBatch, network: WatchedNetwork
) -> None:
    batch = make_batch(max_chunk_tokens=1000)
    batch.add(*(prepared(i, random_ids(10, i)) for i in range(7)))
    batch.prefill(seconds=0.0205 + 0.001 * 45)
    assert network.shapes == [(4, 10)]


def test_a_chunk_takes_as_much_as_the_time_holds_but_always_something(
    make_batch: MakeBatch, network: WatchedNetwork
) -> None:
    batch = make_batch(max_chunk_tokens=1000)
    batch.add(prepared(1, random_ids(500, 1)))
    for seconds in (0.0205 + 0.001 * 100.5, 0.001, 0.0, -1.0, 0.0205 + 0.001 * 30.5):
        batch.prefill(seconds=seconds)
    assert network.shapes == [(1, 100), (1, 8), (1, 8), (1, 8), (1, 30)]


@pytest.mark.parametrize(("tokens", "first"), [(110, 110), (111, 111), (112, 100)])
def test_a_rest_that_is_not_worth_a_pass_goes_with_what_comes_before_it(
    make_batch: MakeBatch, network: WatchedNetwork, model: LoadedModel, tokens: int, first: int
) -> None:
    """The time holds 100 tokens, and a pass costs as much as 20."""
    batch = make_batch(model=steady(model, overhead_tokens=20), max_chunk_tokens=1000)
    batch.add(prepared(1, random_ids(tokens, 1)))
    batch.prefill(seconds=0.0205 + 0.001 * 100.5)
    assert network.shapes == [(1, first)]


@pytest.mark.parametrize(
    ("tokens", "seconds", "pays"),
    [(200, 0.041, True), (200, 0.040, False), (6, 0.026, True), (6, 0.025, False), (200, 0, False)],
)
def test_what_is_left_of_the_time_is_used_for_chunks_that_are_worth_a_pass(
    model: LoadedModel, make_batch: MakeBatch, tokens: int, seconds: float, pays: bool
) -> None:
    """A pass costs as much as 20 tokens of a millisecond each."""
    batch = make_batch(model=steady(model, overhead_tokens=20))
    batch.add(prepared(1, random_ids(tokens, 1)))
    assert batch.batch.is_prefill_worthwhile(seconds) is pays


# Who is prefilled first.


def test_a_short_prompt_goes_before_a_long_one_also_when_that_has_begun(
    make_batch: MakeBatch,
) -> None:
    batch = make_batch(max_chunk_tokens=64)
    batch.add(prepared(1, random_ids(900, 1)), prepared(2, random_ids(100, 2)))
    assert [one.sequence for one in batch.prefill(chunks=1)] == [2]
    batch.prefill(chunks=1)
    assert batch.progress[-1] == PrefillProgress(2, 99, 100)
    batch.turn()
    assert batch.progress[-1].sequence == 1
    batch.add(prepared(3, random_ids(40, 3)))
    batch.turn()
    assert batch.progress[-1] == PrefillProgress(3, 39, 40)
    batch.turn()
    assert batch.progress[-1].sequence == 1


def test_short_prompts_do_not_go_before_a_long_one_for_ever(
    make_batch: MakeBatch,
) -> None:
    now = [100.0]
    batch = make_batch(max_size=100, clock=lambda: now[0])
    batch.add(prepared(0, random_ids(900, 0), max_tokens=1))
    due_long = batch.batch.next_due
    assert due_long is not None and due_long > now[0]
    order = []
    for i in range(1, 60):
        batch.add(prepared(i, random_ids(50, i), max_tokens=1))
        order += [one.sequence for one in batch.prefill()]
        now[0] += 1
        batch.turn(chunks=0)
        batch.turn(chunks=0)
    assert order[:3] == [1, 2, 3]
    assert order.count(0) == 15, "all of the long one, 64 tokens at a time"
    assert order.index(0) < 59


def test_nothing_is_due_when_nobody_waits_or_nobody_may_come(make_batch: MakeBatch) -> None:
    batch = make_batch(max_size=1)
    assert batch.batch.next_due is None
    batch.add(prepared(1, random_ids(6, 1)), prepared(2, random_ids(6, 2)))
    assert batch.batch.next_due is not None
    batch.prefill()
    assert batch.batch.next_due is None


# Room.


@pytest.mark.parametrize("max_size", [1, 2, 5])
@pytest.mark.parametrize("lengths", [[6] * 9, [6, 7, 60, 8, 1, 6, 70, 1, 6]], ids=str)
def test_never_more_than_max_size_decode_and_all_are_served(
    make_batch: MakeBatch, network: WatchedNetwork, max_size: int, lengths: list[int]
) -> None:
    batch = make_batch(max_size=max_size)
    prompts = {i: random_ids(length, i) for i, length in enumerate(lengths)}
    for i, ids in prompts.items():
        batch.add(prepared(i, ids, max_tokens=3 + i))
    batch.finish()
    assert max(rows for rows, _ in network.shapes) == max_size
    for i, ids in prompts.items():
        assert batch.ids(i) == greedy_alone(network, ids, 3 + i)
        assert batch.tokens[i][-1].finish_reason == "length"


def test_who_waits_for_room_is_not_prefilled_before_there_is_some(
    make_batch: MakeBatch,
) -> None:
    batch = make_batch(max_size=1)
    batch.add(prepared(1, random_ids(6, 1), max_tokens=4), prepared(2, random_ids(9, 2)))
    assert batch.prefill() == [PrefillProgress(1, 5, 6)]
    while batch.tokens[1][-1:] == [] or batch.tokens[1][-1].finish_reason is None:
        assert batch.progress == [PrefillProgress(1, 5, 6)]
        batch.turn()
    batch.turn()
    assert batch.progress[-1] == PrefillProgress(2, 8, 9)


# Prefill beside decoding.


def test_one_chunk_at_a_time_there_is_one_step_between_two_chunks(
    make_batch: MakeBatch, network: WatchedNetwork
) -> None:
    batch = make_batch(max_chunk_tokens=16)
    batch.add(prepared(100, random_ids(3, 100), max_tokens=500))
    batch.prefill()
    batch.turn()
    batch.add(prepared(1, random_ids(60, 1)))
    network.shapes.clear()
    for _ in range(5):
        batch.turn()
    assert network.shapes == [(1, 1), (1, 16)] * 3 + [(1, 1), (1, 12), (2, 1)]
    assert batch.progress[1:] == [PrefillProgress(1, done, 60) for done in (16, 32, 48, 59)]


def test_with_all_patience_everything_that_waits_is_prefilled_before_the_next_step(
    make_batch: MakeBatch,
) -> None:
    batch = make_batch(max_chunk_tokens=32)
    batch.add(prepared(100, random_ids(3, 100), max_tokens=500))
    batch.prefill()
    batch.add(prepared(1, random_ids(70, 1)), prepared(2, random_ids(30, 2)))
    assert batch.prefill(chunks=100) == [
        PrefillProgress(2, 29, 30),
        PrefillProgress(1, 32, 70),
        PrefillProgress(1, 64, 70),
        PrefillProgress(1, 69, 70),
    ]


def test_an_empty_batch_has_nothing_to_do(make_batch: MakeBatch, network: WatchedNetwork) -> None:
    batch = make_batch()
    batch.remove(1)
    batch.batch.preempt(1)
    batch.turn()
    assert not batch.busy
    assert (batch.batch.held_bytes, batch.batch.growth_bytes) == (0, 0)
    assert batch.batch.preemption_candidates == []
    assert network.shapes == []


# Ends and removal.


def test_the_models_and_the_requests_end_tokens_end_a_sequence(
    model: LoadedModel, make_batch: MakeBatch, network: WatchedNetwork
) -> None:
    ids = random_ids(6, 10)
    whole = greedy_alone(network, ids, 8)
    assert len(set(whole[:6])) == 6
    own = {1: [whole[2]], 2: [], 3: [whole[5]]}
    batch = make_batch(model=replace(model, end_ids=frozenset([whole[4]])))
    for i, stop_token_ids in own.items():
        batch.add(prepared(i, ids, stop_token_ids=stop_token_ids))
        batch.add(prepared(10 * i, ids, stop_token_ids=stop_token_ids, ignore_eos=True))
    batch.finish()
    assert {i: batch.ids(i) for i in sorted(batch.tokens)} == {
        1: [*whole[:2], None],
        2: [*whole[:4], None],
        3: [*whole[:4], None],
        10: [*whole[:2], None],
        20: whole,
        30: [*whole[:5], None],
    }


def test_a_resumed_sequence_generates_only_what_is_left(
    make_batch: MakeBatch, network: WatchedNetwork
) -> None:
    ids = random_ids(6, 11)
    whole = greedy_alone(network, ids, 8)
    batch = make_batch()
    batch.add(prepared(1, ids, max_tokens=8, resumed_ids=whole[:7]))
    batch.finish()
    assert batch.tokens == {1: [GeneratedToken(1, whole[7], "length")]}
    assert network.shapes == [(1, 13)]


@pytest.mark.parametrize("removed", [[1], [2], [3], [1, 2], [2, 3], [1, 2, 3]], ids=str)
@pytest.mark.parametrize("rounds", range(8), ids=lambda rounds: f"after {rounds} rounds")
def test_sequences_can_be_removed_at_every_stage_and_the_others_do_not_notice(
    make_batch: MakeBatch, network: WatchedNetwork, removed: list[int], rounds: int
) -> None:
    """At first all wait; then 1 and 2 are in prefill, then decode while 3 is in prefill."""
    batch = make_batch(max_chunk_tokens=24)
    prompts = {i: random_ids(length, i) for i, length in ((1, 12), (2, 10), (3, 60))}
    for i, ids in prompts.items():
        batch.add(prepared(i, ids, max_tokens=7))
    for _ in range(rounds):
        batch.turn()
    had = {i: len(batch.tokens[i]) for i in removed}
    for sequence in [*removed, 99]:
        batch.remove(sequence)
    batch.finish()
    assert batch.batch.held_bytes == 0
    for i, ids in prompts.items():
        if i in removed:
            assert len(batch.tokens[i]) == had[i]
        else:
            assert batch.ids(i) == greedy_alone(network, ids, 7)


def _mixed(chance: np.random.Generator, count: int, ways: Sequence[Sampling]) -> list[Any]:
    return [
        prepared(
            i,
            random_ids(int(chance.choice([1, 5, 6, 30, 70, 250])), i),
            max_tokens=int(chance.integers(1, 25)),
            how=ways[i % len(ways)],
        )
        for i in range(count)
    ]


@pytest.mark.parametrize(
    ("ways", "memory_tokens"),
    [
        pytest.param(_NO_COUNTING, 10**6, id="one group"),
        pytest.param(_NO_COUNTING, 40, id="several groups"),
        pytest.param(_WAYS, 10**6, id="one group with penalties"),
        pytest.param(_WAYS, 40, id="several groups with penalties"),
    ],
)
def test_many_mixed_sequences_get_the_tokens_that_each_gets_alone(
    model: LoadedModel,
    make_batch: MakeBatch,
    network: WatchedNetwork,
    ways: list[Sampling],
    memory_tokens: int,
) -> None:
    """They come at any time; some are cancelled; each asks for something else."""
    for seed in range(2):
        chance = np.random.default_rng([5, seed])
        work = _mixed(chance, 24, ways)
        batch = make_batch(model=_light(model, memory_tokens), max_size=6, max_chunk_tokens=32)
        cancelled: set[int] = set()
        groups = 0
        network.shapes.clear()
        for count, one in enumerate(work, start=1):
            batch.add(one)
            if chance.random() < 0.15:
                sequence = int(chance.integers(count))
                cancelled.add(sequence)
                batch.remove(sequence)
            for _ in range(int(chance.integers(4))):
                batch.turn(chunks=int(chance.integers(3)))
                groups = max(groups, len(batch.groups))
        batch.finish()
        assert max(rows for rows, _ in network.shapes) <= 6
        assert (groups > 1) == (memory_tokens == 40)
        assert cancelled
        _assert_as_alone(batch, model, [w for w in work if w.order.sequence not in cancelled])
        for sequence in cancelled:
            whole = ids_alone(model, work[sequence])
            assert batch.ids(sequence) == whole[: len(batch.ids(sequence))]


# Groups.


def _lengths_of(batch: DrivenBatch) -> list[list[int]]:
    """The sequences of each group."""
    return sorted(sorted(row.id for row in group.rows) for group in batch.groups)


def test_rows_of_very_different_lengths_decode_apart_once_padding_costs_more_than_the_weights(
    model: LoadedModel, make_batch: MakeBatch, network: WatchedNetwork
) -> None:
    for tokens, expected in ((50, [[0, 1, 2], [3]]), (10_000, [[0, 1, 2, 3]])):
        batch = make_batch(model=_light(model, tokens), max_chunk_tokens=1000)
        prompts = {i: random_ids(length, i) for i, length in enumerate((9, 5, 12, 400))}
        for i, ids in prompts.items():
            batch.add(prepared(i, ids, max_tokens=12))
        for _ in range(4):
            batch.turn(chunks=10)
        assert _lengths_of(batch) == expected
        batch.finish()
        for i, ids in prompts.items():
            assert batch.ids(i) == greedy_with_cache(network.real, ids, 12)


def test_rows_that_join_are_brought_together_with_their_like(
    model: LoadedModel, make_batch: MakeBatch
) -> None:
    batch = make_batch(model=_light(model, 100), max_chunk_tokens=1000)
    lengths = [9, 500, 12, 480, 10, 510]
    for i, length in enumerate(lengths):
        batch.add(prepared(i, random_ids(length, i), max_tokens=60))
        batch.turn(chunks=1)
        batch.turn(chunks=1)
    assert _lengths_of(batch) == [[0, 2, 4], [1, 3, 5]]


def test_a_group_is_copied_only_by_who_finds_no_free_slot_in_it(
    model: LoadedModel, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = make_batch(max_size=64)
    copied: list[tuple[int, int]] = []
    resize = BatchCache.resize

    def watched(self: BatchCache, slots: int, width: int) -> None:
        if slots != self.slots:
            copied.append((self.slots, slots))
        resize(self, slots, width)

    monkeypatch.setattr(BatchCache, "resize", watched)
    for i in range(20):
        batch.add(prepared(i, random_ids(9, i), max_tokens=60))
        batch.turn()
    (group,) = batch.groups
    assert len(group) == 20
    assert copied == [(1, 2), (2, 3), (3, 5), (5, 8), (8, 12), (12, 18), (18, 27)]


def test_room_is_made_at_once_for_all_that_come_and_for_as_many_as_lately(
    make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = make_batch(max_size=64, max_chunk_tokens=1000)
    grown: list[int] = []
    resize = BatchCache.resize

    def watched(self: BatchCache, slots: int, width: int) -> None:
        if slots > self.slots:
            grown.append(slots)
        resize(self, slots, width)

    monkeypatch.setattr(BatchCache, "resize", watched)
    for i in range(9):  # too different to be prefilled together
        batch.add(prepared(i, random_ids(30 + 25 * i, i), max_tokens=40))
    batch.finish()
    assert grown == [9]
    for i in range(10, 15):  # they come one by one
        batch.add(prepared(i, random_ids(30, i), max_tokens=20))
        batch.turn()
    assert grown == [9, 9]


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_rows_are_moved_between_groups_while_a_step_is_in_flight_and_lose_nothing(
    model: LoadedModel, make_batch: MakeBatch, network: WatchedNetwork, ahead: int
) -> None:
    """A long row makes it worth to part from others that ran together with a middling one."""
    batch = make_batch(model=_light(model, 300), max_chunk_tokens=1000)
    prompts = {i: random_ids(n, i) for i, n in enumerate((6, 8, 90, 95, 600, 630))}
    moves: list[list[list[int]]] = []
    for i, ids in prompts.items():
        batch.add(prepared(i, ids, max_tokens=40))
        for _ in range(ahead):
            batch.turn()
            if _lengths_of(batch) not in moves:
                moves.append(_lengths_of(batch))
    assert any(len(groups) > 1 for groups in moves)
    batch.finish()
    for i, ids in prompts.items():
        assert batch.ids(i) == greedy_with_cache(network.real, ids, 40)


def test_all_moves_of_rows_that_a_batch_can_make_leave_their_tokens_alone(
    model: LoadedModel, make_batch: MakeBatch
) -> None:
    """Rows are moved at random, as no cost would have it, with a step in flight."""
    batch = make_batch(max_chunk_tokens=1000)
    chance = np.random.default_rng(17)
    work = [
        prepared(i, random_ids(5 + 9 * i, i), max_tokens=60, how=_NO_COUNTING[i % 3])
        for i in range(6)
    ]
    batch.add(*work)
    for _ in range(5):
        batch.turn(chunks=5)
    for _ in range(25):
        batch.turn()
        rows = [row for group in batch.groups for row in group.rows]
        chosen = [row for row in rows if chance.random() < 0.4]
        homes = [None, *batch.groups]
        batch.batch._decoding._gather(chosen, homes[int(chance.integers(len(homes)))])
    batch.finish()
    _assert_as_alone(batch, model, work)


# Preemption.


@pytest.mark.parametrize("ways", [_WAYS[:2], _WAYS[2:4], [_WAYS[4], _WAYS[3]]], ids=range(3))
def test_with_memory_for_one_and_a_half_each_gets_what_it_gets_alone(
    model: LoadedModel, make_batch: MakeBatch, ways: list[Sampling]
) -> None:
    """Each begins in one block of tokens and ends in the third."""
    work = [
        prepared(i, random_ids(250 + i, i), max_tokens=265, how=way) for i, way in enumerate(ways)
    ]
    batch = make_batch(max_chunk_tokens=256, budget_bytes=int(5.2 * _block_bytes(model)))
    batch.add(*work)
    batch.finish()
    _assert_as_alone(batch, model, work)
    assert batch.preempted == [1]
    assert batch.accounting.preemptions == 1
    assert batch.batch.held_bytes == 0


def test_a_sequence_that_gave_way_twice_still_gets_what_it_gets_alone(
    model: LoadedModel, make_batch: MakeBatch
) -> None:
    batch = make_batch(max_chunk_tokens=256)
    work = [prepared(i, random_ids(9 + i, i), max_tokens=60, how=_WAYS[2 + i]) for i in range(3)]
    batch.add(*work)
    for count in range(60):
        batch.turn()
        if count % 6 == 5:
            batch.batch.preempt(count // 6 % 3)
    batch.finish()
    assert all(batch.preempted.count(i) >= 2 for i in range(3))
    _assert_as_alone(batch, model, work)


@pytest.mark.parametrize("turns", range(6))
def test_a_sequence_can_give_way_at_every_stage(
    model: LoadedModel, make_batch: MakeBatch, turns: int
) -> None:
    batch = make_batch(max_chunk_tokens=16)
    work = [prepared(i, random_ids(30 + i, i), max_tokens=9, how=_WAYS[3]) for i in range(2)]
    batch.add(*work)
    for _ in range(turns):
        batch.turn()
    batch.batch.preempt(1)
    batch.batch.preempt(99)
    batch.finish()
    _assert_as_alone(batch, model, work)


def test_who_gave_way_can_be_cancelled(model: LoadedModel, make_batch: MakeBatch) -> None:
    batch = make_batch()
    work = [prepared(i, random_ids(9 + i, i), max_tokens=20) for i in range(2)]
    batch.add(*work)
    for _ in range(5):
        batch.turn()
    batch.batch.preempt(0)
    batch.remove(0)
    had = len(batch.ids(0))
    batch.finish()
    assert len(batch.ids(0)) == had < 20
    assert len(batch.ids(1)) == 20


def _make_room(batch: DrivenBatch, size: int) -> None:
    """As if somebody needed so many bytes beyond what is held."""
    batch.batch.release_slack()
    batch.accounting.budget_bytes = batch.accounting.held_bytes
    batch.accounting.ensure_free(lambda: size)
    batch.accounting.budget_bytes = 2**40


def test_the_lowest_priority_gives_way_first_then_the_youngest(
    model: LoadedModel, make_batch: MakeBatch
) -> None:
    batch = make_batch(max_chunk_tokens=100)
    work = []
    for i, priority in enumerate((1, 2, 0, 2, 1)):
        one = prepared(i, random_ids(120, i), max_tokens=30)
        work.append(replace(one, order=replace(one.order, priority=priority)))
    batch.add(*work)
    while not all(map(batch.ids, range(5))):
        batch.turn()
    for gone in ([3], [3, 1], [3, 1, 4], [3, 1, 4, 0], [3, 1, 4, 0]):
        _make_room(batch, _block_bytes(model))
        assert batch.batch.preempted == gone
    assert [claim.sequence for claim in batch.batch.preemption_candidates] == [2]
    batch.finish()
    _assert_as_alone(batch, model, work)


def test_a_sequence_that_was_alone_in_its_group_frees_its_memory_at_once(
    model: LoadedModel, make_batch: MakeBatch
) -> None:
    batch = make_batch(model=_light(model, 10), max_chunk_tokens=1000)
    batch.add(prepared(1, random_ids(300, 1)), prepared(2, random_ids(9, 2)))
    for _ in range(4):
        batch.turn(chunks=5)
    assert len(batch.groups) == 2
    batch.batch.preempt(1)
    assert batch.batch.held_bytes == model.layout.bytes(1, 20)


def test_prompts_that_come_together_to_an_idle_batch_take_no_more_than_the_budget(
    model: LoadedModel, make_batch: MakeBatch
) -> None:
    batch = make_batch(max_chunk_tokens=1000, budget_bytes=int(3.5 * _block_bytes(model)))
    work = [prepared(i, random_ids(9 + i, i), max_tokens=5) for i in range(8)]
    batch.add(*work)
    batch.finish()
    _assert_as_alone(batch, model, work)


def test_no_cache_grows_beyond_the_budget_even_while_a_layer_is_copied(
    model: LoadedModel, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With memory for three rows of two blocks, but not for them and a copy of a layer."""
    budget = int(6.5 * _block_bytes(model))
    batch = make_batch(max_chunk_tokens=256, budget_bytes=budget)
    peaks: list[int] = []
    resize = BatchCache.resize

    def watched(self: BatchCache, slots: int, width: int) -> None:
        grown = self.bytes_at(slots, width) - self.nbytes
        if grown > 0:
            peaks.append(batch.accounting.held_bytes + grown + self.layer_bytes)
        resize(self, slots, width)

    monkeypatch.setattr(BatchCache, "resize", watched)
    work = [prepared(i, random_ids(200, i), max_tokens=65) for i in range(3)]
    batch.add(*work)
    batch.finish()
    assert peaks
    assert max(peaks) <= budget


@pytest.mark.parametrize("seed", range(4))
def test_memory_priorities_groups_and_cancels_all_at_once_change_no_tokens(
    model: LoadedModel, make_batch: MakeBatch, seed: int
) -> None:
    chance = np.random.default_rng([6, seed])
    budget = int(chance.uniform(6, 12) * _block_bytes(model))
    served = _light(model, int(chance.choice([20, 200, 10**6])))
    batch = make_batch(model=served, max_chunk_tokens=128, budget_bytes=budget, max_size=7)
    work = [
        replace(one, order=replace(one.order, priority=int(chance.integers(3))))
        for one in (
            prepared(
                i,
                random_ids(int(chance.choice([1, 20, 200, 240, 255, 300])), i),
                max_tokens=int(chance.integers(1, 60)),
                how=_NO_COUNTING[i % 3],
            )
            for i in range(10)
        )
    ]
    cancelled: set[int] = set()
    for count, one in enumerate(work):
        batch.add(one)
        if count % 5 == 4:
            cancelled.add(count - 3)
            batch.remove(count - 3)
        for _ in range(int(chance.integers(12))):
            batch.turn(chunks=int(chance.integers(3)))
    batch.finish()
    assert batch.batch.held_bytes == 0
    _assert_as_alone(batch, model, [one for one in work if one.order.sequence not in cancelled])


# Models whose layers are not all plain caches.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_rows_of_models_of_every_kind_join_and_leave_and_get_what_mlx_lm_gives_them_alone(
    model: LoadedModel, networks: dict[str, Any], kind: str, seed: int
) -> None:
    chance = np.random.default_rng([7, seed])
    network = networks[kind]
    served = serving(model, network)
    batch = DrivenBatch(served, max_size=4, max_chunk_tokens=48)
    prompts = {
        i: random_ids(length, i) for i, length in enumerate((5, 60, 5, 1, 30, 21, 5, 250, 40))
    }
    removed: set[int] = set()
    for i, ids in prompts.items():
        batch.add(prepared(i, ids, max_tokens=8 + 4 * i))
        for _ in range(int(chance.integers(5))):
            batch.turn()
        if i in (3, 6):
            removed.add(i - 2)
            batch.remove(i - 2)
    batch.finish()
    for i, ids in prompts.items():
        alone = greedy_with_cache(network, ids, 8 + 4 * i)
        assert batch.ids(i) == (alone[: len(batch.ids(i))] if i in removed else alone)
        assert i in removed or len(batch.ids(i)) == 8 + 4 * i


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_models_of_every_kind_move_between_groups_and_give_way(
    model: LoadedModel, networks: dict[str, Any], kind: str
) -> None:
    network = networks[kind]
    served = replace(serving(model, network), memory_bytes=1000)
    batch = DrivenBatch(served, max_chunk_tokens=64)
    prompts = {i: random_ids(length, i) for i, length in enumerate((5, 90, 9, 200, 1))}
    for i, ids in prompts.items():
        batch.add(prepared(i, ids, max_tokens=30))
        for _ in range(4):
            batch.turn()
    chance = np.random.default_rng(8)
    for count in range(12):
        batch.turn()
        rows = [row for group in batch.groups for row in group.rows]
        chosen = [row for row in rows if chance.random() < 0.4]
        homes = [None, *batch.groups]
        if served.layout.allows_batching:
            batch.batch._decoding._gather(chosen, homes[int(chance.integers(len(homes)))])
        if count % 5 == 4:
            batch.batch.preempt(count // 5)
    batch.finish()
    for i, ids in prompts.items():
        assert batch.ids(i) == greedy_with_cache(network, ids, 30)


@pytest.mark.parametrize(
    "kind",
    [
        "sliding windows",
        "convolutions",
        "state spaces",
        "pairs",
        "windows and states",
        "chunked attention",
    ],
)
def test_models_of_every_kind_hold_no_more_than_the_budget(
    model: LoadedModel, networks: dict[str, Any], kind: str
) -> None:
    served = serving(model, networks[kind])
    budget = int(3.4 * served.layout.bytes(1, 256))
    batch = DrivenBatch(served, max_chunk_tokens=128, budget_bytes=budget)
    prompts = {i: random_ids(length, i) for i, length in enumerate((5, 20, 240, 9, 250, 100))}
    for i, ids in prompts.items():
        batch.add(prepared(i, ids, max_tokens=30))
    batch.finish()
    for i, ids in prompts.items():
        assert batch.ids(i) == greedy_with_cache(networks[kind], ids, 30)
