"""A controller that leaves: what becomes of the requests that it owns."""

from typing import Protocol

from controller.dispatcher import Dispatcher
from controller.ledger import Ledger
from controller.list_requests import ListRequests
from controller.owned_request import OwnedRequest
from controller.peers import Peers
from shared.changes import Changes
from shared.messages.stream import StreamError


class Owner(Protocol):
    """Who owns the requests."""

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
        dispatcher: Dispatcher,
        peers: Peers,
        changes: Changes,
    ) -> None:
        self._owner = owner
        self._ledger = ledger
        self._lists = lists
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

    async def hand_over(self) -> None:
        """What workers have, who adopts it goes on with; have other controllers serve what none
        has."""
        for request in self._ledger.active:
            if request.ended or not self._may_be_left(request) or request.attempt >= 0:
                continue
            if await self._peers.hand_over(request) and not request.ended:
                await self._owner.let_go(request, "another controller serves it")

    async def fail_rest(self, error: StreamError) -> None:
        """End what cannot be left to another controller."""
        for request in self._ledger.active:
            if not self._may_be_left(request) or request.attempt < 0:
                await self._owner.give_up(request, error)

    def _may_be_left(self, request: OwnedRequest) -> bool:
        """A list and its prompts only we know."""
        if request in self._lists or request.part_of is not None:
            return False
        return request.state == "running" or request.attempt < 0
