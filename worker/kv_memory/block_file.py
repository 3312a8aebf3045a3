"""The file of a block: safetensors with a checksum over the whole file, so that damage is detected
and the block computed again.

The name of a file contains all that the block tree needs; see `BlockFileName`.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

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


def decode(name: BlockFileName, raw: memoryview) -> BlockContent:
    """Decode the content of a file.

    Raises:
        BrokenBlockError: the file is damaged, incomplete, or has another name.
    """
    if len(raw) < _LENGTH_BYTES:
        raise BrokenBlockError("it is cut short")
    length = int.from_bytes(raw[:_LENGTH_BYTES], "little")
    begin = _LENGTH_BYTES + length
    if length > _MAX_HEADER_BYTES or begin > len(raw):
        raise BrokenBlockError("its header is broken")
    try:
        entries = json.loads(bytes(raw[_LENGTH_BYTES:begin]))
        metadata = entries.pop("__metadata__")
        checksum, notes = metadata["checksum"].encode(), metadata["notes"]
        matches = (metadata["format"], metadata["block"]) == (FORMAT, str(name))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BrokenBlockError("its header is broken") from error
    header = bytes(raw[:begin]).replace(checksum, _NO_SUM.encode())
    if checksum.decode() != _checksum([header, raw[begin:]]):
        raise BrokenBlockError("its checksum is wrong")
    if not matches:
        raise BrokenBlockError("it is of another block or format")
    return BlockContent([_tensor(key, entry, raw[begin:]) for key, entry in entries.items()], notes)


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
