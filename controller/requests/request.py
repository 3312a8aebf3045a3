"""One request of a client in the leader, from its arrival until half a minute after its end."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from controller.fleet.placement import Outcome, RequestPlacement
from controller.requests.answer_progress import AnswerProgress
from controller.requests.failed_attempts import FailedAttempts
from controller.requests.request_trace import RequestTrace
from controller.routing import NoRoute, RouteDecision, RouteQuery
from shared.codec import encode
from shared.ids import BootId, ClientName, ModelId, RequestId, SessionKey, SkillName, WorkerId
from shared.messages.base import Priority
from shared.messages.control import AttemptRef
from shared.messages.conversation import Message
from shared.messages.dispatch import MAX_INBOXES, Dispatch, DispatchRejection, dispatch_json
from shared.messages.request import InferenceRequest
from shared.messages.request_events import AttemptFailed, TokensEmitted
from shared.messages.routes import Route
from shared.messages.stream import DoneMessage, ErrorDetails, FailedMessage

INPUTS_PER_PART = 64
"""Texts to embed that one worker gets at once: few enough that a worker that dies loses little, and
that other workers get some, too."""

RequestKey = tuple[ClientName, RequestId]

State = Literal[
    "waiting", "fetching", "queued", "offered", "running", "backing_off", "delegated", "ended",
    "lost",
]  # fmt: skip
"""See `controller.requests.transitions`."""

WORKER_FAULTS = frozenset({"worker_lost", "engine_crashed"})
"""Error codes that are the fault of the worker, not of the request. An `internal_error` is what a
worker reports when its code failed for one request, which may fail so on every worker: if that
counted, one client could stop the requests of all."""


@dataclass(slots=True)
class WorkerRejection:
    """The rejection by one boot of a worker, whose last report had arrived at `seen_at`."""

    refusal: DispatchRejection
    boot_id: BootId
    seen_at: float


@dataclass(slots=True, eq=False)
class TrackedRequest:
    """The state of one request; times are seconds on the caller's clock.

    Attributes:
        inboxes: that receive the stream: more than one if the request was published again.
        dispatched_to: the inboxes that the last dispatch contained.
        fingerprint: of the body as its client sent it.
        request: the body; None while only a worker has it, and after the end.
        payload: the body as its client encoded it, if available.
        memory_bytes: of body and payload, about; 0 for parts, and as long as only a worker has it.
        history: earlier messages of its session, which are prepended to its own.
        includes_history: `request` contains the earlier messages, because its worker sent it so.
        attempt: the highest attempt number so far; 0 before the first attempt.
        may_have_ended: the worker of the last attempt is gone, did not answer, or had it cancelled
            without a message, and may have sent the terminal message before.
        rejected: workers that rejected it since the last accepted attempt.
        query: what routing must know of it; None before the first routing.
        decision: the routing decision of the last offer.
        no_route: why it waits for a worker.
        waiting_kind: requests of one kind can be served by the same workers; None if no other
            request is comparable.
        waiting_since: when routing first found no worker.
        failures: how its attempts failed so far.
        failover: while the answer is interrupted: the worker that failed, and when.
        pending_requeue: its worker requeued it before its contents were known here.
        end: the terminal message, if this controller sent it.
        succeeded: whether it ended without an error.
        updated_at: when the leader last sent its client a message.
        reported_at: when its worker last reported on it.
        wake_at: in `queued`: when waiting ends; in `backing_off`: when the next attempt starts.
        reason: why no worker has it, for its client.
        delegated: the list runner serves it in parts.
        reported_tokens: tokens of its answer that `progress` does not have: that the list runner
            published, that a claim reported, or that it had when it ended.
        part_of: the id of the request of which it is a part.
        tokens_before: tokens that were known when the last attempt began.
        trace: None if it is not traced.
    """

    request_id: RequestId
    client: ClientName
    skill: SkillName
    inboxes: list[str]
    models: list[ModelId]
    arrived_at: float
    fingerprint: str
    request: InferenceRequest | None = None
    payload: bytes | None = None
    memory_bytes: int = 0
    seed: int = 0
    elapsed_before_ms: float = 0.0
    session: SessionKey | None = None
    affinity: SessionKey | None = None
    state: State = "waiting"
    attempt: int = 0
    may_have_ended: bool = False
    worker: WorkerId | None = None
    boot_id: BootId | None = None
    model: ModelId | None = None
    placement: RequestPlacement | None = None
    query: RouteQuery | None = None
    decision: RouteDecision | None = None
    no_route: NoRoute | None = None
    waiting_kind: Hashable = None
    route: Route | None = None
    progress: AnswerProgress = field(default_factory=AnswerProgress)
    history: list[Message] = field(default_factory=list)
    includes_history: bool = False
    dispatched_to: list[str] = field(default_factory=list)
    rejected: dict[WorkerId, WorkerRejection] = field(default_factory=dict)
    waiting_since: float | None = None
    failures: FailedAttempts = field(default_factory=FailedAttempts)
    failover: tuple[WorkerId, float] | None = None
    pending_requeue: AttemptFailed | None = None
    end: DoneMessage | FailedMessage | None = None
    succeeded: bool = True
    ended_at: float | None = None
    updated_at: float = 0.0
    reported_at: float = 0.0
    wake_at: float = 0.0
    reason: str = "dispatching"
    cancelled: bool = False
    delegated: bool = False
    reported_tokens: int = 0
    part_of: RequestId | None = None
    tokens_before: int = 0
    trace: RequestTrace | None = None

    @classmethod
    def arrived(
        cls,
        client: ClientName,
        skill: SkillName,
        inboxes: list[str],
        request: InferenceRequest,
        models: list[ModelId],
        *,
        request_id: RequestId,
        seed: int,
        now: float,
        payload: bytes | None = None,
        elapsed_before_ms: float = 0.0,
        part_of: RequestId | None = None,
        trace: RequestTrace | None = None,
    ) -> "TrackedRequest":
        """Return a request that a client published, after validation."""
        return cls(
            request_id,
            client,
            skill,
            inboxes,
            models,
            now,
            request.fingerprint(),
            request=request,
            payload=payload,
            seed=seed,
            elapsed_before_ms=elapsed_before_ms,
            session=session_key(client, request.ordered_session),
            affinity=session_key(client, request.cache_session),
            progress=AnswerProgress(len(request.received_ids)),
            updated_at=now,
            part_of=part_of,
            trace=trace,
        )

    def set_contents(self, dispatch: Dispatch, models: list[ModelId], now: float) -> None:
        """Set the contents that a worker or another leader sent."""
        self.request, self.seed = dispatch.request, dispatch.seed
        self.inboxes = list(dispatch.inboxes)
        self.history, self.includes_history = [], dispatch.fingerprint is not None
        self.models = models
        self.arrived_at, self.elapsed_before_ms = now, dispatch.elapsed_ms
        self.route = dispatch.route
        self.affinity = session_key(self.client, dispatch.request.cache_session)
        resumed_tokens = len(dispatch.request.received_ids)
        self.progress = AnswerProgress.from_continuation(dispatch.resume, resumed_tokens)
        if dispatch.trace is not None and self.trace is None:
            self.trace = RequestTrace.restored(
                dispatch.trace,
                began_at=now - dispatch.elapsed_ms / 1000,
                attempt=self.attempt if self.state == "running" else None,
                worker=self.worker,
                model=self.model,
            )

    # Properties.

    @property
    def key(self) -> RequestKey:
        return self.client, self.request_id

    @property
    def ref(self) -> AttemptRef:
        """The last attempt, as orders to workers name it."""
        return AttemptRef(client=self.client, request_id=self.request_id, attempt=self.attempt)

    @property
    def level(self) -> Priority:
        return self.contents.level

    @property
    def contents(self) -> InferenceRequest:
        assert self.request is not None, "its contents are not known"
        return self.request

    @property
    def with_history(self) -> InferenceRequest:
        """The contents, with the earlier messages of the session prepended."""
        if not self.history:
            return self.contents
        messages = [*self.history, *(self.contents.messages or [])]
        return self.contents.model_copy(update={"messages": messages})

    @property
    def ended(self) -> bool:
        return self.state == "ended"

    @property
    def started(self) -> bool:
        """Whether any part of its answer is known."""
        return self.progress.started

    @property
    def grown(self) -> bool:
        """Whether the last attempt added tokens to the answer."""
        return self.progress.count > self.tokens_before

    @property
    def tokens(self) -> int:
        """Number of tokens of all choices that its workers reported."""
        return self.progress.count or self.reported_tokens

    def elapsed_ms(self, now: float) -> float:
        """Return the time since the cluster accepted the request."""
        return self.elapsed_before_ms + (now - self.arrived_at) * 1000

    @property
    def deadline(self) -> float:
        return self.arrived_at + (self.contents.timeout_ms - self.elapsed_before_ms) / 1000

    def deadline_exceeded(self) -> ErrorDetails:
        message = f"timeout_ms of {self.contents.timeout_ms} passed"
        return ErrorDetails.of("deadline_exceeded", message)

    @property
    def trace_id(self) -> str:
        """Empty if the request is not traced."""
        return self.trace.trace_id if self.trace is not None else ""

    def runs_in(self, worker: WorkerId, boot_id: BootId | None) -> bool:
        """Whether this boot of a worker has the request."""
        return (self.state, self.worker, self.boot_id) == ("running", worker, boot_id)

    # Changes of state.

    def add_inboxes(self, inboxes: Iterable[str]) -> None:
        """Add inboxes that receive the stream; the oldest are dropped above `MAX_INBOXES`."""
        self.inboxes += [inbox for inbox in inboxes if inbox not in self.inboxes]
        del self.inboxes[:-MAX_INBOXES]

    def start_from(self, again: "TrackedRequest") -> None:
        """Take the contents of the same request as another client published it, with fewer tokens
        to resume from."""
        self.request, self.payload = again.request, again.payload
        self.progress = AnswerProgress(again.progress.resumed_tokens)
        self.query = self.decision = None

    def inherit(self, before: "TrackedRequest") -> None:
        """Take over from the same request what holds for its clients and its attempts."""
        own, self.inboxes = self.inboxes, list(before.inboxes)
        self.add_inboxes(own)
        self.cancelled = before.cancelled
        self.failures = before.failures
        self.trace = before.trace or self.trace

    def offer(self, decision: RouteDecision, placement: RequestPlacement) -> None:
        """Begin an attempt: the request is offered to a worker."""
        view = decision.worker
        self.state, self.reason, self.attempt = "offered", "dispatching", self.attempt + 1
        self.may_have_ended = False
        self.worker, self.boot_id, self.model = view.id, view.report.boot_id, decision.model
        self.decision, self.placement = decision, placement
        self.dispatched_to, self.tokens_before = list(self.inboxes), self.progress.count

    def dispatch_json(self, now: float) -> bytes:
        """Return the dispatch for a worker, with the earlier messages of the session."""
        fields = self._dispatch_fields(now)
        if self.history:
            fields["fingerprint"] = self.fingerprint
        elif self.payload is not None:
            return dispatch_json(fields, self.payload)
        return dispatch_json(fields, encode(self.with_history))

    def transfer(self, now: float) -> Dispatch:
        """Return the request as it is sent to the next leader."""
        body = self.contents.model_copy(update={"request_id": self.request_id})
        return Dispatch(request=body, **self._dispatch_fields(now))

    def _dispatch_fields(self, now: float) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "request_id": self.request_id,
            "client": self.client,
            "skill": self.skill,
            "model": self.model or self.models[0],
            "attempt": self.attempt,
            "inboxes": self.inboxes,
            "seed": self.seed,
            "elapsed_ms": round(self.elapsed_ms(now), 3),
        }
        if failures := self.failures.count:
            counts = {"migrations": self.failures.migrations, "crashes": self.failures.crashes}
            fields |= {"retries": failures, **counts}
        if self.started:
            fields["resume"] = self.progress.continuation(self.contents.received_ids)
        if self.route is not None:
            fields["route"] = self.route
        if self.includes_history:
            fields["fingerprint"] = self.fingerprint
        if self.trace is not None:
            fields["trace"] = self.trace.wire_fields()
        return fields

    def run(self, boot_id: BootId, now: float) -> None:
        """The worker accepted the request."""
        self.state, self.boot_id, self.reported_at = "running", boot_id, now
        self.rejected.clear()
        self.waiting_since = None
        if self.placement is not None:
            self.placement.accepted()
        if self.trace is not None:
            self.trace.accepted(now)

    def record_tokens(self, event: TokensEmitted, now: float) -> bool:
        """Record tokens that its worker emitted. Return False if earlier ones are missing."""
        if self.placement is not None:
            self.placement.tokens_arrived(now)
        return self.progress.record(event, self.elapsed_ms(now))

    def give_up_attempt(self, error: ErrorDetails, now: float, *, innocent: bool = False) -> None:
        """The worker is gone or requeued the request; another attempt follows. `innocent` as of
        `FailedAttempts.add`."""
        self._end_attempt("fault" if error.code in WORKER_FAULTS else "other", now, error.code)
        self.failures.add(
            error, self.worker, started=self.started, grown=self.grown, innocent=innocent
        )
        if self.started:
            if self.failover is None and self.worker is not None:
                self.failover = self.worker, now
            self.models = [self.model] if self.model is not None else self.models
        self.worker = self.boot_id = self.query = None

    def detach(self, outcome: Outcome, now: float, code: str = "") -> None:
        """The worker to which the request was offered does not have it; it rejected the request
        with the error `code`, if any."""
        self._end_attempt(outcome, now, code)
        self.worker = self.boot_id = None

    def lose(self, now: float) -> None:
        """The worker no longer has the request, and how it ended is unknown."""
        self.detach("other", now)
        self.state, self.ended_at = "lost", now

    def finish(self, *, succeeded: bool, code: str, now: float) -> None:
        """The request ended; with the error `code` if it did not succeed."""
        served = succeeded and not self.cancelled
        failed: Outcome = "fault" if code in WORKER_FAULTS else "other"
        self._end_attempt("served" if served else failed, now, code)
        self.state, self.succeeded, self.ended_at = "ended", succeeded, now

    def forget_contents(self) -> None:
        """Drop contents and answer, as a prompt may be megabytes. What identifies the request
        stays."""
        self.reported_tokens = self.tokens
        self.request = self.payload = self.query = self.decision = None
        self.history, self.progress = [], AnswerProgress(self.progress.resumed_tokens)

    def _end_attempt(self, outcome: Outcome, now: float, code: str = "") -> None:
        if self.placement is not None:
            self.placement.ended(outcome, now)
            self.placement = None
        if self.trace is not None:
            self.trace.attempt_ended(now, code)


def session_key(client: ClientName, session_id: str | None) -> SessionKey | None:
    return (client, session_id) if session_id is not None else None
