"""What a client does about silence and gaps: a state machine without I/O.

Silence is never taken for an end. What is asked, in this order: `status` of the controllers,
then `resend` of the worker that is known to serve the request; where nobody knows it, or where a
controller passes the stream on (of a list of prompts), the request is published again under its own
id: to go on from what is here, where its worker and its controller ended together.
"""

from dataclasses import dataclass
from typing import Literal

from shared.errors import StreamFailed, StreamSilent, Unavailable
from shared.messages.control import RequestStateName, ResendStateName

REPUBLISH_AFTER_S = 1.0
SILENCE_S = 3.0
SILENCE_LIMIT_S = 8.0
DISCONNECTED_LIMIT_S = 5.0
_ASK_AGAIN_S = 1.0
_GAP_ASK_AGAIN_S = 0.5
_STOOD_STILL_S = 2.0
_LOST_LIMIT_S = 2.0
_NO_CONTROLLER_LIMIT_S = 2.0
_NO_CONTROLLER_RETRY_S = 0.25

Step = Literal["publish", "go_on", "ask_status", "ask_resend"]


@dataclass(frozen=True, slots=True)
class Situation:
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


class Recovery:
    """Decides the next step of one stream. Times are seconds of any monotonic clock."""

    def __init__(self, now: float, connections: int) -> None:
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
        return now - self._heard_at >= SILENCE_S

    def is_lost(self, now: float) -> bool:
        """Nothing was heard for a while, but not for so long that nobody cares any more."""
        return self.is_silent(now) and now - self._heard_at < SILENCE_S + _LOST_LIMIT_S

    def on_message(self, now: float) -> None:
        """Something of the stream came."""
        self._heard_at = now
        self._nobody_since = None
        self._status_unanswered = self._worker_gone = False

    def on_state(self, state: RequestStateName, at_a_worker: bool, now: float) -> None:
        """A controller answered: it knows the request."""
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

    def next_step(self, now: float, situation: Situation) -> Step | None:
        """What to do now, if anything.

        Raises:
            Unavailable: nobody takes requests.
            StreamSilent: nothing was heard for too long, or the connection is gone.
            StreamFailed: missing tokens did not come.
        """
        if now - self._looked_at > _STOOD_STILL_S:
            # Nobody looked: what came meanwhile is still to be read.
            self._heard_at = max(self._heard_at, now - SILENCE_S)
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

    def wait_s(self, now: float, situation: Situation) -> float:
        """How long to wait for a message before the next look at the rules."""
        hurried = self._nobody_since is not None or self._planned is not None
        if hurried or situation.missing or situation.behind:
            return _NO_CONTROLLER_RETRY_S
        if not situation.heard:
            return max(0.05, self._published_at + REPUBLISH_AFTER_S - now)
        return min(_ASK_AGAIN_S, max(0.05, self._heard_at + SILENCE_S - now))

    def _due(self, now: float, situation: Situation) -> Step | None:
        if situation.connections != self._connections:
            self._connections = situation.connections
            self._planned = self._planned or ("ask_status" if situation.heard else "publish")
        if self._planned is not None:
            # Answers to answers must not go round without a pause.
            asked_at = self._asked_at.get(self._planned)
            paused = asked_at is None or now - asked_at >= _GAP_ASK_AGAIN_S
            return self._planned if paused else None
        if not situation.heard:
            wait_s = REPUBLISH_AFTER_S if self._nobody_since is None else _NO_CONTROLLER_RETRY_S
            return "publish" if now - self._published_at >= wait_s else None
        last_asked_at = max(self._asked_at.values(), default=self._began_at)
        is_silent = now - self._heard_at >= SILENCE_S
        may_come = not (self._worker_gone and is_silent)  # from whoever has it
        if situation.missing and may_come and now - last_asked_at >= _GAP_ASK_AGAIN_S:
            return "ask_resend" if situation.worker_known else "ask_status"
        if not is_silent or now - last_asked_at < _ASK_AGAIN_S:
            return None
        if not self._status_unanswered:
            return "ask_status"
        self._status_unanswered = False  # no controller knows it: ask others, then again
        if situation.worker_known and not self._worker_gone:
            return "ask_resend"
        # What a controller passed on ended with that controller, and is said again from the start.
        return "go_on" if situation.started and situation.worker_known else "publish"

    def _give_up(self, now: float, situation: Situation) -> None:
        silent_s = now - self._heard_at
        self._missing_since = (self._missing_since or now) if situation.missing else None
        if not situation.heard and self._nobody_since is not None:
            if now - self._nobody_since > _NO_CONTROLLER_LIMIT_S:
                raise Unavailable(
                    "no controller takes requests; is `controller` running?", code="no_controller"
                )
        if not situation.connected and silent_s >= DISCONNECTED_LIMIT_S:
            raise StreamSilent("the connection to NATS is gone", code="disconnected")
        if silent_s >= SILENCE_LIMIT_S:
            raise StreamSilent(f"nothing was heard for {silent_s:.0f} s")
        if self._missing_since is not None and now - self._missing_since >= SILENCE_LIMIT_S:
            raise StreamFailed("tokens are missing and were not sent again", code="stream_broken")
