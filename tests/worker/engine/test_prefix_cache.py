"""What is kept of texts changes no answer, for every layout of caches: beside cold runs."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tiers import examples
from tests.worker.engine.driven_batch import TOKEN_S, DrivenBatch, ids_alone, steady
from tests.worker.engine.kept_texts import KeptTexts
from tests.worker.engine.other_models import KINDS
from tests.worker.engine.samplings import GREEDY
from tests.worker.engine.watched_network import WatchedNetwork, prepared, random_ids
from worker.engine.kv_block_store import KV_MEMORY_DISABLED, KVBlockStore
from worker.engine.model import LoadedModel
from worker.engine.prefill_cost import PrefillCost
from worker.engine.prompt import PreparedSequence
from worker.link.orders import Sampling

BLOCK = 16
SEEDED = replace(GREEDY, temperature=0.8, top_p=0.95, seed=7)

ALL_KINDS = ["attention", *KINDS]


def prefilled_tokens(model: LoadedModel) -> int:
    """In all passes of more than one token since this was asked last."""
    network = model.network
    assert isinstance(network, WatchedNetwork)
    tokens = sum(rows * count for rows, count in network.shapes if count > 1)
    network.shapes.clear()
    return tokens


@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize("how", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_a_next_turn_computes_only_what_is_new(
    models: dict[str, LoadedModel], kind: str, how: Sampling
) -> None:
    model = models[kind]
    kept = KeptTexts(model, block_tokens=BLOCK)
    said: list[int] = []
    for turn, length in enumerate((150, 9, 9, 9)):
        before = len(said)
        said += random_ids(length, turn)
        (answer,) = kept.answers(prepared(turn, list(said), how=how, max_tokens=12))
        said += answer
        # The last token of an answer was never fed.
        assert kept.batch.restored.get(turn, 0) == max(0, before - 1)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_prompt_that_was_there_before_needs_no_prefill(
    models: dict[str, LoadedModel], kind: str
) -> None:
    model = models[kind]
    kept = KeptTexts(model, block_tokens=BLOCK)
    ids = random_ids(100, 3)
    kept.answers(prepared(0, ids))
    prefilled_tokens(model)
    kept.answers(prepared(1, ids), compare=False)
    assert prefilled_tokens(model) == 0
    assert kept.batch.restored == {1: 99}


def test_what_many_begin_with_is_computed_once(models: dict[str, LoadedModel]) -> None:
    model = models["attention"]
    kept = KeptTexts(model, block_tokens=BLOCK, max_size=32)
    system = random_ids(200, 1)
    sequences = [prepared(i, system + random_ids(5 + i % 3, 100 + i)) for i in range(32)]
    prefilled_tokens(model)
    kept.answers(*sequences, compare=False)
    longest_own = 7
    assert prefilled_tokens(model) <= 200 + 32 * longest_own
    assert all(tokens >= 200 for tokens in kept.batch.restored.values())
    assert len(kept.batch.restored) == 31


def test_prompts_that_begin_alike_do_not_wait_for_each_other_where_nothing_is_kept(
    models: dict[str, LoadedModel],
) -> None:
    memory = KVBlockStore(KV_MEMORY_DISABLED, lambda _: None)
    batch = DrivenBatch(models["attention"], max_chunk_tokens=256, kv_memory=memory)
    begin = random_ids(40, 1)
    batch.add(*(prepared(i, begin + random_ids(5, i)) for i in range(3)))
    batch.turn()
    assert [len(group) for group in batch.groups] == [3]


def test_the_choices_of_one_prompt_are_prefilled_once(
    models: dict[str, LoadedModel],
) -> None:
    model = models["attention"]
    kept = KeptTexts(model, block_tokens=BLOCK)
    ids = random_ids(90, 5)
    prefilled_tokens(model)
    hows = [replace(SEEDED, seed=seed) for seed in range(4)]
    kept.answers(*(prepared(i, ids, how=how) for i, how in enumerate(hows)), compare=False)
    assert prefilled_tokens(model) == 90


TURNS = st.lists(
    st.tuples(
        st.integers(0, 3),  # which conversation
        st.integers(1, 40),  # new tokens
        st.integers(1, 20),  # of the answer
        st.booleans(),  # seeded
    ),
    min_size=2,
    max_size=8,
)


@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize("tier", ["memory", "disk", "restarts", "hardly any memory"])
@settings(max_examples=examples(3, 12), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=TURNS, begin=st.integers(0, 60), chance=st.randoms(use_true_random=False))
def test_answers_are_those_of_cold_runs(
    models: dict[str, LoadedModel],
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    tier: str,
    turns: list[tuple[int, int, int, bool]],
    begin: int,
    chance: Random,
) -> None:
    """Conversations with a common beginning, several of them at once in one batch."""
    model = models[kind]
    folder = None if tier == "memory" else tmp_path_factory.mktemp("kv")
    few = 40_000 if tier == "hardly any memory" else 2**40
    kept = KeptTexts(model, block_tokens=BLOCK, folder=folder, memory_bytes=few)
    system = random_ids(begin, 1)
    texts = [list(system) for _ in range(4)]
    number = 0
    while turns:
        count = chance.randint(1, 3)
        together, turns = turns[:count], turns[count:]
        sequences: dict[int, PreparedSequence] = {}
        for which, new, answer, seeded in together:
            texts[which] += random_ids(new, number)
            how = replace(SEEDED, seed=number) if seeded else GREEDY
            sequences[which] = prepared(number, list(texts[which]), how=how, max_tokens=answer)
            number += 1
        answers = kept.answers(*sequences.values())
        for which, answered in zip(sequences, answers, strict=True):
            texts[which] += answered
        if tier == "disk":
            kept.forget_memory()
        elif tier == "restarts":
            kept.restart()
    kept.close()


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_who_is_restored_joins_a_running_batch(models: dict[str, LoadedModel], kind: str) -> None:
    model = models[kind]
    kept = KeptTexts(model, block_tokens=BLOCK)
    ids = random_ids(130, 8)
    (answer,) = kept.answers(prepared(0, ids, max_tokens=30))
    running = [prepared(i, random_ids(20 * i, i), max_tokens=60) for i in (1, 2, 3)]
    late = prepared(9, ids + answer + random_ids(3, 9), max_tokens=30)
    kept.batch.add(*running)
    groups = 1 if model.layout.allows_batching else len(running)
    for _ in range(12 * groups):
        kept.batch.turn()
    assert len(kept.batch.ids(1)) > 5
    kept.batch.add(late)
    kept.batch.finish()
    for sequence in (*running, late):
        assert kept.batch.ids(sequence.order.sequence) == ids_alone(model, sequence)
    assert kept.batch.restored[9] == len(ids) + len(answer) - 1


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_who_gave_way_comes_back_without_prefill(models: dict[str, LoadedModel], kind: str) -> None:
    model = models[kind]
    kept = KeptTexts(model, block_tokens=BLOCK)
    sequences = [prepared(i, random_ids(40 + i, i), max_tokens=50) for i in (1, 2)]
    kept.batch.add(*sequences)
    for _ in range(25):
        kept.batch.turn()
    prefilled_tokens(model)
    kept.batch.read_ahead()
    kept.batch.batch.preempt(2)
    kept.batch.finish()
    assert prefilled_tokens(model) == 0
    for sequence in sequences:
        assert kept.batch.ids(sequence.order.sequence) == ids_alone(model, sequence)


def test_a_cancelled_prompt_leaves_what_was_computed_of_it(
    models: dict[str, LoadedModel],
) -> None:
    model = models["attention"]
    kept = KeptTexts(model, block_tokens=BLOCK)
    ids = random_ids(200, 4)
    kept.batch.add(prepared(1, ids))
    kept.batch.prefill()
    kept.batch.remove(1)
    kept.answers(prepared(2, ids))
    assert kept.batch.restored[2] == 64


def test_nothing_is_held_for_anybody_once_all_have_ended(
    models: dict[str, LoadedModel], tmp_path: Path
) -> None:
    kept = KeptTexts(models["attention"], block_tokens=BLOCK, folder=tmp_path / "kv")
    ids = random_ids(100, 4)
    kept.answers(prepared(0, ids), prepared(1, ids), prepared(2, random_ids(40, 1)))
    kept.batch.add(prepared(3, ids), prepared(4, random_ids(90, 9)))
    kept.batch.turn()
    kept.batch.remove(3)
    kept.batch.remove(4)
    kept.settle()
    memory = kept.memory
    assert all(block.users == block.holders == 0 for block in memory.tree)
    memory.limit(0)
    assert memory.memory.held_bytes == 0
    kept.close()


def test_what_running_rows_need_is_taken_from_what_is_kept(
    models: dict[str, LoadedModel],
) -> None:
    model = models["attention"]
    budget = 4 * 256 * model.layout.token_bytes
    kept = KeptTexts(model, block_tokens=BLOCK, budget_bytes=budget)
    for number in range(6):
        kept.answers(prepared(number, random_ids(200, number), max_tokens=60))
        held = kept.memory.memory.held_bytes + kept.batch.accounting.held_bytes
        assert 0 < kept.memory.memory.held_bytes
        assert held <= budget
    assert kept.memory.memory.evictions > 0
    assert kept.batch.preempted == []


def test_texts_of_another_model_are_none_of_this_one(
    models: dict[str, LoadedModel], tmp_path: Path
) -> None:
    kept = KeptTexts(models["attention"], block_tokens=BLOCK, folder=tmp_path / "kv")
    ids = random_ids(100, 4)
    kept.answers(prepared(0, ids))
    other = replace(models["attention"], fingerprint="of other weights")
    kept.restart(other)
    kept.answers(prepared(1, ids))
    assert kept.batch.restored == {}
    kept.restart(models["attention"])
    kept.answers(prepared(2, ids))
    assert kept.batch.restored == {2: 96}
    kept.close()


def test_as_many_go_together_as_the_time_holds_behind_what_is_kept(
    model: LoadedModel, network: WatchedNetwork
) -> None:
    """There a token takes twice as long."""
    slower_later = steady(model, overhead_tokens=20)
    for _ in range(30):
        PrefillCost.record_pass(
            slower_later.prefill_speed, tokens=100, context=300, seconds=220.5 * TOKEN_S
        )
    kept = KeptTexts(slower_later, block_tokens=16)
    begin = random_ids(320, 1)
    kept.answers(prepared(0, begin), compare=False)
    network.shapes.clear()
    kept.batch.add(*(prepared(1 + each, begin + random_ids(20, each)) for each in range(6)))
    kept.batch.prefill(seconds=(20.5 + 2 * 45) * TOKEN_S)
    assert [rows for rows, _ in network.shapes] == [2]
    kept.close()
