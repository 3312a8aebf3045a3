"""Brings requests to workers: finds one, offers it the request, tries another one after a failure.

A request for which no worker has capacity waits for one. The methods are actions of
`controller.requests.transitions`; what else becomes of a request is said with `fire`.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from controller.dispatch.dispatch_queue import DispatchOutcome, DispatchQueue
from controller.dispatch.retry_schedule import RetrySchedule
from controller.dispatch.router import Router, all_rejected, is_temporary, waiting_kind
from controller.dispatch.waiting_room import WaitingRoom
from controller.fleet.placement import Placement
from controller.fleet.prefix_cache_index import PrefixCacheIndex
from controller.fleet.registry import Registry
from controller.requests.instructions import Instructions
from controller.requests.metrics import ControllerMetrics
from controller.requests.request import WORKER_FAULTS, ClientRequest, WorkerRejection
from controller.requests.transitions import Trigger
from controller.routing import NoRoute, nearest
from shared.errors import ERROR_CODES, ClusterError, is_retryable
from shared.ids import BootId, WorkerId
from shared.messages.request_events import TokensEmitted
from shared.messages.stream import StreamError
from shared.settings import ClusterSettings

_MOST_CRASHES = 2
"""Maximum engine crashes per request."""
_STARTS_WITHIN_S = 60.0
"""A worker that starts is waited for so long; until its engine runs, as models that load accept
requests."""


class FireEvent(Protocol):
    """Says what happened to a request."""

    def __call__(self, request: ClientRequest, trigger: Trigger, *told: object) -> None: ...


class Dispatcher:
    """
    Attributes:
        router, queue, waiting: what it asks.
        doubted: boots of workers that did not answer, and were not heard of since.
        failovers_ms: how long requests waited that had to leave a worker, until they went on: the
            longest for each worker.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        registry: Registry,
        prefixes: PrefixCacheIndex,
        metrics: ControllerMetrics,
        router: Router,
        queue: DispatchQueue,
        instructions: Instructions,
        rng: Callable[[], float],
        fire: FireEvent,
        *,
        settled_at: float,
    ) -> None:
        """
        Args:
            settled_at: from then on every worker was heard that is there.
        """
        self.router = router
        self.queue = queue
        self.waiting = WaitingRoom(settings.controller.waiting_room, metrics.totals)
        self.failovers_ms: dict[WorkerId, float] = {}
        self.doubted: set[tuple[WorkerId, BootId]] = set()
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
        """Go by other settings, from now on."""
        self._settings = settings
        self._retries = RetrySchedule(settings.controller.retry, self._rng)
        self.router.configure(settings)
        self.queue.configure(settings.controller.dispatch)
        self.waiting.configure(settings.controller.waiting_room)

    # A worker for a request.

    def place(self, request: ClientRequest) -> None:
        """Offer it to a worker, or have it wait for one."""
        request.query = query = self.router.query(request, self._out.now)
        request.waiting_kind = kind = waiting_kind(request, query)
        error = self.waiting.ahead_of(query.level, kind) or self._try(request)
        if error is not None:
            self._queue_up(request, error)

    def place_again(self, request: ClientRequest) -> None:
        """Capacity has changed."""
        request.query = self.router.query(request, self._out.now)
        error = self._try(request)
        if error is None:
            self.waiting.leave(request)
        elif self._is_worth_waiting(request, error):
            self._wait_for(request, error)
        else:
            self.waiting.leave(request, in_vain=True)
            self._fail_unplaced(request, error)

    def _try(self, request: ClientRequest) -> NoRoute | None:
        """Offer it to a worker; returns why there is none."""
        now, query = self._out.now, request.query
        assert query is not None and request.placement is None, request.state
        try:
            decision = self.router.find(request, query, now)
        except NoRoute as error:
            return error
        prefill_ms = decision.chosen.forecast.prefill_ms
        placed = Placement(decision.worker, prefill_ms, now, choices=request.contents.choices)
        if request.contents.debug:
            request.route = self.router.route(request, query, decision)
        request.offer(decision, placed)
        self._out.add(*self.queue.add(decision.worker.report, request, now))
        return None

    def _queue_up(self, request: ClientRequest, error: NoRoute) -> None:
        """Have it wait for a worker, where that helps."""
        now = self._out.now
        if not self._is_worth_waiting(request, error):
            self._fail_unplaced(request, error)
            return
        if request.waits_since is None:
            request.waits_since = now
        request.state = "queued"
        self._wait_for(request, error)
        loser = self.waiting.enter(request, now)
        if loser is not None and loser.no_route is not None:
            self._fail_unplaced(loser, loser.no_route)

    def _wait_for(self, request: ClientRequest, error: NoRoute) -> None:
        most_s = _STARTS_WITHIN_S if error.starts else self.waiting.max_wait_s
        request.until = max((request.waits_since or 0.0) + most_s, self._settled_at)
        request.reason, request.no_route = error.code, error

    def _is_worth_waiting(self, request: ClientRequest, error: NoRoute) -> bool:
        """Until every worker was heard that is there, it is."""
        if self._out.now < self._settled_at or error.returns:
            return True
        rejections = request.rejected.values()
        return self.waiting.enabled and (error.passes or any(map(is_temporary, rejections)))

    def give_up_waiting(self, request: ClientRequest) -> None:
        """No worker had capacity in time."""
        self.waiting.leave(request, in_vain=True)
        assert request.no_route is not None
        self._fail_unplaced(request, request.no_route)

    def _fail_unplaced(self, request: ClientRequest, error: NoRoute) -> None:
        if request.contents.debug and request.query is not None:
            request.route = self.router.route(request, request.query, error)
        if error.code == "queue_full":
            for view in self._registry.workers:
                view.queue_full_count += 1
        why: ClusterError = error
        if request.rejected:  # the others are ineligible
            why = nearest([all_rejected(request), error])
        # Why the last attempt failed says more than that nobody else is there.
        self._fire(request, "finish_asked", request.last_error or StreamError.from_exception(why))

    def look(self) -> None:
        """Workers may have capacity now."""
        self.waiting.look(lambda request: self._fire(request, "capacity_changed"))

    def heard(self, worker: WorkerId) -> None:
        """It is there."""
        self.doubted = {boot for boot in self.doubted if boot[0] != worker}

    # Offered.

    def send_due(self) -> None:
        messages, lost = self.queue.pop_due(self._out.now)
        self._out.add(*messages)
        self.on_answers(lost)

    def on_answers(self, answers: Iterable[DispatchOutcome]) -> None:
        for answer in answers:
            request = answer.request
            if request.state != "offered" or request.attempt != answer.attempt:
                continue  # it has told tokens before, or ended, or went on
            if answer.refusal is None:
                self._fire(request, "offer_accepted", answer.boot_id)
            else:
                self._fire(request, "offer_rejected", answer)

    def run(self, request: ClientRequest, boot_id: BootId) -> None:
        """A worker has it."""
        now, decision = self._out.now, request.decision
        if decision is not None and request.query is not None:
            seconds = request.elapsed_ms(now) / 1000
            self._metrics.routed(decision, request.query, seconds)
        request.run(boot_id, now)
        if request.left is not None:
            worker, since = request.left
            request.left = None
            self.failovers_ms[worker] = max(
                (now - since) * 1000, self.failovers_ms.get(worker, 0.0)
            )
        self._out.log(logging.DEBUG, f"dispatched to {request.worker}", request)
        if request.contents.stream and decision is not None and decision.worker.protocol < 2:
            self._out.tell(request, request.accepted_message(), request.inboxes)

    def rejected(self, request: ClientRequest, answer: DispatchOutcome) -> None:
        """The worker does not take it, or nobody knows."""
        refusal, decision = answer.refusal, request.decision
        assert refusal is not None and decision is not None
        if answer.unknown:
            self._out.cancel_attempt(request, silent=True)
            request.unsure = True
        view = decision.worker
        self._metrics.refused(view.id, refusal.code)
        self._out.info(f"{view.id} rejected it: {refusal.message}", request, refusal.code)
        if refusal.code == "worker_lost":
            self.doubted.add((view.id, view.report.boot_id))
        request.rejected[view.id] = WorkerRejection(refusal, view.report.boot_id, view.seen_at)
        request.decline("fault" if refusal.code in WORKER_FAULTS else "other", self._out.now)

    def note_tokens(self, request: ClientRequest, event: TokensEmitted) -> bool:
        """Whether all is known that its worker emitted so far."""
        if request.request is None:
            return True  # its contents, which are on their way, have them
        if not request.started and request.model is not None and request.worker is not None:
            seconds = request.elapsed_ms(self._out.now) / 1000
            self._metrics.first_token(request.model, seconds)
            if request.query is not None:
                links = [link for link, _ in request.query.links(request.model)]
                self._prefixes.expect(request.worker, links)
        return request.note(event, self._out.now)

    # After a failure.

    def retry(self, request: ClientRequest, error: StreamError) -> None:
        """An attempt failed: another one begins, or goes on where this one was; where that is of
        no use, the request ends."""
        now = self._out.now
        if request.crashes >= _MOST_CRASHES:
            code = "request_crashes_engine"
            error = StreamError.of(code, ERROR_CODES[code].meaning)
        delay_s = self._delay_s(request, error)
        if now >= request.deadline:
            error = request.deadline_exceeded()
        elif delay_s is not None and now + delay_s < request.deadline:
            self._back_off(request, error, delay_s)
            return
        self._fire(request, "finish_asked", error)

    def _back_off(self, request: ClientRequest, error: StreamError, delay_s: float) -> None:
        text = "migrates" if request.started else "tried again"
        self._out.warn(f"{text}: {error.message}", request, error.code)
        self._metrics.retried(request.worker, error.code, migrated=request.started)
        request.give_up_attempt(error, self._out.now)
        request.state, request.reason = "backing_off", "retry"
        request.until = self._out.now + delay_s
        if request.started:
            self._out.tell_waiting(request, request.inboxes)
        if not delay_s:
            self._fire(request, "pause_over")

    def _delay_s(self, request: ClientRequest, error: StreamError) -> float | None:
        """Until the next attempt; None where there is none. Who had begun to answer goes on at
        once the first time: somebody is reading."""
        if not is_retryable(error.code):
            return None
        if not request.started:
            return self._retries.delay_s(request.failures + 1)
        if request.migrations >= self._settings.controller.failover.migration_limit:
            return None
        return self._retries.pause_s(request.migrations) if request.migrations else 0.0
