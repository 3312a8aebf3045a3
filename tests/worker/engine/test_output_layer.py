"""The logits of single positions against those of all."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.nn.layers.quantized import quantize
from mlx_lm.models import cohere, gemma, llama, minicpm, phi

from tests.rounding import assert_near, own_difference
from tests.worker.engine.other_models import random_network
from worker.engine.caches import CacheLayout, leaves
from worker.engine.output_layer import OutputLayer

_SIZES: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 96,
}  # fmt: skip


def _llama(tied: bool) -> Any:
    return llama.Model(
        llama.ModelArgs(
            model_type="llama", intermediate_size=64, rms_norm_eps=1e-5,
            tie_word_embeddings=tied, **_SIZES,
        )
    )  # fmt: skip


def _quantized(network: Any) -> Any:
    quantize(network, group_size=32, bits=8)
    return network


def _cohere() -> Any:
    """Scales its logits."""
    return cohere.Model(cohere.ModelArgs(
        model_type="cohere", num_key_value_heads=2, intermediate_size=64, logit_scale=0.1,
        use_qk_norm=False, **_SIZES,
    ))  # fmt: skip


def _gemma() -> Any:
    return gemma.Model(gemma.ModelArgs(
        model_type="gemma", num_key_value_heads=2, head_dim=16, intermediate_size=64,
        rms_norm_eps=1e-5, **_SIZES,
    ))  # fmt: skip


def _minicpm() -> Any:
    """Scales what goes into its output layer."""
    return minicpm.Model(minicpm.ModelArgs(
        model_type="minicpm", num_key_value_heads=2, intermediate_size=64, dim_model_base=32,
        rms_norm_eps=1e-5, scale_depth=1.0, scale_emb=1.0, **_SIZES,
    ))  # fmt: skip


def _phi() -> Any:
    """Its output layer has a bias."""
    return phi.Model(phi.ModelArgs(
        model_type="phi", num_key_value_heads=4, intermediate_size=64, max_position_embeddings=99,
        partial_rotary_factor=0.5, rope_theta=1e4, layer_norm_eps=1e-5, **_SIZES,
    ))  # fmt: skip


NETWORKS: dict[str, Callable[[], Any]] = {
    "own weights": lambda: _llama(tied=False),
    "those of the embedding": lambda: _llama(tied=True),
    "own weights, quantized": lambda: _quantized(_llama(tied=False)),
    "those of the embedding, quantized": lambda: _quantized(_llama(tied=True)),
    "cohere": _cohere,
    "gemma": _gemma,
    "minicpm": _minicpm,
    "phi": _phi,
}


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS.keys())
def test_the_logits_of_places_are_those_of_a_whole_pass(make: Callable[[], Any]) -> None:
    mx.random.seed(3)
    network = make()
    layout = CacheLayout(network)
    tokens = mx.random.randint(0, 96, (3, 7))
    before = network(tokens, cache=layout.new_cache(3, 7))
    output = OutputLayer.of(network, layout)
    assert output is not None
    whole = np.array(network(tokens, cache=layout.new_cache(3, 7)))
    np.testing.assert_array_equal(whole, before)
    cache = layout.new_cache(3, 7)
    places = [(2, 6), (0, 0), (1, 3)]
    found = output.logits(network, tokens, cache, places)
    assert found.shape == (3, 96)
    own = own_difference(network, lambda: network(tokens, cache=layout.new_cache(3, 7)))
    assert_near(found, [whole[place] for place in places], own)
    assert all(leaf.offset == 7 for leaf in leaves(cache)), "all tokens are in the cache"


class _OtherBuild:
    """A network with something else in the place of its output layer."""

    def __init__(self, output: Callable[[Any, mx.array], Any]) -> None:
        self._real = _llama(tied=False)
        self._output = output

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def __call__(self, tokens: mx.array, cache: Any = None) -> Any:
        return self._output(self._real, self._real.model(tokens, cache=cache))


@pytest.mark.parametrize(
    "output",
    [
        pytest.param(lambda real, hidden: hidden @ real.lm_head.weight.T, id="not called"),
        pytest.param(lambda real, hidden: mx.cumsum(real.lm_head(hidden), 1), id="looks back"),
        pytest.param(lambda real, hidden: real.lm_head(hidden[0])[None], id="one row"),
    ],
)
def test_a_network_of_another_build_has_none(output: Callable[[Any, mx.array], Any]) -> None:
    mx.random.seed(3)
    network = _OtherBuild(output)
    assert OutputLayer.of(network, CacheLayout(network)) is None


def test_where_the_state_before_the_last_token_is_kept_there_is_none() -> None:
    network = random_network("sliding windows")
    assert OutputLayer.of(network, CacheLayout(network)) is None
