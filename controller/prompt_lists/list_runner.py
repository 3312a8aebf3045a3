"""Serves lists of prompts, and requests with more choices than a worker decodes at once: as parts,
each a request of its own on any worker, and one stream for the client.

The runner is a client of the leader in its process: it submits single requests, which are routed,
retried and ended like all others, and receives their streams on an inbox of its own.
"""

import logging
import time
from bisect import insort
from collections.abc import Callable
from dataclasses import replace

from controller.prompt_lists.list_job import PromptListJob, PromptListReplay
from controller.prompt_lists.list_parts import PromptListPart, part_request, split
from controller.prompt_lists.list_publisher import PromptListPublisher
from controller.requests.client_messages import state_name
from controller.requests.events import (
    EndRequests,
    Event,
    PromptListEnded,
    PromptListGrew,
    RequestReceived,
    StatusOrCancelReceived,
)
from controller.requests.instructions import PromptListCommand
from controller.requests.request import RequestKey, TrackedRequest
from controller.requests.store import RETAINED_AFTER_END_S
from controller.routing import TEMPORARY
from shared.bus import IncomingMessage
from shared.client.assembler import StreamAssembler
from shared.client.recovery import RecoveryInputs, StreamRecovery
from shared.clock import boottime_s
from shared.errors import ClusterError, DecodeError
from shared.ids import RequestId
from shared.messages.stream import (
    KEEP_ALIVE_S,
    DoneMessage,
    ErrorDetails,
    FailedMessage,
    FinishReason,
    StreamMessage,
    decode,
    encode,
)
from shared.refused_messages import RefusedMessages
from shared.replay_queue import ReplayQueue
from shared.stream_subscribers import PROBE_INTERVAL_S

logger = logging.getLogger(__name__)

MAX_UNPLACED = 16
"""Maximum number of submitted parts of a list that no worker has, so that a list does not fill the
wait queue."""

TICK_S = 0.25
_SLICE = 16
"""Messages of a stream that are sent again in one turn."""
_BYTES_PER_TICK = 512 * 1024
"""After so many no more is sent again until the next tick: the leader does all else meanwhile."""
_COUNT_CAPACITY_S = 1.0
_WEIGHED_BYTES = 256 * 1024
"""The leader is told whenever the log of a list has grown by so much."""
_MAX_LOSSES = 3
_UNKNOWN_RETRY_MS = 1000
_MAX_RETRY_MS = 2000
_RECONNECT_GRACE_S = 3.0
"""For this time after a new connection, `no responders` does not count: clients reconnect, too."""

_FATAL = frozenset({"invalid_request", "not_supported"})
"""Error codes that concern the request as a whole."""
_FATAL_FOR_A_PROMPT = frozenset({"context_length_exceeded"})
"""Those that concern all choices of a prompt: no other part of it is tried."""


