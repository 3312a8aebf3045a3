"""Reading files that others wrote: whatever they are, it ends in a value or a ModelError."""

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
    """A regular file and its size in bytes.

    Raises:
        ModelError: it is missing, something else than a file, or cannot be read, also later on.
    """
    try:
        # Without O_NONBLOCK, opening a named pipe waits for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ModelError(f"{path} is no regular file")
            with open(descriptor, "rb", closefd=False) as file:
                yield file, status.st_size
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise ModelError(f"{path} is missing") from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # a path with a zero byte
        raise ModelError(f"{str(path)!r} is no path: {error}") from None


def read_object(path: Path, *, max_bytes: int) -> dict[str, Any]:
    """A file that is one JSON object.

    Raises:
        ModelError: it is none, is larger than `max_bytes`, or cannot be read.
    """
    with opened(path) as (file, size_bytes):
        if size_bytes > max_bytes:
            raise ModelError(f"{path} has {size_bytes} bytes; {max_bytes} are allowed")
        return parse_object(f"{path}", file.read(max_bytes))


def parse_object(what: str, text: bytes) -> dict[str, Any]:
    """Bytes that are one JSON object.

    Raises:
        ModelError: they are none; begins with `what`.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{what} is no valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{what} is JSON, but no object")
    return value
