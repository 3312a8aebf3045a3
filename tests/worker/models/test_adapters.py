"""The folder of an adapter: accepted when it can be loaded, and otherwise one error that helps."""

import json
from pathlib import Path
from typing import Any

import pytest

from shared.errors import ModelError
from tests.worker.models.model_folders import safetensors, write_adapter, write_model
from worker.models.adapters import base_of, find_unused_adapters, inspect_adapter, is_adapter


def _error(folder: Path) -> str:
    with pytest.raises(ModelError) as raised:
        inspect_adapter(folder)
    return raised.value.message


def test_mlx_lms_and_pefts_are_told_apart_with_their_base_and_bytes(tmp_path: Path) -> None:
    mlx = inspect_adapter(write_adapter(tmp_path / "mlx", model="/models/base"))
    assert (mlx.format, mlx.base, mlx.weight_bytes) == ("mlx", "/models/base", 100)
    peft = inspect_adapter(
        write_adapter(tmp_path / "peft", peft=True, base_model_name_or_path="owner/base")
    )
    assert (peft.format, peft.base, peft.weight_bytes) == ("peft", "owner/base", 100)


@pytest.mark.parametrize(
    ("peft", "config", "said"),
    [
        (False, {"fine_tune_type": "prompt"}, "fine_tune_type is 'prompt', not one of lora, dora"),
        (False, {"lora_parameters": None}, "has no num_layers and lora_parameters"),
        (False, {"num_layers": None}, "has no num_layers and lora_parameters"),
        (False, {"lora_parameters": {"rank": 8}}, "lora_parameters lack scale, dropout"),
        (True, {"peft_type": "IA3"}, "peft_type is 'IA3'; only LORA is loaded"),
        (True, {"use_dora": True}, "DoRA in PEFT's format, which cannot be converted"),
        (True, {"modules_to_save": ["lm_head"]}, "whole layers beside LoRA"),
        (True, {"alpha_pattern": {"q": 1}, "bias": "all"}, "(alpha_pattern), trained biases"),
        (True, {"r": None}, "lacks r and lora_alpha"),
    ],
)
def test_what_cannot_be_loaded_is_refused_with_what_it_is(
    tmp_path: Path, peft: bool, config: dict[str, Any], said: str
) -> None:
    folder = write_adapter(tmp_path / "adapter", peft=peft, **config)
    assert str(folder) in (error := _error(folder)) and said in error


def test_files_that_are_missing_broken_or_unsafe_are_named(tmp_path: Path) -> None:
    assert "is not a folder" in _error(tmp_path / "nowhere")
    folder = write_adapter(tmp_path / "adapter", peft=True)
    weights = folder / "adapter_model.safetensors"
    weights.write_bytes(safetensors(100)[:-1])
    assert f"{weights} is cut short" in _error(folder)
    weights.unlink()
    assert f"{weights} is missing" in _error(folder)
    (folder / "adapter_model.bin").write_bytes(b"pickle")
    assert "adapter_model.bin is a pickle" in _error(folder)
    (folder / "adapter_config.json").write_text("{")
    assert "adapter_config.json is not valid JSON" in _error(folder)


def test_an_adapter_alone_names_its_base_or_says_what_to_set(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "adapter", model="owner/base")
    assert is_adapter(folder) and base_of(folder) == "owner/base"
    (folder / "adapter_config.json").write_text(json.dumps({"num_layers": 2}))
    with pytest.raises(ModelError, match="set `path` to the base model and `adapter` to this"):
        base_of(folder)
    assert not is_adapter(write_model(tmp_path / "model"))


def test_adapters_in_a_models_folder_and_of_it_beside_it_are_found_but_for_the_one_that_is_named(
    tmp_path: Path,
) -> None:
    model = write_model(tmp_path / "llama")
    inside = write_adapter(model / "adapters")
    beside = write_adapter(tmp_path / "tuned", model="mlx-community/llama")
    write_adapter(tmp_path / "other", model="mlx-community/mamba")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "adapter_config.json").write_text("{")
    assert find_unused_adapters(model, None) == [inside, beside]
    assert find_unused_adapters(model, beside) == [inside]
    (model / "adapter_config.json").write_text("{}")
    assert find_unused_adapters(model, inside) == [model, beside]
    assert find_unused_adapters(write_model(tmp_path / "alone"), None) == []
