"""What loading raises, as a sentence that names the file or setting and what to do."""

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from shared.errors import ModelError
from shared.ids import ModelId
from tests.worker.engine.running_engine import running_engine
from worker.engine.load_errors import Stage, loading_error
from worker.engine.model import load_model
from worker.link.facts import ModelFailed
from worker.link.orders import LoadModel

_CONVERSION = "choose another conversion of it, such as one of mlx-community on the hub"


def _error(tiny_model: Path, folder: Path, **config: Any) -> str:
    """Of the tiny model with other fields in its config; a field of `...` is taken away."""
    shutil.copytree(tiny_model, folder)
    body = {**json.loads((folder / "config.json").read_text()), **config}
    kept = {key: value for key, value in body.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(kept))
    return _error_of(folder)


def _error_of(folder: Path) -> str:
    with pytest.raises(ModelError) as raised:
        load_model(LoadModel(ModelId("model"), str(folder)))
    message = raised.value.message
    assert message.startswith(str(folder))
    return message.removeprefix(str(folder)).removeprefix(": ")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": ...}, "config.json has no model_type"),
        (
            {"model_type": "nonesuch"},
            "model_type 'nonesuch' is not supported by the installed mlx-lm 0.",
        ),
        ({"hidden_size": ..., "rms_norm_eps": ...}, "config.json lacks hidden_size and rms_norm"),
        ({"quantization": {"bits": 4}}, "config.json: quantization lacks 'group_size'"),
        ({"num_hidden_layers": 3}, "weights do not fit its config.json: 9 are missing: model.lay"),
        ({"num_hidden_layers": 1}, "9 have no place in the network: model.layers.1.input_layer"),
        ({"hidden_size": 128}, "model.embed_tokens.weight has the shape (258, 64) instead of (258"),
        ({"hidden_size": "wide"}, "cannot build its network from its config.json and weights: "),
    ],
)
def test_a_config_that_is_not_the_weights_says_which_field_or_weight(
    tiny_model: Path, tmp_path: Path, config: dict[str, Any], said: str
) -> None:
    assert said in _error(tiny_model, tmp_path / "model", **config)


def test_of_many_weights_the_first_are_named_and_the_others_counted(
    tiny_model: Path, tmp_path: Path
) -> None:
    error = _error(tiny_model, tmp_path / "model", num_hidden_layers=90)
    assert "792 are missing" in error and error.endswith(" and 789 more") and len(error) < 400


@pytest.mark.parametrize(
    ("quantization", "said"),
    [
        ({"quant_method": "gptq", "bits": 4}, "are quantised with gptq in 4 bits, in a way that"),
        ({"quant_method": "awq", "bits": 8}, "are quantised with awq in 8 bits, in a way that"),
        ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "float-quantized"),
        ({"bits": 4}, "quantization_config has no quant_method"),
    ],
)
def test_weights_that_another_program_quantised_are_named_by_its_method(
    tiny_model: Path, tmp_path: Path, quantization: dict[str, Any], said: str
) -> None:
    error = _error(tiny_model, tmp_path / "model", quantization_config=quantization)
    assert said in error and error.endswith(_CONVERSION)
    assert "bits=" not in error


def test_weights_in_a_quantisation_that_mlx_lm_ignores_are_named_by_it(
    tiny_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (folder / "config.json").write_text(json.dumps(config))
    weights: Any = mx.load(str(folder / "model.safetensors"))
    weights["model.layers.0.mlp.up_proj.weight.absmax"] = mx.zeros(4)
    mx.eval(weights)
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    error = _error_of(folder)
    assert "quantised with bitsandbytes, which mlx-lm 0." in error and error.endswith(_CONVERSION)


def test_an_architecture_that_needs_a_package_names_it_and_the_engine_goes_on(
    tiny_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "olmo"
    shutil.copytree(tiny_model, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "olmo"}))
    with running_engine(tiny_model) as engine:
        failed = engine.load(folder, ModelId("olmo"))
        assert isinstance(failed, ModelFailed)
        assert failed.message == (
            f"{folder}: it needs the package ai2-olmo; install it with: pip install ai2-olmo"
        )
        assert engine.generate().token_ids


def _imported(name: str) -> Exception:
    error = ValueError("Model type x not supported.")
    error.__cause__ = ModuleNotFoundError(f"No module named {name!r}", name=name)
    return error


@pytest.mark.parametrize(
    ("error", "stage", "said"),
    [
        (MemoryError(), "network", "there is not enough memory to load it"),
        (RuntimeError("[malloc] Unable to allocate 9 bytes."), "run", "not enough memory"),
        (RuntimeError("[metal::malloc] Attempting to allocate 9 bytes"), "run", "enough memory"),
        (_imported("einops"), "network", "needs the package einops; install it with: pip"),
        (_imported("mlx_lm.models.llama"), "network", "model_type 'llama' is not supported by"),
        (ImportError("you need `pip install tiktoken`"), "tokenizer", "needs the package tiktoken"),
        (SystemExit(1), "network", "its code ended with SystemExit (1)"),
        (RecursionError(), "tokenizer", "one of its JSON files is nested too deeply"),
        (KeyError("added_tokens"), "tokenizer", "its tokenizer cannot be read: 'added_tokens' (K"),
        (ValueError("x\n  y" * 500), "run", "cannot run it: x yx y"),
    ],
)
def test_other_errors_are_sentences_too_in_one_line_of_bounded_length(
    tiny_model: Path, error: BaseException, stage: Stage, said: str
) -> None:
    message = loading_error(error, tiny_model, stage).message
    assert message.startswith(f"{tiny_model}: ") and said in message
    assert "\n" not in message and len(message) < len(str(tiny_model)) + 500


def test_the_tiny_model_itself_is_sound(tiny_model: Path) -> None:
    network = load_model(LoadModel(ModelId("model"), str(tiny_model))).network
    parameters: Any = tree_flatten(network.parameters())
    assert len(parameters) == 20
