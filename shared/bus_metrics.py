"""Prometheus metrics of a process's connection to NATS: what it received and did not handle."""

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.bus import ReceiveStatistics
from shared.bus.receive_statistics import DROP_KINDS


class BusMetrics(Collector):
    """Reads the statistics at each scrape."""

    def __init__(self, statistics: ReceiveStatistics) -> None:
        self._statistics = statistics

    def collect(self) -> Iterable[Metric]:
        dropped = CounterMetricFamily(
            "mlx_bus_dropped_messages",
            "Received messages that reached no handler, by kind: unreadable, or too many.",
            labels=("kind",),
        )
        for kind in DROP_KINDS:
            dropped.add_metric((kind,), self._statistics.dropped[kind])
        yield dropped
        failed = CounterMetricFamily(
            "mlx_bus_failed_messages",
            "Received messages on which a handler failed, by subject; please report them.",
            labels=("subject",),
        )
        for subject, times in self._statistics.failed.items():
            failed.add_metric((subject,), times)
        yield failed
