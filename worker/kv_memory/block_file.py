"""The file of a block: safetensors with a checksum over the whole file, so that damage is detected
and the block computed again.

The name of a file contains all that the block tree needs; see `BlockFileName`.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import xxhash

from worker.kv_memory.block import KEY_BYTES, BlockKey, Kind

SUFFIX = ".safetensors"
FORMAT = "mlx-nats-cluster KV block 1"
_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 4 * 2**20
_NO_SUM = "0" * 32
_BITS = {"F64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "U8": 8, "BOOL": 8}
_HEX = rf"([0-9a-f]{{{2 * KEY_BYTES}}})"
_NAME = re.compile(rf"{_HEX}-{_HEX}-(\d{{1,9}})\.(kv|state){re.escape(SUFFIX)}")


class BrokenBlockError(Exception):
    """The content of a file is not what was written."""


@dataclass(frozen=True, slots=True)
class BlockFileName:
    """The name of a block's file; `parent` is the block before it, or the root."""

    key: BlockKey
    parent: BlockKey
    count: int
    kind: Kind

    def __str__(self) -> str:
        return f"{self.key.hex()}-{self.parent.hex()}-{self.count}.{self.kind}{SUFFIX}"

    @classmethod
    def parse(cls, name: str) -> "BlockFileName | None":
        """Parse a file name; returns None if the file is not one of a block."""
        if (found := _NAME.fullmatch(name)) is None:
            return None
        key, parent, count, kind = found.groups()
        return cls(
            BlockKey(bytes.fromhex(key)),
            BlockKey(bytes.fromhex(parent)),
            int(count),
            kind,  # type: ignore[arg-type]
        )


@dataclass(frozen=True, slots=True)
class Tensor:
    """`dtype` is safetensors' name; `data` has the numbers in C order."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: memoryview


@dataclass(frozen=True, slots=True)
class BlockContent:
    """The content of a block's file; `notes` are opaque text of the writer."""

    tensors: Sequence[Tensor]
    notes: str = ""


def size_of(content: BlockContent) -> int:
    """Return the approximate length of the file in bytes."""
    return sum(tensor.data.nbytes for tensor in content.tensors) + 128 * len(content.tensors) + 1024


def encode(name: BlockFileName, content: BlockContent) -> list[bytes | memoryview]:
    """Return the buffers that form the file."""
    entries: dict[str, Any] = {}
    at = 0
    for tensor in content.tensors:
        end = at + tensor.data.nbytes
        entries[tensor.name] = {
            "dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [at, end]
        }  # fmt: skip
        at = end
    data = [tensor.data for tensor in content.tensors]
    header = _header(name, content.notes, entries, _NO_SUM)
    return [_header(name, content.notes, entries, _checksum([header, *data])), *data]


class ReadableFile(Protocol):
    def readinto(self, buffer: memoryview, /) -> int | None: ...


def decode(name: BlockFileName, file: ReadableFile, size: int) -> BlockContent:
    """Read and decode a file of `size` bytes. A file whose header states another size is damaged,
    and is not read any further, however large it is.

    Raises:
        BrokenBlockError: the file is damaged, incomplete, or has another name.
        OSError: it cannot be read.
    """
    length = bytes(_read(file, min(size, _LENGTH_BYTES)))
    header_bytes = int.from_bytes(length, "little")
    if header_bytes > min(_MAX_HEADER_BYTES, size - _LENGTH_BYTES):
        raise BrokenBlockError("its header is broken")
    header = length + _read(file, header_bytes)
    entries, metadata = _parsed_header(header[_LENGTH_BYTES:])
    ends = [end for entry in entries.values() for end in entry["data_offsets"]]
    if len(header) + max(ends, default=0) != size:
        raise BrokenBlockError("its length is wrong")
    data = memoryview(_read(file, size - len(header)))
    checksum = metadata["checksum"]
    unsummed = header.replace(checksum.encode(), _NO_SUM.encode())
    if checksum != _checksum([unsummed, data]):
        raise BrokenBlockError("its checksum is wrong")
    if (metadata["format"], metadata["block"]) != (FORMAT, str(name)):
        raise BrokenBlockError("it is of another block or format")
    try:
        tensors = [_tensor(key, entry, data) for key, entry in entries.items()]
    except (ValueError, KeyError, TypeError) as error:
        raise BrokenBlockError("its header is broken") from error
    return BlockContent(tensors, metadata["notes"])


def _read(file: ReadableFile, size: int) -> bytearray:
    """Read exactly `size` bytes.

    Raises:
        BrokenBlockError: the file ends before.
    """
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        count = file.readinto(view[done:])
        if not count:
            raise BrokenBlockError("it is cut short")
        done += count
    return data


def _parsed_header(text: bytes) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the entries of the tensors, and the metadata, whose values are strings."""
    try:
        entries = json.loads(text)
        metadata = entries.pop("__metadata__")
        stated = {key: metadata[key] for key in ("format", "block", "notes", "checksum")}
        offsets = [offset for entry in entries.values() for offset in entry["data_offsets"]]
        if not all(isinstance(offset, int) for offset in offsets):
            raise ValueError("an offset is no number")
        for value in stated.values():
            value.encode()  # half of a surrogate pair is a ValueError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BrokenBlockError("its header is broken") from error
    return entries, stated


def _tensor(name: str, entry: dict[str, Any], data: memoryview) -> Tensor:
    begin, end = entry["data_offsets"]
    return Tensor(name, entry["dtype"], tuple(entry["shape"]), data[begin:end])


def _header(name: BlockFileName, notes: str, entries: dict[str, Any], checksum: str) -> bytes:
    metadata = {"format": FORMAT, "block": str(name), "notes": notes, "checksum": checksum}
    text = json.dumps({"__metadata__": metadata, **entries}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def _checksum(buffers: Iterable[bytes | memoryview]) -> str:
    summed = xxhash.xxh3_128()
    for buffer in buffers:
        summed.update(buffer)
    return summed.hexdigest()
