"""Recorded campaigns, judged again: each planted bug is found, and without one nothing is.

`python -m tests.faults --plant NAME --evidence tests/faults/traces/NAME.json.gz` records one."""

from pathlib import Path

import pytest

from tests.faults.evidence import Evidence
from tests.faults.judge import judged
from tests.faults.plants import PLANTS

TRACES = Path(__file__).parent / "traces"


@pytest.mark.parametrize("name", sorted(PLANTS))
def test_a_planted_bug_is_found(name: str) -> None:
    found = judged(Evidence.load(TRACES / f"{name}.json.gz"))
    assert PLANTS[name].promise in {violation.promise for violation in found}


def test_where_none_is_planted_none_is_found() -> None:
    evidence = Evidence.load(TRACES / "none.json.gz")
    assert judged(evidence) == []
    assert evidence.streams and evidence.wire and evidence.sessions and evidence.injections
