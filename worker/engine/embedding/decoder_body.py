"""Bodies of language models that embed texts: Qwen 3 and Gemma 3, of mlx-lm's layers.

The definitions: Zhang et al. 2025, arXiv:2506.05176 (Qwen3-Embedding: causal, last token);
Schechter Vera et al. 2025, arXiv:2509.20354 (EmbeddingGemma: attention to both sides);
transformers/models/gemma3/configuration_gemma3.py for the window.
"""

from collections.abc import Mapping
from typing import Any, cast

import mlx.core as mx
from mlx_lm.models import gemma3_text, qwen3

from shared.errors import ModelError
from worker.engine.embedding.attention_masks import padding_mask, window_mask
from worker.engine.embedding.config_values import positive_int
from worker.engine.embedding.layer_types import FULL, SLIDING, layer_types, rope_theta
from worker.engine.embedding.token_batch import TokenBatch

_GEMMA_PATTERN = 6


class Qwen3Body(qwen3.Qwen3Model):  # type: ignore[misc]
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(qwen3.ModelArgs.from_dict(config))
        _add_limits(self, config)

    def __call__(self, batch: TokenBatch) -> mx.array:
        """Return the hidden states: (rows, length, hidden_size). Attention is causal, so tokens do
        not see the padding on their right."""
        return cast(mx.array, super().__call__(batch.ids))


class Gemma3Body(gemma3_text.Gemma3Model):  # type: ignore[misc]
    """Attributes:
    reach: how many positions a sliding layer sees to each side.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        if config.get("use_bidirectional_attention") is not True:
            raise ModelError("gemma3_text without use_bidirectional_attention is not supported")
        super().__init__(gemma3_text.ModelArgs.from_dict(_gemma_arguments(config)))
        _add_limits(self, config)
        self.reach = self.window_size // 2

    def __call__(self, batch: TokenBatch) -> mx.array:
        """Return the hidden states: (rows, length, hidden_size)."""
        masks = {False: padding_mask(batch), True: window_mask(batch, self.reach)}
        hidden = self.embed_tokens(batch.ids)
        hidden = hidden * mx.array(self.hidden_size**0.5, hidden.dtype)
        for layer in self.layers:
            hidden = layer(hidden, masks[layer.self_attn.is_sliding])
        return cast(mx.array, self.norm(hidden))


def _add_limits(body: Any, config: Mapping[str, Any]) -> None:
    body.hidden_size = positive_int(config, "hidden_size")
    body.vocabulary_size = positive_int(config, "vocab_size")
    body.max_length = positive_int(config, "max_position_embeddings")
    body.padding_id = 0  # any will do, since no token sees padding


def _gemma_arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    """Convert what transformers 5 writes into what mlx-lm reads: a pattern instead of layer types,
    and one theta for each layer type."""
    layers = positive_int(config, "num_hidden_layers")
    pattern = positive_int(
        config,
        "sliding_window_pattern",
        positive_int(config, "_sliding_window_pattern", _GEMMA_PATTERN),
    )
    types = layer_types(config, layers, _by_pattern(layers, pattern))
    pattern = types.index(FULL) + 1 if FULL in types else layers + 1
    if types != _by_pattern(layers, pattern):
        raise ModelError("layer_types does not repeat one pattern, so it is not supported")
    return {
        **config,
        "sliding_window_pattern": pattern,
        "rope_scaling": None,
        "rope_theta": rope_theta(config, FULL, "rope_theta", 1_000_000.0),
        "rope_local_base_freq": rope_theta(config, SLIDING, "rope_local_base_freq", 10_000.0),
    }


def _by_pattern(layers: int, pattern: int) -> tuple[str, ...]:
    return tuple(SLIDING if (index + 1) % pattern else FULL for index in range(layers))
