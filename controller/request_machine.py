"""What becomes of each request, as `controller.lifecycle` has it: events in, instructions out.

Nothing here waits, looks at a clock or does I/O. Registry, routing, breakers, retry schedule, waiting
room and dispatch queue are values that it asks.
"""

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import assert_never

from controller import lifecycle as life
from controller.claims import Claims
from controller.deadlines import Deadlines
from controller.dispatch_queue import Answer, DispatchQueue
from controller.history import history_needed, joined_history
from controller.kept_prefixes import KeptByWorkers
from controller.lifecycle import TRANSITIONS, Event, Instruction, Trigger
from controller.metrics import Metrics
from controller.placement import Placement
from controller.registry import Registry, WorkerGone
from controller.request import WORKER_FAULTS, Rejection, Request, RequestKey
from controller.request_store import RequestStore
from controller.retry_schedule import RetrySchedule
from controller.router import Router, all_rejected, passes, waiting_kind
from controller.routing import Decision, Need, NoRoute
from controller.session_turns import SessionTurns
from controller.validation import stream_error
from controller.waiting_room import WaitingRoom
from shared.errors import ERROR_CODES, ClusterError, RequestError, is_of_the_request, is_retryable
from shared.ids import BootId, ControllerId, ModelId, SkillName, WorkerId
from shared.messages import control
from shared.messages.dispatch import Dispatch, TransferredRequest
from shared.messages.events import RequestEvent, RequestFailed, RequestFinished, TokensEmitted
from shared.messages.request import Message
from shared.messages.routes import Route
from shared.messages.stream import KEEP_ALIVE_S, Done, Failed, StreamError, StreamMessage
from shared.settings import ClusterSettings

_MOST_CRASHES = 2
"""Maximum engine crashes per request."""
_ATTEMPTS_PER_LEADER = 1000
_RATE_RETRY_MS = 1000
_GRACE_S = 5.0
"""A worker ends its requests at their deadline; the leader so much later."""
_FIRST_WORD_S = 0.5
"""A client that waits hears after so long that it does."""
_LOOK_S = 0.02
"""Changes of capacity within so short a time are looked at together."""
_QUIET_S = 3.0
"""A stream that runs has tokens more often than that, but for a long prefill: something that its worker
told was perhaps missed."""
_STARTS_WITHIN_S = 60.0
"""A worker that starts is waited for so long; until its engine runs, as models that load accept
requests."""


