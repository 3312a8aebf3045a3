"""Where messages of clients come in: requests, and questions about them.

Checks what comes, sends it once to the controller that owns it, and answers what is wrong.
"""

import logging
import math
import time
from collections.abc import Callable

from controller.intake import may_answer, own_request, read_request, rejection
from controller.owned_request import OwnedRequest
from controller.peers import HANDED_OVER_HOPS, Away, Peers
from controller.requests import Requests
from shared import subjects
from shared.bus import Bus, Message, Subscription
from shared.errors import BusError, DecodeError, InvalidRequest, RequestError
from shared.ids import ClientName, ControllerId, RequestId, is_name
from shared.messages.codec import decode, encode
from shared.messages.control import RequestQuery, RequestState
from shared.messages.dispatch import ForwardedRequest, ForwardReply
from shared.messages.request import Claims
from shared.messages.routes import RouteAnswer
from shared.messages.stream import encode as encode_stream
from shared.settings import ClusterSettings
from shared.tasks import Tasks

logger = logging.getLogger(__name__)


class Entrance:
    """Takes messages of clients and hands good ones to `Requests`."""

    def __init__(
        self,
        settings: ClusterSettings,
        bus: Bus,
        controller: ControllerId,
        peers: Peers,
        requests: Requests,
    ) -> None:
        self._settings = settings
        self._strict = settings.security.strict_inbox
        self._bus = bus
        self._id = controller
        self._peers = peers
        self._requests = requests
        self._tasks = Tasks()
        self._intake: Subscription | None = None

    def configure(self, settings: ClusterSettings) -> None:
        """Go by other skills, from the next request on."""
        self._settings = settings

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
        """Take no more of those that are here, either."""
        await self._tasks.end()

    # Requests.

    async def _on_arrival(self, message: Message) -> None:
        """Take a message in beside those that come next: one that is forwarded waits for its
        owner."""
        self._tasks.start(self._on_infer(message, away=self._away()))

    async def _on_infer(self, message: Message, *, away: Away) -> None:
        client, _ = subjects.parse_infer(message.subject)
        if not may_answer(message, client, strict=self._strict):
            logger.warning(
                "a request on %s was ignored: its reply subject %r is no inbox of that client",
                message.subject, message.reply,
                extra={"client": client, "code": "reply_not_allowed"},
            )  # fmt: skip
            return
        max_bytes = self._bus.max_payload // 4
        await self._take_in(
            lambda: read_request(message, self._settings.skills, max_bytes=max_bytes),
            message.reply,
            lambda: message.payload,
            away=away,
        )

    async def _take_in(
        self,
        read: Callable[[], OwnedRequest],
        inbox: str,
        payload: Callable[[], bytes],
        *,
        hops: int = 0,
        if_unheard: bool = False,
        away: Away,
    ) -> None:
        """Take a request or send it on; say what is wrong with it, if something is."""
        try:
            request = read()
            known = self._requests.find(request.key)
            if known is not None and hops == HANDED_OVER_HOPS:
                known.ours_since = time.monotonic()
            if known is not None and if_unheard and inbox in known.inboxes:
                return
            if known is None:
                has_turns = self._requests.has_turns(request.session)
                if await self._peers.forward(request, hops=hops, away=away, has_turns=has_turns):
                    return
                come_meanwhile = self._requests.find(request.key) is not None
                if self._peers.left and not come_meanwhile and await self._peers.hand_over(request):
                    return
            if hops < HANDED_OVER_HOPS and away == [self._id]:  # another one may have been asked
                request.ours_since = -math.inf
            await self._requests.take(request)
        except RequestError as error:
            await self._reject(inbox, payload(), error)
        except Exception as error:  # one request fails, not the controller
            logger.exception("a request could not be taken in")
            await self._reject(inbox, payload(), _internal(error))

    async def _on_forwarded(self, message: Message) -> None:
        """A request on its way to its owner: it was checked where it came in."""
        try:
            forwarded = decode(ForwardedRequest, message.payload)
        except DecodeError as error:
            logger.error("a forwarded request could not be read: %s", error.message)
            return
        turn = forwarded.request.turn_of
        session = (forwarded.client, turn) if turn is not None else None
        taken = not forwarded.if_turns or self._requests.has_turns(session)
        if message.reply:
            await self._bus.publish(message.reply, encode(ForwardReply(taken=taken)))
        if not taken:
            return
        if not subjects.is_inbox(forwarded.reply, forwarded.client, strict=self._strict):
            logger.warning("a forwarded request was ignored: %r is no inbox", forwarded.reply)
            return
        taking = self._take_in(
            lambda: own_request(
                forwarded.client,
                forwarded.skill,
                forwarded.reply,
                forwarded.request,
                self._settings.skills,
                elapsed_before_ms=forwarded.elapsed_ms,
            ),
            forwarded.reply,
            lambda: encode(forwarded.request),
            hops=forwarded.hops,
            if_unheard=forwarded.if_unheard,
            away=[*forwarded.away, *self._away()],
        )
        self._tasks.start(taking)

    def _away(self) -> list[ControllerId]:
        return [self._id] if self._peers.lately_away else []

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
            await self._answer(message, client, state)
            return
        request = self._requests.find((client, query.request_id))
        if request is None or (request.part_of is not None and verb == "cancel"):
            return  # of a list only the whole can be cancelled
        if verb == "cancel":
            await self._requests.cancel(request)
        state = request.state_message(self._id, self._peers.claim(request))
        await self._answer(message, client, state)

    async def _on_route(self, message: Message) -> None:
        """Where a request would go now."""
        client, _ = subjects.parse_infer(message.subject)
        if not subjects.may_hear(message.reply, client, strict=self._strict):
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

    async def _answer(self, message: Message, client: ClientName, state: RequestState) -> None:
        if subjects.may_hear(message.reply, client, strict=self._strict):
            await self._bus.publish(message.reply, encode(state))


def _internal(error: Exception) -> RequestError:
    return RequestError(f"{type(error).__name__}: {error}", code="internal_error")
