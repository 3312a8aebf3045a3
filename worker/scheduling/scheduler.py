"""Requests on this worker: queued, admitted to an engine, advanced, ended.

Facts from engines come in, messages for the publisher go out; nothing here awaits.
"""

import itertools
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence

from shared.changes import Changes
from shared.clock import awake_or_asleep
from shared.codec import encode
from shared.errors import ClusterError, Unavailable, is_of_the_request
from shared.ids import ControllerId, ModelId, WorkerId
from shared.messages.control import ClaimedRequest, RequestRef
from shared.messages.dispatch import Dispatch, Refusal
from shared.messages.events import MEMORY_RETRY_AFTER_MS, ModelStatus
from shared.messages.request import Priority
from shared.messages.stream import Done, StreamError
from shared.settings.tree import ClusterSettings
from worker.engine_process.exit import EngineExit
from worker.engine_process.process import EngineProcess
from worker.engine_process.threads import shared_cores
from worker.engine_process.throughput import Throughput
from worker.link.facts import (
    EngineStarted,
    Fact,
    Output,
    PrefillAdvanced,
    PrefixRestored,
    SequenceCached,
    SequencePreempted,
    SequenceRejected,
    SequencesMeasured,
    SequenceStarted,
    StepCompleted,
)
from worker.link.orders import Cancel
from worker.memory.guard import MemoryGuard
from worker.models.catalogue import Model
from worker.models.lifecycle import ModelLifecycle
from worker.requests.active_request import ActiveRequest, RequestChoice, RequestKey
from worker.requests.table import RequestTable
from worker.scheduling.admission import Admission
from worker.scheduling.cached_prefixes import CachedPrefixTracker
from worker.scheduling.crash_attribution import CrashAttribution
from worker.scheduling.engine_costs import EngineCosts
from worker.scheduling.model_speeds import ModelSpeeds
from worker.sessions.book import SessionStore
from worker.streams.publisher import ClientMessage, PublishBatch
from worker.streams.status import StreamStatus

logger = logging.getLogger(__name__)


