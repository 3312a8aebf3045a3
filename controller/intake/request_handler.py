"""Handles the messages of clients on the leader: requests and queries.

A controller that may become the leader holds messages; it handles them when it leads, or drops them
after `_HOLD_S`.
"""

import logging
import math
import time
from collections.abc import Awaitable, Callable

from controller.intake.held_messages import HeldMessage, HeldMessages
from controller.intake.log_limit import LogLimit
from controller.intake.validation import read_request, rejection
from controller.leader.leader import LeaderService
from controller.prompt_lists.list_parts import first_part
from controller.requests.events import RequestReceived, StatusOrCancelReceived
from controller.requests.request import TrackedRequest
from controller.requests.request_trace import RequestTrace
from shared import subjects
from shared.bus import Bus, IncomingMessage, Subscription
from shared.codec import encode, shortened
from shared.errors import BusError, DecodeError, InvalidRequest, RequestError
from shared.ids import ControllerId, RequestId, is_name
from shared.messages.control import RequestQuery, RequestState
from shared.messages.json_bounds import MAX_QUERY_BYTES, BeyondBounds, decode_query
from shared.messages.request_list import RequestList, RequestListQuery
from shared.messages.request_parsing import RequestHeader
from shared.messages.routes import RouteAnswer
from shared.messages.stream import encode as encode_stream
from shared.settings import ClusterSettings
from shared.telemetry import Tracer

logger = logging.getLogger(__name__)

_HOLD_S = 5.0

_Handler = Callable[[LeaderService, IncomingMessage], Awaitable[None]]


