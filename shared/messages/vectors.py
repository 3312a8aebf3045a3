"""Embeddings as text: float32 numbers, little-endian, in base64, as OpenAI's API has them.

A vector of 384 numbers takes 2 kB so, a sixth of what a list of Python floats takes.
"""

import base64
import sys
from array import array
from collections.abc import Sequence

_DECIMALS = 8
"""Of a normalised vector these are as many digits as float32 has."""


def packed(numbers: Sequence[float]) -> str:
    """Return the numbers as base64."""
    return base64.b64encode(_little_endian(array("f", numbers))).decode()


def unpacked(text: str) -> list[float]:
    """Return the numbers, rounded to the precision that float32 has.

    Raises:
        ValueError: `text` is not base64 of whole numbers.
    """
    numbers = array("f")
    numbers.frombytes(base64.b64decode(text, validate=True))
    if sys.byteorder == "big":
        numbers.byteswap()
    return [round(number, _DECIMALS) for number in numbers]


def _little_endian(numbers: "array[float]") -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()
