"""The small models that are judged: one or more for each model module of mlx-lm."""

import ast
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import mlx_lm.models
from mlx_lm.utils import MODEL_ARCHITECTURE_REMAPPING, MODEL_REMAPPING

_DATA = Path(__file__).with_name("configurations.json")
_QUANTISED = ("llama", "qwen3_moe", "qwen3_next")
"""Attention alone, experts, and a hybrid of recurrent layers and attention."""
_BFLOAT16 = ("llama", "gemma3_text", "mamba2", "falcon_h1", "qwen3_5")
"""Without experts: MLX multiplies those in float32 only, on a CPU."""


@dataclass(frozen=True, slots=True)
class Quantisation:
    """As `mlx_lm.utils.quantize_model` takes it."""

    mode: str
    bits: int
    group_size: int


_QUANTISATIONS = {
    "4-bit": Quantisation("affine", 4, 32),
    "8-bit": Quantisation("affine", 8, 32),
    "mxfp4": Quantisation("mxfp4", 4, 32),
}


@dataclass(frozen=True, slots=True)
class Configuration:
    """A small model.

    Attributes:
        name: of the table; the model type, and in brackets what is special.
        config: of its config.json.
        dtype: of its numbers.
        quantisation: of its weights; None where they are not quantised.
    """

    name: str
    config: dict[str, Any]
    dtype: str = "float32"
    quantisation: Quantisation | None = None

    @classmethod
    def from_json(cls, text: str) -> "Configuration":
        fields = json.loads(text)
        quantisation = fields.pop("quantisation")
        return cls(**fields, quantisation=Quantisation(**quantisation) if quantisation else None)

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def module(self) -> str:
        """That of `mlx_lm.models` which serves it."""
        model_type = str(self.config["model_type"])
        for architecture in self.config.get("architectures", []):
            if (model_type, architecture) in MODEL_ARCHITECTURE_REMAPPING:
                return str(MODEL_ARCHITECTURE_REMAPPING[model_type, architecture])
        return str(MODEL_REMAPPING.get(model_type, model_type))


def all_configurations() -> dict[str, Configuration]:
    """By name: those of the data, then the quantised ones and those of half precision."""
    configs: dict[str, dict[str, Any]] = json.loads(_DATA.read_text())
    plain = {name: Configuration(name, config) for name, config in configs.items()}
    variants = [
        replace(plain[name], name=f"{name} ({how})", quantisation=quantisation)
        for name in _QUANTISED
        for how, quantisation in _QUANTISATIONS.items()
    ]
    variants += [
        replace(plain[name], name=f"{name} (bfloat16)", dtype="bfloat16") for name in _BFLOAT16
    ]
    return plain | {variant.name: variant for variant in variants}


def modules_without(configurations: Iterable[Configuration]) -> list[str]:
    """The model modules of the installed mlx-lm for which there is no configuration."""
    return sorted(model_modules() - {configuration.module for configuration in configurations})


def model_modules() -> set[str]:
    """Modules that a `model_type` may name: they define `Model` and `ModelArgs`."""
    folder = Path(next(iter(mlx_lm.models.__path__)))
    return {path.stem for path in folder.glob("*.py") if _is_model(path)}


def _is_model(path: Path) -> bool:
    tree = ast.parse(path.read_text())
    names = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    imported = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return {"Model", "ModelArgs"} <= names | imported
