"""Tiny random networks whose layers are not all plain KV caches, and what each says alone."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models import (
    falcon_h1,
    gemma3_text,
    gpt_oss,
    lfm2,
    llama4,
    mamba2,
    qwen3_next,
    recurrent_gemma,
)
from mlx_lm.models.cache import make_prompt_cache

from tests.worker.engine.expected_tokens import ExpectedTokens, drawn_alone, likeliest
from tests.worker.engine.watched_network import prepared
from worker.engine.batching_verdicts import known_verdict
from worker.engine.caches import CacheLayout
from worker.engine.model import LoadedModel
from worker.engine.output_layer import OutputLayer
from worker.engine.sampling import BatchSampler, SamplingRow
from worker.link.orders import Sampling

VOCABULARY = 258
WINDOW_TOKENS = 24
CHUNK_TOKENS = 48
_SPREAD = 2.0


def sliding_windows() -> Any:
    """Gemma 3: two layers with a window, one that sees all, and one more of each kind."""
    return gemma3_text.Model(
        gemma3_text.ModelArgs(
            model_type="gemma3_text",
            hidden_size=32,
            num_hidden_layers=4,
            intermediate_size=48,
            num_attention_heads=4,
            head_dim=8,
            vocab_size=VOCABULARY,
            num_key_value_heads=2,
            query_pre_attn_scalar=8,
            sliding_window=WINDOW_TOKENS,
            sliding_window_pattern=3,
        )
    )


def convolutions() -> Any:
    """LFM 2: layers of attention and layers of short convolutions, which are recurrent."""
    return lfm2.Model(
        lfm2.ModelArgs(
            model_type="lfm2",
            vocab_size=VOCABULARY,
            hidden_size=32,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=4096,
            norm_eps=1e-5,
            conv_bias=False,
            conv_L_cache=3,
            block_dim=32,
            block_ff_dim=48,
            block_multiple_of=8,
            block_ffn_dim_multiplier=1.0,
            block_auto_adjust_ff_dim=False,
            full_attn_idxs=[1, 3],
        )
    )


def state_spaces() -> Any:
    """Mamba 2: no layer grows with the text."""
    return mamba2.Model(
        mamba2.ModelArgs(
            model_type="mamba2",
            num_heads=4,
            head_dim=16,
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=64,
            state_size=8,
            num_hidden_layers=2,
            layer_norm_epsilon=1e-5,
            conv_kernel=4,
            n_groups=1,
            use_bias=False,
            use_conv_bias=True,
            tie_word_embeddings=True,
            time_step_limit=(0.001, 100.0),
            time_step_rank="auto",
        )
    )


def pairs() -> Any:
    """Falcon H1: each layer has attention and a recurrent state side by side."""
    return falcon_h1.Model(
        falcon_h1.ModelArgs(
            model_type="falcon_h1",
            hidden_size=32,
            intermediate_size=48,
            head_dim=8,
            num_attention_heads=4,
            num_key_value_heads=2,
            num_hidden_layers=2,
            vocab_size=VOCABULARY,
            mamba_d_ssm=32,
            mamba_d_state=8,
            mamba_d_head=8,
            mamba_n_heads=4,
            mamba_n_groups=1,
            mamba_d_conv=4,
        )
    )


def windows_and_states() -> Any:
    """Recurrent Gemma: no layer grows beyond its window."""
    return recurrent_gemma.Model(
        recurrent_gemma.ModelArgs(
            model_type="recurrent_gemma",
            attention_bias=False,
            conv1d_width=4,
            hidden_size=32,
            intermediate_size=48,
            logits_soft_cap=30.0,
            num_attention_heads=4,
            num_hidden_layers=3,
            num_key_value_heads=1,
            rms_norm_eps=1e-6,
            rope_theta=10_000.0,
            attention_window_size=WINDOW_TOKENS,
            vocab_size=VOCABULARY,
            block_types=["recurrent", "attention"],
        )
    )


def windows_with_sinks() -> Any:
    """GPT-OSS: experts, and every other layer with a window shorter than a block."""
    return gpt_oss.Model(
        gpt_oss.ModelArgs(
            hidden_size=64,
            num_hidden_layers=4,
            intermediate_size=64,
            num_local_experts=4,
            num_experts_per_tok=2,
            num_attention_heads=4,
            head_dim=16,
            num_key_value_heads=2,
            vocab_size=VOCABULARY,
            sliding_window=WINDOW_TOKENS // 2,
        )
    )


def linear_attention() -> Any:
    """Qwen 3 Next: experts, and three of four layers with a state that has no length."""
    return qwen3_next.Model(
        qwen3_next.ModelArgs(
            model_type="qwen3_next",
            hidden_size=32,
            num_hidden_layers=4,
            intermediate_size=48,
            num_attention_heads=4,
            linear_num_value_heads=4,
            linear_num_key_heads=2,
            linear_key_head_dim=32,
            linear_value_head_dim=8,
            linear_conv_kernel_dim=3,
            num_experts=4,
            num_experts_per_tok=2,
            decoder_sparse_step=1,
            shared_expert_intermediate_size=16,
            mlp_only_layers=[],
            moe_intermediate_size=16,
            rms_norm_eps=1e-5,
            vocab_size=VOCABULARY,
            num_key_value_heads=2,
            rope_theta=10_000.0,
            partial_rotary_factor=0.5,
            max_position_embeddings=4096,
            head_dim=8,
        )
    )


def chunked_attention(chunk_tokens: int = CHUNK_TOKENS) -> Any:
    """Llama 4: experts, three layers that see the chunk of the text that they are in, and one
    without positions that sees all, the sharper the longer the text."""
    text = {
        "attention_bias": False,
        "attention_chunk_size": chunk_tokens,
        "head_dim": 8,
        "hidden_size": 32,
        "interleave_moe_layer_step": 2,
        "intermediate_size": 48,
        "intermediate_size_mlp": 48,
        "max_position_embeddings": 4096,
        "model_type": "llama4_text",
        "num_attention_heads": 4,
        "num_experts_per_tok": 1,
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "num_local_experts": 4,
        "rms_norm_eps": 1e-5,
        "rope_scaling": None,
        "rope_theta": 10_000.0,
        "use_qk_norm": True,
        "vocab_size": VOCABULARY,
        "attn_temperature_tuning": True,
        "floor_scale": 16,
    }
    return llama4.Model(llama4.ModelArgs(text_config=text, model_type="llama4"))


KINDS: dict[str, Callable[[], Any]] = {
    "sliding windows": sliding_windows,
    "convolutions": convolutions,
    "state spaces": state_spaces,
    "pairs": pairs,
    "windows and states": windows_and_states,
    "windows with sinks": windows_with_sinks,
    "linear attention": linear_attention,
    "chunked attention": chunked_attention,
}
TOGETHER = [kind for kind in KINDS if kind != "chunked attention"]
"""Those whose rows can share a cache."""


def random_network(kind: str) -> Any:
    """With weights so wide that answers vary."""
    mx.random.seed(7)
    network = KINDS[kind]()
    parameters = cast(list[tuple[str, mx.array]], tree_flatten(network.parameters()))
    network.update(
        tree_unflatten(
            [
                (name, array * _SPREAD if name.endswith("proj.weight") else array)
                for name, array in parameters
            ]
        )
    )
    mx.eval(network.parameters())
    return network


def serving(model: LoadedModel, network: Any, *, batches_rows: bool | None = None) -> LoadedModel:
    """A loaded model with another network behind it; its rows are served as is known of it, unless
    that is told."""
    weights = cast(list[tuple[str, mx.array]], tree_flatten(network.parameters()))
    if batches_rows is None:
        verdict = known_verdict(network)
        batches_rows = verdict is None or verdict.batching == "together"
    layout = CacheLayout(network, batches_rows)
    return replace(
        model,
        network=network,
        layout=layout,
        output=OutputLayer.of(network, layout),
        memory_bytes=sum(array.nbytes for _, array in weights),
    )


def greedy_with_cache(network: Any, ids: Sequence[int], count: int) -> ExpectedTokens:
    """What mlx-lm's own cache gives for one sequence alone."""
    cache = make_prompt_cache(network)
    logits = network(mx.array([list(ids)]), cache=cache)
    steps = []
    for _ in range(count):
        steps.append((cast(int, mx.argmax(logits[0, -1]).item()), logits[0, -1]))
        logits = network(mx.array([[steps[-1][0]]]), cache=cache)
    return likeliest(steps)


def drawn_with_cache(network: Any, ids: Sequence[int], count: int, how: Sampling) -> ExpectedTokens:
    """What is drawn from what mlx-lm's own cache gives for one sequence alone."""
    cache = make_prompt_cache(network)
    sampler = BatchSampler()
    sampler.extend([SamplingRow(how, ids)])
    tokens = mx.array([list(ids)], dtype=mx.uint32)
    answer: list[int] = []
    for _ in range(count):
        logits = network(tokens, cache=cache)[:, -1]
        drawn, _ = sampler.sample(logits, tokens[:, -1])
        answer.append(cast(int, drawn.item()))
        tokens = drawn[:, None]
    return drawn_alone(network, prepared(0, list(ids), how=how), answer)
