"""Handles the messages to this worker: dispatches, resend requests, control orders, probes."""

from collections.abc import Callable
from typing import Any

from shared import subjects
from shared.bus import Bus, IncomingMessage
from shared.codec import decode, encode
from shared.errors import DecodeError, InvalidSubject, OtherProtocol, RequestError
from shared.ids import BootId, ControllerId, ModelId, RequestId, WorkerId
from shared.messages.control import (
    CONTROL_ORDERS,
    AttachInbox,
    CancelRequest,
    ClaimReport,
    ClaimWorker,
    ConfigureWorker,
    ControlOrder,
    ControlReply,
    DrainWorker,
    FencedOrder,
    ForgetSession,
    ListModels,
    ListRequests,
    ListSessions,
    LoadModel,
    PinModel,
    PinSession,
    ResendQuery,
    ResendState,
    ResendStateName,
    TellContents,
    TellKept,
    TellSession,
    UnloadModel,
)
from shared.messages.dispatch import Dispatch, DispatchRejection, DispatchReply, DispatchResult
from shared.messages.json_bounds import decode_query
from shared.messages.sender import check_protocol
from shared.messages.worker_report import WorkerState
from shared.refused_messages import RefusedMessages
from worker.agent.dispatch_decoding import ReadBatch, read_batch
from worker.agent.leader_fence import LeaderFence, StaleTerm
from worker.requests.activity import request_activity
from worker.requests.takeover import claim_requests, request_contents
from worker.scheduling.scheduler import RequestScheduler

_RETRY_WHILE_ASLEEP_MS = 1000

DISPATCHES_PER_MESSAGE = 64
"""Maximum number of dispatches per message: few enough that the reply arrives well before the
controller's timeout."""


