"""A model with chunked attention says what mlx-lm says, each sequence in a cache of its own."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.generate import generate_step

from shared.ids import ModelId
from tests.worker.engine.driven_batch import DrivenBatch, ids_alone, steady
from tests.worker.engine.expected_tokens import ExpectedTokens, likeliest
from tests.worker.engine.kept_texts import KeptTexts
from tests.worker.engine.other_models import (
    CHUNK_TOKENS,
    chunked_attention,
    drawn_with_cache,
    random_network,
    serving,
)
from tests.worker.engine.samplings import sampling
from tests.worker.engine.watched_network import WatchedNetwork, prepared, random_ids
from worker.engine.caches import Cache, leaves
from worker.engine.chunked_attention_cache import ChunkedAttentionCache
from worker.engine.model import LoadedModel, load_model
from worker.link.orders import LoadModel

C = CHUNK_TOKENS
BLOCK = 16
_SEEDED = sampling(temperature=0.9, top_p=0.95, seed=5)


@pytest.fixture(scope="module")
def chunked() -> Any:
    return random_network("chunked attention")


@pytest.fixture
def model(loaded_model: LoadedModel, chunked: Any) -> LoadedModel:
    """With a network that counts its passes."""
    served = serving(replace(steady(loaded_model), end_ids=frozenset()), chunked)
    return replace(served, network=WatchedNetwork(chunked))


def _generated(network: Any, ids: Sequence[int], count: int, step: int) -> ExpectedTokens:
    """By mlx-lm, greedily, with so many prompt tokens at a time."""
    steps = generate_step(mx.array(list(ids)), network, max_tokens=count, prefill_step_size=step)
    return likeliest(steps)


@pytest.mark.parametrize("step", [20, C, 128])
@pytest.mark.parametrize("length", [1, 2, C - 1, C, C + 1, C + 2, 2 * C, 2 * C + 1, 3 * C + 20])
def test_answers_across_chunks_are_those_of_mlx_lm_with_the_same_prefill_step(
    model: LoadedModel, chunked: Any, length: int, step: int
) -> None:
    ids = random_ids(length, 1)
    batch = DrivenBatch(model, max_chunk_tokens=step)
    batch.add(prepared(1, ids, max_tokens=C + 10))
    batch.finish()
    assert batch.ids(1) == _generated(chunked, ids, C + 10, step)


@pytest.mark.parametrize("length", [9, C, 2 * C + 1])
def test_seeded_answers_are_what_is_drawn_from_what_mlx_lm_computes(
    model: LoadedModel, chunked: Any, length: int
) -> None:
    ids = random_ids(length, 2)
    sequence = prepared(1, ids, max_tokens=C + 10, how=_SEEDED)
    assert ids_alone(model, sequence) == drawn_with_cache(chunked, ids, C + 10, _SEEDED)


def test_sequences_take_turns_each_in_a_cache_of_its_own(model: LoadedModel) -> None:
    batch = DrivenBatch(model, max_size=6)
    work = [
        prepared(i, random_ids(20, i), max_tokens=40, how=replace(_SEEDED, seed=i))
        for i in range(6)
    ]
    batch.add(*work)
    for _ in range(20):
        batch.turn(chunks=2)
    assert [len(group) for group in batch.groups] == [1] * 6
    batch.finish()
    network = model.network
    assert isinstance(network, WatchedNetwork)
    assert {rows for rows, _ in network.shapes} == {1}
    for one in work:
        assert batch.ids(one.order.sequence) == ids_alone(model, one)


def _chunk_bytes(cache: Cache) -> int:
    return sum(leaf.nbytes for leaf in leaves(cache) if isinstance(leaf, ChunkedAttentionCache))


def test_chunks_take_no_more_than_the_layout_says_and_at_their_end_that_much(
    model: LoadedModel,
) -> None:
    batch = DrivenBatch(model, max_chunk_tokens=20)
    batch.add(prepared(1, random_ids(C + 5, 1), max_tokens=2 * C))
    taken = []
    while batch.busy:
        batch.turn()
        caches = [group.cache.layers for group in batch.groups]
        caches += [job.cache for job in batch.batch._prompts.jobs]
        taken += list(map(_chunk_bytes, caches))
    args = model.network.args.text_config
    number_bytes, layers = 4, args.num_hidden_layers * 3 // 4
    chunk_bytes = 2 * C * args.num_key_value_heads * args.head_dim * number_bytes
    assert max(taken) == model.layout.row_bytes == layers * chunk_bytes


def test_a_long_chunk_is_charged_for_as_far_as_it_is_there(model: LoadedModel) -> None:
    served = serving(model, chunked_attention(chunk_tokens=600))
    layout = served.layout
    batch = DrivenBatch(served, max_chunk_tokens=100)
    batch.add(prepared(1, random_ids(300, 1), max_tokens=400))
    charged = set()
    while batch.busy:
        batch.turn()
        for group in batch.groups:
            charges = group.cache.nbytes - layout.token_bytes * group.cache.width
            assert _chunk_bytes(group.cache.layers) <= charges
            charged.add(charges)
        for job in batch.batch._prompts.jobs:
            charges = job.reserved_bytes - layout.token_bytes * 512
            assert _chunk_bytes(job.cache) <= charges
            charged.add(charges)
    assert sorted(charged) == [layout.row_bytes * 512 // 600, layout.row_bytes]
    assert layout.bytes(1, 10) == layout.token_bytes * 256 + layout.row_bytes * 256 // 600


@pytest.mark.parametrize("length", [C - 1, C, C + 1, 2 * C, 3 * C])
def test_texts_are_taken_up_wherever_in_a_chunk_they_stopped(
    model: LoadedModel, tmp_path: Path, length: int
) -> None:
    kept = KeptTexts(model, block_tokens=BLOCK, folder=tmp_path / "kv")
    ids = random_ids(length, 1)
    first = prepared(1, ids, max_tokens=1)
    kept.answers(replace(first, order=replace(first.order, session="s")))
    for number in (2, 3):
        kept.answers(prepared(number, [*ids, *random_ids(3, number)], max_tokens=C))
        assert kept.batch.restored[number] == length
        kept.restart()
    kept.close()


def test_a_folder_with_such_a_model_is_loaded(tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    network = random_network("chunked attention")
    weights = dict(cast(list[tuple[str, mx.array]], tree_flatten(network.parameters())))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    config = {"model_type": "llama4", "text_config": asdict(network.args.text_config)}
    (folder / "config.json").write_text(json.dumps(config))
    loaded = load_model(LoadModel(ModelId("chunked"), str(folder)))
    assert loaded.max_context_tokens == 4096
    assert not loaded.layout.allows_batching
    one = prepared(1, random_ids(C + 3, 1), max_tokens=20)
    answer = ids_alone(replace(loaded, end_ids=frozenset()), one)
    assert answer == _generated(network, one.all_ids, 20, 2048)
