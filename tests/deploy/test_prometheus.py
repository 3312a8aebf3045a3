"""deploy/prometheus and deploy/grafana with a real Prometheus, which scrapes a real cluster.

The cluster serves for some seconds while nothing fails; then engines are killed, for the panels
that only have data after a fault.
"""

import json
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.dashboard import dashboard
from tests.deploy.prometheus import (
    CONFIGURATION,
    SCRAPE_INTERVAL_S,
    Prometheus,
    Series,
    program,
    prometheus,
    promtool,
)
from tests.models import make_tiny_model
from tests.processes import ClusterProcess, cluster_process, wait_for

ALERTS = CONFIGURATION.parent / "alerts.yml"
ALERTS_TEST = CONFIGURATION.parent / "alerts_test.yml"
_CONTEXT_TOKENS = 16_384
_LONG_TOKENS = 2500
"""An answer that takes longer than the time between two scrapes."""
_LABEL = re.compile(r"\{\{ ?([a-z]+) ?\}\}")
_COMPLAINT = re.compile(r"level=(warn|error).*(scrape|rule) manager", re.IGNORECASE)
_VARIABLES = {"$__rate_interval": f"{15 * SCRAPE_INTERVAL_S}s"}
"""As Grafana replaces them: a rate is over four scrapes, or more where a point of the chart stands
for more. A busy machine misses some."""

_AFTER_FAULTS = {
    "mlx_controller_retries_total": "no attempt failed",
    "mlx_controller_migrations_total": "no answer was continued elsewhere",
}
"""Metrics without a series until something goes wrong, each with what has not happened."""

_MAY_BE_ZERO = {
    "mlx_controller_retries_total": "each series starts with the one retry that there is",
    "mlx_controller_migrations_total": "each series starts with the one migration that there is",
    "mlx_controller_waiting_requests": "two idle workers have capacity for each request",
    "mlx_worker_queued_requests": "likewise",
    "mlx_worker_kv_evicted_blocks_total": "the prompts are few",
    "mlx_worker_engine_preemptions_total": "the KV caches are short",
    "mlx_worker_engine_restarts_total": "a test of its own looks after the fault",
    "mlx_controller_breaker_state": "a breaker opens after more failures",
}
"""Metrics of queries that have a series, but may be 0 in this run, each with why."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query of a panel, as Grafana sends it, with the legend of its series."""

    panel: str
    expression: str
    legend: str


@dataclass(frozen=True, slots=True)
class Run:
    """What happened to the cluster.

    Attributes:
        healthy: each query's series before the first fault.
        healthy_alerts: the state of each alert then.
        targets: the last scrape of each target then.
        pages: the text of each `/metrics` at the end, by the process.
    """

    prometheus: Prometheus
    healthy: dict[Query, list[Series]]
    healthy_alerts: dict[str, str]
    targets: list[dict[str, Any]]
    pages: dict[str, str]


def _queries() -> list[Query]:
    found = []
    rows = [""]
    for panel in json.loads(dashboard())["panels"]:
        if panel["type"] == "row":
            rows.append(panel["title"])
        for target in panel.get("targets", []):
            expression = target["expr"]
            for variable, value in _VARIABLES.items():
                expression = expression.replace(variable, value)
            assert "$" not in expression, f"{expression}: a variable that we do not replace"
            found.append(Query(f"{rows[-1]}: {panel['title']}", expression, target["legendFormat"]))
    return found


QUERIES = _queries()


