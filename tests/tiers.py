"""`make test` runs what decides whether a change may land; `make test-all` the long forms, too."""

from typing import Any

import pytest

_everything = False


def choose(everything: bool) -> None:
    """Say which of the two runs, before tests are collected."""
    global _everything
    _everything = everything


def long_form(*values: Any) -> Any:
    """Values of a parameter that only `make test-all` tries."""
    return pytest.param(*values, marks=pytest.mark.long_form)


def examples(few: int, many: int) -> int:
    """How many random cases are tried: few by `make test`, many by `make test-all`."""
    return many if _everything else few
