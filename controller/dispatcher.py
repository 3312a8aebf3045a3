"""Hands a request to workers, one after another, until one takes it."""

import asyncio
import contextlib
import logging
import math
import random
import time
from collections.abc import Collection, Hashable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

from controller.dispatch_lanes import Ack, Answer, DispatchLanes
from controller.explanation import explained
from controller.kept_prefixes import KeptByWorkers
from controller.metrics import Metrics
from controller.owned_request import WORKER_FAULTS, OwnedRequest
from controller.peers import Peers
from controller.placement import Placement
from controller.registry import Registry
from controller.routing import PASSING, Decision, Need, NoRoute, Policy, choose, policy_named
from controller.waiting_room import WaitingRoom
from shared import subjects
from shared.bus import Bus
from shared.errors import BusError, DecodeError, RequestTimedOut, Unavailable
from shared.ids import BootId, ControllerId, SkillName, WorkerId
from shared.messages.codec import decode, encode
from shared.messages.control import AttachStream, CancelRequest, ControlReply
from shared.messages.dispatch import Dispatch, Refusal
from shared.messages.events import WorkerReport
from shared.messages.routes import Route
from shared.settings.tree import Controller

logger = logging.getLogger(__name__)

_LOOK_AGAIN_S = 0.1
_STARTS_WITHIN_S = 60.0
"""A worker that starts is waited for so long; until its engine runs, as models that load take
requests."""

_MOST_NAMED = 10
"""An error tells so many refusals; the others are counted."""

_SETTLING_BEATS = 3
"""So many heartbeats after it began to listen a controller has heard all workers, busy machines
too; until then it does not say that nobody can serve a request."""


@dataclass(frozen=True, slots=True)
class Place:
    """A worker that was chosen; it is counted there already."""

    decision: Decision
    placement: Placement


@dataclass(frozen=True, slots=True)
class _Refused:
    """What one boot of a worker said, that had said how it stands at `seen_at`."""

    refusal: Refusal
    boot_id: BootId
    seen_at: float

    @property
    def passes(self) -> bool:
        """Also of one that says when to come again; and of one that is not there, or does not
        answer: it may be started again."""
        if self.refusal.retry_after_ms is not None:
            return True
        return self.refusal.code in (*PASSING, "worker_lost")


@dataclass(slots=True)
class _Search:
    """The search for a worker.

    Attributes:
        until: it goes on no longer.
        waits_since: when it first found no place.
        refused: who said no.
    """

    request: OwnedRequest
    need: Need
    until: float
    waits_since: float = math.inf
    refused: dict[WorkerId, _Refused] = field(default_factory=dict)

    @property
    def kind(self) -> Hashable:
        """Who is alike here finds a place where this one does; None for who was refused, or
        failed, somewhere."""
        if self.refused or self.request.tried:
            return None
        requires = self.need.requires
        return tuple(self.need.models), requires and requires.model_dump_json()


