"""The attempts of a request: begun, placed on a worker, reported by the worker, repeated after a
failure."""

from collections.abc import Sequence

from pydantic import ValidationError

from controller.dispatch.dispatch_queue import DispatchOutcome
from controller.dispatch.dispatcher import Dispatcher
from controller.lifecycle.endings import EndingActions
from controller.lifecycle.history import history_needed, history_to_prepend
from controller.lifecycle.leader_term import LeaderTerm
from controller.lifecycle.request_adoption import RequestAdoption
from controller.lifecycle.timers import RequestTimers
from controller.requests.events import SessionHistoryReceived
from controller.requests.instructions import InstructionBuilder, PromptListCommand
from controller.requests.request import RequestKey, TrackedRequest
from shared.errors import RequestError
from shared.ids import BootId, ModelId
from shared.messages.control import ControlReply, TellSession
from shared.messages.conversation import Message
from shared.messages.dispatch import Dispatch
from shared.messages.request_events import AttemptFailed, TokensEmitted
from shared.messages.stream import ErrorDetails

_UNCLAIMED = frozenset({"not_claimed", "stale_term"})


class AttemptActions:
    """Actions of `controller.requests.transitions` that bring a request to a worker, and those that
    follow from what the worker reports."""

    def __init__(
        self,
        term: LeaderTerm,
        dispatcher: Dispatcher,
        takeover: RequestAdoption,
        timers: RequestTimers,
        endings: EndingActions,
        instructions: InstructionBuilder,
    ) -> None:
        self._term = term
        self._dispatcher = dispatcher
        self._takeover = takeover
        self._timers = timers
        self._endings = endings
        self._out = instructions

    # Before a worker has the request.

    def begin(self, request: TrackedRequest) -> None:
        self._term.raise_attempt(request)
        router = self._dispatcher.router
        if router.splits(request, self._out.now):
            request.state, request.delegated = "delegated", True
            if request.trace is not None:
                request.trace.delegated(self._out.now)
            self._timers.drop(request)
            self._out.add(PromptListCommand("serve", request))
            return
        session, key = request.session, request.key
        home = router.homes.last_worker(session) if session is not None else None
        if session is None or request.cancelled or not history_needed(request, home):
            self.place(request)
        elif home is None:
            self.place_with_history(request, [], False)
        else:
            request.state, request.reason = "fetching", "history"
            client, session_id = session
            order = TellSession(term=self._term.number, client=client, session_id=session_id)
            self._out.order(home, order, lambda reply: _history(key, reply))

    def place_with_history(
        self, request: TrackedRequest, messages: Sequence[Message] | None, too_large: bool
    ) -> None:
        if self._term.shutting_down:
            request.state, request.reason = "waiting", "leader_change"
            return
        try:
            limit = self._dispatcher.queue.max_bytes // 4
            request.history = history_to_prepend(request, messages, too_large, limit)
        except RequestError as error:
            self._endings.fail(request, ErrorDetails.from_exception(error))
        else:
            self.place(request)

    def place(self, request: TrackedRequest) -> None:
        self._term.raise_attempt(request)
        self._dispatcher.place(request)
        self._timers.update(request)
        self._timers.retry_when_settled()

    def run(self, request: TrackedRequest, boot_id: BootId) -> None:
        self._dispatcher.run(request, boot_id)
        if request.cancelled:
            self._out.cancel_attempt(request)
        for inbox in request.inboxes:
            if inbox not in request.dispatched_to:
                self._out.attach(request, inbox)

    def place_elsewhere(self, request: TrackedRequest, outcome: DispatchOutcome) -> None:
        worker, refusal = request.worker, outcome.refusal
        self._dispatcher.rejected(request, outcome)
        if worker is not None and refusal is not None and refusal.code in _UNCLAIMED:
            self._takeover.claim_anew(worker)
        if request.cancelled:
            self._endings.end_cancelled(request)
        else:
            self.place(request)

    # While a worker has the request.

    def record_tokens(self, request: TrackedRequest, event: TokensEmitted) -> None:
        if not self._dispatcher.record_tokens(request, event) and request.worker is not None:
            self._takeover.claim(request.worker)  # the answer has all tokens

    def set_contents(
        self, request: TrackedRequest, contents: Dispatch, models: list[ModelId]
    ) -> None:
        request.set_contents(contents, models, self._out.now)
        self._timers.update(request)
        if request.pending_requeue is not None:
            event, request.pending_requeue = request.pending_requeue, None
            self.requeue(request, event)
        elif request.cancelled:
            self._out.cancel_attempt(request)

    def requeue(self, request: TrackedRequest, event: AttemptFailed) -> None:
        if request.request is None:
            request.pending_requeue = event  # until its contents are known
            return
        self._out.cancel_attempt(request, silent=True)  # so that the worker forgets it
        request.failures.crashes += event.suspect
        wait_ms = event.retry_after_ms
        self._retry(
            request,
            ErrorDetails.of(event.code, event.message, retry_after_ms=wait_ms),
            innocent=event.code == "engine_crashed" and not event.suspect,
        )

    def fail_over(self, request: TrackedRequest, error: ErrorDetails) -> None:
        """The worker is gone."""
        if request.request is None:
            self._endings.lose(request)
            return
        self._out.cancel_attempt(request, silent=True)
        request.may_have_ended = True
        self._retry(request, error)

    def _retry(
        self, request: TrackedRequest, error: ErrorDetails, *, innocent: bool = False
    ) -> None:
        if request.cancelled:
            self._endings.end_cancelled(request)
            return
        self._dispatcher.retry(request, error, innocent=innocent)
        self._timers.update(request)


def _history(key: RequestKey, reply: ControlReply | None) -> SessionHistoryReceived:
    if reply is None or reply.said is None:
        too_large = reply is not None and reply.code == "payload_too_large"
        return SessionHistoryReceived(key, None, too_large)
    try:
        messages = [Message.model_validate(message) for message in reply.said]
    except ValidationError:  # stored by a release with other limits
        return SessionHistoryReceived(key, None)
    return SessionHistoryReceived(key, messages)
