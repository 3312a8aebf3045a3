"""Hands a request to workers, one after another, until one takes it."""

import asyncio
import contextlib
import logging
import random
import time
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from controller.owned_request import OwnedRequest
from controller.registry import Registry
from controller.routing import Route, choose
from shared import subjects
from shared.bus import Bus
from shared.errors import BusError, DecodeError, NoResponders, RequestTimedOut, Unavailable
from shared.ids import BootId, ControllerId, WorkerId
from shared.messages.codec import decode, encode
from shared.messages.control import AttachStream, CancelRequest, ControlReply
from shared.messages.dispatch import Dispatch, DispatchBatch, DispatchReply, Refusal

logger = logging.getLogger(__name__)

_LOOK_AGAIN_S = 0.1


@dataclass(frozen=True, slots=True)
class Ack:
    """A worker took the request.

    Attributes:
        attempt: the one that runs: higher than ours where the worker knew the request before.
        boot_id: another than we asked where the worker started again and has not told us yet.
    """

    attempt: int
    boot_id: BootId


class Dispatcher:
    """Chooses a worker, dispatches, and goes to the next one on a refusal."""

    def __init__(
        self,
        controller: ControllerId,
        bus: Bus,
        registry: Registry,
        *,
        ack_timeout_s: float,
        settling_s: float,
    ) -> None:
        """`settling_s`: after its start a controller has heard all workers in this time; until
        then it does not say that nobody can serve a request."""
        self._controller = controller
        self._bus = bus
        self._registry = registry
        self._ack_timeout_s = ack_timeout_s
        self._settled_at = time.monotonic() + settling_s
        self._random = random.Random()
        self._awaited: defaultdict[BootId, set[asyncio.Future[None]]] = defaultdict(set)

    async def dispatch(self, request: OwnedRequest) -> None:
        """Return when a worker has the request, or it has ended meanwhile.

        Raises:
            Unavailable: no worker took it; the reason is that of the last refusal, or why
                none could be asked.
        """
        refused: dict[WorkerId, Refusal] = {}
        while not request.ended and not request.cancelled:
            await self._bus.wait_connected()
            try:
                route = self._choose(request, refused)
            except Unavailable as error:
                if time.monotonic() < self._settled_at:
                    await asyncio.sleep(_LOOK_AGAIN_S)  # not every worker was heard yet
                    continue
                if error.code == "queue_full":
                    for view in self._registry.workers:
                        view.turned_away += 1
                if not refused:
                    raise
                raise _all_refused(refused) from None
            connection = self._bus.connections
            route.worker.unreported += 1
            report = route.worker.report
            attempt = request.begin_attempt(report.id, report.boot_id, route.model)
            answer = await self._ask(report.id, report.boot_id, attempt)
            if request.attempt != attempt.attempt or request.state != "dispatching":
                return  # ended, or given back, before the answer came
            if isinstance(answer, Ack):
                request.acknowledge(answer.attempt, answer.boot_id)
                for inbox in request.inboxes:
                    if inbox not in attempt.inboxes:  # came while the dispatch was on its way
                        await self.attach(request, inbox)
                return
            route.worker.unreported -= 1
            if connection != self._bus.connections or not self._bus.connected:
                continue  # our own link failed, which says nothing of the worker
            refused[report.id] = answer
            logger.info(
                "%s refused: %s", report.id, answer.message,
                extra={"request_id": request.request_id, "code": answer.code},
            )  # fmt: skip

    def _choose(self, request: OwnedRequest, refused: Collection[WorkerId]) -> Route:
        """A worker that did not refuse, nor fail before unless there is no other."""
        workers, draw = self._registry.workers, self._random.random
        avoided = {*refused, *request.tried}
        if request.tried:
            with contextlib.suppress(Unavailable):
                return choose(request.need, workers, excluded=avoided, tie_break=draw)
        return choose(request.need, workers, excluded=refused, tie_break=draw)

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

    def on_worker_gone(self, boot_id: BootId) -> None:
        """Wait no longer for acks of this boot: the requests go to the next worker."""
        for gone in self._awaited.get(boot_id, ()):
            if not gone.done():
                gone.set_result(None)

    async def cancel(self, request: OwnedRequest, *, silent: bool) -> None:
        """Tell the worker of the present attempt to stop it."""
        if request.worker is None:
            return
        await self._cancel_attempt(request.worker, request, silent=silent)

    async def _ask(self, worker: WorkerId, boot_id: BootId, dispatch: Dispatch) -> Ack | Refusal:
        """Dispatch to one worker and wait for its answer."""
        batch = DispatchBatch(owner=self._controller, dispatches=[dispatch])
        try:
            reply = await self._reply(worker, boot_id, encode(batch))
        except NoResponders:
            return Refusal(code="worker_lost", message=f"worker {worker} is not there")
        except RequestTimedOut:
            # It may have taken the request all the same: that attempt must not go on.
            await self._cancel_attempt(worker, dispatch, silent=True)
            return Refusal(code="worker_lost", message=f"worker {worker} does not answer")
        except (BusError, DecodeError) as error:
            return Refusal(code="internal_error", message=error.message)
        if len(reply.results) != 1:
            message = f"worker {worker} answered with {len(reply.results)} results instead of 1"
            return Refusal(code="internal_error", message=message)
        (result,) = reply.results
        return result.refusal or Ack(result.attempt, reply.boot_id)

    async def _reply(self, worker: WorkerId, boot_id: BootId, payload: bytes) -> DispatchReply:
        """The worker's answer.

        Raises:
            RequestTimedOut: none came in time, or this boot is gone.
            NoResponders, BusError, DecodeError.
        """
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._awaited[boot_id].add(gone)
        asking = asyncio.ensure_future(
            self._bus.request(subjects.worker_infer(worker), payload, timeout_s=self._ack_timeout_s)
        )
        try:
            await asyncio.wait((asking, gone), return_when=asyncio.FIRST_COMPLETED)
            # The ack of a worker that left at once counts for nothing.
            if gone.done() or not asking.done():
                raise RequestTimedOut(f"worker {worker} is gone")
            return decode(DispatchReply, asking.result().payload)
        finally:
            asking.cancel()
            self._awaited[boot_id].discard(gone)
            if not self._awaited[boot_id]:
                del self._awaited[boot_id]

    async def _cancel_attempt(
        self, worker: WorkerId, attempt: Dispatch | OwnedRequest, *, silent: bool
    ) -> None:
        """Best effort: where it gets lost, attempt numbers fence what still comes."""
        order = CancelRequest(
            request_id=attempt.request_id,
            client=attempt.client,
            attempt=attempt.attempt,
            silent=silent,
        )
        try:
            await self._bus.publish(subjects.worker_control(worker, order.verb), encode(order))
        except BusError as error:
            logger.warning("a cancel was lost: %s", error.message)


def _all_refused(refused: dict[WorkerId, Refusal]) -> Unavailable:
    last = list(refused.values())[-1]
    waits = [r.retry_after_ms for r in refused.values() if r.retry_after_ms is not None]
    return Unavailable(
        "; ".join(refusal.message for refusal in refused.values()),
        code=last.code,
        param=last.param,
        retry_after_ms=min(waits, default=None),
    )
