"""What workers tell of requests when they are asked: of those whose controller is gone, and of our
own where we may have missed it.

A stream needs no controller while its worker lives. What a controller knew of it the worker knows
too, so a successor can ask for that, and is told of what comes: when the worker dies as well,
the stream still goes on elsewhere. And as NATS delivers at most once, what a worker said while one
of us had no connection is lost: that a request ended, or came back.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable

from controller.owned_request import OwnedRequest, RequestKey
from controller.ownership import adoption_key, rank_owners
from controller.registry import Registry
from controller.requests import Requests
from shared import subjects
from shared.bus import Bus
from shared.errors import BusError, DecodeError
from shared.ids import ControllerId, ModelId, SkillName, WorkerId
from shared.messages.codec import decode, encode
from shared.messages.control import (
    AdoptedRequest,
    AdoptRequest,
    ControlReply,
    ListRequests,
    RunningRequest,
)
from shared.tasks import Tasks

logger = logging.getLogger(__name__)

_ANSWER_S = 5.0


class Adoption:
    """Takes requests over, and catches up with our own.

    Args:
        models: of a skill, in order of preference; none where it is not known here.
        settles_s: so long after it began to listen a controller knows who else is there.
    """

    def __init__(
        self,
        bus: Bus,
        controller: ControllerId,
        registry: Registry,
        requests: Requests,
        models: Callable[[SkillName], list[ModelId]],
        *,
        settles_s: float,
    ) -> None:
        self._bus = bus
        self._id = controller
        self._registry = registry
        self._requests = requests
        self._models = models
        self._tasks = Tasks()
        self._catching_up: set[WorkerId] = set()
        self._settles_s = settles_s
        self._settled = False

    def open(self) -> None:
        """Take over what nobody who is there answers for: requests of a controller that ended
        before we began, or of an earlier boot of ours. Until that is done no turn begins: the one
        before may be among them."""
        self._tasks.start(self._adopt_first(self._requests.hold_turns()))

    async def close(self) -> None:
        await self._tasks.end()

    def on_controller_gone(self, controller: ControllerId) -> None:
        """Take over what it owned, as far as that falls to us."""
        workers = [view.id for view in self._registry.workers]
        hold = self._requests.hold_turns()  # at once: turns of its sessions come here already
        # Its next boot, if it is here already, takes nothing over before it knows who is there.
        among = self._takers - {controller}
        self._tasks.start(self._adopt_all(workers, lambda owner: owner == controller, among, hold))

    def on_worker_heard(self, worker: WorkerId) -> None:
        """Likewise what one serves that is heard only now."""
        if self._settled:
            self._tasks.start(self._adopt_orphans([worker], self._requests.hold_turns()))

    def catch_up(self, workers: Iterable[WorkerId]) -> None:
        """Learn what came of our own requests at workers of which we may have missed something."""
        for worker in workers:
            if worker not in self._catching_up:
                self._catching_up.add(worker)
                self._tasks.start(self._catch_up(worker))

    async def _catch_up(self, worker: WorkerId) -> None:
        try:
            known = [(one, one.boot_id, one.attempt) for one in self._requests.running_on(worker)]
            asked_at = time.monotonic()
            for request, _, _ in known:
                request.heard_at = asked_at
            reply = await self._order(worker, ListRequests(given_back=True))
            if reply is None:
                return
            told = {(each.client, each.request_id, each.attempt): each for each in reply.requests}
            async with asyncio.TaskGroup() as tasks:
                for request, boot_id, attempt in known:
                    # Of another boot of the worker it will be known soon that this one is gone.
                    if boot_id != reply.boot_id or not request.runs_in(attempt, boot_id):
                        continue
                    running = told.get((*request.key, attempt))
                    if running is None:
                        tasks.create_task(self._learn_of_end(request))
                        continue
                    if running.owner == self._id:
                        request.ours_since = asked_at
                    tasks.create_task(self._learn(worker, request, running))
        finally:
            self._catching_up.discard(worker)

    async def _learn_of_end(self, request: OwnedRequest) -> None:
        """Its worker has it no more: it ended there, or another controller had it go on
        elsewhere."""
        attempt, boot_id = request.attempt, request.boot_id
        if not await self._requests.left_us(request) and request.runs_in(attempt, boot_id):
            await self._requests.note_end(request, "finished")

    async def _learn(self, worker: WorkerId, request: OwnedRequest, told: RunningRequest) -> None:
        if told.owner != self._id:
            await self._requests.let_go_to(told.owner, request)
        elif told.given_back:
            order = AdoptRequest(request_id=told.request_id, client=told.client, owner=self._id)
            reply = await self._order(worker, order)
            adopted = reply.adopted if reply is not None else None
            if adopted is not None and adopted.failure is not None:
                await self._requests.on_event(worker, adopted.failure)

    async def _adopt_first(self, release: Callable[[], None]) -> None:
        await asyncio.sleep(self._settles_s)
        self._settled = True
        await self._adopt_orphans([view.id for view in self._registry.workers], release)

    async def _adopt_orphans(
        self, workers: Collection[WorkerId], release: Callable[[], None]
    ) -> None:
        await self._adopt_all(workers, self._is_nobody, self._takers, release)

    def _is_nobody(self, owner: ControllerId) -> bool:
        return owner == self._id or owner not in {c.id for c in self._registry.controllers}

    @property
    def _takers(self) -> set[ControllerId]:
        """Among whom requests are shared out."""
        return {*self._registry.ready_controllers, self._id}

    async def _adopt_all(
        self,
        workers: Collection[WorkerId],
        is_gone: Callable[[ControllerId], bool],
        takers: Collection[ControllerId],
        release: Callable[[], None],
    ) -> None:
        try:
            listings = await asyncio.gather(*(self._list(worker) for worker in workers))
            for worker, running in _latest(zip(workers, listings, strict=True)):
                if is_gone(running.owner) and self._is_ours(running, takers):
                    await self._adopt(worker, running)
        finally:
            release()

    def _is_ours(self, running: RunningRequest, takers: Collection[ControllerId]) -> bool:
        key = adoption_key(running.client, running.request_id, running.session_id)
        known = self._requests.find((running.client, running.request_id))
        return rank_owners(key, takers)[0] == self._id and known is None

    async def _list(self, worker: WorkerId) -> list[RunningRequest]:
        order = ListRequests(given_back=True)
        reply = await self._order(worker, order)
        return reply.requests if reply is not None else []

    async def _adopt(self, worker: WorkerId, running: RunningRequest) -> None:
        key = running.client, running.request_id
        with self._requests.expecting(key) as arrive:
            order = AdoptRequest(
                request_id=running.request_id, client=running.client, owner=self._id
            )
            reply = await self._order(worker, order)
            view = self._registry.worker(worker)
            if reply is None or reply.adopted is None or view is None:
                return  # it has ended meanwhile, or its client will ask again
            request = _owned(reply.adopted, worker, self._models(reply.adopted.dispatch.skill))
            request.boot_id = view.report.boot_id
            await arrive(request, reply.adopted.failure)

    async def _order(
        self, worker: WorkerId, order: ListRequests | AdoptRequest
    ) -> ControlReply | None:
        try:
            subject = subjects.worker_control(worker, order.verb)
            answer = await self._bus.request(subject, encode(order), timeout_s=_ANSWER_S)
            return decode(ControlReply, answer.payload)
        except (BusError, DecodeError) as error:
            logger.warning("worker %s does not tell of its requests: %s", worker, error.message)
            return None


def _latest(
    listings: Iterable[tuple[WorkerId, Iterable[RunningRequest]]],
) -> Iterable[tuple[WorkerId, RunningRequest]]:
    """Of each request the highest attempt, and who has it."""
    latest: dict[RequestKey, tuple[WorkerId, RunningRequest]] = {}
    for worker, listing in listings:
        for running in listing:
            key = running.client, running.request_id
            if key not in latest or latest[key][1].attempt < running.attempt:
                latest[key] = worker, running
    return latest.values()


def _owned(adopted: AdoptedRequest, worker: WorkerId, models: list[ModelId]) -> OwnedRequest:
    """A request that its worker told of, as if it had been ours."""
    dispatch, known = adopted.dispatch, adopted.dispatch.resume
    heard = len(dispatch.request.heard_ids)
    request = OwnedRequest(
        request_id=dispatch.request_id,
        client=dispatch.client,
        skill=dispatch.skill,
        inboxes=list(dispatch.inboxes),
        request=dispatch.request,
        models=models or [dispatch.model],
        seed=dispatch.seed,
        elapsed_before_ms=dispatch.elapsed_ms,
        state="running",
        attempt=dispatch.attempt,
        worker=worker,
        model=dispatch.model,
        route=dispatch.route,
    )
    if known is not None:
        request.tokens = {choice: ids[heard:] for choice, ids in known.token_ids.items()}
        request.text_sent = dict(known.text_sent)
        request.finish_reasons = dict(known.finish_reasons)
        request.first_token_ms = known.first_token_ms
        request.cached_tokens = known.cached_tokens
    return request
