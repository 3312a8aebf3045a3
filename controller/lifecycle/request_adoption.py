"""Adopts the requests that workers have. The leader claims a worker when its term begins, when the
worker joins, and when messages of the worker may have been missed.

A worker answers a claim with the keys of its requests; the leader then asks for the contents of the
requests that it does not know.
"""

from collections.abc import Callable, Sequence

from controller.dispatch.dispatcher import TriggerHandler
from controller.fleet.prefix_cache_index import PrefixCacheIndex
from controller.fleet.registry import NodeRegistry
from controller.lifecycle.claimed_workers import ClaimedWorkers
from controller.requests.events import ClaimAnswered, ClaimRefused, RequestContentsReceived
from controller.requests.instructions import InstructionBuilder
from controller.requests.request import TrackedRequest
from controller.requests.restored_request import claimed_request, memory_bytes_of
from controller.requests.session_queues import SessionQueues
from controller.requests.skills import Skills, models_for_dispatch
from controller.requests.store import RequestStore
from shared.ids import BootId, WorkerId
from shared.messages.control import (
    AttemptRef,
    ClaimedRequest,
    ClaimWorker,
    ControlReply,
    TellContents,
)

QUIET_S = 3.0
"""Except in a long prefill, a running stream has tokens more often than that: after this time an
event of its worker may have been missed."""


