"""Offers requests to workers, and tries another worker after a rejection or a failure.

A request for which no worker has capacity waits for one. Other actions of
`controller.requests.transitions` are triggered with `fire`.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from controller.dispatch.dispatch_queue import DispatchOutcome, DispatchQueue
from controller.dispatch.router import Router, all_rejected, is_temporary, waiting_kind
from controller.dispatch.wait_queue import RetrySchedule, WaitQueue
from controller.fleet.placement import Outcome, RequestPlacement
from controller.fleet.prefix_cache_index import PrefixCacheIndex
from controller.fleet.registry import NodeRegistry
from controller.requests.instructions import InstructionBuilder
from controller.requests.metrics import ControllerMetrics
from controller.requests.request import WORKER_FAULTS, TrackedRequest, WorkerRejection
from controller.requests.transitions import Trigger
from controller.routing import NoRoute, most_relevant_reason
from shared.errors import ERROR_CODES, ClusterError, is_retryable
from shared.ids import BootId, WorkerId
from shared.messages.request_events import TokensEmitted
from shared.messages.stream import ErrorDetails
from shared.settings import ClusterSettings

_MAX_CRASHES_PER_REQUEST = 2
"""A request ends after this many engine crashes of which it may be the cause."""
_STARTS_WITHIN_S = 60.0
"""Maximum wait for a worker that starts. The wait ends when its engine runs: a model that is still
loading accepts requests."""


class TriggerHandler(Protocol):
    """Performs the action that follows from a trigger; `args` are those of the action."""

    def __call__(self, request: TrackedRequest, trigger: Trigger, *args: object) -> None: ...


class Dispatcher:
    """Offers requests to workers, and tries the next worker after a rejection, silence or failure.

    Attributes:
        router: selects workers.
        queue: dispatches that were not answered yet.
        waiting: requests for which no worker has capacity.
        unresponsive: boots of workers that did not answer a dispatch, and have not reported since.
        failovers_ms: for each failed worker, the longest interruption of a stream until another
            worker continued it.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        registry: NodeRegistry,
        prefixes: PrefixCacheIndex,
        metrics: ControllerMetrics,
        router: Router,
        queue: DispatchQueue,
        instructions: InstructionBuilder,
        rng: Callable[[], float],
        fire: TriggerHandler,
        *,
        settled_at: float,
    ) -> None:
        """
        Args:
            settled_at: from then on every live worker has reported its state.
        """
        self.router = router
        self.queue = queue
        self.waiting = WaitQueue(settings.controller.waiting_room, metrics.totals)
        self.failovers_ms: dict[WorkerId, float] = {}
        self.unresponsive: set[tuple[WorkerId, BootId]] = set()
        self._settings = settings
        self._registry = registry
        self._prefixes = prefixes
        self._metrics = metrics
        self._out = instructions
        self._rng = rng
        self._retries = RetrySchedule(settings.controller.retry, rng)
        self._fire = fire
        self._settled_at = settled_at

    def configure(self, settings: ClusterSettings) -> None:
        """Apply new settings from now on."""
        self._settings = settings
        self._retries = RetrySchedule(settings.controller.retry, self._rng)
        self.router.configure(settings)
        self.queue.configure(settings.controller.dispatch)
        self.waiting.configure(settings.controller.waiting_room)

    # Routing.

    def place(self, request: TrackedRequest) -> None:
        """Offer a request to a worker, or have it wait for one."""
        request.query = query = self.router.query(request, self._out.now)
        request.waiting_kind = kind = waiting_kind(request, query)
        error = self.waiting.ahead_of(query.level, kind) or self._offer(request)
        if error is not None:
            self._enqueue(request, error)

    def place_again(self, request: TrackedRequest) -> None:
        """Offer a request that waits to a worker, if one has capacity now."""
        request.query = self.router.query(request, self._out.now)
        error = self._offer(request)
        if error is None:
            self.waiting.remove(request)
        elif self._is_worth_waiting(request, error):
            self._set_wait(request, error)
        else:
            self.waiting.remove(request, unplaced=True)
            self._fail_unplaced(request, error)

    def _offer(self, request: TrackedRequest) -> NoRoute | None:
        """Offer a request to a worker. Return the reason if there is none."""
        now, query = self._out.now, request.query
        assert query is not None and request.placement is None, request.state
        try:
            decision = self.router.select(request, query, now)
        except NoRoute as error:
            return error
        prefill_ms = decision.chosen.ttft.prefill_ms
        placement = RequestPlacement(
            decision.worker,
            prefill_ms,
            now,
            choices=request.contents.slots,
            client=request.client,
        )
        if request.contents.debug:
            request.route = self.router.route(request, query, decision)
        if request.trace is not None:
            worker, attempt = decision.worker.id, request.attempt + 1
            request.trace.offered(attempt, worker, decision.model, request.reason, now)
        request.offer(decision, placement)
        self._out.add(*self.queue.add(decision.worker.report, request, now))
        return None

    def _enqueue(self, request: TrackedRequest, error: NoRoute) -> None:
        """Have a request wait for a worker, or fail it if that does not help."""
        now = self._out.now
        if not self._is_worth_waiting(request, error):
            self._fail_unplaced(request, error)
            return
        if request.waiting_since is None:
            request.waiting_since = now
        request.state = "queued"
        self._set_wait(request, error)
        displaced = self.waiting.add(request, now)
        if displaced is not None and displaced.no_route is not None:
            self._fail_unplaced(displaced, displaced.no_route)

    def _set_wait(self, request: TrackedRequest, error: NoRoute) -> None:
        """Set why and until when a request waits; an interrupted one is looked at again then."""
        max_wait_s = _STARTS_WITHIN_S if error.is_starting else self.waiting.max_wait_s
        since = self._out.now if request.failures.interrupted else request.waiting_since or 0.0
        request.wake_at = max(since + max_wait_s, self._settled_at)
        request.reason, request.no_route = error.code, error

    def _is_worth_waiting(self, request: TrackedRequest, error: NoRoute) -> bool:
        """Whether a worker may have capacity later. Assumed until `settled_at`."""
        if self._out.now < self._settled_at or error.may_return:
            return True
        rejections = request.rejected.values()
        return self.waiting.enabled and (error.is_temporary or any(map(is_temporary, rejections)))

    def give_up_waiting(self, request: TrackedRequest) -> None:
        """No worker had capacity in time. An interrupted request waits on, unless no worker is
        left."""
        assert request.no_route is not None
        if request.failures.interrupted and not request.no_route.no_workers:
            self.place_again(request)
            return
        self.waiting.remove(request, unplaced=True)
        self._fail_unplaced(request, request.no_route)

    def _fail_unplaced(self, request: TrackedRequest, error: NoRoute) -> None:
        if request.contents.debug and request.query is not None:
            request.route = self.router.route(request, request.query, error)
        if error.code == "queue_full":
            for view in self._registry.workers:
                view.queue_full_count += 1
        reason: ClusterError = error
        if request.rejected:  # the other workers are ineligible
            reason = most_relevant_reason([all_rejected(request), error])
        # The failure of the last attempt says more than the lack of another worker.
        end = request.failures.last_error or ErrorDetails.from_exception(reason)
        self._fire(request, "end_requested", end)

    def retry_waiting(self) -> None:
        """Try to place the requests that wait for capacity."""
        self.waiting.retry(lambda request: self._fire(request, "capacity_changed"))

    def clear_unresponsive(self, worker: WorkerId) -> None:
        """The worker reported its state, or is known to be gone."""
        self.unresponsive = {boot for boot in self.unresponsive if boot[0] != worker}

    # Offers.

    def send_due(self) -> None:
        messages, unanswered = self.queue.pop_due(self._out.now)
        self._out.add(*messages)
        self.on_outcomes(unanswered)

    def on_outcomes(self, outcomes: Iterable[DispatchOutcome]) -> None:
        for outcome in outcomes:
            request = outcome.request
            if request.state != "offered" or request.attempt != outcome.attempt:
                continue  # its events overtook the answer, or it ended or has another attempt
            if outcome.refusal is None:
                self._fire(request, "offer_accepted", outcome.boot_id)
            else:
                self._fire(request, "offer_rejected", outcome)

    def run(self, request: TrackedRequest, boot_id: BootId) -> None:
        """The worker accepted a request."""
        now, decision = self._out.now, request.decision
        if decision is not None and request.query is not None:
            seconds = request.elapsed_ms(now) / 1000
            self._metrics.routed(decision, request.query, seconds)
        request.run(boot_id, now)
        self._out.record_spans(request)
        if request.failover is not None:
            worker, failed_at = request.failover
            request.failover = None
            self.failovers_ms[worker] = max(
                (now - failed_at) * 1000, self.failovers_ms.get(worker, 0.0)
            )
        self._out.log(logging.DEBUG, f"dispatched to {request.worker}", request)

    def rejected(self, request: TrackedRequest, outcome: DispatchOutcome) -> None:
        """The worker rejected a request, or did not answer."""
        refusal, decision = outcome.refusal, request.decision
        assert refusal is not None and decision is not None
        if outcome.unknown:
            self._out.cancel_attempt(request, silent=True)
            request.may_have_ended = True
        view = decision.worker
        self._metrics.refused(view.id, refusal.code)
        self._out.info(f"rejected by {view.id}: {refusal.message}", request, refusal.code)
        if refusal.code == "worker_lost":
            self.unresponsive.add((view.id, view.report.boot_id))
        request.rejected[view.id] = WorkerRejection(refusal, view.report.boot_id, view.seen_at)
        is_fault = outcome.unknown or refusal.code in WORKER_FAULTS
        outcome_kind: Outcome = "fault" if is_fault else "other"
        request.detach(outcome_kind, self._out.now, refusal.code)
        self._out.record_spans(request)

    def record_tokens(self, request: TrackedRequest, event: TokensEmitted) -> bool:
        """Record emitted tokens. Return False if earlier tokens are missing."""
        if request.request is None:
            return True  # the contents, which were requested, include the tokens
        if not request.started and request.model is not None and request.worker is not None:
            seconds = request.elapsed_ms(self._out.now) / 1000
            self._metrics.first_token(request.model, seconds, request.trace_id)
            if request.query is not None:
                links = [link for link, _ in request.query.links(request.model)]
                self._prefixes.expect_cached(request.worker, links)
        return request.record_tokens(event, self._out.now)

    # After a failure.

    def retry(
        self, request: TrackedRequest, error: ErrorDetails, *, innocent: bool = False
    ) -> None:
        """Start another attempt after a failed one, which continues the answer; end the request if
        no further attempt is allowed. `innocent` as of `FailedAttempts.add`."""
        now = self._out.now
        if request.failures.crashes >= _MAX_CRASHES_PER_REQUEST:
            code = "request_crashes_engine"
            error = ErrorDetails.of(code, ERROR_CODES[code].meaning)
        delay_s = self._delay_s(request, error, innocent=innocent)
        if now >= request.deadline:
            error = request.deadline_exceeded()
        elif delay_s is not None and now + delay_s < request.deadline:
            self._back_off(request, error, delay_s, innocent=innocent)
            return
        self._fire(request, "attempts_exhausted", error)

    def _back_off(
        self, request: TrackedRequest, error: ErrorDetails, delay_s: float, *, innocent: bool
    ) -> None:
        text = "migrates" if request.started else "tried again"
        self._out.warn(f"{text}: {error.message}", request, error.code)
        self._metrics.retried(request.worker, error.code, migrated=request.started)
        request.give_up_attempt(error, self._out.now, innocent=innocent)
        self._out.record_spans(request)
        request.state, request.reason = "backing_off", "retry"
        request.wake_at = self._out.now + delay_s
        if request.started:
            self._out.send_waiting_status(request, request.inboxes)
        if not delay_s:
            self._fire(request, "backoff_ended")

    def _delay_s(
        self, request: TrackedRequest, error: ErrorDetails, *, innocent: bool
    ) -> float | None:
        """Return the delay until the next attempt; None if there is none. The first migration since
        the answer last grew is immediate, because a client is reading it."""
        if not is_retryable(error.code):
            return None
        failures = request.failures.in_a_row_with(
            error, started=request.started, grown=request.grown, innocent=innocent
        )
        failures = max(1, failures)
        if not request.started:
            return self._retries.delay_s(failures)
        if failures > self._settings.controller.failover.migration_limit:
            return None
        return self._retries.backoff_s(failures - 1) if failures > 1 else 0.0
