"""The lists of prompts of a controller: each prompt goes to a worker of its own, and what workers
answer is passed on to the client as one stream.

Here the controller is a client of its own requests, one for each prompt, so they are routed, tried
again and ended as all others are. Their streams come to one inbox of the controller.
"""

import logging
import time
from collections.abc import Iterable
from typing import Protocol

from controller.intake import stream_error
from controller.ledger import KEPT_AFTER_END_S
from controller.outbox import Letter, Outbox
from controller.owned_request import OwnedRequest, RequestKey
from controller.prompt_list import fails_all, is_list, of_prompt, part_of, passes
from controller.registry import Registry
from controller.served_list import Part, ServedList, places_for
from shared.bus import Bus, Message
from shared.clock import awake_or_asleep
from shared.errors import ClusterError, DecodeError
from shared.ids import RequestId
from shared.messages.control import RequestStateName
from shared.messages.stream import Done, Failed, StreamError, StreamMessage, decode, encode

logger = logging.getLogger(__name__)

_COUNT_PLACES_S = 1.0
"""Workers say so often how many places they have."""


class Service(Protocol):
    """What is done with any request of a controller."""

    def find(self, key: RequestKey) -> OwnedRequest | None: ...

    async def take(self, request: OwnedRequest) -> None: ...

    async def cancel(self, request: OwnedRequest) -> None: ...

    async def give_up(self, request: OwnedRequest, error: StreamError) -> None:
        """End a request, whatever its worker does."""

    async def note_end(
        self, request: OwnedRequest, state: RequestStateName, code: str = ""
    ) -> None:
        """It ended, and its client was told; unless that is known."""


