"""Reading of a JSON schema from a file."""

import json
from pathlib import Path
from typing import Any

from shared.errors import SettingsError
from shared.messages.schemas import MAX_SCHEMA_BYTES, check_schema
from shared.strict_json import strict_json

_MAX_FILE_BYTES = 8 * MAX_SCHEMA_BYTES
"""Includes white space."""


def read_schema(path: Path) -> dict[str, Any]:
    """Return the schema in a file.

    Raises:
        SettingsError: the file has no valid schema; names the file and the position.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise _wrong(path, error.strerror or str(error)) from None
    except ValueError as error:  # a path with a zero byte
        raise _wrong(path, str(error)) from None
    if len(data) > _MAX_FILE_BYTES:
        raise _wrong(path, f"the file has more than {_MAX_FILE_BYTES} bytes")
    try:
        schema = strict_json(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _wrong(path, f"line {line}: not UTF-8") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise _wrong(path, f"{where}: not valid JSON: {error.msg}") from None
    except RecursionError:
        raise _wrong(path, "nested too deeply") from None
    except ValueError as error:  # `NaN`, a number of thousands of digits
        raise _wrong(path, str(error)) from None
    if not isinstance(schema, dict):
        raise _wrong(path, f"a schema must be an object, not {_kind(schema)}")
    try:
        check_schema(schema)
    except ValueError as error:
        raise _wrong(path, str(error)) from None
    return schema


def _kind(value: Any) -> str:
    kinds = {list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "a number")


def _wrong(path: Path, problem: str) -> SettingsError:
    return SettingsError(f"--schema: {path}: {problem}")
