"""Embeddings of texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, cast

from shared.client.text_batches import TextOutputs
from shared.messages import vectors
from shared.messages.stream import Usage

Text = str | list[int]
"""A text, or its tokens."""


@dataclass(frozen=True, slots=True)
class Embeddings:
    """The embeddings of texts, in their order.

    Attributes:
        packed: each vector as float32 in base64; `vectors` has them as numbers.
        warnings: sentences for people.
    """

    packed: tuple[str, ...]
    usage: Usage
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, answer: TextOutputs) -> Self:
        packed = tuple(output.embedding or "" for output in answer.outputs)
        return cls(packed, answer.usage, answer.warnings)

    @property
    def vectors(self) -> list[list[float]]:
        return [vectors.unpacked(each) for each in self.packed]


def listed(inputs: Text | Sequence[Text]) -> Sequence[Text]:
    """Return one text as a list of one."""
    is_one = isinstance(inputs, str) or (bool(inputs) and isinstance(inputs[0], int))
    return [cast(Text, inputs)] if is_one else cast(Sequence[Text], inputs)
