"""The requests of a controller: taken, dispatched, followed, ended. One terminal each."""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterator

from controller.dispatcher import Dispatcher
from controller.intake import stream_error
from controller.kept_prefixes import KeptByWorkers
from controller.leaving import Leaving
from controller.ledger import Ledger
from controller.list_requests import ListRequests
from controller.owned_request import OwnedRequest, RequestKey
from controller.peers import Peers
from controller.prompt_list import first_part
from controller.registry import Registry, WorkerGone
from controller.request_need import need_of
from controller.retry_schedule import RetrySchedule
from controller.routing import Need
from controller.session_homes import SessionHomes
from controller.session_turns import SessionTurns
from controller.telling import Telling
from shared import subjects
from shared.bus import Bus, Message
from shared.changes import Changes
from shared.errors import (
    ERROR_CODES,
    DecodeError,
    RequestError,
    Unavailable,
    is_of_the_request,
    is_retryable,
)
from shared.ids import BootId, ControllerId, SessionKey, WorkerId
from shared.messages.codec import decode
from shared.messages.control import RequestStateName
from shared.messages.events import (
    RequestAdopted,
    RequestEvent,
    RequestEvents,
    RequestFailed,
    RequestFinished,
    TokensEmitted,
)
from shared.messages.routes import Route
from shared.messages.stream import KEEP_ALIVE_S, Done, Failed, StreamError
from shared.settings import ClusterSettings
from shared.settings.tree import Routing
from shared.tasks import Tasks

logger = logging.getLogger(__name__)

_MOST_CRASHES = 2
"""So many engines may end over a request."""

_QUIET_S = 3.0
"""A stream that runs has tokens more often than that, but for a long prefill."""

_RATE_RETRY_MS = 1000
_GRACE_S = 5.0
"""A worker ends its requests at their deadline; this much later the controller does."""


Arrive = Callable[[OwnedRequest, RequestFailed | None], Awaitable[None]]
"""Owns a request that another controller owned; with why its worker gave it back, if it did."""