class RequestMachine:
    """The requests of one leader, in one term.

    Attributes:
        metrics: what it counts.
        accepted, completed, rejected, failed: requests of clients since the start, a list counts
            once; rejected are those that ended because of what they ask.
        failovers_ms: how long requests waited that had to leave a worker, until they went on: the
            longest for each worker.
    """

    def __init__(
        self,
        controller: ControllerId,
        term: int,
        settings: ClusterSettings,
        registry: Registry,
        prefixes: KeptByWorkers,
        metrics: Metrics,
        draw: Callable[[], float],
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
        self._controller = controller
        self.term = term
        self._attempts_before = _ATTEMPTS_PER_LEADER * (term - 1)
        self._settings = settings
        self._registry = registry
        self._prefixes = prefixes
        self.metrics = metrics
        self._draw = draw
        self._settled_at = settled_at
        self._now = now
        self._router = Router(controller, settings, registry, prefixes, draw)
        self._retries = RetrySchedule(settings.controller.retry, draw)
        self._store = RequestStore()
        self._turns = SessionTurns()
        self._queue = DispatchQueue(
            controller, term, settings.controller.dispatch, max_bytes, metrics.totals
        )
        self._waiting = WaitingRoom(settings.controller.waiting_room, metrics.totals)
        views = registry.workers
        self._claims = Claims([(view.id, view.report.boot_id) for view in views], now)
        self._blocked: dict[Request, None] = {}
        self._offers: dict[Request, tuple[Decision, Need]] = {}
        self._due: Deadlines[Request] = Deadlines()
        self._look_at = math.inf
        self._claims_at = self._claims.open_at if self._claims.missing else math.inf
        self._out: list[Instruction] = []
        self._leaving = False
        self.failovers_ms: dict[WorkerId, float] = {}

    def configure(self, settings: ClusterSettings) -> None:
        """Go by other settings, from now on."""
        self._settings = settings
        self._router.configure(settings)
        self._retries = RetrySchedule(settings.controller.retry, self._draw)
        self._queue.configure(settings.controller.dispatch)
        self._waiting.configure(settings.controller.waiting_room)

    # What others ask.

    @property
    def active(self) -> int:
        """Requests of clients that are served; a list of prompts is one."""
        return sum(request.part_of is None for request in self._store)

    @property
    def waiting(self) -> int:
        """Requests for which no worker has capacity."""
        return len(self._waiting)

    @property
    def offered(self) -> int:
        """Requests that a worker was asked to take."""
        return len(self._offers)

    @property
    def busy_workers(self) -> set[tuple[WorkerId, BootId]]:
        """The boots of workers that have requests, or were asked to take some."""
        return {
            (request.worker, request.boot_id)
            for request in self._store
            if request.worker is not None and request.boot_id is not None
        }

    @property
    def unsettled(self) -> list[str]:
        """What has not ended, for people."""
        return [
            f"{each.request_id} {each.state} {each.attempt}@{each.worker}" for each in self._store
        ]

    @property
    def next_due(self) -> float:
        """When `TimePassed` is due, unless something else happens first."""
        return min(self._due.next_at, self._queue.next_at, self._look_at, self._claims_at)

    def find(self, key: RequestKey) -> Request | None:
        """A request that is served, or ended not long ago."""
        return self._store.get(key)

    def explain(self, request: Request, now: float) -> Route:
        """Where a request would go now, and why; it is not served."""
        return self._router.explain(request, now)

    def capacity(self, request: Request) -> tuple[int, int]:
        """Batch slots of the workers that could serve a request, and how many one of them has."""
        return self._router.capacity(request, self._now)

    def transferable(self) -> list[TransferredRequest]:
        """What no worker has, for the next leader, in the order of its coming."""
        return [
            _transferred(request, self._now)
            for request in self._store
            if request.part_of is None and request.state not in ("offered", "running")
        ]

    # Events.

    def on(self, event: Event, now: float) -> list[Instruction]:
        """What is to be done because of an event."""
        self._now = now
        match event:
            case life.RequestsReported():
                for told in event.events:
                    self._on_reported(event.worker, event.boot_id, told)
            case life.Published():
                self._on_published(event.request)
            case life.DispatchesAnswered():
                self._on_answers(self._queue.answered(event.number, event.reply, now))
            case life.TimePassed():
                pass
            case life.WorkerHeard():
                self._on_worker_heard(event.worker)
            case WorkerGone():
                self._on_worker_gone(event)
            case life.Queried():
                self._on_queried(event)
            case life.WorkerClaimed():
                self._on_claimed(event)
            case life.ContentsTold():
                self._on_contents(event)
            case life.HistoryTold():
                self._on_history(event)
            case life.StreamAttached():
                self._on_attached(event)
            case life.ListEnded():
                if (request := self._store.get(event.key)) is not None:
                    request.end = event.end
                    self._fire(request, "list_ended")
            case life.Finish():
                for request in self._store:
                    if event.key in (None, request.key):
                        self._finish(request, event.error)
            case life.Transferred():
                for request in event.requests:
                    self._on_published(request)
            case life.LinkRestored():
                for view in self._registry.workers:
                    self._claim(view.id, again=True)
            case life.LeavingBegan():
                self._leaving = True
            case _:
                assert_never(event)
        self._do_what_is_due()
        out, self._out = self._out, []
        return out

    def _fire(self, request: Request, trigger: Trigger, *told: object) -> None:
        """Do what the table says."""
        action = TRANSITIONS[request.state, trigger]
        if action != "nothing":
            getattr(self, f"_{action}")(request, *told)

    # life.Published, and again.

    def _on_published(self, request: Request) -> None:
        known = self._store.get(request.key)
        if known is not None:
            self._on_published_again(known, request)
            return
        most = self._most_of_client
        if (
            most is not None
            and request.part_of is None
            and self._store.count(request.client) >= most
        ):
            message = (
                f"client {request.client} has {most} requests that have not ended: no more may be"
            )
            retry_ms = _RATE_RETRY_MS
            self._reject(
                request, StreamError.of("rate_limit_exceeded", message, retry_after_ms=retry_ms)
            )
            return
        self._arrive(request)

    @property
    def _most_of_client(self) -> int | None:
        security = self._settings.security
        return security.max_requests_per_client if security.strict_inbox else None

    def _on_published_again(self, known: Request, again: Request) -> None:
        if known.fingerprint != again.fingerprint:
            message = f"request_id: {again.request_id!r} was used for another request"
            self._reject(again, StreamError.of("request_id_conflict", message, "request_id"))
        else:
            self._fire(known, "published_again", again)

    def _reject(self, request: Request, error: StreamError) -> None:
        self._count_from_here(request)
        self._tell(request, request.failed_message(error), request.inboxes)

    def _arrive(self, request: Request) -> None:
        """It is known from now on."""
        self._store.add(request)
        self._turns.arrived(request)
        self.metrics.arrived(request)
        self._log(logging.INFO, f"arrived for {request.skill}", request)
        self._due.set(request, min(self._now + _FIRST_WORD_S, request.deadline))
        self._wait_or_begin(request)

    def _wait_or_begin(self, request: Request) -> None:
        self._blocked.pop(request, None)
        if not self._turns.is_next(request):
            request.reason = "earlier_turn"
        elif not self._claims.may_begin(self._now, turn=request.session is not None):
            request.reason = "leader_change"
            self._blocked[request] = None
        else:
            self._fire(request, "may_begin")

    def _listen(self, request: Request, again: Request) -> None:
        inbox = again.inboxes[0]
        request.listen(inbox)
        if request.contents.stream:
            self._tell(request, request.waiting_message(), [inbox])

    def _listen_late(self, request: Request, again: Request) -> None:
        request.listen_late(again)

    def _attach(self, request: Request, again: Request) -> None:
        """Have the worker that has, or had, a request send its stream to who came later."""
        key, attempt, worker = request.key, request.attempt, request.worker
        if worker is None:
            self._fire(request, "not_attached", again)
            return
        order = control.AttachStream(
            term=self.term,
            request_id=request.request_id,
            client=request.client,
            attempt=attempt,
            inbox=again.inboxes[0],
        )
        self._out.append(
            life.GiveOrder(
                worker,
                order,
                lambda reply: life.StreamAttached(
                    key, attempt, again, reply is not None and reply.ok
                ),
            )
        )

    def _on_attached(self, event: life.StreamAttached) -> None:
        if event.attached:
            return
        request = self._store.get(event.key)
        if request is None:
            self._on_published(event.again)
        else:
            self._fire(request, "not_attached", event.again)

    def _attach_to_list(self, request: Request, again: Request) -> None:
        self._out.append(life.AttachToList(request, again.inboxes[0]))

    def _tell_end_again(self, request: Request, again: Request) -> None:
        if request.end is None:
            self._attach(request, again)
        elif request.delegated:
            self._out.append(life.AttachToList(request, again.inboxes[0]))
        else:
            self._tell(again, request.end, again.inboxes)

    def _serve_again(self, request: Request, again: Request) -> None:
        """It has ended, and nobody has its answer any more: the same seed gives the same one."""
        if again is request:
            return  # it was served since
        if request.end is not None:
            self._tell(again, request.end, again.inboxes)
            return
        again.attempt, again.state = request.attempt, "waiting"
        self._arrive(again)

    # Cancelled.

    def _on_queried(self, event: life.Queried) -> None:
        request = self._store.get(event.key)
        client, request_id = event.key
        if request is None:
            if self._claims.missing:
                return  # who has not answered yet may have it
            state = control.RequestState(
                request_id=request_id, state="unknown", controller=self._controller
            )
        else:
            if event.cancel and (request.part_of is None or event.of_part):
                request.cancelled = request.cancelled or not request.ended
                self._fire(request, "cancel_asked")
            state = control.RequestState(
                request_id=request_id,
                state=request.wire_state,
                controller=self._controller,
                worker=request.worker,
                attempt=request.attempt,
                tokens=request.tokens,
            )
        if event.reply:
            self._out.append(life.AnswerQuery(event.reply, client, state))

    def _count_from_here(self, request: Request) -> None:
        """Nobody has it from before: what is said of it counts more than all that was."""
        request.attempt = max(request.attempt, self._attempts_before)

    def _end_cancelled(self, request: Request) -> None:
        self._count_from_here(request)
        self._end_with(request, request.cancelled_message(self._now), well=True)

    def _cancel_offer(self, request: Request) -> None:
        if self._queue.withdraw(request):
            request.decline("other", self._now)
            self._end_cancelled(request)

    def _cancel_at_worker(self, request: Request) -> None:
        self._cancel_attempt(request)

    def _cancel_list(self, request: Request) -> None:
        self._out.append(life.CancelList(request))

    # On its way to a worker.

    def _begin(self, request: Request) -> None:
        if self._leaving:
            return
        self._count_from_here(request)
        if self._router.splits(request, self._now):
            request.state, request.delegated = "delegated", True
            self._due.drop(request)
            self._out.append(life.ServeList(request))
            return
        session = request.session
        home = self._router.homes.last(session) if session is not None else None
        if request.cancelled or not history_needed(request, home):
            self._place(request)
            return
        if home is None:
            self._place_with_history(request, [], False)
            return
        assert session is not None
        key, (client, session_id) = request.key, session
        request.state, request.reason = "fetching", "history"
        order = control.TellSession(term=self.term, client=client, session_id=session_id)
        self._out.append(life.GiveOrder(home, order, lambda reply: _history(key, reply)))

    def _on_history(self, event: life.HistoryTold) -> None:
        if (request := self._store.get(event.key)) is not None:
            self._fire(request, "history_told", event.messages, event.too_large)

    def _place_with_history(
        self, request: Request, messages: Sequence[Message] | None, too_large: bool
    ) -> None:
        try:
            limit = self._queue.max_bytes // 4
            request.earlier = joined_history(request, messages, too_large, limit)
        except RequestError as error:
            self._fail(request, stream_error(error))
            return
        self._place(request)

    def _place(self, request: Request) -> None:
        """Offer it to a worker, or have it wait for one."""
        if self._leaving and request.attempt == self._attempts_before:
            request.state, request.reason = "waiting", "leader_change"
            return
        need = self._router.need(request)
        kind = waiting_kind(request, need)
        error = self._waiting.ahead_of(need.level, kind) or self._try(request, need)
        if error is not None:
            self._queue_up(request, need, error)

    def _try(self, request: Request, need: Need) -> NoRoute | None:
        """Offer it to a worker; returns why there is none."""
        try:
            decision = self._router.find(request, need, self._now)
        except NoRoute as error:
            return error
        assert request.placement is None, request.state
        view = decision.worker
        choices = request.contents.choices
        prefill_ms = decision.chosen.forecast.prefill_ms
        placed = Placement(view, prefill_ms, self._now, choices=choices)
        if request.contents.debug:
            request.route = self._router.route(request, need, decision)
        request.offer(request.attempt + 1, view.id, view.report.boot_id, decision.model, placed)
        request.links = [link for link, _ in need.links(decision.model)]
        request.reason = "dispatching"
        self._offers[request] = decision, need
        self._queue.add(view.report, request, self._now)
        self._set_due(request)
        return None

    def _queue_up(self, request: Request, need: Need, error: NoRoute) -> None:
        """Have it wait for a worker, where that helps."""
        now = self._now
        settled = now >= self._settled_at
        if settled and not (error.passes or any(map(passes, request.rejected.values()))):
            self._fail_unplaced(request, need, error)
            return
        if request.waits_since is None:
            request.waits_since = now
        most_s = _STARTS_WITHIN_S if error.starts else self._waiting.max_wait_s
        request.until = max(request.waits_since + most_s, 0.0 if settled else self._settled_at)
        request.state, request.reason = "queued", error.code
        loser = self._waiting.enter(request, waiting_kind(request, need), error, now)
        self._set_due(request)
        if loser is not None:
            lost, reason = loser
            self._fail_unplaced(lost, self._router.need(lost), reason)

    def _fail_unplaced(self, request: Request, need: Need, error: NoRoute) -> None:
        if request.contents.debug:
            request.route = self._router.route(request, need, error)
        if error.code == "queue_full":
            for view in self._registry.workers:
                view.turned_away += 1
        why: ClusterError = all_rejected(request) if request.rejected else error
        # Why the last attempt failed says more than that nobody else is there.
        self._fail(request, request.last_error or stream_error(why))

    def _look_at_waiting(self) -> None:
        self._look_at = math.inf
        for request, error in self._waiting.look(
            lambda each: self._try(each, self._router.need(each))
        ):
            self._queue_up(request, self._router.need(request), error)

    def _nudge(self) -> None:
        """A worker may have capacity now."""
        if len(self._waiting) and not self._leaving:
            self._look_at = min(self._look_at, self._now + _LOOK_S)

    def _on_answers(self, answers: Iterable[Answer]) -> None:
        for answer in answers:
            request = answer.request
            if request.state != "offered" or request.attempt != answer.attempt:
                continue  # it has told tokens before, or ended, or went on
            if answer.refusal is None:
                self._fire(request, "offer_accepted", answer.boot_id)
            else:
                self._fire(request, "offer_rejected", answer)

    def _run(self, request: Request, boot_id: BootId) -> None:
        decision, need = self._offers.pop(request)
        view = decision.worker
        self.metrics.routed(decision, need, request.elapsed_ms(self._now) / 1000)
        request.run(boot_id, self._now)
        if request.left is not None:
            worker, since = request.left
            request.left = None
            took_ms = (self._now - since) * 1000
            self.failovers_ms[worker] = max(took_ms, self.failovers_ms.get(worker, 0.0))
        self._log(logging.INFO, f"dispatched to {request.worker}", request)
        if view.protocol < 2 and request.contents.stream:
            self._tell(request, request.accepted_message(), request.inboxes)
        if request.cancelled:
            self._cancel_attempt(request)
        late, request.late = request.late, []
        for again in late:
            self._attach(request, again)
        self._set_due(request)

    def _look_further(self, request: Request, answer: Answer) -> None:
        """The worker does not take it, or nobody knows."""
        decision, _ = self._offers.pop(request)
        view, refusal = decision.worker, answer.refusal
        assert refusal is not None
        if answer.unknown:
            self._cancel_attempt(request, silent=True)
        self.metrics.refused(view.id, refusal.code)
        self._log(logging.INFO, f"{view.id} rejected it: {refusal.message}", request, refusal.code)
        request.rejected[view.id] = Rejection(refusal, view.report.boot_id, view.seen_at)
        request.decline("fault" if refusal.code in WORKER_FAULTS else "other", self._now)
        if refusal.code == "not_claimed":
            self._claims.lost(view.id)
            self._claim(view.id)
        if request.cancelled:
            self._end_cancelled(request)
        else:
            self._place(request)

    # At a worker.

    def _on_reported(self, worker: WorkerId, boot_id: BootId, event: RequestEvent) -> None:
        request = self._store.get((event.client, event.request_id))
        if request is None or (request.worker, request.attempt) != (worker, event.attempt):
            return
        request.heard_at = self._now
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
                self._cancel_attempt(request, silent=True)  # it need not keep it for us
                self._return(request, event)

    def _return(self, request: Request, event: RequestFailed) -> None:
        """Its worker gave it back."""
        if request.request is None:
            request.returned = event  # it goes on when its contents are there
            return
        request.crashes += event.suspect
        wait_ms = event.retry_after_ms
        error = StreamError.of(event.code, event.message, retry_after_ms=wait_ms)
        self._fire(request, "returned", error)

    def _note_tokens(self, request: Request, event: TokensEmitted) -> None:
        if request.request is None:
            return  # its contents, which are on their way, have them
        if not request.started and request.model is not None and request.worker is not None:
            self.metrics.first_token(request.model, request.elapsed_ms(self._now) / 1000)
            self._prefixes.expect(request.worker, request.links)
        request.note(event, self._now)

    def _end_well(self, request: Request) -> None:
        self._end(request, well=True)

    def _end_failed(self, request: Request, event: RequestFailed) -> None:
        self._end(request, well=False, code=event.code)

    def _end_list(self, request: Request) -> None:
        end = request.end
        if isinstance(end, Failed):
            self._end(request, well=False, code=end.error.code)
        else:
            self._end(request, well=True)

    def _retry(self, request: Request, error: StreamError) -> None:
        """An attempt failed: another one begins, or goes on where this one was; where that is of
        no use, the request ends."""
        if request.cancelled:
            self._end_cancelled(request)
            return
        if request.crashes >= _MOST_CRASHES:
            code = "request_crashes_engine"
            self._fail(request, StreamError.of(code, ERROR_CODES[code].meaning))
            return
        if self._now >= request.deadline:
            self._fail(request, _deadline_exceeded(request))
            return
        delay_s = self._delay_s(request, error)
        if delay_s is None or self._now + delay_s >= request.deadline:
            self._fail(request, error)
            return
        text = "migrates" if request.started else "tried again"
        self._log(logging.WARNING, f"{text}: {error.message}", request, error.code)
        self.metrics.retried(request.worker, error.code, migrated=request.started)
        request.give_up_attempt(error, self._now)
        request.state, request.reason = "backing_off", "retry"
        request.until = self._now + delay_s
        if request.started:
            self._tell_waiting(request)
        if delay_s:
            self._set_due(request)
        else:
            self._fire(request, "pause_over")

    def _delay_s(self, request: Request, error: StreamError) -> float | None:
        """Until the next attempt; None where there is none. Who had begun to answer goes on at
        once the first time: somebody is reading."""
        if not is_retryable(error.code):
            return None
        if not request.started:
            return self._retries.delay_s(request.failures + 1)
        if request.migrations >= self._settings.controller.failover.migration_limit:
            return None
        return self._retries.pause_s(request.migrations) if request.migrations else 0.0

    def _cancel_attempt(self, request: Request, *, silent: bool = False) -> None:
        """Best effort: where it gets lost, attempt numbers fence what still comes."""
        if request.worker is not None:
            ref = control.RequestRef(
                client=request.client, request_id=request.request_id, attempt=request.attempt
            )
            self._cancel_at(request.worker, ref, silent=silent)

    def _cancel_at(self, worker: WorkerId, ref: control.RequestRef, *, silent: bool) -> None:
        order = control.CancelRequest(
            term=self.term,
            request_id=ref.request_id,
            client=ref.client,
            attempt=ref.attempt,
            silent=silent,
        )
        self._out.append(life.GiveOrder(worker, order))

    # Ended.

    def _fail(self, request: Request, error: StreamError) -> None:
        self._log(logging.WARNING, f"failed: {error.message}", request, error.code)
        self._count_from_here(request)
        self._end_with(request, request.failed_message(error), well=False, code=error.code)

    def _end_with(
        self, request: Request, end: Done | Failed, *, well: bool, code: str = ""
    ) -> None:
        """End it, and tell its client."""
        request.end = end
        inboxes = [*request.inboxes, *(again.inboxes[0] for again in request.late)]
        request.late = []
        self._tell(request, end, inboxes)
        self._end(request, well=well, code=code)

    def _end(self, request: Request, *, well: bool, code: str = "") -> None:
        self._waiting.leave(request)
        self._offers.pop(request, None)
        self._blocked.pop(request, None)
        self._due.drop(request)
        request.finish(well=well, code=code, now=self._now)
        told = code or ("cancelled" if request.cancelled else "ok")
        of_request = is_of_the_request(code)
        seconds = request.elapsed_ms(self._now) / 1000
        self.metrics.ended(request, told, seconds, rejected=not well and of_request)
        ended = "finished" if well else "failed"
        self._log(logging.INFO, f"{ended} after {seconds * 1000:.0f} ms", request)
        late, request.late = request.late, []
        for again in late:
            self._fire(request, "published_again", again)  # its worker has what it said
        if well and not request.cancelled:
            self._settle(request)
        self._store.end(request)
        self._nudge()
        self._let_next_begin(request)

    def _let_next_begin(self, request: Request) -> None:
        """It is no turn of its session any more."""
        following = self._turns.left(request)
        if following is not None and following.state == "waiting":
            self._wait_or_begin(following)

    def _settle(self, request: Request) -> None:
        """Its session is at its worker now; what another one knows of it is out of date."""
        if request.affinity is None or request.worker is None:
            return
        before = self._router.homes.settle(request.affinity, request.worker)
        if request.session is not None and before not in (None, request.worker):
            client, session_id = request.session
            order = control.ForgetSession(
                term=self.term, client=client, session_id=session_id, drop=False
            )
            assert before is not None
            self._out.append(life.GiveOrder(before, order))

    def _forget(self, request: Request) -> None:
        """Nobody knows any more what was asked: its client asks again."""
        self._due.drop(request)
        self._store.remove(request)
        self._let_next_begin(request)

    # In time.

    def _set_due(self, request: Request) -> None:
        """When something is to be done about it, whatever else happens."""
        if request.request is None:
            return
        at = request.deadline
        if request.state in ("running", "offered"):
            at += _GRACE_S
        if request.state == "running":
            at = min(at, max(request.heard_at, self._now - _QUIET_S / 2) + _QUIET_S)
        else:
            at = min(at, max(request.told_at + KEEP_ALIVE_S, self._now))
        if request.state in ("queued", "backing_off"):
            at = min(at, request.until)
        self._due.set(request, at)

    def _do_what_is_due(self) -> None:
        now = self._now
        for request in self._due.pop_due(now):
            self._attend(request)
        if now >= self._claims_at:
            self._claims_at = math.inf
            self._begin_blocked()
        if now >= self._look_at:
            self._look_at_waiting()
        messages, lost = self._queue.pop_due(now)
        self._out += messages
        self._on_answers(lost)
        self._store.forget_old(now)

    def _attend(self, request: Request) -> None:
        now, state = self._now, request.state
        grace_s = _GRACE_S if state in ("running", "offered") else 0.0
        if now >= request.deadline + grace_s:
            self._fire(request, "deadline_passed")
            return
        if state == "backing_off" and now >= request.until:
            self._fire(request, "pause_over")
            return
        if state == "queued" and now >= request.until:
            error = self._waiting.give_up(request)
            if error is not None:
                self._fail_unplaced(request, self._router.need(request), error)
                return
        if state == "running":
            if now >= request.heard_at + _QUIET_S and request.worker is not None:
                self._claim(request.worker, again=True)
        elif now >= request.told_at + (
            KEEP_ALIVE_S if request.told_at > request.arrived_at else _FIRST_WORD_S
        ):
            self._tell_waiting(request)
        self._set_due(request)

    def _fail_in_time(self, request: Request) -> None:
        self._fail(request, _deadline_exceeded(request))

    def _stop_in_time(self, request: Request) -> None:
        self._finish(request, _deadline_exceeded(request))

    def _finish(self, request: Request, error: StreamError) -> None:
        """End it, and make its worker drop it."""
        if request.request is None:
            self._forget(request)
            return
        if request.state == "delegated":
            self._out.append(life.FailList(request, error))
            return
        if not self._queue.withdraw(request):
            self._cancel_attempt(request, silent=True)
        self._fail(request, error)

    # Workers.

    def _on_worker_heard(self, worker: WorkerId) -> None:
        view = self._registry.worker(worker)
        if view is None:
            return
        if not self._claims.is_claimed(worker, view.report.boot_id):
            self._claim(worker)
        elif view.report.term != self.term and view.protocol >= 2:
            # Heartbeats that left before its answer do not count.
            if self._claims.claimed_for_s(worker, self._now) > _QUIET_S:
                self._claim(worker, again=True)
        self._nudge()

    def _claim(self, worker: WorkerId, *, again: bool = False) -> None:
        """Ask a worker what it has."""
        view = self._registry.worker(worker)
        if view is None:
            return
        boot_id = view.report.boot_id
        if view.protocol < 2:  # of a release that knows no leader
            self._on_claimed(life.WorkerClaimed(worker, boot_id, control.Claimed(term=self.term)))
            return
        claimed = self._claims.is_claimed(worker, boot_id)
        if claimed and again:
            due = self._claims.again(worker, self._now)
        else:
            due = self._claims.due(worker, boot_id, self._now)
        if due:
            order = control.ClaimWorker(term=self.term, controller=self._controller)
            self._out.append(life.GiveOrder(worker, order, lambda reply: _claimed(worker, reply)))

    def _on_claimed(self, event: life.WorkerClaimed) -> None:
        view = self._registry.worker(event.worker)
        if view is None or event.claimed is None or event.boot_id != view.report.boot_id:
            return  # it is asked again when it is heard again
        worker, boot_id, told = event.worker, event.boot_id, event.claimed
        self._claims.answered(worker, boot_id, self._now)
        view.claimed = True
        if told.kept is not None:
            self._prefixes.take(told.kept)
        wanted = [ref for each in told.requests if (ref := self._reconcile(each, worker, boot_id))]
        self._end_unlisted(worker, boot_id, told)
        self._ask_contents(worker, wanted)
        self._begin_blocked()
        self._nudge()

    def _reconcile(
        self, told: control.ClaimedRequest, worker: WorkerId, boot_id: BootId
    ) -> control.RequestRef | None:
        """Take in what a worker has; returns it if its contents are needed."""
        ref = control.RequestRef(
            client=told.client, request_id=told.request_id, attempt=told.attempt
        )
        known = self._store.get((told.client, told.request_id))
        if known is not None and (known.ended or known.attempt >= told.attempt):
            if (known.attempt, known.worker) == (told.attempt, worker) and not known.ended:
                return self._catch_up(known, told, boot_id, ref)
            if told.state == "running":
                self._cancel_at(worker, ref, silent=True)
            return None
        request = Request.claimed(told, worker, boot_id, self._now)
        if known is not None:
            self._replace(known, request)
        self._store.add(request)
        if told.state in ("finished", "failed"):
            request.finish(well=told.state == "finished", code="", now=self._now)
            self._store.end(request)
            for again in request.late:
                self._attach(request, again)
            if known is not None:
                self._let_next_begin(known)
            return None
        self._turns.began_before(request)
        if known is not None:
            self._turns.left(known)
        self.metrics.adopted()
        self._log(logging.INFO, f"adopted from {worker}", request)
        return ref

    def _replace(self, known: Request, request: Request) -> None:
        """It was asked for again here while a worker had it: who asked listens to that."""
        if known.state in ("offered", "running"):
            self._cancel_attempt(known, silent=True)
        for inbox in known.inboxes:
            request.listen_late(_with_inbox(known, inbox))
        for again in known.late:
            request.listen_late(again)
        request.cancelled = known.cancelled
        self._waiting.leave(known)
        self._blocked.pop(known, None)
        self._offers.pop(known, None)
        self._due.drop(known)
        known.decline("other", self._now)

    def _catch_up(
        self, known: Request, told: control.ClaimedRequest, boot_id: BootId, ref: control.RequestRef
    ) -> control.RequestRef | None:
        """Something that was told of it may have been missed."""
        if known.state == "offered":
            self._fire(known, "offer_accepted", boot_id)
        known.heard_at = self._now
        match told.state:
            case "running":
                missed = known.request is None or told.tokens > known.tokens
                return ref if missed else None
            case "returned" if told.failure is not None:
                self._return(known, told.failure)
                return ref if known.request is None else None
            case "finished":
                self._fire(known, "finished")
            case "failed":
                self._fire(known, "failed", told.failure or _unknown_failure(told))
            case _:
                pass
        return None

    def _end_unlisted(self, worker: WorkerId, boot_id: BootId, told: control.Claimed) -> None:
        """What this boot has no more, and had not long ago, has ended long ago."""
        asked_at = self._claims.asked_at(worker)
        listed = {(each.client, each.request_id, each.attempt) for each in told.requests}
        for request in self._store:
            if request.runs_in(worker, boot_id) and (*request.key, request.attempt) not in listed:
                if request.heard_at < asked_at:  # else it came since
                    self._fire(request, "finished")

    def _ask_contents(self, worker: WorkerId, wanted: Sequence[control.RequestRef]) -> None:
        if wanted:
            order = control.TellContents(term=self.term, requests=list(wanted))
            self._out.append(
                life.GiveOrder(worker, order, lambda reply: _contents(worker, wanted, reply))
            )

    def _on_contents(self, event: life.ContentsTold) -> None:
        if event.contents is None:
            return  # it is claimed again when nothing is heard of them
        told = {(each.client, each.request_id, each.attempt): each for each in event.contents}
        rest = list(event.asked)
        while rest:
            ref = rest.pop(0)
            request = self._store.get((ref.client, ref.request_id))
            dispatch = told.pop((ref.client, ref.request_id, ref.attempt), None)
            if request is not None and request.attempt == ref.attempt and not request.ended:
                if dispatch is not None:
                    self._fill(request, dispatch)
                elif request.request is None and request.worker == event.worker:
                    self._forget(request)  # it has ended meanwhile, or its client will ask again
            if not told and event.contents:
                break
        if event.contents:
            self._ask_contents(event.worker, rest)

    def _fill(self, request: Request, told: Dispatch) -> None:
        models = self._models(told.skill)
        request.fill(told, models, self._now)
        late, request.late = request.late, []
        for again in late:
            self._attach(request, again)
        if request.returned is not None:
            returned, request.returned = request.returned, None
            self._return(request, returned)
        elif request.cancelled:
            self._cancel_attempt(request)
        if not request.ended:
            self._set_due(request)

    def _models(self, skill: SkillName) -> list[ModelId]:
        return list(self._settings.skills.get(skill, []))

    def _begin_blocked(self) -> None:
        for request in list(self._blocked):
            if self._claims.may_begin(self._now, turn=request.session is not None):
                self._wait_or_begin(request)

    def _on_worker_gone(self, gone: WorkerGone) -> None:
        self._log(logging.WARNING, f"worker {gone.worker} is gone: {gone.reason}")
        if self._claims.is_claimed(gone.worker, gone.boot_id) or not self._registry.worker(
            gone.worker
        ):
            self._claims.lost(gone.worker)
        self._on_answers(self._queue.worker_gone(gone.worker, gone.boot_id))
        message = f"worker {gone.worker} is gone: {gone.reason}"
        error = StreamError.of("worker_lost", message)
        for request in self._store:
            if request.worker != gone.worker or request.state != "running":
                continue
            if self._registry.is_here(gone.worker, request.boot_id):
                continue
            if request.request is None:
                self._forget(request)
                continue
            self._cancel_attempt(request, silent=True)
            self._fire(request, "worker_gone", error)
        self._begin_blocked()

    # Saying.

    def _tell(self, request: Request, message: StreamMessage, inboxes: Sequence[str]) -> None:
        request.told_at = self._now
        self._out.append(life.TellClient(tuple(inboxes), message, request.contents.multiplex))

    def _tell_waiting(self, request: Request) -> None:
        """How it stands, to clients that stream."""
        request.told_at = self._now
        if request.contents.stream:
            self._tell(request, request.waiting_message(), request.inboxes)

    def _log(
        self, level: int, text: str, request: Request | None = None, code: str | None = None
    ) -> None:
        fields: dict[str, object] = {}
        if request is not None:
            fields = {
                "request_id": request.request_id,
                "client": request.client,
                "attempt": request.attempt,
                "model": request.model,
                "worker": request.worker,
            }
        if code is not None:
            fields["code"] = code
        self._out.append(life.Log(level, text, fields))


def _deadline_exceeded(request: Request) -> StreamError:
    message = f"timeout_ms of {request.contents.timeout_ms} passed"
    return StreamError.of("deadline_exceeded", message)


def _claimed(worker: WorkerId, reply: control.ControlReply | None) -> life.WorkerClaimed:
    if reply is None:
        return life.WorkerClaimed(worker, None, None)
    return life.WorkerClaimed(worker, reply.boot_id, reply.claimed)


def _contents(
    worker: WorkerId, asked: Sequence[control.RequestRef], reply: control.ControlReply | None
) -> life.ContentsTold:
    return life.ContentsTold(
        worker, asked, reply.contents if reply is not None and reply.ok else None
    )


def _history(key: RequestKey, reply: control.ControlReply | None) -> life.HistoryTold:
    if reply is None or reply.said is None:
        too_large = reply is not None and reply.code == "payload_too_large"
        return life.HistoryTold(key, None, too_large)
    return life.HistoryTold(key, [Message.model_validate(message) for message in reply.said])


def _unknown_failure(told: control.ClaimedRequest) -> RequestFailed:
    return RequestFailed(
        request_id=told.request_id,
        client=told.client,
        attempt=told.attempt,
        code="request_failed",
        message="its worker failed it",
    )


def _with_inbox(request: Request, inbox: str) -> Request:
    """The same as it would come from one of its listeners."""
    return Request.arrived(
        request.client,
        request.skill,
        [inbox],
        request.contents,
        request.models,
        request_id=request.request_id,
        seed=request.seed,
        now=request.arrived_at,
        payload=request.payload,
        elapsed_before_ms=request.elapsed_before_ms,
    )


def _transferred(request: Request, now: float) -> TransferredRequest:
    contents = request.contents
    return TransferredRequest(
        client=request.client,
        skill=request.skill,
        inboxes=request.inboxes,
        elapsed_ms=request.elapsed_ms(now),
        seed=request.seed,
        attempt=request.attempt,
        resume=request.progress.continuation(contents.heard_ids),
        retries=request.failures,
        migrations=request.migrations,
        crashes=request.crashes,
        request=contents.model_copy(update={"request_id": request.request_id}),
    )
