"""Ties: two tokens so close that rounding chooses between them, so that answers may part.

A test does not fail over a tie; it leaves the rest of the answer out, and the run says at its end
where that was.
The token that came must be one that could have been drawn, were two log-probabilities nearer to
each other by `tie_gap`; any other is a fault.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

TIE_GAP = 1e-3
"""Between log-probabilities, as in the product's probe."""
_TIE_EPSILONS = 1024
"""Ten times what rounding changes in the tests' networks, of the largest logit."""
_NAME = "left out"

_left_out: list[str] = []
"""By the test that runs."""


def tie_gap(logits: npt.NDArray[Any]) -> float:
    """Return the largest gap between two logits, or log-probabilities, that counts as a tie: less
    than `TIE_GAP` where all are small, else most tokens of a flat network would be ties."""
    largest = float(np.abs(logits[np.isfinite(logits)]).max(initial=0.0))
    return min(TIE_GAP, _TIE_EPSILONS * float(np.finfo(np.float32).eps) * largest)


def leave_out(what: str) -> None:
    """Note what the test that runs does not compare: what follows a tie, or what rounding alone
    changes."""
    _left_out.append(what)


def take_left_out() -> list[str]:
    """Return what was noted since the test began, or since the last call."""
    taken = list(_left_out)
    _left_out.clear()
    return taken


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """The notes go with the test's report, also out of a process of pytest-xdist."""
    take_left_out()
    yield
    item.user_properties += [(_NAME, what) for what in take_left_out()]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    left_out = [
        f"{report.nodeid}: {what}"
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
        for name, what in report.user_properties
        if name == _NAME
    ]
    if left_out:
        terminalreporter.section(f"{len(left_out)} comparisons left out: rounding decides them")
        for line in left_out:
            terminalreporter.line(line)