class AgentMessageHandler:
    """Decodes messages, passes them to the scheduler, and replies.

    Args:
        fence: decides which controller's orders and dispatches are accepted.
        strict: the setting `security.strict_inbox`.
        asleep: whether the machine is about to sleep, or sleeps.
        drain: drains the worker.
        configure: switches to other settings; raises ClusterError if they are invalid.

    Attributes:
        refused: messages that were dropped.
    """

    def __init__(
        self,
        bus: Bus,
        worker: WorkerId,
        boot_id: BootId,
        scheduler: RequestScheduler,
        fence: LeaderFence,
        *,
        strict: bool,
        state: Callable[[], WorkerState],
        asleep: Callable[[], bool],
        drain: Callable[[DrainWorker], None],
        configure: Callable[[ConfigureWorker], ControlReply],
    ) -> None:
        self.refused = RefusedMessages()
        self._bus = bus
        self._id = worker
        self._boot_id = boot_id
        self._scheduler = scheduler
        self._fence = fence
        self._strict = strict
        self._state = state
        self._asleep = asleep
        self._drain = drain
        self._configure = configure

    async def open(self) -> None:
        bus = self._bus
        await bus.subscribe(subjects.worker_infer(self._id), self._on_dispatch)
        await bus.subscribe(subjects.worker_control(self._id, "*"), self._on_control)
        await bus.subscribe(subjects.resend_all(self._id), self._on_resend)
        await bus.subscribe(subjects.worker_alive(self._id, self._boot_id), self._on_probe)

    async def _on_probe(self, message: IncomingMessage) -> None:
        if message.reply:
            await self._bus.publish(message.reply, b"")

    async def _on_dispatch(self, message: IncomingMessage) -> None:
        results, refusal = [], None
        try:
            batch = read_batch(message.payload)
        except OtherProtocol as error:
            self.refused.add(error, message.subject)
            return
        except DecodeError as error:
            self.refused.add(error, message.subject)
            refusal = DispatchRejection(code="invalid_request", message=error.message)
        else:
            results = [
                self._result(each, batch) if isinstance(each, Dispatch) else each
                for each in batch.dispatches
            ]
        if message.reply:
            reply = DispatchReply(
                worker=self._id, boot_id=self._boot_id, results=results, refusal=refusal
            )
            await self._bus.publish(message.reply, encode(reply))

    def _result(self, dispatch: Dispatch, batch: ReadBatch) -> DispatchResult:
        try:
            refusal = self._accept(dispatch, batch.owner, batch.term)
        except Exception as error:  # of this request alone
            details = self._scheduler.isolation.record(error, "the acceptance")
            refusal = DispatchRejection(
                code=details.code, message=f"worker {self._id}: {details.message}"
            )
        return DispatchResult(
            request_id=dispatch.request_id,
            client=dispatch.client,
            attempt=dispatch.attempt,
            refusal=refusal,
        )

    def _accept(
        self, dispatch: Dispatch, owner: ControllerId, term: int
    ) -> DispatchRejection | None:
        try:
            self._fence.check_work(term, owner)
        except RequestError as error:
            return DispatchRejection(
                code=error.code,
                message=f"worker {self._id}: {error.message}",
                term=error.term if isinstance(error, StaleTerm) else None,
            )
        state = self._state()
        if state in ("draining", "stopped"):
            return DispatchRejection(code="draining", message=f"worker {self._id} is shutting down")
        if self._asleep():
            message = f"the machine of worker {self._id} is about to sleep"
            return DispatchRejection(
                code="draining", message=message, retry_after_ms=_RETRY_WHILE_ASLEEP_MS
            )
        if state == "unhealthy":
            message = f"worker {self._id} has no running engine"
            return DispatchRejection(code="engine_crashed", message=message)
        return self._scheduler.accept(dispatch, owner)

    async def _on_resend(self, message: IncomingMessage) -> None:
        """Resend a part of a stream to the inbox that a client gave as the reply subject."""
        try:
            client = subjects.parse_resend(message.subject)
        except InvalidSubject as error:
            self.refused.add(error, message.subject)
            return
        if not subjects.is_inbox(message.reply, client, strict=self._strict):
            return
        try:
            query = decode_query(ResendQuery, message.payload)
        except DecodeError as error:
            unknown = RequestId("")
            invalid = ResendState(request_id=unknown, state="unknown", message=error.message)
            await self._bus.publish(message.reply, encode(invalid))
            return
        request = self._scheduler.find((client, query.request_id))
        state: ResendStateName = "unknown"
        if request is not None:
            state = "running" if request.end is None else "finished"
        reply = ResendState(request_id=query.request_id, state=state)
        await self._bus.publish(message.reply, encode(reply))
        if request is not None:
            self._scheduler.resend(request, message.reply, query.choice, query.from_index)

    async def _on_control(self, message: IncomingMessage) -> None:
        try:
            verb = subjects.parse_worker_control(message.subject)
        except InvalidSubject as error:
            self.refused.add(error, message.subject)
            return
        try:
            order = decode(CONTROL_ORDERS[verb], message.payload)
            if isinstance(order, FencedOrder) and order.term is not None:
                check_protocol(order.protocol, message.payload)
                self._fence.check(order.term)
            reply = self._carry_out(order)
        except OtherProtocol as error:
            self.refused.add(error, message.subject)
            return
        except KeyError:
            reply = self._refuse("invalid_request", f"no control verb {verb!r}")
        except DecodeError as error:
            reply = self._refuse("invalid_request", error.message)
        except Exception as error:
            details = self._scheduler.isolation.record(error, f"the order {verb}")
            reply = self._refuse(details.code, details.message)
            if isinstance(error, StaleTerm):
                reply = reply.model_copy(update={"term": error.term})
        if message.reply:
            payload = encode(reply)
            if len(payload) > self._bus.max_payload:
                reason = f"the reply has {len(payload)} bytes, more than one message may have"
                payload = encode(self._refuse("payload_too_large", reason))
            await self._bus.publish(message.reply, payload)

    def _carry_out(self, order: ControlOrder) -> ControlReply:
        match order:
            case CancelRequest():
                return self._reply(ok=self._cancel(order))
            case AttachInbox():
                return self._attach(order)
            case LoadModel():
                self._scheduler.models.load(order.model)
                return self._model_statuses(order.model)
            case UnloadModel():
                self._scheduler.models.unload(order.model)
                return self._model_statuses(order.model)
            case PinModel():
                self._scheduler.models.pin(order.model, pinned=order.pinned)
                return self._model_statuses(order.model)
            case ListRequests():
                present = request_activity(self._scheduler.requests(), order.client)
                return self._reply(requests=present[: order.limit])
            case ListModels():
                return self._model_statuses(order.model)
            case DrainWorker():
                self._drain(order)
                return self._reply()
            case ConfigureWorker():
                if self._state() in ("draining", "stopped"):
                    return self._refuse("draining", f"worker {self._id} is shutting down")
                return self._configure(order)
            case ClaimWorker():
                return self._accept_claim(order)
            case TellContents():
                limit = self._bus.max_payload // 4
                contents = request_contents(
                    self._scheduler.requests(), order.requests, limit, self._scheduler.isolation
                )
                return self._reply(contents=contents)
            case ListSessions():
                sessions = self._scheduler.sessions.listing(order.client)[: order.limit]
                return self._reply(sessions=sessions)
            case TellSession():
                messages = self._scheduler.sessions.messages((order.client, order.session_id))
                return self._reply(ok=messages is not None, said=messages)
            case TellKept():
                snapshot = self._scheduler.cached_prefixes.snapshot()
                return self._reply(kept=snapshot)
            case ForgetSession():
                self._scheduler.sessions.forget((order.client, order.session_id), drop=order.drop)
                return self._reply()
            case PinSession():
                session = order.client, order.session_id
                status = self._scheduler.sessions.pin(session, pinned=order.pinned)
                return self._reply(sessions=[status])

    def _cancel(self, order: CancelRequest) -> bool:
        key = order.client, order.request_id
        return self._scheduler.cancel(key, order.attempt, silent=order.silent)

    def _attach(self, order: AttachInbox) -> ControlReply:
        request = self._scheduler.find((order.client, order.request_id))
        if request is None or request.dispatch.attempt != order.attempt:
            message = f"no request {order.request_id!r} on this worker"
            return self._refuse("unknown_request", message)
        self._scheduler.attach(request, order.inbox)
        return self._reply()

    def _accept_claim(self, order: ClaimWorker) -> ControlReply:
        self._fence.accept(order.term, order.controller, order.boot_id)
        requests = self._scheduler.requests()
        claimed = ClaimReport(
            term=self._fence.term,
            requests=claim_requests(
                requests,
                order.controller,
                order.ended_within_ms,
                self._bus.max_payload // 2,
                self._scheduler.isolation,
            ),
            # A controller that misses these changes notices the gap, and asks for a snapshot.
            kept=self._scheduler.cached_prefixes.changes(),
        )
        return self._reply(claimed=claimed)

    def _model_statuses(self, model: ModelId | None) -> ControlReply:
        """Return the state of one model, or of all if None.

        Raises:
            RequestError: the model is not known here.
        """
        if model is not None:
            self._scheduler.models.check_known(model)
        statuses = self._scheduler.model_statuses()
        models = [status for status in statuses if model in (None, status.id)]
        return self._reply(models=models)

    def _refuse(self, code: str, message: str) -> ControlReply:
        return self._reply(ok=False, code=code, message=message)

    def _reply(self, *, ok: bool = True, **fields: Any) -> ControlReply:
        return ControlReply(worker=self._id, boot_id=self._boot_id, ok=ok, **fields)
