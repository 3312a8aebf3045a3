"""Models of mlx-lm whose rows cannot be batched like those of others say what they say alone."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.worker.engine.driven_batch import ids_of, steady, tokens_alone
from tests.worker.engine.kept_texts import KeptTexts
from tests.worker.engine.other_models import greedy_with_cache, serving
from tests.worker.engine.unusual_networks import unusual_network
from tests.worker.engine.watched_network import WatchedNetwork, prepared, random_ids
from worker.engine.model import LoadedModel

_BLOCK = 16
_TOKENS = 20
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
        assert ids_of(tokens_alone(model, prepared(0, ids, max_tokens=_TOKENS))) == answer
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
