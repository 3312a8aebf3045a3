"""deploy/grafana/cluster.json: a dashboard for Grafana, made from the panels listed here
(`python -m tests.deploy.examples` renews it).

The format is Grafana's dashboard JSON, schema version 39 (Grafana 11); a variable chooses the data
source at import.
"""

import json
from dataclasses import dataclass
from typing import Any, Literal

Unit = Literal["short", "s", "bytes", "percentunit", "reqps", "none"]
_SOURCE = {"type": "prometheus", "uid": "${source}"}
_COLUMNS, _HEIGHT = 24, 8
_WINDOW = "$__rate_interval"
_PROMPT_BYTES = "mlx_controller_routed_prompt_bytes_total"


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart: each query with the legend of its series."""

    title: str
    unit: Unit
    queries: tuple[tuple[str, str], ...]
    description: str = ""
    stacked: bool = False


def _rate(metric: str, *by: str) -> str:
    return f"sum by ({', '.join(by)}) (rate({metric}[{_WINDOW}]))"


def _quantile(metric: str, quantile: float) -> str:
    return f"histogram_quantile({quantile}, {_rate(f'{metric}_bucket', 'le')})"


ROWS: dict[str, tuple[Panel, ...]] = {
    "Requests": (
        Panel(
            "Requests per second, by outcome", "reqps",
            ((_rate("mlx_controller_requests_total", "code"), "{{code}}"),), stacked=True,
        ),
        Panel(
            "Time to first token", "s",
            tuple(
                (_quantile("mlx_controller_time_to_first_token_seconds", q), f"p{q * 100:.0f}")
                for q in (0.5, 0.95)
            ),
        ),
        Panel(
            "Generated tokens per second, by worker", "none",
            ((_rate("mlx_controller_tokens_total", "worker"), "{{worker}}"),), stacked=True,
        ),
        Panel(
            "Waiting for a worker", "short",
            (("sum(mlx_controller_waiting_requests)", "requests"),),
            "Requests for which no worker has capacity.",
        ),
        Panel(
            "Retries and migrations per second", "reqps",
            ((_rate("mlx_controller_retries_total", "code"), "retry: {{code}}"),
             (_rate("mlx_controller_migrations_total", "code"), "migration: {{code}}")),
            "A migration is a retry of a request that had begun to answer.",
        ),
        Panel(
            "Prompt bytes that were cached where they were routed", "percentunit",
            ((f'sum(rate({_PROMPT_BYTES}{{kept!="no"}}[{_WINDOW}])) / '
              f"sum(rate({_PROMPT_BYTES}[{_WINDOW}]))", "share"),),
        ),
    ),
    "Workers": (
        Panel(
            "Slots in use", "percentunit",
            (("mlx_worker_used_slots / mlx_worker_slots", "{{instance}}"),),
        ),
        Panel(
            "Queued requests, by priority", "short",
            (("sum by (priority) (mlx_worker_queued_requests)", "{{priority}}"),), stacked=True,
        ),
        Panel(
            "Tokens per second", "none",
            ((_rate("mlx_worker_tokens_total", "instance"), "{{instance}}"),),
        ),
        Panel(
            "Memory", "bytes",
            (("mlx_worker_memory_bytes", "{{instance}}"),
             ("mlx_worker_memory_limit_bytes", "{{instance}} {{limit}} limit")),
        ),
        Panel(
            "Decode step", "s",
            (("mlx_worker_engine_step_seconds", "{{instance}} engine {{engine}}"),),
        ),
        Panel(
            "Rows that decode", "short",
            (("sum by (instance, model) (mlx_worker_batch_rows)", "{{instance}} {{model}}"),),
            stacked=True,
        ),
    ),
    "KV memory": (
        Panel(
            "Prompt tokens that were cached", "percentunit",
            (("sum by (instance) (rate(mlx_worker_kv_saved_tokens_total[$__rate_interval])) / "
              "sum by (instance) (rate(mlx_worker_kv_prompt_tokens_total[$__rate_interval]))",
              "{{instance}}"),),
        ),
        Panel(
            "Size, by tier", "bytes",
            (("sum by (instance, tier) (mlx_worker_kv_bytes)", "{{instance}} {{tier}}"),),
        ),
        Panel(
            "Evicted blocks per second", "short",
            ((_rate("mlx_worker_kv_evicted_blocks_total", "instance", "tier"),
              "{{instance}} {{tier}}"),),
        ),
    ),
    "What went wrong": (
        Panel(
            "Restarts of engines", "short",
            (("increase(mlx_worker_engine_restarts_total[1h])", "{{instance}} engine {{engine}}"),),
            "In the last hour.",
        ),
        Panel(
            "Preempted sequences per second", "short",
            ((_rate("mlx_worker_engine_preemptions_total", "instance"), "{{instance}}"),),
            "The KV caches of running requests were full.",
        ),
        Panel(
            "Circuit breakers that are open", "short",
            (('mlx_controller_breaker_state{state="open"}', "{{worker}}"),),
        ),
    ),
    "HTTP": (
        Panel(
            "Requests per second, by client", "reqps",
            ((_rate("mlx_gateway_requests_total", "client"), "{{client}}"),), stacked=True,
        ),
        Panel(
            "Errors per second", "reqps",
            (('sum by (code) (rate(mlx_gateway_requests_total{code!="ok"}[$__rate_interval]))',
              "{{code}}"),),
        ),
        Panel(
            "Time to first token", "s",
            tuple(
                (_quantile("mlx_gateway_time_to_first_token_seconds", q), f"p{q * 100:.0f}")
                for q in (0.5, 0.95)
            ),
        ),
    ),
}  # fmt: skip


def dashboard() -> bytes:
    """Return the file."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "gridPos": {"x": 0, "y": y, "w": _COLUMNS, "h": 1},
                "panels": [],
            }
        )
        y += 1
        width = _COLUMNS // 3
        for number, panel in enumerate(row):
            place = {"x": number % 3 * width, "y": y + number // 3 * _HEIGHT}
            panels.append(
                {"id": len(panels) + 1, "gridPos": {**place, "w": width, "h": _HEIGHT}}
                | _chart(panel)
            )
        y += _HEIGHT * -(-len(row) // 3)
    source = {
        "name": "source",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
        "hide": 0,
    }
    body = {
        "title": "MLX cluster",
        "uid": "mlx-cluster",
        "schemaVersion": 39,
        "version": 1,
        "tags": ["mlx"],
        "timezone": "browser",
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [source]},
        "annotations": {"list": []},
        "panels": panels,
    }
    return (json.dumps(body, indent=2) + "\n").encode()


def _chart(panel: Panel) -> dict[str, Any]:
    custom: dict[str, Any] = {
        "fillOpacity": 20 if panel.stacked else 0,
        "lineWidth": 1,
        "showPoints": "never",
    }
    if panel.stacked:
        custom["stacking"] = {"mode": "normal", "group": "A"}
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0, "custom": custom},
            "overrides": [],
        },
        "options": {
            "legend": {
                "displayMode": "list",
                "placement": "bottom",
                "showLegend": True,
                "calcs": [],
            },
            "tooltip": {"mode": "multi", "sort": "none"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": _SOURCE,
                "expr": query,
                "legendFormat": legend,
            }
            for number, (query, legend) in enumerate(panel.queries)
        ],
    }