class Scheduler:
    """Owns every request between its dispatch and its end.

    Args:
        engines: all of this worker; the list may still grow.
        put: hands messages to the publisher.
        sessions, kept: hear of all turns, and of what engines keep of them.
    """

    def __init__(
        self,
        worker: WorkerId,
        settings: ClusterSettings,
        engines: Sequence[EngineProcess],
        put: Callable[[PublishBatch], None],
        sessions: SessionStore,
        kept: CachedPrefixTracker,
    ) -> None:
        self._worker = worker
        self._put = put
        self.sessions = sessions
        self.kept = kept
        self._prompt_rules = settings.worker.kv_cache.prompt_rules
        self._requests = RequestTable()
        self._numbers = itertools.count(1)
        self.throughput = Throughput(time.monotonic)
        self._speeds = ModelSpeeds(engines)
        self.engines = engines
        self.changes = Changes()
        self.guard = MemoryGuard(settings.worker.resource_limits, engines)
        self.models = ModelLifecycle(
            settings,
            engines,
            self.guard,
            self.changes,
            in_use=self._models_in_use,
            on_failed=self._on_model_failed,
        )
        self._blame = CrashAttribution(self.models.catalogue, self.models.loader, self._requests)
        cores = shared_cores(settings.worker.engines)
        costs = EngineCosts(engines, self._speeds, kept, cores)
        self.admission = Admission(settings.worker, self.models.catalogue, engines, costs)
        for session in sessions.texts():
            self.admission.settle(session.key, session.engine)
        self._status = StreamStatus(self.models.catalogue, put)
        self.completed = 0
        self.rejected = 0
        self.failed = 0
        self.differing = 0

    def configure(self, settings: ClusterSettings) -> None:
        """Go by other settings; of them only those that need no restart."""
        self.guard.configure(settings.worker.resource_limits)
        self.models.configure(settings)
        self.admission.configure(settings.worker.request_queue)

    # What others ask.

    @property
    def running(self) -> int:
        return len(self._requests) - len(self.admission)

    @property
    def idle(self) -> bool:
        return not self._requests

    def model_statuses(self) -> list[ModelStatus]:
        """All models of this worker, with who uses them."""
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

    def requests(self) -> Iterable[ActiveRequest]:
        return self._requests

    def find(self, key: RequestKey) -> ActiveRequest | None:
        """A request that runs here, or ended here not long ago."""
        return self._requests.find(key)

    # Intake.

    def accept(
        self, dispatch: Dispatch, owner: ControllerId, *, announces: bool = True
    ) -> Refusal | None:
        """Take a request into the queue, or say why not.

        Args:
            owner: who is told of it.
            announces: its client hears `accepted` from here.
        """
        running = self._requests.get((dispatch.client, dispatch.request_id))
        if running is not None:
            if running.fingerprint != dispatch.body_fingerprint:
                message = f"another request runs under the id {dispatch.request_id!r}"
                return Refusal(code="request_id_conflict", message=message, param="request_id")
            if running.dispatch.attempt > dispatch.attempt:
                message = f"attempt {running.dispatch.attempt} of it runs"
                return Refusal(code="stale_term", message=message)
            if running.dispatch.attempt == dispatch.attempt:  # the answer got lost
                running.owner = owner
                for inbox in dispatch.inboxes:
                    self.attach(running, inbox)
                return None
            self.drop(running)
        try:
            self.models.check_served(dispatch.model)
            self._check_room(dispatch.request.level)
            model = self.models.want(dispatch.model)
        except Unavailable as error:
            return Refusal(
                code=error.code, message=error.message, retry_after_ms=error.retry_after_ms
            )
        self._requests.take_requeued((dispatch.client, dispatch.request_id))
        sequences = [next(self._numbers) for _ in range(dispatch.request.choices)]
        request = ActiveRequest(
            dispatch, owner, self._worker, sequences, self._prompt_rules, announces=announces
        )
        request.suspect = self.models.loader.deaths.suspects(request.model, request.key)
        self._status.accepted(request)
        self._enqueue(request)
        self._admit_all()
        if request.engine is None:
            request.status = "queued" if model.state == "warm" else "loading"
            self._status.send(request)
        return None

    def _check_room(self, level: Priority) -> None:
        """Raises Unavailable when memory is too short for a new request, or the queue is full."""
        self.guard.check()
        if (reason := self.guard.refusal(level)) is not None:
            raise Unavailable(reason, code="memory_pressure", retry_after_ms=MEMORY_RETRY_AFTER_MS)
        if self.admission.rejects(level):
            raise Unavailable(
                f"the queue of {self._worker} has no room for priority {level}: "
                f"{len(self.admission)} of {self.admission.max_depth} wait",
                code="queue_full",
                retry_after_ms=self.admission.retry_after_ms(),
            )

    def _enqueue(self, request: ActiveRequest) -> None:
        """Have a request wait; another one may have to go for it."""
        self._requests.add(request)
        if (loser := self.admission.push(request)) is not None:
            self._requeue(loser, "gave way to a request of higher priority")

    def _requeue(self, request: ActiveRequest, reason: str) -> None:
        """Have a request that waits go elsewhere."""
        message = f"{reason} in the queue of {self._worker}"
        retry_after_ms = self.admission.retry_after_ms()
        error = StreamError.of("queue_full", message, retry_after_ms=retry_after_ms)
        self._fail(request, error, requeue=True)

    def claimed_by(self, leader: ControllerId, ended_within_ms: int | None) -> list[ClaimedRequest]:
        """Tell a leader, from now on, of all requests; returns those that are here, and those that
        left not long ago.

        Args:
            ended_within_ms: which of those that ended it does not know of; None: all.
        """
        table, now = self._requests, time.monotonic()
        for request in table.recent:
            request.owner = leader
        within_s = math.inf if ended_within_ms is None else ended_within_ms / 1000
        listed = [request.claimed() for request in table]
        listed += [back.request.claimed(back.event) for back in table.requeued]
        ended = [request for request in table.ended if now - request.ended_at <= within_s]
        return listed + [request.claimed() for request in ended]

    def contents(self, asked: Iterable[RequestRef], max_bytes: int) -> list[Dispatch]:
        """The contents of the first of these requests: as many as may be told at once; those that
        are not here are left out."""
        told: list[Dispatch] = []
        size = 0
        for ref in asked:
            request = self._requests.of_attempt((ref.client, ref.request_id), ref.attempt)
            if request is None:
                continue
            contents = request.contents()
            size += len(encode(contents))
            if told and size > max_bytes:
                break
            told.append(contents)
        return told

    def cancel(self, key: RequestKey, attempt: int, *, silent: bool) -> bool:
        """End a request as its client asked; False when it is not here.

        Queued ones end at once, running ones when the engine has let them go; silent ones are
        dropped without a word, because another attempt serves the client.
        """
        request = self._requests.get(key)
        if request is None:
            self._requests.forget_requeued(key, attempt)
        if request is None or attempt not in (-1, request.dispatch.attempt):
            return False
        if silent:
            self.drop(request)
        elif request.engine is None:
            for choice in request.choices:
                self._advance(request, choice, _cancelled(choice))
        else:
            self._cancel_sequences(request)
        return True

    def drop(self, request: ActiveRequest) -> None:
        """Forget a request that another attempt serves, or that its owner ended: not a word
        more to anybody."""
        request.fenced = True
        self._end(request, cancel=True)
        self._requests.forget(request)
        self._admit_all()

    def requeue_all(
        self,
        error: StreamError,
        *,
        engine: int | None = None,
        model: ModelId | None = None,
        suspects: Collection[ActiveRequest] = (),
    ) -> None:
        """Have every request, or every one on an engine or of a model, go on elsewhere."""
        for request in self._requests:
            if engine in (None, request.engine) and model in (None, request.model):
                self._fail(request, error, requeue=True, suspect=request in suspects)

    def resend(self, request: ActiveRequest, inbox: str, choice: int | None, index: int) -> None:
        """Say again to one inbox what was said from a token index on."""
        self._status.replay(request, inbox, choice, index)

    def attach(self, request: ActiveRequest, inbox: str) -> None:
        """Send a stream to one more inbox, from the start."""
        if request.end is None:
            request.inboxes.add(inbox, awake_or_asleep())
        self._status.replay(request, inbox, None, 0)

    def on_missed(self, inbox: str) -> None:
        """Nobody listens to an inbox: end the streams that nobody else listens to."""
        now = awake_or_asleep()
        for request in self._requests:
            request.inboxes.on_missed(inbox, now)
            if not request.inboxes:
                message = "nobody listened to the stream any more"
                self._fail(request, StreamError.of("client_gone", message))

    def tick(self) -> None:
        """Deadlines, keep-alives, promotion; call it a few times a second."""
        now = time.monotonic()
        self._requests.forget_old(now)
        self.models.tick()
        self.admission.promote(now)
        for request in self.admission.overdue(now):
            self._requeue(request, f"waited {request.wait_s:.1f} s without a place")
        for request in self._requests:
            if now >= request.deadline:
                timeout_ms = request.dispatch.request.timeout_ms
                message = f"timeout_ms of {timeout_ms} passed while {request.status}"
                self._fail(request, StreamError.of("deadline_exceeded", message))
            else:
                self._status.renew(request, now)
        self._admit_all()  # memory may have become free

    def relieve_memory(self) -> None:
        """Measure, and give up what memory asks for; call it a few times a second."""
        self.guard.check()
        self.guard.relieve(self.models.evict_one)

    # Engines.

    def explain_end(self, engine: EngineProcess, end: EngineExit) -> bool:
        """Whether a model or a request is to blame for the end of an engine; `on_engine_lost`
        comes then."""
        return self._blame.explain(engine, end)

    def on_engine_lost(self, engine: EngineProcess, error: StreamError) -> None:
        """End what ran on a dead engine; without any engine left for it, also what waits."""
        self.models.loader.on_engine_lost(engine)
        self.kept.on_engine_lost(engine.index)
        self.admission.on_engine_lost(engine)
        on_it = [request for request in self._requests if request.engine == engine.index]
        suspects = self._blame.carry_out(engine, on_it)
        self.requeue_all(error, engine=engine.index, suspects=suspects)
        for request in suspects:
            if request.engine is None:  # the engine was told of it beforehand, and prepared it
                self._fail(request, error, requeue=True, suspect=True)
        failed = {other.index for other in self.engines if other.state == "failed"}
        if len(failed) == len(self.engines):
            self.requeue_all(error)
        for model in self.models.catalogue:
            if model.placed and model.placed <= failed:
                self.requeue_all(error, model=model.id)

    # Facts.

    def on_fact(self, engine: EngineProcess, fact: Fact) -> None:
        """Take in what an engine reports."""
        self.models.loader.on_fact(engine, fact)
        match fact:
            case StepCompleted():
                self._step(engine, fact.outputs)
            case SequenceStarted():
                if entry := self._requests.of_sequence(fact.sequence):
                    request, choice = entry
                    request.start_choice(choice, fact.prompt_tokens)
            case PrefixRestored():
                if entry := self._requests.of_sequence(fact.sequence):
                    request, choice = entry
                    request.restore_choice(choice, fact.tokens)
            case SequenceCached():
                if (kept := self._requests.by_first_choice(fact.sequence)) is not None:
                    self.sessions.on_text_kept(engine.index, fact, kept)
                    self.kept.on_text_kept(engine.index, fact, kept)
            case SequencesMeasured():
                self.sessions.on_measured(engine.index, fact.texts)
                self.kept.on_measured(engine.index, fact.texts)
            case EngineStarted():
                self.sessions.on_engine_started(engine.index)
            case PrefillAdvanced():
                if entry := self._requests.of_sequence(fact.sequence):
                    request, choice = entry
                    request.advance_prompt(choice, fact.done, fact.total)
                    self._status.send(request)
            case SequencePreempted():
                if entry := self._requests.of_sequence(fact.sequence):
                    entry[0].preempt()
                    self._status.send(entry[0])
            case SequenceRejected():
                if entry := self._requests.of_sequence(fact.sequence):
                    self._fail(entry[0], StreamError.of(fact.code, fact.message, fact.param))
            case _:
                pass  # the others are of models, or the engine process's own

    def _step(self, engine: EngineProcess, outputs: list[Output]) -> None:
        outgoing = PublishBatch()
        generated = 0
        for output in outputs:
            if entry := self._requests.of_sequence(output.sequence):
                request, choice = entry
                generated += 0 if choice.is_known(output) else len(output.token_ids)
                self._advance(request, choice, output, outgoing)
        self._put(outgoing)
        self.throughput.add(engine.index, generated)
        self._admit_all()

    def _advance(
        self,
        request: ActiveRequest,
        choice: RequestChoice,
        output: Output,
        outgoing: PublishBatch | None = None,
    ) -> None:
        """Put the owner's event and the client's message of one output into `outgoing`."""
        mine = outgoing if outgoing is not None else PublishBatch()
        was_started, differed = request.started, request.differs
        messages = request.advance(choice, output)
        if request.differs and not differed:
            self.differing += 1
            logger.warning(
                "goes on otherwise than it began: this worker makes another answer",
                extra={"request_id": request.dispatch.request_id, "model": request.model},
            )
        self._learn(request, choice, output, first=request.started and not was_started)
        if (event := request.emitted(choice, output)) is not None:
            mine.events.append((request.owner, event))
        if choice.finished:
            self._leave_engine(choice)
        for message in messages:
            mine.client_messages.append(ClientMessage.to_all(request, message))
            request.last_sent_at = time.monotonic()
            if isinstance(message, Done):
                mine.events.append((request.owner, request.finished_event()))
                self._end(request)
                self.completed += 1
                logger.info(
                    "done: %d tokens", request.tokens,
                    extra={"request_id": request.dispatch.request_id, "model": request.model},
                )  # fmt: skip
        if outgoing is None:
            self._put(mine)

    def _learn(
        self, request: ActiveRequest, choice: RequestChoice, output: Output, *, first: bool
    ) -> None:
        """Note how large prompts and answers are; `first` tells of a request's first token."""
        if first:
            prompt = request.prompt_of(choice)
            self._speeds.prompt_computed(
                request.model,
                text_bytes=prompt.text_bytes,
                tokens=prompt.tokens,
                cached_tokens=prompt.cached_tokens,
            )
        if output.finish_reason in ("stop", "length") and not request.counts_only:
            self._speeds.answered(request.model, choice.tokens)

    def _models_in_use(self) -> Collection[ModelId]:
        return self._requests.by_model().keys()

    def _on_model_failed(self, model: Model, error: ClusterError) -> None:
        """Another worker may have it."""
        end = StreamError.of(error.code, error.message, retry_after_ms=error.retry_after_ms)
        self.requeue_all(end, model=model.id)

    # Admission.

    def _admit_all(self) -> None:
        while self.guard.pressure != "hard" and (admitted := self.admission.next()) is not None:
            request, engine = admitted
            self._requests.enter_engine(request)
            self.sessions.begin(request)
            for choice in request.choices:
                engine.send(request.order(choice))
        self.admission.prefetch()

    # Ends.

    def _fail(
        self,
        request: ActiveRequest,
        error: StreamError,
        *,
        requeue: bool = False,
        suspect: bool = False,
    ) -> None:
        event = request.failed_event(error, terminal_sent=not requeue, suspect=suspect)
        outgoing = PublishBatch([(request.owner, event)])
        if requeue:
            self._requests.requeue(request, event, time.monotonic())
        else:
            outgoing.client_messages.append(ClientMessage.to_all(request, request.fail(error)))
        self._end(request, cancel=True)
        self._put(outgoing)
        if is_of_the_request(error.code):
            self.rejected += 1
        else:
            self.failed += 1
        logger.warning(
            "request failed: %s", error.message,
            extra={"request_id": request.dispatch.request_id, "code": error.code},
        )  # fmt: skip
        self._admit_all()

    def _end(self, request: ActiveRequest, *, cancel: bool = False) -> None:
        """Forget a request; `cancel` also makes the engine forget it."""
        self.changes.notify()
        if cancel and request.engine is not None:
            self._cancel_sequences(request)
        if self._requests.end(request) and request.engine is not None:
            self.admission.forget_prefixes(request)
            self.sessions.end(
                request, answered=isinstance(request.end, Done) and request.tokens > 0
            )
            self.models.catalogue[request.model].used_at = time.monotonic()
        self.admission.leave_queue(request)
        for choice in request.choices:
            self._leave_engine(choice)

    def _leave_engine(self, choice: RequestChoice) -> None:
        if (request := self._requests.leave_engine(choice)) is not None:
            assert request.engine is not None
            self.admission.leave_place(request.engine, request.model)

    def _cancel_sequences(self, request: ActiveRequest) -> None:
        assert request.engine is not None
        for choice in request.unfinished:
            self.engines[request.engine].send(Cancel(choice.sequence))


def _cancelled(choice: RequestChoice) -> Output:
    return Output(choice.sequence, choice.tokens, [], "", "cancelled")
