"""What clients ask of a request that the leader knows: to receive its stream once more, its state,
or to cancel it."""

from collections.abc import Callable

from controller.fleet.registry import NodeRegistry
from controller.lifecycle.claimed_workers import ClaimedWorkers
from controller.lifecycle.timers import RequestTimers
from controller.requests.client_messages import state_name
from controller.requests.events import StatusOrCancelReceived
from controller.requests.instructions import (
    InstructionBuilder,
    PromptListCommand,
    SendRequestState,
)
from controller.requests.request import TrackedRequest
from controller.requests.store import RequestStore
from controller.requests.transitions import Trigger
from shared.fair_lru import FairLru
from shared.messages.control import RequestState

_MAX_EARLY_CANCELS = 10_000
"""So many cancels are held at most; then the client that has most loses its oldest."""


class QueryActions:
    """Queries, and the actions of `controller.requests.transitions` for requests that are published
    again or cancelled.

    Args:
        arrive: accepts a request that is published again, in place of the old one.
        fire: triggers an action for a request.
    """

    def __init__(
        self,
        store: RequestStore,
        registry: NodeRegistry,
        claims: ClaimedWorkers,
        timers: RequestTimers,
        instructions: InstructionBuilder,
        arrive: Callable[[TrackedRequest, TrackedRequest], None],
        fire: Callable[[TrackedRequest, Trigger], None],
    ) -> None:
        self._store = store
        self._registry = registry
        self._claims = claims
        self._timers = timers
        self._out = instructions
        self._arrive = arrive
        self._fire = fire
        self._early_cancels: FairLru[StatusOrCancelReceived] = FairLru(_MAX_EARLY_CANCELS)

    # Queries.

    def on_queried(self, event: StatusOrCancelReceived) -> None:
        """Answer a query, and cancel the request if the query says so. While workers have not
        answered their claims, one of them may have an unknown request: then a cancel is held and a
        question for the state is not answered."""
        request = self._store.get(event.key)
        controller, request_id = self._out.controller, event.key[1]
        state = RequestState(request_id=request_id, state="unknown", controller=controller)
        if request is not None and request.state != "lost":
            if event.cancel and (request.part_of is None or event.of_part):
                request.cancelled = request.cancelled or not request.ended
                self._fire(request, "cancel_requested")
            state = RequestState(
                request_id=request_id,
                state=state_name(request),
                controller=controller,
                worker=request.worker if request.end is None else None,
                attempt=request.attempt,
                tokens=request.tokens,
            )
        elif self._claims.incomplete:
            if event.cancel:
                client, request_id = event.key
                self._early_cancels.set((client, f"{request_id} {event.reply}"), event)
            return
        if event.reply:
            self._out.add(SendRequestState(event.reply, state))

    def release_early_cancels(self) -> None:
        """Answer the cancels that were held: all workers have answered their claims, or are
        gone."""
        held, self._early_cancels = self._early_cancels, FairLru(_MAX_EARLY_CANCELS)
        for cancel in held.values():
            self.on_queried(cancel)

    def cancel_at_worker(self, request: TrackedRequest) -> None:
        self._out.cancel_attempt(request)

    def cancel_list(self, request: TrackedRequest) -> None:
        self._out.add(PromptListCommand("cancel", request))

    # Published again.

    def add_inboxes(self, request: TrackedRequest, again: TrackedRequest) -> None:
        if _lacks_beginning(request, again) and request.state != "offered":
            request.start_from(again)
            self._store.weigh(request, again.memory_bytes)
        request.add_inboxes(again.inboxes)
        self._out.send_waiting_status(request, again.inboxes)

    def attach(self, request: TrackedRequest, again: TrackedRequest) -> None:
        if _lacks_beginning(request, again):
            again.inherit(request)
            self._out.cancel_attempt(request, silent=True)
            request.detach("other", self._out.now)
            self.run_again(request, again)
            return
        request.add_inboxes(again.inboxes)
        for inbox in again.inboxes:
            self._out.attach(request, inbox)

    def attach_to_list(self, request: TrackedRequest, again: TrackedRequest) -> None:
        request.add_inboxes(again.inboxes)
        for inbox in again.inboxes:
            self._out.add(PromptListCommand("attach", request, inbox))

    def resend_end(self, request: TrackedRequest, again: TrackedRequest) -> None:
        """Have the sender of the terminal message send it again. If that worker is gone, or does
        not have the whole answer, the request runs again: the same seed gives the same answer."""
        if request.end is not None and request.delegated:
            self.attach_to_list(request, again)
        elif request.end is not None:
            self._out.send_to_client(again, request.end, again.inboxes)
        elif _lacks_beginning(request, again) or _ended_before_replay(request):
            self.run_again(request, again)
        elif request.worker and self._registry.is_alive(request.worker, request.boot_id):
            self.attach(request, again)
        else:
            self.run_again(request, again)

    def run_again(self, request: TrackedRequest, again: TrackedRequest) -> None:
        """Run the request again, with the same seed and higher attempt numbers: the client may have
        received a part of the answer."""
        again.attempt = request.attempt
        if request.state == "lost":
            again.trace = request.trace or again.trace
        self._timers.drop(request)
        self._arrive(again, request)


def _lacks_beginning(request: TrackedRequest, again: TrackedRequest) -> bool:
    """Whether the request continues from tokens that who publishes it again does not have."""
    return request.progress.resumed_tokens > again.progress.resumed_tokens


def _ended_before_replay(request: TrackedRequest) -> bool:
    """Whether the last worker may lack the beginning: cancelled before it had generated anew what
    an earlier attempt had emitted."""
    return request.cancelled and 0 < request.tokens_before == request.reported_tokens
