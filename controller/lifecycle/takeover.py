"""What workers have of requests, told to the leader that claims them: when its term begins, when a
worker comes, and when something may have been missed.

A worker tells the keys of its requests first, then the contents of those that the leader does not
know.
"""

from collections.abc import Callable, Sequence

from controller.dispatch.dispatcher import FireEvent
from controller.fleet.prefix_cache_index import PrefixCacheIndex
from controller.fleet.registry import Registry
from controller.lifecycle.worker_claims import WorkerClaims
from controller.requests.events import ContentsTold, WorkerClaimed
from controller.requests.instructions import Instructions
from controller.requests.request import ClientRequest
from controller.requests.session_turns import SessionTurns
from controller.requests.skills import Skills, models_told
from controller.requests.store import RequestStore
from shared.ids import BootId, WorkerId
from shared.messages.control import (
    ClaimedRequest,
    ClaimWorker,
    ControlReply,
    RequestRef,
    TellContents,
)

QUIET_S = 3.0
"""A stream that runs has tokens more often than that, but for a long prefill: something that its
worker told was perhaps missed."""


class Takeover:
    """
    Args:
        fire: says what happened to a request.
        on_adopted: a request is known from now on that a worker has.
        drop: takes a request out of wherever it waits, as a worker has it.

    Attributes:
        claims: which workers have told.
        skills: as the settings have them.
    """

    def __init__(
        self,
        skills: Skills,
        registry: Registry,
        prefixes: PrefixCacheIndex,
        store: RequestStore,
        turns: SessionTurns,
        instructions: Instructions,
        fire: FireEvent,
        on_adopted: Callable[[ClientRequest], None],
        drop: Callable[[ClientRequest], None],
    ) -> None:
        self.skills = skills
        self._registry = registry
        self._prefixes = prefixes
        self._store = store
        self._turns = turns
        self._out = instructions
        self._fire = fire
        self._on_adopted = on_adopted
        self._drop = drop
        self.claims = WorkerClaims((view.id for view in registry.workers), instructions.now)

    # Asking.

    def on_heard(self, worker: WorkerId) -> None:
        """A worker told how it stands: it is claimed, unless it knows of this term."""
        view = self._registry.worker(worker)
        if view is None:
            return
        knows_term = view.report.term == self._out.term or view.protocol < 2
        # Heartbeats that left before its answer do not count.
        is_late = self.claims.asked_for_s(worker, self._out.now) > QUIET_S
        if not view.claimed or (not knows_term and is_late):
            self.claim(worker)

    def claim(self, worker: WorkerId) -> None:
        """Ask a worker what it has."""
        view, now = self._registry.worker(worker), self._out.now
        if view is None:
            return
        if view.protocol < 2:  # of a release that knows no leader, and tells nothing
            view.claimed = True
            self.claims.answered(worker, now)
        elif self.claims.ask(worker, now):
            order = ClaimWorker(
                term=self._out.term,
                controller=self._out.controller,
                ended_within_ms=self.claims.known_for_ms(worker, now),
            )
            self._out.order(worker, order, lambda reply: _claimed(worker, now, reply))

    def claim_anew(self, worker: WorkerId) -> None:
        """It takes no work from us."""
        if (view := self._registry.worker(worker)) is not None:
            view.claimed = False
        self.claims.lost(worker, self._out.now)
        self.claim(worker)

    def claim_all(self) -> None:
        for view in self._registry.workers:
            self.claim(view.id)

    def _ask_contents(self, worker: WorkerId, wanted: Sequence[RequestRef]) -> None:
        if wanted:
            order = TellContents(term=self._out.term, requests=list(wanted))
            self._out.order(worker, order, lambda reply: _contents(worker, wanted, reply))

    # Told.

    def on_claimed(self, event: WorkerClaimed) -> None:
        worker, boot_id, told = event.worker, event.boot_id, event.claimed
        view = self._registry.worker(worker)
        if view is None or boot_id != view.report.boot_id:
            return  # it is asked again when it is heard again
        self.claims.answered(worker, event.asked_at)
        view.claimed = True
        if told.kept is not None:
            self._prefixes.take(told.kept)
        wanted = [_ref(each) for each in told.requests if self._reconcile(each, worker, boot_id)]
        listed = {(each.client, each.request_id, each.attempt) for each in told.requests}
        for request in self._store:
            is_listed = (*request.key, request.attempt) in listed
            if request.runs_in(worker, boot_id) and not is_listed:
                if request.heard_at < event.asked_at:  # else it came since
                    self._fire(request, "contents_lost")  # it ended long ago
        self._ask_contents(worker, wanted)

    def _reconcile(self, told: ClaimedRequest, worker: WorkerId, boot_id: BootId) -> bool:
        """Take in what a worker has; returns whether its contents are needed."""
        known = self._store.get((told.client, told.request_id))
        if known is None or known.state == "lost" or known.attempt < told.attempt:
            return self._adopt(told, known, worker, boot_id)
        if (known.attempt, known.worker) == (told.attempt, worker) and not known.ended:
            return self._catch_up(known, told, boot_id)
        if told.state == "running":
            self._out.cancel(worker, _ref(told), silent=True)
        return False

    def _adopt(
        self, told: ClaimedRequest, known: ClientRequest | None, worker: WorkerId, boot_id: BootId
    ) -> bool:
        """A worker has a request, or had it; `known` is what was asked for again here."""
        request = ClientRequest.claimed(told, worker, boot_id, self._out.now)
        self._store.add(request)
        has_ended = told.state in ("finished", "failed")
        if has_ended:
            request.finish(well=told.state == "finished", code="", now=self._out.now)
            self._store.end(request)
        else:
            self._turns.began_before(request)
            self._on_adopted(request)
        if known is not None:
            request.cancelled = known.cancelled
            if known.state in ("offered", "running"):
                self._out.cancel_attempt(known, silent=True)
            if not known.ended:
                known.decline("other", self._out.now)
                for inbox in known.inboxes:
                    self._out.attach(request, inbox)
            self._drop(known)
        return not has_ended

    def _catch_up(self, known: ClientRequest, told: ClaimedRequest, boot_id: BootId) -> bool:
        """Something that was told of it may have been missed."""
        if known.state == "offered":
            self._fire(known, "offer_accepted", boot_id)
        known.heard_at = self._out.now
        is_needed = known.request is None
        match told.state:
            case "running":
                known_tokens = known.progress.heard + known.tokens
                is_needed = is_needed or told.tokens > known_tokens
            case "finished":
                self._fire(known, "finished")
            case "returned" | "failed" if told.failure is not None:
                self._fire(known, told.state, told.failure)
        return is_needed and not known.ended

    def on_contents(self, event: ContentsTold) -> None:
        told = {(each.client, each.request_id, each.attempt): each for each in event.contents}
        rest = list(event.asked)
        while rest and (told or not event.contents):
            ref = rest.pop(0)
            request = self._store.get((ref.client, ref.request_id))
            contents = told.pop((ref.client, ref.request_id, ref.attempt), None)
            if request is None or request.attempt != ref.attempt or request.ended:
                continue
            if contents is not None:
                models = models_told(contents, self.skills)
                self._fire(request, "contents_told", contents, models)
            elif request.request is None:
                self._fire(request, "contents_lost")
        if event.contents:
            self._ask_contents(event.worker, rest)


def _ref(told: ClaimedRequest) -> RequestRef:
    return RequestRef(client=told.client, request_id=told.request_id, attempt=told.attempt)


def _claimed(worker: WorkerId, asked_at: float, reply: ControlReply | None) -> WorkerClaimed | None:
    if reply is None or reply.claimed is None or reply.boot_id is None:
        return None  # it is asked again when it is heard again
    return WorkerClaimed(worker, reply.boot_id, reply.claimed, asked_at)


def _contents(
    worker: WorkerId, asked: Sequence[RequestRef], reply: ControlReply | None
) -> ContentsTold | None:
    if reply is None or not reply.ok:
        return None  # it is claimed again when nothing is heard of them
    return ContentsTold(worker, asked, reply.contents or [])
