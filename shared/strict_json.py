"""JSON from outside, to the letter: no `NaN`, and whole numbers of any length."""

import json
from typing import Any


def strict_json(text: str) -> Any:
    """Raises ValueError or RecursionError for what is no JSON, `NaN` among it."""
    return json.loads(text, parse_constant=_refuse)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
