"""Folders that hold no whole model: the engine says which, and goes on with the others."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shared.ids import ModelId
from tests.worker.engine.running_engine import RunningEngine, running_engine
from worker.link.messages import ModelFailed, ModelLoaded

_BROKEN = ModelId("broken")


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Iterator[RunningEngine]:
    with running_engine(tiny_model) as running:
        yield running


def _remove_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:5000])


def _scramble_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\xff" * 4096)


def _cut_tokenizer(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_text(path.read_text()[:100])


def _remove_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def _cut_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": ')


def _name_an_unknown_architecture(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_type": "nonesuch"}))


def _widen_config(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "hidden_size": 128}))


@pytest.mark.parametrize(
    "damage",
    [
        _remove_weights,
        _cut_weights,
        _scramble_weights,
        _cut_tokenizer,
        _remove_config,
        _cut_config,
        _name_an_unknown_architecture,
        _widen_config,
    ],
)
def test_a_damaged_model_fails_with_its_path_and_the_engine_serves_others(
    engine: RunningEngine, tiny_model: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    damage(folder)
    failed = engine.load(folder, _BROKEN)
    assert isinstance(failed, ModelFailed)
    assert failed.model == _BROKEN
    assert str(folder) in failed.message
    assert engine.generate().token_ids
    assert engine.refusal(engine.submit(model=_BROKEN)).code == "model_unavailable"


def test_a_repaired_model_loads(engine: RunningEngine, tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    _remove_weights(folder)
    repaired = ModelId("repaired")
    assert isinstance(engine.load(folder, repaired), ModelFailed)
    shutil.copy(tiny_model / "model.safetensors", folder)
    assert isinstance(engine.load(folder, repaired), ModelLoaded)
    assert engine.generate(model=repaired).token_ids == engine.generate().token_ids
