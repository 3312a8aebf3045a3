"""Continuous batching of the tiny model, stepped by hand."""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.worker.engine.samplings import GREEDY, sampling
from tests.worker.engine.watched_network import (
    WatchedNetwork,
    greedy_alone,
    prepared,
    random_ids,
)
from worker.engine.batch import Batch
from worker.engine.decoding import Token
from worker.engine.model import LoadedModel
from worker.engine.prefill import Progress
from worker.engine.prompt import PreparedSequence
from worker.link.messages import Sampling

MakeBatch = Callable[..., Batch]


@pytest.fixture
def make_batch(model: LoadedModel) -> MakeBatch:
    def make(**fields: Any) -> Batch:
        return Batch(model, **{"max_size": 8, "prefill_chunk_tokens": 64, **fields})

    return make


def _finish(batch: Batch) -> dict[int, list[Token]]:
    """All tokens that are still to come, by their sequence."""
    tokens: dict[int, list[Token]] = defaultdict(list)
    idle = 0
    while idle < 3:
        came = batch.decode()
        progress = batch.prefill(0.0)
        idle = 0 if came or progress else idle + 1
        for token in came:
            tokens[token.sequence].append(token)
    return dict(tokens)


def _ids(tokens: Sequence[Token]) -> list[int | None]:
    return [token.token_id for token in tokens]


def _prefilled(network: WatchedNetwork) -> list[tuple[int, ...]]:
    """The forward passes of more than a token a row."""
    return [shape for shape in network.shapes if shape[1] > 1]


# Who goes together.


def test_prompts_of_the_same_length_are_prefilled_together_and_others_are_not(
    make_batch: MakeBatch, network: WatchedNetwork
) -> None:
    batch = make_batch()
    prompts = {i: random_ids(length, i) for i, length in enumerate((7, 9, 7, 12, 9, 7))}
    for i, ids in prompts.items():
        batch.add(prepared(i, ids))
    tokens = _finish(batch)
    assert _prefilled(network) == [(3, 6), (2, 8), (1, 11)]
    for i, ids in prompts.items():
        assert _ids(tokens[i]) == greedy_alone(network, ids, 8)


def test_a_resumed_sequence_goes_with_those_of_its_whole_length(
    make_batch: MakeBatch, network: WatchedNetwork
) -> None:
    batch = make_batch()
    ids, long = random_ids(5, 1), random_ids(8, 2)
    whole = greedy_alone(network, ids, 8)
    batch.add(prepared(1, ids, resumed_ids=whole[:3]))
    batch.add(prepared(2, long))
    tokens = _finish(batch)
    assert _prefilled(network) == [(2, 7)]
    assert _ids(tokens[1]) == whole[3:]
    assert _ids(tokens[2]) == greedy_alone(network, long, 8)


def test_as_many_prompts_go_together_as_fit_into_one_chunk(
    make_batch: MakeBatch, network: WatchedNetwork
) -> None:
    batch = make_batch(prefill_chunk_tokens=30)
    for i in range(7):
        batch.add(prepared(i, random_ids(10, i)))
    _finish(batch)
    assert _prefilled(network) == [(3, 9), (3, 9), (1, 9)]


def test_a_prompt_longer_than_a_chunk_goes_alone(
    make_batch: MakeBatch, network: WatchedNetwork
) -> None:
    batch = make_batch(prefill_chunk_tokens=8)
    for i in range(2):
        batch.add(prepared(i, random_ids(20, i)))
    tokens = _finish(batch)
    assert _prefilled(network) == [(1, 8), (1, 8), (1, 3)] * 2
    assert [_ids(tokens[i]) for i in range(2)] == [
        greedy_alone(network, random_ids(20, i), 8) for i in range(2)
    ]


def test_prompts_of_one_token_are_answered_without_prefill(
    make_batch: MakeBatch, network: WatchedNetwork
) -> None:
    batch = make_batch()
    for i in range(3):
        batch.add(prepared(i, [60 + i], max_tokens=5))
    assert batch.prefill(0.0) == [Progress(i, 0, 1) for i in range(3)]
    assert network.shapes == []
    tokens = _finish(batch)
    assert network.shapes == [(3, 1)] * 5
    for i in range(3):
        assert _ids(tokens[i]) == greedy_alone(network, [60 + i], 5)


# Room.


@pytest.mark.parametrize("max_size", [1, 2, 5])
@pytest.mark.parametrize("lengths", [[6] * 9, [6, 7, 6, 8, 1, 6, 7, 1, 6]], ids=str)
def test_never_more_than_max_size_decode_and_all_are_served(
    make_batch: MakeBatch, network: WatchedNetwork, max_size: int, lengths: list[int]
) -> None:
    batch = make_batch(max_size=max_size)
    prompts = {i: random_ids(length, i) for i, length in enumerate(lengths)}
    for i, ids in prompts.items():
        batch.add(prepared(i, ids, max_tokens=3 + i))
    tokens = _finish(batch)
    widths = [rows for rows, _ in network.shapes]
    assert max(widths) == max_size
    for i, ids in prompts.items():
        assert _ids(tokens[i]) == greedy_alone(network, ids, 3 + i)
        assert tokens[i][-1].finish_reason == "length"


