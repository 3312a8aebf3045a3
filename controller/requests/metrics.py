"""The Prometheus metrics of a controller.

Label values come from the cluster or its operator, never from clients: a hostile client could fill
the memory with time series. Counts per request are plain numbers, and become metrics at a scrape:
the library's own counters take a microsecond each.
"""

import statistics
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from controller.fleet.circuit_breaker import BreakerState
from controller.fleet.registry import NodeRegistry
from controller.fleet.worker_view import WorkerView
from controller.requests.request import State, TrackedRequest
from controller.requests.transitions import Trigger
from controller.routing import RouteDecision, RouteQuery
from shared.ids import ModelId, WorkerId
from shared.refused_messages import RefusedMessages

FIRST_TOKEN_BUCKETS_S = (0.05, 0.1, 0.2, 0.35, 0.5, 1, 2, 3.5, 5, 10, 20, 35, 60, 120)
REQUEST_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 40, 60, 120, 300)

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second, unused series per metric


_DISPATCH_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2, 5)
_BREAKER_STATES: tuple[BreakerState, ...] = ("closed", "half-open", "open")
_NO_LABEL = ""


@dataclass(slots=True)
class DispatchCounts:
    """Counts over all terms, without labels.

    Attributes:
        waiting: requests in the wait queue now.
        waited: requests that entered the wait queue.
        unplaced: the number of those that found no worker in time, or gave way to a higher
            priority.
        dispatches, messages: dispatches sent to workers, and the messages that contained them.
    """

    waiting: int = 0
    waited: int = 0
    unplaced: int = 0
    dispatches: int = 0
    messages: int = 0


class _LabelledCounter:
    """A counter with labels."""

    def __init__(self, name: str, documentation: str, *labels: str) -> None:
        self._name, self._documentation = name, documentation
        self._labels = labels
        self._values: defaultdict[tuple[str, ...], float] = defaultdict(float)

    def add(self, *labels: str, amount: float = 1.0) -> None:
        self._values[labels] += amount

    def metric(self) -> Metric:
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labels)
        for labels, value in self._values.items():
            family.add_metric(labels, value)
        return family


class _DurationHistogram:
    """A histogram of seconds for each model; each bucket names the trace of a request in it."""

    def __init__(self, name: str, documentation: str, buckets: Sequence[float]) -> None:
        self._name, self._documentation = name, documentation
        self._buckets = buckets
        self._counts: dict[ModelId, list[int]] = {}
        self._sums: dict[ModelId, float] = {}
        self._exemplars: dict[tuple[ModelId, int], Exemplar] = {}

    def observe(self, model: ModelId, seconds: float, trace_id: str = "") -> None:
        if model not in self._counts:
            self._counts[model], self._sums[model] = [0] * (len(self._buckets) + 1), 0.0
        bucket = bisect_left(self._buckets, seconds)
        self._counts[model][bucket] += 1
        self._sums[model] += seconds
        if trace_id:
            self._exemplars[model, bucket] = Exemplar({"trace_id": trace_id}, seconds)

    def metric(self) -> Metric:
        family = HistogramMetricFamily(self._name, self._documentation, labels=("model",))
        bounds = [*(str(float(bound)) for bound in self._buckets), "+Inf"]
        for model, counts in self._counts.items():
            cumulative = [sum(counts[: number + 1]) for number in range(len(counts))]
            buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = list(
                zip(bounds, cumulative, strict=True)
            )
            for number, bound in enumerate(bounds):
                if (exemplar := self._exemplars.get((model, number))) is not None:
                    buckets[number] = (bound, cumulative[number], exemplar)
            family.add_metric((model,), buckets, self._sums[model])
        return family


