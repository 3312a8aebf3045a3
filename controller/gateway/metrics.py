"""What the gateway counts, for Prometheus.

Labels hold names that the cluster or its operator gave, never what a caller made up: else a
hostile one could fill the memory with time series.
"""

from typing import Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

from controller.requests.histograms import FIRST_TOKEN_BUCKETS_S, WHOLE_BUCKETS_S
from shared.ids import ClientName
from shared.messages.stream import Usage

UNKNOWN = ""


class GatewayMetrics:
    """The counters of one gateway."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "mlx_gateway_requests", "Requests that ended, by the code of their end.",
            ("client", "model", "code"), registry=self._registry,
        )  # fmt: skip
        self._tokens = Counter(
            "mlx_gateway_tokens", "Tokens of prompts, of those from the cache, and of answers.",
            ("client", "model", "kind"), registry=self._registry,
        )  # fmt: skip
        self._first_token = Histogram(
            "mlx_gateway_time_to_first_token_seconds", "From the request to its first token.",
            ("model",), buckets=FIRST_TOKEN_BUCKETS_S, registry=self._registry,
        )  # fmt: skip
        self._duration = Histogram(
            "mlx_gateway_request_seconds", "From the request to its end, of those that ended well.",
            ("model",), buckets=WHOLE_BUCKETS_S, registry=self._registry,
        )  # fmt: skip
        self._ignored = Counter(
            "mlx_gateway_ignored_fields", "Unknown fields of requests, which were ignored.",
            ("client",), registry=self._registry,
        )  # fmt: skip
        self._stored = Counter(
            "mlx_gateway_stored_responses", "Responses that were to be stored: `stored`, `full` "
            "where there was no room, `failed`.", ("client", "result"), registry=self._registry,
        )  # fmt: skip
        self._open = Gauge(
            "mlx_gateway_open_requests", "Requests being answered now.", registry=self._registry
        )

    def began(self) -> None:
        self._open.inc()

    def ended(self, client: ClientName, model: str, code: str, seconds: float) -> None:
        """`code` is that of the error, `ok`, or `client_gone`."""
        self._open.dec()
        self._requests.labels(client, model, code).inc()
        if code == "ok":
            self._duration.labels(model).observe(seconds)

    def refused(self, client: str, code: str) -> None:
        """It ended before it was sent on."""
        self._requests.labels(client, UNKNOWN, code).inc()

    def ignored(self, client: str, fields: int) -> None:
        self._ignored.labels(client).inc(fields)

    def stored(self, client: ClientName, result: Literal["stored", "full", "failed"]) -> None:
        self._stored.labels(client, result).inc()

    def first_token(self, model: str, seconds: float) -> None:
        self._first_token.labels(model).observe(seconds)

    def used(self, client: ClientName, model: str, usage: Usage) -> None:
        for kind, tokens in (
            ("prompt", usage.prompt_tokens),
            ("cached", usage.cached_tokens),
            ("completion", usage.completion_tokens),
        ):
            self._tokens.labels(client, model, kind).inc(tokens)

    def text(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self._registry)
