"""A controller that leaves: what becomes of the requests that it owns."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from controller.dispatcher import Dispatcher
from controller.ledger import Ledger
from controller.list_requests import ListRequests
from controller.owned_request import OwnedRequest
from controller.peers import Peers
from controller.session_turns import SessionTurns
from shared.changes import Changes
from shared.messages.stream import StreamError

_SAY_AGAIN_S = 0.5


class Owner(Protocol):
    """Who owns the requests.

    Attributes:
        joining: listeners who came late, while they are told where their stream is.
    """

    joining: int

    async def let_go(self, request: OwnedRequest, why: str) -> None:
        """Another controller answers for it now."""

    async def give_up(self, request: OwnedRequest, error: StreamError) -> None:
        """End a request, whatever its worker does."""


class Leaving:
    """Leaves requests to other controllers: those that workers have are adopted, the others are
    handed over.

    Args:
        changes: notified where the state of a request changes.
    """

    def __init__(
        self,
        owner: Owner,
        ledger: Ledger,
        lists: ListRequests,
        turns: SessionTurns,
        dispatcher: Dispatcher,
        peers: Peers,
        changes: Changes,
    ) -> None:
        self._owner = owner
        self._ledger = ledger
        self._lists = lists
        self._turns = turns
        self._dispatcher = dispatcher
        self._peers = peers
        self._changes = changes

    async def prepare(self) -> None:
        """From now on no request goes to its first worker; return when each is with a worker, or
        waits for its first one."""
        self._dispatcher.closed = True
        for request in self._ledger.active:
            self._dispatcher.waiting.dismiss(request)
        await self._changes.wait_until(lambda: all(map(self._may_be_left, self._ledger.active)))

    async def hand_over(self, say_left: Callable[[], Awaitable[None]], *, within_s: float) -> None:
        """What workers have, who adopts it goes on with; have other controllers serve what none
        has. Return when nothing is here any more.

        A turn goes when those before it are gone. They may run at a worker that ends in this
        moment: then nobody hears of them, we have them go on at another one, and say again that
        we left. What is still here after `within_s` goes as it is.
        """
        until = time.monotonic() + within_s
        say_at = time.monotonic() + _SAY_AGAIN_S
        while (here := self._here) and time.monotonic() < until:
            if time.monotonic() >= say_at:
                await say_left()
                say_at = time.monotonic() + _SAY_AGAIN_S
            for request in self._ledger.active:
                if self._waits(request) and self._turns.is_next(request):
                    await self._hand_over(request)
            await self._wait_for_less(here, _SAY_AGAIN_S)
        for request in self._ledger.active:
            await self._hand_over(request)

    @property
    def _here(self) -> int:
        """What is still to be done."""
        return len(self._ledger.active) + self._owner.joining

    async def _wait_for_less(self, here: int, limit_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._changes.wait_until(lambda: self._here < here)

    async def _hand_over(self, request: OwnedRequest) -> None:
        if self._waits(request) and await self._peers.hand_over(request) and not request.ended:
            await self._owner.let_go(request, "another controller serves it")

    async def fail_rest(self, error: StreamError) -> None:
        """End what cannot be left to another controller."""
        for request in self._ledger.active:
            if not self._may_be_left(request) or request.attempt < 0:
                await self._owner.give_up(request, error)

    def _waits(self, request: OwnedRequest) -> bool:
        """For its first worker."""
        return not request.ended and self._may_be_left(request) and request.attempt < 0

    def _may_be_left(self, request: OwnedRequest) -> bool:
        """A list and its prompts only we know."""
        if request in self._lists or request.part_of is not None:
            return False
        return request.state == "running" or request.attempt < 0