class PromptListRunner:
    """Serves lists for a leader.

    Args:
        submit: passes an event to the leader.
        find: returns what the leader knows of a request.
        capacity: returns the batch slots of the workers that can serve a request, and the maximum
            of one worker.
        put: publishes to a subject, with a reply subject.
        inbox: of the runner; streams arrive on `<inbox>.parts`, and `no responders` for an inbox of
            a client on `<inbox>.probe.<inbox of the client>`.
        connections: returns the number of connections made so far.
        refused: counts what arrives and is no message of a stream. A probe tells a client where
            this inbox is, so whatever a process answers it can be made to answer here.
    """

    def __init__(
        self,
        submit: Callable[[Event], None],
        find: Callable[[RequestKey], TrackedRequest | None],
        capacity: Callable[[TrackedRequest], tuple[int, int]],
        put: Callable[[str, bytes, str], None],
        inbox: str,
        max_bytes: int,
        connections: Callable[[], int],
        refused: RefusedMessages,
    ) -> None:
        self._submit = submit
        self._find = find
        self._capacity = capacity
        self._inbox = f"{inbox}.parts"
        self._probes = f"{inbox}.probe"
        self._publisher = PromptListPublisher(put, self._probes, max_bytes)
        self._connections = connections
        self._refused = refused
        self._connection = connections()
        self._grace_until = 0.0
        self._jobs: dict[RequestKey, PromptListJob] = {}
        self._replays: ReplayQueue[PromptListReplay, StreamMessage] = ReplayQueue()
        self._may_send_bytes = _BYTES_PER_TICK
        self._parts: dict[RequestId, tuple[PromptListJob, PromptListPart]] = {}

    @property
    def idle(self) -> bool:
        """Whether `tick` has nothing to do."""
        return not self._jobs and not self._replays

    # Instructions of the leader.

    def handle(self, order: PromptListCommand) -> None:
        whole = order.request
        match order.verb:
            case "serve":
                self._serve(whole)
            case "attach":
                self._attach(whole, order.inbox)
            case "cancel":
                self._cancel(whole)
            case "fail":
                assert order.error is not None
                self._fail_list(whole, order.error)

    def _serve(self, whole: TrackedRequest) -> None:
        job = PromptListJob.start(whole, split(whole, self._capacity(whole)[1]), boottime_s())
        self._jobs[whole.key] = job
        self._advance(job)
        self._publisher.flush()

    def _attach(self, whole: TrackedRequest, inbox: str) -> None:
        """Send the stream so far, and all that follows, to one more inbox."""
        if (job := self._jobs.get(whole.key)) is None:
            return
        if job.end is None:
            job.inboxes.add(inbox, boottime_s())
        self._replays.add(PromptListReplay(job, inbox))
        self._send_again()

    def _send_again(self) -> None:
        """Send streams again, as much as is left of what one tick may send."""
        while self._replays and self._publisher.sent_bytes < self._may_send_bytes:
            replay, messages = self._replays.take(_SLICE)
            for message in messages:
                self._publisher.add(replay.job, message, (replay.inbox,))
            self._publisher.flush()

    def _cancel(self, whole: TrackedRequest) -> None:
        """End a list because its client cancelled it: the answers so far stay."""
        if (job := self._jobs.get(whole.key)) is None or job.end is not None:
            return
        self._drop_waiting(job, "cancelled")
        for part in job.submitted:
            assert part.request is not None
            self._submit(StatusOrCancelReceived(part.request.key, "", cancel=True, of_part=True))
        self._end_if_answered(job)
        self._publisher.flush()

    def _fail_list(self, whole: TrackedRequest, error: ErrorDetails) -> None:
        """End a list and all its parts with an error."""
        if (job := self._jobs.get(whole.key)) is not None and job.end is None:
            self._end(job, job.failed(error))

    def tick(self) -> None:
        """Check deadlines, silent parts and keep-alives; call it a few times a second."""
        self._may_send_bytes = self._publisher.sent_bytes + _BYTES_PER_TICK
        self._send_again()
        now = time.monotonic()
        for key, job in list(self._jobs.items()):
            if job.end is not None:
                if now - job.ended_at > RETAINED_AFTER_END_S:
                    del self._jobs[key]
                continue
            if now >= job.whole.deadline:
                message = f"timeout_ms of {job.whole.contents.timeout_ms} passed while queued"
                error = ErrorDetails.of("deadline_exceeded", message)
                self._drop_waiting(job, "error", error)
            for part in job.submitted:
                self._recover(job, part, now)
            if (more_bytes := job.log.memory_bytes - job.weighed_bytes) >= _WEIGHED_BYTES:
                job.weighed_bytes += more_bytes
                self._submit(PromptListGrew(job.whole.key, more_bytes))
            self._end_if_answered(job)
            self._advance(job)
            interval_s = PROBE_INTERVAL_S if job.inboxes.doubtful else KEEP_ALIVE_S
            if job.end is None and now - job.sent_at >= interval_s:
                self._send(job, job.status())
        self._publisher.flush()

    def on_message(self, message: IncomingMessage) -> None:
        """Handle a message to an inbox of the runner."""
        if message.subject.startswith(f"{self._probes}."):
            if message.no_responders:
                self._on_no_listener(message.subject.removeprefix(f"{self._probes}."))
            return
        try:
            messages = decode(message.payload)
        except DecodeError as error:
            self._refused.add(error, self._inbox)
            return
        changed: dict[PromptListJob, None] = {}
        for each in messages:
            job, part = self._parts.get(each.request_id or RequestId(""), (None, None))
            if job is not None and part is not None and part.request is not None:
                known = self._find(part.request.key)
                if known is None or each.attempt >= known.attempt:
                    changed[job] = None
                    self._on_stream(job, part, each)
        for job in changed:
            self._end_if_answered(job)
            self._advance(job)
        self._publisher.flush()

    # Parts.

    def _advance(self, job: PromptListJob) -> None:
        """Submit as many parts as capacity allows, in order."""
        now = time.monotonic()
        if job.waiting and now - job.counted_at >= _COUNT_CAPACITY_S:
            job.capacity, job.counted_at = self._capacity(job.whole)[0], now
        while job.end is None and job.waiting and now >= job.not_before:
            submitted = job.submitted
            if any(map(self._is_served, submitted)):
                self._begin(job)
            if job.rejected is not None and not job.begun:
                return  # if no part finds a worker, the list is rejected
            unplaced = sum(not self._is_served(part) for part in submitted)
            choices = sum(part.choices for part in submitted)
            part = job.parts[job.waiting[0]]
            is_full = bool(submitted) and choices + part.choices > job.capacity
            if unplaced >= MAX_UNPLACED or is_full:
                return
            job.waiting.pop(0)
            self._submit_part(job, part)

    def _submit_part(self, job: PromptListJob, part: PromptListPart) -> None:
        now = time.monotonic()
        part.request = request = part_request(job.whole, part, self._inbox, now)
        part.assembler = StreamAssembler(request.request_id, choices=part.choices)
        part.recovery = StreamRecovery(now, self._connections())
        self._parts[request.request_id] = job, part
        self._submit(RequestReceived(request))

    def _recover(self, job: PromptListJob, part: PromptListPart, now: float) -> None:
        """Request missing messages of the stream of a part."""
        request, assembler, recovery = part.request, part.assembler, part.recovery
        if job.end is not None or request is None:
            return  # ended while an earlier part was recovered
        assert assembler is not None and recovery is not None
        known = self._find(request.key) or request
        state = RecoveryInputs(
            connected=True,
            connections=self._connections(),
            received_any=assembler.received_any,
            started=assembler.started,
            worker_known=known.worker is not None,
            missing=assembler.missing_from is not None,
        )
        try:
            step = recovery.next_step(now, state)
        except ClusterError as error:
            self._abort_part(job, part, error)
            return
        if step == "ask_status":
            recovery.on_state(state_name(known), known.worker is not None, now)
        elif step is not None:  # published again, its stream is sent from the start, or it reruns
            self._submit(RequestReceived(part_request(job.whole, part, self._inbox, now)))

    def _on_stream(self, job: PromptListJob, part: PromptListPart, message: StreamMessage) -> None:
        assert part.assembler is not None and part.recovery is not None
        part.recovery.on_message(time.monotonic())
        if isinstance(message, FailedMessage):
            part.route = message.route or part.route
            self._fail_part(job, part, message.error)
            return
        if message.worker is not None:
            self._begin(job)
        try:
            outputs = part.assembler.take(message)
        except ClusterError as error:
            self._abort_part(job, part, error)
            return
        part.usage = part.assembler.usage
        for output in outputs:
            numbered = replace(output, choice=part.first + output.choice)
            if job.is_new(numbered):
                self._send(job, job.chunk(numbered, part.usage))
        if not job.streams and job.least_bytes > self._publisher.max_bytes:
            text = "the answer has more bytes than the maximum of a message"
            self._end(job, job.failed(ErrorDetails.of("answer_too_large", text)))
            return
        if part.assembler.done:
            part.answered, part.timings = True, part.assembler.timings
            part.route, part.warnings = part.assembler.route, part.assembler.warnings
            self._close_part(job, part)

    def _is_served(self, part: PromptListPart) -> bool:
        """Whether a worker has a part, or finished it."""
        if part.request is None:
            return False
        known = self._find(part.request.key) or part.request
        return known.state == "running" or (known.ended and known.succeeded)

    def _begin(self, job: PromptListJob) -> None:
        """A worker accepted a part of the list."""
        if not job.begun:
            job.begun = True
            self._send(job, job.accepted_status())

    def _close_part(self, job: PromptListJob, part: PromptListPart) -> None:
        """Ignore further messages of a part, and let other parts be submitted."""
        if part.request is not None:
            self._parts.pop(part.request.request_id, None)
            part.request = None
        job.rejected, job.not_before = None, 0.0

    def _abort_part(self, job: PromptListJob, part: PromptListPart, error: ClusterError) -> None:
        """The stream of a part is broken: end its request, too."""
        request, details = part.request, ErrorDetails.from_exception(error)
        self._fail_part(job, part, details)
        if request is not None:
            self._submit(EndRequests(request.key, details))

    def _fail_part(self, job: PromptListJob, part: PromptListPart, error: ErrorDetails) -> None:
        """A part failed, and no worker has it any more: submit it again later, or end it."""
        now = time.monotonic()
        has_output = any(job.next_index[number] for number in part.numbers)
        # `client_gone` concerns the runner, which listens: its worker lost contact with it.
        is_loss = error.code == "client_gone" and part.losses < _MAX_LOSSES
        part.losses += is_loss
        part.tries += 1
        self._close_part(job, part)
        if job.end is not None:
            return
        if error.code in _FATAL:
            self._end(job, job.failed(job.prompt_error(part, error)))
            return
        again = is_loss or (error.code in TEMPORARY and not has_output)
        if again and not job.whole.cancelled and now < job.whole.deadline:
            insort(job.waiting, part.number)
            job.rejected = None if is_loss else error
            retry_ms = min(error.retry_after_ms or _UNKNOWN_RETRY_MS, _MAX_RETRY_MS)
            job.not_before = now + retry_ms / 1000
            if not is_loss and not job.submitted and not job.begun:
                self._end(job, job.failed(error))
            return
        if error.code == "client_gone":
            error = ErrorDetails.of("stream_broken", "the worker lost contact with the controller")
        logger.warning(
            "part %d failed: %s", part.number, error.message,
            extra={"request_id": job.whole.request_id, "code": error.code},
        )  # fmt: skip
        part.error = job.prompt_error(part, error)
        self._end_choices(job, part, "error")
        if error.code in _FATAL_FOR_A_PROMPT:
            self._drop_waiting(job, "error", error, prompt=part.prompt)

    def _drop_waiting(
        self,
        job: PromptListJob,
        reason: FinishReason,
        error: ErrorDetails | None = None,
        *,
        prompt: int | None = None,
    ) -> None:
        """End the parts that are not submitted, of one prompt or all."""
        waiting = [job.parts[number] for number in job.waiting]
        dropped = [part for part in waiting if prompt in (None, part.prompt)]
        job.waiting = [part.number for part in waiting if prompt not in (None, part.prompt)]
        for part in dropped:
            part.error = job.prompt_error(part, error) if error is not None else None
            self._end_choices(job, part, reason)

    def _end_choices(self, job: PromptListJob, part: PromptListPart, reason: FinishReason) -> None:
        """Send a finish reason for each choice of a part that has none."""
        part.answered = True
        for output in job.ends_of_choices(part, reason):
            self._send(job, job.chunk(output, None))

    # The client's stream.

    def _end_if_answered(self, job: PromptListJob) -> None:
        if job.end is not None or not job.is_answered:
            return
        if all(part.error is not None for part in job.parts):
            assert job.parts[0].error is not None
            self._end(job, job.failed(job.parts[0].error))
            return
        self._end(job, job.done())

    def _end(self, job: PromptListJob, end: DoneMessage | FailedMessage) -> None:
        payload = encode(end, multiplex=job.multiplex)
        if isinstance(end, DoneMessage) and len(payload) > self._publisher.max_bytes:
            message = f"the answer has {len(payload)} bytes, more than the maximum of a message"
            end = job.failed(ErrorDetails.of("answer_too_large", message))
            payload = encode(end, multiplex=job.multiplex)
        job.end, job.encoded_end = end, payload
        job.ended_at, job.waiting = time.monotonic(), []
        self._publish(job, end)
        self._publisher.flush()
        for part in job.submitted:
            request = part.request
            self._close_part(job, part)
            if request is not None and isinstance(end, FailedMessage):
                self._submit(EndRequests(request.key, end.error))
        self._submit(PromptListEnded(job.whole.key, end))

    def _send(self, job: PromptListJob, message: StreamMessage) -> None:
        """Send a status or a chunk to all inboxes, if the client streams."""
        job.sent_at = time.monotonic()
        if job.streams:
            self._publish(job, message)

    def _publish(self, job: PromptListJob, message: StreamMessage) -> None:
        """Publish a message to all inboxes; where the stream is sent again, behind that."""
        key = job.whole.key
        inboxes = [
            inbox
            for inbox in job.inboxes
            if not self._replays.follow(job.whole.client, (key, inbox), message)
        ]
        self._publisher.add(job, message, inboxes)

    def _on_no_listener(self, inbox: str) -> None:
        """Nobody listens on an inbox: end the lists without another listener."""
        now = boottime_s()
        if self._connections() != self._connection:
            self._connection = self._connections()
            self._grace_until = now + _RECONNECT_GRACE_S
        if now <= self._grace_until:
            return
        for job in list(self._jobs.values()):
            job.inboxes.on_missed(inbox, now)
            if not job.inboxes and job.end is None:
                message = "no client listens to the stream any more"
                self._end(job, job.failed(ErrorDetails.of("client_gone", message)))
