"""Checks of a safetensors file: its header, and that the header fits the length of the file.

The format (huggingface/safetensors, README.md): 8 bytes, little-endian, with the length of the
header; the header, a JSON object that gives each tensor's dtype, shape and position; the data.
"""

import math
from pathlib import Path
from typing import Any

from shared.errors import ModelError
from worker.models.file_reading import opened, parse_object

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_MAX_DIMENSIONS = 16
_MAX_DIMENSION = 2**48  # multiplying hostile numbers without a limit would take minutes
_BITS = {
    **dict.fromkeys(["F64", "I64", "U64", "C64"], 64),
    **dict.fromkeys(["F32", "I32", "U32"], 32),
    **dict.fromkeys(["F16", "BF16", "I16", "U16"], 16),
    **dict.fromkeys(["BOOL", "I8", "U8", "F8_E4M3", "F8_E5M2", "F8_E8M0"], 8),
}
"""By dtype. A tensor of another dtype is not checked against its shape."""
_FETCH_AGAIN = "delete it and fetch it again"


def tensor_bytes(path: Path) -> int:
    """Return the bytes of all tensors of a file, of which only the header is read.

    Raises:
        ModelError: the file cannot be read, its header is broken, or its length differs from the
            header's, as after an interrupted download.
    """
    with opened(path) as (file, size_bytes):
        length = file.read(_LENGTH_BYTES)
        header_bytes = int.from_bytes(length, "little")
        if len(length) < _LENGTH_BYTES or size_bytes == _LENGTH_BYTES:
            raise ModelError(f"{path} is cut short: it ends before its header; {_FETCH_AGAIN}")
        if header_bytes > _MAX_HEADER_BYTES:
            raise ModelError(
                f"{path} is not a safetensors file: its header would have {header_bytes} bytes"
            )
        if _LENGTH_BYTES + header_bytes > size_bytes:
            raise ModelError(
                f"{path} is cut short: {size_bytes} bytes, and its header alone has "
                f"{header_bytes}; {_FETCH_AGAIN}"
            )
        text = file.read(header_bytes)
    header = parse_object(f"the header of {path}", text)
    tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
    data_bytes = max((_end(path, name, entry) for name, entry in tensors.items()), default=0)
    _check_length(path, size_bytes, _LENGTH_BYTES + header_bytes + data_bytes)
    return data_bytes


def _check_length(path: Path, size_bytes: int, whole_bytes: int) -> None:
    if size_bytes < whole_bytes:
        raise ModelError(
            f"{path} is cut short: {size_bytes} of {whole_bytes} bytes; {_FETCH_AGAIN}"
        )
    if size_bytes > whole_bytes:
        raise ModelError(
            f"{path} is longer than its header says: {size_bytes} instead of {whole_bytes} bytes; "
            f"{_FETCH_AGAIN}"
        )


def _end(path: Path, name: str, entry: Any) -> int:
    """Return where a tensor ends, in bytes from the beginning of the data."""
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [begin, end]} if (
            _are_sizes(shape) and len(shape) <= _MAX_DIMENSIONS and _are_sizes([begin, end])
        ):
            bits = _BITS.get(dtype)
            if begin <= end and (bits is None or math.prod(shape) * bits == (end - begin) * 8):
                return int(end)
    raise ModelError(
        f"the header of {path} is broken: tensor {name[:80]!r} has no valid dtype, shape and "
        f"data_offsets; {_FETCH_AGAIN}"
    )


def _are_sizes(values: list[Any]) -> bool:
    return all(type(value) is int and 0 <= value <= _MAX_DIMENSION for value in values)