def _names_one_of(metrics: dict[str, str], query: Query) -> bool:
    return any(name in query.expression for name in metrics)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    program("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    # Its answers are as long as we ask for, so that an engine can be killed meanwhile.
    model = make_tiny_model(folder / "model", context_tokens=_CONTEXT_TOKENS, endless=True)
    arguments = ("--metrics-port", "0", "--http-port", "0")
    with cluster_process(workers=2, model=str(model), arguments=arguments) as cluster:
        urls: dict[str, str] = cluster.ready["metrics_urls"]
        pages = {**urls, "gateway": f"{cluster.ready['http_url']}/metrics"}
        targets = {
            "mlx-controller": [_address(urls["controller-1"])],
            "mlx-worker": [_address(urls["worker-1"]), _address(urls["worker-2"])],
            "mlx-gateway": [_address(pages["gateway"])],
        }
        with prometheus(folder, targets) as server:
            _load(cluster, server)
            alerts = _evaluated(server)
            healthy = {query: server.over_time(query.expression) for query in QUERIES}
            scraped = server.targets()
            _kill_an_engine_that_answers(cluster, server)
            yield Run(
                server, healthy, alerts, scraped, {name: _read(url) for name, url in pages.items()}
            )


def _address(url: str) -> str:
    found = re.fullmatch(r"http://([\d.]+:\d+)/metrics", url)
    assert found is not None, url
    return found[1]


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return str(answer.read().decode())


def _request(cluster: ClusterProcess, **more: object) -> urllib.request.Request:
    message = {"role": "user", "content": "Hello again. " * 60}
    return urllib.request.Request(
        f"{cluster.ready['http_url']}/v1/chat/completions",
        json.dumps({"messages": [message], "max_tokens": 5, "temperature": 0} | more).encode(),
        {"content-type": "application/json"},
    )


def _ask(cluster: ClusterProcess, **more: object) -> int:
    """Return the status."""
    try:
        with urllib.request.urlopen(_request(cluster, **more), timeout=60) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def _load(cluster: ClusterProcess, server: Prometheus) -> None:
    """Ask the same again and again, each time seen by a scrape: a counter begins with the first
    request of its kind, and its rate is above 0 from the next one on."""

    def scrapes() -> float:
        return server.value("min(sum_over_time(up[1h]))")

    def ask() -> bool:
        assert _ask(cluster, max_tokens=_LONG_TOKENS, stream=True) == 200
        assert _ask(cluster, temperature=9) == 400
        asked = scrapes()
        return bool(wait_for(lambda: scrapes() >= asked + 2, "the requests are seen"))

    wait_for(scrapes, "the first scrape of each target")
    cached = "sum(mlx_controller_routed_prompt_bytes_total{kept!='no'})"
    # The controller may not have heard yet what the first worker has, or prefer an idle one.
    wait_for(lambda: ask() and server.value(cached), "a request went where its prompt is cached")
    before = server.value(cached)
    wait_for(lambda: ask() and server.value(cached) > before, "another one, too")


def _evaluated(server: Prometheus) -> dict[str, str]:
    """The state of each alert, once all were evaluated without an error."""

    def healthy() -> list[dict[str, Any]] | None:
        rules = server.rules()
        return rules if all(rule["health"] == "ok" for rule in rules) else None

    rules = wait_for(healthy, "the alerts are evaluated", explain=server.rules)
    return {rule["name"]: rule["state"] for rule in rules}


def _answering(cluster: ClusterProcess) -> list[str]:
    pages = {name: _read(cluster.ready["metrics_urls"][name]) for name in cluster.ready["workers"]}
    return [name for name, page in pages.items() if "mlx_worker_active_requests 1.0" in page]


def _kill_an_engine_that_answers(cluster: ClusterProcess, server: Prometheus) -> None:
    """The other worker continues the answer."""
    with urllib.request.urlopen(
        _request(cluster, max_tokens=10_000, stream=True), timeout=60
    ) as answer:
        answer.readline()
        (worker,) = wait_for(lambda: _answering(cluster), "a worker answers")
        (engine,) = cluster.find("worker.engine", f'"id":"{worker}"')
        engine.kill()
        panels = [query for query in QUERIES if _names_one_of(_AFTER_FAULTS, query)]
        wait_for(
            lambda: all(server.over_time(query.expression) for query in panels),
            "retries and migrations are seen",
        )
    wait_for(lambda: server.value("sum(mlx_worker_engine_restarts_total)") == 1, "the restart")


@pytest.mark.parametrize(
    ("variable", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)]
)
def test_without_prometheus_tests_are_skipped_but_not_in_ci(
    variable: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CI", variable)
    with pytest.raises(outcome, match=r"promtool is not installed \(docs/operate.md"):
        program("promtool")


def test_promtool_finds_nothing_in_the_configuration_and_the_rules() -> None:
    promtool("check", "config", CONFIGURATION)
    promtool("check", "rules", "--lint=all", "--lint-fatal", ALERTS)


def test_each_alert_fires_on_a_made_series_and_not_on_a_healthy_one() -> None:
    promtool("test", "rules", ALERTS_TEST)
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    alerts = {rule["alert"] for rule in group["rules"]}
    healthy, *broken = yaml.safe_load(ALERTS_TEST.read_text())["tests"]
    silent = {case["alertname"] for case in healthy["alert_rule_test"] if not case["exp_alerts"]}
    assert silent == alerts
    firing = [
        case["alertname"]
        for test in broken
        for case in test["alert_rule_test"]
        if case["exp_alerts"]
    ]
    assert sorted(firing) == sorted(alerts)


def test_promtool_finds_nothing_in_what_a_cluster_serves(run: Run) -> None:
    assert run.pages.keys() == {"controller-1", "worker-1", "worker-2", "gateway"}
    for page in run.pages.values():
        assert promtool("check", "metrics", text=page) == ""


def test_each_target_of_the_configuration_is_scraped(run: Run) -> None:
    assert [target["lastError"] for target in run.targets] == [""] * 4
    assert {target["health"] for target in run.targets} == {"up"}
    lines = run.prometheus.log.read_text().splitlines()
    assert [line for line in lines if _COMPLAINT.search(line)] == []


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: f"{query.panel} {query.legend}")
def test_each_query_of_a_panel_has_data(query: Query, run: Run) -> None:
    if _names_one_of(_AFTER_FAULTS, query):
        assert run.healthy[query] == []
        series = run.prometheus.over_time(query.expression)
    else:
        series = run.healthy[query]
    figures = [figure for each in series for figure in each.figures]
    assert figures, query.expression
    assert min(figures) >= 0, "the axis of each panel begins at 0"
    assert max(figures) > 0 or _names_one_of(_MAY_BE_ZERO, query), query.expression
    for each in series:
        assert set(_LABEL.findall(query.legend)) <= each.labels.keys(), query.legend


def test_a_panel_shows_the_restart_of_an_engine(run: Run) -> None:
    (query,) = [each for each in QUERIES if "engine_restarts" in each.expression]
    assert max(max(each.figures) for each in run.prometheus.over_time(query.expression)) >= 1


def test_no_alert_fires_on_a_healthy_cluster(run: Run) -> None:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    assert run.healthy_alerts == {rule["alert"]: "inactive" for rule in group["rules"]}
    assert {rule["health"] for rule in run.prometheus.rules()} == {"ok"}
