"""How requests end: finished, failed, cancelled or lost."""

from collections.abc import Callable

from controller.dispatch.dispatcher import Dispatcher
from controller.lifecycle.leader_term import LeaderTerm
from controller.lifecycle.timers import RequestTimers
from controller.requests.client_messages import cancellation, failure
from controller.requests.instructions import InstructionBuilder, PromptListCommand
from controller.requests.metrics import ControllerMetrics
from controller.requests.request import TrackedRequest
from controller.requests.session_queues import SessionQueues
from controller.requests.store import RequestStore
from shared.errors import is_caused_by_request
from shared.messages.control import ForgetSession
from shared.messages.request_events import AttemptFailed
from shared.messages.stream import DoneMessage, ErrorDetails, FailedMessage


class EndingActions:
    """Actions of `controller.requests.transitions` that end a request.

    Args:
        start_turn: starts a turn whose session has no earlier turn any more.
    """

    def __init__(
        self,
        term: LeaderTerm,
        store: RequestStore,
        turns: SessionQueues,
        dispatcher: Dispatcher,
        timers: RequestTimers,
        metrics: ControllerMetrics,
        instructions: InstructionBuilder,
        start_turn: Callable[[TrackedRequest], None],
    ) -> None:
        self._term = term
        self._store = store
        self._turns = turns
        self._dispatcher = dispatcher
        self._timers = timers
        self._metrics = metrics
        self._out = instructions
        self._start_turn = start_turn

    # Ended by a worker or by the list runner, which sent the terminal message.

    def end_finished(self, request: TrackedRequest) -> None:
        self._end(request, succeeded=True)

    def end_failed(self, request: TrackedRequest, event: AttemptFailed) -> None:
        self._end(request, succeeded=False, code=event.code)

    def end_list(self, request: TrackedRequest, end: DoneMessage | FailedMessage) -> None:
        request.end = end
        code = end.error.code if isinstance(end, FailedMessage) else ""
        self._end(request, succeeded=not code, code=code)

    # Ended by the leader, which sends the terminal message.

    def end_cancelled(self, request: TrackedRequest) -> None:
        self._number_end(request)
        self._end_with(request, cancellation(request, self._out.now))

    def cancel_offer(self, request: TrackedRequest) -> None:
        """Cancel an offered request, if its dispatch was not sent yet. Otherwise the answer of the
        worker decides."""
        if self._dispatcher.queue.withdraw(request):
            request.detach("other", self._out.now)
            self.end_cancelled(request)

    def fail(self, request: TrackedRequest, error: ErrorDetails) -> None:
        self._out.warn(f"failed: {error.message}", request, error.code)
        self._number_end(request)
        self._end_with(request, failure(request, error), code=error.code)

    def abort(self, request: TrackedRequest, error: ErrorDetails) -> None:
        """Fail a request that a worker has, and cancel it there."""
        if request.request is None:
            self.lose(request)
            return
        if not self._dispatcher.queue.withdraw(request):
            self._out.cancel_attempt(request, silent=True)
            request.may_have_ended = True
        self.fail(request, error)

    def fail_list(self, request: TrackedRequest, error: ErrorDetails) -> None:
        self._out.add(PromptListCommand("fail", request, error=error))

    def _number_end(self, request: TrackedRequest) -> None:
        """Give the leader's terminal message an attempt number of its own, if the last worker may
        have sent one under the present number."""
        request.attempt += request.may_have_ended
        self._term.raise_attempt(request)

    def _end_with(
        self, request: TrackedRequest, end: DoneMessage | FailedMessage, *, code: str = ""
    ) -> None:
        request.end = end
        self._out.send_to_client(request, end, request.inboxes)
        self._end(request, succeeded=not code, code=code)

    def _end(self, request: TrackedRequest, *, succeeded: bool, code: str = "") -> None:
        request.finish(succeeded=succeeded, code=code, now=self._out.now)
        seconds = request.elapsed_ms(self._out.now) / 1000
        outcome = code or ("cancelled" if request.cancelled else "ok")
        rejected = not succeeded and is_caused_by_request(code)
        self._metrics.ended(request, outcome, seconds, rejected=rejected)
        self._out.end_trace(request, outcome, code)
        ended = "finished" if succeeded else "failed"
        self._out.info(f"{ended} after {seconds * 1000:.0f} ms", request)
        if succeeded and not request.cancelled:
            self._settle_session(request)
        self.drop(request)
        self._store.end(request)
        self._timers.capacity_changed()

    def _settle_session(self, request: TrackedRequest) -> None:
        """Record that the session is on this worker now, and have the previous worker forget what
        it stored of the session, which is out of date."""
        if request.affinity is None or request.worker is None:
            return
        homes = self._dispatcher.router.homes
        before = homes.record_turn(request.affinity, request.worker, self._out.now)
        if request.session is not None and before is not None and before != request.worker:
            client, session_id = request.session
            order = ForgetSession(
                term=self._term.number, client=client, session_id=session_id, drop=False
            )
            self._out.order(before, order)

    # Lost, or replaced.

    def lose(self, request: TrackedRequest) -> None:
        """Neither the request nor its outcome is known any more: its client publishes it again. The
        next turn of its session waits a moment for that."""
        self._out.warn("lost: how it ended is unknown", request)
        request.lose(self._out.now)
        self._store.end(request)
        self._dispatcher.waiting.remove(request)
        self._timers.expect_again(request)

    def give_up_lost(self, request: TrackedRequest) -> None:
        """A lost request was not published again in time."""
        self._out.end_trace(request, "lost")
        request.trace = None
        self.drop(request)

    def drop(self, request: TrackedRequest) -> None:
        """Remove a request from all queues, and start the next turn of its session."""
        self._dispatcher.waiting.remove(request)
        self._timers.drop(request)
        following = self._turns.remove(request)
        if following is not None and following.state == "waiting":
            self._start_turn(following)
