# A network for mlx-lm's `model_file`: a llama that ends its process. It is loaded by path, not as a
# module: so no postponed annotations, and nothing of this project.
#
# config.json has `crash`: {"at", "by"}. `at` is "load", "first token", or a token: whatever pass
# has that among its inputs ends the process. `by` says how.

import ctypes
import dataclasses
import importlib
import os
import sys
import time
from typing import Any

import mlx.core as mx
from mlx_lm.models import llama

_HELLO = 39, 68
"""How the prompt of a worker's trial begins; no pass that measures or probes a model while it is
loaded has both among its inputs."""


@dataclasses.dataclass
class ModelArgs(llama.ModelArgs):  # type: ignore[misc]
    crash: Any = None


def _crash(by: str) -> None:
    match by:
        case "abort":
            os.abort()
        case "segmentation fault":
            ctypes.string_at(0)
        case "exception":
            raise ValueError("axis 3 is out of bounds for an array of 3 dimensions")
        case "sys.exit":
            try:
                importlib.import_module("a_package_that_is_missing")
            except ImportError:
                sys.exit(1)
        case "_exit":
            os._exit(0)
        case "hang":
            while True:
                time.sleep(1)
        case _:
            raise AssertionError(f"no way to crash: {by}")


class Model(llama.Model):  # type: ignore[misc]
    def __init__(self, args: ModelArgs) -> None:
        super().__init__(args)
        self._at, self._by = args.crash["at"], args.crash["by"]
        if self._at == "load":
            _crash(self._by)

    def __call__(self, inputs: mx.array, cache: Any = None, input_embeddings: Any = None) -> Any:
        if self._at == "first token":
            crashes = mx.all(mx.array([mx.any(inputs == token) for token in _HELLO]))
        else:
            crashes = mx.any(inputs == self._at)
        if crashes.item():
            _crash(self._by)
        return super().__call__(inputs, cache, input_embeddings)
