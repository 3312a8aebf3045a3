"""The other controllers: which of them owns a request, and whether one may have taken our place.

A controller that stood still, or was cut off, is given up by the others and by clients: what was
sent to it is sent again, to another one. When it is back it still finds it all in its buffers, and
its own requests as it left them. What no worker had yet is then another one's, if that knows it.
"""

import asyncio
import logging
import math
import time
from collections.abc import Collection, Sequence

from controller.link_watch import LinkWatch
from controller.owned_request import OwnedRequest
from controller.ownership import adoption_key, meeting_key, rank_owners
from controller.registry import Registry
from shared import subjects
from shared.bus import Bus
from shared.errors import BusError, DecodeError, NoResponders
from shared.ids import ControllerId
from shared.messages.codec import decode, encode
from shared.messages.control import Claim, RequestQuery, RequestState
from shared.messages.dispatch import ForwardedRequest, ForwardReply

Away = Collection[ControllerId]

logger = logging.getLogger(__name__)

HANDED_OVER_HOPS = 2
"""So far has come what another controller gives away: it is ours now."""
_ANSWER_S = 0.5
_LOOK_S = 0.05
_FOUND_OUT_S = 2.0
"""In this time it is found out that a controller has ended, and its requests are adopted."""
_MOVES_S = 120.0
"""So long after controllers came or went turns of a session may still be at its former owner."""