class Dispatcher:
    """Chooses a worker, dispatches, and goes to the next one on a refusal; without any, the request
    waits a while.

    Attributes:
        closed: no request goes to its first worker any more, but for prompts of a list.
        doubted: the boots of workers that did not answer when they were asked last.
    """

    def __init__(
        self,
        controller: ControllerId,
        settings: Controller,
        bus: Bus,
        registry: Registry,
        kept: KeptByWorkers,
        peers: Peers,
    ) -> None:
        """Counts what it does in its `metrics`."""
        self.closed = False
        self.doubted: set[tuple[WorkerId, BootId]] = set()
        self._controller = controller
        self._bus = bus
        self._registry = registry
        self._kept = kept
        self._peers = peers
        self._policy = policy_named(settings.routing.policy)
        self._lanes = DispatchLanes(controller, settings.dispatch, bus)
        self._ack_timeout_s = settings.dispatch.ack_timeout_ms / 1000
        self._settles_s = _SETTLING_BEATS * settings.failover.heartbeat_interval_ms / 1000
        self._settled_at = math.inf
        self._random = random.Random()
        self.waiting: WaitingRoom[Place] = WaitingRoom(settings.waiting_room, time.monotonic)
        self.metrics = Metrics(registry, self.waiting, self._lanes)

    def configure(self, settings: Controller) -> None:
        """Go by other settings, from now on."""
        if settings.routing.policy != self._policy.name:
            self._policy = policy_named(settings.routing.policy)
        self._lanes.configure(settings.dispatch)
        self._ack_timeout_s = settings.dispatch.ack_timeout_ms / 1000
        self.waiting.configure(settings.waiting_room)

    async def open(self) -> None:
        """Hear what workers answer."""
        await self._lanes.open()
        self._settled_at = time.monotonic() + self._settles_s

    async def dispatch(self, request: OwnedRequest, need: Need) -> bool:
        """Return when a worker has the request, or it has ended meanwhile; or False where another
        controller may have it: that is to be asked first.

        Raises:
            Unavailable: no worker took it; the reason is that of the last refusal, or why
                none could be asked.
        """
        search = _Search(request, need, until=request.deadline)
        while not request.ended and not request.cancelled:
            await self._bus.wait_connected()
            await self._peers.wait_in_touch()
            if not self.may_begin(request):
                return False
            place = await self._place(search)
            if place is None:
                continue
            if self._peers.out_of_touch:  # since its place was found
                place.placement.ended("other", time.monotonic())
                continue
            if request.ended or request.cancelled:  # while its place was being told
                place.placement.ended("other", time.monotonic())
                return True
            connection = self._bus.connections
            report = place.decision.worker.report
            if request.request.debug:
                request.route = self._explained(request.skill, need, place.decision)
            attempt = request.begin_attempt(
                report.id, report.boot_id, place.decision.model, place.placement
            )
            request.links = [link for link, _ in need.links(place.decision.model)]
            answer = await self._ask(report, attempt, request)
            if answer is None:
                place.placement.ended("other", time.monotonic())
                return True
            if isinstance(answer, Ack):
                self.metrics.routed(place.decision, need, request.elapsed_ms / 1000)
            if request.attempt != attempt.attempt or request.state != "dispatching":
                place.placement.ended("other", time.monotonic())
                return True  # ended, or given back, before the answer came
            if isinstance(answer, Ack):
                self.doubted.discard((report.id, report.boot_id))
                request.acknowledge(answer.attempt, answer.boot_id)
                return True
            # Where our own link failed, that says nothing of the worker.
            ours = connection != self._bus.connections or not self._bus.connected
            fault = answer.code in WORKER_FAULTS and not ours
            place.placement.ended("fault" if fault else "other", time.monotonic())
            if ours:
                continue
            if answer.code == "worker_lost" and self._registry.is_here(report.id, report.boot_id):
                self.doubted.add((report.id, report.boot_id))
            self.metrics.refused(report.id, answer.code)
            search.refused[report.id] = _Refused(
                answer, report.boot_id, place.decision.worker.seen_at
            )
            logger.info(
                "%s refused: %s", report.id, answer.message,
                extra={"request_id": request.request_id, "code": answer.code},
            )  # fmt: skip
        return True

    def may_begin(self, request: OwnedRequest) -> bool:
        """Whether it is for us to have a request served by its next worker."""
        leaves = self.closed and request.attempt < 0 and request.part_of is None
        return not leaves and self._peers.is_sure(request)

    async def _place(self, search: _Search) -> Place | None:
        """A worker that may take it; None where the request has to look again, or has ended.

        Raises:
            Unavailable: there is none, and waiting does not help.
        """
        level = search.need.level

        def find() -> Place:
            return self._choose(search)

        try:
            if (ahead := self.waiting.ahead_of(level, search.kind)) is not None:
                raise ahead
            return find()
        except NoRoute as error:
            if time.monotonic() < self._settled_at:
                await asyncio.sleep(_LOOK_AGAIN_S)  # not every worker was heard yet
                return None
            try:
                if not (error.passes or any(each.passes for each in search.refused.values())):
                    raise
                search.waits_since = min(search.waits_since, time.monotonic())
                most_s = _STARTS_WITHIN_S if error.starts else self.waiting.max_wait_s
                until = min(search.until, search.waits_since + most_s)
                return await self.waiting.wait(
                    search.request, find, error, level=level, kind=search.kind, until=until
                )
            except NoRoute as last:
                if last.starts and not error.starts:
                    return None  # it came while this waited
                request = search.request
                if request.request.debug:
                    request.route = self._explained(request.skill, search.need, last)
                if last.code == "queue_full":
                    for view in self._registry.workers:
                        view.turned_away += 1
                if not search.refused:
                    raise
                refusals = [each.refusal for each in search.refused.values()]
                raise _all_refused(refusals) from None

    def explain(self, skill: SkillName, need: Need) -> Route:
        """Where a request would go now, and why."""
        try:
            return self._explained(skill, need, self._chosen(need, (), deepcopy(self._policy)))
        except NoRoute as error:
            return self._explained(skill, need, error)

    def _explained(self, skill: SkillName, need: Need, decided: Decision | NoRoute) -> Route:
        return explained(self._controller, self._policy.name, skill, need, decided)

    def _choose(self, search: _Search) -> Place:
        """A worker that did not refuse, nor fail before unless there is no other."""
        out = {id for id, each in search.refused.items() if not self._changed(id, each)}
        decision = None
        if search.request.tried:
            with contextlib.suppress(NoRoute):
                decision = self._chosen(search.need, {*out, *search.request.tried})
        decision = decision or self._chosen(search.need, out)
        prefill_ms = decision.chosen.forecast.prefill_ms
        choices = search.request.request.choices
        now = time.monotonic()
        return Place(decision, Placement(decision.worker, prefill_ms, now, choices=choices))

    def _chosen(
        self, need: Need, excluded: Collection[WorkerId], policy: Policy | None = None
    ) -> Decision:
        return choose(
            need,
            self._registry,
            self._kept,
            policy or self._policy,
            now=time.monotonic(),
            draw=self._random.random,
            excluded=excluded,
        )

    def _changed(self, worker: WorkerId, refused: _Refused) -> bool:
        """Whether who refused was started again, or has said since how it stands now."""
        view = self._registry.worker(worker)
        if view is None or view.report.boot_id != refused.boot_id:
            return view is not None
        return refused.passes and view.seen_at > refused.seen_at

    async def attach(self, request: OwnedRequest, inbox: str) -> bool:
        """Have the worker send the stream to one more inbox; False where it is not there."""
        if request.worker is None:
            return False
        order = AttachStream(
            request_id=request.request_id,
            client=request.client,
            attempt=request.attempt,
            inbox=inbox,
        )
        try:
            subject = subjects.worker_control(request.worker, order.verb)
            answer = await self._bus.request(subject, encode(order), timeout_s=self._ack_timeout_s)
            return decode(ControlReply, answer.payload).ok
        except (BusError, DecodeError):
            return False

    def on_worker_gone(self, worker: WorkerId, boot_id: BootId) -> None:
        """Wait no longer for acks of this boot: the requests go to the next worker."""
        self.doubted.discard((worker, boot_id))
        self._lanes.on_worker_gone(worker, boot_id)

    def withdraw(self, request: OwnedRequest) -> bool:
        """Whether no worker was told of its dispatch yet: then none will be."""
        return self._lanes.withdraw(request.key)

    async def cancel(self, request: OwnedRequest, *, silent: bool) -> None:
        """Tell the worker of the present attempt to stop it."""
        if request.worker is None or self.withdraw(request):
            return
        await self._cancel_attempt(request.worker, request, silent=silent)

    async def _ask(self, report: WorkerReport, attempt: Dispatch, request: OwnedRequest) -> Answer:
        """Send a dispatch to one worker and wait for its answer."""
        try:
            answer = await self._lanes.ask(
                report,
                attempt,
                request.whole_body,
                level=request.request.level,
            )
            # The ack of a boot that ended at once counts for nothing.
            if isinstance(answer, Ack) and not self._is_here(report, answer):
                raise RequestTimedOut(f"worker {report.id} is gone")
            return answer
        except RequestTimedOut as error:
            # It may have taken the request all the same: that attempt must not go on.
            await self._cancel_attempt(report.id, attempt, silent=True)
            return Refusal(code="worker_lost", message=error.message)

    def _is_here(self, asked: WorkerReport, ack: Ack) -> bool:
        """Whether the boot that acked is the one that is here, or one not heard of yet."""
        here = self._registry.worker(asked.id)
        return here is not None and here.report.boot_id in (asked.boot_id, ack.boot_id)

    async def _cancel_attempt(
        self, worker: WorkerId, attempt: Dispatch | OwnedRequest, *, silent: bool
    ) -> None:
        """Best effort: where it gets lost, attempt numbers fence what still comes."""
        order = CancelRequest(
            request_id=attempt.request_id,
            client=attempt.client,
            attempt=attempt.attempt,
            silent=silent,
            owner=self._controller if silent else None,
        )
        try:
            await self._bus.publish(subjects.worker_control(worker, order.verb), encode(order))
        except BusError as error:
            logger.warning("a cancel was lost: %s", error.message)


def _all_refused(refused: Sequence[Refusal]) -> Unavailable:
    last = refused[-1]
    waits = [each.retry_after_ms for each in refused if each.retry_after_ms is not None]
    others = len(refused) - _MOST_NAMED
    more = [f"{others} others refused"] if others > 0 else []
    return Unavailable(
        "; ".join([*more, *(refusal.message for refusal in refused[-_MOST_NAMED:])]),
        code=last.code,
        param=last.param,
        retry_after_ms=min(waits, default=None),
    )
