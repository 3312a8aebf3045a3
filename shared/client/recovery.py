"""How a client recovers from silence and gaps: a state machine without I/O.

Silence is never treated as an end. The client first queries the controllers for the `status`, then
the worker that is known to serve the request for a `resend`. If no process knows the request, or a
controller relays the stream (of a list of prompts), the client publishes the request again under
its own id: with the received tokens to resume from, if worker and controller died together.
"""

from dataclasses import astuple, dataclass
from typing import Literal, Self

from shared.errors import StreamFailed, StreamSilent, Unavailable
from shared.messages.control import RequestStateName, ResendStateName

Step = Literal["publish", "resume", "ask_status", "ask_resend"]


@dataclass(frozen=True, slots=True)
class RecoveryInputs:
    """The state of a stream that the next step depends on.

    Attributes:
        connections: number of connections made so far; messages around a new one may be lost.
        received_any: any message of the request was received.
        started: some of the answer was received.
        worker_known: a worker serves the request, or did.
        missing: tokens are known to be missing.
        behind: the previous turn of the session is lost, too, and must be published first.
    """

    connected: bool
    connections: int
    received_any: bool
    started: bool
    worker_known: bool
    missing: bool
    behind: bool = False


@dataclass(frozen=True, slots=True)
class RecoveryTimes:
    """How long a stream waits before it takes each step.

    Attributes:
        republish_after_s: without any message: publish the request again.
        silence_s: without a message for this long: query whether the stream still runs.
        silence_limit_s: without a message, or with missing tokens, for this long: give up.
        disconnected_limit_s: the same without a connection.
        ask_again_s, ask_again_for_gap_s: between two queries after silence, or for a gap.
        stalled_s: the client itself did not run for this long: it reads pending messages first.
        lost_limit_s: how long, once silent, a turn delays the next turn of its session.
        no_controller_limit_s, no_controller_retry_s: without a controller: give up, retry.
        abandoned_s: how long a turn whose reader stopped reading delays the next turn.
    """

    republish_after_s: float = 1.0
    silence_s: float = 3.0
    silence_limit_s: float = 15.0
    disconnected_limit_s: float = 5.0
    ask_again_s: float = 1.0
    ask_again_for_gap_s: float = 0.5
    stalled_s: float = 2.0
    lost_limit_s: float = 2.0
    no_controller_limit_s: float = 15.0
    no_controller_retry_s: float = 0.25
    abandoned_s: float = 2.0

    def scaled(self, factor: float) -> Self:
        """Return all times multiplied by a factor, which keeps their order and ratios."""
        return type(self)(*(factor * value for value in astuple(self)))


DEFAULT_TIMES = RecoveryTimes()


