"""The requests of a controller: taken, dispatched, followed, ended. One terminal each."""

import asyncio
import logging
import time

from controller.dispatcher import Dispatcher
from controller.intake import may_answer, own_request, read_request, rejection, stream_error
from controller.ledger import Ledger
from controller.owned_request import OwnedRequest
from controller.registry import Registry, WorkerGone
from shared import subjects
from shared.bus import Bus, Message, Subscription
from shared.changes import Changes
from shared.errors import (
    BusError,
    DecodeError,
    RequestError,
    Unavailable,
)
from shared.ids import ControllerId
from shared.messages.codec import decode, encode
from shared.messages.control import RequestQuery, RequestStateName
from shared.messages.dispatch import ForwardedRequest
from shared.messages.events import RequestEvents, RequestFailed, RequestFinished, TokensEmitted
from shared.messages.stream import (
    KEEP_ALIVE_S,
    StreamError,
    StreamMessage,
    encode_multiplexed,
)
from shared.messages.stream import encode as encode_stream
from shared.settings import ClusterSettings

logger = logging.getLogger(__name__)

_GRACE_S = 5.0
"""A worker ends its requests at their deadline; this much later the controller does."""


class Requests:
    """Owns every request between acceptance and its end, and a while longer.

    Attributes:
        accepted, completed, failed: counts since the start.
    """

    def __init__(
        self, settings: ClusterSettings, bus: Bus, controller: ControllerId, registry: Registry
    ) -> None:
        self._settings = settings
        self._bus = bus
        self._id = controller
        self._ledger = Ledger()
        self._dispatcher = Dispatcher(
            controller,
            bus,
            registry,
            ack_timeout_s=settings.controller.dispatch.ack_timeout_ms / 1000,
        )
        self._undispatched: asyncio.Queue[OwnedRequest] = asyncio.Queue()
        self._changes = Changes()
        self._intake: Subscription | None = None
        self.accepted = self.completed = self.failed = 0

    @property
    def active(self) -> int:
        return len(self._ledger.active)

    async def subscribe(self) -> None:
        bus = self._bus
        await bus.subscribe(subjects.request_event(self._id), self._on_request_events)
        await bus.subscribe(subjects.REQUEST_ALL, self._on_request_query)
        await bus.subscribe(subjects.controller_infer(self._id), self._on_forwarded)
        self._intake = await bus.subscribe(
            subjects.INFER_ALL, self._on_infer, queue=subjects.CONTROLLER_QUEUE
        )

    async def run(self) -> None:
        """Dispatch what is taken, each request in a task of its own, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task(self._dispatch(await self._undispatched.get()))

    async def stop_intake(self) -> None:
        if self._intake is not None:
            await self._intake.unsubscribe()

    async def wait_until_idle(self) -> None:
        await self._changes.wait_until(lambda: not self._ledger.active)

    async def fail_all(self, code: str, message: str) -> None:
        """End every request, and make the workers drop what they do for it."""
        for request in self._ledger.active:
            await self._dispatcher.cancel(request, silent=True)
            await self._fail(request, StreamError.of(code, message))

    async def on_worker_gone(self, gone: WorkerGone) -> None:
        logger.warning("worker %s is gone: %s", gone.worker, gone.reason)
        self._dispatcher.on_worker_gone(gone.boot_id)
        for request in self._ledger.on_worker(gone.worker, gone.boot_id):
            if request.state != "running":
                continue  # not acked: the dispatcher goes to the next worker
            message = f"worker {gone.worker} is gone: {gone.reason}"
            await self._fail(request, StreamError.of("worker_lost", message))

    async def tick(self, now: float) -> None:
        """Deadlines and keep-alives; call it a few times a second."""
        for request in self._ledger.active:
            await self._attend(request, now)
        self._ledger.forget_old(now)

    async def _attend(self, request: OwnedRequest, now: float) -> None:
        if request.elapsed_ms > request.request.timeout_ms + _GRACE_S * 1000:
            await self._dispatcher.cancel(request, silent=True)
            timeout_ms = request.request.timeout_ms
            await self._fail(
                request, StreamError.of("deadline_exceeded", f"timeout_ms of {timeout_ms} passed")
            )
        elif request.state != "running" and now - request.last_sent_at >= KEEP_ALIVE_S:
            await self._send(request, request.waiting_message())

    async def _on_infer(self, message: Message) -> None:
        client, _ = subjects.parse_infer(message.subject)
        if not may_answer(message, client, strict=self._settings.security.strict_inbox):
            logger.warning(
                "a request on %s was ignored: its reply subject %r is no inbox of that client",
                message.subject, message.reply,
                extra={"client": client, "code": "reply_not_allowed"},
            )  # fmt: skip
            return
        try:
            request = read_request(
                message, self._settings.skills, max_bytes=self._bus.max_payload // 4
            )
            await self._take(request)
        except RequestError as error:
            await self._bus.publish(message.reply, encode_stream(rejection(message.payload, error)))

    async def _on_forwarded(self, message: Message) -> None:
        """A request on its one hop: it was checked where it came in."""
        try:
            forwarded = decode(ForwardedRequest, message.payload)
        except DecodeError as error:
            logger.error("a forwarded request could not be read: %s", error.message)
            return
        strict = self._settings.security.strict_inbox
        if not subjects.is_inbox(forwarded.reply, forwarded.client, strict=strict):
            logger.warning("a forwarded request was ignored: %r is no inbox", forwarded.reply)
            return
        try:
            request = own_request(
                forwarded.client,
                forwarded.skill,
                forwarded.reply,
                forwarded.request,
                self._settings.skills,
                elapsed_before_ms=forwarded.elapsed_ms,
            )
            await self._take(request)
        except RequestError as error:
            body = encode(forwarded.request)
            await self._bus.publish(forwarded.reply, encode_stream(rejection(body, error)))

    async def _take(self, request: OwnedRequest) -> None:
        """Accept a request, or recognise it as one that was accepted before.

        Raises:
            RequestError: its id belongs to another request of this client.
        """
        known = self._ledger.get(request.key)
        if known is not None:
            if known.request.fingerprint() != request.request.fingerprint():
                raise RequestError(
                    f"request_id: {request.request_id!r} was used for another request",
                    code="request_id_conflict",
                    param="request_id",
                )
            if not known.ended:
                await self._send(known, known.accepted_message())
                return
        self._ledger.add(request)
        self.accepted += 1
        logger.info("accepted for %s", request.skill, extra=_about(request))
        await self._send(request, request.accepted_message())
        self._undispatched.put_nowait(request)

    async def _dispatch(self, request: OwnedRequest) -> None:
        try:
            await self._dispatcher.dispatch(request)
        except Unavailable as error:
            await self._fail(request, stream_error(error))
            return
        except Exception as error:  # one request fails, not the controller
            logger.exception("dispatch failed", extra=_about(request))
            await self._fail(request, StreamError.of("internal_error", repr(error)))
            return
        if request.state == "running":
            logger.info("dispatched to %s", request.worker, extra=_about(request))
        if request.cancelled and not request.ended:
            if request.state == "running":
                await self._dispatcher.cancel(request, silent=False)
            else:
                await self._send_end(request, request.cancelled_message(), "finished")

    async def _on_request_query(self, message: Message) -> None:
        """Cancel or status: every controller hears it, the owner answers."""
        client, verb = subjects.parse_request(message.subject)
        try:
            query = decode(RequestQuery, message.payload)
        except DecodeError:
            return
        request = self._ledger.get((client, query.request_id))
        if request is None or verb not in ("cancel", "status"):
            return
        if verb == "cancel" and not request.ended:
            request.cancelled = True
            if request.state == "running":
                await self._dispatcher.cancel(request, silent=False)
        if message.reply:
            await self._bus.publish(message.reply, encode(request.state_message(self._id)))

    async def _on_request_events(self, message: Message) -> None:
        try:
            batch = decode(RequestEvents, message.payload)
        except DecodeError as error:
            logger.error("events of a worker could not be read: %s", error.message)
            return
        for event in batch.events:
            request = self._ledger.get((event.client, event.request_id))
            if request is None or request.ended or event.attempt != request.attempt:
                continue
            match event:
                case TokensEmitted():
                    request.note_tokens(event)
                case RequestFinished():
                    self._end(request, "finished")
                case RequestFailed(terminal_sent=True):
                    self._end(request, "failed")
                case RequestFailed():
                    await self._fail(request, StreamError.of(event.code, event.message))

    async def _fail(self, request: OwnedRequest, error: StreamError) -> None:
        if not request.ended:
            logger.warning(
                "request failed: %s", error.message,
                extra={"request_id": request.request_id, "code": error.code},
            )  # fmt: skip
            await self._send_end(request, request.failed_message(error), "failed")

    async def _send_end(
        self, request: OwnedRequest, message: StreamMessage, state: RequestStateName
    ) -> None:
        self._end(request, state)
        await self._publish_to_client(request, message)

    async def _send(self, request: OwnedRequest, message: StreamMessage) -> None:
        """Send a status; clients that do not stream get none."""
        request.last_sent_at = time.monotonic()
        if request.request.stream:
            await self._publish_to_client(request, message)

    async def _publish_to_client(self, request: OwnedRequest, message: StreamMessage) -> None:
        body = (
            encode_multiplexed([message]) if request.request.multiplex else encode_stream(message)
        )
        try:
            await self._bus.publish(request.reply, body)
        except BusError as error:
            logger.warning("a message to a client was lost: %s", error.message)

    def _end(self, request: OwnedRequest, state: RequestStateName) -> None:
        request.end(state)
        logger.info("%s after %.0f ms", state, request.elapsed_ms, extra=_about(request))
        if state == "failed":
            self.failed += 1
        else:
            self.completed += 1
        self._changes.notify()


def _about(request: OwnedRequest) -> dict[str, object]:
    """The fields of a log line about a request."""
    return {
        "request_id": request.request_id,
        "client": request.client,
        "attempt": max(0, request.attempt),
    }
