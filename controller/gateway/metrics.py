"""Prometheus metrics of the gateway.

Label values come from the cluster or its operator, never from callers: a hostile caller could
otherwise fill the memory with time series.
"""

from typing import Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.openmetrics import exposition as openmetrics

from controller.requests.metrics import FIRST_TOKEN_BUCKETS_S, REQUEST_BUCKETS_S
from shared.bus import ReceiveStatistics
from shared.bus_metrics import BusMetrics
from shared.ids import ClientName
from shared.messages.stream import Usage

_UNKNOWN_MODEL = ""
_OPEN_METRICS = "application/openmetrics-text"


class GatewayMetrics:
    """The metrics of one gateway."""

    def __init__(self, received: ReceiveStatistics) -> None:
        """`received`: of the connection to NATS."""
        self._registry = CollectorRegistry()
        self._registry.register(BusMetrics(received))
        self._requests = Counter(
            "mlx_gateway_requests", "Finished requests, by error code; `ok`: successful.",
            ("client", "model", "code"), registry=self._registry,
        )  # fmt: skip
        self._tokens = Counter(
            "mlx_gateway_tokens", "Tokens: of prompts, of cached prefixes, of completions.",
            ("client", "model", "kind"), registry=self._registry,
        )  # fmt: skip
        self._first_token = Histogram(
            "mlx_gateway_time_to_first_token_seconds", "Time to first token.",
            ("model",), buckets=FIRST_TOKEN_BUCKETS_S, registry=self._registry,
        )  # fmt: skip
        self._duration = Histogram(
            "mlx_gateway_request_seconds", "Duration of successful requests.",
            ("model",), buckets=REQUEST_BUCKETS_S, registry=self._registry,
        )  # fmt: skip
        self._ignored = Counter(
            "mlx_gateway_ignored_fields", "Request fields that were ignored.",
            ("client",), registry=self._registry,
        )  # fmt: skip
        self._stored = Counter(
            "mlx_gateway_stored_responses", "Responses to be stored, by result: `stored`, "
            "`full` (no space left), `failed`.", ("client", "result"), registry=self._registry,
        )  # fmt: skip
        self._open = Gauge(
            "mlx_gateway_open_requests", "Requests in progress.", registry=self._registry
        )

    def request_started(self) -> None:
        self._open.inc()

    def request_finished(
        self, client: ClientName, model: str, code: str, seconds: float, trace_id: str = ""
    ) -> None:
        """Count a request; `code` is an error code, `ok`, or `client_gone`."""
        self._open.dec()
        self._requests.labels(client, model, code).inc()
        if code == "ok":
            self._duration.labels(model).observe(seconds, _exemplar(trace_id))

    def request_refused(self, client: str, code: str) -> None:
        """Count a request that failed before it was sent to the cluster."""
        self._requests.labels(client, _UNKNOWN_MODEL, code).inc()

    def fields_ignored(self, client: str, fields: int) -> None:
        self._ignored.labels(client).inc(fields)

    def response_stored(
        self, client: ClientName, result: Literal["stored", "full", "failed"]
    ) -> None:
        self._stored.labels(client, result).inc()

    def first_token(self, model: str, seconds: float, trace_id: str = "") -> None:
        self._first_token.labels(model).observe(seconds, _exemplar(trace_id))

    def tokens_used(self, client: ClientName, model: str, usage: Usage) -> None:
        for kind, tokens in (
            ("prompt", usage.prompt_tokens),
            ("cached", usage.cached_tokens),
            ("completion", usage.completion_tokens),
        ):
            self._tokens.labels(client, model, kind).inc(tokens)

    def text(self, accept: str) -> tuple[bytes, str]:
        """Return all metrics and their content type: OpenMetrics with exemplars if a scraper
        accepts that, else Prometheus' text format."""
        if _OPEN_METRICS in accept:
            text: bytes = openmetrics.generate_latest(self._registry)  # type: ignore[no-untyped-call]
            return text, openmetrics.CONTENT_TYPE_LATEST
        return generate_latest(self._registry), "text/plain; version=0.0.4"


def _exemplar(trace_id: str) -> dict[str, str] | None:
    return {"trace_id": trace_id} if trace_id else None