def test_who_waits_for_room_is_not_prefilled_before_there_is_some(
    make_batch: MakeBatch,
) -> None:
    batch = make_batch(max_size=1)
    batch.add(prepared(1, random_ids(6, 1), max_tokens=4))
    batch.add(prepared(2, random_ids(9, 2)))
    assert batch.prefill(math.inf) == [Progress(1, 5, 6)]
    while not any(token.finish_reason for token in batch.decode()):
        assert batch.prefill(math.inf) == []
    assert batch.prefill(math.inf) == [Progress(2, 8, 9)]


# Prefill beside decoding.


def _decoding_and_waiting(
    batch: Batch, waiting: Sequence[PreparedSequence], *, max_tokens: int = 500
) -> None:
    """One sequence decodes, the others wait."""
    batch.add(prepared(100, random_ids(3, 100), max_tokens=max_tokens))
    batch.prefill(math.inf)
    batch.decode()
    for one in waiting:
        batch.add(one)


def test_without_patience_there_is_one_chunk_between_two_steps(
    make_batch: MakeBatch, network: WatchedNetwork
) -> None:
    batch = make_batch(prefill_chunk_tokens=4)
    _decoding_and_waiting(batch, [prepared(1, random_ids(14, 1)), prepared(2, random_ids(3, 2))])
    network.shapes.clear()
    done = []
    for _ in range(5):
        done.append(batch.prefill(0.0))
        batch.decode()
    assert done == [
        [Progress(1, 4, 14)],
        [Progress(1, 8, 14)],
        [Progress(1, 12, 14)],
        [Progress(1, 13, 14)],
        [Progress(2, 2, 3)],
    ]
    steps = [rows for rows, tokens in network.shapes if tokens == 1]
    assert steps == [1, 1, 1, 1, 2, 3]  # the fourth chunk is of one token, too


def test_with_all_patience_everything_that_waits_is_prefilled_before_the_next_step(
    make_batch: MakeBatch,
) -> None:
    batch = make_batch(prefill_chunk_tokens=4)
    _decoding_and_waiting(batch, [prepared(1, random_ids(10, 1)), prepared(2, random_ids(4, 2))])
    progress = batch.prefill(math.inf)
    assert progress == [
        Progress(1, 4, 10),
        Progress(1, 8, 10),
        Progress(1, 9, 10),
        Progress(2, 3, 4),
    ]


def test_prefill_stops_after_the_chunk_that_used_up_the_stall(
    make_batch: MakeBatch, network: WatchedNetwork
) -> None:
    batch = make_batch(prefill_chunk_tokens=4)
    _decoding_and_waiting(batch, [prepared(1, random_ids(60, 1))])
    network.pause_s = 0.04
    chunks = len(batch.prefill(0.1))
    assert 1 <= chunks <= 3
    network.pause_s = 0.0
    assert len(batch.prefill(60.0)) == 15 - chunks


def test_when_nobody_decodes_the_first_tokens_come_before_the_next_prompt(
    make_batch: MakeBatch,
) -> None:
    batch = make_batch(prefill_chunk_tokens=4)
    batch.add(prepared(1, random_ids(10, 1)))
    batch.add(prepared(2, random_ids(7, 2)))
    assert batch.prefill(math.inf)[-1] == Progress(1, 9, 10)
    batch.decode()
    assert [token.sequence for token in batch.decode()] == [1]
    assert batch.prefill(math.inf)[-1] == Progress(2, 6, 7)


def test_an_empty_batch_does_nothing(make_batch: MakeBatch, network: WatchedNetwork) -> None:
    batch = make_batch()
    assert (batch.decode(), batch.prefill(1.0)) == ([], [])
    batch.remove(1)
    assert network.shapes == []


# Ends and removal.


def test_the_models_and_the_requests_end_tokens_end_a_sequence(
    model: LoadedModel, network: WatchedNetwork
) -> None:
    ids = random_ids(6, 10)
    whole = greedy_alone(network, ids, 8)
    assert len(set(whole[:6])) == 6
    own = {1: [whole[2]], 2: [], 3: [whole[5]]}
    ending = replace(model, end_ids=frozenset([whole[4]]))
    batch = Batch(ending, max_size=8, prefill_chunk_tokens=64)
    for i, stop_token_ids in own.items():
        batch.add(prepared(i, ids, stop_token_ids=stop_token_ids))
    tokens = _finish(batch)
    assert {i: _ids(tokens[i]) for i in own} == {
        1: [*whole[:2], None],
        2: [*whole[:4], None],
        3: [*whole[:4], None],
    }


