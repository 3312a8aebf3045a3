"""Tiny random networks of mlx-lm's modules whose rows cannot be batched like those of others."""

import json
import shutil
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.utils import _get_classes

from tests.worker.engine.other_models import VOCABULARY, WINDOW_TOKENS

_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCABULARY,
    "rope_theta": 10_000.0,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
_ATTENTION = {"n_heads_in_group": 2, "no_op": False, "replace_with_linear": False}
_SINGLE_HEAD = {**_ATTENTION, "n_heads_in_group": 4}
_NO_ATTENTION = {"n_heads_in_group": None, "no_op": True, "replace_with_linear": False}
_LINEAR = {"n_heads_in_group": None, "no_op": False, "replace_with_linear": True}
_FEED_FORWARD = {"ffn_mult": 1.3125, "no_op": False, "replace_with_linear": False}

CONFIGS: dict[str, dict[str, Any]] = {
    "gemma2": {**_SIZES, "query_pre_attn_scalar": 8},
    "afm7": {
        "vocab_size": VOCABULARY,
        "hidden_dim": 32,
        "num_layers": 4,
        "num_kv_reuse_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
    },
    "gpt_bigcode": {
        "n_embd": 32,
        "n_layer": 2,
        "n_inner": 48,
        "n_head": 4,
        "n_positions": 4096,
        "layer_norm_epsilon": 1e-5,
        "vocab_size": VOCABULARY,
    },
    "minimax_m3_vl": {
        "text_config": {
            **_SIZES,
            "num_experts_per_tok": 2,
            "num_local_experts": 4,
            "shared_intermediate_size": 32,
            "dense_intermediate_size": 32,
            "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
            "sparse_attention_config": {
                "sparse_num_index_heads": 2,
                "sparse_index_dim": 8,
                "sparse_block_size": 16,
                "sparse_topk_blocks": 2,
                "sparse_local_block": 1,
                "sparse_attention_freq": [0, 1, 0, 1],
            },
        },
    },
    "nemotron-nas": {
        **_SIZES,
        "block_configs": [
            {"attention": attention, "ffn": _FEED_FORWARD}
            for attention in (_LINEAR, _ATTENTION, _NO_ATTENTION, _SINGLE_HEAD)
        ],
    },
    "deepseek_v41": {
        **_SIZES,
        "head_dim": 32,
        "q_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "o_groups": 2,
        "o_lora_rank": 8,
        "moe_intermediate_size": 32,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": WINDOW_TOKENS,
        "num_hidden_layers": 3,
        "compress_ratios": [1, 4, 4],
        "kv_source_layer_ids": [0, 1],
        "index_source_layer_ids": [0, 1, 2],
        "index_n_heads": 2,
        "index_head_dim": 32,
        "index_topk": 16,
        "hc_mult": 2,
        "hc_sinkhorn_iters": 2,
    },
    "deepseek_v3": {
        **_SIZES,
        "moe_intermediate_size": 32,
        "n_shared_experts": 1,
        "n_routed_experts": 4,
        "routed_scaling_factor": 1.0,
        "kv_lora_rank": 16,
        "q_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 8,
        "qk_nope_head_dim": 8,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "moe_layer_freq": 1,
        "first_k_dense_replace": 1,
        "attention_bias": False,
    },
}
_SPREAD = 2.0
_NOISE = 0.1


def unusual_network(module: str) -> Any:
    """With weights so wide that answers vary, and no vector of zeros or ones."""
    config = {"model_type": module, **CONFIGS[module]}
    model_class, arguments_class = _get_classes(config)
    mx.random.seed(7)
    network = model_class(arguments_class.from_dict(config))
    parameters = cast(list[tuple[str, mx.array]], tree_flatten(network.parameters()))
    network.update(tree_unflatten([(name, _random(array)) for name, array in parameters]))
    mx.eval(network.parameters())
    return network


def _random(array: mx.array) -> mx.array:
    if array.ndim < 2:
        return array + _NOISE * mx.random.normal(array.shape)
    limit = _SPREAD * float(array.shape[-1]) ** -0.5
    return mx.random.uniform(-limit, limit, array.shape)


def save_unusual(module: str, tiny_model: Path, folder: Path) -> None:
    """A folder with such a model, and the tokenizer of the tiny one."""
    shutil.copytree(tiny_model, folder)
    weights = cast(list[tuple[str, mx.array]], tree_flatten(unusual_network(module).parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), dict(weights), {"format": "mlx"})
    config = json.loads((folder / "config.json").read_text())
    config = {"model_type": module, "eos_token_id": config["eos_token_id"], **CONFIGS[module]}
    (folder / "config.json").write_text(json.dumps(config))
