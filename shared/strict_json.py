"""Strict parsing of JSON from outside: no `NaN`, and integers of any length."""

import json
from typing import Any


def strict_json(text: str) -> Any:
    """Parse JSON; raises ValueError or RecursionError if it is invalid, or has a `NaN`."""
    return json.loads(text, parse_constant=_reject)


def _reject(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