class ClientMessageHandler:
    """Validates the messages of clients and passes them to the leader of this process.

    Args:
        health: returns the answer to a query for the health of the cluster.
        tracer: None if requests are not traced.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        bus: Bus,
        controller: ControllerId,
        health: Callable[[], bytes],
        tracer: Tracer | None = None,
    ) -> None:
        self._settings = settings
        self._strict = settings.security.strict_inbox
        self._bus = bus
        self._id = controller
        self._health = health
        self._tracer = tracer
        self._leader: LeaderService | None = None
        self._subscriptions: list[Subscription] = []
        self._infer: Subscription | None = None
        self._held_since = math.inf
        self._held: HeldMessages[_Handler] = HeldMessages()
        self._log_limit = LogLimit(logger)

    def configure(self, settings: ClusterSettings) -> None:
        """Apply new settings, from the next request on."""
        self._settings = settings

    async def hold(self) -> None:
        """Subscribe to the subjects of clients, and hold their messages."""
        self._held_since = time.monotonic()
        if self._subscriptions:
            return
        handlers: tuple[tuple[str, _Handler], ...] = (
            (subjects.REQUEST_ALL, self._on_query),
            (subjects.ROUTE_ALL, self._on_route),
            (subjects.HEALTH_CLUSTER, self._on_health),
            (subjects.LIST_REQUESTS, self._on_list),
        )
        for subject, handle in handlers:
            self._subscriptions.append(
                await self._bus.subscribe(subject, self._serve_or_hold(handle))
            )
        self._infer = await self._bus.subscribe(
            subjects.INFER_ALL, self._serve_or_hold(self._on_infer)
        )

    async def serve(self, leader: LeaderService) -> None:
        """Pass the held messages and all that follow to the leader."""
        await self.hold()
        while self._held:  # messages that arrive meanwhile are appended
            held = self._held.pop()
            if held.held_at >= time.monotonic() - _HOLD_S:
                await held.handler(leader, held.message)
        self._leader = leader

    async def close(self) -> None:
        """Unsubscribe, and drop the held messages."""
        self._leader = None
        self._held = HeldMessages()
        await self.stop_accepting()
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            await subscription.unsubscribe()

    async def stop_accepting(self) -> None:
        """Accept no more requests; queries about active requests are still answered."""
        infer, self._infer = self._infer, None
        if infer is not None:
            await infer.unsubscribe()

    @property
    def held_messages_expire(self) -> bool:
        """Whether the held messages expire because this controller does not lead."""
        held_s = time.monotonic() - self._held_since
        return bool(self._subscriptions) and self._leader is None and held_s > _HOLD_S

    def drop_held_without_id(self) -> None:
        """Drop held requests without an id: the leader that shuts down has accepted them."""
        self._held.drop(lambda held: not held.named)

    def _serve_or_hold(self, handle: _Handler) -> Callable[[IncomingMessage], Awaitable[None]]:
        async def on_message(message: IncomingMessage) -> None:
            if self._leader is not None:
                await handle(self._leader, message)
            else:
                now = time.monotonic()
                self._held.drop_older_than(now - _HOLD_S)
                named = RequestHeader.of(message.payload).request_id is not None
                client = subjects.client_of(message.subject)
                self._held.add(HeldMessage(now, handle, message, client, named))

        return on_message

    # Requests.

    async def _on_infer(self, leader: LeaderService, message: IncomingMessage) -> None:
        client, _ = subjects.parse_infer(message.subject)
        if not subjects.is_inbox(message.reply, client, strict=self._strict):
            if self._log_limit.allows(client):
                logger.warning(
                    "a request on %s was ignored: its reply subject %s is not an inbox of this "
                    "client",
                    shortened(message.subject), shortened(repr(message.reply)),
                    extra={"client": shortened(client), "code": "reply_not_allowed"},
                )  # fmt: skip
            return
        trace = self._begin_trace(message)
        try:
            request = self._read(message)
            request.trace = trace
            leader.handle(RequestReceived(request))
        except RequestError as error:
            await self._reject(leader, message, error)
            self._end_trace(trace, error)
        except Exception as error:  # one request fails, not the controller
            logger.exception("a request could not be accepted")
            text = f"{type(error).__name__}: {error}"
            await self._reject(leader, message, RequestError(text, code="internal_error"))

    def _read(self, message: IncomingMessage) -> TrackedRequest:
        limit = self._bus.max_payload // 4
        now = time.monotonic()
        return read_request(message, self._settings.skills, max_bytes=limit, now=now)

    def _begin_trace(self, message: IncomingMessage) -> RequestTrace | None:
        """Continue the trace of the client, or begin one."""
        if self._tracer is None:
            return None
        return RequestTrace.begun(self._tracer.begin(message.headers), time.monotonic())

    def _end_trace(self, trace: RequestTrace | None, error: RequestError) -> None:
        """Record that a request was not accepted."""
        if self._tracer is not None and trace is not None:
            trace.is_waiting = False
            trace.ended({}, "", time.monotonic(), error.code)
            self._tracer.record(trace.take())

    async def _reject(
        self, leader: LeaderService, message: IncomingMessage, error: RequestError
    ) -> None:
        is_read = not isinstance(error, BeyondBounds) and error.code != "payload_too_large"
        header = RequestHeader.of(message.payload) if is_read else RequestHeader()
        end = rejection(header, error, leader.machine.attempts_before)
        await self._answer(message, encode_stream(end, multiplex=header.multiplex))

    # Queries.

    async def _on_query(self, leader: LeaderService, message: IncomingMessage) -> None:
        """Handle a cancel or a query for the status of a request."""
        client, verb = subjects.parse_request(message.subject)
        may_answer = subjects.may_receive(message.reply, client, strict=self._strict)
        try:
            if verb not in ("cancel", "status") or not is_name(client):
                raise InvalidRequest(
                    f"no verb {shortened(repr(verb))} of a client {shortened(repr(client))}"
                )
            query = decode_query(RequestQuery, message.payload)
        except (DecodeError, InvalidRequest) as error:
            if may_answer:
                state = RequestState(
                    request_id=self._claimed_id(message.payload),
                    state="unknown",
                    controller=self._id,
                    message=error.message,
                )
                await self._answer(message, encode(state))
            return
        reply = message.reply if may_answer else ""
        leader.handle(
            StatusOrCancelReceived((client, query.request_id), reply, cancel=verb == "cancel")
        )

    @staticmethod
    def _claimed_id(payload: bytes) -> RequestId:
        is_read = len(payload) <= MAX_QUERY_BYTES
        return (RequestHeader.of(payload).request_id if is_read else None) or RequestId("")

    async def _on_route(self, leader: LeaderService, message: IncomingMessage) -> None:
        """Answer where a request would be routed now."""
        client, _ = subjects.parse_infer(message.subject)
        if not subjects.may_receive(message.reply, client, strict=self._strict):
            return
        try:
            now = time.monotonic()
            request = self._read(message)
            router = leader.machine.router
            is_list = router.splits(request, now)
            routed = first_part(request, now) if is_list else request
            route = router.explain(routed, now)
            answer = RouteAnswer(route=route)
        except RequestError as error:
            answer = RouteAnswer(code=error.code, message=error.message, param=error.param)
        except Exception as error:  # one query fails, not the controller
            logger.exception("a route query failed")
            answer = RouteAnswer(code="internal_error", message=repr(error))
        await self._answer(message, encode(answer))

    async def _on_health(self, _: LeaderService, message: IncomingMessage) -> None:
        if message.reply:
            await self._answer(message, self._health())

    async def _on_list(self, leader: LeaderService, message: IncomingMessage) -> None:
        """Answer which requests there are; with as many as fit into a message."""
        if not message.reply:
            return
        try:
            query = decode_query(RequestListQuery, message.payload)
        except DecodeError as error:
            await self._answer(
                message, encode(RequestList(controller=self._id, message=error.message))
            )
            return
        listed = leader.machine.list_requests(query, time.monotonic())
        while len(payload := encode(listed)) > self._bus.max_payload:
            fewer = listed.requests[: len(listed.requests) // 2]
            listed = listed.model_copy(update={"requests": fewer})
        await self._answer(message, payload)

    async def _answer(self, message: IncomingMessage, payload: bytes) -> None:
        try:
            await self._bus.publish(message.reply, payload)
        except BusError as error:
            logger.warning("an answer on %s was lost: %s", message.subject, error.message)
