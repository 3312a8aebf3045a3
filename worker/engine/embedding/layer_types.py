"""Which layers of a network see all of the text and which a window, and their rotary positions."""

from collections.abc import Mapping, Sequence
from typing import Any

from shared.errors import ModelError
from worker.engine.embedding.config_values import positive_float

FULL = "full_attention"
SLIDING = "sliding_attention"


def layer_types(config: Mapping[str, Any], layers: int, default: Sequence[str]) -> tuple[str, ...]:
    """Return the type of each layer.

    Raises:
        ModelError: `layer_types` of the config has another length, or other types.
    """
    named = config.get("layer_types")
    if named is None:
        return tuple(default)
    if (
        not isinstance(named, list)
        or len(named) != layers
        or not all(one in (FULL, SLIDING) for one in named)
    ):
        raise ModelError(f"layer_types is not a list of {layers} times {FULL} or {SLIDING}")
    return tuple(named)


def rope_theta(config: Mapping[str, Any], layer_type: str, key: str, default: float) -> float:
    """Return the base of the rotary positions of a layer type: from `rope_parameters`, which
    transformers 5 writes, or from a key of its own.

    Raises:
        ModelError: the value is invalid, or positions are scaled.
    """
    scaling = config.get("rope_scaling")
    by_type = config.get("rope_parameters")
    parameters = by_type.get(layer_type) if isinstance(by_type, dict) else None
    for found in (scaling, parameters):
        kind = found.get("rope_type", found.get("type")) if isinstance(found, dict) else None
        if kind not in (None, "default"):
            raise ModelError(f"rotary positions of the type {kind!r:.80} are not supported")
    if isinstance(parameters, dict) and parameters.get("rope_theta") is not None:
        return positive_float(parameters, "rope_theta")
    return positive_float(config, key, default)
