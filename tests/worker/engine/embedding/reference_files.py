"""The references that `make_references.py` made."""

import json
from pathlib import Path
from typing import Any

import numpy as np

_FOLDER = Path(__file__).parent / "references"


def shapes_of(case: str) -> dict[str, list[int]]:
    """The shapes of a case's weights, by PyTorch's names."""
    shapes: dict[str, list[int]] = json.loads((_FOLDER / f"{case}.json").read_text())
    return shapes


def reference(case: str, name: str) -> Any:
    """An array of PyTorch's, float32."""
    with np.load(_FOLDER / f"{case}.npz") as arrays:
        return arrays[name].astype(np.float32)
