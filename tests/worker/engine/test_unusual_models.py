"""Models of mlx-lm whose rows cannot be batched like those of others say what they say alone."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.worker.engine.driven_batch import DrivenBatch, ids_alone, steady
from tests.worker.engine.kept_texts import KeptTexts
from tests.worker.engine.other_models import KINDS, greedy_with_cache, serving
from tests.worker.engine.unusual_networks import unusual_network
from tests.worker.engine.watched_network import WatchedNetwork, prepared, random_ids
from worker.engine.caches import Cache, leaf_bytes, leaves
from worker.engine.model import LoadedModel

_BLOCK = 16
_TOKENS = 12
_LENGTHS = [5, 9, 40, 43, 300]
_TOGETHER = ["gemma2", "nemotron-nas"]
_ALONE = ["afm7", "gpt_bigcode", "minimax_m3_vl", "deepseek_v41"]
_MODULES = pytest.mark.parametrize("module", [*_TOGETHER, *_ALONE], scope="module")


@pytest.fixture(scope="module")
def network(module: str) -> Any:
    return unusual_network(module)


@pytest.fixture
def model(loaded_model: LoadedModel, network: Any) -> LoadedModel:
    """With a network that counts its passes."""
    served = serving(steady(replace(loaded_model, end_ids=frozenset())), network)
    return replace(served, network=WatchedNetwork(network))


def _rows(model: LoadedModel) -> set[int]:
    """How many rows its passes had."""
    assert isinstance(model.network, WatchedNetwork)
    return {rows for rows, _ in model.network.shapes}


def _served(kept: KeptTexts, prompts: Sequence[list[int]], first: int) -> list[list[int]]:
    sequences = [prepared(first + i, ids, max_tokens=_TOKENS) for i, ids in enumerate(prompts)]
    return kept.answers(*sequences, compare=False)


@_MODULES
def test_answers_alone_together_again_and_longer_are_those_of_mlx_lm(
    module: str, model: LoadedModel, network: Any
) -> None:
    prompts = [random_ids(length, length) for length in _LENGTHS]
    expected = [greedy_with_cache(network, ids, _TOKENS) for ids in prompts]
    assert len({tuple(answer) for answer in expected}) > 1
    for ids, answer in zip(prompts, expected, strict=True):
        assert ids_alone(model, prepared(0, ids, max_tokens=_TOKENS)) == answer
    kept = KeptTexts(model, block_tokens=_BLOCK)
    assert _served(kept, prompts, 0) == expected
    assert (max(_rows(model)) > 1) == (module in _TOGETHER)
    assert kept.batch.restored == {}
    assert _served(kept, prompts, 10) == expected
    assert kept.batch.restored.keys() == {10, 11, 12, 13, 14}
    longer = [
        ids + answer + random_ids(30, len(ids))
        for ids, answer in zip(prompts, expected, strict=True)
    ]
    assert _served(kept, longer, 20) == [greedy_with_cache(network, ids, _TOKENS) for ids in longer]
    found = [kept.batch.restored[20 + i] for i in range(len(prompts))]
    known = [length + _TOKENS - 1 for length in _LENGTHS]
    if module in _ALONE:
        assert found == known
    else:  # rows that are prefilled together begin where all of them can
        assert all(0 < most <= length for most, length in zip(found, known, strict=True))


@pytest.mark.parametrize("module", ["gemma2"], scope="module")
def test_as_many_rows_as_heads_of_keys_are_not_taken_for_heads(
    model: LoadedModel, network: Any
) -> None:
    prompts = [random_ids(length, length) for length in (9, 43)]
    assert len(prompts) == network.args.num_key_value_heads
    answers = _served(KeptTexts(model, block_tokens=_BLOCK), prompts, 1)
    assert answers == [greedy_with_cache(network, ids, _TOKENS) for ids in prompts]
    assert max(_rows(model)) == 2


@_MODULES
def test_who_gives_way_comes_back_and_goes_on(model: LoadedModel, network: Any) -> None:
    kept = KeptTexts(model, block_tokens=_BLOCK)
    prompts = [random_ids(length, length) for length in (230, 120, 200)]
    kept.batch.add(*(prepared(i, ids, max_tokens=_TOKENS) for i, ids in enumerate(prompts)))
    while sum(map(len, kept.batch.groups)) < len(prompts):
        kept.batch.turn(chunks=20)
    kept.squeeze(0.5)
    kept.answers()
    assert kept.batch.preempted == [2, 1]
    for i, ids in enumerate(prompts):
        assert kept.batch.ids(i) == greedy_with_cache(network, ids, _TOKENS)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_any_kind_can_be_served_alone(
    loaded_model: LoadedModel, networks: dict[str, Any], kind: str
) -> None:
    endless = steady(replace(loaded_model, end_ids=frozenset()))
    served = serving(endless, networks[kind], batches_rows=False)
    model = replace(served, network=WatchedNetwork(networks[kind]))
    kept = KeptTexts(model, block_tokens=_BLOCK)
    prompts = [random_ids(length, length) for length in (9, 70, 71)]
    expected = [greedy_with_cache(networks[kind], ids, _TOKENS) for ids in prompts]
    assert _served(kept, prompts, 0) == expected
    assert _served(kept, prompts, 10) == expected
    assert kept.batch.restored == {10: 8, 11: 69, 12: 70}
    longer = [[*ids, *answer, 7] for ids, answer in zip(prompts, expected, strict=True)]
    assert _served(kept, longer, 20) == [
        greedy_with_cache(networks[kind], ids, _TOKENS) for ids in longer
    ]
    assert _rows(model) == {1}


@pytest.mark.parametrize("bits", [None, 8])
@pytest.mark.parametrize(
    "module", ["nemotron-nas", "minimax_m3_vl", "deepseek_v41"], scope="module"
)
def test_texts_are_taken_up_from_disk_after_a_restart(
    model: LoadedModel, network: Any, tmp_path: Path, bits: int | None
) -> None:
    kept = KeptTexts(model, block_tokens=_BLOCK, folder=tmp_path / "kv", bits=bits)
    ids = random_ids(140, 1)
    (answer,) = _served(kept, [ids], 1)
    kept.restart()
    (again,) = _served(kept, [[*ids, *answer, 7]], 2)
    known = len(ids) + len(answer) - 1
    state_at = 128  # whole blocks are on disk; a state that grows is kept at powers of two
    assert kept.batch.restored == {2: known // _BLOCK * _BLOCK if model.layout.shapes else state_at}
    if bits is None:
        assert again == greedy_with_cache(network, [*ids, *answer, 7], _TOKENS)
    kept.close()


def _held_whole(cache: Cache) -> int:
    return sum(leaf_bytes(leaf) for leaf in leaves(cache))


@pytest.mark.parametrize("module", ["deepseek_v41"], scope="module")
def test_what_is_kept_whole_is_charged_for_before_it_is_there(model: LoadedModel) -> None:
    layout = model.layout
    assert layout.token_bytes == layout.opaque_token_bytes > 0
    batch = DrivenBatch(model)
    batch.add(prepared(1, random_ids(250, 1), max_tokens=30))
    charged = set()
    while batch.busy:
        batch.turn()
        for group in batch.groups:
            assert _held_whole(group.cache.layers) <= group.cache.nbytes
            charged.add(group.cache.nbytes)
        for job in batch.batch._prompts.jobs:
            assert _held_whole(job.cache) <= job.reserved_bytes
    assert charged == {layout.bytes(1, 256), layout.bytes(1, 512)}


@pytest.mark.parametrize("module", ["nemotron-nas"], scope="module")
def test_the_longest_text_leaves_room_to_copy_the_largest_layer(model: LoadedModel) -> None:
    layout = model.layout
    heads = [keys[0] for keys, _ in layout.shapes]
    assert heads == [0, 2, 1]
    assert layout.layer_token_bytes * 3 == layout.token_bytes * 2
