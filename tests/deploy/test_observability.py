"""deploy/grafana and deploy/prometheus name metrics that a running cluster has."""

import json
import re
import urllib.request
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from shared.errors import ERROR_CODES, is_caused_by_request
from tests.deploy.dashboard import dashboard
from tests.deploy.examples import DEPLOY
from tests.processes import ClusterProcess, cluster_process, wait_for

_METRIC = re.compile(r"\bmlx_[a-z_]+\b")
_SELECTOR = re.compile(r"(mlx_[a-z_]+)\{([a-z_]+)")
_BY = re.compile(r"by \(([^)]*)\)")
_LABEL = re.compile(r"\{\{ ?(?:\$labels\.)?([a-z]+) ?\}\}")
_OF_PROMETHEUS = {"instance", "job", "le"}


def _expressions() -> list[tuple[str, str]]:
    """Each with the text that shows its labels."""
    panels = json.loads(dashboard())["panels"]
    found = [
        (target["expr"], target["legendFormat"])
        for panel in panels
        for target in panel.get("targets", [])
    ]
    for group in yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]:
        found += [(rule["expr"], rule["annotations"]["summary"]) for rule in group["rules"]]
    return found


@pytest.fixture(scope="module")
def labels(tiny_model: Any) -> Iterator[dict[str, set[str]]]:
    """The labels of each sample of a cluster that has served, by its name; more than one sample
    where there are several."""
    arguments = ("--metrics-port", "0", "--http-port", "0")
    with cluster_process(model=str(tiny_model), arguments=arguments) as cluster:
        urls = [*cluster.ready["metrics_urls"].values(), f"{cluster.ready['http_url']}/metrics"]
        assert len(urls) == 3
        _ask(cluster)

        def found() -> dict[str, set[str]]:
            return {
                sample.name: set(sample.labels)
                for url in urls
                for family in text_string_to_metric_families(_read(url))
                for sample in family.samples
            }

        wait_for(
            lambda: "mlx_gateway_time_to_first_token_seconds_bucket" in found(), "the first request"
        )
        yield found()


def _ask(cluster: ClusterProcess) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "stream": True}
    for content in (body, {**body, "temperature": 9}):
        request = urllib.request.Request(
            f"{cluster.ready['http_url']}/v1/chat/completions",
            json.dumps(content).encode(),
            {"content-type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                answer.read()
        except urllib.error.HTTPError as error:
            assert error.code == 400


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return str(answer.read().decode())


_RARE = {
    "mlx_controller_retries_total": {"worker", "code"},
    "mlx_controller_migrations_total": {"worker", "code"},
}
"""Nothing went wrong in the cluster of this test."""


def test_every_expression_names_metrics_and_labels_that_there_are(
    labels: dict[str, set[str]],
) -> None:
    known = labels | _RARE
    for expression, shown in _expressions():
        names = set(_METRIC.findall(expression))
        assert names <= known.keys(), f"{expression}: there is no {names - known.keys()}"
        there: set[str] = set().union(*(known[name] for name in names)) | _OF_PROMETHEUS
        for name, label in _SELECTOR.findall(expression):
            assert label in known[name], f"{expression}: {name} has no label {label}"
        grouped = {each.strip() for by in _BY.findall(expression) for each in by.split(",")}
        assert grouped <= there, f"{expression}: there is no label {grouped - there}"
        legend = set(_LABEL.findall(shown)) - {"value"}
        assert legend <= there, f"{expression}: the text has no {legend - there}"


def test_every_metric_of_a_worker_is_of_its_name_space_and_described(
    labels: dict[str, set[str]],
) -> None:
    names = {name for name in labels if name.startswith("mlx_worker_")}
    assert len(names) > 40
    assert not {name for name in names if name.endswith("_ms") or "percent" in name}


def _ids(panels: Iterable[dict[str, Any]]) -> list[int]:
    return [panel["id"] for panel in panels]


def test_the_dashboard_has_no_two_panels_in_one_place() -> None:
    body = json.loads(dashboard())
    panels = body["panels"]
    assert len(set(_ids(panels))) == len(panels) > 15
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24 and not cells & taken, panel["title"]
        taken |= cells
    assert (DEPLOY / "grafana" / "cluster.json").read_bytes() == dashboard(), "`make docs`"


def test_the_alerts_are_rules_of_prometheus() -> None:
    (group,) = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    names = [rule["alert"] for rule in group["rules"]]
    assert len(set(names)) == len(names) >= 8
    (excluded,) = re.findall(r'code!~"([a-z_|]+)"', json.dumps(group).replace('\\"', '"'))
    of_requests = {code for code in ERROR_CODES if is_caused_by_request(code)}
    assert set(excluded.split("|")) == {"ok", "cancelled", *of_requests}
    for rule in group["rules"]:
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "1m"))
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["expr"].count("(") == rule["expr"].count(")")
