"""Weights of other types and names, and configs of other versions, give the same vectors."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from tests.worker.engine.embedding.conftest import WriteCase
from tests.worker.engine.embedding.nearness import (
    assert_other_vectors,
    assert_vectors,
    vectors_of,
)
from tests.worker.engine.embedding.random_models import write_json
from tests.worker.engine.embedding.reference_files import reference
from worker.engine.embedding.layer_types import FULL, SLIDING
from worker.engine.embedding.model import EmbeddingModel, load_embedding_model


def types_of(model: EmbeddingModel) -> set[mx.Dtype]:
    network: Any = model.network
    leaves = cast(list[tuple[str, mx.array]], tree_flatten(network.parameters()))
    return {array.dtype for _, array in leaves}


def change_weights(folder: Path, change: Callable[[str, mx.array], dict[str, mx.array]]) -> None:
    path = str(folder / "model.safetensors")
    weights = mx.load(path)
    assert isinstance(weights, dict)
    changed: dict[str, mx.array] = {}
    for name, array in weights.items():
        changed |= change(name, array)
    mx.eval(changed)
    mx.save_safetensors(path, changed, metadata={"format": "pt"})


def change_config(folder: Path, **fields: Any) -> None:
    """Change config.json; a field of `...` is removed."""
    config = {**json.loads((folder / "config.json").read_text()), **fields}
    write_json(folder / "config.json", {k: v for k, v in config.items() if v is not ...})


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
@pytest.mark.parametrize("name", ["bert", "modernbert", "qwen3", "gemma3"])
def test_half_precision_is_computed_in_float32_on_a_cpu(
    name: str, dtype: mx.Dtype, write_case: WriteCase
) -> None:
    folder = write_case(name)
    change_weights(folder, lambda weight, array: {weight: array.astype(dtype)})
    half = vectors_of(load_embedding_model(folder))
    change_weights(folder, lambda weight, array: {weight: array.astype(mx.float32)})
    rounded = vectors_of(load_embedding_model(folder))
    assert np.array_equal(half, rounded)
    assert 0 < np.abs(half - reference(name, "vectors")).max() < 0.05


def test_all_parameters_are_float32_on_a_cpu(write_case: WriteCase) -> None:
    folder = write_case("bert")
    change_weights(folder, lambda weight, array: {weight: array.astype(mx.float16)})
    assert types_of(load_embedding_model(folder)) == {mx.float32}


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("bert", "bert."),
        ("distilbert", "distilbert."),
        ("xlm-roberta", "roberta."),
        ("modernbert", "model."),
        ("qwen3", "model."),
        ("gemma3", "model."),
    ],
)
def test_names_with_and_without_a_prefix(name: str, prefix: str, write_case: WriteCase) -> None:
    folder = write_case(name)
    for change in (
        lambda weight, array: {prefix + weight.removeprefix(prefix): array},
        lambda weight, array: {weight.removeprefix(prefix): array},
    ):
        change_weights(folder, change)
        assert_vectors(load_embedding_model(folder), name)


def test_names_of_older_checkpoints(write_case: WriteCase) -> None:
    folder = write_case("bert")

    def change(weight: str, array: mx.array) -> dict[str, mx.array]:
        old = weight
        if "LayerNorm" in weight:
            old = weight.replace(".weight", ".gamma").replace(".bias", ".beta")
        return {
            f"bert.{old}": array,
            "bert.embeddings.position_ids": mx.arange(128)[None],
            "cls.predictions.bias": mx.zeros((48,)),
        }

    change_weights(folder, change)
    assert_vectors(load_embedding_model(folder), "bert")


def _rope(full: float, sliding: float) -> dict[str, Any]:
    return {
        "full_attention": {"rope_type": "default", "rope_theta": full},
        "sliding_attention": {"rope_type": "default", "rope_theta": sliding},
    }


NEWER: dict[str, dict[str, Any]] = {
    "modernbert": {
        "global_rope_theta": ...,
        "local_rope_theta": ...,
        "global_attn_every_n_layers": ...,
        "rope_parameters": _rope(40000, 500),
        "layer_types": [FULL, SLIDING, SLIDING, FULL, SLIDING],
    },
    "gemma3": {
        "rope_theta": ...,
        "rope_local_base_freq": ...,
        "_sliding_window_pattern": ...,
        "rope_parameters": _rope(20000, 300),
    },
    "qwen3": {
        "rope_theta": ...,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50000},
    },
}


@pytest.mark.parametrize("name", NEWER)
def test_configs_of_transformers_5(name: str, write_case: WriteCase) -> None:
    folder = write_case(name)
    change_config(folder, **NEWER[name])
    assert_vectors(load_embedding_model(folder), name)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("modernbert", {"rope_parameters": _rope(41000, 500)}),
        ("modernbert", {"rope_parameters": _rope(40000, 510)}),
        ("modernbert", {"local_attention": 18}),
        ("gemma3", {"rope_theta": 21000}),
        ("gemma3", {"rope_local_base_freq": 310}),
        ("gemma3", {"sliding_window": 18}),
        ("gemma3", {"layer_types": ..., "_sliding_window_pattern": 2}),
        ("qwen3", {"rope_theta": 51000}),
        ("xlm-roberta", {"pad_token_id": 0}),
        ("bert", {"hidden_act": "gelu_new"}),
    ],
)
def test_the_references_notice_another_config(
    name: str, fields: dict[str, Any], write_case: WriteCase
) -> None:
    folder = write_case(name)
    change_config(folder, **fields)
    assert_other_vectors(load_embedding_model(folder), name)


@pytest.mark.parametrize("name", ["qwen3", "gemma3", "bert"])
def test_quantised_weights(name: str, write_case: WriteCase) -> None:
    """One layer has fewer bits than the others, as in MLX's mixed quantisations."""
    folder = write_case(name)
    prefix = "" if name == "bert" else "model."
    fewer = "encoder.layer.1.intermediate.dense" if name == "bert" else "model.layers.1.mlp.up_proj"

    def change(weight: str, array: mx.array) -> dict[str, mx.array]:
        path = prefix + weight.removeprefix("model.").removesuffix(".weight")
        if array.ndim != 2 or array.shape[1] % 32 or "embeddings" in weight:
            return {prefix + weight.removeprefix("model."): array}
        bits = 6 if path == fewer else 8
        packed, scales, biases = mx.quantize(array.astype(mx.bfloat16), group_size=32, bits=bits)
        return {f"{path}.weight": packed, f"{path}.scales": scales, f"{path}.biases": biases}

    change_weights(folder, change)
    common = {"group_size": 32, "bits": 8}
    change_config(folder, quantization={**common, fewer: {"group_size": 32, "bits": 6}})
    model = load_embedding_model(folder)
    assert types_of(model) == {mx.uint32, mx.float32}
    found, expected = vectors_of(model), reference(name, "vectors")
    assert (found * expected).sum(axis=1).min() > 0.99
    assert_other_vectors(model, name)


@pytest.mark.parametrize("name", ["bert", "distilbert", "modernbert", "qwen3", "gemma3"])
def test_the_padding_id_does_not_matter_but_to_roberta(name: str, write_case: WriteCase) -> None:
    folder = write_case(name)
    change_config(folder, pad_token_id=5)
    assert_vectors(load_embedding_model(folder), name)