def test_a_resumed_sequence_generates_only_what_is_left(
    make_batch: MakeBatch, network: WatchedNetwork
) -> None:
    ids = random_ids(6, 11)
    whole = greedy_alone(network, ids, 8)
    batch = make_batch()
    batch.add(prepared(1, ids, max_tokens=8, resumed_ids=whole[:7]))
    assert _finish(batch) == {1: [Token(1, whole[7], "length")]}
    assert network.shapes == [(1, 12), (1, 1)]


@pytest.mark.parametrize(
    "way",
    [
        sampling(temperature=1.5, seed=8),
        sampling(frequency_penalty=2.0),
        sampling(repetition_penalty=3.0),
    ],
    ids=["seeded", "frequency", "repetition"],
)
def test_a_resumed_sequence_draws_and_counts_as_if_it_had_never_stopped(
    make_batch: MakeBatch, way: Sampling
) -> None:
    ids = random_ids(6, 12)
    whole = prepared(1, ids, max_tokens=30, how=way)
    undisturbed = make_batch()
    undisturbed.add(whole)
    tokens = _finish(undisturbed)[1]
    resumed_ids = [token.token_id for token in tokens[:20] if token.token_id is not None]
    assert len(resumed_ids) == 20
    resumed = make_batch()
    resumed.add(prepared(1, ids, max_tokens=30, how=way, resumed_ids=resumed_ids))
    assert _finish(resumed)[1] == tokens[20:]


@pytest.mark.parametrize("removed", [[1], [2], [3], [1, 2], [2, 3], [1, 2, 3]], ids=str)
@pytest.mark.parametrize("rounds", range(8), ids=lambda rounds: f"after {rounds} rounds")
def test_sequences_can_be_removed_at_every_stage_and_the_others_do_not_notice(
    make_batch: MakeBatch, network: WatchedNetwork, removed: list[int], rounds: int
) -> None:
    """At first all wait; then 1 and 2 are in prefill, then decode while 3 is in prefill."""
    batch = make_batch(prefill_chunk_tokens=24)
    prompts = {i: random_ids(length, i) for i, length in ((1, 12), (2, 12), (3, 40))}
    for i, ids in prompts.items():
        batch.add(prepared(i, ids, max_tokens=7))
    tokens: dict[int, list[int | None]] = defaultdict(list)
    for _ in range(rounds):
        for token in batch.decode():
            tokens[token.sequence].append(token.token_id)
        batch.prefill(0.0)
    for sequence in [*removed, 99]:
        batch.remove(sequence)
    for sequence, rest in _finish(batch).items():
        assert sequence not in removed
        tokens[sequence] += _ids(rest)
    for i, ids in prompts.items():
        if i not in removed:
            assert tokens[i] == greedy_alone(network, ids, 7)


def test_many_mixed_sequences_get_the_tokens_that_each_gets_alone(
    make_batch: MakeBatch, network: WatchedNetwork
) -> None:
    """They come at any time; some are cancelled; each asks for something else."""
    chance = np.random.default_rng(5)
    ways = [
        GREEDY,
        sampling(temperature=0.9, top_p=0.95, seed=3),
        sampling(temperature=1.2, top_k=20, seed=4, logprobs=2),
        sampling(temperature=0.8, seed=7, repetition_penalty=1.3, frequency_penalty=0.4),
        sampling(presence_penalty=1.0, logit_bias={"65": -100.0}, logprobs=0),
    ]
    work = [
        prepared(
            i,
            random_ids(int(chance.choice([1, 5, 5, 30, 70])), i),
            max_tokens=int(chance.integers(1, 25)),
            how=ways[i % len(ways)],
        )
        for i in range(30)
    ]
    alone: dict[int, list[int | None]] = {}
    for one in work:
        single = make_batch()
        single.add(one)
        alone[one.order.sequence] = _ids(_finish(single)[one.order.sequence])
    batch = make_batch(max_size=6, prefill_chunk_tokens=16)
    together: dict[int, list[int | None]] = defaultdict(list)
    cancelled: set[int] = set()
    network.shapes.clear()
    for count, one in enumerate(work, start=1):
        batch.add(one)
        if chance.random() < 0.15:
            sequence = int(chance.integers(count))
            cancelled.add(sequence)
            batch.remove(sequence)
        for _ in range(int(chance.integers(4))):
            for token in batch.decode():
                together[token.sequence].append(token.token_id)
            batch.prefill(0.0)
    for sequence, rest in _finish(batch).items():
        together[sequence] += _ids(rest)
    assert max(rows for rows, _ in network.shapes) == 6
    assert 0 < len(cancelled) < 10
    for sequence, tokens in alone.items():
        if sequence in cancelled:
            assert together[sequence] == tokens[: len(together[sequence])]
        else:
            assert together[sequence] == tokens
