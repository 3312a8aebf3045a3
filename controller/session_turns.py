"""The turns of sessions: one at a time, and what was said before where only the new one came.

A worker keeps what was said in the sessions it served (`worker/sessions`). Here a new turn that
comes alone is put behind that, so that what is dispatched is the whole conversation: any worker
can serve it, and another one can go on.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable

from controller.owned_request import OwnedRequest
from controller.session_homes import SessionHomes
from shared import subjects
from shared.bus import Bus
from shared.changes import Changes
from shared.errors import BusError, DecodeError, RequestError
from shared.ids import SessionKey, WorkerId
from shared.messages.codec import decode, encode
from shared.messages.control import ControlReply, ForgetSession, TellSession
from shared.messages.request import Message, turn_bytes

logger = logging.getLogger(__name__)


class SessionTurns:
    """Knows which requests of each session are here.

    Args:
        homes: learns which worker served a session last.
        timeout_s: for a worker's answer.
    """

    def __init__(self, bus: Bus, homes: SessionHomes, *, timeout_s: float) -> None:
        self._bus = bus
        self._homes = homes
        self._timeout_s = timeout_s
        self._turns: dict[SessionKey, deque[OwnedRequest]] = {}
        self._waiting: dict[OwnedRequest, asyncio.Event] = {}
        self._holders = 0
        self._released = Changes()

    def hold(self) -> Callable[[], None]:
        """No turn begins until what this returns is called: one that began elsewhere may be on its
        way here."""
        self._holders += 1

        def release() -> None:
            self._holders -= 1
            self._released.notify()

        return release

    def has(self, session: SessionKey) -> bool:
        """Whether requests of a session are here."""
        return session in self._turns

    def is_next(self, request: OwnedRequest) -> bool:
        """Whether no turn that is here has to end before a request."""
        return request.session is None or self._turns[request.session][0] is request

    def behind(self, request: OwnedRequest) -> list[OwnedRequest]:
        """The turns that are here and have to wait for its end."""
        turns = list(self._turns.get(request.session, ())) if request.session is not None else []
        return turns[turns.index(request) + 1 :] if request in turns else []

    def came(self, request: OwnedRequest) -> None:
        """A request is the last of its session now."""
        if request.session is not None:
            self._turns.setdefault(request.session, deque()).append(request)

    def came_running(self, request: OwnedRequest) -> None:
        """A turn that has begun came: it is before all that wait."""
        if request.session is not None:
            self._turns.setdefault(request.session, deque()).appendleft(request)

    async def wait(self, request: OwnedRequest) -> None:
        """Return when it is a request's turn, or it needs none any more."""
        if request.session is None or request.ended:
            return
        await self._released.wait_until(lambda: not self._holders)
        if request.ended:
            return
        if self.is_next(request):
            return
        self._waiting[request] = event = asyncio.Event()
        await event.wait()

    def wake(self, request: OwnedRequest) -> None:
        """A request need not wait for its turn any more."""
        if (event := self._waiting.pop(request, None)) is not None:
            event.set()

    async def ended(self, request: OwnedRequest) -> None:
        """A request ended; the next of its session is on."""
        if (session := request.session) is not None:
            self.wake(request)
            turns = self._turns[session]
            turns.remove(request)
            if turns:
                self.wake(turns[0])
            else:
                del self._turns[session]
        if request.affinity is None or request.worker is None or request.state != "finished":
            return
        before = self._homes.settle(request.affinity, request.worker)
        if session is not None and before is not None and before != request.worker:
            await self._forget(session, before)

    async def complete(self, request: OwnedRequest) -> None:
        """Put what was said in a session before a turn that came alone.

        Raises:
            RequestError: it is not known any more, or too large.
        """
        body, session = request.request, request.session
        if session is None or not body.messages or body.history == "sent":
            return
        if request.said or request.cancelled or request.ended:
            return
        alone = all(message.role in ("user", "tool") for message in body.messages)
        home = self._homes.last(session)
        if body.history is None and (home is None or not alone):
            return
        said = await self._said(session, home) if home is not None else []
        if said is None or (body.history == "kept" and not said):
            raise RequestError(
                f"session_id: what was said in {session[1]!r} is not known (any more); "
                "send the whole conversation, with history: sent",
                code="unknown_session",
                param="session_id",
            )
        if body.history == "kept" or (said and not _same(said[0], body.messages[0])):
            if _size(said) + _size(body.messages) > self._bus.max_payload // 4:
                raise _too_large(session[1])
            request.said = said

    async def _said(self, session: SessionKey, home: WorkerId) -> list[Message] | None:
        """All messages of a session; none where its turns never come alone, None where they
        cannot be had.

        Raises:
            RequestError: they are too large.
        """
        client, session_id = session
        order = TellSession(client=client, session_id=session_id)
        try:
            subject = subjects.worker_control(home, order.verb)
            answer = await self._bus.request(subject, encode(order), timeout_s=self._timeout_s)
            reply = decode(ControlReply, answer.payload)
        except (BusError, DecodeError) as error:
            logger.warning("worker %s does not tell a session: %s", home, error.message)
            return None
        if reply.code == "payload_too_large":
            raise _too_large(session_id)
        return None if reply.said is None else [Message.model_validate(m) for m in reply.said]

    async def _forget(self, session: SessionKey, worker: WorkerId) -> None:
        """What a worker knows of a session is out of date."""
        client, session_id = session
        order = ForgetSession(client=client, session_id=session_id, drop=False)
        try:
            subject = subjects.worker_control(worker, order.verb)
            await self._bus.publish(subject, encode(order))
        except BusError as error:
            logger.warning("worker %s keeps an old session: %s", worker, error.message)


def _size(messages: Iterable[Message]) -> int:
    """About the bytes that messages take."""
    return sum(turn_bytes(message.turn) + 50 for message in messages)


def _too_large(session_id: str) -> RequestError:
    return RequestError(
        f"session_id: what was said in {session_id!r} has become too large for a message",
        code="payload_too_large",
        param="session_id",
    )


def _same(one: Message, other: Message) -> bool:
    return one.role == other.role and one.text == other.text
