"""Requests on this worker: queued, admitted to an engine, advanced, ended. Nothing here awaits."""

import itertools
import time
from collections.abc import Callable, Collection, Sequence

from shared.change_notifier import ChangeNotifier
from shared.clock import boottime_s
from shared.errors import ClusterError, Unavailable
from shared.ids import ClientName, ControllerId, ModelId, WorkerId
from shared.messages.base import Priority
from shared.messages.dispatch import Dispatch, DispatchRejection
from shared.messages.model_status import ModelStatus
from shared.messages.stream import ErrorDetails
from shared.messages.worker_report import MEMORY_RETRY_AFTER_MS
from shared.settings.tree import ClusterSettings
from shared.telemetry import Tracer
from worker.engine_process.blas_threads import shared_cores
from worker.engine_process.exit import UnexpectedEngineExit
from worker.engine_process.process import EngineProcess
from worker.link import facts
from worker.memory.guard import MemoryGuard
from worker.models.lifecycle import ModelLifecycle
from worker.models.worker_models import WorkerModel
from worker.requests.active_request import ActiveRequest, RequestKey
from worker.requests.engine_order import submit_order
from worker.requests.isolation import FailureIsolation
from worker.requests.table import RequestTable
from worker.scheduling.admission import AdmissionQueue
from worker.scheduling.crash_attribution import CrashAttribution
from worker.scheduling.engine_costs import EngineCostEstimator
from worker.scheduling.fact_handler import FactHandler
from worker.scheduling.local_prefix_index import LocalPrefixIndex
from worker.scheduling.model_statistics import ModelStatistics
from worker.scheduling.step_result_handler import StepResultHandler
from worker.scheduling.termination import RequestTerminator
from worker.sessions.store import SessionStore
from worker.streams.outgoing import OutgoingBatch
from worker.streams.replay import Replay
from worker.streams.status_sender import StreamStatusSender


