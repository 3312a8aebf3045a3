"""Adapters (LoRA, DoRA, or whole fine-tuned layers of a base model): their folders are checked
without MLX and without reading weights.

Two formats: mlx-lm's (`adapter_config.json` with `lora_parameters`, `adapters.safetensors`) and
PEFT's (`adapter_config.json` with `peft_type`, `adapter_model.safetensors`).
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from shared.errors import ModelError
from worker.models.file_reading import read_object
from worker.models.safetensors import tensor_bytes

CONFIG = "adapter_config.json"
_MLX_WEIGHTS = "adapters.safetensors"
_PEFT_WEIGHTS = "adapter_model.safetensors"
_PEFT_PICKLE = "adapter_model.bin"
WEIGHTS = (_MLX_WEIGHTS, _PEFT_WEIGHTS)
_MAX_CONFIG_BYTES = 1_000_000
_MLX_TYPES = ("lora", "dora", "full")
_MAX_ENTRIES = 1000
"""Maximum number of entries that are read of a folder, in a search for adapters."""
_UNSUPPORTED_IN_PEFT = {
    "use_dora": "DoRA in PEFT's format",
    "modules_to_save": "whole layers beside LoRA (modules_to_save)",
    "alpha_pattern": "separate scales for some layers (alpha_pattern)",
    "fan_in_fan_out": "transposed weights (fan_in_fan_out)",
    "trainable_token_indices": "trained tokens (trainable_token_indices)",
    "lora_bias": "trained biases (lora_bias)",
    "target_parameters": "parameters without a layer (target_parameters)",
}
"""Features that mlx-lm's LoRA layers lack, by PEFT's name."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter whose files are complete.

    Attributes:
        weights: the file of weights.
        weight_bytes: bytes of all its tensors.
        base: the model that it was trained on, a path or a Hugging Face id; None if the config
            does not name it.
    """

    folder: Path
    format: Literal["mlx", "peft"]
    config: Mapping[str, Any]
    weights: Path
    weight_bytes: int
    base: str | None = None


def is_weights(name: str) -> bool:
    return name in WEIGHTS


def is_adapter(folder: Path) -> bool:
    """Whether a folder contains an adapter and no model."""
    return (folder / CONFIG).is_file() and not (folder / "config.json").is_file()


def base_of(folder: Path) -> str:
    """Return the model that the adapter in a folder was trained on, a path or a Hugging Face id.

    Raises:
        ModelError: the config does not name it; the message says what to set instead.
    """
    config = read_object(folder / CONFIG, max_bytes=_MAX_CONFIG_BYTES)
    if (base := _named_base(config)) is not None:
        return base
    raise ModelError(
        f"{folder} contains only an adapter, and its {CONFIG} names no base model; set `path` to "
        "the base model and `adapter` to this folder"
    )


def inspect_adapter(folder: Path) -> Adapter:
    """Check the folder of an adapter. Blocks for less than 1 ms.

    Raises:
        ModelError: a file is missing or broken, or adapters of this kind cannot be loaded.
    """
    if not folder.is_dir():
        raise ModelError(f"adapter: {folder} is not a folder")
    config = read_object(folder / CONFIG, max_bytes=_MAX_CONFIG_BYTES)
    is_peft = "peft_type" in config
    weights = folder / (_PEFT_WEIGHTS if is_peft else _MLX_WEIGHTS)
    if not weights.exists() and (folder / _PEFT_PICKLE).exists():
        raise ModelError(
            f"{folder / _PEFT_PICKLE} is a pickle, which is not loaded, as it can run code; save "
            f"the adapter as {_PEFT_WEIGHTS}"
        )
    (_check_peft if is_peft else _check_mlx)(folder, config)
    size_bytes = tensor_bytes(weights)
    return Adapter(
        folder, "peft" if is_peft else "mlx", config, weights, size_bytes, _named_base(config)
    )


def find_unused_adapters(model: Path, named: Path | None) -> list[Path]:
    """Return the adapters in a model's folder, or beside it with this model as their base, other
    than the loaded one. A user may expect that they are loaded."""
    beside = [folder for folder in _folders(model.parent) if _has_base(folder, model)]
    candidates = dict.fromkeys([model, *_folders(model), *beside])
    loaded = named.resolve() if named is not None else None
    return [
        folder
        for folder in candidates
        if (folder / CONFIG).is_file() and folder.resolve() != loaded
    ]


def _check_mlx(folder: Path, config: Mapping[str, Any]) -> None:
    """Raise ModelError if mlx-lm's `load_adapters` could not use the config."""
    kind = config.get("fine_tune_type", "lora")
    if kind not in _MLX_TYPES:
        raise ModelError(
            f"{folder / CONFIG}: fine_tune_type is {kind!r:.80}, not one of {', '.join(_MLX_TYPES)}"
        )
    if kind == "full":
        return
    parameters = config.get("lora_parameters")
    if not isinstance(parameters, dict) or not isinstance(config.get("num_layers"), int):
        raise ModelError(
            f"{folder / CONFIG} has no num_layers and lora_parameters, as mlx-lm writes them, and "
            "no peft_type, as PEFT does"
        )
    missing = [name for name in ("rank", "scale", "dropout") if name not in parameters]
    if missing:
        raise ModelError(f"{folder / CONFIG}: lora_parameters lack {', '.join(missing)}")


def _check_peft(folder: Path, config: Mapping[str, Any]) -> None:
    """Raise ModelError if the adapter cannot be converted to mlx-lm's LoRA layers."""
    if config["peft_type"] != "LORA":
        raise ModelError(
            f"{folder / CONFIG}: peft_type is {config['peft_type']!r:.80}; only LORA is loaded"
        )
    unsupported = [text for name, text in _UNSUPPORTED_IN_PEFT.items() if config.get(name)]
    if config.get("bias", "none") != "none":
        unsupported.append("trained biases (bias)")
    if unsupported:
        raise ModelError(
            f"{folder} has {', '.join(unsupported)}, which cannot be converted; merge it into its "
            "base model with PEFT (merge_and_unload) and serve that"
        )
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or rank < 1 or not isinstance(alpha, int | float):
        raise ModelError(f"{folder / CONFIG} lacks r and lora_alpha")


def _named_base(config: Mapping[str, Any]) -> str | None:
    named = config.get("base_model_name_or_path") or config.get("model")
    return named if isinstance(named, str) and named else None


def _has_base(folder: Path, model: Path) -> bool:
    try:
        config = read_object(folder / CONFIG, max_bytes=_MAX_CONFIG_BYTES)
        base = _named_base(config)
        if base is None:
            return False
        # mlx-lm writes the path as the user typed it, perhaps relative to an unknown folder.
        return Path(base).name == model.name
    except ModelError:
        return False


def _folders(folder: Path) -> list[Path]:
    return sorted(_subfolders(folder))


def _subfolders(folder: Path) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            for _, entry in zip(range(_MAX_ENTRIES), entries, strict=False):
                if entry.is_dir():
                    yield Path(entry.path)
    except OSError:
        return
