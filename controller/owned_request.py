"""A request that this controller answers for, from acceptance to its end."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from controller.placement import Outcome, Placement
from shared.ids import (
    BootId,
    ClientName,
    ControllerId,
    ModelId,
    RequestId,
    SessionKey,
    SkillName,
    WorkerId,
)
from shared.messages.control import Claim, RequestState, RequestStateName
from shared.messages.dispatch import MAX_INBOXES, Continuation, Dispatch
from shared.messages.events import TokensEmitted
from shared.messages.request import InferenceRequest, Message
from shared.messages.routes import Route
from shared.messages.stream import (
    ChoiceOutput,
    Done,
    Failed,
    FinishReason,
    Status,
    StatusName,
    StreamError,
    Timings,
    Usage,
)

RequestKey = tuple[ClientName, RequestId]

_NO_CONTENTS = {"messages": None, "prompt": None, "input": None, "tools": None, "resume": None}

WORKER_FAULTS = frozenset({"worker_lost", "engine_crashed", "internal_error"})
"""Codes of errors that say that something is wrong with the worker, and not with the request."""


@dataclass(slots=True, eq=False)
class OwnedRequest:
    """State of one request.

    Attributes:
        inboxes: who listens: more than one where the request was published again.
        late: the same request, published again after it was dispatched: its worker does not know
            of their inboxes yet.
        tokens: what was emitted, by choice, after those of the client's own `resume`: what another
            worker needs to go on.
        text_sent: how many characters of text they made, those of a client's `resume` too.
        finish_reasons: of choices that ended before others.
        first_token_ms: from acceptance to the first of them.
        cached_tokens: of its prompts, those that were kept where it began.
        tried: workers whose attempt failed; others come first.
        failures: attempts that failed after a worker took them; refusals are none.
        migrations: of those, the ones that had begun to answer.
        left: the worker that it had to leave after it had begun, and since when, until it goes on.
        crashes: of those, the ones that an engine ended with, maybe because of this request.
        last_error: of the last of those.
        end: the terminal message, where this controller sent it.
        said: messages of its session that come before its own.
        body: the request as its client wrote it; None where it came another way, or has ended.
        heard_at: when its worker last said something of it, by itself or when asked.
        ours_since: when it was known last that nobody else has it.
        follows: the turn before it in its session is another controller's now.
        placement, model: of the present attempt.
        links: of its prompt, for that model.
        route: how its worker was chosen, where its client wants to know.
        part_of: the list of prompts of which it is one.
        more_tokens: beside `tokens`: those of a list that went through here to its client, and
            those of an answer that is over.
    """

    request_id: RequestId
    client: ClientName
    skill: SkillName
    inboxes: list[str]
    request: InferenceRequest
    models: list[ModelId]
    seed: int
    elapsed_before_ms: float = 0.0
    state: RequestStateName = "accepted"
    attempt: int = -1
    worker: WorkerId | None = None
    boot_id: BootId | None = None
    tokens: dict[int, list[int]] = field(default_factory=dict)
    text_sent: dict[int, int] = field(default_factory=dict)
    finish_reasons: dict[int, FinishReason] = field(default_factory=dict)
    first_token_ms: float | None = None
    cached_tokens: int | None = None
    tried: set[WorkerId] = field(default_factory=set)
    failures: int = 0
    migrations: int = 0
    left: tuple[WorkerId, float] | None = None
    crashes: int = 0
    last_error: StreamError | None = None
    end: Done | Failed | None = None
    late: "list[OwnedRequest]" = field(default_factory=list)
    said: list[Message] = field(default_factory=list)
    body: bytes | None = None
    placement: Placement | None = None
    model: ModelId | None = None
    links: Sequence[str] = ()
    route: Route | None = None
    part_of: RequestId | None = None
    more_tokens: int = 0
    cancelled: bool = False
    accepted_at: float = field(default_factory=lambda: time.monotonic())
    ended_at: float | None = None
    last_sent_at: float = field(default_factory=lambda: time.monotonic())
    heard_at: float = field(default_factory=lambda: time.monotonic())
    ours_since: float = field(default_factory=lambda: time.monotonic())
    follows: bool = False
    _has_begun: bool = False
    _fingerprint: str | None = None

    @property
    def key(self) -> RequestKey:
        return self.client, self.request_id

    @property
    def session(self) -> SessionKey | None:
        """The session whose turns go one after another."""
        session = self.request.turn_of
        return (self.client, session) if session is not None else None

    @property
    def affinity(self) -> SessionKey | None:
        """What it shares with requests of the same session, or affinity: it is served best where
        the one before was."""
        name = self.request.cache_session
        return (self.client, name) if name is not None else None

    @property
    def deadline(self) -> float:
        """On the clock of `time.monotonic`."""
        return self.accepted_at + (self.request.timeout_ms - self.elapsed_before_ms) / 1000

    @property
    def ended(self) -> bool:
        return self.state in ("finished", "failed")

    def runs_in(self, attempt: int, boot_id: BootId | None) -> bool:
        """Whether this boot of a worker has it, under this attempt."""
        return (self.state, self.attempt, self.boot_id) == ("running", attempt, boot_id)

    @property
    def elapsed_ms(self) -> float:
        return self.elapsed_before_ms + (time.monotonic() - self.accepted_at) * 1000

    def begin_attempt(
        self, worker: WorkerId, boot_id: BootId, model: ModelId, placement: Placement | None = None
    ) -> Dispatch:
        """Count a new attempt and describe it for the worker."""
        self.attempt += 1
        self._has_begun = False
        self.placement, self.model = placement, model
        self.state, self.worker, self.boot_id = "dispatching", worker, boot_id
        self.late.clear()
        return Dispatch(
            request_id=self.request_id,
            client=self.client,
            skill=self.skill,
            model=model,
            attempt=self.attempt,
            inboxes=list(self.inboxes),
            seed=self.seed,
            elapsed_ms=round(self.elapsed_ms, 3),
            request=self.whole,
            resume=self._continuation(),
            route=self.route,
        )

    def _continuation(self) -> Continuation | None:
        """What the next attempt goes on from; None before the first token."""
        if not self.started:
            return None
        heard = self.request.heard_ids
        return Continuation(
            token_ids={choice: [*heard, *ids] for choice, ids in self.tokens.items()},
            text_sent=self.text_sent,
            finish_reasons=self.finish_reasons,
            first_token_ms=self.first_token_ms,
            cached_tokens=self.cached_tokens,
        )

    @property
    def started(self) -> bool:
        """Whether anything of its answer is known."""
        return bool(self.tokens)

    @property
    def whole_body(self) -> bytes | None:
        """The same as JSON, where that is at hand."""
        return self.body if not self.said else None

    @property
    def whole(self) -> InferenceRequest:
        """The request with all that was said before."""
        if not self.said:
            return self.request
        return self.request.model_copy(
            update={"messages": [*self.said, *(self.request.messages or [])]}
        )

    def acknowledge(self, attempt: int, boot_id: BootId) -> None:
        """The worker has it: under this attempt, in this boot."""
        self.state, self.boot_id = "running", boot_id
        self.heard_at = time.monotonic()
        self.attempt = max(self.attempt, attempt)
        if self.placement is not None:
            self.placement.taken()

    def give_up_attempt(self, error: StreamError) -> None:
        """The worker is gone or gave the request back; another one comes."""
        self._leave_worker("fault" if error.code in WORKER_FAULTS else "other")
        self.last_error = error
        self.failures += 1
        if self.started:
            self.migrations += 1
            if self.left is None and self.worker is not None:
                self.left = self.worker, time.monotonic()
            self.models = [self.model] if self.model is not None else self.models
        if self.worker is not None:
            self.tried.add(self.worker)
        self.state, self.worker, self.boot_id = "accepted", None, None

    def add_inbox(self, inbox: str) -> None:
        """One more listener; the oldest goes when there are too many."""
        if inbox not in self.inboxes:
            self.inboxes.append(inbox)
            del self.inboxes[:-MAX_INBOXES]

    def add_late(self, again: "OwnedRequest") -> None:
        """One more whose inbox the worker does not know; as many as may listen."""
        self.late.append(again)
        del self.late[:-MAX_INBOXES]

    def note_tokens(self, event: TokensEmitted) -> None:
        """Keep new tokens; what is known already is not taken twice."""
        if not self._has_begun and self.placement is not None:
            self._has_begun = True
            self.placement.began(time.monotonic())
        if self.first_token_ms is None:
            self.first_token_ms = self.elapsed_ms
            self.cached_tokens = event.cached_tokens
        known = self.tokens.setdefault(event.choice, [])
        index = event.index - len(self.request.heard_ids)
        if 0 <= index <= len(known):  # after a gap nothing fits any more
            known.extend(event.token_ids[len(known) - index :])
            if event.token_ids:
                self.text_sent[event.choice] = event.text_sent
            if event.finish_reason is not None:
                self.finish_reasons[event.choice] = event.finish_reason

    def finish(self, state: RequestStateName, code: str = "") -> None:
        """It ended; badly with an error `code`."""
        good = state == "finished" and not self.cancelled
        self._leave_worker("served" if good else "fault" if code in WORKER_FAULTS else "other")
        self.state, self.body, self.links = state, None, ()
        self.ended_at = time.monotonic()

    def forget_contents(self) -> None:
        """It ended: what was asked and answered goes; what it takes to tell it from another
        request stays."""
        if self._fingerprint is None:
            self._fingerprint = self.request.fingerprint()
            self.request = self.request.model_copy(update=_NO_CONTENTS)
            self.more_tokens += self.known_tokens
            self.tokens, self.said = {}, []

    @property
    def fingerprint(self) -> str:
        """That of its request as it came."""
        return self._fingerprint or self.request.fingerprint()

    @property
    def known_tokens(self) -> int:
        """Of all choices, that its workers told of."""
        return sum(len(tokens) for tokens in self.tokens.values())

    def _leave_worker(self, outcome: Outcome) -> None:
        if self.placement is not None:
            self.placement.ended(outcome, time.monotonic())
            self.placement = None

    def accepted_message(self) -> Status:
        return Status(self.request_id, max(0, self.attempt), None, "accepted", seed=self.seed)

    def waiting_message(self) -> Status:
        name: StatusName = "migrating" if self.started else "queued"
        return Status(self.request_id, max(0, self.attempt), None, name)

    def failed_message(self, error: StreamError) -> Failed:
        route = self.route.model_dump(exclude_none=True) if self.route is not None else None
        return Failed(self.request_id, max(0, self.attempt), self.worker, error, route)

    def cancelled_message(self) -> Done:
        """The end of a request that was cancelled before any worker had it."""
        outputs = tuple(
            ChoiceOutput(choice, 0, [], "", finish_reason="cancelled")
            for choice in range(self.request.choices)
        )
        waited_ms = round(self.elapsed_ms, 2)
        timings = Timings(waited_ms, 0.0, waited_ms, 0.0)
        return Done(self.request_id, max(0, self.attempt), None, Usage(0, 0, 0), timings, outputs)

    def state_message(self, controller: ControllerId, claim: Claim = "certain") -> RequestState:
        return RequestState(
            request_id=self.request_id,
            state=self.state,
            controller=controller,
            worker=self.worker,
            attempt=max(0, self.attempt),
            tokens=self.more_tokens + self.known_tokens,
            claim=claim,
        )