class RequestScheduler:
    """Owns every request from its dispatch to its end: takes facts of engines, and passes messages
    to the publisher.

    Args:
        engines: all engines of this worker; the list may still grow.
        put: passes messages to the publisher.
        sessions, cached_prefixes: informed of all turns, and of what engines cache of them.
        isolation: ends requests for which an unexpected exception was raised.
        tracer: None if requests are not traced.
    """

    def __init__(
        self,
        worker: WorkerId,
        settings: ClusterSettings,
        engines: Sequence[EngineProcess],
        put: Callable[[OutgoingBatch | Replay], None],
        sessions: SessionStore,
        cached_prefixes: LocalPrefixIndex,
        isolation: FailureIsolation,
        tracer: Tracer | None = None,
    ) -> None:
        self._worker = worker
        self.isolation = isolation
        self.sessions = sessions
        self.cached_prefixes = cached_prefixes
        self._prompt_rules = settings.worker.kv_cache.prompt_rules
        self._tracer = tracer
        self._requests = RequestTable()
        self._numbers = itertools.count(1)
        self._speeds = ModelStatistics(engines)
        self.engines = engines
        self.changes = ChangeNotifier()
        self.guard = MemoryGuard(settings.worker.resource_limits, engines)
        self.models = ModelLifecycle(
            settings,
            engines,
            self.guard,
            self.changes,
            in_use=lambda: self._requests.by_model().keys(),
            on_failed=self._on_model_failed,
        )
        self._crash_attribution = CrashAttribution(
            self.models.catalogue, self.models.loader, self._requests
        )
        cores = shared_cores(settings.worker.engines)
        costs = EngineCostEstimator(engines, self._speeds, cached_prefixes, cores)
        self.admission = AdmissionQueue(
            settings.worker, self.models.catalogue, engines, costs, isolation
        )
        for session in sessions.cached():
            self.admission.set_home(session.key, session.engine)
        self._put = put
        self._status = StreamStatusSender(self.models.catalogue, put)
        self.termination = RequestTerminator(
            engines,
            self.models.catalogue,
            self._requests,
            self.admission,
            sessions,
            self.changes,
            put,
            isolation,
            tracer,
        )
        requests, terminator = self._requests, self.termination
        self.results = StepResultHandler(requests, self._speeds, terminator, put, isolation)
        self._facts = FactHandler(
            requests, sessions, cached_prefixes, self.results, self._status, terminator, isolation
        )

    def configure(self, settings: ClusterSettings) -> None:
        """Apply those of the settings that need no restart."""
        self.guard.configure(settings.worker.resource_limits)
        self.models.configure(settings)
        self.admission.configure(settings.worker.request_queue)

    # State.

    @property
    def running(self) -> int:
        return len(self._requests) - len(self.admission)

    @property
    def idle(self) -> bool:
        return not self._requests

    def model_statuses(self) -> list[ModelStatus]:
        """Return the state of all models of this worker, with their requests."""
        now = time.monotonic()
        present = self._requests.by_model()
        queued = self.admission.queued_by_model()
        return [
            model.status(
                active=present[model.id] - queued[model.id],
                queued=queued[model.id],
                now=now,
                speed=self._speeds.of(model),
            )
            for model in self.models.catalogue
        ]

    def requests(self) -> RequestTable:
        return self._requests

    def find(self, key: RequestKey) -> ActiveRequest | None:
        """Return a request that waits or runs here, or ended here recently."""
        return self._requests.find(key)

    # Intake.

    def accept(self, dispatch: Dispatch, owner: ControllerId) -> DispatchRejection | None:
        """Put a request into the queue; returns why it was rejected, or None.

        Args:
            owner: the controller that gets its events.
        """
        running = self._requests.get((dispatch.client, dispatch.request_id))
        if running is not None:
            if running.fingerprint != dispatch.body_fingerprint:
                message = f"another request runs under the id {dispatch.request_id!r}"
                return DispatchRejection(
                    code="request_id_conflict", message=message, param="request_id"
                )
            if running.dispatch.attempt > dispatch.attempt:
                message = f"attempt {running.dispatch.attempt} of the request runs already"
                return DispatchRejection(code="stale_term", message=message)
            if running.dispatch.attempt == dispatch.attempt:  # the reply was lost
                running.owner = owner
                for inbox in dispatch.inboxes:
                    self.attach(running, inbox)
                return None
            self.drop(running)
        try:
            self.models.check_served(dispatch.model)
            self._crash_attribution.check_client(dispatch.model, dispatch.client)
            self._check_capacity(dispatch.request.level, dispatch.client)
            model = self.models.load_on_demand(dispatch.model)
        except Unavailable as error:
            return DispatchRejection(
                code=error.code, message=error.message, retry_after_ms=error.retry_after_ms
            )
        self._requests.forget_requeued((dispatch.client, dispatch.request_id))
        sequences = [next(self._numbers) for _ in range(dispatch.request.choices)]
        request = ActiveRequest(
            dispatch,
            owner,
            self._worker,
            sequences,
            self._prompt_rules,
            traced=self._tracer is not None and dispatch.trace is not None,
        )
        request.prepare_admission()
        request.suspect = self._crash_attribution.is_suspect(request)
        with self.isolation.of(request, "the acceptance"):
            self._status.accepted(request)
            self._enqueue(request)
        self._admit_all()
        if request.engine is None and request.end is None:
            request.status = "queued" if model.state == "warm" else "loading"
            self._status.send(request)
        return None

    def _check_capacity(self, level: Priority, client: ClientName) -> None:
        """Raises Unavailable if memory is short, or the queue is full for this priority and
        client."""
        self.guard.check()
        if (reason := self.guard.refusal(level)) is not None:
            raise Unavailable(reason, code="memory_pressure", retry_after_ms=MEMORY_RETRY_AFTER_MS)
        if self.admission.rejects(level, client):
            raise Unavailable(
                f"the queue of {self._worker} is full for priority {level}: "
                f"{len(self.admission)} of {self.admission.max_depth} requests wait",
                code="queue_full",
                retry_after_ms=self.admission.retry_after_ms(),
            )

    def _enqueue(self, request: ActiveRequest) -> None:
        """Put a request into the queue; a full queue drops one of lower priority for it."""
        self._requests.add(request)
        if (dropped := self.admission.push(request)) is not None:
            self._requeue(dropped, "displaced by a request of higher priority")

    def _requeue(self, request: ActiveRequest, reason: str) -> None:
        """Send a queued request back to its leader."""
        message = f"{reason} in the queue of {self._worker}"
        retry_after_ms = self.admission.retry_after_ms()
        error = ErrorDetails.of("queue_full", message, retry_after_ms=retry_after_ms)
        self._fail(request, error, requeue=True)

    def cancel(self, key: RequestKey, attempt: int, *, silent: bool) -> bool:
        """End a request because its client cancelled it; returns whether it was here.

        A queued request ends at once, a running one when its engine has cancelled its sequences. A
        `silent` cancel drops the request without any message, since another attempt serves the
        client.
        """
        request = self._requests.get(key)
        if request is None:
            self._requests.forget_requeued(key, attempt)
        if request is None or attempt not in (-1, request.dispatch.attempt):
            return False
        if silent:
            self.drop(request)
        elif request.engine is None:
            self.results.cancel_queued(request)
        else:
            self.termination.cancel_sequences(request)
        return True

    def drop(self, request: ActiveRequest) -> None:
        """Forget a request that another attempt serves, or that its leader ended; sends nothing
        more to its client or leader."""
        request.fenced = True
        self.termination.end(request, cancel=True)
        self._requests.forget(request)
        self._admit_all()

    def requeue_all(
        self,
        error: ErrorDetails,
        *,
        engine: int | None = None,
        model: ModelId | None = None,
        suspects: Collection[ActiveRequest] = (),
    ) -> None:
        """Requeue all requests, or those on an engine or of a model, so that they migrate."""
        for request in self._requests:
            if engine in (None, request.engine) and model in (None, request.model):
                with self.isolation.of(request, "the return to its leader"):
                    self._fail(request, error, requeue=True, suspect=request in suspects)

    def resend(self, request: ActiveRequest, inbox: str, choice: int | None, index: int) -> None:
        """Resend a stream to one inbox, from a token index on; `choice` None: all choices."""
        self._put(Replay(request, inbox, choice, index))

    def attach(self, request: ActiveRequest, inbox: str) -> None:
        """Send a stream to one more inbox, from the start."""
        if request.end is None:
            request.inboxes.add(inbox, boottime_s())
        self._put(Replay(request, inbox))

    def on_missed(self, inbox: str) -> None:
        """Remove an inbox without subscribers, and end the requests that have no other inbox."""
        now = boottime_s()
        for request in self._requests:
            with self.isolation.of(request, "a missing subscriber"):
                request.inboxes.on_missed(inbox, now)
                if not request.inboxes:
                    message = "the stream has no subscriber any more"
                    self._fail(request, ErrorDetails.of("client_gone", message))

    def tick(self) -> None:
        """Check deadlines, send keep-alives, promote and admit; call it a few times a second."""
        now = time.monotonic()
        self._requests.forget_old(now)
        self.models.tick()
        self.admission.promote(now)
        for request in self.admission.overdue(now):
            self._requeue(request, f"waited {request.times.wait_s:.1f} s without a slot")
        for request in self._requests:
            with self.isolation.of(request, "its deadline or keep-alive"):
                self._check_time(request, now)
        self._admit_all()  # memory may have been freed

    def _check_time(self, request: ActiveRequest, now: float) -> None:
        if now >= request.deadline:
            timeout_ms = request.dispatch.request.timeout_ms
            message = f"timeout_ms of {timeout_ms} passed while {request.status}"
            self._fail(request, ErrorDetails.of("deadline_exceeded", message))
        else:
            self._status.renew(request, now)

    def relieve_memory(self) -> None:
        """Measure memory and relieve memory pressure; call it a few times a second."""
        self.guard.check()
        self.guard.relieve(self.models.evict_one)

    # Engines.

    def explain_end(self, engine: EngineProcess, end: UnexpectedEngineExit) -> bool:
        """Whether a model or a request is to blame for the exit of an engine; call
        `on_engine_lost` next."""
        with self.isolation.of(None, "the attribution of a crash"):
            return self._crash_attribution.explain(engine, end)
        return False

    def on_engine_lost(self, engine: EngineProcess, error: ErrorDetails) -> None:
        """Requeue the requests on a dead engine, and the queued requests that no engine can serve
        any more."""
        self.models.loader.on_engine_lost(engine)
        self.cached_prefixes.on_engine_lost(engine.index)
        self.admission.on_engine_lost(engine)
        running = [request for request in self._requests if request.engine == engine.index]
        suspects = self._crash_attribution.apply(engine, running)
        self.requeue_all(error, engine=engine.index, suspects=suspects)
        for request in suspects:
            if request.engine is None:  # the engine was preparing it because of a prefetch
                self._fail(request, error, requeue=True, suspect=True)
        for request in self._requests:
            if request.engine is None:
                self._requeue_if_refused(request)
        failed = {other.index for other in self.engines if other.state == "failed"}
        if len(failed) == len(self.engines):
            self.requeue_all(error)
        for model in self.models.catalogue:
            if model.placed and model.placed <= failed:
                self.requeue_all(error, model=model.id)

    def _requeue_if_refused(self, request: ActiveRequest) -> None:
        """Requeue a queued request of a client that is to blame for crashes."""
        try:
            self._crash_attribution.check_client(request.model, request.client)
        except Unavailable as error:
            self._fail(request, ErrorDetails.of(error.code, error.message), requeue=True)

    # Facts.

    def on_fact(self, engine: EngineProcess, fact: facts.Fact) -> None:
        """Process a fact of an engine."""
        with self.isolation.of(None, f"handling {type(fact).__name__}"):
            self.models.loader.on_fact(engine, fact)
            self._facts.handle(engine, fact)
        if isinstance(fact, facts.StepCompleted | facts.SequenceRejected):
            self._admit_all()

    def _on_model_failed(self, model: WorkerModel, error: ClusterError) -> None:
        """Requeue the requests of a model: another worker may serve it."""
        end = ErrorDetails.of(error.code, error.message, retry_after_ms=error.retry_after_ms)
        self.requeue_all(end, model=model.id)

    # Admission.

    def _admit_all(self) -> None:
        """Admit what has a slot, and end the requests for which something unexpected happened."""
        while True:
            while self.guard.pressure != "hard" and (admitted := self.admission.next()) is not None:
                with self.isolation.of(admitted[0], "the submission to an engine"):
                    self._submit(*admitted)
            self.admission.prefetch()
            if not (failed := self.isolation.take()):
                return
            for request, error in failed:
                self.termination.fail(request, error)

    def _submit(self, request: ActiveRequest, engine: EngineProcess) -> None:
        self._requests.enter_engine(request)
        self.sessions.begin(request)
        for choice in request.choices:
            engine.send(submit_order(request, choice))

    def _fail(
        self,
        request: ActiveRequest,
        error: ErrorDetails,
        *,
        requeue: bool = False,
        suspect: bool = False,
    ) -> None:
        self.termination.fail(request, error, requeue=requeue, suspect=suspect)
        self._admit_all()
