"""`make test` runs what decides whether a change may land; `make test-all` the long forms, too."""

from typing import Any

import pytest


def long_form(*values: Any) -> Any:
    """Values of a parameter that only `make test-all` tries."""
    return pytest.param(*values, marks=pytest.mark.long_form)
