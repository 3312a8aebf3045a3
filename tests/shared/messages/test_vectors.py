"""Vectors as text."""

import base64
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.ids import RequestId, WorkerId
from shared.messages.stream import ChoiceOutput, ChunkMessage, decode, encode
from shared.messages.vectors import packed, unpacked

_NUMBERS = st.lists(st.floats(-1, 1, width=32), max_size=50)


@given(_NUMBERS)
def test_numbers_come_back_as_precise_as_float32_is(numbers: list[float]) -> None:
    assert unpacked(packed(numbers)) == pytest.approx(numbers, abs=1e-7)


def test_the_bytes_are_float32_in_little_endian() -> None:
    assert base64.b64decode(packed([1.0, -0.5])) == struct.pack("<2f", 1.0, -0.5)


@given(_NUMBERS)
def test_a_chunk_has_them_as_numbers(numbers: list[float]) -> None:
    output = ChoiceOutput(3, 0, [], "", finish_reason="stop", embedding=packed(numbers))
    (chunk,) = decode(encode(ChunkMessage(RequestId("r"), 1, WorkerId("w"), output)))
    assert isinstance(chunk, ChunkMessage) and chunk.output.embedding is not None
    assert unpacked(chunk.output.embedding) == pytest.approx(numbers, abs=2e-8)


@pytest.mark.parametrize("text", ["AAA", "????", "AAAA"])
def test_what_is_no_vector_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):
        unpacked(text)
