"""32 rows of mixed length on each kind of cache: each gets what it gets alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlx.nn.layers.quantized import quantize

from shared.ids import ModelId
from tests.tiers import long_form
from tests.worker.engine.driven_batch import steady
from tests.worker.engine.kept_texts import KeptTexts
from tests.worker.engine.other_models import KINDS, greedy_with_cache, random_network, serving
from tests.worker.engine.unusual_networks import unusual_network
from tests.worker.engine.watched_network import prepared, random_ids
from worker.engine.model import LoadedModel, load_model
from worker.link.orders import LoadModel

_LENGTHS = [
    1, 2, 3, 5, 9, 15, 16, 17, 23, 24, 25, 31, 33, 40, 47, 48,
    49, 63, 65, 80, 97, 100, 128, 130, 200, 231, 240, 250, 255, 256, 257, 420,
]  # fmt: skip
"""Around the borders of blocks, windows and chunks."""
_TOKENS = 12
_BLOCK = 16


_UNUSUAL = {
    "MLA": "deepseek_v3",
    "grouped masks": "gemma2",
    "no attention": "nemotron-nas",
    "values of no size": "minimax_m3_vl",
    "kept whole": "deepseek_v41",
}
_ALL = ["plain", "quantised weights", *KINDS, *_UNUSUAL]
_SHORT = [
    "plain", "quantised weights", "sliding windows", "chunked attention", "state spaces",
    "linear attention", "MLA",
]  # fmt: skip


@pytest.mark.parametrize("kind", [kind if kind in _SHORT else long_form(kind) for kind in _ALL])
def test_rows_of_mixed_length_get_what_mlx_lm_gives_each_alone(
    loaded_model: LoadedModel, tiny_model: Path, kind: str
) -> None:
    network = _network(kind, tiny_model)
    model = serving(steady(replace(loaded_model, end_ids=frozenset())), network)
    kept = KeptTexts(model, block_tokens=_BLOCK, max_size=32)
    prompts = [random_ids(length, length) for length in _LENGTHS]
    said_before = range(1, 32, 4)
    for i in said_before:
        (answer,) = kept.answers(prepared(i, prompts[i], max_tokens=9), compare=False)
        prompts[i] = prompts[i] + answer + [7]
    kept.batch.add(*(prepared(100 + i, ids, max_tokens=_TOKENS) for i, ids in enumerate(prompts)))
    while sum(map(len, kept.batch.groups)) < len(prompts):
        kept.batch.turn(chunks=100)
    kept.squeeze(0.6)
    kept.answers()
    assert len(kept.batch.preempted) > 3
    again = {100 + i for i in said_before} & kept.batch.restored.keys()
    assert 2 * len(again) >= len(said_before)  # others went with one that was new
    for i, ids in enumerate(prompts):
        assert kept.batch.ids(100 + i) == greedy_with_cache(network, ids, _TOKENS), _LENGTHS[i]


def _network(kind: str, tiny_model: Path) -> Any:
    if kind in KINDS:
        return random_network(kind)
    if kind in _UNUSUAL:
        return unusual_network(_UNUSUAL[kind])
    network = load_model(LoadModel(ModelId("tiny"), str(tiny_model))).network
    if kind == "quantised weights":
        quantize(network, group_size=32, bits=4)
    return network
