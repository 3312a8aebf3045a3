"""Model folders with random weights, of mlx-lm's own classes."""

import json
import math
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import _get_classes, quantize_model

from tests.architectures.configurations import Configuration
from tests.models import write_tokenizer

_SEED = 7
_CONTEXT_TOKENS = 8192
_SPREADS = (3.0, 2.0, 1.0)
_NOISE = 0.1
_TRIED_TOKENS = 64
_LARGEST_LOGIT = 1e4
_STEADY_GAP = 1e-3


def write_model(folder: Path, configuration: Configuration) -> None:
    """Make the folder of a model; the same configuration gets the same weights each time."""
    folder.mkdir(parents=True)
    write_tokenizer(folder, _CONTEXT_TOKENS)
    network, config = random_network(configuration)
    weights = dict(cast(list[tuple[str, mx.array]], tree_flatten(network.parameters())))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def random_network(configuration: Configuration) -> tuple[Any, dict[str, Any]]:
    """The network, with weights as wide as its answers stay finite and steady, and its
    config.json."""
    config = json.loads(json.dumps(configuration.config))
    for spread in _SPREADS:
        network = _drawn(config, spread)
        if spread == _SPREADS[-1] or _is_lively(network):
            break
    network.set_dtype(getattr(mx, configuration.dtype))
    config["torch_dtype"] = configuration.dtype
    if (how := configuration.quantisation) is not None:
        network, config = quantize_model(network, config, how.group_size, how.bits, how.mode)
    mx.eval(network.parameters())
    return network, config


def _drawn(config: dict[str, Any], spread: float) -> Any:
    """Matrices are wider than mlx-lm's initial ones, so that answers vary; vectors and matrices
    that it makes all ones or zeros get some noise."""
    mx.random.seed(_SEED)
    model_class, arguments_class = _get_classes(config)
    network = model_class(arguments_class.from_dict(config))
    parameters = cast(list[tuple[str, mx.array]], tree_flatten(network.parameters()))
    network.update(
        tree_unflatten([(name, _wider(name, each, spread)) for name, each in parameters])
    )
    return network


def _wider(name: str, array: mx.array, spread: float) -> mx.array:
    if not mx.issubdtype(array.dtype, mx.floating) or name.endswith("signs"):
        return array
    if array.ndim > 1 and mx.any(array != array.reshape(-1)[0]).item():
        return array * spread
    return array + _NOISE * mx.random.normal(array.shape, array.dtype)


def _is_lively(network: Any) -> bool:
    """Whether what it says is finite, not always the same, and hardly depends on rounding: nearly
    the same for several copies."""
    tokens = mx.arange(_TRIED_TOKENS, dtype=mx.uint32)[None] * 7 % 256
    try:
        whole = network(tokens, cache=make_prompt_cache(network))[0]
        copies = network(mx.repeat(tokens, 3, axis=0), cache=make_prompt_cache(network))
        best = cast(list[int], mx.argmax(whole, axis=-1).tolist())
        largest = cast(float, mx.abs(whole).max().item())
        apart = cast(float, mx.abs(copies - whole).max().item())
    except Exception:  # what fails here fails for mlx-lm, too: the judgement says why
        return False
    is_finite = math.isfinite(largest) and largest < _LARGEST_LOGIT
    return is_finite and apart < _STEADY_GAP and len(set(best)) > 2
