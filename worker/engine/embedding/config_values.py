"""Typed values of a model's JSON files, which are untrusted."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shared.errors import ModelError

_MAX_NUMBER = 2**31 - 1
_MISSING: Any = object()


@contextmanager
def values_of(path: Path) -> Iterator[None]:
    """Name the file in each ModelError that is raised in this context."""
    try:
        yield
    except ModelError as error:
        shown = "" if error.message.startswith(str(path)) else f"{path}: "
        raise ModelError(f"{shown}{error.message}") from error.__cause__


def positive_int(config: Mapping[str, Any], key: str, default: int = _MISSING) -> int:
    """Return a whole number of at least 1.

    Raises:
        ModelError: the value is missing and has no default, or is not such a number.
    """
    return _int(config, key, default, 1)


def optional_positive_int(config: Mapping[str, Any], key: str) -> int | None:
    """Return a whole number of at least 1; None if it is missing; see `positive_int`."""
    return None if config.get(key) is None else positive_int(config, key)


def natural_int(config: Mapping[str, Any], key: str, default: int = _MISSING) -> int:
    """Return a whole number of at least 0; see `positive_int`."""
    return _int(config, key, default, 0)


def positive_float(config: Mapping[str, Any], key: str, default: float = _MISSING) -> float:
    """Return a finite number above 0; see `positive_int`."""
    value = _value(config, key, default)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < math.inf:
        raise ModelError(f"{key} is {value!r:.80}, which is not a positive number")
    return float(value)


def boolean(config: Mapping[str, Any], key: str, default: bool = _MISSING) -> bool:
    """Return true or false; see `positive_int`."""
    value = _value(config, key, default)
    if not isinstance(value, bool):
        raise ModelError(f"{key} is {value!r:.80}, which is not true or false")
    return value


def string(config: Mapping[str, Any], key: str, default: str = _MISSING) -> str:
    """Return a string; see `positive_int`."""
    value = _value(config, key, default)
    if not isinstance(value, str):
        raise ModelError(f"{key} is {value!r:.80}, which is not a string")
    return value


def _int(config: Mapping[str, Any], key: str, default: int, least: int) -> int:
    value = _value(config, key, default)
    if type(value) is not int or not least <= value <= _MAX_NUMBER:
        raise ModelError(f"{key} is {value!r:.80}, which is not a whole number from {least}")
    return value


def _value(config: Mapping[str, Any], key: str, default: Any) -> Any:
    """Return the value of a key; JSON's null counts as missing."""
    value = config.get(key)
    if value is not None:
        return value
    if default is _MISSING:
        raise ModelError(f"{key} is missing")
    return default