class ListRequests:
    """Serves lists of prompts, and knows them as long as the ledger does."""

    def __init__(self, bus: Bus, registry: Registry, service: Service) -> None:
        self._bus = bus
        self._registry = registry
        self._service = service
        self._lists: dict[OwnedRequest, ServedList] = {}
        self._parts: dict[RequestId, Part] = {}
        self._inbox = bus.new_inbox()
        self._outbox = Outbox(bus, self._on_missed)

    def __contains__(self, request: OwnedRequest) -> bool:
        """Whether a request is served, or was, as a list."""
        return request in self._lists

    async def open(self) -> None:
        await self._bus.subscribe(self._inbox, self._on_messages)
        await self._outbox.open()

    # What is asked of a request; each is False where it is no list that is served.

    async def begin(self, request: OwnedRequest) -> bool:
        """Have the prompts of a list served."""
        if not is_list(request) or request.cancelled or request.ended:
            return False
        one = self._lists[request] = ServedList.of(request, awake_or_asleep())
        request.state = "running"
        await self._send_prompts(one)
        return True

    async def attach(self, request: OwnedRequest, inbox: str) -> bool:
        """Say to one more inbox what was said, and what follows."""
        if (one := self._lists.get(request)) is None:
            return False
        for chunk in one.answer.replay():
            self._put(one, chunk, [inbox])
        if request.end is not None:
            self._put(one, request.end, [inbox])
        else:
            one.inboxes.add(inbox, awake_or_asleep())
        await self._outbox.flush()
        return True

    async def cancel(self, request: OwnedRequest) -> bool:
        """End a list as its client asked."""
        if (one := self._lists.get(request)) is None:
            return False
        for prompt in one.pace.give_up():
            self._put_all(one, one.answer.cancel(prompt))
        for part in list(one.parts.values()):
            await self._service.cancel(part.request)
        await self._end_if_over(one)
        await self._outbox.flush()
        return True

    async def fail(self, request: OwnedRequest, error: StreamError) -> bool:
        """End a list, and all that is done for it."""
        if (one := self._lists.get(request)) is None:
            return False
        if not request.ended:
            one.pace.give_up()
            parts = list(one.parts.values())
            for part in parts:
                self._forget(part)
            await self._end(one, one.answer.failed(error))
            for part in parts:
                await self._service.give_up(part.request, error)
        return True

    async def attend(self, request: OwnedRequest, now: float) -> bool:
        """Deadline, silence, keep-alive; call it a few times a second."""
        if (one := self._lists.get(request)) is None:
            return False
        if now >= request.deadline:
            message = f"timeout_ms of {request.request.timeout_ms} passed while queued"
            for prompt in one.pace.give_up():
                error = StreamError.of("deadline_exceeded", message)
                self._put_all(one, one.answer.fail(prompt, error))
        if self._bus.connected:
            for part in list(one.parts.values()):
                await self._look_after(part, now)
        await self._end_if_over(one)
        await self._send_prompts(one)
        if one.is_silent(now):
            self._put_all(one, [one.status()])
        await self._outbox.flush()
        return True

    def forget_old(self, now: float) -> None:
        """Forget lists that ended long ago."""
        for request in list(self._lists):
            if request.ended_at is not None and now - request.ended_at > KEPT_AFTER_END_S:
                del self._lists[request]

    # Towards workers.

    async def _send_prompts(self, one: ServedList) -> None:
        """Have as many prompts go as may."""
        now = time.monotonic()
        if not one.pace.over and now - one.counted_at >= _COUNT_PLACES_S:
            one.places, one.counted_at = places_for(one.request, self._registry, now), now
        while (part := one.send_next(self._inbox, now, self._bus.connections)) is not None:
            self._parts[part.request.request_id] = part
            logger.info(
                "prompt %d goes as %s", part.prompt, part.request.request_id,
                extra={"request_id": one.request.request_id, "client": one.request.client},
            )  # fmt: skip
            await self._service.take(part.request)

    async def _look_after(self, part: Part, now: float) -> None:
        """Ask for what is missing of a prompt's stream."""
        request = part.request
        if request.request_id not in self._parts:
            return  # it ended meanwhile
        connections = self._bus.connections
        try:
            step = part.recovery.next_step(
                now, part.situation(connected=True, connections=connections)
            )
        except ClusterError as error:
            await self._give_up(part, stream_error(error))
            return
        if step == "ask_status":
            part.recovery.on_state(request.state, request.worker is not None, now)
        elif step is not None:  # the same again: it is told from the start, or runs again
            again = part_of(part.whole.request, part.prompt, self._inbox, request.request_id)
            await self._service.take(again)
            part.request = self._service.find(request.key) or request

    async def _on_messages(self, message: Message) -> None:
        """What workers, and this controller, say about prompts."""
        try:
            messages = decode(message.payload)
        except DecodeError as error:
            logger.error("a message about a prompt could not be read: %s", error.message)
            return
        heard: dict[ServedList, None] = {}
        for each in messages:
            part = self._parts.get(each.request_id) if each.request_id is not None else None
            if part is not None and each.attempt >= part.request.attempt:
                heard[part.whole] = None
                await self._hear(part, each)
        for one in heard:
            await self._end_if_over(one)
            await self._send_prompts(one)
        await self._outbox.flush()

    async def _hear(self, part: Part, message: StreamMessage) -> None:
        one, assembler = part.whole, part.assembler
        part.recovery.on_message(time.monotonic())
        if isinstance(message, Failed):
            self._forget(part)
            await self._service.note_end(part.request, "failed", message.error.code)
            await self._failed(part, message)
            return
        one.begun = one.begun or message.worker is not None
        try:
            outputs = assembler.take(message)
        except ClusterError as error:
            await self._give_up(part, stream_error(error))
            return
        usage = assembler.usage
        self._put_all(one, [one.answer.advance(part.prompt, each, usage) for each in outputs])
        one.request.more_tokens += sum(len(each.token_ids) for each in outputs)
        if assembler.done:
            assert usage is not None and assembler.timings is not None
            self._forget(part)
            one.pace.freed()
            one.answer.done(part.prompt, usage, assembler.timings, assembler.route)
            await self._service.note_end(part.request, "finished")

    async def _give_up(self, part: Part, error: StreamError) -> None:
        """Its stream cannot be had."""
        self._forget(part)
        await self._service.give_up(part.request, error)
        await self._failed(part, Failed(part.request.request_id, 0, None, error))

    async def _failed(self, part: Part, end: Failed) -> None:
        """A prompt failed, and no worker has it any more."""
        one, prompt, error, now = part.whole, part.prompt, end.error, time.monotonic()
        request = one.request
        if request.ended:
            return
        if fails_all(error):
            await self.fail(request, of_prompt(error, prompt))
            return
        again = passes(error) and not one.answer.has_begun(prompt)
        if again and not request.cancelled and now < request.deadline:
            one.pace.put_back(prompt, error, now)
            if not one.parts and not one.begun:
                await self.fail(request, error)
            return
        if error.code == "client_gone":  # that was not the client
            error = StreamError.of("stream_broken", "its worker lost sight of this controller")
        one.pace.freed()
        logger.warning(
            "prompt %d failed: %s", prompt, error.message,
            extra={"request_id": request.request_id, "code": error.code},
        )  # fmt: skip
        self._put_all(one, one.answer.fail(prompt, error, end.route))

    def _forget(self, part: Part) -> None:
        """What still comes for it does not count."""
        self._parts.pop(part.request.request_id, None)
        part.whole.parts.pop(part.prompt, None)

    # Towards clients.

    async def _end_if_over(self, one: ServedList) -> None:
        if one.answer.over and not one.request.ended:
            await self._end(one, one.answer.end())

    async def _end(self, one: ServedList, end: Done | Failed) -> None:
        request = one.request
        if isinstance(end, Done) and len(payload := encode(end)) > self._bus.max_payload:
            message = f"the answer has {len(payload)} bytes, more than one message may have"
            end = one.answer.failed(StreamError.of("answer_too_large", message))
        request.end = end
        self._put(one, end, one.inboxes)
        if isinstance(end, Failed):
            logger.warning(
                "request failed: %s", end.error.message,
                extra={"request_id": request.request_id, "code": end.error.code},
            )  # fmt: skip
            await self._service.note_end(request, "failed", end.error.code)
        else:
            await self._service.note_end(request, "finished")
        await self._outbox.flush()

    def _put_all(self, one: ServedList, messages: Iterable[StreamMessage]) -> None:
        """What is said before the end, to all who listen."""
        one.request.last_sent_at = time.monotonic()
        if one.request.request.stream:
            for message in messages:
                self._put(one, message, one.inboxes)

    def _put(self, one: ServedList, message: StreamMessage, inboxes: Iterable[str]) -> None:
        body = one.request.request
        listeners = one.inboxes if body.stream else None
        self._outbox.put(Letter(message, tuple(inboxes), body.multiplex, listeners))

    async def _on_missed(self, inbox: str) -> None:
        """Nobody listens to an inbox: end the lists that nobody else listens to."""
        now = awake_or_asleep()
        for one in list(self._lists.values()):
            one.inboxes.on_missed(inbox, now)
            if not one.inboxes and not one.request.ended:
                message = "nobody listened to the stream any more"
                await self.fail(one.request, StreamError.of("client_gone", message))