class RequestAdoption:
    """
    Args:
        fire: triggers an action for a request.
        on_adopted: called with each adopted request that has not ended.
        drop: removes a request from all queues, because a worker has it.
        turns_wait_until: see `RequestStateMachine`.

    Attributes:
        claims: which workers have answered.
        skills: of the current settings.
    """

    def __init__(
        self,
        skills: Skills,
        registry: NodeRegistry,
        prefixes: PrefixCacheIndex,
        store: RequestStore,
        turns: SessionQueues,
        instructions: InstructionBuilder,
        boot_id: BootId,
        fire: TriggerHandler,
        on_adopted: Callable[[TrackedRequest], None],
        drop: Callable[[TrackedRequest], None],
        *,
        turns_wait_until: float,
    ) -> None:
        self.skills = skills
        self._registry = registry
        self._prefixes = prefixes
        self._store = store
        self._turns = turns
        self._out = instructions
        self._boot_id = boot_id
        self._fire = fire
        self._on_adopted = on_adopted
        self._drop = drop
        self.claims = ClaimedWorkers(
            (view.id for view in registry.workers), instructions.now, turns_wait_until
        )

    # Claims.

    def on_report(self, worker: WorkerId) -> None:
        """Claim a worker that reported its state, unless it knows this term."""
        view = self._registry.worker(worker)
        if view is None:
            return
        knows_term = view.report.term == self._out.term
        # Heartbeats sent before the answer to the last claim do not count.
        is_late = self.claims.since_asked_s(worker, self._out.now) > QUIET_S
        if not view.claimed or (not knows_term and is_late):
            self.claim(worker)

    def claim(self, worker: WorkerId) -> None:
        """Claim a worker, unless the last claim is recent."""
        view, now = self._registry.worker(worker), self._out.now
        if view is None:
            return
        if self.claims.ask(worker, now):
            order = ClaimWorker(
                term=self._out.term,
                controller=self._out.controller,
                boot_id=self._boot_id,
                ended_within_ms=self.claims.answer_age_ms(worker, now),
            )
            self._out.order(worker, order, lambda reply: _claimed(worker, now, reply))

    def claim_anew(self, worker: WorkerId) -> None:
        """Claim a worker that rejected a dispatch because this leader has not claimed it."""
        if (view := self._registry.worker(worker)) is not None:
            view.claimed = False
        self.claims.reset(worker, self._out.now)
        self.claim(worker)

    def on_claim_refused(self, event: ClaimRefused) -> None:
        """Nothing waits for this worker any more; it is asked again after each of its reports."""
        view = self._registry.worker(event.worker)
        if view is None or view.report.boot_id != event.boot_id:
            return
        if view.refused_term is None:
            self._out.warn(
                f"worker {event.worker} accepts no work of term {self._out.term}: another leader "
                f"claimed it in term {event.term}"
            )
        view.claimed, view.refused_term = False, event.term
        self.claims.refused(event.worker, self._out.now)

    def claim_all(self) -> None:
        for view in self._registry.workers:
            self.claim(view.id)

    def _request_contents(self, worker: WorkerId, refs: Sequence[AttemptRef]) -> None:
        if refs:
            order = TellContents(term=self._out.term, requests=list(refs))
            self._out.order(worker, order, lambda reply: _contents(worker, refs, reply))

    # Answers.

    def on_claimed(self, event: ClaimAnswered) -> None:
        worker, boot_id, claimed = event.worker, event.boot_id, event.claimed
        view = self._registry.worker(worker)
        if view is None or boot_id != view.report.boot_id:
            return  # the worker is claimed again at its next heartbeat
        self.claims.answered(worker, event.asked_at)
        view.claimed, view.refused_term = True, None
        if claimed.kept is not None:
            self._prefixes.apply_report(claimed.kept)
        unknown = [
            _ref(each) for each in claimed.requests if self._reconcile(each, worker, boot_id)
        ]
        listed = {(each.client, each.request_id, each.attempt) for each in claimed.requests}
        for request in self._store:
            is_listed = (*request.key, request.attempt) in listed
            if request.runs_in(worker, boot_id) and not is_listed:
                if request.reported_at < event.asked_at:  # else it was accepted after the claim
                    self._fire(request, "contents_lost")  # the worker has forgotten its end
        self._request_contents(worker, unknown)

    def _reconcile(self, claim: ClaimedRequest, worker: WorkerId, boot_id: BootId) -> bool:
        """Merge a request that a worker has, or had. Return whether its contents are needed."""
        known = self._store.get((claim.client, claim.request_id))
        if known is not None and _lacks_beginning(claim, known):
            known.attempt = max(known.attempt, claim.attempt)
        elif known is None or known.state == "lost" or known.attempt < claim.attempt:
            return self._adopt(claim, known, worker, boot_id)
        elif (known.attempt, known.worker) == (claim.attempt, worker) and not known.ended:
            return self._catch_up(known, claim, boot_id)
        if claim.state == "running":
            self._out.cancel(worker, _ref(claim), silent=True)
        return False

    def _adopt(
        self, claim: ClaimedRequest, known: TrackedRequest | None, worker: WorkerId, boot_id: BootId
    ) -> bool:
        """Adopt a request that a worker has, or had. `known` is the same request with a lower
        attempt number or lost, if it was published again here. Return whether the contents are
        needed."""
        request = claimed_request(claim, worker, boot_id, self._out.now)
        self._store.add(request)
        has_ended = claim.state in ("finished", "failed")
        if has_ended:
            succeeded = claim.state == "finished"
            request.finish(succeeded=succeeded, code="", now=self._out.now)
            self._store.end(request)
        else:
            self._turns.add_running(request)
            self._on_adopted(request)
        if known is not None:
            request.cancelled = known.cancelled
            if known.state in ("offered", "running"):
                self._out.cancel_attempt(known, silent=True)
            if not known.ended:
                known.detach("other", self._out.now)
                for inbox in known.inboxes:
                    self._out.attach(request, inbox)
            self._drop(known)
        return not has_ended

    def _catch_up(self, known: TrackedRequest, claim: ClaimedRequest, boot_id: BootId) -> bool:
        """Apply events of a request that may have been missed. Return whether its contents are
        needed."""
        if known.state == "offered":
            self._fire(known, "offer_accepted", boot_id)
        known.reported_at = self._out.now
        is_needed = known.request is None
        match claim.state:
            case "running":
                known_tokens = known.progress.resumed_tokens + known.tokens
                is_needed = is_needed or claim.tokens > known_tokens
            case "finished":
                self._fire(known, "finished")
            case "returned" if claim.failure is not None:
                self._fire(known, "requeued", claim.failure)
            case "failed" if claim.failure is not None:
                self._fire(known, "failed", claim.failure)
        return is_needed and not known.ended

    def on_contents(self, event: RequestContentsReceived) -> None:
        received = {(each.client, each.request_id, each.attempt): each for each in event.contents}
        remaining = list(event.asked)
        while remaining and (received or not event.contents):
            ref = remaining.pop(0)
            request = self._store.get((ref.client, ref.request_id))
            contents = received.pop((ref.client, ref.request_id, ref.attempt), None)
            if request is None or request.attempt != ref.attempt or request.state != "running":
                continue  # it has gone on since its contents were requested
            if contents is not None:
                models = models_for_dispatch(contents, self.skills)
                payload = request.payload or b""  # if it arrived here first
                self._store.weigh(request, len(payload) + memory_bytes_of(contents))
                self._fire(request, "contents_received", contents, models)
            elif request.request is None:
                self._fire(request, "contents_lost")
        if event.contents:
            self._request_contents(event.worker, remaining)


def _lacks_beginning(claim: ClaimedRequest, known: TrackedRequest) -> bool:
    """Whether the worker continued from tokens that who published the request here does not have:
    it is published again without them, and runs from its start."""
    is_here = known.worker is None and known.state not in ("ended", "lost")
    return is_here and claim.resumed_tokens > known.progress.resumed_tokens


def _ref(claim: ClaimedRequest) -> AttemptRef:
    return AttemptRef(client=claim.client, request_id=claim.request_id, attempt=claim.attempt)


def _claimed(
    worker: WorkerId, asked_at: float, reply: ControlReply | None
) -> ClaimAnswered | ClaimRefused | None:
    if reply is not None and reply.boot_id is not None and reply.term is not None:
        return ClaimRefused(worker, reply.boot_id, reply.term)
    if reply is None or reply.claimed is None or reply.boot_id is None:
        return None  # the worker is claimed again at its next heartbeat
    return ClaimAnswered(worker, reply.boot_id, reply.claimed, asked_at)


def _contents(
    worker: WorkerId, asked: Sequence[AttemptRef], reply: ControlReply | None
) -> RequestContentsReceived | None:
    if reply is None or not reply.ok:
        return None  # the worker is claimed again when these requests stay silent
    return RequestContentsReceived(worker, asked, reply.contents or [])
