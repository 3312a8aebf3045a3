"""The file of a block: comes back as it was, or not at all."""

import json
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load
from typing_extensions import Buffer

from worker.kv_memory.block import BlockKey, root_key
from worker.kv_memory.block_file import (
    BlockContent,
    BlockFileName,
    BrokenBlockError,
    Tensor,
    decode,
    encode,
    size_of,
)

NAME = BlockFileName(BlockKey(root_key("a")), root_key("b"), 256, "kv")


def content(*shapes: tuple[int, ...], notes: str = "") -> BlockContent:
    """Tensors of counted numbers."""
    tensors = []
    for number, shape in enumerate(shapes):
        data = np.arange(int(np.prod(shape)), dtype=np.float32) + number
        tensors.append(Tensor(str(number), "F32", shape, data.data.cast("B")))
    return BlockContent(tensors, notes)


def raw_of(what: BlockContent) -> bytes:
    return b"".join(bytes(buffer) for buffer in encode(NAME, what))


def decoded(name: BlockFileName, raw: bytes | bytearray) -> BlockContent:
    return decode(name, BytesIO(raw), len(raw))


def test_a_file_comes_back_as_it_was() -> None:
    what = content((2, 3), (4,), (0, 5), notes='["a", 1]')
    back = decoded(NAME, raw_of(what))
    assert back.notes == what.notes
    assert [(t.name, t.dtype, t.shape, bytes(t.data)) for t in back.tensors] == [
        (t.name, t.dtype, t.shape, bytes(t.data)) for t in what.tensors
    ]


def test_any_program_that_reads_safetensors_can_open_it() -> None:
    arrays = load(raw_of(content((2, 3), (4,))))
    np.testing.assert_array_equal(arrays["0"], np.arange(6, dtype=np.float32).reshape(2, 3))
    np.testing.assert_array_equal(arrays["1"], np.arange(4, dtype=np.float32) + 1)


def test_its_length_is_known_well_enough_before_it_is_written() -> None:
    what = content(*[(3, 64)] * 200, notes="x" * 500)
    assert len(raw_of(what)) <= size_of(what) + 4096


def test_a_file_of_another_block_is_none_of_this_one() -> None:
    other = BlockFileName(BlockKey(root_key("c")), NAME.parent, NAME.count, NAME.kind)
    with pytest.raises(BrokenBlockError):
        decoded(other, raw_of(content((2, 3))))


@given(st.integers(0, 10**6), st.integers(1, 255))
@settings(max_examples=300)
def test_any_other_byte_is_seen(place: int, difference: int) -> None:
    raw = bytearray(raw_of(content((2, 30), (4,), notes="notes")))
    raw[place % len(raw)] ^= difference
    with pytest.raises(BrokenBlockError):
        decoded(NAME, raw)


@given(st.integers(0, 10**6))
def test_any_part_of_a_file_is_seen_as_one(length: int) -> None:
    raw = raw_of(content((2, 30), (4,)))
    with pytest.raises(BrokenBlockError):
        decoded(NAME, raw[: length % len(raw)])
    with pytest.raises(BrokenBlockError):
        decoded(NAME, raw + bytes(1 + length % 10))


@given(st.binary(max_size=100))
def test_anything_else_is_no_block(raw: bytes) -> None:
    with pytest.raises(BrokenBlockError):
        decoded(NAME, raw)


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b"{}",
        b'{"__metadata__": 5}',
        b'{"__metadata__": {"notes": ""}}',
        b'{"__metadata__": {"notes": [], "checksum": {}}}',
        b'{"__metadata__": {"notes": "", "checksum": "0"}, "0": 5}',
        b"[" * 100_000,
        b"\xff\xfe",
        json.dumps({"__metadata__": {"notes": "\ud800", "checksum": ""}}).encode(),
    ],
    ids=lambda header: str(header[:40]),
)
def test_a_hostile_header_is_a_broken_one(header: bytes) -> None:
    raw = len(header).to_bytes(8, "little") + header + bytes(64)
    with pytest.raises(BrokenBlockError):
        decoded(NAME, raw)


class _Endless(BytesIO):
    """It goes on with zeros, as a file with holes does; `taken` counts what was read."""

    taken = 0

    def readinto(self, buffer: Buffer, /) -> int:
        self.taken += memoryview(buffer).nbytes
        return super().readinto(buffer) or memoryview(buffer).nbytes


def test_of_a_file_that_is_longer_than_it_says_only_the_header_is_read() -> None:
    """There may be no memory for the rest."""
    raw = raw_of(content((2, 3)))
    file = _Endless(raw)
    with pytest.raises(BrokenBlockError, match="length"):
        decode(NAME, file, 2**50)
    assert file.taken < len(raw)


def test_a_file_name_says_all_of_a_block() -> None:
    assert BlockFileName.parse(str(NAME)) == NAME
    for other in ("lock", "writes-today", f"{NAME}.part", str(NAME).upper(), str(NAME)[1:], ""):
        assert BlockFileName.parse(other) is None, other
    assert Path(str(NAME)).name == str(NAME)
