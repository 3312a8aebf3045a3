"""Reading of untrusted files: each function returns a value or raises ModelError."""

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from shared.errors import ModelError


@contextmanager
def opened(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """Open a regular file; yields the file and its size in bytes.

    Raises:
        ModelError: the file is missing, not a regular file, or cannot be read, also within the
            context.
    """
    try:
        # Without O_NONBLOCK, opening a named pipe waits for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ModelError(f"{path} is not a regular file")
            with open(descriptor, "rb", closefd=False) as file:
                yield file, status.st_size
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise ModelError(f"{path} is missing") from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # a path with a zero byte
        raise ModelError(f"{str(path)!r} is not a path: {error}") from None


def read_object(path: Path, *, max_bytes: int) -> dict[str, Any]:
    """Return the JSON object of a file.

    Raises:
        ModelError: the file is not a JSON object, is larger than `max_bytes`, or cannot be read.
    """
    with opened(path) as (file, size_bytes):
        if size_bytes > max_bytes:
            raise ModelError(f"{path} has {size_bytes} bytes; the maximum is {max_bytes}")
        return parse_object(f"{path}", file.read(max_bytes))


def parse_object(name: str, text: bytes) -> dict[str, Any]:
    """Parse bytes as one JSON object.

    Raises:
        ModelError: the bytes are not a JSON object; the message begins with `name`.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{name} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{name} is JSON, but not an object")
    return value
