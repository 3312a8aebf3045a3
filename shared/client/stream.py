"""The stream of one request: publishes the request, and recovers from silence and gaps."""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from types import TracebackType
from typing import Any, Self

import orjson

from shared import subjects
from shared.bus import Bus
from shared.client.assembler import StreamAssembler
from shared.client.completion import Completion
from shared.client.inboxes import (
    InboxSubscription,
    NoResponderStatus,
    ReplyKind,
    StreamDelivery,
    StreamInbox,
)
from shared.client.recovery import (
    DEFAULT_TIMES,
    RecoveryInputs,
    RecoveryTimes,
    Step,
    StreamRecovery,
)
from shared.client.stream_buffer import StreamBuffer
from shared.errors import StreamFailed
from shared.ids import ClientName, RequestId, SkillName, WorkerId
from shared.messages.control import RequestState, ResendState
from shared.messages.request import Resume
from shared.messages.stream import ChoiceOutput, StatusName, StreamMessage, Timings, Usage
from shared.telemetry import current_trace_headers

_POLL_S = 0.05


class Stream:
    """The answer to one request as it arrives: iterate over it once.

    Each chunk has the new parts: `text`, the content, and if there are any `reasoning` and
    `tool_calls`, pieces of calls. The stream itself has the first choice so far: its `text`,
    `reasoning` and `tool_calls`, and as a `message`.

    Leaving early (`break` inside `async with`, or `aclose`) cancels the request.

    Raises while iterating:
        StreamFailed: the request ended in an error, or too much was left unread; see `code`,
            `param` and `retryable`.
        StreamSilent: there was no message for 15 s, or no connection for 5 s.
        Unavailable: no controller accepts requests.
    """

    def __init__(
        self,
        bus: Bus,
        inbox: StreamInbox,
        client: ClientName,
        skill: SkillName,
        request_id: RequestId,
        payload: bytes,
        *,
        choices: int = 1,
        first_index: int = 0,
        before: "Stream | None" = None,
        times: RecoveryTimes = DEFAULT_TIMES,
    ) -> None:
        self._times = times
        self._bus = bus
        self._inbox = inbox
        self._client = client
        self._skill = skill
        self._payload = payload
        self._headers = current_trace_headers()
        self.choices = choices
        self._assembler = StreamAssembler(request_id, choices=choices, first_index=first_index)
        self._recovery = StreamRecovery(time.monotonic(), bus.connections, times)
        self._before = before
        self._ended = False
        self._read_at: float | None = None
        self._last_state = self._state  # of the last call of `next_step`
        self._buffer = StreamBuffer()
        self._failure: StreamFailed | None = None
        self._stream_subscription: InboxSubscription | None = None
        self._at_least_every_s = math.inf
        self._updates = self._run()
        self._outputs = self._iterate_outputs()

    @property
    def request_id(self) -> RequestId:
        return self._assembler.request_id

    @property
    def status(self) -> StatusName | None:
        return self._assembler.status

    @property
    def progress(self) -> float | None:
        return self._assembler.progress

    @property
    def seed(self) -> int | None:
        return self._assembler.seed

    @property
    def worker(self) -> WorkerId | None:
        return self._assembler.worker

    @property
    def usage(self) -> Usage | None:
        """Of the prompt from the first token on, of everything at the end."""
        return self._assembler.usage

    @property
    def timings(self) -> Timings | None:
        """Set at the end."""
        return self._assembler.timings

    @property
    def route(self) -> dict[str, Any] | None:
        """How its worker was selected, if the request has `debug`; set at the end."""
        return self._assembler.route

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences for people; set at the end."""
        return self._assembler.warnings

    @property
    def text(self) -> str:
        return self._assembler.answer.text

    @property
    def reasoning(self) -> str:
        """The reasoning before the answer."""
        return self._assembler.answer.reasoning

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """Each {"id", "type", "function": {"name", "arguments"}}; the arguments of the last one are
        complete at the end."""
        return self._assembler.answer.tool_calls

    @property
    def message(self) -> dict[str, Any]:
        """As `Completion.message`."""
        return self._assembler.answer.message

    @property
    def finish_reason(self) -> str | None:
        """Set at the end of the first choice."""
        return self._assembler.answer.finish_reason

    def __aiter__(self) -> AsyncIterator[ChoiceOutput]:
        return self._outputs

    def updates(self, *, at_least_every_s: float = math.inf) -> AsyncIterator[list[ChoiceOutput]]:
        """Iterate over lists of outputs that arrived together; a list is empty if only the status
        changed or no message arrived for a while (at most 3 s)."""
        self._at_least_every_s = at_least_every_s
        return self._updates

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Unsubscribe, and cancel the request unless it has ended."""
        await self._outputs.aclose()
        await self._updates.aclose()

    async def collect(self) -> Completion:
        """Return the whole answer.

        Raises: as iterating does.
        """
        async with self:
            outputs = [output async for output in self]
        return self.completed(outputs)

    def completed(self, outputs: Iterable[ChoiceOutput]) -> Completion:
        """Return the whole answer, from all of its outputs."""
        parts: dict[int, list[ChoiceOutput]] = {}
        for output in outputs:
            parts.setdefault(output.choice, []).append(output)
        assert self.usage is not None and self.timings is not None
        return Completion(
            request_id=self.request_id,
            worker=self.worker,
            choices=tuple(ChoiceOutput.joined(parts[choice]) for choice in sorted(parts)),
            usage=self.usage,
            timings=self.timings,
            warnings=self.warnings,
            route=self.route,
        )

    async def _iterate_outputs(self) -> AsyncGenerator[ChoiceOutput, None]:
        async for outputs in self._updates:
            for output in outputs:
                yield output

    async def _run(self) -> AsyncGenerator[list[ChoiceOutput], None]:
        self._read_at = time.monotonic()
        while self._must_wait_for_turn:
            yield await self._wait_for_turn()
        self._recovery = StreamRecovery(time.monotonic(), self._bus.connections, self._times)
        self._stream_subscription = await self._inbox.join(self.request_id, self._buffer.put)
        try:
            await self._perform("publish")
            while not self._assembler.done:
                yield await self._next()
                if self._failure is not None:
                    raise self._failure
        finally:
            await self._end()

    @property
    def _is_over(self) -> bool:
        return self._ended or self._assembler.done

    @property
    def _must_wait_for_turn(self) -> bool:
        """Whether the previous turn is known to a controller only: if the controller dies, that
        turn is published again, and must be accepted before this one."""
        before, now = self._before, time.monotonic()
        if before is None or before._is_over or before._read_at is None:
            return False
        return before.worker is None and now - before._read_at < self._times.abandoned_s

    async def _wait_for_turn(self) -> list[ChoiceOutput]:
        """Wait until it is the turn of this stream, or an update is due; return an empty list."""
        until = time.monotonic() + self._at_least_every_s
        while self._must_wait_for_turn and (now := time.monotonic()) < until:
            self._read_at = now
            await asyncio.sleep(_POLL_S)
        return []

    async def _next(self) -> list[ChoiceOutput]:
        """Wait for the next message and handle it; then take the recovery step that is due."""
        wait_s = self._recovery.wait_s(time.monotonic(), self._last_state)
        self._read_at = math.inf  # a reader that waits here has not stopped reading
        try:
            received = await self._buffer.get(min(wait_s, self._at_least_every_s))
        finally:
            self._read_at = time.monotonic()
        chunks = self._handle(received) if received is not None else []
        if not self._assembler.done:
            self._last_state = self._state
            step = self._recovery.next_step(time.monotonic(), self._last_state)
            if step is not None:
                await self._perform(step)
        return chunks

    @property
    def _state(self) -> RecoveryInputs:
        if self._before is not None and self._before._is_over:
            self._before = None
        return RecoveryInputs(
            connected=self._bus.connected,
            connections=self._bus.connections,
            received_any=self._assembler.received_any,
            started=self._assembler.started,
            worker_known=self._assembler.worker is not None,
            missing=self._assembler.missing_from is not None,
            behind=self._before is not None and self._before._recovery.is_lost(time.monotonic()),
        )

    def _handle(self, received: StreamDelivery) -> list[ChoiceOutput]:
        match received.content:
            case list() as messages:
                return self._handle_messages(messages)
            case RequestState() as state:
                self._assembler.worker = state.worker or self._assembler.worker
                if state.state == "unknown" or state.attempt < self._assembler.attempt:
                    self._assembler.reset_attempts(state.attempt)
                self._recovery.on_state(state.state, state.worker is not None, time.monotonic())
            case ResendState() as answer:
                self._recovery.on_resend_state(answer.state, time.monotonic())
            case NoResponderStatus("stream"):
                self._recovery.on_no_controller(time.monotonic())
            case NoResponderStatus("resent"):
                self._recovery.on_no_worker()
            case NoResponderStatus("state"):
                pass  # the query is repeated
        return []

    def _handle_messages(self, messages: list[StreamMessage]) -> list[ChoiceOutput]:
        if any(self._assembler.is_current(message) for message in messages):
            self._recovery.on_message(time.monotonic())
        chunks: list[ChoiceOutput] = []
        try:
            for message in messages:
                chunks += self._assembler.take(message)
        except StreamFailed as failure:
            if not chunks:
                raise
            self._failure = failure  # raised after the chunks before it
        return chunks

    async def _perform(self, step: Step) -> None:
        assert self._stream_subscription is not None
        kind: ReplyKind
        headers = self._headers if step in ("publish", "resume") else None
        match step:
            case "publish":  # the same id and body: the leader knows the request, or accepts it
                subject = subjects.infer(self._client, self._skill)
                query, kind = self._payload, "stream"
            case "resume":
                subject = subjects.infer(self._client, self._skill)
                query, kind = self._resume_payload(), "stream"
            case "ask_status":
                subject = subjects.request(self._client, "status")
                query, kind = orjson.dumps({"request_id": self.request_id}), "state"
            case "ask_resend":
                assert self._assembler.worker is not None
                subject = subjects.resend(self._assembler.worker, self._client)
                query, kind = self._resend_query(), "resent"
        reply = self._stream_subscription.reply(kind)
        await self._bus.publish(subject, query, reply=reply, headers=headers)

    def _resume_payload(self) -> bytes:
        """Return the request with the received part of its answer. With several choices, return
        it unchanged: tokens that are received again are dropped."""
        received = self._assembler.received_answer
        if received is None:
            return self._payload
        token_ids, sent = received
        body = orjson.loads(self._payload)
        before = Resume.model_validate(body.get("resume") or {"token_ids": []})
        resume: dict[str, Any] = {"token_ids": before.token_ids + token_ids}
        sent = before.characters + sent
        if sent.reasoning or sent.tool_calls:
            resume["sent"] = sent.model_dump()
        else:  # the form that older controllers accept, too
            resume["text_sent"] = sent.text
        payload = orjson.dumps({**body, "resume": resume})
        return payload if len(payload) <= self._bus.max_payload // 4 else self._payload

    def _resend_query(self) -> bytes:
        return orjson.dumps(
            {"request_id": self.request_id, "from_index": self._assembler.resend_from}
        )

    async def _end(self) -> None:
        self._ended = True
        cancel = self._cancel if not self._assembler.done else None
        if self._stream_subscription is not None:
            await self._stream_subscription.leave(cancel)
        if cancel is not None:
            await cancel()

    async def _cancel(self) -> None:
        if self._bus.connected:
            query = orjson.dumps({"request_id": self.request_id})
            await self._bus.publish(subjects.request(self._client, "cancel"), query)
