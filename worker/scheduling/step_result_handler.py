"""The outputs of decode steps, turned into events for leaders and messages for clients."""

import logging
import time
from collections.abc import Callable, Iterable

from shared.errors import ERROR_CODES
from shared.messages.stream import DoneMessage, ErrorDetails
from worker.engine_process.blas_threads import ThroughputMeter
from worker.link.facts import SequenceOutput
from worker.requests.active_choice import ActiveChoice
from worker.requests.active_request import ActiveRequest
from worker.requests.isolation import FailureIsolation
from worker.requests.leader_events import tokens_emitted
from worker.requests.table import RequestTable
from worker.scheduling.model_statistics import ModelStatistics
from worker.scheduling.termination import RequestTerminator
from worker.streams.outgoing import OutgoingBatch, OutgoingMessage

logger = logging.getLogger(__name__)


class StepResultHandler:
    """
    Args:
        put: passes messages to the publisher.

    Attributes:
        differing: requests whose answer differs from what an earlier attempt generated.
    """

    def __init__(
        self,
        requests: RequestTable,
        speeds: ModelStatistics,
        termination: RequestTerminator,
        put: Callable[[OutgoingBatch], None],
        isolation: FailureIsolation,
    ) -> None:
        self._requests = requests
        self._isolation = isolation
        self._speeds = speeds
        self._termination = termination
        self._put = put
        self.throughput = ThroughputMeter(time.monotonic)
        self.differing = 0

    def publish(self, engine: int, outputs: Iterable[SequenceOutput]) -> None:
        """Publish the outputs of one step of an engine, in one batch."""
        batch = OutgoingBatch()
        generated = 0
        for output in outputs:
            if entry := self._requests.of_sequence(output.sequence):
                request, choice = entry
                with self._isolation.of(request, "an output"):
                    generated += 0 if choice.is_known(output) else len(output.token_ids)
                    self._advance(request, choice, output, batch)
        self._put(batch)
        self.throughput.add(engine, generated)

    def cancel_queued(self, request: ActiveRequest) -> None:
        """End the choices of a request that no engine has as cancelled."""
        for choice in request.choices:
            batch = OutgoingBatch()
            output = SequenceOutput(choice.sequence, choice.tokens, [], "", "cancelled")
            self._advance(request, choice, output, batch)
            self._put(batch)

    def _advance(
        self,
        request: ActiveRequest,
        choice: ActiveChoice,
        output: SequenceOutput,
        batch: OutgoingBatch,
    ) -> None:
        """Add the leader's event and the client's messages of one output to `batch`."""
        was_started, differed = request.started, request.differs
        messages = request.advance(choice, output)
        if request.differs and not differed:
            self.differing += 1
            logger.warning(
                "the answer differs from what an earlier attempt generated",
                extra={"request_id": request.dispatch.request_id, "model": request.model},
            )
        self._observe(request, choice, output, first=request.started and not was_started)
        if (event := tokens_emitted(request, choice, output)) is not None:
            batch.events.append((request, event))
        if request.is_too_large and not messages:
            error = ErrorDetails.of("answer_too_large", ERROR_CODES["answer_too_large"].meaning)
            self._termination.fail(request, error)
            return
        if choice.finished:
            self._termination.release_slot(choice)
        for message in messages:
            batch.client_messages.append(OutgoingMessage.to_all(request, message))
            request.last_sent_at = time.monotonic()
            if isinstance(message, DoneMessage):
                self._termination.complete(request, batch)

    def _observe(
        self, request: ActiveRequest, choice: ActiveChoice, output: SequenceOutput, *, first: bool
    ) -> None:
        """Record the sizes of prompts and answers; `first`: the request's first token."""
        if first:
            prompt = request.prompt_of(choice)
            self._speeds.prompt_computed(
                request.model,
                text_bytes=prompt.text_bytes,
                tokens=prompt.tokens,
                cached_tokens=prompt.cached_tokens,
            )
        if output.finish_reason in ("stop", "length") and request.generates:
            self._speeds.answered(request.model, choice.tokens)
