"""Applies an adapter to a network: loaded by mlx-lm, or converted from PEFT's format.

A float32 layer is fused: adding the update to its weights changes only the order of summation.
Other layers keep the update beside the weights, as in mlx-lm: fusing in half precision would round
the update to the few bits of the weight, and fusing a quantised layer would quantise it again.
"""

import math
import re
from collections import defaultdict
from typing import Any, cast

import mlx.core as mx
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.quantized import QuantizedLinear
from mlx.utils import tree_unflatten
from mlx_lm.tuner.dora import DoRAEmbedding, DoRALinear
from mlx_lm.tuner.lora import LoRAEmbedding, LoRALinear, LoRASwitchLinear
from mlx_lm.tuner.utils import load_adapters

from shared.errors import ModelError
from worker.models.adapters import Adapter

_PEFT_KEY = re.compile(r"(?:base_model\.model\.)?(?P<layer>.+)\.lora_(?P<side>[AB])\.weight")
_SHOWN_NAMES = 3
_SHOWN_CHARACTERS = 300


def apply_adapter(network: Any, adapter: Adapter) -> None:
    """Apply an adapter to a network whose weights are not evaluated yet. Mutates the network.

    Raises:
        ModelError: the adapter does not fit the network; the message names the first layers.
    """
    if adapter.format == "peft":
        _apply_peft(network, adapter)
    else:
        _apply_mlx(network, adapter)
    network.eval()  # disables dropout
    fused = [
        (name, module.fuse()) for name, module in network.named_modules() if _fuses_exactly(module)
    ]
    network.update_modules(tree_unflatten(fused))


def _apply_mlx(network: Any, adapter: Adapter) -> None:
    try:
        load_adapters(network, str(adapter.folder))
    except Exception as error:  # the adapter's config may hold anything
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        named = lines[1:] if isinstance(error, ValueError) and len(lines) > 1 else lines
        raise ModelError(
            f"the adapter {adapter.folder} does not fit the model: {_bounded(named)}"
        ) from error


def _apply_peft(network: Any, adapter: Adapter) -> None:
    """Build LoRA layers from pairs of matrices: `lora_A` is [rank, in], `lora_B` is [out, rank],
    and the update is scaled by alpha / rank (rsLoRA: alpha / sqrt(rank))."""
    modules = dict(network.named_modules())
    adapted = []
    for layer, (a, b) in _peft_pairs(adapter).items():
        module = modules.get(layer)
        if not isinstance(module, Linear | QuantizedLinear):
            raise ModelError(
                f"the adapter {adapter.folder} does not fit the model: mlx-lm's network has no "
                f"layer {layer:.120}; fuse it into its base model with PEFT, and convert that"
            )
        rank = a.shape[0]
        root = math.sqrt(rank) if adapter.config.get("use_rslora") else rank
        lora = LoRALinear.from_base(
            module, r=rank, dropout=0.0, scale=adapter.config["lora_alpha"] / root
        )
        if lora.lora_a.shape != a.T.shape or lora.lora_b.shape != b.T.shape:
            raise ModelError(
                f"the adapter {adapter.folder} does not fit the model: {layer:.120} is "
                f"{lora.lora_a.shape[0]} to {lora.lora_b.shape[1]} wide, the adapter {a.shape[1]} "
                f"to {b.shape[0]}"
            )
        lora.lora_a, lora.lora_b = a.T, b.T
        adapted.append((layer, lora))
    network.update_modules(tree_unflatten(adapted))


def _peft_pairs(adapter: Adapter) -> dict[str, tuple[mx.array, mx.array]]:
    """Return the matrices A and B of each layer, by the layer's name."""
    found: defaultdict[str, dict[str, mx.array]] = defaultdict(dict)
    weights = cast(dict[str, mx.array], mx.load(str(adapter.weights)))
    for key, array in weights.items():
        parsed = _PEFT_KEY.fullmatch(key)
        if parsed is None or array.ndim != 2:
            raise ModelError(
                f"{adapter.weights}: {key:.120} is not a LoRA matrix and cannot be converted"
            )
        found[parsed["layer"]][parsed["side"]] = array
    alone = [layer for layer, sides in found.items() if len(sides) < 2]
    if alone or not found:
        layers = _bounded(alone or ["every layer"])
        raise ModelError(f"{adapter.weights} lacks lora_A or lora_B of {layers}")
    return {layer: (sides["A"], sides["B"]) for layer, sides in found.items()}


def _fuses_exactly(module: Any) -> bool:
    match module:
        case LoRALinear() | LoRASwitchLinear() | DoRALinear():
            base = module.linear
        case LoRAEmbedding() | DoRAEmbedding():
            base = module.embedding
        case _:
            return False
    return bool(base.weight.dtype == mx.float32)


def _bounded(names: list[str]) -> str:
    more = f", and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return f"{'; '.join(names[:_SHOWN_NAMES])[:_SHOWN_CHARACTERS]}{more}"
