"""Adapters with random weights for the tiny models, as mlx-lm and PEFT write them."""

import json
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.tuner.utils import linear_to_lora_layers
from mlx_lm.utils import load_model

RANK = 4
SCALE = 2.0
KEYS = ["self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj"]
_SPREAD = 0.5


def make_adapter(folder: Path, model: Path, *, kind: str = "lora", seed: int = 3) -> Path:
    """Write the folder of an adapter that changes the answers of a model, as mlx-lm's trainer
    does. The `kind` is mlx-lm's fine_tune_type."""
    folder.mkdir(parents=True)
    parameters = {"rank": RANK, "scale": SCALE, "dropout": 0.1, "keys": KEYS}
    config = {
        "model": str(model), "fine_tune_type": kind, "num_layers": 2, "lora_parameters": parameters
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))
    network, _ = load_model(model)
    network.freeze()
    if kind == "full":
        network.layers[0].mlp.unfreeze()
    else:
        linear_to_lora_layers(network, 2, parameters, use_dora=kind == "dora")
    mx.random.seed(seed)
    trained = cast(list[tuple[str, mx.array]], tree_flatten(network.trainable_parameters()))
    weights = {
        name: array if name.endswith(".m") else mx.random.normal(array.shape) * _SPREAD
        for name, array in trained
    }
    mx.save_safetensors(str(folder / "adapters.safetensors"), weights)
    return folder


def make_peft_adapter(folder: Path, like: Path, **config: Any) -> Path:
    """Write the same adapter as PEFT does; `config` changes its fields."""
    folder.mkdir(parents=True)
    body = json.loads((like / "adapter_config.json").read_text())
    fields = {
        "peft_type": "LORA",
        "base_model_name_or_path": body["model"],
        "r": RANK,
        "lora_alpha": SCALE * RANK,
        "target_modules": [key.rpartition(".")[2] for key in KEYS],
        "bias": "none",
        **config,
    }
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    weights = cast(dict[str, mx.array], mx.load(str(like / "adapters.safetensors")))
    sides = {"lora_a": "lora_A", "lora_b": "lora_B"}
    written = {}
    for name, array in weights.items():
        layer, _, side = name.rpartition(".")
        written[f"base_model.model.{layer}.{sides[side]}.weight"] = mx.contiguous(array.T)
    mx.save_safetensors(str(folder / "adapter_model.safetensors"), written)
    return folder
