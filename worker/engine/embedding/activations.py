"""Activation functions, by the names that config files have for them."""

from collections.abc import Callable, Mapping

import mlx.core as mx
from mlx.nn.layers.activations import gelu_approx, relu, silu

from shared.errors import ModelError
from worker.engine.embedding.gelu import gelu

Activation = Callable[[mx.array], mx.array]


def _identity(x: mx.array) -> mx.array:
    return x


_BY_NAME: Mapping[str, Activation] = {
    "gelu": gelu,
    "gelu_python": gelu,
    "gelu_new": gelu_approx,
    "gelu_fast": gelu_approx,
    "gelu_pytorch_tanh": gelu_approx,
    "relu": relu,
    "silu": silu,
    "swish": silu,
    "tanh": mx.tanh,
}
"""Names of transformers (transformers/activations.py)."""
_TORCH_CLASSES: Mapping[str, Activation] = {
    "GELU": gelu,
    "Identity": _identity,
    "ReLU": relu,
    "SiLU": silu,
    "Sigmoid": mx.sigmoid,
    "Tanh": mx.tanh,
}


def activation(name: str) -> Activation:
    """Return the function of a name in config.json.

    Raises:
        ModelError: no such function is known.
    """
    if name not in _BY_NAME:
        raise ModelError(f"the activation {name[:80]!r} is not supported")
    return _BY_NAME[name]


def torch_activation(path: str) -> Activation:
    """Return the function of a PyTorch class, such as `torch.nn.modules.activation.Tanh`.

    Raises:
        ModelError: no such class is known.
    """
    package, _, name = path.rpartition(".")
    if package.partition(".")[0] != "torch" or name not in _TORCH_CLASSES:
        raise ModelError(f"the activation_function {path[:80]!r} is not supported")
    return _TORCH_CLASSES[name]
