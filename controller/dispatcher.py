"""Hands a request to workers, one after another, until one takes it."""

import asyncio
import logging
import random
from collections import defaultdict

from controller.owned_request import OwnedRequest
from controller.registry import Registry
from controller.routing import choose
from shared import subjects
from shared.bus import Bus
from shared.errors import BusError, DecodeError, NoResponders, RequestTimedOut, Unavailable
from shared.ids import BootId, ControllerId, WorkerId
from shared.messages.codec import decode, encode
from shared.messages.control import CancelRequest
from shared.messages.dispatch import Dispatch, DispatchBatch, DispatchReply, Refusal

logger = logging.getLogger(__name__)


class Dispatcher:
    """Chooses a worker, dispatches, and goes to the next one on a refusal."""

    def __init__(
        self, controller: ControllerId, bus: Bus, registry: Registry, *, ack_timeout_s: float
    ) -> None:
        self._controller = controller
        self._bus = bus
        self._registry = registry
        self._ack_timeout_s = ack_timeout_s
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
            try:
                route = choose(
                    request.need,
                    self._registry.workers,
                    excluded=refused,
                    tie_break=self._random.random,
                )
            except Unavailable:
                if not refused:
                    raise
                raise _all_refused(refused) from None
            route.worker.unreported += 1
            report = route.worker.report
            attempt = request.begin_attempt(report.id, report.boot_id, route.model)
            refusal = await self._ask(report.id, report.boot_id, attempt)
            if request.attempt != attempt.attempt or request.ended:
                return
            if refusal is None:
                request.state = "running"
                return
            route.worker.unreported -= 1
            refused[report.id] = refusal
            logger.info(
                "%s refused: %s", report.id, refusal.message,
                extra={"request_id": request.request_id, "code": refusal.code},
            )  # fmt: skip

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

    async def _ask(self, worker: WorkerId, boot_id: BootId, dispatch: Dispatch) -> Refusal | None:
        """Dispatch to one worker and wait for its ack; None when it took the request."""
        batch = DispatchBatch(owner=self._controller, dispatches=[dispatch])
        try:
            reply = await self._ack(worker, boot_id, encode(batch))
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
        return reply.results[0].refusal

    async def _ack(self, worker: WorkerId, boot_id: BootId, payload: bytes) -> DispatchReply:
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
            if not asking.done():
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
