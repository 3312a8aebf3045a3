"""A simulated worker: it speaks the wire protocol of a worker, and generates nothing."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Literal

from shared import subjects
from shared.bus import Bus, IncomingMessage, Subscription
from shared.codec import decode, encode
from shared.errors import RequestError
from shared.ids import RequestId
from shared.messages.control import (
    AttachInbox,
    CancelRequest,
    ClaimReport,
    ClaimWorker,
    ControlReply,
    ForgetSession,
    TellContents,
    TellSession,
)
from shared.messages.dispatch import (
    Dispatch,
    DispatchBatch,
    DispatchRejection,
    DispatchReply,
    DispatchResult,
)
from shared.messages.events import EventType, KeptPrefixes, WorkerEvent
from shared.messages.stream import StatusMessage
from tests.controller.simulated_streams import SimulatedStreams, origin_of
from tests.controller.values import report
from worker.agent.leader_fence import StaleTerm

Answer = Literal["accept", "silence"] | DispatchRejection
WAIT_S = 10


class SimulatedWorker(SimulatedStreams):
    """Answers each dispatch of the leader that claimed it as `answer` says, and keeps what it is
    told.

    Attributes:
        answer: what becomes of a dispatch; may be changed at any time.
        results: makes the results of a reply, for workers that answer nonsense.
        kept: what it answers to who asks for all that it keeps.
        said: what it answers to who asks for a session; None: that it does not know it.
        answers_claims: set, unless it is to answer later who claims it.
    """

    def __init__(self, bus: Bus, name: str, *, boot: str = "b1", **fields: Any) -> None:
        super().__init__(bus, name, boot)
        self.answer: Callable[[Dispatch], Answer] = lambda dispatch: "accept"
        self.results: Callable[[list[DispatchResult]], Sequence[DispatchResult]] = list
        self.kept: KeptPrefixes | None = None
        self.said: list[dict[str, str]] | None = None
        self.answers_claims = asyncio.Event()
        self.answers_claims.set()
        self._asked = asyncio.Event()
        self._fields = fields
        self._dispatches: asyncio.Queue[Dispatch] = asyncio.Queue()
        self._cancels: asyncio.Queue[CancelRequest] = asyncio.Queue()
        self._attached: asyncio.Queue[AttachInbox] = asyncio.Queue()
        self._forgotten: asyncio.Queue[ForgetSession] = asyncio.Queue()
        self._unanswered: dict[RequestId, str] = {}
        self._subscriptions: list[Subscription] = []

    async def join(self) -> None:
        """Listen, then tell the controllers."""
        self._subscriptions = [
            await self._bus.subscribe(subject, handler)
            for subject, handler in (
                (subjects.worker_infer(self.id), self._on_dispatch),
                (subjects.worker_control(self.id, "cancel"), self._on_cancel),
                (subjects.worker_control(self.id, "attach"), self._on_attach),
                (subjects.worker_control(self.id, "session"), self._on_session),
                (subjects.worker_control(self.id, "forget"), self._on_forget),
                (subjects.worker_control(self.id, "kept"), self._on_asked),
                (subjects.worker_control(self.id, "claim"), self._on_claim),
                (subjects.worker_control(self.id, "contents"), self._on_contents),
                (f"mlx.worker.{self.id}.*.alive", self._on_probe),
            )
        ]
        await self.say("joined")

    async def vanish(self) -> None:
        """Be gone without a word: what is sent here finds nobody."""
        for subscription in self._subscriptions:
            await subscription.unsubscribe()

    async def say(self, kind: EventType, **fields: Any) -> None:
        told = {"boot": self.boot, "term": self.claim.term, **self._fields, **fields}
        event = WorkerEvent(type=kind, worker=report(self.id, **told))
        await self._bus.publish(subjects.worker_event(self.id), encode(event))

    async def next_dispatch(self, limit_s: float = WAIT_S) -> Dispatch:
        return await asyncio.wait_for(self._dispatches.get(), limit_s)

    async def next_cancel(self) -> CancelRequest:
        return await asyncio.wait_for(self._cancels.get(), WAIT_S)

    async def next_attached(self) -> AttachInbox:
        return await asyncio.wait_for(self._attached.get(), WAIT_S)

    async def next_forgotten(self) -> ForgetSession:
        return await asyncio.wait_for(self._forgotten.get(), WAIT_S)

    @property
    def unread(self) -> tuple[int, int]:
        """How many dispatches and cancels came that no test has taken."""
        return self._dispatches.qsize(), self._cancels.qsize()

    @property
    def attached_inboxes(self) -> list[str]:
        """Those that no test has taken."""
        return [self._attached.get_nowait().inbox for _ in range(self._attached.qsize())]

    async def acknowledge_late(self, dispatch: Dispatch) -> None:
        """Accept what was met with silence."""
        result = DispatchResult(**origin_of(dispatch))
        await self._accept(dispatch)
        await self._reply(self._unanswered.pop(dispatch.request_id), [result])

    async def _on_dispatch(self, message: IncomingMessage) -> None:
        batch = decode(DispatchBatch, message.payload)
        results = []
        for dispatch in batch.dispatches:
            self._dispatches.put_nowait(dispatch)
            answer = self._refusal(batch) or self.answer(dispatch)
            if answer == "silence":
                self._unanswered[dispatch.request_id] = message.reply
                return
            refusal = answer if isinstance(answer, DispatchRejection) else None
            results.append(DispatchResult(**origin_of(dispatch), refusal=refusal))
            if refusal is None:
                await self._accept(dispatch)
        await self._reply(message.reply, self.results(results))

    def _refusal(self, batch: DispatchBatch) -> DispatchRejection | None:
        try:
            self.claim.check_work(batch.term, batch.owner)
        except RequestError as error:
            term = error.term if isinstance(error, StaleTerm) else None
            return DispatchRejection(code=error.code, message=error.message, term=term)
        return None

    async def _accept(self, dispatch: Dispatch) -> None:
        self.requests.accept(dispatch)
        if dispatch.request.stream and not dispatch.retries and dispatch.resume is None:
            origin = dispatch.request_id, dispatch.attempt, self.id
            await self.send(dispatch, StatusMessage(*origin, "accepted", seed=dispatch.seed))

    async def _reply(self, subject: str, results: Sequence[DispatchResult]) -> None:
        reply = DispatchReply(worker=self.id, boot_id=self.boot, results=list(results))
        await self._bus.publish(subject, encode(reply))

    async def _on_claim(self, message: IncomingMessage) -> None:
        order = decode(ClaimWorker, message.payload)
        await self.answers_claims.wait()
        try:
            self.claim.accept(order.term, order.controller, order.boot_id)
        except StaleTerm as error:
            reply = ControlReply(
                worker=self.id,
                boot_id=self.boot,
                ok=False,
                code=error.code,
                message=error.message,
                term=error.term,
            )
        else:
            claimed = ClaimReport(term=self.claim.term, requests=self.requests.claimed())
            reply = ControlReply(worker=self.id, boot_id=self.boot, ok=True, claimed=claimed)
        await self._bus.publish(message.reply, encode(reply))

    async def _on_contents(self, message: IncomingMessage) -> None:
        asked = decode(TellContents, message.payload).requests
        reply = ControlReply(worker=self.id, ok=True, contents=self.requests.contents(asked))
        await self._bus.publish(message.reply, encode(reply))

    async def _on_probe(self, message: IncomingMessage) -> None:
        await self._bus.publish(message.reply, b"")

    async def _on_attach(self, message: IncomingMessage) -> None:
        order = decode(AttachInbox, message.payload)
        self.requests.listen(order.client, order.request_id, order.inbox)
        self._attached.put_nowait(order)

    async def _on_session(self, message: IncomingMessage) -> None:
        decode(TellSession, message.payload)
        reply = ControlReply(worker=self.id, ok=self.said is not None, said=self.said)
        await self._bus.publish(message.reply, encode(reply))

    async def tell_kept(self, number: int, **fields: Any) -> None:
        message = KeptPrefixes(worker=self.id, boot_id=self.boot, number=number, **fields)
        await self._bus.publish(subjects.prefix_event(self.id), encode(message))

    async def was_asked(self) -> None:
        """Return when it was asked for all that it keeps, and has told it."""
        await asyncio.wait_for(self._asked.wait(), WAIT_S)

    async def _on_asked(self, message: IncomingMessage) -> None:
        reply = ControlReply(worker=self.id, ok=True, kept=self.kept)
        await self._bus.publish(message.reply, encode(reply))
        if self.kept is not None:
            self._asked.set()

    async def _on_forget(self, message: IncomingMessage) -> None:
        self._forgotten.put_nowait(decode(ForgetSession, message.payload))

    async def _on_cancel(self, message: IncomingMessage) -> None:
        """One of what was given back says that it has come back, and cancels nothing."""
        order = decode(CancelRequest, message.payload)
        if order.silent:
            self.requests.forget(order.client, order.request_id, order.attempt)
        if not order.silent or (order.request_id, order.attempt) not in self.requests.requeued:
            self._cancels.put_nowait(order)


def refuse(code: str, retry_after_ms: int | None = None) -> Callable[[Dispatch], Answer]:
    refusal = DispatchRejection(code=code, message=f"it said {code}", retry_after_ms=retry_after_ms)
    return lambda dispatch: refusal


def keep_silent(dispatch: Dispatch) -> Answer:
    return "silence"
