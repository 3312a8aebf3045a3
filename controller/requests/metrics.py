"""What a controller counts, for Prometheus.

Labels hold names that the cluster or its operator gave, never what a caller made up: else a
hostile one could fill the memory with time series. What is counted for each request is kept in
plain numbers and put into metrics when somebody looks: the library's own counters take a
microsecond each.
"""

import statistics
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from controller.fleet.circuit_breaker import BreakerState
from controller.fleet.registry import Registry
from controller.fleet.worker_view import WorkerView
from controller.requests.histograms import FIRST_TOKEN_BUCKETS_S, WHOLE_BUCKETS_S
from controller.requests.request import ClientRequest
from controller.routing import RouteDecision, RouteQuery
from shared.ids import ModelId, WorkerId

_DISPATCH_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2, 5)
_BREAKER_STATES: tuple[BreakerState, ...] = ("closed", "half-open", "open")
_NOBODY = ""


@dataclass(slots=True)
class Totals:
    """Counts over all terms, of those who have no labels for them.

    Attributes:
        waiting: requests for which no worker has capacity, now.
        waited, unplaced: those that came to wait, and those of them that found no worker in time.
        dispatches, messages: that were sent to workers, and in how many messages.
    """

    waiting: int = 0
    waited: int = 0
    unplaced: int = 0
    dispatches: int = 0
    messages: int = 0


class _Counts:
    """A counter with labels."""

    def __init__(self, name: str, text: str, *labels: str) -> None:
        self._about = name, text
        self._labels = labels
        self._values: defaultdict[tuple[str, ...], float] = defaultdict(float)

    def add(self, *labels: str, by: float = 1.0) -> None:
        self._values[labels] += by

    def metric(self) -> Metric:
        family = CounterMetricFamily(*self._about, labels=self._labels)
        for labels, value in self._values.items():
            family.add_metric(labels, value)
        return family


class _Durations:
    """A histogram of seconds for each model."""

    def __init__(self, name: str, text: str, buckets: Sequence[float]) -> None:
        self._about = name, text
        self._buckets = buckets
        self._counts: dict[ModelId, list[int]] = {}
        self._sums: dict[ModelId, float] = {}

    def observe(self, model: ModelId, seconds: float) -> None:
        if model not in self._counts:
            self._counts[model], self._sums[model] = [0] * (len(self._buckets) + 1), 0.0
        self._counts[model][bisect_left(self._buckets, seconds)] += 1
        self._sums[model] += seconds

    def metric(self) -> Metric:
        family = HistogramMetricFamily(*self._about, labels=("model",))
        bounds = [*(str(float(bound)) for bound in self._buckets), "+Inf"]
        for model, counts in self._counts.items():
            upto = [sum(counts[: number + 1]) for number in range(len(counts))]
            family.add_metric((model,), list(zip(bounds, upto, strict=True)), self._sums[model])
        return family