class Peers:
    """Knows the other controllers, and sends them requests.

    Attributes:
        left: they know that we left, and take what is sent to us from now on.
    """

    def __init__(
        self, bus: Bus, controller: ControllerId, registry: Registry, link: LinkWatch
    ) -> None:
        self._bus = bus
        self._id = controller
        self._registry = registry
        self._link = link
        self.left = False
        self._known_others: list[ControllerId] = []
        self._changed_at = -math.inf

    @property
    def others(self) -> list[ControllerId]:
        """Those that take requests."""
        return [id for id in self._registry.ready_controllers if id != self._id]

    @property
    def out_of_touch(self) -> bool:
        """What comes now may be old, and have been sent to another one since."""
        return self._link.out_of_touch and bool(self.others)

    @property
    def lately_away(self) -> bool:
        """Others may have been asked for what comes now, because we were silent."""
        return self._link.lately_away and bool(self.others)

    async def wait_in_touch(self) -> None:
        """Return when what was sent to us while we were out of touch has come."""
        if self.out_of_touch:
            await self._link.returned.wait_until(lambda: not self.out_of_touch)

    async def owner_since(self, request: OwnedRequest) -> ControllerId | None:
        """Who has adopted it while we were away, if anybody, or serves a copy of it since we left;
        the others are asked only where that may be. Of several that are not sure the one with the
        latest attempt keeps it."""
        if self._is_nobody_elses(request):
            return None
        asked_at = time.monotonic()
        query = encode(RequestQuery(request_id=request.request_id))
        subject = subjects.request(request.client, "status")
        try:
            answers = await self._bus.request_many(subject, query, wait_s=_ANSWER_S)
            states = [decode(RequestState, answer.payload) for answer in answers]
        except (BusError, DecodeError) as error:
            logger.warning("the other controllers could not be asked: %s", error.message)
            return None
        if request.ours_since >= asked_at:
            return None  # one of them has handed it over to us meanwhile
        owner = self._owner_among(request, states)
        if owner is None:
            request.ours_since = asked_at
        return owner

    def _owner_among(
        self, request: OwnedRequest, states: Sequence[RequestState]
    ) -> ControllerId | None:
        known = [s for s in states if s.state != "unknown" and s.controller != self._id]
        if certain := [state.controller for state in known if state.claim == "certain"]:
            return certain[0]
        if self.left and known:
            return known[0].controller
        attempts = {s.controller: s.attempt for s in known if s.claim == "begun"}
        attempts[self._id] = request.attempt
        last = max(attempts.values())
        furthest = [controller for controller, attempt in attempts.items() if attempt == last]
        first = rank_owners(_adoption_key(request), furthest)[0]
        return first if first != self._id else None

    def claim(self, request: OwnedRequest) -> Claim:
        """What we answer to others that ask who has it."""
        if request.ended or self._is_nobody_elses(request):
            return "certain"
        return "begun" if request.attempt >= 0 else "waiting"

    def is_sure(self, request: OwnedRequest) -> bool:
        """Whether it is certainly ours: no other one may have adopted it from a worker since that
        was known last, nor have been asked for it by its client, that knows its id and took us for
        gone; nor is it to go to another one, behind the turn before it."""
        if request.part_of is not None:  # nobody else knows of a prompt
            return True
        if request.attempt >= 0:
            return not self._may_be_theirs(request, self._link.away_at)
        if request.follows and self.others:
            return False
        if meeting_key(request.client, request.request) is None:
            return True
        return not self._may_be_theirs(request, self._link.replaced_at)

    def _is_nobody_elses(self, request: OwnedRequest) -> bool:
        """Whether it is surely ours, and its client cannot have asked another one for it, too,
        because we left."""
        asked_elsewhere = self.left and request.part_of is None and bool(self.others)
        return self.is_sure(request) and not asked_elsewhere

    def _may_be_theirs(self, request: OwnedRequest, away_at: float | None) -> bool:
        return away_at is not None and away_at >= request.ours_since and bool(self.others)

    async def forward(
        self, request: OwnedRequest, *, hops: int = 0, away: Away = (), has_turns: bool = False
    ) -> bool:
        """Send a request to its owner, or, if it came while we were away, to one that was not;
        False where that is this controller, or it has come a long way already.

        Args:
            away: who had it in hands and was away lately, we ourselves included.
            has_turns: other turns of its session are here.
        """
        here = self._id not in away
        if hops > 1 or has_turns:
            return False
        turn = request.session is not None
        patient_until = time.monotonic() + (_FOUND_OUT_S if turn else 0.0)
        while (others := self._noted_others()) and (
            key := meeting_key(request.client, request.request)
        ) is not None:
            # Where all were away nobody else was asked meanwhile: it meets its copies at its owner.
            present = [one for one in [self._id, *others] if one not in away]
            owners = rank_owners(key, present or [self._id, *others])
            if owners[0] == self._id or (hops and here):
                return turn and await self._send_to_its_session(request, others)
            if await self._send(request, owners[:1] if turn else owners, hops + 1, away=away):
                return True
            if time.monotonic() >= patient_until:
                return False
            await asyncio.sleep(_LOOK_S)  # until the turns before it are known to their new owner
        return False

    async def hand_over(self, request: OwnedRequest) -> bool:
        """Have another one serve a request, or go on serving it; False where nobody does."""
        owners = rank_owners(_adoption_key(request), self.others)
        return await self._send(request, owners, HANDED_OVER_HOPS)

    async def leave_to(self, owner: ControllerId, request: OwnedRequest) -> bool:
        """Have another one that serves a copy of a request tell its listeners here, too; False
        where it is gone."""
        return await self._send(request, [owner], HANDED_OVER_HOPS, if_unheard=True)

    def _noted_others(self) -> list[ControllerId]:
        if (others := self.others) != self._known_others:
            self._known_others, self._changed_at = others, time.monotonic()
        return others

    async def _send_to_its_session(self, request: OwnedRequest, others: list[ControllerId]) -> bool:
        """Send a turn to who owned its session until lately and has turns of it still."""
        away_at = self._link.away_at
        changed_at = self._changed_at if away_at is None else max(away_at, self._changed_at)
        if time.monotonic() - changed_at > _MOVES_S:
            return False
        for other in others:
            if await self._send(request, [other], 2, if_turns=True):
                return True
        return False

    async def _send(
        self,
        request: OwnedRequest,
        owners: list[ControllerId],
        hops: int,
        *,
        if_turns: bool = False,
        if_unheard: bool = False,
        away: Away = (),
    ) -> bool:
        """Whether one of them has it now, with all who listen: the first that is there."""
        for owner in owners:
            if owner == self._id:
                return False
            told: set[str] = set()
            taken = True
            try:
                while more := [inbox for inbox in request.inboxes if inbox not in told]:
                    told.update(more)
                    messages = [
                        _forwarded(
                            request, inbox, hops,
                            if_turns=if_turns, if_unheard=if_unheard, away=away,
                        )
                        for inbox in more
                    ]  # fmt: skip
                    asked = [self._ask(owner, each, if_turns=if_turns) for each in messages]
                    taken &= all(await asyncio.gather(*asked))
                return taken
            except NoResponders:
                continue  # it died a moment ago: its successor owns the request
        return False

    async def _ask(self, owner: ControllerId, message: bytes, *, if_turns: bool) -> bool:
        """Whether another one takes a request, as far as it says.

        Raises:
            NoResponders: it is not there.
        """
        subject, limit_s = subjects.controller_infer(owner), _FOUND_OUT_S if if_turns else _ANSWER_S
        try:
            answer = await self._bus.request(subject, message, timeout_s=limit_s)
            return decode(ForwardReply, answer.payload).taken
        except NoResponders:
            raise
        except (BusError, DecodeError):
            return not if_turns  # it may have it; if not, the client publishes again


def _adoption_key(request: OwnedRequest) -> str:
    return adoption_key(request.client, request.request_id, request.request.session_id)


def _forwarded(
    request: OwnedRequest, inbox: str, hops: int, *, if_turns: bool, if_unheard: bool, away: Away
) -> bytes:
    message = ForwardedRequest(
        client=request.client,
        skill=request.skill,
        reply=inbox,
        elapsed_ms=request.elapsed_ms,
        hops=hops,
        if_turns=if_turns,
        if_unheard=if_unheard,
        away=list(away),
        request=request.request.model_copy(update={"request_id": request.request_id}),
    )
    return encode(message)
