"""Two models of different families answer while a third one comes and goes."""

import gc
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import psutil
import pytest

from shared.ids import ModelId
from tests.tiers import long_form
from tests.worker.engine.running_engine import TINY, RunningEngine, running_engine
from tests.worker.engine.unusual_networks import save_unusual
from worker.engine.kv_block_store import PrefixCacheConfig
from worker.link.facts import ModelLoaded
from worker.link.orders import UnloadModel

_GEMMA, _THIRD = ModelId("gemma2"), ModelId("third")
_MB = 2**20
_ACTIVE_BYTES = 64 * 1024
"""What the device's last task still holds may differ by so much."""
_RESIDENT_BYTES = 24 * _MB
_SETTLED = 6
"""After so many loads all that is made once is there."""


@pytest.fixture(scope="module")
def engine(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    folder = tmp_path_factory.mktemp("models") / "gemma2"
    save_unusual("gemma2", tiny_model, folder)
    kept = PrefixCacheConfig(block_tokens=16, memory_bytes=4 * _MB)
    with running_engine(tiny_model, kv_memory=kept) as running:
        assert isinstance(running.load(folder, _GEMMA), ModelLoaded)
        yield running


def _unload(engine: RunningEngine) -> None:
    """It is gone once requests for it are refused."""
    engine.give(UnloadModel(_THIRD))
    assert engine.refusal(engine.submit(model=_THIRD)).code == "model_unavailable"


@pytest.mark.parametrize(
    ("module", "times"),
    [("nemotron-nas", 12), long_form("nemotron-nas", 50), long_form("deepseek_v41", 50)],
)
def test_memory_is_flat_and_the_answers_of_the_others_are_the_same(
    engine: RunningEngine, tiny_model: Path, tmp_path: Path, module: str, times: int
) -> None:
    save_unusual(module, tiny_model, tmp_path / "third")
    gc.collect()  # networks of earlier tests would be freed while memory is measured
    answers: dict[ModelId, set[tuple[int, ...]]] = {TINY: set(), _GEMMA: set(), _THIRD: set()}
    active, resident = [], []
    for _ in range(times):
        beside = {model: engine.submit(model=model, max_tokens=40) for model in (TINY, _GEMMA)}
        assert isinstance(engine.load(tmp_path / "third", _THIRD), ModelLoaded)
        beside[_THIRD] = engine.submit(model=_THIRD, max_tokens=8)
        for model, sequence in beside.items():
            answers[model].add(tuple(engine.answer(sequence).token_ids))
        _unload(engine)
        mx.synchronize()
        active.append(mx.get_active_memory())
        resident.append(psutil.Process().memory_info().rss)
    assert {model: len(different) for model, different in answers.items()} == {
        TINY: 1, _GEMMA: 1, _THIRD: 1,
    }  # fmt: skip
    assert max(active[_SETTLED:]) - min(active[_SETTLED:]) <= _ACTIVE_BYTES
    assert max(resident[_SETTLED:]) - resident[_SETTLED] <= _RESIDENT_BYTES