class ControllerMetrics(Collector):
    """The metrics of one controller; values that other objects have are read at a scrape.

    Attributes:
        registry: collects all metrics.
        accepted, completed, rejected, failed: requests of clients; a list counts once. Rejected
            requests failed because of their contents.
        retries: attempts that failed and were followed by another attempt.
        migrations: the number of those that had begun to answer.
        adoptions: requests taken over from earlier leaders.
        unexpected_triggers: faults: the table had no action for them.
        turns: of sessions: `first`, `home` (same worker as the previous turn) or `moved`.
        totals: counts that the wait queue and the dispatch queue update.
    """

    def __init__(self, registry: NodeRegistry, refused: RefusedMessages) -> None:
        self.accepted = self.completed = self.rejected = self.failed = 0
        self.retries = self.migrations = self.adoptions = 0
        self.unexpected_triggers = 0
        self.turns: Counter[str] = Counter()
        self.totals = DispatchCounts()
        self._workers = registry
        self._messages = refused
        self._without_action = _LabelledCounter(
            "mlx_controller_unexpected_triggers",
            "Triggers for which the table has no action in the state of the request: a fault.",
            "state", "trigger",
        )  # fmt: skip
        self._requests = _LabelledCounter(
            "mlx_controller_requests",
            "Requests that ended, by error code, `ok` or `cancelled`; each part of a list counts.",
            "model", "worker", "code",
        )  # fmt: skip
        self._tokens = _LabelledCounter(
            "mlx_controller_tokens", "Generated tokens.", "model", "worker"
        )
        self._prompts = _LabelledCounter(
            "mlx_controller_routed_prompt_bytes",
            "Bytes of prompts, by the tier in which the chosen worker has them cached, or `no`.",
            "model", "worker", "kept",
        )  # fmt: skip
        self._turns = _LabelledCounter(
            "mlx_controller_session_turns",
            "Turns of sessions: `first`, `home` (same worker as the previous turn) or `moved`.",
            "went",
        )
        self._retries = _LabelledCounter(
            "mlx_controller_retries", "Attempts that failed and were followed by another attempt.",
            "worker", "code",
        )  # fmt: skip
        self._migrations = _LabelledCounter(
            "mlx_controller_migrations",
            "Retries of requests that had begun to answer.",
            "worker", "code",
        )  # fmt: skip
        self._refusals = _LabelledCounter(
            "mlx_controller_refusals", "Dispatches that a worker rejected.", "worker", "code"
        )
        self._dispatch = _DurationHistogram(
            "mlx_controller_dispatch_seconds",
            "From the acceptance of a request to the worker's ack.",
            _DISPATCH_BUCKETS_S,
        )  # fmt: skip
        self._first_token = _DurationHistogram(
            "mlx_controller_time_to_first_token_seconds",
            "From the acceptance of a request to its first token.",
            FIRST_TOKEN_BUCKETS_S,
        )
        self._duration = _DurationHistogram(
            "mlx_controller_request_seconds",
            "From the acceptance of a request to its end, of requests that succeeded.",
            REQUEST_BUCKETS_S,
        )
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def arrived(self, request: TrackedRequest) -> None:
        self.accepted += request.part_of is None

    def routed(self, decision: RouteDecision, query: RouteQuery, seconds: float) -> None:
        """The chosen worker accepted a request, `seconds` after the leader did."""
        self._dispatch.observe(decision.model, seconds)
        if query.session is not None:
            affinity = "home" if query.home == decision.worker.id else "moved"
            placed = "first" if query.home is None else affinity
            self.turns[placed] += 1
            self._turns.add(placed)
        cached, labels = decision.chosen.cached, (decision.model, decision.worker.id)
        if cached.share:
            self._prompts.add(*labels, cached.tier, amount=cached.share * query.text_bytes)
        self._prompts.add(*labels, "no", amount=(1 - cached.share) * query.text_bytes)

    def adopted(self) -> None:
        self.adoptions += 1

    def unexpected(self, state: State, trigger: Trigger) -> None:
        """A trigger had no action in the state of its request."""
        self.unexpected_triggers += 1
        self._without_action.add(state, trigger)

    def refused(self, worker: WorkerId, code: str) -> None:
        self._refusals.add(worker, code)

    def retried(self, worker: WorkerId | None, code: str, *, migrated: bool = False) -> None:
        """`migrated`: the request had begun to answer."""
        self.retries += 1
        self._retries.add(worker or _NO_LABEL, code)
        if migrated:
            self.migrations += 1
            self._migrations.add(worker or _NO_LABEL, code)

    def first_token(self, model: ModelId, seconds: float, trace_id: str = "") -> None:
        self._first_token.observe(model, seconds, trace_id)

    def ended(self, request: TrackedRequest, code: str, seconds: float, *, rejected: bool) -> None:
        """
        Args:
            code: the error code, `cancelled`, or `ok`.
            rejected: the request failed because of its contents.
        """
        if request.part_of is None:
            self.completed += request.succeeded
            self.rejected += rejected
            self.failed += not request.succeeded and not rejected
        if request.delegated:
            return  # its parts are counted
        labels = request.model or _NO_LABEL, request.worker or _NO_LABEL
        self._requests.add(*labels, code)
        if request.tokens:
            self._tokens.add(*labels, amount=request.tokens)
        if code == "ok" and request.model is not None:
            self._duration.observe(request.model, seconds, request.trace_id)

    def describe(self) -> Iterable[Metric]:
        return self.collect()

    def collect(self) -> Iterable[Metric]:
        for counter in (
            self._requests, self._tokens, self._prompts, self._turns, self._retries,
            self._migrations, self._refusals, self._without_action,
        ):  # fmt: skip
            yield counter.metric()
        refused = CounterMetricFamily(
            "mlx_controller_refused_messages",
            "Messages that could not be read, or that their sender may not send.",
            labels=("kind",),
        )
        for kind, count in self._messages.counts.items():
            refused.add_metric((kind,), count)
        yield refused
        for histogram in (self._dispatch, self._first_token, self._duration):
            yield histogram.metric()
        totals, views = self.totals, self._workers.workers
        for name, documentation, count in (
            ("adoptions", "Requests taken over from earlier leaders.", self.adoptions),
            ("waited_requests", "Requests that entered the wait queue.", totals.waited),
            ("unplaced_requests", "Requests that left the wait queue without a worker: displaced "
             "by a higher priority, or out of time.", totals.unplaced),
            ("dispatches", "Dispatches sent to workers.", totals.dispatches),
            ("dispatch_messages", "Messages that contained dispatches.", totals.messages),
        ):  # fmt: skip
            yield CounterMetricFamily(f"mlx_controller_{name}", documentation, value=count)
        yield GaugeMetricFamily(
            "mlx_controller_waiting_requests", "Requests for which no worker has capacity.",
            value=totals.waiting,
        )  # fmt: skip
        yield GaugeMetricFamily(
            "mlx_controller_load_deviation",
            "Coefficient of variation of the share of slots in use, over workers that accept "
            "requests.",
            value=load_deviation(views),
        )
        yield from _worker_metrics(views)


def _worker_metrics(views: Sequence[WorkerView]) -> Iterable[Metric]:
    """Yield the metrics of workers, as far as the controller knows them."""
    now = time.monotonic()
    requests = GaugeMetricFamily(
        "mlx_controller_worker_requests",
        "Requests of a worker: `active` and `queued` as reported, `sent_since` the report.",
        labels=("worker", "state"),
    )  # fmt: skip
    breakers = GaugeMetricFamily(
        "mlx_controller_breaker_state",
        "1 for the current state of the circuit breaker of a worker.",
        labels=("worker", "state"),
    )  # fmt: skip
    opened = CounterMetricFamily(
        "mlx_controller_breaker_opened", "How often the circuit breaker of a worker opened.",
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
            opened.add_metric((view.id,), view.breaker.times_opened)
    yield from (requests, breakers, opened)


def load_deviation(views: Sequence[WorkerView]) -> float:
    """Return the coefficient of variation of the workers' loads; 0 if all are idle."""
    loads = [
        view.choices / max(1, view.report.max_batch_size)
        for view in views
        if view.report.state in ("ready", "warming")
    ]
    mean = statistics.fmean(loads) if loads else 0.0
    return statistics.pstdev(loads) / mean if mean else 0.0