class StreamRecovery:
    """Decides the next step of one stream. `now` is seconds of any monotonic clock."""

    def __init__(self, now: float, connections: int, times: RecoveryTimes = DEFAULT_TIMES) -> None:
        self._times = times
        self._checked_at = now
        self._last_message_at = now
        self._began_at = now
        self._step_at: dict[Step, float] = {}
        self._missing_since: float | None = None
        self._no_controller_since: float | None = None
        self._connections = connections
        self._planned: Step | None = None
        self._status_unanswered = False
        self._worker_gone = False

    @property
    def _published_at(self) -> float:
        return self._step_at.get("publish", self._began_at)

    def is_silent(self, now: float) -> bool:
        """Whether there was no message for `silence_s`."""
        return now - self._last_message_at >= self._times.silence_s

    def is_lost(self, now: float) -> bool:
        """Whether the stream has been silent, for less than `lost_limit_s` beyond `silence_s`."""
        times = self._times
        limit_s = times.silence_s + times.lost_limit_s
        return self.is_silent(now) and now - self._last_message_at < limit_s

    def on_message(self, now: float) -> None:
        """A message of the stream was received."""
        self._last_message_at = now
        self._no_controller_since = None
        self._status_unanswered = self._worker_gone = False

    def on_state(self, state: RequestStateName, at_a_worker: bool, now: float) -> None:
        """The leader answered."""
        if state == "unknown":  # nor does any worker
            self._planned = "resume"
            return
        is_lost = state == "finished" and self._worker_gone  # with the worker's messages
        self.on_message(now)
        if state in ("running", "finished") and at_a_worker and not is_lost:
            self._planned = "ask_resend"
        elif state in ("finished", "failed"):
            self._planned = "publish"  # the sender of the end repeats it
        elif state == "running" and self._missing_since is not None:
            self._planned = "publish"  # a controller relays the stream, and repeats all of it

    def on_resend_state(self, state: ResendStateName, now: float) -> None:
        """The worker answered; its messages follow."""
        if state == "unknown":
            self._planned = "resume"
        else:
            self.on_message(now)

    def on_no_worker(self) -> None:
        """The worker does not respond; the controllers may know more."""
        self._worker_gone = True
        self._planned = "ask_status"

    def on_no_controller(self, now: float) -> None:
        """There is no leader that accepts requests."""
        if self._no_controller_since is None:
            self._no_controller_since = now

    def next_step(self, now: float, state: RecoveryInputs) -> Step | None:
        """Return the step to take now, if any.

        Raises:
            Unavailable: no controller accepts requests.
            StreamSilent: there was no message for too long, or the connection is lost.
            StreamFailed: missing tokens did not arrive.
        """
        if now - self._checked_at > self._times.stalled_s:
            # The client did not run: pending messages are read first.
            self._last_message_at = max(self._last_message_at, now - self._times.silence_s)
            self._missing_since = None
        self._checked_at = now
        self._give_up(now, state)
        if not state.connected:
            return None
        step = self._due(now, state)
        if step is None or (step in ("publish", "resume") and state.behind):
            return None
        self._planned = None
        self._step_at[step] = now
        if step == "ask_status":
            self._status_unanswered = True
        return step

    def wait_s(self, now: float, state: RecoveryInputs) -> float:
        """Return how long to wait for a message before `next_step` is called again."""
        urgent = self._no_controller_since is not None or self._planned is not None
        if urgent or state.missing or state.behind:
            return self._times.no_controller_retry_s
        if not state.received_any:
            return max(0.05, self._published_at + self._times.republish_after_s - now)
        until_silent_s = self._last_message_at + self._times.silence_s - now
        return min(self._times.ask_again_s, max(0.05, until_silent_s))

    def _due(self, now: float, state: RecoveryInputs) -> Step | None:
        times = self._times
        if state.connections != self._connections:
            self._connections = state.connections
            self._planned = self._planned or ("ask_status" if state.received_any else "publish")
        if self._planned == "resume" and not state.started:
            self._planned = "publish"
        if self._planned is not None:
            # A reply that plans a step must not cause a loop of queries without a pause.
            step_at = self._step_at.get(self._planned)
            paused = step_at is None or now - step_at >= times.ask_again_for_gap_s
            return self._planned if paused else None
        if not state.received_any:
            no_controller = self._no_controller_since is not None
            wait_s = times.no_controller_retry_s if no_controller else times.republish_after_s
            return "publish" if now - self._published_at >= wait_s else None
        last_step_at = max(self._step_at.values(), default=self._began_at)
        is_silent = now - self._last_message_at >= times.silence_s
        can_resend = not (self._worker_gone and is_silent)
        if state.missing and can_resend and now - last_step_at >= times.ask_again_for_gap_s:
            return "ask_resend" if state.worker_known else "ask_status"
        if not is_silent or now - last_step_at < times.ask_again_s:
            return None
        if not self._status_unanswered:
            return "ask_status"
        self._status_unanswered = False  # no controller answered: ask others, then again
        if state.worker_known and not self._worker_gone:
            return "ask_resend"
        # A stream that a controller relayed ended with that controller, and starts again.
        return "resume" if state.started and state.worker_known else "publish"

    def _give_up(self, now: float, state: RecoveryInputs) -> None:
        times, silent_s = self._times, now - self._last_message_at
        self._missing_since = (self._missing_since or now) if state.missing else None
        since = None if state.received_any else self._no_controller_since
        if since is not None and now - since > times.no_controller_limit_s:
            raise Unavailable(
                "no controller takes requests; is `controller` running?", code="no_controller"
            )
        if not state.connected and silent_s >= times.disconnected_limit_s:
            raise StreamSilent("the connection to NATS is lost", code="disconnected")
        if silent_s >= times.silence_limit_s and since is None:
            raise StreamSilent(f"no message for {silent_s:.0f} s")
        if self._missing_since is not None and now - self._missing_since >= times.silence_limit_s:
            raise StreamFailed("tokens are missing and were not resent", code="stream_broken")