class ControllerMetrics(Collector):
    """The counters of one controller. What others know already is asked when somebody looks.

    Attributes:
        registry: collects all of them.
        accepted, completed, rejected, failed: requests of clients; a list counts once. Rejected are
            those that ended because of what they ask.
        retries: attempts that failed and were followed by another one.
        migrations: of those, the ones that had begun to answer.
        adoptions: requests that were taken over from controllers that are gone.
        turns: of sessions, by where they went.
        totals: counts that others keep.
    """

    def __init__(self, registry: Registry) -> None:
        self.accepted = self.completed = self.rejected = self.failed = 0
        self.retries = self.migrations = self.adoptions = 0
        self.turns: Counter[str] = Counter()
        self.totals = Totals()
        self._workers = registry
        self._requests = _Counts(
            "mlx_controller_requests",
            "Requests that ended, by the code of their end; of a list each prompt.",
            "model", "worker", "code",
        )  # fmt: skip
        self._tokens = _Counts("mlx_controller_tokens", "Tokens of answers.", "model", "worker")
        self._prompts = _Counts(
            "mlx_controller_routed_prompt_bytes",
            "Bytes of prompts, by whether the chosen worker was known to keep them.",
            "model", "worker", "kept",
        )  # fmt: skip
        self._turns = _Counts(
            "mlx_controller_session_turns",
            "Turns of sessions: the first ones, those that went where the one before was served, "
            "and those that moved.",
            "went",
        )
        self._retries = _Counts(
            "mlx_controller_retries", "Attempts that failed and were followed by another one.",
            "worker", "code",
        )  # fmt: skip
        self._migrations = _Counts(
            "mlx_controller_migrations",
            "Of the retries, those of requests that had begun to answer.",
            "worker", "code",
        )  # fmt: skip
        self._refusals = _Counts(
            "mlx_controller_refusals", "Dispatches that a worker did not take.", "worker", "code"
        )
        self._dispatch = _Durations(
            "mlx_controller_dispatch_seconds", "From a request's acceptance to a worker's ack.",
            _DISPATCH_BUCKETS_S,
        )  # fmt: skip
        self._first_token = _Durations(
            "mlx_controller_time_to_first_token_seconds",
            "From the acceptance of a request to its first token.",
            FIRST_TOKEN_BUCKETS_S,
        )
        self._duration = _Durations(
            "mlx_controller_request_seconds",
            "From the acceptance of a request to its end, of those that ended well.",
            WHOLE_BUCKETS_S,
        )
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def arrived(self, request: ClientRequest) -> None:
        """A request is known from now on."""
        self.accepted += request.part_of is None

    def routed(self, decision: RouteDecision, query: RouteQuery, seconds: float) -> None:
        """The worker that was chosen took a request, so long after its acceptance."""
        self._dispatch.observe(decision.model, seconds)
        if query.session is not None:
            moved = "home" if query.home == decision.worker.id else "moved"
            went = "first" if query.home is None else moved
            self.turns[went] += 1
            self._turns.add(went)
        kept, labels = decision.chosen.kept, (decision.model, decision.worker.id)
        if kept.share:
            self._prompts.add(*labels, kept.tier, by=kept.share * query.text_bytes)
        self._prompts.add(*labels, "no", by=(1 - kept.share) * query.text_bytes)

    def adopted(self) -> None:
        self.adoptions += 1

    def refused(self, worker: WorkerId, code: str) -> None:
        self._refusals.add(worker, code)

    def retried(self, worker: WorkerId | None, code: str, *, migrated: bool = False) -> None:
        """`migrated`: it had begun to answer."""
        self.retries += 1
        self._retries.add(worker or _NOBODY, code)
        if migrated:
            self.migrations += 1
            self._migrations.add(worker or _NOBODY, code)

    def first_token(self, model: ModelId, seconds: float) -> None:
        self._first_token.observe(model, seconds)

    def ended(self, request: ClientRequest, code: str, seconds: float, *, rejected: bool) -> None:
        """A request ended.

        Args:
            code: that of its error, `cancelled`, or `ok`.
            rejected: it failed because of what it asks.
        """
        if request.part_of is None:
            self.completed += request.ended_well
            self.rejected += rejected
            self.failed += not request.ended_well and not rejected
        if request.delegated:
            return  # of those each part is counted
        labels = request.model or _NOBODY, request.worker or _NOBODY
        self._requests.add(*labels, code)
        if request.tokens:
            self._tokens.add(*labels, by=request.tokens)
        if code == "ok" and request.model is not None:
            self._duration.observe(request.model, seconds)

    def describe(self) -> Iterable[Metric]:
        return self.collect()

    def collect(self) -> Iterable[Metric]:
        for counts in (
            self._requests, self._tokens, self._prompts, self._turns, self._retries,
            self._migrations, self._refusals,
        ):  # fmt: skip
            yield counts.metric()
        for durations in (self._dispatch, self._first_token, self._duration):
            yield durations.metric()
        totals, views = self.totals, self._workers.workers
        for name, text, count in (
            ("adoptions", "Requests of other controllers that were taken over.", self.adoptions),
            ("waited_requests", "Requests that came to wait for room.", totals.waited),
            ("unplaced_requests", "Of those that waited, who gave way to a higher priority, or "
             "found no room in time.", totals.unplaced),
            ("dispatches", "Dispatches that were sent to workers.", totals.dispatches),
            ("dispatch_messages", "Messages in which they were sent.", totals.messages),
        ):  # fmt: skip
            yield CounterMetricFamily(f"mlx_controller_{name}", text, value=count)
        yield GaugeMetricFamily(
            "mlx_controller_waiting_requests", "Requests for which no worker has room.",
            value=totals.waiting,
        )  # fmt: skip
        yield GaugeMetricFamily(
            "mlx_controller_load_deviation",
            "Of the shares of places in use: standard deviation over mean, of workers that take "
            "requests.",
            value=load_deviation(views),
        )
        yield from _of_workers(views)


def _of_workers(views: Sequence[WorkerView]) -> Iterable[Metric]:
    """How the workers stand, as the controller sees them."""
    now = time.monotonic()
    requests = GaugeMetricFamily(
        "mlx_controller_worker_requests", "Requests of a worker, as far as known.",
        labels=("worker", "state"),
    )  # fmt: skip
    breakers = GaugeMetricFamily(
        "mlx_controller_breaker_state", "1 for the state that the breaker of a worker is in.",
        labels=("worker", "state"),
    )  # fmt: skip
    opened = CounterMetricFamily(
        "mlx_controller_breaker_opened", "How often the breaker of a worker opened.",
        labels=("worker",),
    )  # fmt: skip
    for view in views:
        report = view.report
        requests.add_metric((view.id, "active"), report.active_requests)
        requests.add_metric((view.id, "queued"), report.queued_requests)
        requests.add_metric((view.id, "sent_since"), view.unreported)
        if view.breaker is not None:
            state = view.breaker.state(now)
            for name in _BREAKER_STATES:
                breakers.add_metric((view.id, name), float(name == state))
            opened.add_metric((view.id,), view.breaker.opened)
    yield from (requests, breakers, opened)


def load_deviation(views: Sequence[WorkerView]) -> float:
    """The coefficient of variation of the workers' loads; 0 where all are idle."""
    loads = [
        view.choices / max(1, view.report.max_batch_size)
        for view in views
        if view.report.state in ("ready", "warming")
    ]
    mean = statistics.fmean(loads) if loads else 0.0
    return statistics.pstdev(loads) / mean if mean else 0.0
