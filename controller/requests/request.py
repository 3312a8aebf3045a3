"""One request of a client, as the leader knows it: from its arrival to half a minute after its
end."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from controller.fleet.placement import Outcome, Placement
from controller.requests.answer_progress import AnswerProgress
from controller.routing import NoRoute, RouteDecision, RouteQuery
from shared.codec import encode
from shared.ids import BootId, ClientName, ModelId, RequestId, SessionKey, SkillName, WorkerId
from shared.messages.control import ClaimedRequest, RequestRef, RequestStateName
from shared.messages.conversation import Message
from shared.messages.dispatch import MAX_INBOXES, Dispatch, Refusal, dispatch_json
from shared.messages.priorities import Priority
from shared.messages.request import InferenceRequest
from shared.messages.request_events import RequestFailed, TokensEmitted
from shared.messages.routes import Route
from shared.messages.stream import ChoiceOutput, Done, Failed, Status, StreamError, Timings, Usage

RequestKey = tuple[ClientName, RequestId]

State = Literal[
    "waiting", "fetching", "queued", "offered", "running", "backing_off", "delegated", "ended",
    "lost",
]  # fmt: skip
"""See `controller.requests.transitions`."""

WORKER_FAULTS = frozenset({"worker_lost", "engine_crashed", "internal_error"})
"""Codes of errors that say that something is wrong with the worker, and not with the request."""

_WIRE_STATES: dict[State, RequestStateName] = {
    "waiting": "accepted",
    "fetching": "accepted",
    "queued": "accepted",
    "offered": "dispatching",
    "running": "running",
    "backing_off": "accepted",
    "delegated": "running",
    "lost": "unknown",
}


@dataclass(slots=True)
class WorkerRejection:
    """What one boot of a worker said, that had said how it stands at `seen_at`."""

    refusal: Refusal
    boot_id: BootId
    seen_at: float


@dataclass(slots=True, eq=False)
class ClientRequest:
    """State of one request; times are seconds on the clock of whoever calls.

    Attributes:
        inboxes: who listens: more than one where the request was published again.
        dispatched_to: of those, whom the worker knows that was asked to take it last.
        fingerprint: of the body as it came.
        request: what the client asked for; None while only a worker knows, and after the end.
        payload: that as its client wrote it, where it is at hand.
        earlier: messages of its session that come before its own.
        joined: `request` has them already, as its worker told it.
        attempt: the highest number that was given; 0 before the first.
        unsure: the worker of that attempt left or did not answer, and may have sent the terminal
            message.
        rejected: by whom, since the search for a worker began.
        need: what it asks of a worker; None until that is asked first.
        decision: how the worker was chosen that it was offered to last.
        no_route: why it waits for a worker.
        waiting_kind: who is alike finds a worker where this one does; None where that cannot be
            said.
        waits_since: when the search first found none.
        tried: workers whose attempt failed; others come first.
        failures: attempts that failed after a worker accepted them.
        migrations: of those, the ones that had begun to answer.
        crashes: of those, the ones that an engine ended with, maybe because of this request.
        left: the worker that it had to leave after it had begun, and since when, until it goes on.
        last_error: of the last failed attempt.
        returned: why its worker gave it back, while its contents are not known.
        end: the terminal message, where this controller sent it.
        ended_well: how it ended.
        told_at: when its client was last told something from here.
        heard_at: when its worker last said something of it.
        reason: why no worker has it, for its client.
        delegated: it is served in parts, by the list runner.
        told_tokens: of its answer, as far as that is known without `progress`: those that went
            through there, that its worker named, or that it ended with.
        part_of: the request of which it is a part.
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
    seed: int = 0
    elapsed_before_ms: float = 0.0
    session: SessionKey | None = None
    affinity: SessionKey | None = None
    state: State = "waiting"
    attempt: int = 0
    unsure: bool = False
    worker: WorkerId | None = None
    boot_id: BootId | None = None
    model: ModelId | None = None
    placement: Placement | None = None
    query: RouteQuery | None = None
    decision: RouteDecision | None = None
    no_route: NoRoute | None = None
    waiting_kind: Hashable = None
    route: Route | None = None
    progress: AnswerProgress = field(default_factory=AnswerProgress)
    earlier: list[Message] = field(default_factory=list)
    joined: bool = False
    dispatched_to: list[str] = field(default_factory=list)
    rejected: dict[WorkerId, WorkerRejection] = field(default_factory=dict)
    waits_since: float | None = None
    tried: set[WorkerId] = field(default_factory=set)
    failures: int = 0
    migrations: int = 0
    crashes: int = 0
    left: tuple[WorkerId, float] | None = None
    last_error: StreamError | None = None
    returned: RequestFailed | None = None
    end: Done | Failed | None = None
    ended_well: bool = True
    ended_at: float | None = None
    told_at: float = 0.0
    heard_at: float = 0.0
    until: float = 0.0
    reason: str = "dispatching"
    cancelled: bool = False
    delegated: bool = False
    told_tokens: int = 0
    part_of: RequestId | None = None

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
    ) -> "ClientRequest":
        """A request as its client sent it, checked."""
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
            session=_session(client, request.turn_of),
            affinity=_session(client, request.cache_session),
            progress=AnswerProgress(len(request.heard_ids)),
            told_at=now,
            part_of=part_of,
        )

    @classmethod
    def claimed(
        cls, told: ClaimedRequest, worker: WorkerId, boot_id: BootId, now: float
    ) -> "ClientRequest":
        """One that a worker has, or had: its contents are still to be told."""
        request = cls._had_before(told, [told.model], told.fingerprint, told.session_id, now)
        request.state, request.worker, request.boot_id = "running", worker, boot_id
        request.model, request.heard_at = told.model, now
        request.told_tokens = told.tokens
        request.returned = told.failure if told.state == "returned" else None
        return request

    @classmethod
    def carried(cls, told: Dispatch, models: list[ModelId], now: float) -> "ClientRequest":
        """One that another leader had."""
        session_id = told.request.turn_of
        request = cls._had_before(told, models, told.body_fingerprint, session_id, now)
        request.fill(told, models, now)
        return request

    @classmethod
    def _had_before(
        cls,
        told: ClaimedRequest | Dispatch,
        models: list[ModelId],
        fingerprint: str,
        session_id: str | None,
        now: float,
    ) -> "ClientRequest":
        return cls(
            told.request_id,
            told.client,
            told.skill,
            [],
            models,
            now,
            fingerprint,
            session=_session(told.client, session_id),
            attempt=told.attempt,
            failures=told.retries,
            migrations=told.migrations,
            crashes=told.crashes,
            told_at=now,
        )

    def fill(self, told: Dispatch, models: list[ModelId], now: float) -> None:
        """Its contents are known now."""
        self.request, self.seed, self.inboxes = told.request, told.seed, list(told.inboxes)
        self.earlier, self.joined = [], told.fingerprint is not None
        self.models = models
        self.arrived_at, self.elapsed_before_ms = now, told.elapsed_ms
        self.route = told.route
        self.affinity = _session(self.client, told.request.cache_session)
        self.progress = AnswerProgress.of(told.resume, len(told.request.heard_ids))

    # What it is.

    @property
    def key(self) -> RequestKey:
        return self.client, self.request_id

    @property
    def ref(self) -> RequestRef:
        """Its last attempt."""
        return RequestRef(client=self.client, request_id=self.request_id, attempt=self.attempt)

    @property
    def level(self) -> Priority:
        return self.contents.level

    @property
    def contents(self) -> InferenceRequest:
        assert self.request is not None, "its contents are not known"
        return self.request

    @property
    def whole(self) -> InferenceRequest:
        """With all that was said before in its session."""
        if not self.earlier:
            return self.contents
        messages = [*self.earlier, *(self.contents.messages or [])]
        return self.contents.model_copy(update={"messages": messages})

    @property
    def ended(self) -> bool:
        return self.state == "ended"

    @property
    def started(self) -> bool:
        """Whether anything of its answer is known."""
        return self.progress.started

    @property
    def tokens(self) -> int:
        """Of all choices, that its workers told of."""
        return self.progress.count or self.told_tokens

    def elapsed_ms(self, now: float) -> float:
        """Since it came to the cluster."""
        return self.elapsed_before_ms + (now - self.arrived_at) * 1000

    @property
    def deadline(self) -> float:
        return self.arrived_at + (self.contents.timeout_ms - self.elapsed_before_ms) / 1000

    def deadline_exceeded(self) -> StreamError:
        message = f"timeout_ms of {self.contents.timeout_ms} passed"
        return StreamError.of("deadline_exceeded", message)

    def runs_in(self, worker: WorkerId, boot_id: BootId | None) -> bool:
        """Whether this boot of a worker has it."""
        return (self.state, self.worker, self.boot_id) == ("running", worker, boot_id)

    # What becomes of it.

    def listen(self, inboxes: Iterable[str]) -> None:
        """More listeners; the oldest go when there are too many."""
        self.inboxes += [inbox for inbox in inboxes if inbox not in self.inboxes]
        del self.inboxes[:-MAX_INBOXES]

    def offer(self, decision: RouteDecision, placed: Placement) -> None:
        """A worker is asked to take it."""
        view = decision.worker
        self.state, self.reason, self.attempt = "offered", "dispatching", self.attempt + 1
        self.unsure = False
        self.worker, self.boot_id, self.model = view.id, view.report.boot_id, decision.model
        self.decision, self.placement = decision, placed
        self.dispatched_to = list(self.inboxes)

    def dispatch_json(self, now: float) -> bytes:
        """What a worker is sent: with all that was said before in its session."""
        fields = self._carried(now)
        if self.earlier:
            fields["fingerprint"] = self.fingerprint
        elif self.payload is not None:
            return dispatch_json(fields, self.payload)
        return dispatch_json(fields, encode(self.whole))

    def transfer(self, now: float) -> Dispatch:
        """What the next leader is sent."""
        body = self.contents.model_copy(update={"request_id": self.request_id})
        return Dispatch(request=body, **self._carried(now))

    def _carried(self, now: float) -> dict[str, Any]:
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
        if self.failures:
            counts = {"migrations": self.migrations, "crashes": self.crashes}
            fields |= {"retries": self.failures, **counts}
        if self.started:
            fields["resume"] = self.progress.continuation(self.contents.heard_ids)
        if self.route is not None:
            fields["route"] = self.route
        if self.joined:
            fields["fingerprint"] = self.fingerprint
        return fields

    def run(self, boot_id: BootId, now: float) -> None:
        """The worker has it."""
        self.state, self.boot_id, self.heard_at = "running", boot_id, now
        self.rejected.clear()
        self.waits_since = None
        if self.placement is not None:
            self.placement.taken()

    def note(self, event: TokensEmitted, now: float) -> bool:
        """Its worker emitted tokens; returns whether they are known now."""
        if self.placement is not None:
            self.placement.began(now)
        return self.progress.note(event, self.elapsed_ms(now))

    def give_up_attempt(self, error: StreamError, now: float) -> None:
        """The worker is gone or gave the request back; another one comes."""
        self._leave_worker("fault" if error.code in WORKER_FAULTS else "other", now)
        self.last_error = error
        self.failures += 1
        if self.started:
            self.migrations += 1
            if self.left is None and self.worker is not None:
                self.left = self.worker, now
            self.models = [self.model] if self.model is not None else self.models
        if self.worker is not None:
            self.tried.add(self.worker)
        self.worker = self.boot_id = self.query = None

    def decline(self, outcome: Outcome, now: float) -> None:
        """The worker that it was offered to does not take it."""
        self._leave_worker(outcome, now)
        self.worker = self.boot_id = None

    def lose(self, now: float) -> None:
        """Its worker does not have it any more, and nobody knows how it ended."""
        self.decline("other", now)
        self.state, self.ended_at = "lost", now

    def finish(self, *, well: bool, code: str, now: float) -> None:
        """It ended; badly with an error `code`."""
        good = well and not self.cancelled
        self._leave_worker("served" if good else "fault" if code in WORKER_FAULTS else "other", now)
        self.state, self.ended_well, self.ended_at = "ended", well, now

    def forget_contents(self) -> None:
        """It ended: what was asked and answered goes; what it takes to tell it from another
        request stays. A prompt may be megabytes."""
        self.told_tokens = self.tokens
        self.request = self.payload = self.query = self.decision = None
        self.earlier, self.progress = [], AnswerProgress()

    def _leave_worker(self, outcome: Outcome, now: float) -> None:
        if self.placement is not None:
            self.placement.ended(outcome, now)
            self.placement = None

    # What is said of it.

    def accepted_message(self) -> Status:
        return Status(self.request_id, self.attempt, self.worker, "accepted", seed=self.seed)

    def waiting_message(self) -> Status:
        if self.started:
            return Status(self.request_id, self.attempt, None, "migrating")
        return Status(self.request_id, self.attempt, None, "queued", reason=self.reason)

    def failed_message(self, error: StreamError) -> Failed:
        route = self.route.model_dump(exclude_none=True) if self.route is not None else None
        return Failed(self.request_id, self.attempt, self.worker, error, route)

    def cancelled_message(self, now: float) -> Done:
        """The end of a request that was cancelled while no worker had it."""
        outputs = tuple(
            ChoiceOutput(choice, 0, [], "", finish_reason="cancelled")
            for choice in range(self.contents.choices)
        )
        waited_ms = round(self.elapsed_ms(now), 2)
        timings = Timings(waited_ms, 0.0, waited_ms, 0.0)
        return Done(self.request_id, self.attempt, None, Usage(0, 0, 0), timings, outputs)

    @property
    def wire_state(self) -> RequestStateName:
        """As clients are told."""
        if self.state == "ended":
            return "finished" if self.ended_well else "failed"
        return _WIRE_STATES[self.state]


def _session(client: ClientName, session_id: str | None) -> SessionKey | None:
    return (client, session_id) if session_id is not None else None
