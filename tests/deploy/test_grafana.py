"""deploy/grafana/cluster.json has the schema of Grafana's dashboards."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.deploy.dashboard import dashboard
from tests.deploy.examples import DEPLOY
from tests.deploy.grafana import findings


def test_the_dashboard_is_as_the_schema_of_grafana_has_it() -> None:
    assert findings((DEPLOY / "grafana" / "cluster.json").read_bytes()) == []


def _misspell(panel: dict[str, Any]) -> None:
    panel["targets"][0]["legend"] = panel["targets"][0].pop("legendFormat")


def _forget(panel: dict[str, Any]) -> None:
    del panel["options"]["legend"]["showLegend"]


def _mistype(panel: dict[str, Any]) -> None:
    panel["gridPos"]["w"] = "8"


def _choose_what_there_is_not(panel: dict[str, Any]) -> None:
    panel["fieldConfig"]["defaults"]["custom"]["showPoints"] = "sometimes"


def _measure_in_what_there_is_not(panel: dict[str, Any]) -> None:
    panel["fieldConfig"]["defaults"]["unit"] = "percentage"


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (_misspell, r"\.targets\[0\]\.legend: the schema has no such field"),
        (_forget, r"\.legend\.showLegend: a required field is missing"),
        (_mistype, r"\.grid_pos\.w: '8' is not <class 'int'>"),
        (_choose_what_there_is_not, r"\.show_points: 'sometimes' is not "),
        (_measure_in_what_there_is_not, "Grafana has no unit 'percentage'"),
    ],
)
def test_what_the_schema_does_not_have_is_found(
    change: Callable[[dict[str, Any]], None], finding: str
) -> None:
    body = json.loads(dashboard())
    change(next(panel for panel in body["panels"] if panel["type"] == "timeseries"))
    (found,) = findings(json.dumps(body).encode())
    assert re.search(finding, found)