class Requests:
    """Owns every request between acceptance and its end, and a while longer.

    Attributes:
        accepted, completed, rejected, failed: counts since the start; rejected are those that
            ended because of what they ask.
        joining: listeners who came late, while they are told where their stream is.
        metrics: those and more, for Prometheus.
        leaving: how they are left to other controllers.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        bus: Bus,
        controller: ControllerId,
        registry: Registry,
        kept: KeptByWorkers,
        peers: Peers,
    ) -> None:
        self._bus = bus
        self._kept = kept
        self._registry = registry
        self._peers = peers
        self._id = controller
        self._prompt_rules = settings.worker.kv_cache.prompt_rules
        self._retries = RetrySchedule(settings.controller.retry, random.random)
        self._migration_limit = settings.controller.failover.migration_limit
        security = settings.security
        self._most_of_client = security.max_requests_per_client if security.strict_inbox else None
        self._pauses: dict[OwnedRequest, asyncio.TimerHandle] = {}
        self._expected: dict[RequestKey, list[tuple[WorkerId, RequestEvent]]] = {}
        self._ledger = Ledger()
        self._homes = SessionHomes(
            kept, ttl_s=_session_ttl_s(settings.controller.routing), clock=time.monotonic
        )
        ack_timeout_s = settings.controller.dispatch.ack_timeout_ms / 1000
        self._turns = SessionTurns(bus, self._homes, timeout_s=ack_timeout_s)
        self._dispatcher = Dispatcher(controller, settings.controller, bus, registry, kept, peers)
        self._lists = ListRequests(bus, registry, self)
        self._tasks = Tasks()
        self._changes = Changes()
        self._telling = Telling(bus)
        self.leaving = Leaving(
            self, self._ledger, self._lists, self._turns, self._dispatcher, peers, self._changes
        )
        self._closed: StreamError | None = None
        self._failovers_ms: dict[WorkerId, float] = {}
        self.accepted = self.completed = self.rejected = self.failed = 0
        self.joining = 0
        self.metrics = self._dispatcher.metrics

    def configure(self, settings: ClusterSettings) -> None:
        """Go by other settings, from now on."""
        self._prompt_rules = settings.worker.kv_cache.prompt_rules
        self._retries = RetrySchedule(settings.controller.retry, random.random)
        self._migration_limit = settings.controller.failover.migration_limit
        self._homes.ttl_s = _session_ttl_s(settings.controller.routing)
        self._dispatcher.configure(settings.controller)

    @property
    def active(self) -> int:
        """Requests of clients that are served; a list of prompts is one."""
        return sum(request.part_of is None for request in self._ledger.active)

    @property
    def waiting(self) -> int:
        """Requests for which no worker has room."""
        return len(self._dispatcher.waiting)

    @property
    def watched_workers(self) -> set[tuple[WorkerId, BootId]]:
        """The boots of workers that have, or may have, requests, or did not answer for one."""
        return self._dispatcher.doubted | {
            (request.worker, request.boot_id)
            for request in self._ledger.active
            if request.worker is not None and request.boot_id is not None
        }

    def find(self, key: RequestKey) -> OwnedRequest | None:
        """A request that is served, or ended not long ago."""
        return self._ledger.get(key)

    def has_turns(self, session: SessionKey | None) -> bool:
        """Whether turns of a session are here that have not ended."""
        return session is not None and self._turns.has(session)

    async def open(self) -> None:
        await self._dispatcher.open()
        await self._bus.subscribe(subjects.request_event(self._id), self._on_request_events)
        await self._lists.open()

    async def close(self) -> None:
        """Dispatch no more."""
        await self._tasks.end()

    async def wait_until_idle(self) -> None:
        await self._changes.wait_until(lambda: not self._ledger.active and not self.joining)

    # Taking.

    async def take(self, request: OwnedRequest) -> None:
        """Accept a request, or recognise it as one that was accepted before: then its stream
        goes to the new inbox too, from the start.

        Raises:
            RequestError: its id belongs to another request of this client, it has too many, or
                none are taken any more.
        """
        if self._closed is not None:
            raise RequestError(self._closed.message, code=self._closed.code)
        known = self._ledger.get(request.key)
        if known is not None:
            if known.fingerprint != request.fingerprint:
                raise RequestError(
                    f"request_id: {request.request_id!r} was used for another request",
                    code="request_id_conflict",
                    param="request_id",
                )
            await self._attach(known, request)
            return
        most = self._most_of_client
        if most is not None and self._ledger.has_more(request.client, most):
            raise RequestError(
                f"client {request.client} has {most} requests that have not ended: no more may be",
                code="rate_limit_exceeded",
                retry_after_ms=_RATE_RETRY_MS,
            )
        self._accept(request)
        await self._telling.status(request, request.accepted_message())
        self._tasks.start(self._dispatch(request))

    def _accept(self, request: OwnedRequest) -> None:
        self._ledger.add(request)
        self._turns.came(request)
        self.accepted += request.part_of is None
        logger.info("accepted for %s", request.skill, extra=_about(request))

    async def _attach(self, known: OwnedRequest, again: OwnedRequest) -> None:
        (inbox,) = again.inboxes
        if known.request.stream:
            await self._telling.to(known, known.accepted_message(), inbox)
        if await self._lists.attach(known, inbox):
            return
        if known.end is not None:
            await self._telling.to(known, known.end, inbox)
            return
        is_new = inbox not in known.inboxes
        if not known.ended:
            known.add_inbox(inbox)
        if known.state == "accepted":
            return  # the worker will hear of all inboxes
        if known.state != "dispatching":
            await self._join(known, again)
        elif is_new:
            known.add_late(again)

    async def _join(self, known: OwnedRequest, again: OwnedRequest) -> None:
        """Have the worker that has, or had, a request send its stream to who came later."""
        (inbox,) = again.inboxes
        if await self._dispatcher.attach(known, inbox) or known.end is not None:
            return
        if not known.ended:
            known.add_late(again)
            return
        if self._ledger.get(known.key) is not known:  # another came for it meanwhile
            await self.take(again)
            return
        # Nobody has it any more: the same seed gives the same answer.
        again.attempt = known.attempt
        self._accept(again)
        self._tasks.start(self._dispatch(again))

    def _join_late(self, request: OwnedRequest) -> None:
        late, request.late = request.late, []
        self.joining += len(late)
        for again in late:
            self._tasks.start(self._join_once(request, again))

    async def _join_once(self, request: OwnedRequest, again: OwnedRequest) -> None:
        try:
            await self._join(request, again)
        except RequestError as error:  # another has taken its id meanwhile
            end = again.failed_message(stream_error(error))
            await self._telling.to(again, end, again.inboxes[0])
        finally:
            self.joining -= 1
            self._changes.notify()

    # Adopting.

    def hold_turns(self) -> Callable[[], None]:
        """No turn of a session begins until what this returns is called."""
        return self._turns.hold()

    @contextlib.contextmanager
    def expecting(self, key: RequestKey) -> Iterator[Arrive]:
        """What is told of a request meanwhile waits until it has arrived, or will not."""
        events = self._expected.setdefault(key, [])

        async def arrive(request: OwnedRequest, failure: RequestFailed | None) -> None:
            if self._closed is not None or self._ledger.get(key) is not None:
                return
            self._ledger.add(request)
            self._turns.came_running(request)
            logger.info("adopted from %s", request.worker, extra=_about(request))
            self.metrics.adopted()
            for worker, event in [*events, *([(request.worker, failure)] if failure else [])]:
                if worker is not None:
                    await self.on_event(worker, event)

        try:
            yield arrive
        finally:
            self._expected.pop(key, None)

    async def cancel(self, request: OwnedRequest) -> None:
        """End a request as its client asked; also one that is not yet with a worker."""
        if request.ended:
            return
        request.cancelled = True
        self._turns.wake(request)
        self._dispatcher.waiting.dismiss(request)
        self._resume(request)
        if await self._lists.cancel(request):
            return
        self._dispatcher.withdraw(request)
        if request.state == "running":
            await self._dispatcher.cancel(request, silent=False)

    async def give_up(self, request: OwnedRequest, error: StreamError) -> None:
        """End a request, whatever its worker does, and make that drop it."""
        await self._dispatcher.cancel(request, silent=True)
        await self._fail(request, error)

    async def fail_all(self, code: str, message: str) -> None:
        """End every request, and make the workers drop what they do for it; take no more."""
        self._closed = StreamError.of(code, message)
        for request in self._ledger.active:
            await self.give_up(request, self._closed)

    async def fail_rest(self, code: str, message: str) -> None:
        """End what cannot be left to another controller; take no more."""
        self._closed = StreamError.of(code, message)
        await self.leaving.fail_rest(self._closed)

    async def left_us(self, request: OwnedRequest) -> bool:
        """Whether another controller serves it, that took us for gone: then it is ours no more."""
        owner = await self._peers.owner_since(request)
        if owner is not None:
            await self.let_go_to(owner, request)
        return owner is not None

    async def let_go_to(self, owner: ControllerId, request: OwnedRequest) -> None:
        """Another controller has adopted it."""
        if not request.ended:
            await self.let_go(request, f"controller {owner} has adopted it")

    async def let_go(self, request: OwnedRequest, why: str) -> None:
        """Another controller answers for it now, and for the turns behind it."""
        logger.info("%s", why, extra=_about(request))
        for turn in self._turns.behind(request):
            turn.follows = True
        request.finish("failed")
        self._ledger.remove(request)
        self._dispatcher.waiting.dismiss(request)
        self._changes.notify()
        await self._turns.ended(request)

    # Dispatching.

    async def _dispatch(self, request: OwnedRequest) -> None:
        try:
            await self._turns.wait(request)
            while await self._is_ours(request):
                await self._turns.complete(request)
                if await self._lists.begin(request):
                    return
                if await self._dispatcher.dispatch(request, self._need(request)):
                    self._note_failover(request)
                    break
        except RequestError as error:
            await self._fail(request, stream_error(error))
            return
        except Unavailable as error:
            # Why the last attempt failed says more than that nobody else is there.
            await self._fail(request, request.last_error or stream_error(error))
            return
        except Exception as error:  # one request fails, not the controller
            logger.exception("dispatch failed", extra=_about(request))
            await self._fail(request, StreamError.of("internal_error", repr(error)))
            return
        self._changes.notify()
        if request.state == "running" and request.worker is not None:
            logger.info("dispatched to %s", request.worker, extra=_about(request))
        if request.cancelled and not request.ended:
            if request.state == "running":
                await self._dispatcher.cancel(request, silent=False)
            else:
                await self._send_end(request, request.cancelled_message(), "finished")
        if request.end is None:
            self._join_late(request)

    async def _is_ours(self, request: OwnedRequest) -> bool:
        """Whether it is for us to dispatch a request, and not for another controller that was asked
        for it while we were out of touch, or takes over as we leave."""
        await self._peers.wait_in_touch()
        if request.attempt >= 0:
            owner = await self._peers.owner_since(request)
            if owner is None or not await self._peers.leave_to(owner, request):
                return not request.ended
            await self.let_go_to(owner, request)
            return False
        if request.ended or request.cancelled or self._dispatcher.may_begin(request):
            return not request.ended
        if self._dispatcher.closed:
            return False
        handed_over = await self._peers.hand_over(request)
        if request.ended:
            return False
        if handed_over:
            await self.let_go(request, "another controller has it")
            return False
        request.ours_since, request.follows = time.monotonic(), False
        return True

    def explain(self, request: OwnedRequest) -> Route:
        """Where a request, or the first prompt of a list, would go now, and why; it is not
        served."""
        return self._dispatcher.explain(request.skill, self._need(first_part(request)))

    def _need(self, request: OwnedRequest) -> Need:
        home = self._homes.home(request.affinity) if request.affinity is not None else None
        reasons = (
            request.started or request.request.reasoning_effort == "none"
        ) and self._registry.has_reasoning(request.models)
        return need_of(request, self._prompt_rules, home, reasons=reasons)

    def _note_failover(self, request: OwnedRequest) -> None:
        """If the request had begun elsewhere, it goes on now."""
        if request.left is None:
            return
        worker, since = request.left
        request.left = None
        took_ms = (time.monotonic() - since) * 1000
        self._failovers_ms[worker] = max(took_ms, self._failovers_ms.get(worker, 0.0))

    def take_failovers_ms(self) -> dict[WorkerId, float]:
        """How long requests waited that had to leave a worker, until they went on: the longest for
        each worker since the last call."""
        taken, self._failovers_ms = self._failovers_ms, {}
        return taken

    async def _retry(self, request: OwnedRequest, error: StreamError) -> None:
        """An attempt failed: another one begins, or goes on where this one was; where that is of
        no use, the request ends."""
        if request.crashes >= _MOST_CRASHES:
            code = "request_crashes_engine"
            await self._fail(request, StreamError.of(code, ERROR_CODES[code].meaning))
            return
        if request.elapsed_ms > request.request.timeout_ms:
            await self._fail(request, _deadline_exceeded(request))
            return
        delay_s = self._delay_s(request, error)
        if delay_s is None or time.monotonic() + delay_s >= request.deadline:
            await self._fail(request, error)
            return
        logger.warning(
            "%s: %s", "migrates" if request.started else "tried again", error.message,
            extra=_about(request),
        )  # fmt: skip
        self.metrics.retried(request.worker, error.code, migrated=request.started)
        request.give_up_attempt(error)
        if request.started:
            await self._telling.status(request, request.waiting_message())
        loop = asyncio.get_running_loop()
        self._pauses[request] = loop.call_later(delay_s, self._resume, request)

    def _delay_s(self, request: OwnedRequest, error: StreamError) -> float | None:
        """Until the next attempt; None where there is none. Who had begun to answer goes on at
        once the first time: somebody is reading."""
        if request.cancelled or not is_retryable(error.code):
            return None
        if not request.started:
            return self._retries.delay_s(request.failures + 1)
        if request.migrations >= self._migration_limit:
            return None
        return self._retries.pause_s(request.migrations) if request.migrations else 0.0

    def _resume(self, request: OwnedRequest) -> None:
        """The pause before another attempt is over."""
        if (pause := self._pauses.pop(request, None)) is not None:
            pause.cancel()
            self._tasks.start(self._dispatch(request))

    # Following.

    def running_on(self, worker: WorkerId) -> list[OwnedRequest]:
        """What a worker has taken and not ended, as far as we heard."""
        return [each for each in self._ledger.on_worker(worker) if each.state == "running"]

    def quiet_workers(self, now: float) -> set[WorkerId]:
        """Those that have said nothing of a request for a while: maybe we missed it."""
        return {
            request.worker
            for request in self._ledger.active
            if request.state == "running" and request.worker and now - request.heard_at > _QUIET_S
        }

    async def on_worker_gone(self, gone: WorkerGone) -> None:
        logger.warning("worker %s is gone: %s", gone.worker, gone.reason)
        self._dispatcher.on_worker_gone(gone.worker, gone.boot_id)
        for request in self._ledger.on_worker(gone.worker):
            # Also of a boot that was never heard of: it may have acked, and ended since.
            is_here = self._registry.is_here(gone.worker, request.boot_id)
            if is_here or request.state != "running":
                continue  # what is not acked the dispatcher takes elsewhere by itself
            attempt, boot_id = request.attempt, request.boot_id
            await self._dispatcher.cancel(request, silent=True)
            if request.runs_in(attempt, boot_id):  # else it ended meanwhile
                message = f"worker {gone.worker} is gone: {gone.reason}"
                await self._retry(request, StreamError.of("worker_lost", message))

    def on_worker_event(self) -> None:
        """A worker may have room now."""
        self._dispatcher.waiting.nudge()

    async def tick(self, now: float) -> None:
        """Deadlines and keep-alives; call it a few times a second."""
        for request in self._ledger.active:
            await self._attend(request, now)
        self._ledger.forget_old(now)
        self._lists.forget_old(now)
        self._dispatcher.waiting.tick()

    async def _attend(self, request: OwnedRequest, now: float) -> None:
        if await self._lists.attend(request, now):
            return
        if request.elapsed_ms > request.request.timeout_ms + _GRACE_S * 1000:
            await self.give_up(request, _deadline_exceeded(request))
        elif request.state != "running" and now - request.last_sent_at >= KEEP_ALIVE_S:
            await self._telling.status(request, request.waiting_message())

    async def _on_request_events(self, message: Message) -> None:
        try:
            batch = decode(RequestEvents, message.payload)
        except DecodeError as error:
            logger.error("events of a worker could not be read: %s", error.message)
            return
        for event in batch.events:
            await self.on_event(batch.worker, event)

    async def on_event(self, worker: WorkerId, event: RequestEvent) -> None:
        """What a worker tells of a request, by itself or when asked."""
        key = event.client, event.request_id
        request = self._ledger.get(key)
        if request is None and key in self._expected:
            self._expected[key].append((worker, event))
        if request is None or request.ended or event.attempt != request.attempt:
            return
        if isinstance(event, RequestAdopted):
            if event.owner != self._id:
                await self.let_go_to(event.owner, request)
            return
        if request.worker is None:
            return  # said late, of an attempt that was given up: another one follows
        request.heard_at = time.monotonic()
        match event:
            case TokensEmitted():
                if not request.started and request.model is not None:
                    self.metrics.first_token(request.model, request.elapsed_ms / 1000)
                    self._kept.expect(worker, request.links)
                request.note_tokens(event)
            case RequestFinished():
                await self._end(request, "finished")
            case RequestFailed(terminal_sent=True):
                await self._end(request, "failed", event.code)
            case RequestFailed():
                await self._dispatcher.cancel(request, silent=True)  # it need not keep it for us
                request.crashes += event.suspect
                wait_ms = event.retry_after_ms
                failure = StreamError.of(event.code, event.message, retry_after_ms=wait_ms)
                await self._retry(request, failure)

    # Ending.

    async def _fail(self, request: OwnedRequest, error: StreamError) -> None:
        if not request.ended and not await self._lists.fail(request, error):
            logger.warning(
                "request failed: %s", error.message,
                extra={"request_id": request.request_id, "code": error.code},
            )  # fmt: skip
            await self._send_end(request, request.failed_message(error), "failed", error.code)

    async def _send_end(
        self,
        request: OwnedRequest,
        message: Done | Failed,
        state: RequestStateName,
        code: str = "",
    ) -> None:
        request.end = message
        await self._end(request, state, code)
        await self._telling.end(request, message)

    async def note_end(
        self, request: OwnedRequest, state: RequestStateName, code: str = ""
    ) -> None:
        """A request ended, and its client was told; unless that is known."""
        if not request.ended:
            await self._end(request, state, code)

    async def _end(self, request: OwnedRequest, state: RequestStateName, code: str = "") -> None:
        request.finish(state, code)
        if (pause := self._pauses.pop(request, None)) is not None:
            pause.cancel()
        self._dispatcher.waiting.dismiss(request)
        told = code or ("cancelled" if request.cancelled else "ok")
        seconds = request.elapsed_ms / 1000
        if request not in self._lists:  # of those each prompt is counted
            tokens = request.known_tokens
            self.metrics.ended(request.model, request.worker, told, tokens, seconds)
        logger.info("%s after %.0f ms", state, request.elapsed_ms, extra=_about(request))
        if request.part_of is None:
            if state != "failed":
                self.completed += 1
            elif is_of_the_request(code):
                self.rejected += 1
            else:
                self.failed += 1
        self._changes.notify()
        self._dispatcher.waiting.nudge()
        if request.late and request.end is None:
            # Those are still to hear what its worker said.
            self._join_late(request)
        await self._turns.ended(request)


def _deadline_exceeded(request: OwnedRequest) -> StreamError:
    message = f"timeout_ms of {request.request.timeout_ms} passed"
    return StreamError.of("deadline_exceeded", message)


def _about(request: OwnedRequest) -> dict[str, object]:
    """The fields of a log line about a request."""
    return {
        "request_id": request.request_id,
        "client": request.client,
        "attempt": max(0, request.attempt),
        "model": request.model,
        "worker": request.worker,
    }


def _session_ttl_s(routing: Routing) -> float | None:
    return routing.session_ttl_s if routing.sticky_sessions else None
