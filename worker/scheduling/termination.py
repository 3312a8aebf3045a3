"""How requests end on this worker: completed, failed, requeued, or dropped."""

import logging
import time
from collections.abc import Callable, Sequence

from shared.change_notifier import ChangeNotifier
from shared.errors import is_caused_by_request
from shared.messages.stream import DoneMessage, ErrorDetails
from shared.telemetry import Tracer
from worker.engine_process.process import EngineProcess
from worker.link.facts import SequenceRejected
from worker.link.orders import CancelSequence
from worker.models.worker_models import ModelCatalogue
from worker.requests.active_choice import ActiveChoice
from worker.requests.active_request import ActiveRequest
from worker.requests.attempt_spans import attempt_spans
from worker.requests.isolation import FailureIsolation
from worker.requests.leader_events import failed_event, finished_event
from worker.requests.table import RequestTable
from worker.scheduling.admission import AdmissionQueue
from worker.sessions.store import SessionStore
from worker.streams.outgoing import OutgoingBatch, OutgoingMessage

logger = logging.getLogger(__name__)


class RequestTerminator:
    """Ends requests, and releases what they hold.

    Args:
        changes: notified of each end.
        put: passes messages to the publisher.
        tracer: None if requests are not traced.

    Attributes:
        completed: requests that ended with an answer.
        rejected: requests that failed because of what they ask.
        failed: requests that failed or were requeued for other reasons.
    """

    def __init__(
        self,
        engines: Sequence[EngineProcess],
        models: ModelCatalogue,
        requests: RequestTable,
        admission: AdmissionQueue,
        sessions: SessionStore,
        changes: ChangeNotifier,
        put: Callable[[OutgoingBatch], None],
        isolation: FailureIsolation,
        tracer: Tracer | None = None,
    ) -> None:
        self._isolation = isolation
        self._engines = engines
        self._models = models
        self._requests = requests
        self._admission = admission
        self._sessions = sessions
        self._changes = changes
        self._put = put
        self._tracer = tracer
        self.completed = 0
        self.rejected = 0
        self.failed = 0

    def complete(self, request: ActiveRequest, batch: OutgoingBatch) -> None:
        """End a request whose terminal message is in `batch`, and add the event for its leader."""
        batch.events.append((request, finished_event(request)))
        self.end(request)
        self.completed += 1
        logger.info(
            "done: %d tokens", request.tokens,
            extra={"request_id": request.dispatch.request_id, "model": request.model},
        )  # fmt: skip

    def fail(
        self,
        request: ActiveRequest,
        error: ErrorDetails,
        *,
        requeue: bool = False,
        suspect: bool = False,
    ) -> None:
        """End a request with an error; with `requeue` its client is not told, and the leader
        dispatches the request again."""
        batch = OutgoingBatch()
        with self._isolation.of(None, "the report of a failure"):
            event = failed_event(request, error, terminal_sent=not requeue, suspect=suspect)
            batch.events.append((request, event))
            if requeue:
                self._requests.requeue(request, event, time.monotonic())
            else:
                batch.client_messages.append(OutgoingMessage.to_all(request, request.fail(error)))
        self.end(request, cancel=True, code=error.code)
        self._put(batch)
        if is_caused_by_request(error.code):
            self.rejected += 1
        else:
            self.failed += 1
        logger.warning(
            "request failed: %s", error.message,
            extra={"request_id": request.dispatch.request_id, "code": error.code},
        )  # fmt: skip

    def end(self, request: ActiveRequest, *, cancel: bool = False, code: str | None = None) -> None:
        """Remove a request and release what it holds; with `cancel` also cancel its sequences in
        the engine. `code`: of the error, if it failed."""
        self._changes.notify()
        if cancel and request.engine is not None:
            self.cancel_sequences(request)
        was_here = self._requests.end(request)
        if was_here and request.engine is not None:
            self._admission.on_ended(request)
        self._admission.leave_queue(request)
        for choice in request.choices:
            self.release_slot(choice)
        if was_here:
            with self._isolation.of(None, "the record of an end"):
                self._record(request, code)

    def _record(self, request: ActiveRequest, code: str | None) -> None:
        """Record the end of a request in its session, its model and its trace."""
        if request.engine is not None:
            self._sessions.end(
                request, answered=isinstance(request.end, DoneMessage) and request.tokens > 0
            )
            self._models[request.model].used_at = time.monotonic()
        if self._tracer is not None and request.dispatch.trace is not None:
            self._tracer.record(attempt_spans(request, code))

    def release_slot(self, choice: ActiveChoice) -> None:
        """Release the slot of a choice that left its engine, if it has one."""
        if (request := self._requests.leave_engine(choice)) is not None:
            assert request.engine is not None
            self._admission.release_slot(request.engine, request.model)

    def cancel_sequences(self, request: ActiveRequest) -> None:
        """Cancel the unfinished sequences of an admitted request in its engine."""
        assert request.engine is not None
        for choice in request.unfinished:
            self._engines[request.engine].send(CancelSequence(choice.sequence))


def rejection_error(
    request: ActiveRequest, choice: ActiveChoice, fact: SequenceRejected
) -> ErrorDetails:
    """Return the error of a request of which an engine rejected a sequence; one of several texts
    to embed is named by its number."""
    message, param = fact.message, fact.param
    if request.embeds and param == "input" and len(request.choices) > 1:
        param = f"input.{choice.number}"
        message = f"{param}: {message.removeprefix('input: ')}"
    return ErrorDetails.of(fact.code, message, param)
