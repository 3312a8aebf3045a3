"""The state machine of requests: events in, instructions out; `controller.requests.transitions` is
its table.

Nothing here waits, reads a clock or does I/O. The registry, routing, circuit breakers, retry
schedule, waiting room and dispatch queue are values that it queries. The actions that bring a
request to a worker are in `controller.dispatch.dispatcher`, those that adopt the requests of
workers in `controller.lifecycle.takeover`.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import assert_never

from controller.dispatch.dispatch_queue import DispatchOutcome, DispatchQueue
from controller.dispatch.dispatcher import Dispatcher
from controller.dispatch.router import Router
from controller.fleet.prefix_cache_index import PrefixCacheIndex
from controller.fleet.registry import Registry, WorkerGone
from controller.lifecycle.history import history_needed, joined_history
from controller.lifecycle.takeover import QUIET_S, Takeover
from controller.lifecycle.worker_claims import ASKED_AGAIN_S
from controller.requests import events
from controller.requests.deadlines import Deadlines
from controller.requests.events import Event
from controller.requests.instructions import (
    AnswerQuery,
    Instruction,
    Instructions,
    SendToListRunner,
)
from controller.requests.metrics import ControllerMetrics
from controller.requests.request import ClientRequest, RequestKey
from controller.requests.session_turns import SessionTurns
from controller.requests.store import RequestStore
from controller.requests.transitions import TRANSITIONS, Trigger
from shared.errors import RequestError, is_of_the_request
from shared.ids import BootId, ControllerId, ModelId, WorkerId
from shared.messages import control
from shared.messages.conversation import Message
from shared.messages.dispatch import Dispatch
from shared.messages.request_events import (
    RequestEvent,
    RequestFailed,
    RequestFinished,
    TokensEmitted,
)
from shared.messages.stream import KEEP_ALIVE_S, Done, Failed, StreamError
from shared.settings import ClusterSettings

_ATTEMPTS_PER_LEADER = 1000
_RATE_RETRY_MS = 1000
_GRACE_S = 5.0
"""A worker ends its requests at their deadline; the leader so much later."""
_FIRST_WORD_S = 0.5
"""A client that waits hears after so long that it does."""
_MOST_EARLY_CANCELS = 10_000
_LOOK_S = 0.02
"""Changes of capacity within so short a time are looked at together."""


class RequestMachine:
    """The requests of one leader, in one term.

    Attributes:
        attempts_before: no leader before has counted attempts further.
        metrics: what it counts.
        router: says where requests go.
    """

    def __init__(
        self,
        controller: ControllerId,
        term: int,
        settings: ClusterSettings,
        registry: Registry,
        prefixes: PrefixCacheIndex,
        metrics: ControllerMetrics,
        rng: Callable[[], float],
        *,
        max_bytes: int,
        now: float,
        settled_at: float,
    ) -> None:
        """
        Args:
            term: that began; attempts are counted from there.
            draw: a random number from 0 to 1.
            max_bytes: of a message.
            settled_at: from then on every worker was heard that is there.
        """
        self.term = term
        self.attempts_before = _ATTEMPTS_PER_LEADER * (term - 1)
        self.metrics = metrics
        self.router = Router(controller, settings, registry, prefixes, rng)
        self._settings = settings
        self._registry = registry
        self._leaving = False
        self._store = RequestStore()
        self._turns = SessionTurns()
        self._due: Deadlines[ClientRequest] = Deadlines()
        self._look_at = math.inf
        self._out = Instructions(controller, term, now)
        self._queue = DispatchQueue(
            controller, term, settings.controller.dispatch, max_bytes, metrics.totals
        )
        self._dispatcher = Dispatcher(
            settings, registry, prefixes, metrics, self.router, self._queue, self._out, rng,
            self._fire, settled_at=settled_at,
        )  # fmt: skip
        self._settled_at = settled_at
        self._takeover = Takeover(
            settings.skills, registry, prefixes, self._store, self._turns, self._out,
            self._fire, self._adopted, self._drop,
        )  # fmt: skip
        self._claims = self._takeover.claims
        self._is_opening = self._claims.missing
        self._early_cancels: deque[events.Queried] = deque(maxlen=_MOST_EARLY_CANCELS)
        self._open_at = self._claims.open_at if self._is_opening else math.inf

    def configure(self, settings: ClusterSettings) -> None:
        """Go by other settings, from now on."""
        self._settings = settings
        self._takeover.skills = settings.skills
        self._dispatcher.configure(settings)

    # What others ask.

    @property
    def active(self) -> int:
        """Requests of clients that are served; a list of prompts is one."""
        return sum(request.part_of is None for request in self._store)

    @property
    def waiting(self) -> int:
        """Requests for which no worker has capacity."""
        return len(self._dispatcher.waiting)

    @property
    def offered(self) -> int:
        """Requests that a worker was asked to take."""
        return len(self._queue)

    @property
    def busy_workers(self) -> set[tuple[WorkerId, BootId]]:
        """The boots of workers that have requests, or were asked to take some."""
        busy = {
            (request.worker, request.boot_id)
            for request in self._store
            if request.worker is not None and request.boot_id is not None
        }
        return busy | self._dispatcher.doubted

    @property
    def next_due(self) -> float:
        """When `TimePassed` is due, at the latest."""
        return min(self._due.next_at, self._queue.next_at, self._look_at, self._open_at)

    def find(self, key: RequestKey) -> ClientRequest | None:
        """A request that is served, or ended not long ago."""
        return self._store.get(key)

    def take_failovers_ms(self) -> dict[WorkerId, float]:
        """How long requests waited that had to leave a worker, until they went on: the longest for
        each since the last call."""
        taken, self._dispatcher.failovers_ms = self._dispatcher.failovers_ms, {}
        return taken

    def transferable(self, now: float) -> list[Dispatch]:
        """What no worker has, for the next leader, in the order of its coming."""
        return [
            request.transfer(now)
            for request in self._store
            if request.part_of is None and request.state not in ("offered", "running")
        ]

    # Events.

    def on(self, event: Event, now: float) -> list[Instruction]:
        """What is to be done because of an event."""
        self._out.now = now
        self._store.forget_old(now)
        match event:
            case events.RequestsReported():
                for told in event.events:
                    self._on_reported(event.worker, event.boot_id, told)
            case events.Published():
                self._on_published(event.request)
            case events.DispatchesAnswered():
                self._dispatcher.on_answers(self._queue.answered(event.number, event.reply, now))
            case events.TimePassed():
                self._do_what_is_due()
            case events.WorkerHeard():
                self._dispatcher.heard(event.worker)
                self._takeover.on_heard(event.worker)
                self._capacity_changed()
            case WorkerGone():
                self._on_worker_gone(event)
            case events.Queried():
                self._on_queried(event)
            case events.WorkerClaimed():
                self._takeover.on_claimed(event)
                self._capacity_changed()
            case events.ContentsTold():
                self._takeover.on_contents(event)
            case events.HistoryTold():
                if (request := self._store.get(event.key)) is not None:
                    self._fire(request, "history_told", event.messages, event.too_large)
            case events.ListEnded():
                if (request := self._store.get(event.key)) is not None:
                    self._fire(request, "list_ended", event.end)
            case events.Finish():
                for request in self._store:
                    if event.key in (None, request.key):
                        self._fire(request, "finish_asked", event.error)
            case events.Transferred():
                for request in event.requests:
                    self._on_published(request)
            case events.LinkRestored():
                self._takeover.claim_all()
            case events.LeavingBegan():
                self._leaving, self._look_at = True, math.inf
            case _:
                assert_never(event)
        if self._is_opening and not self._claims.missing:
            self._is_opening = False
            self._open()
        return self._out.take()

    def _fire(self, request: ClientRequest, trigger: Trigger, *told: object) -> None:
        """Do what the table says."""
        action = TRANSITIONS[request.state].get(trigger)
        if action is not None:
            getattr(self, f"_{action}")(request, *told)

    # Published.

    def _on_published(self, request: ClientRequest) -> None:
        known = self._store.get(request.key)
        security = self._settings.security
        most = security.max_requests_per_client if security.strict_inbox else math.inf
        if known is not None and known.fingerprint != request.fingerprint:
            message = f"request_id: {request.request_id!r} was used for another request"
            self._reject(request, StreamError.of("request_id_conflict", message, "request_id"))
        elif known is not None:
            self._fire(known, "published_again", request)
        elif request.part_of is None and self._store.count(request.client) >= most:
            told = f"{most} requests that have not ended: no more may be"
            message = f"client {request.client} has {told}"
            wait_ms = _RATE_RETRY_MS
            self._reject(
                request, StreamError.of("rate_limit_exceeded", message, retry_after_ms=wait_ms)
            )
        else:
            self._arrive(request)

    def _reject(self, request: ClientRequest, error: StreamError) -> None:
        self._count_from_here(request)
        self._out.tell(request, request.failed_message(error), request.inboxes)

    def _count_from_here(self, request: ClientRequest) -> None:
        """Nobody has it from before: what is said of it counts more than all that was."""
        request.attempt = max(request.attempt, self.attempts_before)

    def _number_end(self, request: ClientRequest) -> None:
        """Give the leader's terminal message an attempt number of its own, if the last worker may
        have sent one under the present number."""
        request.attempt += request.unsure
        self._count_from_here(request)

    def _arrive(self, request: ClientRequest, instead_of: ClientRequest | None = None) -> None:
        """It is known from now on."""
        self._store.add(request)
        self._turns.arrived(request, instead_of)
        self.metrics.arrived(request)
        self._due.set(request, min(self._out.now + _FIRST_WORD_S, request.deadline))
        self._wait_or_begin(request)

    def _adopted(self, request: ClientRequest) -> None:
        self._set_due(request)
        self.metrics.adopted()
        self._out.info(f"adopted from {request.worker}", request)

    def _wait_or_begin(self, request: ClientRequest) -> None:
        if not self._turns.is_next(request):
            request.reason = "earlier_turn"
        elif self._leaving or not self._claims.may_begin(
            self._out.now, turn=request.session is not None
        ):
            request.reason = "leader_change"
        else:
            self._fire(request, "may_begin")

    def _open(self) -> None:
        """All workers have told what they have, or are gone."""
        while self._early_cancels:
            self._on_queried(self._early_cancels.popleft())
        self._begin_waiting()

    def _begin_waiting(self) -> None:
        """What waited for workers to tell what they have may begin."""
        turns_open_at = self._claims.turns_open_at
        self._open_at = turns_open_at if self._out.now < turns_open_at else math.inf
        for request in self._store:
            if request.state == "waiting":
                self._wait_or_begin(request)

    # Published again: who listens.

    def _listen(self, request: ClientRequest, again: ClientRequest) -> None:
        request.listen(again.inboxes)
        self._out.tell_waiting(request, again.inboxes)

    def _attach(self, request: ClientRequest, again: ClientRequest) -> None:
        request.listen(again.inboxes)
        for inbox in again.inboxes:
            self._out.attach(request, inbox)

    def _attach_to_list(self, request: ClientRequest, again: ClientRequest) -> None:
        request.listen(again.inboxes)
        for inbox in again.inboxes:
            self._out.add(SendToListRunner("attach", request, inbox))

    def _tell_end_again(self, request: ClientRequest, again: ClientRequest) -> None:
        """Who said the end says it again; where that one is gone, the same seed gives the same
        answer."""
        if request.end is not None and request.delegated:
            self._attach_to_list(request, again)
        elif request.end is not None:
            self._out.tell(again, request.end, again.inboxes)
        elif request.worker and self._registry.is_here(request.worker, request.boot_id):
            self._attach(request, again)
        else:
            self._run_again(request, again)

    def _run_again(self, request: ClientRequest, again: ClientRequest) -> None:
        """With the same seed, and higher numbers of attempts: some of it may have been heard."""
        again.attempt = request.attempt
        self._due.drop(request)
        self._arrive(again, instead_of=request)

    # Cancelled.

    def _on_queried(self, event: events.Queried) -> None:
        request = self._store.get(event.key)
        controller, request_id = self._out.controller, event.key[1]
        state = control.RequestState(request_id=request_id, state="unknown", controller=controller)
        if request is not None and request.state != "lost":
            if event.cancel and (request.part_of is None or event.of_part):
                request.cancelled = request.cancelled or not request.ended
                self._fire(request, "cancel_asked")
            state = control.RequestState(
                request_id=request_id,
                state=request.wire_state,
                controller=controller,
                worker=request.worker if request.end is None else None,
                attempt=request.attempt,
                tokens=request.tokens,
            )
        elif self._claims.missing:  # who has not answered yet may have it
            if event.cancel:
                self._early_cancels.append(event)
            return
        if event.reply:
            self._out.add(AnswerQuery(event.reply, state))

    def _end_cancelled(self, request: ClientRequest) -> None:
        self._number_end(request)
        self._end_with(request, request.cancelled_message(self._out.now))

    def _cancel_offer(self, request: ClientRequest) -> None:
        if self._queue.withdraw(request):
            request.decline("other", self._out.now)
            self._end_cancelled(request)

    def _cancel_at_worker(self, request: ClientRequest) -> None:
        self._out.cancel_attempt(request)

    def _cancel_list(self, request: ClientRequest) -> None:
        self._out.add(SendToListRunner("cancel", request))

    # On its way to a worker.

    def _begin(self, request: ClientRequest) -> None:
        self._count_from_here(request)
        if self.router.splits(request, self._out.now):
            request.state, request.delegated = "delegated", True
            self._due.drop(request)
            self._out.add(SendToListRunner("serve", request))
            return
        session, key = request.session, request.key
        home = self.router.homes.last(session) if session is not None else None
        if session is None or request.cancelled or not history_needed(request, home):
            self._place(request)
        elif home is None:
            self._place_with_history(request, [], False)
        else:
            request.state, request.reason = "fetching", "history"
            order = control.TellSession(term=self.term, client=session[0], session_id=session[1])
            self._out.order(home, order, lambda reply: _history(key, reply))

    def _place_with_history(
        self, request: ClientRequest, messages: Sequence[Message] | None, too_large: bool
    ) -> None:
        if self._leaving:
            request.state, request.reason = "waiting", "leader_change"
            return
        try:
            limit = self._queue.max_bytes // 4
            request.earlier = joined_history(request, messages, too_large, limit)
        except RequestError as error:
            self._fail(request, StreamError.from_exception(error))
        else:
            self._place(request)

    def _place(self, request: ClientRequest) -> None:
        self._count_from_here(request)
        self._dispatcher.place(request)
        self._set_due(request)
        self._look_when_settled()

    def _place_again(self, request: ClientRequest) -> None:
        self._dispatcher.place_again(request)

    def _look_when_settled(self) -> None:
        """Then it is known of each worker whether it is there."""
        if self.waiting and not self._leaving and self._out.now < self._settled_at:
            self._look_at = min(self._look_at, self._settled_at)

    def _capacity_changed(self) -> None:
        if self.waiting and not self._leaving:
            self._look_at = min(self._look_at, self._out.now + _LOOK_S)

    def _run(self, request: ClientRequest, boot_id: BootId) -> None:
        self._dispatcher.run(request, boot_id)
        if request.cancelled:
            self._out.cancel_attempt(request)
        for inbox in request.inboxes:
            if inbox not in request.dispatched_to:
                self._out.attach(request, inbox)

    def _look_further(self, request: ClientRequest, answer: DispatchOutcome) -> None:
        worker, refusal = request.worker, answer.refusal
        self._dispatcher.rejected(request, answer)
        if worker is not None and refusal is not None and refusal.code == "not_claimed":
            self._takeover.claim_anew(worker)
        if request.cancelled:
            self._end_cancelled(request)
        else:
            self._place(request)

    # At a worker.

    def _on_reported(self, worker: WorkerId, boot_id: BootId, event: RequestEvent) -> None:
        request = self._store.get((event.client, event.request_id))
        if request is None or (request.worker, request.attempt) != (worker, event.attempt):
            return
        request.heard_at = self._out.now
        if request.state == "offered":  # this was heard before the answer
            self._fire(request, "offer_accepted", boot_id)
        match event:
            case TokensEmitted():
                self._fire(request, "tokens_emitted", event)
            case RequestFinished():
                self._fire(request, "finished")
            case RequestFailed(terminal_sent=True):
                self._fire(request, "failed", event)
            case RequestFailed():
                self._fire(request, "returned", event)

    def _note_tokens(self, request: ClientRequest, event: TokensEmitted) -> None:
        if not self._dispatcher.note_tokens(request, event) and request.worker is not None:
            self._takeover.claim(request.worker)  # it tells all of it again

    def _take_contents(self, request: ClientRequest, told: Dispatch, models: list[ModelId]) -> None:
        request.fill(told, models, self._out.now)
        self._set_due(request)
        if request.returned is not None:
            returned, request.returned = request.returned, None
            self._take_back(request, returned)
        elif request.cancelled:
            self._out.cancel_attempt(request)

    def _take_back(self, request: ClientRequest, event: RequestFailed) -> None:
        """Its worker gave it back."""
        if request.request is None:
            request.returned = event  # it goes on when its contents are there
            return
        self._out.cancel_attempt(request, silent=True)  # it need not be kept for us
        request.crashes += event.suspect
        wait_ms = event.retry_after_ms
        self._retry(request, StreamError.of(event.code, event.message, retry_after_ms=wait_ms))

    def _lose_worker(self, request: ClientRequest, error: StreamError) -> None:
        if request.request is None:
            self._lose(request)
            return
        self._out.cancel_attempt(request, silent=True)
        request.unsure = True
        self._retry(request, error)

    def _retry(self, request: ClientRequest, error: StreamError) -> None:
        if request.cancelled:
            self._end_cancelled(request)
            return
        self._dispatcher.retry(request, error)
        self._set_due(request)

    def _on_worker_gone(self, gone: WorkerGone) -> None:
        self._out.warn(f"worker {gone.worker} is gone: {gone.reason}")
        self._dispatcher.heard(gone.worker)
        here = self._registry.worker(gone.worker)
        if here is None or not here.claimed:
            self._claims.lost(gone.worker, self._out.now)
        self._dispatcher.on_answers(self._queue.worker_gone(gone.worker, gone.boot_id))
        error = StreamError.of("worker_lost", f"worker {gone.worker} is gone: {gone.reason}")
        for request in self._store:
            if request.worker == gone.worker and request.state == "running":
                if not self._registry.is_here(gone.worker, request.boot_id):
                    self._fire(request, "worker_gone", error)

    # Ended.

    def _end_well(self, request: ClientRequest) -> None:
        self._end(request, well=True)

    def _end_failed(self, request: ClientRequest, event: RequestFailed) -> None:
        self._end(request, well=False, code=event.code)

    def _end_list(self, request: ClientRequest, end: Done | Failed) -> None:
        request.end = end
        code = end.error.code if isinstance(end, Failed) else ""
        self._end(request, well=not code, code=code)

    def _fail(self, request: ClientRequest, error: StreamError) -> None:
        self._out.warn(f"failed: {error.message}", request, error.code)
        self._number_end(request)
        self._end_with(request, request.failed_message(error), code=error.code)

    def _stop(self, request: ClientRequest, error: StreamError) -> None:
        """End it, and make its worker drop it."""
        if request.request is None:
            self._lose(request)
            return
        if not self._queue.withdraw(request):
            self._out.cancel_attempt(request, silent=True)
        self._fail(request, error)

    def _fail_list(self, request: ClientRequest, error: StreamError) -> None:
        self._out.add(SendToListRunner("fail", request, error=error))

    def _end_with(self, request: ClientRequest, end: Done | Failed, *, code: str = "") -> None:
        """End it, and tell its client."""
        request.end = end
        self._out.tell(request, end, request.inboxes)
        self._end(request, well=not code, code=code)

    def _end(self, request: ClientRequest, *, well: bool, code: str = "") -> None:
        request.finish(well=well, code=code, now=self._out.now)
        seconds = request.elapsed_ms(self._out.now) / 1000
        told = code or ("cancelled" if request.cancelled else "ok")
        rejected = not well and is_of_the_request(code)
        self.metrics.ended(request, told, seconds, rejected=rejected)
        ended = "finished" if well else "failed"
        self._out.info(f"{ended} after {seconds * 1000:.0f} ms", request)
        if well and not request.cancelled:
            self._settle(request)
        self._drop(request)
        self._store.end(request)
        self._capacity_changed()

    def _settle(self, request: ClientRequest) -> None:
        """Its session is at its worker now; what another one knows of it is out of date."""
        if request.affinity is None or request.worker is None:
            return
        before = self.router.homes.settle(request.affinity, request.worker, self._out.now)
        if request.session is not None and before is not None and before != request.worker:
            client, session_id = request.session
            order = control.ForgetSession(
                term=self.term, client=client, session_id=session_id, drop=False
            )
            self._out.order(before, order)

    def _lose(self, request: ClientRequest) -> None:
        """Neither the request nor its outcome is known any more: its client publishes it again. The
        next turn of its session waits a moment for that."""
        self._out.warn("lost: nobody knows how it ended", request)
        request.lose(self._out.now)
        self._store.end(request)
        self._dispatcher.waiting.leave(request)
        self._due.drop(request)
        self._due.set(request, self._out.now + ASKED_AGAIN_S)

    def _drop(self, request: ClientRequest) -> None:
        """It waits for nothing any more; the next turn of its session may begin."""
        self._dispatcher.waiting.leave(request)
        self._due.drop(request)
        following = self._turns.left(request)
        if following is not None and following.state == "waiting":
            self._wait_or_begin(following)

    # In time.

    def _do_what_is_due(self) -> None:
        now = self._out.now
        for request in self._due.pop_due(now):
            if request.state == "lost":
                self._drop(request)
            elif self._is_served(request):
                self._attend(request)
        if now >= self._open_at:
            self._begin_waiting()
        if now >= self._look_at:
            self._look_at = math.inf
            self._dispatcher.look()
            self._look_when_settled()
        self._dispatcher.send_due()

    def _attend(self, request: ClientRequest) -> None:
        """Do for a request what is due, if anything, and say when to come again."""
        now, state = self._out.now, request.state
        if now >= self._last_moment(request):
            self._fire(request, "finish_asked", request.deadline_exceeded())
        elif state == "running":
            if now >= request.heard_at + QUIET_S and request.worker is not None:
                self._takeover.claim(request.worker)
        elif state == "backing_off" and now >= request.until:
            self._fire(request, "pause_over")
        elif state == "queued" and now >= request.until:
            self._dispatcher.give_up_waiting(request)
        elif now >= _next_word_at(request):
            self._out.tell_waiting(request, request.inboxes)
        self._set_due(request)

    def _set_due(self, request: ClientRequest) -> None:
        if self._is_served(request):
            self._due.set(request, max(self._out.now, self._due_at(request)))

    def _is_served(self, request: ClientRequest) -> bool:
        """From here: the list runner looks after its own."""
        is_known = self._store.get(request.key) is request
        return is_known and request.state not in ("ended", "delegated")

    def _due_at(self, request: ClientRequest) -> float:
        at = self._last_moment(request)
        if request.state == "running":
            return min(at, max(request.heard_at, self._out.now - QUIET_S / 2) + QUIET_S)
        if request.state in ("queued", "backing_off"):
            at = min(at, request.until)
        return min(at, _next_word_at(request))

    def _last_moment(self, request: ClientRequest) -> float:
        """When it ends, whatever its worker does."""
        if request.request is None:
            return math.inf
        return request.deadline + (_GRACE_S if request.state in ("offered", "running") else 0.0)


def _next_word_at(request: ClientRequest) -> float:
    """When a client that waits is told how it stands."""
    is_first = request.told_at == request.arrived_at
    return request.told_at + (_FIRST_WORD_S if is_first else KEEP_ALIVE_S)


def _history(key: RequestKey, reply: control.ControlReply | None) -> events.HistoryTold:
    if reply is None or reply.said is None:
        too_large = reply is not None and reply.code == "payload_too_large"
        return events.HistoryTold(key, None, too_large)
    return events.HistoryTold(key, [Message.model_validate(message) for message in reply.said])
