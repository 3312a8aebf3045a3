"""The Dense module of sentence-transformers: a linear layer and an activation over vectors."""

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import mlx.core as mx

from shared.errors import ModelError
from worker.engine.embedding.activations import Activation, torch_activation
from worker.engine.embedding.config_values import boolean, positive_int, string, values_of
from worker.engine.load_errors import loading_error
from worker.models.file_reading import read_object
from worker.models.safetensors import tensor_bytes

_WEIGHTS = "model.safetensors"
_MAX_CONFIG_BYTES = 1_000_000
_VECTOR = "sentence_embedding"


@dataclass(frozen=True, slots=True)
class Dense:
    """
    Attributes:
        weight: (outputs, inputs), float32.
        bias: (outputs,), or None.
    """

    weight: mx.array
    bias: mx.array | None
    activation: Activation

    def __call__(self, vectors: mx.array) -> mx.array:
        """Return (rows, outputs) of (rows, inputs)."""
        product = vectors @ self.weight.T
        return self.activation(product if self.bias is None else product + self.bias)


def load_dense(folder: Path, inputs: int) -> Dense:
    """Load a Dense module.

    Args:
        inputs: the size of the vectors before it.

    Raises:
        ModelError: a file is missing or broken, or the module does not take such vectors.
    """
    path = folder / "config.json"
    config = read_object(path, max_bytes=_MAX_CONFIG_BYTES)
    with values_of(path):
        if (found := positive_int(config, "in_features")) != inputs:
            raise ModelError(f"in_features is {found}, but the vectors before have {inputs} values")
        outputs = positive_int(config, "out_features")
        has_bias = boolean(config, "bias", True)
        activation = torch_activation(string(config, "activation_function", "torch.nn.Tanh"))
        for key in ("module_input_name", "module_output_name"):
            if (name := string(config, key, _VECTOR)) != _VECTOR:
                raise ModelError(f"{key} {name[:80]!r} is not supported")
        if boolean(config, "use_residual", False):
            raise ModelError("use_residual is not supported")
    weights = _weights(folder)
    return Dense(
        _array(folder, weights, "linear.weight", (outputs, inputs)),
        _array(folder, weights, "linear.bias", (outputs,)) if has_bias else None,
        activation,
    )


def _weights(folder: Path) -> dict[str, mx.array]:
    path = folder / _WEIGHTS
    if not path.exists():
        raise ModelError(f"{path} is missing; weights in other formats are not supported")
    tensor_bytes(path)
    try:
        return cast(dict[str, mx.array], mx.load(str(path)))
    except Exception as error:  # third-party files can raise anything
        raise loading_error(error, folder, "network") from error


def _array(
    folder: Path, weights: dict[str, mx.array], name: str, shape: tuple[int, ...]
) -> mx.array:
    path = folder / _WEIGHTS
    if name not in weights:
        raise ModelError(f"{path} has no {name}")
    if weights[name].shape != shape:
        raise ModelError(f"{path}: {name} has the shape {weights[name].shape} instead of {shape}")
    array = weights[name].astype(mx.float32)
    mx.eval(array)
    return array
