"""Where messages of clients come in: requests, and questions about them.

Checks what comes, sends it once to the controller that owns it, and answers what is wrong.
"""

import logging

from controller.intake import may_answer, own_request, read_request, rejection
from controller.owned_request import OwnedRequest
from controller.ownership import meeting_key, rank_owners
from controller.registry import Registry
from controller.requests import Requests
from shared import subjects
from shared.bus import Bus, Message, Subscription
from shared.errors import BusError, DecodeError, InvalidRequest, NoResponders, RequestError
from shared.ids import ControllerId, RequestId, is_name
from shared.messages.codec import decode, encode
from shared.messages.control import RequestQuery, RequestState
from shared.messages.dispatch import ForwardedRequest
from shared.messages.request import Claims
from shared.messages.routes import RouteAnswer
from shared.messages.stream import encode as encode_stream
from shared.settings import ClusterSettings
from shared.tasks import Tasks

logger = logging.getLogger(__name__)

_FORWARD_WAIT_S = 0.5


class Entrance:
    """Takes messages of clients and hands good ones to `Requests`."""

    def __init__(
        self,
        settings: ClusterSettings,
        bus: Bus,
        controller: ControllerId,
        registry: Registry,
        requests: Requests,
    ) -> None:
        self._settings = settings
        self._strict = settings.security.strict_inbox
        self._bus = bus
        self._id = controller
        self._registry = registry
        self._requests = requests
        self._tasks = Tasks()
        self._intake: Subscription | None = None

    async def open(self) -> None:
        bus = self._bus
        await bus.subscribe(subjects.REQUEST_ALL, self._on_query)
        await bus.subscribe(subjects.ROUTE_ALL, self._on_route, queue=subjects.CONTROLLER_QUEUE)
        await bus.subscribe(subjects.controller_infer(self._id), self._on_forwarded)
        self._intake = await bus.subscribe(
            subjects.INFER_ALL, self._on_arrival, queue=subjects.CONTROLLER_QUEUE
        )

    async def shut(self) -> None:
        """Take no more requests; the other controllers get them."""
        if self._intake is not None:
            await self._intake.unsubscribe()

    async def close(self) -> None:
        """Nor those that are here and were not taken yet."""
        await self._tasks.end()

    # Requests.

    async def _on_arrival(self, message: Message) -> None:
        """Take a message in beside those that come next: one that is forwarded waits for its
        owner."""
        self._tasks.start(self._on_infer(message))

    async def _on_infer(self, message: Message) -> None:
        client, _ = subjects.parse_infer(message.subject)
        if not may_answer(message, client, strict=self._strict):
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
            if not await self._forward(request):
                await self._requests.take(request)
        except RequestError as error:
            await self._reject(message.reply, message.payload, error)
        except Exception as error:  # one request fails, not the controller
            logger.exception("a request could not be taken in")
            await self._reject(message.reply, message.payload, _internal(error))

    async def _forward(self, request: OwnedRequest) -> bool:
        """Send a request to its owner; False where that is this controller."""
        others = [id for id in self._registry.ready_controllers if id != self._id]
        key = meeting_key(request.client, request.request) if others else None
        if key is None:
            return False
        for owner in rank_owners(key, [self._id, *others]):
            if owner == self._id:
                return False
            try:
                subject = subjects.controller_infer(owner)
                body = _forwarded(request)
                await self._bus.request(subject, body, timeout_s=_FORWARD_WAIT_S)
                return True
            except NoResponders:
                continue  # it died a moment ago: its successor owns the request
            except BusError:
                return True  # it may have it; if not, the client publishes again
        return False

    async def _on_forwarded(self, message: Message) -> None:
        """A request on its one hop: it was checked where it came in."""
        try:
            forwarded = decode(ForwardedRequest, message.payload)
        except DecodeError as error:
            logger.error("a forwarded request could not be read: %s", error.message)
            return
        if message.reply:
            await self._bus.publish(message.reply, b"")
        if not subjects.is_inbox(forwarded.reply, forwarded.client, strict=self._strict):
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
            await self._requests.take(request)
        except RequestError as error:
            await self._reject(forwarded.reply, encode(forwarded.request), error)

    async def _reject(self, inbox: str, payload: bytes, error: RequestError) -> None:
        multiplex = Claims.of(payload).multiplex
        body = encode_stream(rejection(payload, error), multiplex=multiplex)
        try:
            await self._bus.publish(inbox, body)
        except BusError as failure:
            logger.warning("a rejection was lost: %s", failure.message)

    # Questions.

    async def _on_query(self, message: Message) -> None:
        """Cancel or status: every controller hears it, the owner answers."""
        client, verb = subjects.parse_request(message.subject)
        try:
            if verb not in ("cancel", "status") or not is_name(client):
                raise InvalidRequest(f"no verb {verb!r} of a client {client!r}")
            query = decode(RequestQuery, message.payload)
        except (DecodeError, InvalidRequest) as error:
            request_id = Claims.of(message.payload).request_id or RequestId("")
            state = RequestState(
                request_id=request_id, state="unknown", controller=self._id, message=error.message
            )
            await self._answer(message, state)
            return
        request = self._requests.find((client, query.request_id))
        if request is None or (request.part_of is not None and verb == "cancel"):
            return  # of a list only the whole can be cancelled
        if verb == "cancel":
            await self._requests.cancel(request)
        await self._answer(message, request.state_message(self._id))

    async def _on_route(self, message: Message) -> None:
        """Where a request would go now."""
        if not message.reply:
            return
        try:
            request = read_request(
                message, self._settings.skills, max_bytes=self._bus.max_payload // 4
            )
            answer = RouteAnswer(route=self._requests.explain(request))
        except RequestError as error:
            answer = RouteAnswer(code=error.code, message=error.message, param=error.param)
        except Exception as error:  # one question fails, not the controller
            logger.exception("a route could not be told")
            answer = RouteAnswer(code="internal_error", message=repr(error))
        try:
            await self._bus.publish(message.reply, encode(answer))
        except BusError as error:
            logger.warning("a route was lost: %s", error.message)

    async def _answer(self, message: Message, state: RequestState) -> None:
        if message.reply:
            await self._bus.publish(message.reply, encode(state))


def _forwarded(request: OwnedRequest) -> bytes:
    (inbox,) = request.inboxes
    message = ForwardedRequest(
        client=request.client,
        skill=request.skill,
        reply=inbox,
        elapsed_ms=request.elapsed_ms,
        request=request.request,
    )
    return encode(message)


def _internal(error: Exception) -> RequestError:
    return RequestError(f"{type(error).__name__}: {error}", code="internal_error")
