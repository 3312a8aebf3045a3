"""A simulated worker: it speaks the wire protocol of a worker, and generates nothing."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Literal

from shared import subjects
from shared.bus import Bus, Message, Subscription
from shared.ids import BootId, RequestId, WorkerId
from shared.messages.codec import decode, encode
from shared.messages.control import (
    AttachStream,
    CancelRequest,
    Claimed,
    ClaimedRequest,
    ClaimWorker,
    ControlReply,
    ForgetSession,
    TellContents,
    TellSession,
)
from shared.messages.dispatch import Dispatch, DispatchBatch, DispatchReply, DispatchResult, Refusal
from shared.messages.events import (
    EventType,
    KeptPrefixes,
    RequestEvent,
    RequestEvents,
    RequestFailed,
    RequestFinished,
    TokensEmitted,
    WorkerEvent,
)
from shared.messages.stream import (
    ChoiceOutput,
    Chunk,
    Done,
    Failed,
    Status,
    StreamError,
    StreamMessage,
    Timings,
    Usage,
)
from shared.messages.stream import encode as encode_stream
from tests.controller.values import report

Answer = Literal["accept", "silence"] | Refusal
WAIT_S = 10


class SimulatedWorker:
    """Answers each dispatch as `answer` says, and keeps what it is told.

    Attributes:
        answer: what becomes of a dispatch; may be changed at any time.
        results: makes the results of a reply, for workers that answer nonsense.
        kept: what it answers to who asks for all that it keeps.
        said: what it answers to who asks for a session; None: that it does not know it.
        claims: whether it answers who claims it.
        held: what it tells of its requests to who claims it; `contents` of them to who asks.
        term: of the leader that claimed it last.
    """

    def __init__(self, bus: Bus, name: str, *, boot: str = "b1", **fields: Any) -> None:
        self.id = WorkerId(name)
        self.boot = BootId(boot)
        self.answer: Callable[[Dispatch], Answer] = lambda dispatch: "accept"
        self.results: Callable[[list[DispatchResult]], Sequence[DispatchResult]] = list
        self.kept: KeptPrefixes | None = None
        self.claims = True
        self.held: list[ClaimedRequest] = []
        self.contents: dict[RequestId, Dispatch] = {}
        self.term = 0
        self._given_back: set[tuple[RequestId, int]] = set()
        self._asked = asyncio.Event()
        self.said: list[dict[str, str]] | None = None
        self._bus = bus
        self._fields = fields
        self._dispatches: asyncio.Queue[Dispatch] = asyncio.Queue()
        self._cancels: asyncio.Queue[CancelRequest] = asyncio.Queue()
        self._attached: asyncio.Queue[AttachStream] = asyncio.Queue()
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
        state = report(self.id, boot=self.boot, term=self.term, **{**self._fields, **fields})
        event = WorkerEvent(type=kind, worker=state)
        await self._bus.publish(subjects.worker_event(self.id), encode(event))

    async def next_dispatch(self, limit_s: float = WAIT_S) -> Dispatch:
        return await asyncio.wait_for(self._dispatches.get(), limit_s)

    async def next_cancel(self) -> CancelRequest:
        return await asyncio.wait_for(self._cancels.get(), WAIT_S)

    async def next_attached(self) -> AttachStream:
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
        result = DispatchResult(**_origin(dispatch))
        await self._say_accepted(dispatch)
        await self._reply(self._unanswered.pop(dispatch.request_id), [result])

    async def emit(
        self,
        dispatch: Dispatch,
        owner: str,
        index: int,
        *token_ids: int,
        choice: int = 0,
        text_sent: int = 0,
        **fields: Any,
    ) -> None:
        event = TokensEmitted(
            **_origin(dispatch), choice=choice, index=index, token_ids=list(token_ids),
            text_sent=text_sent, **fields,
        )  # fmt: skip
        await self._tell(owner, event)

    async def finish(self, dispatch: Dispatch, owner: str) -> None:
        """Tell the owner first, then the client: so a controller never knows less."""
        await self._tell(owner, RequestFinished(**_origin(dispatch)))
        output = ChoiceOutput(0, 0, [1], "one", finish_reason="stop")
        done = Done(
            dispatch.request_id, dispatch.attempt, self.id,
            Usage(1, 0, 1), Timings(0, 0, 0, 0), (output,),
        )  # fmt: skip
        await self._bus.publish(dispatch.inboxes[0], encode_stream(done))

    async def speak(
        self, dispatch: Dispatch, owner: str, index: int, *token_ids: int, **fields: Any
    ) -> None:
        """New tokens of a choice, the first one by default, to the owner and then to the client."""
        output = spoken(index, *token_ids, **fields)
        event = TokensEmitted(
            **_origin(dispatch), choice=output.choice, index=index, token_ids=list(token_ids),
            text_sent=0,
        )  # fmt: skip
        await self._tell(owner, event)
        await self.send(dispatch, Chunk(dispatch.request_id, dispatch.attempt, self.id, output))

    async def end(
        self,
        dispatch: Dispatch,
        owner: str,
        *outputs: ChoiceOutput,
        usage: Usage,
    ) -> None:
        """The good end of a stream, with its last outputs."""
        await self._tell(owner, RequestFinished(**_origin(dispatch)))
        origin = dispatch.request_id, dispatch.attempt, self.id
        await self.send(dispatch, Done(*origin, usage, Timings(1, 2, 3, 4), outputs))

    async def finish_unheard(self, dispatch: Dispatch, owner: str) -> None:
        """The owner is told of the end; what the client is told gets lost."""
        await self._tell(owner, RequestFinished(**_origin(dispatch)))

    async def answer_all(self, dispatch: Dispatch, owner: str, *token_ids: int) -> None:
        """The same whole answer in each choice."""
        n = dispatch.request.n
        for choice in range(n - 1):
            await self.speak(dispatch, owner, 0, *token_ids, choice=choice, finish_reason="stop")
        last = spoken(0, *token_ids, choice=n - 1, finish_reason="stop")
        await self.end(dispatch, owner, last, usage=Usage(5, 1, n * len(token_ids)))

    async def send(self, dispatch: Dispatch, message: StreamMessage) -> None:
        """Tell the client."""
        for inbox in dispatch.inboxes:
            await self._bus.publish(inbox, encode_stream(message, multiplex=True))

    async def fail_openly(self, dispatch: Dispatch, owner: str, error: StreamError) -> None:
        """A bad end of which the client is told too."""
        event = RequestFailed(**_origin(dispatch), code=error.code, message=error.message)
        await self._tell(owner, event)
        origin = dispatch.request_id, dispatch.attempt, self.id
        await self.send(dispatch, Failed(*origin, error))

    async def fail(
        self,
        dispatch: Dispatch,
        owner: str,
        *,
        terminal_sent: bool,
        code: str = "engine_crashed",
        suspect: bool = False,
    ) -> None:
        event = RequestFailed(
            **_origin(dispatch),
            code=code,
            message="the engine ended",
            terminal_sent=terminal_sent,
            suspect=suspect,
        )
        if not terminal_sent:
            self._given_back.add((dispatch.request_id, dispatch.attempt))
        await self._tell(owner, event)

    async def _tell(self, owner: str, event: RequestEvent) -> None:
        batch = RequestEvents(worker=self.id, boot_id=self.boot, events=[event])
        await self._bus.publish(f"mlx.event.request.{owner}", encode(batch))

    async def _on_dispatch(self, message: Message) -> None:
        batch = decode(DispatchBatch, message.payload)
        results = []
        for dispatch in batch.dispatches:
            self._dispatches.put_nowait(dispatch)
            answer = self.answer(dispatch)
            if answer == "silence":
                self._unanswered[dispatch.request_id] = message.reply
                return
            refusal = answer if isinstance(answer, Refusal) else None
            results.append(DispatchResult(**_origin(dispatch), refusal=refusal))
            if refusal is None:
                await self._say_accepted(dispatch)
        await self._reply(message.reply, self.results(results))

    async def _say_accepted(self, dispatch: Dispatch) -> None:
        if dispatch.request.stream and not dispatch.retries and dispatch.resume is None:
            origin = dispatch.request_id, dispatch.attempt, self.id
            await self.send(dispatch, Status(*origin, "accepted", seed=dispatch.seed))

    async def _reply(self, subject: str, results: Sequence[DispatchResult]) -> None:
        reply = DispatchReply(worker=self.id, boot_id=self.boot, results=list(results))
        await self._bus.publish(subject, encode(reply))

    async def _on_claim(self, message: Message) -> None:
        order = decode(ClaimWorker, message.payload)
        if self.claims:
            self.term = order.term or 0
            claimed = Claimed(term=self.term, requests=self.held)
            reply = ControlReply(worker=self.id, boot_id=self.boot, ok=True, claimed=claimed)
            await self._bus.publish(message.reply, encode(reply))

    async def _on_contents(self, message: Message) -> None:
        asked = decode(TellContents, message.payload).requests
        told = [self.contents[each.request_id] for each in asked if each.request_id in self.contents]
        reply = ControlReply(worker=self.id, boot_id=self.boot, ok=True, contents=told)
        await self._bus.publish(message.reply, encode(reply))

    async def _on_probe(self, message: Message) -> None:
        await self._bus.publish(message.reply, b"")

    async def _on_attach(self, message: Message) -> None:
        self._attached.put_nowait(decode(AttachStream, message.payload))

    async def _on_session(self, message: Message) -> None:
        decode(TellSession, message.payload)
        reply = ControlReply(worker=self.id, ok=self.said is not None, said=self.said)
        await self._bus.publish(message.reply, encode(reply))

    async def tell_kept(self, number: int, **fields: Any) -> None:
        message = KeptPrefixes(worker=self.id, boot_id=self.boot, number=number, **fields)
        await self._bus.publish(subjects.kept_event(self.id), encode(message))

    async def was_asked(self) -> None:
        """Return when it was asked for all that it keeps, and has told it."""
        await asyncio.wait_for(self._asked.wait(), WAIT_S)

    async def _on_asked(self, message: Message) -> None:
        reply = ControlReply(worker=self.id, ok=True, kept=self.kept)
        await self._bus.publish(message.reply, encode(reply))
        if self.kept is not None:
            self._asked.set()

    async def _on_forget(self, message: Message) -> None:
        self._forgotten.put_nowait(decode(ForgetSession, message.payload))

    async def _on_cancel(self, message: Message) -> None:
        """One of what was given back says that it has come back, and cancels nothing."""
        order = decode(CancelRequest, message.payload)
        if order.silent and (order.request_id, order.attempt) in self._given_back:
            self._given_back.remove((order.request_id, order.attempt))
        else:
            self._cancels.put_nowait(order)


def spoken(index: int, *token_ids: int, choice: int = 0, **fields: Any) -> ChoiceOutput:
    """Tokens and their text."""
    text = "".join(f"<{token}>" for token in token_ids)
    return ChoiceOutput(choice, index, list(token_ids), text, **fields)


def refuse(code: str, retry_after_ms: int | None = None) -> Callable[[Dispatch], Answer]:
    refusal = Refusal(code=code, message=f"it said {code}", retry_after_ms=retry_after_ms)
    return lambda dispatch: refusal


def keep_silent(dispatch: Dispatch) -> Answer:
    return "silence"


def _origin(dispatch: Dispatch) -> dict[str, Any]:
    return {
        "request_id": dispatch.request_id,
        "client": dispatch.client,
        "attempt": dispatch.attempt,
    }
