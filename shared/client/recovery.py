"""What a client does about silence and gaps: a state machine without I/O.

Silence is never taken for an end. What is asked, in this order: `status` of the controllers,
then `resend` of the worker that is known to serve the request; where nobody knows it, or where a
controller passes the stream on (of a list of prompts), the request is published again under its own
id: to go on from what is here, where its worker and its controller ended together.
"""

from dataclasses import astuple, dataclass
from typing import Literal, Self

from shared.errors import StreamFailed, StreamSilent, Unavailable
from shared.messages.control import RequestStateName, ResendStateName

Step = Literal["publish", "go_on", "ask_status", "ask_resend"]


@dataclass(frozen=True, slots=True)
class StreamState:
    """What the rules depend on.

    Attributes:
        connections: how often a connection was made; a new one may have lost messages.
        heard: anything of the request, ever.
        started: some of the answer.
        worker_known: some worker serves it, or did.
        missing: tokens are known to be missing.
        behind: the turn before of its session is lost too, and has to come first again.
    """

    connected: bool
    connections: int
    heard: bool
    started: bool
    worker_known: bool
    missing: bool
    behind: bool = False


@dataclass(frozen=True, slots=True)
class RecoveryTimes:
    """How long a stream waits before it takes each step.

    Attributes:
        republish_after_s: nothing was heard at all: the request is published again.
        silence_s: nothing was heard for this long: ask whether the stream still runs.
        silence_limit_s: nothing was heard for this long, or missing tokens did not come: give up.
        disconnected_limit_s: the same while there is no connection.
        ask_again_s, ask_again_for_gap_s: between two questions about silence, or about a gap.
        stalled_s: the client itself did not run for this long: what came meanwhile is read first.
        lost_limit_s: how long, once silent, a turn holds back the next turn of its session.
        no_controller_limit_s, no_controller_retry_s: nobody takes requests: retry, then give up.
        abandoned_s: a turn whose reader has stopped reading holds back the next turn this long.
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
        """All of them times a factor: their order and ratios stay."""
        return type(self)(*(factor * value for value in astuple(self)))


DEFAULT_TIMES = RecoveryTimes()


class Recovery:
    """Decides the next step of one stream. `now` is seconds of any monotonic clock."""

    def __init__(self, now: float, connections: int, times: RecoveryTimes = DEFAULT_TIMES) -> None:
        self._times = times
        self._looked_at = now
        self._heard_at = now
        self._began_at = now
        self._asked_at: dict[Step, float] = {}
        self._missing_since: float | None = None
        self._nobody_since: float | None = None
        self._connections = connections
        self._planned: Step | None = None
        self._status_unanswered = False
        self._worker_gone = False

    @property
    def _published_at(self) -> float:
        return self._asked_at.get("publish", self._began_at)

    def is_silent(self, now: float) -> bool:
        """Nothing was heard for a while."""
        return now - self._heard_at >= self._times.silence_s

    def is_lost(self, now: float) -> bool:
        """Nothing was heard for a while, but not for so long that nobody cares any more."""
        times = self._times
        limit_s = times.silence_s + times.lost_limit_s
        return self.is_silent(now) and now - self._heard_at < limit_s

    def on_message(self, now: float) -> None:
        """Something of the stream came."""
        self._heard_at = now
        self._nobody_since = None
        self._status_unanswered = self._worker_gone = False

    def on_state(self, state: RequestStateName, at_a_worker: bool, now: float) -> None:
        """The leader answered."""
        if state == "unknown":  # nor does any worker
            self._planned = "go_on"
            return
        is_lost = state == "finished" and self._worker_gone  # so is what the worker had to say
        self.on_message(now)
        if state in ("running", "finished") and at_a_worker and not is_lost:
            self._planned = "ask_resend"
        elif state in ("finished", "failed"):
            self._planned = "publish"  # whoever sent the end sends it again
        elif state == "running" and self._missing_since is not None:
            self._planned = "publish"  # a controller passes it on: it says all of it again

    def on_resend_state(self, state: ResendStateName, now: float) -> None:
        """The worker answered; what it has follows by itself."""
        if state == "unknown":
            self._planned = "publish"
        else:
            self.on_message(now)

    def on_no_worker(self) -> None:
        """The worker is gone; the controllers may know more."""
        self._worker_gone = True
        self._planned = "ask_status"

    def on_no_controller(self, now: float) -> None:
        """Nobody takes requests."""
        if self._nobody_since is None:
            self._nobody_since = now

    def next_step(self, now: float, situation: StreamState) -> Step | None:
        """What to do now, if anything.

        Raises:
            Unavailable: nobody takes requests.
            StreamSilent: nothing was heard for too long, or the connection is gone.
            StreamFailed: missing tokens did not come.
        """
        if now - self._looked_at > self._times.stalled_s:
            # Nobody looked: what came meanwhile is still to be read.
            self._heard_at = max(self._heard_at, now - self._times.silence_s)
            self._missing_since = None
        self._looked_at = now
        self._give_up(now, situation)
        if not situation.connected:
            return None
        step = self._due(now, situation)
        if step is None or (step in ("publish", "go_on") and situation.behind):
            return None
        self._planned = None
        self._asked_at[step] = now
        if step == "ask_status":
            self._status_unanswered = True
        return step

    def wait_s(self, now: float, situation: StreamState) -> float:
        """How long to wait for a message before the next look at the rules."""
        hurried = self._nobody_since is not None or self._planned is not None
        if hurried or situation.missing or situation.behind:
            return self._times.no_controller_retry_s
        if not situation.heard:
            return max(0.05, self._published_at + self._times.republish_after_s - now)
        until_silent_s = self._heard_at + self._times.silence_s - now
        return min(self._times.ask_again_s, max(0.05, until_silent_s))

    def _due(self, now: float, situation: StreamState) -> Step | None:
        times = self._times
        if situation.connections != self._connections:
            self._connections = situation.connections
            self._planned = self._planned or ("ask_status" if situation.heard else "publish")
        if self._planned == "go_on" and not situation.started:
            self._planned = "publish"
        if self._planned is not None:
            # Answers to answers must not go round without a pause.
            asked_at = self._asked_at.get(self._planned)
            paused = asked_at is None or now - asked_at >= times.ask_again_for_gap_s
            return self._planned if paused else None
        if not situation.heard:
            nobody = self._nobody_since is not None
            wait_s = times.no_controller_retry_s if nobody else times.republish_after_s
            return "publish" if now - self._published_at >= wait_s else None
        last_asked_at = max(self._asked_at.values(), default=self._began_at)
        is_silent = now - self._heard_at >= times.silence_s
        may_come = not (self._worker_gone and is_silent)  # from whoever has it
        if situation.missing and may_come and now - last_asked_at >= times.ask_again_for_gap_s:
            return "ask_resend" if situation.worker_known else "ask_status"
        if not is_silent or now - last_asked_at < times.ask_again_s:
            return None
        if not self._status_unanswered:
            return "ask_status"
        self._status_unanswered = False  # no controller knows it: ask others, then again
        if situation.worker_known and not self._worker_gone:
            return "ask_resend"
        # What a controller passed on ended with that controller, and is said again from the start.
        return "go_on" if situation.started and situation.worker_known else "publish"

    def _give_up(self, now: float, situation: StreamState) -> None:
        times, silent_s = self._times, now - self._heard_at
        self._missing_since = (self._missing_since or now) if situation.missing else None
        if not situation.heard and self._nobody_since is not None:
            if now - self._nobody_since > times.no_controller_limit_s:
                raise Unavailable(
                    "no controller takes requests; is `controller` running?", code="no_controller"
                )
        if not situation.connected and silent_s >= times.disconnected_limit_s:
            raise StreamSilent("the connection to NATS is gone", code="disconnected")
        if silent_s >= times.silence_limit_s:
            raise StreamSilent(f"nothing was heard for {silent_s:.0f} s")
        if self._missing_since is not None and now - self._missing_since >= times.silence_limit_s:
            raise StreamFailed("tokens are missing and were not sent again", code="stream_broken")
